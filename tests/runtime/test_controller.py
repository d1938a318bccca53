"""The controller over a fake machine in virtual time: what it does with jobs; nothing is lost or doubled when it dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.core import columns as c
from headway.core.columns import Estimator, Phase, Reason
from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.model import JobSpec
from headway.core.plan import Plan, Request
from headway.core.round import Brains
from headway.core.view import ClusterView
from headway.engines.base import EngineError, Launch, NodeBack, NodeLost
from headway.perf.params import R_BY_HISTORY
from headway.runtime.controller import Controller
from headway.runtime.intake import ConflictError, NoSuchJobError
from headway.runtime.journal import Journal
from headway.runtime.lease import FencedError
from headway.runtime.rounds import Inline, Pace

from .fake import US, FakeEngine, World, brains_of, fake_nodes, job


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "journal.db")


class Died(BaseException):
    """The controller's process is gone; nothing may catch this."""


# A job's course


async def test_a_job_runs_to_its_end(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 5 * US}
    await world.to(2 * US)
    record = await world.submit(job("train", workers=2))
    assert (record.id, record.number, record.gpus, record.tasks) == ("train-1", 1, 2, 2)
    assert record.first_started_us == record.submitted_us
    assert world.controller.live_view(record) is not None
    await world.to(10 * US)
    assert (record.phase, record.reason, record.exit_code, record.run_us) == (Phase.COMPLETED, Reason.DONE, 0, 5 * US)
    assert record.ended_us == 7 * US and record.nodes == ("n0",)
    assert world.kinds(1) == ["SUBMITTED", "START_REQUESTED", "STARTED", "COMPLETED"]
    assert world.engine.attempts == {} and world.engine.acknowledged == {1: 1}


async def test_the_launch_says_what_the_job_file_said(world: World) -> None:
    await world.start()
    spec = replace(job("t", 2, 2), env=(("A", "1"),), setup="make", workdir="/srv/x", run="train")
    await world.submit(replace(spec, checkpoint=replace(spec.checkpoint, dir="ckpt"), retry_max=4))
    (launch,) = world.engine.launches
    assert (launch.job, launch.name, launch.attempt, launch.checkpoint_dir, launch.restarts_max) == (
        1,
        "t-1",
        1,
        "/srv/x/ckpt",
        4,
    )
    assert [(t.rank, t.role, t.node, t.gpus) for t in launch.tasks] == [(0, "worker", "n0", (0, 1)), (1, "worker", "n1", (0, 1))]
    assert {(t.command, t.setup, t.workdir, t.env["A"]) for t in launch.tasks} == {("train", "make", "/srv/x", "1")}


async def test_jobs_wait_for_room_and_start_at_once_when_there_is_some(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 3_300_000, 2: 9 * US, 3: US}
    for workers in (4, 4, 4):
        await world.submit(job(workers=workers))
    await world.to(60 * US)
    starts = [world.controller.board.by_number(n).first_started_us for n in (1, 2, 3)]  # type: ignore[union-attr]
    assert starts == [0, 3_300_000, 12_300_000], "a freed place wakes the round at once"


async def test_rounds_that_are_woken_keep_their_distance(world: World) -> None:
    world.pace = Pace()
    await world.start()
    world.engine.work_us = {n: 100 * US for n in range(1, 9)}
    rounds = world.controller.rounds.held
    await world.to(1 * US)
    for n in range(4):
        world.clock.us = 1 * US + n * 1000
        await world.submit(job())
    assert world.controller.rounds.held - rounds <= 2
    await world.to(2 * US)
    assert len(world.engine.launches) == 4


async def test_names_become_ids_and_an_id_of_ones_own_is_taken_once(world: World) -> None:
    await world.start()
    assert [(await world.submit(job(name))).id for name in ("a", "b", "a", "日本 é")] == ["a-1", "b-1", "a-2", "日本 é-1"]
    first = await world.submit(job("x"), "mine")
    assert await world.submit(job("x"), "mine") is first
    with pytest.raises(ConflictError, match="belongs to another job"):
        await world.submit(job("y"), "mine")
    with pytest.raises(ConflictError):
        await world.submit(job("x"), "a-1")
    with pytest.raises(UserError, match="id: expected"):
        await world.submit(job("x"), "../x")
    assert world.controller.find("mine") is first and world.controller.find(str(first.number)) is first
    with pytest.raises(NoSuchJobError):
        world.controller.find("nobody")
    assert len(world.controller.board) == 5


