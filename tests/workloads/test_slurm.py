"""Slurm's accounting as a workload: small tables whose jobs are worked out by hand, and every kind of odd row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.slurm import SlurmHistory, parse_slurm, read_history, read_slurm

SAMPLE = Path(__file__).resolve().parents[1] / "slurm" / "sample.psv"
HEADER = (
    "JobID|JobName|User|Account|Partition|QOS|Submit|Eligible|Start|End|Elapsed|Timelimit|State|NNodes|NCPUS|ReqTRES|AllocTRES|"
    "NodeList"
)
DAY = "2024-05-06T"
TRES = "billing=8,cpu=8,gres/gpu=4,mem=64G,node=2"
BASE = {
    "JobID": "7", "JobName": "train", "User": "alice", "Account": "vision", "Partition": "gpu", "QOS": "normal",
    "Submit": f"{DAY}10:00:00", "Eligible": f"{DAY}10:00:00", "Start": f"{DAY}10:01:00", "End": f"{DAY}10:11:00",
    "Elapsed": "00:10:00", "Timelimit": "01:00:00", "State": "COMPLETED", "NNodes": "2", "NCPUS": "8", "ReqTRES": TRES,
    "AllocTRES": TRES, "NodeList": "g[1-2]",
}  # fmt: skip


def row(**cells: str) -> str:
    return "|".join({**BASE, **cells}[column] for column in HEADER.split("|"))


def table(*rows: str) -> str:
    return "\n".join([HEADER, *rows, ""])


def at(clock: str) -> str:
    return f"{DAY}{clock}"


def one(history: SlurmHistory) -> list[int]:
    """Submission, wait, run time and estimate of the only job, in seconds; its workers, and GPUs, cpus of each."""
    load = history.workload
    assert len(load) == 1
    times = [load.submitted_us[0], history.waited_us[0], load.work_us[0], load.spec[c.J_ESTIMATE, 0]]
    return [
        *(int(t) // 10**6 for t in times),
        int(load.spec[c.J_DATA, 0]),
        int(load.spec[c.J_GPU_TASK, 0]) // c.WHOLE,
        int(load.spec[c.J_CPU_TASK, 0]) // 1000,
    ]


def test_a_job_is_a_gang_of_its_nodes() -> None:
    history = parse_slurm(table(row()))
    assert one(history) == [0, 60, 600, 3600, 2, 2, 4]
    load = history.workload
    assert load.spec[c.J_MEM_TASK, 0] == 32 * 2**30 and load.spec[c.J_KIND_MASK, 0] == -1
    assert (load.users, load.queues, load.job_names) == (("alice",), ("gpu",), ("train",))
    assert (history.started_us[0], history.ended_us[0]) == (60 * 10**6, 660 * 10**6)
    assert not load.dropped and not history.noted and not history.missing and history.rows == 1


@pytest.mark.parametrize(("queue", "name"), [("partition", "gpu"), ("account", "vision"), ("qos", "normal")])
def test_what_a_queue_is(queue: str, name: str) -> None:
    assert parse_slurm(table(row()), queue=queue).workload.queues == (name,)


def test_columns_come_in_any_order_and_number() -> None:
    text = "Start;jobid%20;END;Submit\n2024-05-06T10:00:05;3;2024-05-06T10:00:09;2024-05-06T10:00:00\n"
    history = parse_slurm(text)
    assert one(history) == [0, 5, 4, 4, 1, 0, 0]
    assert history.missing == ("GPUs", "cpus", "memory", "time limits", "hosts")
    assert history.noted == {"no time limit": 1, "no user": 1}
    assert history.workload.users == ("unknown",) and history.workload.queues == ("default",)


def test_trailing_delimiters_bom_and_gzip(tmp_path: Path) -> None:
    text = "".join(f"{line}|\r\n" for line in table(row()).splitlines())
    path = tmp_path / "jobs.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.encode()))
    assert read_slurm(path).sha256 == parse_slurm(table(row())).workload.sha256


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("JobID|Start|End", "'Submit'"),
        ("JobID|Submit|Elapsed", "'Start'"),
        ("User|State", "'JobID' or 'JobIDRaw', 'Submit', 'Start', 'ElapsedRaw' or 'Elapsed' or 'End'"),
        ("JobID|Submit|Start", "'ElapsedRaw' or 'Elapsed' or 'End'"),
    ],
)
def test_missing_columns_are_named(header: str, missing: str) -> None:
    with pytest.raises(UserError) as error:
        parse_slurm(f"{header}\n1|2|3\n", file="a.psv")
    assert str(error.value) == f'a.psv:1: no column {missing}; found "{header.replace("|", ", ")}"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("JobID  Submit\n------ ------\n1 2\n", "padded with spaces"),
        (HEADER + "\n", "a header and no rows"),
        (f"{HEADER}|JobID\n", "more than one column 'JobID'"),
        (table(row(State="PENDING", Start="Unknown", End="Unknown", Elapsed="00:00:00")), "no row is a job that ran"),
        (table(row(JobID="7.batch")), "no row is a job"),
        ("{", "not JSON"),
        ('{"jobs": 3}', "expected"),
        ('{"jobs": [3]}', "expected an object"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_slurm(text)
    assert "\n" not in str(error.value)


NEVER = {"Start": "Unknown", "End": "Unknown", "Elapsed": "00:00:00", "NodeList": "None assigned", "AllocTRES": ""}
DROPPED = {
    "no submit time": {"Submit": "Unknown"},
    "bad submit time": {"Submit": "soon"},
    "bad start time": {"Start": "06/05/24"},
    "end before start": {"Elapsed": "", "End": at("09:00:01")},
    "start before submission": {"Start": at("09:00:00"), "End": at("09:10:00")},
    "zero duration": {"Elapsed": "00:00:00", "End": at("10:01:00"), "State": "FAILED"},
    "impossible duration": {"Elapsed": "86000-00:00:00"},
    "bad duration": {"Elapsed": "ten minutes"},
    "no duration": {"Elapsed": "", "End": "Unknown"},
    "bad AllocTRES": {"AllocTRES": "cpu=8,gres/gpu=0.5"},
    "bad ReqTRES": {"ReqTRES": "gres/gpu=1000000"},
    "bad time limit": {"Timelimit": "a day"},
    "bad job id": {"JobID": "seven"},
    "bad NNodes": {"NNodes": "two", "AllocTRES": "cpu=8"},
    "bad NCPUS": {"NCPUS": "-8", "AllocTRES": "node=2"},
    "still waiting": {"JobID": "7_[0-9%2]", "State": "PENDING", **NEVER},
    "cancelled before its start": {"State": "CANCELLED by 1000", **NEVER},
    "never started": {"State": "DEADLINE", **NEVER},
}


@pytest.mark.parametrize("kind", DROPPED)
def test_rows_that_cannot_be_jobs_are_counted_by_kind(kind: str) -> None:
    history = parse_slurm(table(row(), row(**{"JobID": "8", **DROPPED[kind]})), file="a.psv")
    load = history.workload
    assert load.dropped == {kind: 1} and len(load) == 1 and history.rows == 2
    assert load.dropped_first.startswith("a.psv:3: ")


def test_rows_with_other_numbers_of_fields() -> None:
    nameless = table(row(), "9|cut", f"{row()}|more").replace("JobName", "Flags")
    assert parse_slurm(nameless).workload.dropped == {"too few fields": 1, "too many fields": 1}


def test_a_delimiter_in_the_name_of_a_job() -> None:
    history = parse_slurm(table(row(JobName="a|b||c")))
    assert history.workload.job_names == ("a|b||c",) and history.noted == {"delimiter in a name": 1}


def test_steps_and_repeated_headers_are_no_jobs() -> None:
    history = parse_slurm(table(row(), row(JobID="7.batch"), row(JobID="7.extern"), row(JobID="7.0"), HEADER, row(JobID="8")))
    assert (
        len(history.workload) == 2 and history.ignored == {"job step": 3, "repeated header": 1} and not history.workload.dropped
    )


def test_tasks_of_arrays_and_parts_of_heterogeneous_jobs_are_jobs() -> None:
    ids = ["12_10", "12_2", "12+0", "12+1", "9"]
    history = parse_slurm(table(*(row(JobID=job, JobName=job) for job in ids)))
    assert history.workload.job_names == ("9", "12+0", "12+1", "12_2", "12_10")
    assert history.noted == {"part of a heterogeneous job": 2}


def test_runs_of_a_requeued_job_are_one_job() -> None:
    first = row(State="REQUEUED", Start=at("10:01:00"), End=at("10:03:00"), Elapsed="00:02:00")
    second = row(
        State="NODE_FAIL",
        Submit=at("10:03:00"),
        Eligible=at("10:05:00"),
        Start=at("10:06:00"),
        End=at("10:07:00"),
        Elapsed="00:01:00",
    )
    third = row(Submit=at("10:07:00"), Eligible=at("10:07:00"), Start=at("10:10:00"), End=at("10:20:00"), Elapsed="00:10:00")
    history = parse_slurm(table(third, first, second))
    # 10:00 → 10:20, of which 2 + 1 + 10 minutes ran
    assert one(history)[:3] == [0, 7 * 60, 13 * 60]
    assert history.merged == 2 and history.noted == {"requeued": 1}
    assert [(run.start_us // 10**6, run.end_us // 10**6) for run in history.runs] == [(60, 180), (360, 420), (600, 1200)]
    # preempted, and waiting again: it keeps what it ran
    waits = row(Submit=at("10:03:00"), State="PENDING", **NEVER)
    history = parse_slurm(table(first.replace("REQUEUED", "PREEMPTED"), waits))
    assert one(history)[:3] == [0, 60, 120] and not history.workload.dropped


def test_the_same_run_twice_counts_once() -> None:
    running = row(State="RUNNING", End="Unknown", Elapsed="00:04:00")
    history = parse_slurm(table(running, row(), row()))
    assert one(history)[2] == 600 and history.workload.dropped == {"duplicate row": 2}


def test_ids_that_come_again() -> None:
    later = row(Submit=at("12:00:00"), Eligible=at("12:00:00"), Start=at("12:00:00"), End=at("12:01:00"), Elapsed="00:01:00")
    history = parse_slurm(table(row(), later))
    assert len(history.workload) == 2 and history.noted == {"id used again": 1}
    overlapping = row(Start=at("10:05:00"), End=at("10:06:00"), Elapsed="00:01:00")
    assert parse_slurm(table(row(), overlapping)).workload.dropped == {"duplicate id": 1}
    # ids of different clusters are different
    text = table(row(), overlapping).splitlines()
    both = "\n".join(f"{line}|{extra}" for line, extra in zip(text, ("Cluster", "one", "two"), strict=True))
    assert len(parse_slurm(both).workload) == 2


def test_a_running_job_keeps_what_it_ran() -> None:
    history = parse_slurm(table(row(State="RUNNING", End="Unknown", Elapsed="00:04:00")))
    assert one(history)[:3] == [0, 60, 240] and history.noted == {"still running": 1}


def test_requeued_before_the_file_begins() -> None:
    text = table(row()).splitlines()
    history = parse_slurm(f"{text[0]}|Restarts\n{text[1]}|2\n")
    assert history.noted == {"requeued, earlier runs not in the file": 1}


def test_a_job_that_had_to_wait_for_another_is_submitted_when_it_could_start() -> None:
    history = parse_slurm(table(row(Eligible=at("10:00:40"))))
    assert history.waited_us[0] == 20 * 10**6 and history.noted == {"eligible later than submitted": 1}


def test_gpus_that_nodes_cannot_share_equally() -> None:
    history = parse_slurm(table(row(AllocTRES="cpu=8,gres/gpu=3,mem=64G,node=2")))
    assert one(history)[4:] == [3, 1, 2] and history.noted == {"GPUs that its nodes cannot share equally": 1}


def test_types_of_gpus_bind_who_asked_for_them() -> None:
    held = "cpu=8,gres/gpu:a100=4,gres/gpu=4,node=2"
    history = parse_slurm(table(row(JobID="1", AllocTRES=held), row(JobID="2", ReqTRES=held, AllocTRES=held)))
    assert history.kinds_asked == ("", "a100") and history.workload.kinds == ("a100",)
    assert history.workload.spec[c.J_KIND_MASK].tolist() == [-1, 1]


def test_no_limit_is_estimated_by_what_it_ran() -> None:
    for limit in ("UNLIMITED", "Partition_Limit", ""):
        history = parse_slurm(table(row(Timelimit=limit)))
        assert one(history)[3] == 600 and history.noted == {"no time limit": 1}


def test_older_columns_of_resources() -> None:
    text = "JobID|Submit|Start|Elapsed|NNodes|AllocCPUS|ReqMem|ReqGRES\n5|1700000000|1700000001|00:00:07|2|8|4000Mc|gpu:v100:2\n"
    history = parse_slurm(text)
    assert one(history) == [0, 1, 7, 7, 2, 2, 4]
    assert history.workload.spec[c.J_MEM_TASK, 0] == 16_000 * 2**20 and history.kinds_asked == ("v100",)


# -- clocks -------------------------------------------------------------------------------------------------------
def night(**cells: str) -> SlurmHistory:
    """A job of 3 h 10 min over the night in which Paris puts its clocks back an hour (3:00 becomes 2:00)."""
    texts = {"Submit": "2024-10-27T01:00:00", "Eligible": "2024-10-27T01:00:00", "Start": "2024-10-27T01:30:00"}
    return parse_slurm(table(row(**{**texts, "End": "2024-10-27T03:40:00", "Elapsed": "03:10:00", **cells})), tz="Europe/Paris")


def test_an_hour_that_comes_twice() -> None:
    assert one(night())[:3] == [0, 1800, 11_400] and not night().noted
    # started at the second 2:30, which reads like the first
    history = night(Start="2024-10-27T02:30:00", Elapsed="01:10:00")
    assert one(history)[:3] == [0, 9000, 4200] and history.noted == {"clock change in its run": 1}
    # without the zone the wall clock goes back under a running job
    late = {"Start": at("10:01:00"), "End": at("10:11:00"), "Elapsed": "01:10:00"}
    history = parse_slurm(table(row(**late)))
    assert one(history)[:3] == [0, 60, 4200] and history.noted == {"clock change in its run": 1}


def test_times_of_different_zones() -> None:
    history = parse_slurm(
        table(row(JobID="1"), row(JobID="2", Submit=f"{DAY}12:00:30+02:00", Eligible="", Start=f"{DAY}12:01:00+02:00"))
    )
    assert history.workload.submitted_us.tolist() == [0, 30 * 10**6]
    assert history.noted["times without a zone among times with one"] == 5


def test_elapsed_is_trusted() -> None:
    history = parse_slurm(table(row(Elapsed="00:07:00")))  # suspended for three minutes
    assert one(history)[:3] == [0, 60, 420] and history.noted == {"Elapsed is not End − Start": 1}


@pytest.mark.parametrize(("key", "value"), [("tz", "Mars/Olympus"), ("queue", "cluster")])
def test_unknown_options(key: str, value: str) -> None:
    with pytest.raises(UserError, match=f"{key}: expected"):
        parse_slurm(table(row()), **{key: value})


# -- JSON ---------------------------------------------------------------------------------------------------------
def test_the_json_of_a_real_slurm_is_its_table() -> None:
    """Both are outputs of one emulated cluster (22.05); the JSON holds some of its jobs, without those users that it left out."""
    some = read_history(SAMPLE.with_suffix(".json"))
    whole = read_history(SAMPLE)
    number = {tuple(key): i for i, key in enumerate(_keys(whole))}
    same = [i for i in range(c.SPEC_COLUMNS) if i not in (c.J_USER, c.J_QUEUE)]
    assert some.rows == 7 and len(some.workload) == 6 and some.merged == 1
    for i, key in enumerate(_keys(some)):
        assert np.array_equal(some.workload.spec[same, i], whole.workload.spec[same, number[tuple(key)]])


def _keys(history: SlurmHistory) -> list[list[int]]:
    start = history.zero_s * 10**6
    return np.stack(
        [start + history.workload.submitted_us, start + history.started_us, history.ended_us + start, history.workload.gpus]
    ).T.tolist()


def test_newer_json() -> None:
    def number(value: int) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": value}

    job = {
        "job_id": 12, "array": {"job_id": 11, "task_id": number(3), "task": ""}, "het": {"job_id": 0, "job_offset": number(0)},
        "name": "x", "user": "alice", "account": "vision", "partition": "gpu", "nodes": "g1", "allocation_nodes": 1,
        "state": {"current": ["COMPLETED"], "reason": "None"}, "restart_cnt": 0,
        "time": {
            "submission": 1700000000, "eligible": 1700000000, "start": 1700000010, "end": 1700000040, "elapsed": 30,
            "limit": {"set": False, "infinite": True, "number": 0},
        },
        "tres": {"requested": [], "allocated": [
            {"type": "cpu", "name": "", "count": 4}, {"type": "mem", "name": "", "count": 1000},
            {"type": "gres", "name": "gpu", "count": 2}, {"type": "energy", "name": "", "count": None},
        ]},
    }  # fmt: skip
    history = parse_slurm(
        json.dumps(
            {
                "jobs": [
                    job,
                    {
                        **job,
                        "array": {"job_id": 11, "task": "4-9%2"},
                        "time": {"submission": 1700000000},
                        "state": {"current": "PENDING"},
                    },
                ]
            }
        )
    )
    assert one(history) == [0, 10, 30, 30, 1, 2, 4] and history.workload.dropped == {"still waiting": 1}
    assert history.workload.spec[c.J_MEM_TASK, 0] == 1000 * 2**20


# -- any text -----------------------------------------------------------------------------------------------------
@given(
    st.lists(
        st.lists(st.sampled_from([*HEADER.split("|"), *BASE.values(), "", "Unknown", "-1", "1e999", "\x00", "२"]), max_size=20),
        max_size=8,
    )
)
def test_any_table_is_read_or_refused(rows: list[list[str]]) -> None:
    text = "\n".join(["JobID|Submit|Start|Elapsed|State|AllocTRES", *("|".join(cells) for cells in rows)])
    try:
        history = parse_slurm(text)
    except UserError:
        return
    kept = len(history.workload) + history.merged + sum(history.ignored.values()) + sum(history.workload.dropped.values())
    assert kept == history.rows
