"""What people ask of a controller, over a fake machine in virtual time: many jobs at once, holds, requeues and updates; and that
each of them is there again when the controller has died."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason
from headway.core.errors import UserError
from headway.core.model import Progress
from headway.core.policy import remembers
from headway.core.state import State
from headway.policies.registry import choose
from headway.runtime.board import JobRecord
from headway.runtime.budgets import UrgencyBudgets
from headway.runtime.folded import Folded
from headway.runtime.intake import ConflictError, NoSuchJobError
from headway.runtime.journal import Journal
from headway.runtime.settings import Queue, Settings, UserSettings
from headway.runtime.verbs import Update
from headway.testing.invariants import verify

from .fake import US, World, job

T = TypeVar("T")


@pytest.fixture
async def world(tmp_path: Path) -> World:
    """One node with two GPUs, under `fifo`."""
    made = World(tmp_path / "journal.db", nodes=1)
    made.engine.save_us = 2 * US
    await made.start()
    return made


async def ask(world: World, verb: Coroutine[Any, Any, T]) -> T:
    """Ask, let the controller do it, and take the answer."""
    task = asyncio.ensure_future(verb)
    await world.drain()
    return await task


async def one(world: World, verb: Coroutine[Any, Any, list[JobRecord | UserError]]) -> JobRecord:
    """The same, for a verb of a single job that is done."""
    (answer,) = await ask(world, verb)
    assert isinstance(answer, JobRecord), answer
    return answer


def stands(world: World, record: JobRecord) -> tuple[str, str]:
    """A job's state and reason, as people see them."""
    view = world.controller.live_view(record)
    phase, reason = (record.phase, record.reason) if view is None else (view.phase, view.reason)
    return phase.name.lower(), reason.word


def column(world: World, record: JobRecord, number: int) -> int:
    found = world.controller.live_column(record, number)
    assert found is not None
    return found


async def check_again(world: World) -> None:
    """Whatever has happened: the tables hold, and a new controller finds the same state and the same records."""
    controller = world.controller
    verify(controller.state)
    again = State()
    again.apply(world.journal())
    assert again.digest() == controller.state.digest()
    reader, folded = Journal(world.path), Folded.empty(choose(world.policy).policy)
    batches = list(reader.read())
    reader.close()
    folded.take(batches)
    assert list(folded.board) == list(controller.board)
    restored = Folded.empty(choose(world.policy).policy)
    restored.restore(folded.pack())
    assert list(restored.board) == list(controller.board) and restored.state.digest() == controller.state.digest()
    assert restored.names.listed(c.Name.QUEUE) == controller.names.listed(c.Name.QUEUE)


# -- many at once
async def test_a_batch_is_one_write_and_each_job_has_its_answer(world: World) -> None:
    before = world.controller.journal.segments
    jobs = [
        (job("a"), ""),
        (job("a"), "mine"),
        (job("b"), "mine"),
        (job("a"), "mine"),
        (job("c", gpus=99), ""),
        (job("d"), "no/name"),
    ]
    answers = await ask(world, world.controller.submit_many([*jobs, (job("a"), "")]))
    told = [(a[0].id, a[1], a[0].phase) if isinstance(a, tuple) else type(a) for a in answers]
    assert told == [
        ("a-1", True, Phase.QUEUED), ("mine", True, Phase.QUEUED), ConflictError, ("mine", False, Phase.QUEUED),
        ("c-1", True, Phase.REJECTED), UserError, ("a-2", True, Phase.QUEUED),
    ]  # fmt: skip
    kinds = [batch.kinds() for batch in Journal(world.path).read(before)]
    assert sum(EventKind.SUBMITTED in some for some in kinds) == 1 and kinds[0].count(EventKind.SUBMITTED) == 4
    await check_again(world)