async def test_the_same_id_twice_at_one_instant_is_one_job(world: World) -> None:
    import asyncio

    await world.start()
    asked = [asyncio.ensure_future(world.controller.submit(job("x"), "mine")) for _ in range(3)]
    await world.drain()
    assert [(await one)[1] for one in asked] == [True, False, False]
    assert len(world.controller.board) == 1


async def test_a_job_larger_than_the_cluster_is_rejected_with_the_reason(world: World) -> None:
    await world.start()
    record = await world.submit(job(workers=5))
    assert (record.phase, record.reason) == (Phase.REJECTED, Reason.LARGER_THAN_CLUSTER)
    assert "needs 5 workers of 1 GPU" in record.message and "room for 4" in record.message
    assert (await world.submit(job(workers=4))).attempt == 1


async def test_a_waiting_job_says_why(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 50 * US}
    await world.submit(job(workers=3))
    record = await world.submit(job(workers=2))
    await world.to(2 * US)
    view = world.controller.live_view(record)
    assert view is not None and (view.phase, view.reason) == (Phase.QUEUED, Reason.NO_ROOM)


# Ends of other kinds


async def test_a_failing_job_is_tried_again_later_and_then_has_failed(world: World) -> None:
    await world.start()
    world.engine.work_us, world.engine.exit_codes = {1: US}, {1: [3, 4, 5]}
    record = await world.submit(job(retry_max=2))
    await world.to(120 * US)
    assert (record.phase, record.reason, record.exit_code, record.attempt) == (Phase.FAILED, Reason.EXIT_CODE, 5, 3)
    batch = world.journal()
    times = [int(r[0]) for r in batch.records if r[1] == c.EventKind.START_REQUESTED]
    assert times[1] - times[0] >= 11 * US and times[2] - times[1] >= 21 * US, "10 s, then 20 s, after its end"


async def test_without_retries_the_first_failure_is_the_last(world: World) -> None:
    await world.start()
    world.engine.exit_codes = {1: [1]}
    record = await world.submit(job(retry_max=0))
    await world.to(US)
    assert (record.phase, record.attempt) == (Phase.FAILED, 1)


async def test_a_launch_that_the_engine_refuses_counts_as_a_failed_start(world: World) -> None:
    await world.start()
    refusals = [EngineError("no space left"), None]

    def refuse(launch: Launch) -> None:
        if (error := refusals.pop(0)) is not None:
            raise error

    world.engine.before_launch = refuse
    record = await world.submit(job(retry_max=1))
    assert record.message == "no space left" and not record.ended
    await world.to(60 * US)
    assert (record.phase, record.attempt) == (Phase.COMPLETED, 2)
    assert world.kinds(1) == ["SUBMITTED", "START_REQUESTED", "START_FAILED", "START_REQUESTED", "STARTED", "COMPLETED"]


async def test_cancelling(world: World) -> None:
    await world.start()
    world.engine.work_us, world.engine.save_us = {1: 50 * US, 2: 50 * US, 3: US}, 2 * US
    running, waiting, last = [await world.submit(job(name, workers=4)) for name in ("r", "w", "l")]
    await world.cancel("w-1")
    assert (waiting.phase, waiting.reason, waiting.attempt, waiting.ended_us) == (Phase.CANCELLED, Reason.CANCELLED, 0, 0)
    await world.cancel("r-1")
    await world.cancel("r-1")
    assert not running.ended
    await world.to(1 * US)
    await world.cancel("r-1")
    await world.to(10 * US)
    assert (running.phase, running.ended_us, last.phase) == (Phase.CANCELLED, 2 * US, Phase.COMPLETED)
    assert await world.cancel("r-1") is running
    assert world.kinds(1).count("CANCEL_REQUESTED") == 1 and world.kinds(2) == ["SUBMITTED", "CANCEL_REQUESTED"]
    with pytest.raises(NoSuchJobError):
        await world.controller.cancel("nobody")


