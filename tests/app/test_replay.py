"""`headway replay`: what is read from journals of live controllers in virtual time, and what is made of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.app import replay
from headway.app.replay import ReplayRequest
from headway.app.replay_facts import gather
from headway.app.replay_truth import build, measure
from headway.app.why import Recorded
from headway.cli import run_command
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Reason
from headway.core.errors import UserError
from headway.core.events import EventBuffer, concatenate
from headway.core.model import Checkpoint, GpuDemand, JobSpec, Parallelism, Progress, Resources
from headway.engines.base import NodeInfo
from headway.runtime.admit import Names, spec_columns
from headway.runtime.launch import spec_text
from headway.testing.live_process import MemoryJournal
from headway.testing.live_run import LiveRun, run_live
from headway.testing.live_scenarios import LiveScenario, Owned
from headway.testing.script import Script

S = 1_000_000


# -- live runs in virtual time --------------------------------------------------------------------------------------
def owned(name: str, at_s: float, work_s: float, gpus: int = 1, **more: Any) -> Owned:
    start_s, save_s, restore_s = (more.pop(key, 0.0) for key in ("start_s", "save_s", "restore_s"))
    cancel_s = more.pop("cancel_s", None)
    script = Script(work_s=work_s, start_s=start_s, save_s=save_s, restore_s=restore_s, tasks=1, grace_s=save_s + 5)
    spec = JobSpec(
        name=name,
        user="ann",
        run=script.text(),
        workdir="/",
        resources=Resources(gpu_alternatives=(GpuDemand(milli=1000 * gpus),), cpus_milli=1000),
        parallelism=Parallelism(data=1),
        checkpoint=Checkpoint(dir=f"ckpt-{name}", grace_s=save_s + 5, save_s=save_s, restore_s=restore_s),
        estimate_s=work_s,
        **more,
    )
    return Owned(name, spec, script, at_s, cancel_s)


def live(monkeypatch: pytest.MonkeyPatch, policy: str, jobs: list[Owned], gpus: int = 2) -> Recorded:
    """The journal of a controller in virtual time without faults."""
    kept: list[list[bytes]] = []
    plain = LiveRun.__init__

    def init(self: LiveRun, scenario: LiveScenario) -> None:
        plain(self, scenario)
        kept.append(self.segments)

    monkeypatch.setattr(LiveRun, "__init__", init)
    nodes = (NodeInfo("n0", gpus, "gpu", 8000, 10**12),)
    outcome = run_live(LiveScenario(1, policy, nodes, tuple(jobs)))
    assert not outcome.wrongs, str(outcome)
    return Recorded(concatenate(list(MemoryJournal(kept[0]).read())), {})


def replayed(recorded: Recorded, policies: tuple[str, ...], ran: str, **more: Any) -> dict[str, Any]:
    request = ReplayRequest(home="memory", policies=policies, ran=ran, **more)
    answer = replay.run(request, replay.prepare(request, (recorded, True)))
    json.dumps(answer, allow_nan=False)
    return answer


def starts(recorded: Recorded) -> list[int]:
    """Jobs in the order of their first starts."""
    R = recorded.batch.records
    return list(dict.fromkeys(R[R[:, c.E_KIND] == EventKind.STARTED, c.E_ID].tolist()))


def test_what_another_policy_would_have_done_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """One GPU, fifo: a (60 s) at 0, b (10 s) at 1, d (20 s) at 2. Really: a ends at 60, b at 70, d at 90: JCT 60, 69, 88.
    Shortest first (srtf stops a for b at 1): b 1–11, d 11–31, a goes on: 31 + 59 = 90, so JCT 90, 10, 29."""
    jobs = [owned("a", 0, 60), owned("b", 1, 10), owned("d", 2, 20)]
    answer = replayed(live(monkeypatch, "fifo", jobs, gpus=1), ("srtf", "fifo"), "fifo")
    real = {row["job"]: row["happened"]["jct_s"] for row in answer["jobs"]}
    other = {row["job"]: row["replayed"]["jct_s"] for row in answer["jobs"]}
    assert real == pytest.approx({"a": 60, "b": 69, "d": 88}, abs=0.1)
    assert other == pytest.approx({"a": 90, "b": 10, "d": 29}, abs=1.2)
    assert answer["policy"]["policy"] == "srtf" and answer["policy"]["preemptions"] == 1
    assert answer["policy"]["paired"]["sooner"] == 2 and answer["policy"]["paired"]["later"] == 1
    assert answer["fidelity"]["policy"] == "fifo" and abs(answer["fidelity"]["avg_jct_error_frac"]) < 0.01
    assert [one["policy"] for one in answer["policies"]] == ["srtf", "fifo"]


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill", "srtf", "las:quantum=20", "edf"])
def test_a_replay_under_its_own_policy_is_what_happened(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """Without faults: the same order of starts, and JCTs within the start latency and one interval a start."""
    random = np.random.Generator(np.random.PCG64(7))
    for _ in range(3):
        jobs = []
        for i in range(8):
            save_s, restore_s = float(random.choice([0.0, 0.5])), float(random.choice([0.0, 1.0]))
            jobs.append(
                owned(
                    f"j{i}", float(random.uniform(0, 60)), float(random.choice([5.0, 20.0, 60.0])), int(random.choice([1, 1, 2])),
                    start_s=float(random.choice([0.0, 0.2, 2.0])), save_s=save_s, restore_s=restore_s,
                )
            )  # fmt: skip
        with monkeypatch.context() as patch:
            recorded = live(patch, policy, jobs)
        answer = replayed(recorded, (policy,), policy)
        first = {row["number"]: row["replayed"]["first_start_s"] for row in answer["jobs"]}
        submitted = {int(r[c.E_ID]): r[c.E_T] / S for r in recorded.batch.records if r[c.E_KIND] == EventKind.SUBMITTED}
        order = sorted(first, key=lambda job: (round(submitted[job] + first[job], 3), job))
        really = {row["number"]: row["happened"]["first_start_s"] for row in answer["jobs"]}
        assert order == sorted(really, key=lambda job: (round(submitted[job] + really[job], 3), job))
        for row in answer["jobs"]:
            slack = 2.5 + 1.6 * row["happened"]["preemptions"]
            assert row["replayed"]["jct_s"] == pytest.approx(row["happened"]["jct_s"], abs=slack), row
        assert answer["fidelity"]["jobs"] == 8 and answer["fidelity"]["median_abs_error_frac"] < 0.05


def test_a_cancellation_comes_at_its_own_time_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """b waits behind a (30 s) and is cancelled at 12; under any policy it is cancelled at 12, and does not end before."""
    jobs = [owned("a", 0, 30), owned("b", 1, 500, cancel_s=12.0), owned("d", 2, 10)]
    recorded = live(monkeypatch, "fifo", jobs, gpus=1)
    answer = replayed(recorded, ("srtf", "fifo"), "fifo")
    rows = {row["job"]: row for row in answer["jobs"]}
    assert rows["b"]["happened"]["state"] == rows["b"]["replayed"]["state"] == "cancelled"
    assert rows["b"]["replayed"]["jct_s"] == pytest.approx(11, abs=0.1)
    assert rows["b"]["assumed"] == "estimate" or rows["b"]["assumed"] == "until-cancelled"


# -- journals made by hand ------------------------------------------------------------------------------------------
class Book:
    """A journal of a live cluster, event by event."""

    def __init__(self, gpus: int = 1) -> None:
        self.out, self.names = EventBuffer(), Names()
        out = self.out
        out.add(0, EventKind.CLUSTER_SET, a=1, b=gpus, c=1, payload=(gpus, 1000))
        out.add(0, EventKind.NAMED, 0, a=Name.KIND, text="cpu-slot")
        out.add(0, EventKind.NAMED, 0, a=Name.NODE, text="n0")
        out.add(0, EventKind.NODE_ADDED, 0, payload=(0, 0, gpus, 0, 8000, 10**12, 10**9))
        out.add(0, EventKind.SETTINGS_SET, text='{"policy":"fifo","cluster":{"round":"0.5s"}}')

    def job(self, number: int, t: float, **more: Any) -> None:
        spec = JobSpec(name=f"j{number}", user="ann", run="x", **{"checkpoint": Checkpoint(dir="c"), **more})
        row = spec_columns(spec, self.names, submitted_us=round(t * S), fractional_gpus=False)
        self.names.take_news(self.out, round(t * S))
        self.out.add(round(t * S), EventKind.NAMED, number, a=Name.JOB, text=f"j{number}")
        self.out.add(round(t * S), EventKind.SUBMITTED, number, payload=row, text=spec_text(spec))

    def say(self, t: float, kind: EventKind, subject: int, attempt: int = 0, **more: Any) -> None:
        self.out.add(round(t * S), kind, subject, attempt, **more)

    def start(self, t: float, job: int, attempt: int, up: float, mask: int = 1) -> None:
        self.say(t, EventKind.START_REQUESTED, job, attempt, b=1, payload=(0, mask, 1000))
        self.say(up, EventKind.STARTED, job, attempt)

    def told(self, t: float, job: int, attempt: int, units: int, accuracy: float | None = None) -> None:
        ppm = c.NOTHING if accuracy is None else round(accuracy * 1e6)
        self.say(t, EventKind.OBSERVED, job, attempt, a=units, b=round(1e9 / (1 + units)), c=ppm)

    def recorded(self) -> Recorded:
        return Recorded(self.out.take(), {})


def preempted() -> Book:
    """Pace 2 s a unit. The gang is up after 1 s, and 3 s later at work: units 1 … 5 at 6, 8 … 14. Stopped at 15, saved with 5
    units at 17. Up again at 31, and 4 s later at work: unit 6 at 37 … 10 at 45, where it completes."""
    book = Book()
    book.job(1, 0, progress=Progress(total=10))
    book.start(0, 1, 1, up=1)
    for unit in range(1, 6):
        book.told(4 + 2 * unit, 1, 1, unit, accuracy=unit / 20)
    book.say(15, EventKind.STOP_REQUESTED, 1, 1, a=Reason.PREEMPTED)
    book.say(16, EventKind.SAVED, 1, 1, a=5)
    book.say(17, EventKind.STOPPED, 1, 1, a=Reason.PREEMPTED, b=-1)
    book.start(30, 1, 2, up=31)
    for unit in range(6, 11):
        book.told(37 + 2 * (unit - 6), 1, 2, unit, accuracy=unit / 20)
    book.say(45, EventKind.COMPLETED, 1, 2)
    return book


def test_times_of_a_job_that_was_stopped_once() -> None:
    facts = gather(preempted().recorded(), "hand")
    timing = measure(facts.jobs[1], facts.horizon_us)
    assert timing.start_us == 1 * S and timing.pace_us == 2 * S and timing.units == 10
    assert timing.warm_us == 3 * S  # unit 1 came 5 s after it was up
    assert timing.restore_us == 1 * S  # unit 6 came 6 s after it was up, 2 s of which are the unit itself: 4, and 3 always
    assert timing.save_us == 2 * S
    assert timing.worked_us == 20 * S  # ten units; nothing after the last report
    built = build(facts, "hand")
    assert built.workload.work_us.tolist() == [20 * S] and built.truth.units.tolist() == [10] and not built.assumed
    assert built.truth.points[0].accuracy_of(7.5) == 375_000


def test_a_replay_without_the_stop() -> None:
    """Alone under fifo it would have run 1 + 3 + 20 s; the accuracy is that of its ten units."""
    request = ReplayRequest(home="hand", policies=("fifo",))
    answer = replay.run(request, replay.prepare(request, (preempted().recorded(), True)))
    (row,) = answer["jobs"]
    assert row["replayed"]["jct_s"] == pytest.approx(24, abs=0.001) and row["replayed"]["wait_s"] == pytest.approx(1)
    assert row["happened"]["jct_s"] == 45 and row["happened"]["preemptions"] == 1
    assert row["happened"]["accuracy"] == row["replayed"]["accuracy"] == 0.5
    assert answer["happened"]["avg_accuracy"] == answer["policy"]["avg_accuracy"] == 0.5
    assert answer["policy"]["cross_node_bytes"] is None


def test_jobs_that_have_not_ended_go_on_as_is_said() -> None:
    """Job 1: 4 of 10 units at 3 s a unit, up since 0: 30 s. Job 2 waits and has announced 40 s. Job 3 says nothing: as job 4,
    which completed after 8 s. Job 5 has nowhere to save."""
    book = Book(gpus=3)
    book.job(1, 0, progress=Progress(total=10))
    book.start(0, 1, 1, up=0)
    book.job(4, 0.5)
    book.start(0.5, 4, 1, up=0.5, mask=2)
    book.job(5, 0.5, checkpoint=Checkpoint())
    for unit in range(1, 3):
        book.told(3 * unit, 1, 1, unit)
    book.say(8.5, EventKind.COMPLETED, 4, 1)
    book.told(9, 1, 1, 3)
    book.job(6, 9, estimate_s=40.0)
    book.job(7, 9)
    book.told(12, 1, 1, 4)
    facts = gather(book.recorded(), "hand")
    built = build(facts, "hand")
    work = dict(zip(built.numbers, (built.workload.work_us / S).tolist(), strict=True))
    assert work == {1: 30, 4: 8, 5: 8, 6: 40, 7: 8}
    assert {facts_number: built.assumed.get(i, "") for facts_number, i in built.numbers.items()} == {
        1: "total", 4: "", 5: "like", 6: "estimate", 7: "like",
    }  # fmt: skip
    assert built.truth.loses.tolist() == [0, 0, 1, 0, 0]


def test_work_that_died_unsaved_is_no_work() -> None:
    """12 s until it failed, with saves every 5 s: 10 are kept; then 6 s to the end: 16 s of work. Without saves: 6 s."""
    for every_s, work in ((5.0, 16), (None, 6)):
        book = Book()
        book.job(1, 0, checkpoint=Checkpoint(dir="c", every_s=every_s))
        book.start(0, 1, 1, up=0)
        book.say(12, EventKind.FAILED, 1, 1, a=Reason.EXIT_CODE, b=-1, c=1)
        book.start(20, 1, 2, up=20)
        book.say(26, EventKind.COMPLETED, 1, 2)
        facts = gather(book.recorded(), "hand")
        assert measure(facts.jobs[1], facts.horizon_us).worked_us == work * S


def test_holds_priorities_and_lost_nodes_come_again() -> None:
    """Two jobs of 10 s on one slot under fifo. Job 2, held at 1 and released at 25, does not start before; the node is away from
    3 to 6, so job 1, which saves nothing by itself, begins anew at 6 and ends at 16."""
    book = Book()
    book.job(1, 0)
    book.start(0, 1, 1, up=0)
    book.job(2, 0.5)
    book.say(1, EventKind.HOLD_SET, 2, a=1)
    book.say(2, EventKind.PRIORITY_SET, 2, a=90)
    book.say(3, EventKind.NODE_DOWN, 0)
    book.say(3, EventKind.STOPPED, 1, 1, a=Reason.NODE_LOST, b=-1)
    book.say(6, EventKind.NODE_UP, 0)
    book.start(6, 1, 2, up=6)
    book.say(16, EventKind.COMPLETED, 1, 2)
    book.say(25, EventKind.HOLD_SET, 2, a=0)
    book.start(25, 2, 1, up=25)
    book.say(35, EventKind.COMPLETED, 2, 1)
    request, recorded = ReplayRequest(home="hand", policies=("fifo",)), book.recorded()
    answer = replay.run(request, replay.prepare(request, (recorded, True)))
    assert [row["replayed"]["jct_s"] for row in answer["jobs"]] == pytest.approx([16, 34.5], abs=0.001)
    assert answer["fidelity"]["avg_jct_error_frac"] == pytest.approx(0, abs=1e-6)
    elsewhere = replace(request, cluster="2x1")
    answer = replay.run(elsewhere, replay.prepare(elsewhere, (recorded, True)))
    assert [row["replayed"]["jct_s"] for row in answer["jobs"]] == pytest.approx([10, 10], abs=0.001)  # 2 runs before it is held
    assert answer["fidelity"] is None and answer["notes"][-1].startswith("on another cluster")


def test_what_is_in_the_way_at_the_end_does_not_stay_there() -> None:
    """Job 1 is held for good and the only node is drained when the journal ends, at 7: it starts then, and needs its 5 s. It came
    at 0.2."""
    book = Book()
    book.say(0.1, EventKind.NODE_DRAINING, 0, b=1, c=1)
    book.job(1, 0.2, estimate_s=5.0)
    book.say(0.5, EventKind.HOLD_SET, 1, a=1)
    book.say(7, EventKind.ROUND, 0)
    request = ReplayRequest(home="hand", policies=("fifo",))
    answer = replay.run(request, replay.prepare(request, (book.recorded(), True)))
    assert answer["jobs"][0]["happened"]["state"] == "queued" and answer["jobs"][0]["happened"]["jct_s"] is None
    assert answer["jobs"][0]["replayed"]["jct_s"] == pytest.approx(11.8, abs=0.001)
    assert "1 job was held, 1 node was drained" in " ".join(answer["notes"])


# -- what a person may get wrong ------------------------------------------------------------------------------------
def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no journal\.db"):
        replay.prepare(ReplayRequest(home=str(tmp_path), policies=("fifo",)))
    with pytest.raises(UserError, match="no such file"):
        replay.prepare(ReplayRequest(home=str(tmp_path / "no"), policies=("fifo",)))
    with pytest.raises(UserError, match="asked for twice"):
        replay.prepare(ReplayRequest(home=str(tmp_path), policies=("fifo", "fifo")))
    with pytest.raises(UserError, match="unknown policy"):
        replay.prepare(ReplayRequest(home=str(tmp_path), policies=("fifoo",)))
    with pytest.raises(UserError, match="got none"):
        replay.prepare(ReplayRequest(home=str(tmp_path), policies=()))
    empty = Book().recorded()
    with pytest.raises(UserError, match="no job has been submitted"):
        replay.prepare(ReplayRequest(home="x", policies=("fifo",)), (empty, True))


def test_without_a_home_the_command_means_the_one_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))
    assert run_command(["replay", "--policy", "fifo"]) == 2
    assert f"{tmp_path}: home: has no journal.db" in capsys.readouterr().err