async def test_a_limit_of_waiting_jobs_counts_within_a_batch(world: World) -> None:
    world.controller.intake.settings = Settings(users={"ann": UserSettings(queued_max=2)})
    answers = await ask(
        world, world.controller.submit_many([(job(user=user), "") for user in ("ann", "bob", "ann", "ann", "bob")])
    )
    assert [isinstance(answer, UserError) for answer in answers] == [False, False, False, True, False]


async def test_many_are_cancelled_in_one_write(world: World) -> None:
    world.engine.work_us = dict.fromkeys(range(1, 9), 100 * US)
    for _ in range(4):
        await world.submit(job())
    before = world.controller.journal.segments
    answers = await ask(world, world.controller.cancel_many(["job-1", "job-3", "nobody", "job-4", "job-3", "4"]))
    assert [type(answer) for answer in answers] == [JobRecord, JobRecord, NoSuchJobError, JobRecord, JobRecord, JobRecord]
    kinds = [kind for batch in Journal(world.path).read(before) for kind in batch.kinds()]
    assert kinds[:3] == [EventKind.CANCEL_REQUESTED] * 3 and kinds.count(EventKind.CANCEL_REQUESTED) == 3
    await world.to(10 * US)
    phases = [world.controller.find(f"job-{n}").phase for n in (1, 3, 4)]
    assert phases == [Phase.CANCELLED] * 3
    assert world.controller.phase(world.controller.find("job-2")) == Phase.RUNNING
    assert await world.controller.cancel_many(["nobody"]) and (await world.controller.hold_many([], True)) == []
    await check_again(world)


async def test_select(world: World) -> None:
    world.engine.work_us = {1: 1 * US, 2: 100 * US, 3: 100 * US}
    for name, user, queue in (("a", "ann", "x"), ("b", "bob", "x"), ("c", "ann", "y"), ("d", "bob", "y")):
        await world.submit(job(name, 2 if name == "c" else 1, user=user, queue=queue))
    await world.to(2 * US)

    def ids(**of: Any) -> list[str]:
        return [record.id for record in world.controller.select(**of)]

    assert ids() == ["a-1", "b-1", "c-1", "d-1"] and ids(user="ann") == ["a-1", "c-1"] and ids(queue="y") == ["c-1", "d-1"]
    assert ids(states=frozenset({Phase.COMPLETED})) == ["a-1"]
    assert ids(states=frozenset({Phase.QUEUED, Phase.RUNNING}), user="bob") == ["b-1", "d-1"]
    assert ids(states=frozenset({Phase.QUEUED})) == ["c-1", "d-1"] and ids(user="nobody") == []


# -- hold and release
async def test_a_held_job_does_not_start_and_lets_others_by(world: World) -> None:
    world.engine.work_us = {1: 5 * US, 2: 5 * US, 3: 5 * US}
    await world.submit(job("first", workers=2))
    second, third = await world.submit(job("second", workers=2)), await world.submit(job("third"))
    assert await one(world, world.controller.hold_many(["second-1"], True)) is second
    assert second.held and stands(world, second) == ("queued", "held-by-user")
    await world.to(6 * US)
    assert stands(world, second) == ("queued", "held-by-user") and stands(world, third)[0] == "running"
    await world.to(60 * US)
    assert second.attempt == 0 and third.phase == Phase.COMPLETED
    await check_again(world)
    await one(world, world.controller.hold_many(["second-1"], False))
    assert not second.held and stands(world, second)[0] == "running" and second.first_started_us == 60 * US
    held = [(kind, a) for kind, a in world.journal().records[:, [c.E_KIND, c.E_A]].tolist() if kind == EventKind.HOLD_SET]
    assert held == [(EventKind.HOLD_SET, 1), (EventKind.HOLD_SET, 0)]
    await one(world, world.controller.hold_many(["second-1"], False))
    assert len(world.kinds(2)) == 5, "to release it again is nothing"
    await check_again(world)


