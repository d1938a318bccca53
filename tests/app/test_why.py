"""`headway why`: the text of an answer, its numbers, what is asked of the journal, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.policies.mlfs.known_curves import load_of

from headway.app import why as use_case
from headway.app.simulate import about
from headway.app.unblock import place_by_ends
from headway.app.why import WhyRequest, progress, why
from headway.app.why_text import text
from headway.cli import run_command
from headway.core import columns as c
from headway.core.codec import encode
from headway.core.columns import EventKind, Reason
from headway.core.events import EventBuffer
from headway.core.view import ClusterView
from headway.perf.estimators import JobHistory
from headway.place.gang import Kernel
from headway.policies.registry import choose
from headway.sim.run import simulate
from headway.testing.builders import JobSketch, cluster, job, state, workload
from headway.workloads.cluster import Cluster

Json = dict[str, Any]
Captured = pytest.CaptureFixture[str]
US = 1_000_000

JOBS = [
    job("first", 2, 1000),
    job("second", 1, 400),
    job("train-42", 4, 600, submit_s=10),
    job("last", 1, 100, submit_s=20),
    job("late", 1, 50, submit_s=5000),
]
"""On one node of four GPUs: `first` and `second` run from 0, `train-42` needs all four, `last` would fit beside."""


def recorded(
    folder: Path, policy: str = "fifo", jobs: list[JobSketch] = JOBS, where: Cluster | None = None, named: bool = True
) -> Path:
    """The journal of a run, as `headway simulate --journal` writes it (rounds every 10 s)."""
    load, place, chosen = workload(jobs), where or cluster([4]), choose(policy)
    told = about(chosen, load, place, 7, 10.0) if named else None
    simulate(load, place, chosen.policy, seed=7, interval_s=10, journal=folder / "run.journal", about=told)
    return folder / "run.journal"


def ask(path: Path, which: str, at: str = "30", policy: str | None = None) -> Json:
    told = why(WhyRequest(job=which, journal=path, at=at, policy=policy))
    assert json.loads(json.dumps(told, allow_nan=False)) == told, "it is plain JSON"
    return told


GOLDEN = """\
job 2 (train-42) of user, queue default: queued at 30 s, under srtf
asks for 4 GPUs in 4 tasks; submitted at 10 s, waited 20 s, ran 0 s

rank    3 of 4, 1 of 1 waiting
        the shortest remaining time first

terms      value  weight  gives
class         50                 the job's priority: a higher class goes before every lower one
estimate   600 s       1    600  run time that the policy was told; without one a job comes last
run time     0 s      -1      0  what it has run so far
remaining  600 s                 max(0, estimate − run time) in steps of 10 ms, as the policy compares it: least first
arrival     10 s                 submitted at; of equals, who came first goes first

why     behind-others: others go before it
        needs 4 GPUs; free are 0 of 4, at most 0 on a node
helps   the rank: jobs before it want 2 GPUs of 4, which leaves 2 for its 4; 1 placed job after it (2 GPUs) may be stopped for it
        the end of 3 jobs, by estimate by 1,000 s, if no other takes their place (jobs 3 at 120 s, 1 at 400 s, 0 at 1,000 s)