async def test_a_job_is_stopped_at_its_time_limit(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 50 * US}
    record = await world.submit(job(time_limit_s=4.5))
    await world.to(20 * US)
    assert (record.phase, record.reason, record.run_us) == (Phase.FAILED, Reason.TIME_LIMIT, 4_500_000)


async def test_a_preempted_job_comes_back_as_its_second_attempt(tmp_path: Path) -> None:
    world = World(tmp_path / "j.db", "srtf")
    await world.start()
    world.engine.work_us, world.engine.save_us = {1: 30 * US, 2: 5 * US}, US
    long = await world.submit(job("long", workers=4, estimate_s=30))
    await world.to(3 * US)
    short = await world.submit(job("short", workers=4, estimate_s=5))
    await world.to(100 * US)
    assert world.kinds(1) == [
        "SUBMITTED",
        "START_REQUESTED",
        "STARTED",
        "STOP_REQUESTED",
        "STOPPED",
        "START_REQUESTED",
        "STARTED",
        "COMPLETED",
    ]
    assert (long.attempt, long.preemptions, short.attempt, short.ended_us) == (2, 1, 1, 9 * US)
    assert long.ended_us == 36 * US, "what it had done was kept"


async def test_a_lost_node_sends_its_jobs_elsewhere(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 10 * US}
    record = await world.submit(job(workers=2))
    assert record.nodes == ("n0",)
    world.engine.stream.put(NodeLost("n0"))
    await world.drain()
    await world.to(US)
    assert (record.nodes, record.attempt, [n.phase.name for n in world.controller.nodes()]) == (("n1",), 2, ["DOWN", "UP"])
    world.engine.stream.put(NodeBack("n0"))
    world.engine.stream.put(NodeLost("nowhere"))
    await world.drain()
    assert [n.phase.name for n in world.controller.nodes()] == ["UP", "UP"]


class Overbooks:
    """A policy with an error: it wants every job on the same slot."""

    name = "overbooks"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft = view.draft()
        for waiting in view.jobs():
            draft.place(waiting, [0], [[0]])
        return draft.plan()


async def test_a_policy_with_an_error_does_not_stop_the_cluster(world: World) -> None:
    fifo = brains_of("fifo").policy
    journal = Journal(world.path)
    world.controller = Controller(journal, world.engine, Brains(Overbooks(), fifo, fifo), clock=world.clock, worker=Inline())
    await world.controller.start()
    world.engine.work_us = {1: 5 * US, 2: 5 * US}
    records = [await world.submit(job()) for _ in range(2)]
    await world.to(60 * US)
    assert [r.phase for r in records] == [Phase.COMPLETED] * 2
    assert world.controller.rounds.refused > 0


class Asks:
    """fifo that asks for the remaining time of every live job."""

    name, asks = "asks", True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        plan = brains_of("fifo").policy.decide(view, memo)
        wishes = tuple(Request(Estimator.REMAINING, one.id) for one in view.jobs())
        return Plan(plan.overrides, plan.places, plan.seen, plan.wake_at_us, wishes)


async def test_a_plans_requests_are_answered_from_the_journal_also_after_a_restart(world: World) -> None:
    """Three jobs took 5 s each. A fourth like them is expected to take 5 s, by a controller that has only read of them too."""
    fifo = brains_of("fifo").policy
    world.engine.work_us = {n: (5 if n < 4 else 500) * US for n in range(1, 5)}
    for number in range(2):
        if number:
            await world.controller.close()
        world.controller = Controller(
            Journal(world.path), world.engine, Brains(Asks(), fifo, fifo), clock=world.clock, worker=Inline()
        )
        await world.controller.start()
        if number == 0:
            for _ in range(3):
                await world.submit(job())
            await world.to(30 * US)
            await world.submit(job())
        else:
            world.controller.state.F[:] = 0
            await world.controller._round()
        state = world.controller.state
        row = state.row(4)
        assert row is not None
        assert state.F[Estimator.REMAINING * c.ESTIMATE_PARAMS_MAX + R_BY_HISTORY, row] == pytest.approx(5.0, abs=0.2), number


# Dying and coming back