async def test_a_held_job_that_runs_goes_on_and_does_not_start_again(world: World) -> None:
    world.engine.work_us = {1: 10 * US}
    record = await world.submit(job())
    await world.to(3 * US)
    await one(world, world.controller.hold_many(["job-1"], True))
    assert stands(world, record)[0] == "running"
    await world.to(4 * US)
    await one(world, world.controller.requeue_many(["job-1"]))
    await world.to(50 * US)
    assert stands(world, record) == ("queued", "held-by-user") and record.run_us == 6 * US and record.attempt == 1
    await one(world, world.controller.hold_many(["job-1"], False))
    await world.to(100 * US)
    assert (record.phase, record.attempt, record.ended_us) == (Phase.COMPLETED, 2, 56 * US), "4 of 10 s were done"
    await check_again(world)


async def test_a_held_job_gives_up_the_place_that_it_waits_for(tmp_path: Path) -> None:
    """Under `srtf` the short job has been given the place that the long one is leaving; held, it lets the third have it."""
    world = World(tmp_path / "journal.db", "srtf", nodes=1, gpus=1)
    world.engine.save_us = 5 * US
    world.engine.work_us = {1: 100 * US, 2: 3 * US, 3: 20 * US}
    await world.start()
    await world.submit(job("long", estimate_s=100.0))
    await world.to(10 * US)
    short, middle = await world.submit(job("short", estimate_s=3.0)), await world.submit(job("middle", estimate_s=20.0))
    assert stands(world, short) == ("queued", "waits-for-stop")
    await one(world, world.controller.hold_many(["short-1"], True))
    assert stands(world, short) == ("queued", "held-by-user")
    await world.to(20 * US)
    assert stands(world, short) == ("queued", "held-by-user") and stands(world, middle)[0] == "running"
    await check_again(world)


async def test_hold_is_there_after_a_restart(world: World) -> None:
    world.engine.work_us = {1: 100 * US}
    await world.submit(job(workers=2))
    await world.submit(job("waits"))
    await ask(world, world.controller.hold_many(["job-1", "waits-1"], True))
    await world.controller.close()
    await world.start()
    assert [record.held for record in world.controller.board] == [True, True]
    await ask(world, world.controller.cancel_many(["job-1"]))
    await world.to(30 * US)
    assert stands(world, world.controller.find("waits-1")) == ("queued", "held-by-user")


# -- requeue
async def test_requeue_costs_no_retry_and_counts_as_no_preemption(world: World) -> None:
    world.engine.work_us, world.engine.exit_codes = {1: 10 * US}, {1: [0, 1]}
    record = await world.submit(replace(job(), retry_max=1))
    await world.to(4 * US)
    assert await one(world, world.controller.requeue_many(["job-1"])) is record
    assert stands(world, record) == ("stopping", "requeued")
    assert world.engine.attempts[1, 1].stop_reason == "requeued" and world.engine.attempts[1, 1].ends_us == 6 * US
    await one(world, world.controller.requeue_many(["job-1"]))
    await world.to(7 * US)
    assert stands(world, record)[0] == "running" and record.attempt == 2 and record.preemptions == 0
    assert column(world, record, c.J_RETRIES) == 0 and column(world, record, c.J_PREEMPTIONS) == 0
    assert world.kinds(1)[3:] == ["STOP_REQUESTED", "STOPPED", "START_REQUESTED", "STARTED"]
    await world.to(13 * US)
    assert column(world, record, c.J_RETRIES) == 1, "the second attempt has failed by itself: that is the only retry"
    await check_again(world)


async def test_requeue_of_a_waiting_job_is_nothing_and_of_an_ended_one_an_error(world: World) -> None:
    world.engine.work_us = {1: 3 * US, 2: 50 * US}
    for _ in range(4):
        await world.submit(job(workers=2))
    await world.to(4 * US)
    assert await one(world, world.controller.requeue_many(["job-3"]))
    assert world.kinds(3) == ["SUBMITTED"]
    await world.cancel("job-2")
    answers = await ask(world, world.controller.requeue_many(["job-1", "job-2", "job-3", "nobody"]))
    assert [str(a) if isinstance(a, UserError) else a.id for a in answers] == [
        'job "job-1" has ended', 'job "job-2" is about to end', "job-3", 'there is no job "nobody"',
    ]  # fmt: skip
    for verb in (world.controller.hold_many(["job-1"], True), world.controller.hold_many(["job-2"], False)):
        assert isinstance((await ask(world, verb))[0], UserError)
    await world.to(10 * US)
    assert world.controller.find("job-2").phase == Phase.CANCELLED
    await check_again(world)