curve   it has reported nothing"""


def test_the_text_of_an_answer(tmp_path: Path) -> None:
    """At 30 s: `last` came at 20 and took the fourth GPU; `second` (370 s left) and `last` (90) rank before `train-42` (600)."""
    assert text(ask(recorded(tmp_path, "srtf"), "train-42")) == GOLDEN


def test_a_job_behind_the_head_of_the_line(tmp_path: Path) -> None:
    """First come, first served: `last` would fit on the free GPU, but stands behind `train-42`."""
    path = recorded(tmp_path)
    head, last = ask(path, "2"), ask(path, "last")
    assert head["reason"]["word"] == "no-room" and head["rank"]["waiting_rank"] == 1
    assert (head["reason"]["then_needed_gpus"], head["reason"]["then_free_on_a_node_max"]) == (4, 1)
    assert (last["rank"]["rank"], last["rank"]["of"], last["reason"]["word"]) == (2, 2, "behind-others")
    ahead, ends = last["unblock"]
    assert (ahead["what"], ahead["count"], ahead["gpus"], ahead["jobs"]) == ("ahead", 1, 4, [2])
    assert ends["what"] == "ends" and ends["at_s"] == 30 and ends["count"] == 0, "it fits as it is"
    [ends] = head["unblock"]
    assert ends["jobs"] == [{"job": 1, "end_s": 400.0, "gpus": 1}, {"job": 0, "end_s": 1000.0, "gpus": 2}]
    assert ends["at_s"] == 1000


def test_backfill_says_what_is_reserved(tmp_path: Path) -> None:
    """`train-42` needs both nodes from 1000 s on; `long` would still run then, `last` not."""
    jobs = [*JOBS[:3], job("long", 1, 9000, submit_s=15), JOBS[3]]
    path = recorded(tmp_path, "fifo-backfill", jobs)
    assert ask(path, "last")["phase"] == "running"
    told = ask(path, "long")["reason"]
    assert told["word"] == "reserved-for-head" and "reserved for the first" in told["words"]


def test_a_running_job(tmp_path: Path) -> None:
    told = ask(recorded(tmp_path), "first", "100")
    assert (told["phase"], told["run_s"], told["rank"]["rank"], told["unblock"]) == ("running", 100, None, [])
    assert told["reason"] == {
        "word": "running", "words": "it has a place, and runs there", "came_by": "none", "ends_s": 1000.0,
    }  # fmt: skip
    assert told["place"] == "n0 (GPUs 0, 1)" and "rank    none" in text(told)


def test_a_job_that_has_ended_is_an_answer(tmp_path: Path) -> None:
    told = ask(recorded(tmp_path), "second", "450")
    assert (told["phase"], told["ended_s"], told["waiting_s"], told["run_s"]) == ("completed", 400, 0, 400)
    assert text(told).splitlines() == [
        "job 1 (second) completed at 400 s: it is done.",
        "submitted at 0 s, first started at 0 s, waited 0 s, ran 400 s",
    ]


def test_a_job_that_was_rejected(tmp_path: Path) -> None:
    told = ask(recorded(tmp_path, jobs=[*JOBS[:2], job("huge", 8, 10, submit_s=5)]), "huge")
    assert (told["phase"], told["ended_s"], told["reason"]["word"]) == ("rejected", 5, "larger-than-cluster")
    assert told["first_start_s"] is None and "it never started" in text(told)


def test_another_policy_on_the_same_state(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    told = ask(path, "last", policy="srtf")
    assert told["policy"] == "srtf" and told["rank"]["waiting_rank"] == 1
    assert told["notes"] == ["the run was one of fifo: srtf is asked about the state that fifo has made"]
    assert ask(path, "last", policy="fifo")["notes"] == []


def test_the_header_names_the_run(tmp_path: Path) -> None:
    run = ask(recorded(tmp_path, "las:quantum=600"), "last")["run"]
    load = workload(JOBS)
    assert run == {
        "policy": "las:quantum=600", "params": {"placement": "consolidated", "quantum": 600.0, "sharing": False},
        "workload": "test",
        "workload_sha256": load.sha256, "cluster": "test", "seed": 7, "round_s": 10.0,
    }  # fmt: skip


def test_the_hash_of_a_journal_does_not_hang_on_its_header(tmp_path: Path) -> None:
    load, place = workload(JOBS), cluster([4])
    plain = simulate(load, place, choose("las").policy, journal=tmp_path / "a")
    named = simulate(load, place, choose("las").policy, journal=tmp_path / "b", about={"policy": "las"})
    assert plain.journal_sha256 == named.journal_sha256
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()
    assert (
        use_case.read_journal(tmp_path / "a").batch.records.tolist()
        == use_case.read_journal(tmp_path / "b").batch.records.tolist()
    )


def test_a_journal_from_before_headers_named_runs(tmp_path: Path) -> None:
    path = recorded(tmp_path, named=False)
    assert ask(path, "3", policy="fifo")["rank"]["rank"] == 2
    assert run_command(["why", "3", "--journal", str(path), "--at", "30"]) == 2


def test_the_memo_is_folded_to_the_time(tmp_path: Path) -> None:
    """25 jobs of 100 s each have completed by 2600 s: the Gittins variant ranks by them."""
    jobs = [job(f"j{i}", 1, 100, submit_s=i) for i in range(30)]
    told = ask(recorded(tmp_path, "tiresias:variant=gittins", jobs, cluster([1])), "j29", "2550")
    by_name = {term["name"]: term for term in told["terms"]}
    assert by_name["gittins index"]["meaning"].startswith("by 25 completed jobs") and by_name["gittins index"]["value"] > 0


# -- what would help ------------------------------------------------------------------------------------------------
def looked_at(made: Any, number: int, now_s: float = 0, policy: str = "fifo") -> Json:
    view = ClusterView(made, round(now_s * US), 0)
    return use_case.look(view, None, choose(policy), number, JobHistory())


def happens(made: Any, kind: EventKind, number: int, **fields: int) -> None:
    out = EventBuffer()
    out.add(int(made.C[c.C_NOW]), kind, number, **fields)  # type: ignore[arg-type]
    made.apply(out.take())


def test_a_held_job_needs_its_release() -> None:
    made = state(cluster([4]), [job("a")])
    happens(made, EventKind.HOLD_SET, 0, a=1)
    told = looked_at(made, 0)
    assert told["reason"]["word"] == "held-by-user" and told["unblock"][0]["what"] == "release"


def test_a_job_that_is_to_be_retried() -> None:
    made = state(cluster([4]), [job("a")])
    made.J[c.J_NOT_BEFORE, 0] = 90 * US
    told = looked_at(made, 0)
    assert told["reason"]["word"] == "retry-later" and told["reason"]["retry_at_s"] == 90
    assert told["unblock"][0] == {"what": "retry", "words": "time: it is tried again at 90 s", "at_s": 90.0}


def test_a_queue_at_its_limit() -> None:
    """A limit of 3 GPUs, of which 2 are taken: a job of 2 lacks one."""
    made = state(cluster([8]), [job("a", 2), job("b", 2)], running={"a": [(0, [0]), (0, [1])]})
    made.Q[c.Q_LIMIT, 0] = 3 * c.WHOLE
    happens(made, EventKind.WHY, 1, a=Reason.OVER_QUOTA, b=2)
    told = looked_at(made, 1)
    assert told["reason"]["word"] == "over-quota"
    assert (told["reason"]["queue_booked_gpus"], told["reason"]["queue_limit_gpus"]) == (2, 3)
    assert told["unblock"][0]["what"] == "limit" and told["unblock"][0]["gpus"] == 1


def test_a_place_that_others_still_hold() -> None:
    """`b` is wanted on the GPU that `a` still holds."""
    made = state(cluster([1]), [job("a"), job("b")], running={"a": [(0, [0])]})
    out = EventBuffer()
    out.add(0, EventKind.STOP_REQUESTED, 0, 1, a=Reason.PREEMPTED)
    out.add(0, EventKind.WANTED, 1, 0, b=1, payload=[0, 1, c.WHOLE])
    made.apply(out.take())
    told = looked_at(made, 1)
    assert told["reason"]["word"] == "waits-for-stop" and told["unblock"][0]["jobs"] == [0]
    told = looked_at(made, 0)
    assert (told["phase"], told["reason"]["word"], told["reason"]["came_by"]) == ("stopping", "stopping", "preempted")


def test_ends_on_a_shared_gpu_free_it_when_all_have_gone() -> None:
    """`a` and `b` share the GPU, and end at 100 and 300: `c` fits at 300."""
    jobs = [job("a", 0.5, 100, share=True), job("b", 0.5, 300, share=True), job("c", 1, 10)]
    made = state(cluster([1]), jobs, running={"a": [(0, [0])], "b": [(0, [0])]})
    at_us, who = place_by_ends(ClusterView(made, 0, 0), 2, int(Kernel.CONSOLIDATED))
    assert (at_us, [number for number, _, _ in who]) == (300 * US, [0, 1])


def test_ends_without_estimates_tell_nothing() -> None:
    made = state(cluster([1]), [job("a", 1, 100), job("b", 1, 10)], running={"a": [(0, [0])]})
    made.J[c.J_ESTIMATE, 0] = c.NEVER
    assert place_by_ends(ClusterView(made, 0, 0), 1, int(Kernel.CONSOLIDATED)) == (None, [])
    assert looked_at(made, 1)["unblock"][-1]["at_s"] is None


# -- how it gets on -------------------------------------------------------------------------------------------------
def curve(loss: list[float]) -> Json:
    k = np.arange(1.0, len(loss) + 1)
    return progress(
        JobHistory(k=k, loss=np.array(loss), accuracy=np.full(len(loss), np.nan), units_total=100.0, units_done=len(k))
    )


def test_a_curve_that_improves() -> None:
    told = curve([1 / (0.1 * k + 1) + 0.2 for k in range(1, 31)])
    assert (told["status"], told["sign"], told["of"]) == ("ok", None, "loss") and 0.2 < told["plateau"] < 0.45
    assert told["last"] == told["best"] == pytest.approx(0.45)


def test_a_plateau_and_a_divergence_are_signs() -> None:
    flat, worse = curve([0.5] * 20), curve([0.3 + 0.05 * k for k in range(20)])
    assert (flat["sign"], flat["status"], flat["plateau"]) == ("plateau", "flat", 0.5)
    assert (worse["sign"], worse["status"]) == ("divergence", "diverging") and worse["best"] == 0.3
    assert flat["words"].startswith("no progress: plateau") and worse["words"].startswith("no progress: divergence")


def test_no_reports_at_all_and_nan() -> None:
    assert curve([])["status"] == "no-data" and curve([])["of"] is None
    assert curve([float("nan")] * 5)["status"] == "no-data"
    assert curve([float("nan")] * 5)["words"] == "it has reported 5 times, never a finite loss or accuracy"


def test_a_loss_that_turns_to_nan_is_a_divergence() -> None:
    told = curve([1 / (0.1 * k + 1) + 0.2 for k in range(1, 31)] + [float("nan")] * 4)
    assert (told["sign"], told["loss"]["missing"]) == ("divergence", 4)
    assert told["words"] == "no progress: divergence; its last 4 reports have no finite value (loss)"


def test_a_loss_that_rises_after_it_fell_is_a_divergence() -> None:
    """From 2.2 to 0.5, then up by 0.1 a report: the fitted curve still says that it improves."""
    told = curve([2.2 - 0.1 * k for k in range(18)] + [0.5 + 0.1 * k for k in range(6)])
    assert told["sign"] == "divergence" and told["loss"]["worse_by"] == pytest.approx(0.4, abs=0.11)
    assert told["loss"]["best"] == 0.5 and told["loss"]["change"] > 0
    assert curve([2.2 - 0.1 * k for k in range(18)] + [0.55])["sign"] is None, "one report is none"


def test_a_loss_that_diverges_while_the_accuracy_rises() -> None:
    k = np.arange(1.0, 31)
    loss, accuracy = np.abs(k - 12) / 12 + 0.3, 0.9 - 0.8 / (1 + 0.2 * k)
    told = progress(JobHistory(k=k, loss=loss, accuracy=accuracy, units_total=100.0, units_done=30.0))
    assert (told["of"], told["sign"], told["accuracy"]["sign"], told["loss"]["sign"]) == (
        "accuracy",
        "divergence",
        None,
        "divergence",
    )
    assert told["words"].endswith("(loss)")


def test_noise_alone_is_no_divergence() -> None:
    noise = np.random.default_rng(7).uniform(-0.01, 0.01, (200, 60))
    k = np.arange(1.0, 61)
    told = [curve((3 * (0.9 - 0.8 * (1 - (1 + 0.3 * k) ** -1.2)) + each).tolist())["sign"] for each in noise]
    assert told.count("divergence") == 0


def reports(path: Path, number: int, accuracy: bool) -> Path:
    """The journal of a run of one job with reports of our own: its loss falls to 0.5 at 10 units, and then rises."""
    recorded_ = use_case.read_journal(path)
    started = int(np.flatnonzero(recorded_.batch.records[:, c.E_KIND] == EventKind.STARTED)[0])
    out = EventBuffer()
    out.extend(recorded_.batch.cut(0, started + 1))
    for k in range(1, 31):
        loss = 0.5 + 0.05 * abs(k - 10)
        out.add(k * 10 * US, EventKind.OBSERVED, number, 1, a=k, b=round(loss * 1e9), c=round(k * 1e4) if accuracy else c.NOTHING)
    path.write_bytes(encode(out.take(), run=recorded_.run))
    return path


@pytest.mark.parametrize("policy", ["fifo", "tiresias", "fifo+mlf-c"])
def test_no_progress_is_seen_under_any_policy_though_nothing_is_stopped(policy: str, tmp_path: Path) -> None:
    path = reports(recorded(tmp_path, policy, [job("a", 1, 1000, units=100)]), 0, accuracy=False)
    told = ask(path, "a", "300")
    assert (told["phase"], told["progress"]["sign"], told["progress"]["of"]) == ("running", "divergence", "loss")
    assert told["progress"]["loss"]["worse_by"] == pytest.approx(1.0, abs=0.11)
    assert "no progress: divergence; it is worse than its best by" in text(told) and "loss +" in text(told)
    assert ask(path, "a", "100")["progress"]["sign"] is None
    assert (told["stop"] is not None) == policy.endswith("mlf-c")


# -- load control ---------------------------------------------------------------------------------------------------
def controlled(folder: Path, policy: str = "fifo+mlf-c") -> Path:
    """Two jobs with known curves on one GPU (`load_of`)."""
    load, place, chosen = load_of(2), cluster([1]), choose(policy)
    simulate(load, place, chosen.policy, journal=folder / "c.journal", about=about(chosen, load, place, 0, 60.0))
    return folder / "c.journal"


def test_what_load_control_would_do_with_a_running_job_and_when(tmp_path: Path) -> None:
    """At 540 s the other job queues, so the required 0.82 (and the slack of 0.002) is enough: after some 90 iterations."""
    told = ask(controlled(tmp_path), "0", "540")
    stop, words = told["stop"], text(told)
    assert (stop["overloaded"], stop["now"]["rule"], stop["chosen"], stop["done"]) == (True, "accuracy", "optstop", False)
    assert stop["now"]["accuracy"] == pytest.approx(0.822) and stop["now"]["in_s"] == pytest.approx(390, abs=250)
    assert (
        "stop    rule in force accuracy: the accuracy it requires (the owner's: optstop, accuracy allowed under overload)"
        in words
    )
    assert "it ends at accuracy 0.8220, after about" in words and "the cluster is overloaded" in words


def test_why_load_control_ended_a_job(tmp_path: Path) -> None:
    path = controlled(tmp_path)
    told = ask(path, "0", "1500")
    assert (told["phase"], told["reason"]["word"]) == ("completed", "early-stop")
    stop = told["stop"]
    assert stop["done"] and stop["overloaded"] and stop["now"]["rule"] == "accuracy" and stop["accuracy"] >= 0.822
    assert stop["at_s"] == told["ended_s"] and told["accuracy"] >= told["required"] == 0.82
    assert "it had done enough: accuracy 0.8220" in text(told) and "0.82 was required" in text(told)
    alone = ask(path, "1", str(use_case.read_journal(path).batch.records[-1, c.E_T] / US))
    assert alone["stop"]["now"]["rule"] == "optstop" and not alone["stop"]["overloaded"] and alone["stop"]["done"]
    assert ask(path, "0", "1500", policy="fifo")["stop"] is None


# -- the command ----------------------------------------------------------------------------------------------------
def test_the_command_from_a_simulated_journal(tmp_path: Path, capsys: Captured) -> None:
    path = str(tmp_path / "j")
    line = [
        "simulate",
        "--workload",
        "poisson:jobs=60,load=1.5,cluster=1x8",
        "--cluster",
        "1x8",
        "--policy",
        "srtf",
        "--seed",
        "3",
    ]
    assert run_command([*line, "--journal", path]) == 0
    capsys.readouterr()
    assert run_command(["why", "30", "--journal", path, "--at", "1h", "--json"]) in (0, 2)
    capsys.readouterr()
    records = use_case.read_journal(Path(path)).batch.records
    at = int(records[(records[:, c.E_KIND] == EventKind.SUBMITTED) & (records[:, c.E_ID] == 30), c.E_T][0]) / US
    assert run_command(["why", "30", "--journal", path, "--at", f"{at:.6f}", "--json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["job"], told["policy"], told["run"]["seed"], err) == (30, "srtf", 3, "")
    assert run_command(["why", "30", "--journal", path, "--at", f"{at:.6f}", "--policy", "fifo"]) == 0
    out, err = capsys.readouterr()
    assert "under fifo" in out and err.startswith("headway: the run was one of srtf") and err.count("\n") == 1


def edited(path: Path, change: str) -> Path:
    data = path.read_bytes()
    made = {"cut": data[:-5], "altered": data[:-5] + b"?" + data[-4:], "empty": b"", "binary": bytes(range(256)) * 9,
            "live": b"SQLite format 3\0" + bytes(100), "no events": encode(EventBuffer().take())}[change]  # fmt: skip
    (path.parent / change).write_bytes(made)
    return path.parent / change


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["last", "--at", "nan"], "at: expected a duration"),
        (["last", "--at", "-5"], "at: expected a duration"),
        (["last", "--at", "99999"], "99,999 s is after the last event, at 5,050 s"),
        (["late", "--at", "30"], "at: job 4 is submitted at 5,000 s, after 30 s"),
        (["trian-42", "--at", "30"], """job: unknown job "trian-42" (did you mean 'train-42'?)"""),
        (["17", "--at", "30"], 'job: unknown job "17"; the journal has jobs 0 to 4'),
        (["9" * 30, "--at", "30"], "job: unknown job"),
        (["", "--at", "30"], "job: unknown job"),
        (["last", "--at", "30", "--policy", "fifoo"], "unknown policy 'fifoo' (did you mean 'fifo'?)"),
        (["last", "--at", "30", "--policy", "las:quantum=-1"], "quantum"),
        (["last", "--at", "30", "--policy", "oracle-srtf"], "true durations are known to a run of oracle-srtf only"),
        (["last"], "a recorded run has many times: say which with --at"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(arguments: list[str], message: str, tmp_path: Path, capsys: Captured) -> None:
    path = recorded(tmp_path)
    assert run_command(["why", *arguments, "--journal", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headway: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cut", "the journal is damaged after 0 events: a segment is cut short or altered"),
        ("altered", "the journal is damaged after 0 events: a segment is cut short or altered"),
        ("empty", "the journal has no events"),
        ("no events", "the journal has no events"),
        ("binary", "not a Headway journal"),
        ("live", "the journal can't be opened: file is not a database"),
        ("missing", "no such file"),
        ("folder", "cannot be read: Is a directory"),
    ],
)
def test_a_bad_journal_is_one_line_and_exit_2(change: str, message: str, tmp_path: Path, capsys: Captured) -> None:
    path = recorded(tmp_path)
    bad = {"missing": tmp_path / "none", "folder": tmp_path}.get(change) or edited(path, change)
    assert run_command(["why", "last", "--journal", str(bad), "--at", "30"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"headway: {bad}: journal: {message}\n"