async def test_a_controller_that_comes_back_goes_on_with_the_same_jobs(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 10 * US, 2: 10 * US, 3: US}
    for _ in range(3):
        await world.submit(job("j", workers=2))
    await world.to(2 * US)
    await world.controller.close()
    world.clock.us = 15 * US
    world.engine.advance()
    again = await world.start()
    await world.to(60 * US)
    assert [launch.job for launch in world.engine.launches] == [1, 2, 3]
    assert [r.phase for r in again.board] == [Phase.COMPLETED] * 3
    assert [r.id for r in again.board] == ["j-1", "j-2", "j-3"] and (await world.submit(job("j"))).id == "j-4"
    assert again.epoch == 2 == world.engine.epoch
    assert world.engine.attempts == {} or list(world.engine.attempts) == [(4, 1)]


async def test_a_start_that_was_journalled_but_never_launched_becomes_a_new_attempt(world: World) -> None:
    await world.start()

    def die(launch: Launch) -> None:
        raise Died

    world.engine.before_launch = die
    world.engine.work_us = {1: US}
    with pytest.raises(Died):
        await world.submit(job())
    world.engine.before_launch = lambda launch: None
    assert world.kinds(1) == ["SUBMITTED", "START_REQUESTED"]
    again = await world.start()
    await world.to(10 * US)
    record = again.find("job-1")
    assert [(launch.job, launch.attempt) for launch in world.engine.launches] == [(1, 2)]
    assert (record.phase, record.attempt) == (Phase.COMPLETED, 2)
    assert int(again.state.C[c.C_FINISHED]) == 1