async def test_a_job_named_twice_is_requeued_once(world: World) -> None:
    world.engine.work_us = {1: 50 * US}
    record = await world.submit(job())
    answers = await ask(world, world.controller.requeue_many(["job-1", "1", "job-1"]))
    assert answers == [record] * 3 and world.kinds(1).count("STOP_REQUESTED") == 1


async def test_a_requeue_that_the_engine_never_heard_of_is_told_again(world: World) -> None:
    """The controller dies after the journal has it, and before the engine does."""
    world.engine.work_us = {1: 50 * US}
    await world.submit(job())
    await world.to(2 * US)

    async def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    stop, world.engine.stop = world.engine.stop, dies  # type: ignore[method-assign,assignment]
    task = asyncio.ensure_future(world.controller.requeue_many(["job-1"]))
    await asyncio.sleep(0)
    with pytest.raises(KeyboardInterrupt):
        await world.controller.step()
    assert isinstance((await task)[0], JobRecord), "it is in the journal"
    world.engine.stop = stop  # type: ignore[method-assign]
    await world.controller.close()
    await world.start()
    await world.to(5 * US)
    record = world.controller.find("job-1")
    assert stands(world, record)[0] == "running" and record.attempt == 2
    await check_again(world)


# -- update
async def test_priority_deadline_and_urgency_of_any_live_job(world: World) -> None:
    world.engine.work_us = {1: 50 * US, 2: 50 * US}
    await world.to(1 * US)
    running, waiting = await world.submit(job(workers=2, deadline_s=60.0)), await world.submit(job())
    change = Update(priority=80, deadline_us=7 * US, urgency=9)
    for record in (running, waiting):
        assert await ask(world, world.controller.update(record.id, change)) is record
        assert (record.priority, record.deadline_us, record.urgency, record.urgency_asked) == (80, 8 * US, 9, 9)
        assert [column(world, record, x) for x in (c.J_PRIORITY, c.J_DEADLINE, c.J_URGENCY)] == [80, 8 * US, 9]
    assert stands(world, running)[0] == "running"
    await ask(world, world.controller.update("job-1", Update(deadline_us=c.NEVER)))
    assert running.deadline_us is None and column(world, running, c.J_DEADLINE) == c.NEVER
    before = len(world.journal())
    await ask(world, world.controller.update("job-1", Update(priority=80, urgency=9, deadline_us=c.NEVER)))
    assert len(world.journal()) == before, "what is so already is no event"
    await ask(world, world.controller.requeue_many(["job-1"]))
    await ask(world, world.controller.update("job-1", Update(priority=1)))
    assert stands(world, running)[0] == "stopping" and running.priority == 1
    again, created = await ask(world, world.controller.submit(job(workers=2, deadline_s=60.0), "job-1"))
    assert again is running and not created, "it is still the job that was handed in"
    await check_again(world)


async def test_urgency_is_within_the_budget(world: World) -> None:
    world.controller.intake.budgets = UrgencyBudgets({"ann": 6})
    for name, urgency in (("a", 7), ("b", 8), ("c", 5)):
        await world.submit(job(name, user="ann", urgency=urgency, workers=2))
    record = world.controller.find("c-1")
    await ask(world, world.controller.update("c-1", Update(urgency=10)))
    assert (record.urgency, record.urgency_asked) == (6, 10) and "urgency 6 instead of 10" in record.note
    await ask(world, world.controller.update("a-1", Update(urgency=9)))
    assert world.controller.find("a-1").urgency == 7, "its own points are its to keep: 6 − 3 − 1 of the others"
    await ask(world, world.controller.update("b-1", Update(urgency=1)))
    await ask(world, world.controller.update("c-1", Update(urgency=10)))
    assert record.urgency == 9
    await check_again(world)


