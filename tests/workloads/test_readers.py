"""Readers of the public traces: good rows, each kind of odd row, and the real files."""

import csv
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.formats import FORMATS, detect, format_of, read_file
from headway.workloads.itp import parse_itp
from headway.workloads.muri import parse_muri
from headway.workloads.openb import parse_openb
from headway.workloads.registry import load_workload
from headway.workloads.rows import noisy_estimates, wall_clock_s
from headway.workloads.schema import Workload
from headway.workloads.tiresias import parse_tiresias

S = 1_000_000
TRACES = Path(os.environ.get("HEADWAY_DATASETS") or Path(__file__).resolve().parents[3] / "shared" / "data") / "traces"

ITP = "cluster,job_id,submission_time,duration,num_gpu\n"
ITP_ROWS = "c2,a,1030,60,8\nc1,a,1000,0.5,1\n"
MURI = (
    "trace,job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)
MURI_ROWS = "trace1,0,4,5000,300,vgg16,16,60500,0,214,82,75,66,0\ntrace2,0,1,7000,10,dqn,128,100,0,490,446,8,0,1\n"
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
TIRESIAS_ROWS = "0,1,10,606,vgg19,164,30\n1,8,40,133,alexnet,147,23\n"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
OPENB_ROWS = """\
whole,12000,16384,1,1000,,LS,Running,100,200,110
share,6000,12288,1,460,V100M32|T4,BE,Running,101,205,105
large,4000,1024,8,1000,T4,BE,Succeeded,102,300,102
cpus,2000,0,0,0,,BE,Failed,103,104,103
"""
Parse = Callable[..., Workload]
GOOD: dict[str, tuple[Parse, str, str]] = {
    "itp": (parse_itp, ITP, ITP_ROWS),
    "muri": (parse_muri, MURI, MURI_ROWS),
    "tiresias": (parse_tiresias, TIRESIAS, TIRESIAS_ROWS),
    "openb": (parse_openb, OPENB, OPENB_ROWS),
}


def test_itp_rows_are_gangs_of_their_cluster() -> None:
    jobs = parse_itp(ITP + ITP_ROWS)
    assert jobs.submitted_us.tolist() == [0, 30 * S] and jobs.work_us.tolist() == [S // 2, 60 * S]
    assert jobs.spec[c.J_DATA].tolist() == jobs.gpus.tolist() == [1, 8]
    assert jobs.queues == jobs.users == ("c1", "c2") and jobs.spec[c.J_QUEUE].tolist() == [0, 1]
    assert jobs.job_names == ("a", "a") and not jobs.dropped and not jobs.noted and jobs.rows_read == 2


def test_estimates_hang_on_the_number_of_the_row() -> None:
    jobs = parse_itp(ITP + ITP_ROWS)
    assert jobs.spec[c.J_ESTIMATE].tolist() == noisy_estimates(np.array([S // 2, 60 * S]), np.array([1, 0])).tolist()
    exact = parse_itp(ITP + ITP_ROWS, estimates="exact")
    assert exact.spec[c.J_ESTIMATE].tolist() == exact.work_us.tolist()


def test_muri_counts_in_milliseconds_and_knows_models() -> None:
    jobs = parse_muri(MURI + MURI_ROWS)
    assert jobs.submitted_us.tolist() == [0, 2 * S] and jobs.work_us.tolist() == [60_500_000, 100_000]
    assert jobs.gpus.tolist() == [4, 1] and jobs.queues == ("trace1", "trace2")
    assert jobs.models == ("dqn", "vgg16") and jobs.spec[c.J_MODEL].tolist() == [1, 0]
    assert jobs.spec[c.J_UNITS_TOTAL].tolist() == [300, 10] and jobs.spec[c.J_BATCH].tolist() == [16, 128]
    assert jobs.job_names == ("trace1-0", "trace2-0")
    assert len(jobs.filtered("queue=trace1")) == 1


def test_tiresias_knows_models_and_iterations() -> None:
    jobs = parse_tiresias(TIRESIAS + TIRESIAS_ROWS)
    assert jobs.submitted_us.tolist() == [0, 30 * S] and jobs.work_us.tolist() == [164 * S, 147 * S]
    assert jobs.gpus.tolist() == [1, 8] and jobs.models == ("alexnet", "vgg19")
    assert jobs.spec[c.J_UNITS_TOTAL].tolist() == [606, 133]


def test_openb_pods_are_one_task_with_what_they_ask_for() -> None:
    jobs = parse_openb(OPENB + OPENB_ROWS)
    assert jobs.submitted_us.tolist() == [0, S, 2 * S, 3 * S]
    assert jobs.work_us.tolist() == [90 * S, 100 * S, 198 * S, S]  # from the time when it was scheduled
    assert jobs.spec[c.J_DATA].tolist() == [1, 1, 1, 1]
    assert jobs.spec[c.J_GPU_TASK].tolist() == jobs.gpu_milli.tolist() == [1000, 460, 8000, 0]
    assert jobs.spec[c.J_SHARE].tolist() == [0, 1, 0, 0]
    assert jobs.spec[c.J_CPU_TASK].tolist() == [12_000, 6000, 4000, 2000]
    assert jobs.spec[c.J_MEM_TASK].tolist() == [16384 << 20, 12288 << 20, 1024 << 20, 0]
    assert jobs.kinds == ("t4", "v100m32") and jobs.spec[c.J_KIND_MASK].tolist() == [-1, 0b11, 0b01, -1]
    assert jobs.queues == ("BE", "LS") and jobs.users == ("user",)


# -- odd rows ---------------------------------------------------------------------------------------------------------
ODD = [
    # format, row, what it is counted as, the column that is named
    ("itp", "c1,b,1000,60", "too few fields", ""),  # as a last line that is cut off
    ("itp", "c1,b,,60,1", "missing submission_time", "submission_time"),
    ("itp", "c1,b,-1,60,1", "bad submission_time", "submission_time"),
    ("itp", "c1,b,soon,60,1", "bad submission_time", "submission_time"),
    ("itp", "c1,b,1e300,60,1", "bad submission_time", "submission_time"),
    ("itp", "c1,b,2021-03-04 00:00:00,60,1", "bad submission_time", "submission_time"),
    ("itp", "c1,b,1000,,1", "missing duration", "duration"),
    ("itp", "c1,b,1000,0,1", "zero duration", "duration"),
    ("itp", "c1,b,1000,-60,1", "negative duration", "duration"),
    ("itp", "c1,b,1000,7442064000,1", "duration over 100 years", "duration"),  # 236 years
    ("itp", "c1,b,1000,4611686018427387904,1", "duration over 100 years", "duration"),
    ("itp", "c1,b,1000,nan,1", "bad duration", "duration"),
    ("itp", "c1,b,1000,inf,1", "bad duration", "duration"),
    ("itp", "c1,b,1000,1_000,1", "bad duration", "duration"),
    ("itp", "c1,b,1000,long,1", "bad duration", "duration"),
    ("itp", "c1,b,1000,60,", "missing num_gpu", "num_gpu"),
    ("itp", "c1,b,1000,60,0", "bad num_gpu", "num_gpu"),
    ("itp", "c1,b,1000,60,0.5", "bad num_gpu", "num_gpu"),
    ("itp", "c1,b,1000,60,1000000", "bad num_gpu", "num_gpu"),
    ("itp", "c1,b,1000,60,two", "bad num_gpu", "num_gpu"),
    ("itp", "c1,a,1001,61,1", "duplicate id", "job_id"),
    ("muri", "trace1,1,4,5000,300,vgg16,16,0,0,1,1,1,1,0", "zero duration", "duration"),
    ("muri", "trace1,1,4,5000,0,vgg16,16,5,0,1,1,1,1,0", "bad iterations", "iterations"),
    ("muri", "trace1,1,4,5000,9,vgg16,,5,0,1,1,1,1,0", "missing batch_size", "batch_size"),
    ("muri", "trace1,0,4,9000,9,vgg16,16,5,0,1,1,1,1,0", "duplicate id", "job_id"),
    ("tiresias", "2,1,,606,vgg19,164,30", "missing submit_time", "submit_time"),
    ("tiresias", "2,0,50,606,vgg19,164,30", "bad num_gpu", "num_gpu"),
    ("tiresias", "1,1,50,606,vgg19,164,30", "duplicate id", "job_id"),
    ("openb", "p,1000,1,1,1000,,LS,Pending,100,200,", "never scheduled", "scheduled_time"),
    ("openb", "p,1000,1,1,1000,,LS,Failed,,200,100", "missing creation_time", "creation_time"),
    ("openb", "p,1000,1,1,1000,,LS,Failed,100,200,90", "scheduled before created", "scheduled_time"),
    ("openb", "p,1000,1,1,1000,,LS,Failed,100,104,105", "end before start", "deletion_time"),
    ("openb", "p,1000,1,1,1000,,LS,Failed,100,105,105", "zero duration", "deletion_time"),
    ("openb", "p,1000,1,1,1000,,LS,Failed,100,7442064105,105", "duration over 100 years", "deletion_time"),
    ("openb", "p,1000,1,0,1000,,LS,Failed,100,200,105", "bad gpu_milli", "gpu_milli"),
    ("openb", "p,1000,1,1,0,,LS,Failed,100,200,105", "bad gpu_milli", "gpu_milli"),
    ("openb", "p,1000,1,2,500,,LS,Failed,100,200,105", "bad gpu_milli", "gpu_milli"),
    ("openb", "p,1000,1,1000000,1000,,LS,Failed,100,200,105", "bad num_gpu", "num_gpu"),
    ("openb", "p,1000,1,0.5,1000,,LS,Failed,100,200,105", "bad num_gpu", "num_gpu"),
    ("openb", "p,-5,1,1,1000,,LS,Failed,100,200,105", "bad cpu_milli", "cpu_milli"),
    ("openb", "p,1000,1,1,1000,T4||,LS,Failed,100,200,105", "bad gpu_spec", "gpu_spec"),
    ("openb", "share,1000,1,1,1000,,LS,Failed,100,200,105", "duplicate id", "name"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "row", "kind", "key"), ODD)
def test_an_odd_row_is_dropped_counted_and_named(form: str, row: str, kind: str, key: str) -> None:
    parse, header, good = GOOD[form]
    clean = parse(header + good)
    line = header.count("\n") + good.count("\n") + 2
    jobs = parse(header + good + "\n" + row, file="t.csv")  # an empty line is no row, but a line
    assert jobs.dropped == {kind: 1}
    assert jobs.dropped_first.startswith(f"t.csv:{line}: {key}{': ' if key else ''}expected ")
    assert jobs.sha256 == clean.sha256  # nothing of the odd row is left
    assert jobs.rows_read == len(clean) + 1


def test_a_row_is_counted_once_and_the_first_is_named_whatever_is_wrong_with_it() -> None:
    jobs = parse_itp(ITP + "c1,x,5,60,0\nc1,y,,0,0\n" + ITP_ROWS + "c1,z,5,60\n", file="t.csv")
    assert jobs.dropped == {"bad num_gpu": 1, "missing submission_time": 1, "too few fields": 1}
    assert jobs.dropped_first == 't.csv:2: num_gpu: expected a whole number from 1 to 10000, got "0"'


def test_a_line_is_told_behind_cells_of_several_lines() -> None:
    jobs = parse_itp(ITP + '"c\n1",a,1,60,1\nc1,b,1,0,1\n', file="t.csv")
    assert jobs.dropped_first.startswith("t.csv:4: duration: ")


def test_a_dropped_row_does_not_make_a_later_one_a_duplicate() -> None:
    jobs = parse_itp(ITP + "c1,a,1,0,1\nc1,a,1,60,1\n")
    assert jobs.dropped == {"zero duration": 1} and len(jobs) == 1


def test_unknown_columns_and_extra_fields_are_kept_and_counted() -> None:
    jobs = parse_itp("cluster,job_id,submission_time,duration,num_gpu,colour\nc1,a,1,60,1,red\nc1,b,1,60,1,red,and,more\n")
    assert len(jobs) == 2 and not jobs.dropped
    assert jobs.noted == {'unknown column "colour"': 2, "too many fields": 1}
    many = ITP.strip() + "".join(f",x{i}" for i in range(30)) + "\nc1,a,1,60,1" + "," * 30 + "\n"
    assert parse_itp(many).noted["10 more unknown columns"] == 1


def test_numbers_as_strings_in_quotes_are_numbers() -> None:
    assert parse_itp(ITP + '"c1","a"," 1000","60","8.0"\n').gpus.tolist() == [8]


@pytest.mark.parametrize("form", GOOD)
def test_no_row_that_is_a_job_is_refused(form: str) -> None:
    parse, header, _ = GOOD[form]
    with pytest.raises(UserError, match=r"^t\.csv: a header and no rows$"):
        parse(header, file="t.csv")
    with pytest.raises(UserError, match=r"^t\.csv:2: no row is a job; the first: expected at least \d+ fields, got 1$"):
        parse(header + "x\n", file="t.csv")


# -- files ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("form", GOOD)
def test_a_file_is_known_by_its_header_with_or_without_a_byte_order_mark(form: str, tmp_path: Path) -> None:
    parse, header, good = GOOD[form]
    for mark in (b"", b"\xef\xbb\xbf"):
        path = tmp_path / "t.csv"
        path.write_bytes(mark + (header + good).replace("\n", "\r\n").encode())
        assert detect(path) == form
        assert load_workload(str(path)).sha256 == parse(header + good).sha256
        assert load_workload(f"{path}:estimates=exact").sha256 == parse(header + good, estimates="exact").sha256


@pytest.mark.parametrize("form", [name for name, of in FORMATS.items() if of.columns])
def test_each_column_that_is_missing_is_named(form: str, tmp_path: Path) -> None:
    columns = FORMATS[form].columns
    assert format_of(columns) == form
    for missing in columns:
        path = tmp_path / "t.csv"
        path.write_text(",".join(column for column in columns if column != missing) + "\n1,2,3\n")
        with pytest.raises(UserError) as error:
            read_file(path, form=form)
        assert str(error.value).startswith(f"{path}:1: no column '{missing}'; found ")


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("duration,num_gpus,gpu_time,cluster", "no column 'timestamp'"),
        ("cluster,job_id,duration,num_gpu", "no column 'submission_time'"),
        ("job_id,num_gpu,iterations,model_name,duration", "no column 'submit_time'"),
        ("duration_s,gpus,user", "no column 'submit_s'"),
        ("name,cpu_milli,num_gpu,gpu_milli", "no column 'memory_mib'"),
        ("a,b,c", "no column 'submit_s', nor the columns of another format (see 'headway workload list')"),
        ("cluster,cluster,job_id,submission_time,duration,num_gpu", "more than one column 'cluster'"),
    ],
)
def test_a_trace_without_a_column_that_it_needs_is_refused_with_its_name(header: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(header + "\n1,2,3,4,5,6\n")
    with pytest.raises(UserError) as error:
        load_workload(str(path))
    assert str(error.value).startswith(f"{path}:1: {message}")
    assert "found" in str(error.value)


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown format 'phily' \(did you mean 'philly'\?\)"):
        read_file(tmp_path / "t.csv", form="phily")


def test_wall_clocks_by_hand() -> None:
    # 1 January of year 1 is day 1.
    cells = [
        "0001-01-01 00:00:01",
        "2017-10-09T07:01:55",
        "2017-10-09 07:01:55Z",
        "",
        "2017-02-29 00:00:00",
        "2017/10/09 07:01:55",
    ]
    assert wall_clock_s(cells).tolist() == [86_401, 736_611 * 86_400 + 25_315, -1, -1, -1, -1]


OPENB_DROPPED = {"never scheduled": 897}
REAL = [
    # file, jobs, dropped, GPU hours and days as the data's own description says, the hash's first digits
    ("itp.csv.gz", 63_573, {}, 1_508_971, 59.9, "dd6a354c5be93abd"),
    ("muri.csv.gz", 11_279, {}, 1_590_345, 125.2, "46c59e7a86e5f539"),
    ("tiresias-60.csv", 60, {}, 7, 0.0206, "facce7114e963857"),
    ("openb-pods.csv.gz", 7_255, OPENB_DROPPED, None, 149.3, "fcbff79c0af57422"),
    ("openb-pods-gpuspec33.csv.gz", 7_255, OPENB_DROPPED, None, 149.3, "859613e405cf29e0"),
]


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here: set HEADWAY_DATASETS")
@pytest.mark.parametrize(("file", "count", "dropped", "gpu_hours", "days", "sha256"), REAL)
def test_the_real_traces(file: str, count: int, dropped: dict[str, int], gpu_hours: int | None, days: float, sha256: str) -> None:
    jobs = load_workload(str(TRACES / file))
    assert len(jobs) == count and jobs.dropped == dropped and not jobs.noted
    assert gpu_hours is None or jobs.gpu_work_us / 3.6e9 == pytest.approx(gpu_hours, abs=0.5)
    assert jobs.span_us / 86_400e6 == pytest.approx(days, rel=0.01)
    assert jobs.sha256.startswith(sha256)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the public traces are not here: set HEADWAY_DATASETS")
def test_openb_sums_row_by_row() -> None:
    with gzip.open(TRACES / "openb-pods-gpuspec33.csv.gz", "rt") as stream:
        pods = [row for row in csv.DictReader(stream) if row["scheduled_time"]]
    jobs = load_workload(str(TRACES / "openb-pods-gpuspec33.csv.gz"))
    milli_s = sum(
        (int(pod["deletion_time"]) - int(pod["scheduled_time"])) * int(pod["num_gpu"]) * int(pod["gpu_milli"]) for pod in pods
    )
    assert jobs.gpu_work_us == milli_s * 1000
    assert int(jobs.spec[c.J_SHARE].sum()) == sum(0 < int(pod["gpu_milli"]) < 1000 for pod in pods)
    only_t4 = 1 << jobs.kinds.index("t4")
    assert int((jobs.spec[c.J_KIND_MASK] == only_t4).sum()) == sum(pod["gpu_spec"] == "T4" for pod in pods)