async def test_a_stop_that_was_journalled_but_never_told_is_told_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.start()
    world.engine.work_us = {1: 1000 * US}
    await world.submit(job())

    async def die(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch, pytest.raises(Died):
        patch.setattr(world.engine, "stop", die)
        await world.cancel("job-1")
    assert world.kinds(1)[-1] == "STOP_REQUESTED"
    again = await world.start()
    await world.to(US)
    assert again.find("job-1").phase == Phase.CANCELLED


async def test_a_report_that_is_lost_is_found_by_looking(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 3 * US}
    put, world.engine.stream.put = world.engine.stream.put, lambda event: None  # type: ignore[method-assign]
    record = await world.submit(job())
    await world.to(20 * US)
    assert not record.ended
    await world.to(31 * US)
    assert (record.phase, record.first_started_us) == (Phase.COMPLETED, 30 * US)
    world.engine.stream.put = put  # type: ignore[method-assign]


async def test_reports_that_come_twice_change_nothing(world: World) -> None:
    await world.start()
    put = world.engine.stream.put
    world.engine.stream.put = lambda event: (put(event), put(event))  # type: ignore[method-assign, assign, func-returns-value]
    world.engine.work_us, world.engine.exit_codes = {1: US}, {1: [1]}
    record = await world.submit(job(retry_max=1))
    await world.to(60 * US)
    assert (record.phase, record.attempt) == (Phase.COMPLETED, 2)
    assert [world.kinds(1).count(kind) for kind in ("FAILED", "COMPLETED")] == [1, 1]


async def test_what_runs_and_is_not_known_is_stopped(world: World) -> None:
    await world.start()
    world.engine.work_us = {1: 1000 * US}
    await world.submit(job())
    await world.controller.close()
    world.path.unlink()
    await world.start()
    assert [attempt.stop_reason for attempt in world.engine.live()] == ["node-lost"]
    await world.to(US)
    record = await world.submit(job())
    await world.to(200 * US)
    assert (record.number, record.attempt) == (2, 1), "the engine has seen a job of number 1"


async def test_a_controller_that_was_replaced_does_nothing_more(world: World) -> None:
    first = await world.start()
    second = World(world.path, "fifo")
    second.clock, second.engine = world.clock, world.engine
    await second.start()
    world.controller = first
    with pytest.raises(FencedError, match="has taken over with epoch 2; this one had 1"):
        await world.submit(job())
    assert world.engine.launches == []


async def test_a_journal_that_lost_its_end_is_said_and_survived(world: World) -> None:
    import sqlite3

    await world.start()
    world.engine.work_us = {1: 50 * US, 2: US}
    await world.submit(job(workers=4))
    await world.controller.close()
    for _ in range(3):
        await world.start()
        await world.controller.close()
    with sqlite3.connect(world.path) as db:
        # Sound up to the submission: the start and the later epochs are gone.
        db.execute("UPDATE segments SET body = x'00' WHERE seq > 3")
    db.close()
    again = await world.start()
    assert len(again.notes) == 1 and "the journal is damaged after 3 segments" in again.notes[0]
    assert again.epoch > 4
    await world.to(200 * US)
    assert again.find("job-1").phase == Phase.COMPLETED
    assert (world.path.parent / "journal.db.damaged-1").exists()


def dies_at(journal: Journal, count: int, after: bool) -> Callable[[EventBatch], None]:
    """An `append` whose `count`-th call kills the controller, after or before the batch is on the disk."""
    real, calls = journal.append, [0]

    def append(batch: EventBatch) -> None:
        calls[0] += 1
        if calls[0] == count and not after:
            raise Died
        real(batch)
        if calls[0] == count:
            raise Died

    return append


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("policy", ["fifo", "srtf"])
async def test_nothing_is_lost_or_doubled_wherever_the_controller_dies(policy: str, after: bool, tmp_path: Path) -> None:
    """It is killed before or after its n-th write, for every n; the fake machine refuses what must not be."""
    arrivals: list[tuple[int, JobSpec]] = [
        (1 * US, job("a", workers=3, estimate_s=20)),
        (2 * US, job("b", workers=2, estimate_s=2)),
        (3 * US, job("c", workers=4, estimate_s=1)),
    ]
    count, deaths = 0, 0
    while True:
        count += 1
        world = World(tmp_path / f"{count}.db", policy, pace=Pace(US, 20_000, 3 * US))
        world.engine = FakeEngine(world.clock, fake_nodes(), {1: 9 * US, 2: 2 * US, 3: US}, {2: [7]}, save_us=US // 2)
        died = False
        journal = Journal(world.path)
        world.controller = Controller(
            journal, world.engine, brains_of(policy), pace=world.pace, clock=world.clock, worker=Inline()
        )
        journal.append = dies_at(journal, count, after)  # type: ignore[method-assign]
        left = list(arrivals)
        try:
            await world.controller.start()
            await world.to(120 * US, arrivals)
        except Died:
            died = True
        if died:
            deaths += 1
            world.engine.advance()
            await world.start()
            # People hand in again, under the same id, what they have not been told of.
            known = {record.name for record in world.controller.board}
            left = [(max(t, world.clock.us), spec) for t, spec in arrivals if spec.name not in known]
            await world.to(world.clock.us + 120 * US, left)
        ends = {record.name: record.phase for record in world.controller.board}
        assert ends == dict.fromkeys("abc", Phase.COMPLETED), f"died at write {count}"
        assert world.engine.live() == []
        attempts = [(launch.job, launch.attempt) for launch in world.engine.launches]
        assert len(attempts) == len(set(attempts))
        assert int(world.controller.state.C[c.C_ROWS] - world.controller.state.C[c.C_DEAD]) == 0
        await world.controller.close()
        if not died:
            break
    assert deaths >= 15


async def test_replay_gives_the_same_state_as_the_one_that_was_journalled(world: World) -> None:
    await world.start()
    world.engine.work_us, world.engine.exit_codes = {1: 10 * US, 2: 3 * US, 3: 90 * US}, {2: [1]}
    for workers in (3, 2, 1):
        await world.submit(job(workers=workers))
    await world.cancel("job-3")
    await world.to(7 * US)
    digest = world.controller.state.digest()
    board = {record.id: record for record in world.controller.board}
    replayed = Controller(Journal(world.path), world.engine, brains_of("fifo"), clock=world.clock)
    replayed._replay()
    assert replayed.state.digest() == digest
    assert {record.id: record for record in replayed.board} == board


async def test_a_policy_with_a_memory_remembers_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "j.db", "tiresias:variant=gittins")
    await world.start()
    world.engine.work_us = {n: n * US for n in range(1, 6)}
    for _ in range(5):
        await world.submit(job())
    await world.to(20 * US)
    await world.controller._round()
    memo = world.controller.rounds.mind.memo
    await world.controller.close()
    again = await world.start()
    await again._round()
    assert repr(again.rounds.mind.memo) == repr(memo) and "bins" in repr(memo)