async def test_the_queue_changes_while_a_job_waits_only(world: World) -> None:
    world.engine.work_us = {1: 50 * US}
    world.controller.intake.settings = Settings(
        queues={name: Queue(name) for name in "xy"}, users={"ann": UserSettings(queues=("default", "x"))}
    )
    await world.submit(job(workers=2, user="ann"))
    waiting = await world.submit(job(user="ann"))
    await ask(world, world.controller.update("job-2", Update(queue="x")))
    assert waiting.queue == "x" and [record.id for record in world.controller.select(queue="x")] == ["job-2"]
    Q = world.controller.state.Q
    number = world.controller.names.listed(c.Name.QUEUE)
    assert (Q[c.Q_WAITING, number["default"]], Q[c.Q_WAITING, number["x"]]) == (0, 1)
    for name, queue, why in (
        ("job-1", "x", "running"), ("job-2", "y", "may use only default, x"), ("job-2", "xx", "there is no queue"),
        ("job-2", "a/b", "a name without"),
    ):  # fmt: skip
        before = len(world.journal())
        with pytest.raises(UserError, match=why):
            await ask(world, world.controller.update(name, Update(queue=queue, priority=99)))
        assert len(world.journal()) == before, "nothing is done"
    await check_again(world)


async def test_a_job_that_moves_to_another_queue_gives_up_the_place_that_it_waits_for(tmp_path: Path) -> None:
    world = World(tmp_path / "journal.db", "srtf", nodes=1, gpus=1)
    world.engine.save_us = 5 * US
    world.engine.work_us = {1: 100 * US, 2: 3 * US}
    await world.start()
    await world.submit(job("long", estimate_s=100.0))
    await world.to(10 * US)
    short = await world.submit(job("short", estimate_s=3.0))
    assert stands(world, short) == ("queued", "waits-for-stop")
    await ask(world, world.controller.update("short-1", Update(queue="other")))
    verify(world.controller.state)
    await world.to(40 * US)
    assert short.phase == Phase.COMPLETED and short.queue == "other"
    await check_again(world)


async def test_a_time_limit_below_what_has_run_ends_a_job_at_once(world: World) -> None:
    world.engine.work_us = dict.fromkeys((1, 2, 3), 100 * US)
    running, other = await world.submit(job("runs")), await world.submit(job("other"))
    await world.to(10 * US)
    await ask(world, world.controller.update("runs-1", Update(time_limit_us=20 * US)))
    assert running.time_limit_us == 20 * US and column(world, running, c.J_ESTIMATE) == 20 * US, (
        "nobody has said how long it takes"
    )
    await ask(world, world.controller.update("other-1", Update(time_limit_us=9 * US)))
    assert stands(world, other) == ("stopping", "time-limit")
    await world.to(13 * US)
    assert (other.phase, other.reason, other.ended_us) == (Phase.FAILED, Reason.TIME_LIMIT, 12 * US)
    await world.to(30 * US)
    assert (running.phase, running.reason, running.ended_us) == (Phase.FAILED, Reason.TIME_LIMIT, 22 * US)
    await check_again(world)


@pytest.mark.parametrize("where", ["stopping", "queued"])
async def test_so_it_does_with_a_job_that_is_stopping_or_waits_again(world: World, where: str) -> None:
    world.engine.work_us = {1: 100 * US}
    record = await world.submit(job())
    await world.to(10 * US)
    await ask(world, world.controller.hold_many(["job-1"], True))
    await ask(world, world.controller.requeue_many(["job-1"]))
    if where == "queued":
        await world.to(20 * US)
    await ask(world, world.controller.update("job-1", Update(time_limit_us=11 * US)))
    assert stands(world, record)[0] == where or where == "queued"
    await world.to(30 * US)
    if where == "stopping":
        assert stands(world, record) == ("queued", "held-by-user"), "it had not run for so long yet"
        return
    assert (record.phase, record.reason, record.ended_us) == (Phase.FAILED, Reason.TIME_LIMIT, 20 * US)
    await check_again(world)


async def test_a_job_that_is_stopping_ends_by_a_limit_that_it_has_reached(world: World) -> None:
    world.engine.work_us = {1: 100 * US}
    record = await world.submit(job())
    await world.to(10 * US)
    await ask(world, world.controller.requeue_many(["job-1"]))
    await ask(world, world.controller.update("job-1", Update(time_limit_us=10 * US)))
    assert stands(world, record) == ("stopping", "time-limit")
    await world.to(13 * US)
    assert (record.phase, record.reason) == (Phase.FAILED, Reason.TIME_LIMIT)
    await check_again(world)


async def test_a_longer_limit_lets_a_job_go_on(world: World) -> None:
    world.engine.work_us = {1: 30 * US}
    record = await world.submit(job(time_limit_s=20.0, estimate_s=5.0))
    await world.to(10 * US)
    await ask(world, world.controller.update("job-1", Update(time_limit_us=c.NEVER)))
    assert record.time_limit_us is None and column(world, record, c.J_ESTIMATE) == 5 * US, "its owner has said how long it takes"
    await world.to(40 * US)
    assert record.phase == Phase.COMPLETED


async def test_what_is_no_update(world: World) -> None:
    await world.submit(job(workers=2))
    for change, key in (
        (Update(priority=101), "priority"), (Update(urgency=0), "urgency"), (Update(time_limit_us=0), "time_limit"),
        (Update(deadline_us=-5), "deadline"), (Update(queue=""), "queue"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            await ask(world, world.controller.update("job-1", change))
        assert error.value.key == key
    await world.to(1 * US)
    with pytest.raises(UserError, match="has ended"):
        await ask(world, world.controller.update("job-1", Update(priority=3)))
    with pytest.raises(NoSuchJobError):
        await ask(world, world.controller.update("nobody", Update(priority=3)))


# -- what the board knows
async def test_the_record_has_what_was_handed_in_and_what_was_told(world: World) -> None:
    spec = job(group="g", priority=7, time_limit_s=90.0, deadline_s=60.0, goal_accuracy=0.75, progress=Progress(total=400))
    world.engine.work_us = {1: 9 * US}
    await world.to(1 * US)
    record = await world.submit(spec)
    assert (record.group, record.priority, record.total, record.goal_accuracy, record.stop_rule) == ("g", 7, 400, 0.75, "fixed")
    assert (record.time_limit_us, record.deadline_us, record.saved_units, record.loss) == (90 * US, 61 * US, None, None)

    def tell(kind: EventKind, a: int, b: int = 0, d: int = 0) -> Any:
        from headway.core.events import EventBuffer

        def make(now: int) -> Any:
            out = EventBuffer()
            out.add(now, kind, 1, 1, a, b, d)
            return out.take()

        return world.controller.change(make)

    await world.to(3 * US)
    await ask(world, tell(EventKind.OBSERVED, 120, 500_000_000, 250_000))
    await ask(world, tell(EventKind.SAVED, 100))
    await ask(world, tell(EventKind.OBSERVED, 110, c.NOTHING, c.NOTHING))
    await world.to(5 * US)
    await ask(world, tell(EventKind.SAVED, 90))
    assert (record.units, record.loss, record.accuracy) == (120, 0.5, 0.25)
    saved_at = int(world.controller.state.J[c.J_SAVED_AT, world.controller.state.row(record.number)])
    assert (record.saved_units, saved_at) == (100, 3 * US), "an older checkpoint is not the newest"
    await world.to(20 * US)
    assert record.phase == Phase.COMPLETED and record.accuracy == 0.25
    assert not remembers(world.controller.brains.policy) and np.all(world.journal().records[:, c.E_T] >= 0)
    await check_again(world)
