"""The conformance suite of engines: what every engine must do, whatever it runs on.

    async def make() -> Engine: ...          # an engine on one world, not yet started; called again after a close

    await check_engine(make, scratch=tmp_path)

`check_engine` runs all of `ENGINE_CHECKS` that the engine's `capabilities()` call for, one after the other in one world; a test
suite may rather run each in a world of its own, with `run_engine_check`. The world needs two free slots, on one node or on two;
three where it declares uneven gangs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from headway.engines.base import (
    Capabilities,
    Ended,
    EngineInvariant,
    Exited,
    Place,
    Running,
    StaleAttempt,
    StaleEpoch,
    Started,
    StartFailed,
)
from headway.testing.engine_bench import Commands, EngineBench, Make, raises

__all__ = ["ENGINE_CHECKS", "Commands", "EngineBench", "check_engine", "run_engine_check"]


async def completes(bench: EngineBench) -> None:
    """A gang whose tasks all exit 0 starts, then ends well; in this order, each told once."""
    launch = await bench.launch(bench.run.succeed, bench.run.succeed)
    await bench.event(Exited, launch)
    assert bench.told(launch) == [
        Started(launch.job, launch.attempt),
        Exited(launch.job, launch.attempt, 0, None, False, ""),
    ]
    await bench.finish(launch)


async def tells_exit_code(bench: EngineBench) -> None:
    """The exit code of a task that fails is told, and so is the signal that ended one."""
    launch = await bench.launch(bench.run.fail(3))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 3, None, False, "")
    await bench.finish(launch)
    launch = await bench.launch(bench.run.die(9))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "")
    await bench.finish(launch)


async def launch_is_idempotent(bench: EngineBench) -> None:
    """A repeated launch starts nothing: not while the attempt runs, nor when it has ended, nor acknowledged."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, mark=mark))
    await bench.engine.launch(launch)
    await bench.event(Started, launch)
    await bench.engine.launch(launch)
    bench.run.open(gate)
    await bench.event(Exited, launch)
    await bench.engine.launch(launch)
    assert isinstance(await bench.record(launch), Ended)
    await bench.finish(launch)
    await bench.engine.launch(launch)
    assert await bench.record(launch) is None
    assert bench.run.lines(mark) == 1
    assert len(bench.told(launch)) == 2


async def stop_of_unknown_is_no_error(bench: EngineBench) -> None:
    """A stop or an acknowledgement that comes late, or twice, does nothing."""
    await bench.engine.stop(bench.epoch, 4_000_000, 1, 1.0, "cancelled")
    await bench.engine.acknowledge(bench.epoch, 4_000_000, 1)
    launch = await bench.launch(bench.run.succeed)
    ended = await bench.event(Exited, launch)
    await bench.stop(launch, 0.0)
    assert not ended.after_stop
    assert not (await bench.ended(launch)).after_stop
    await bench.finish(launch)
    await bench.stop(launch, 0.0)
    await bench.engine.acknowledge(bench.epoch, launch.job, launch.attempt)


async def stop_gives_grace(bench: EngineBench) -> None:
    """A task that obeys SIGTERM has the time to save, and its own exit code is told."""
    mark, saved = bench.path("mark"), bench.path("saved")
    launch = await bench.launch(bench.run.obey(mark, saved))
    await bench.event(Started, launch)
    await bench.until(mark.exists)
    await bench.stop(launch, bench.timeout_s, "preempted")
    await bench.stop(launch, bench.timeout_s, "repeated")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, True, "preempted")
    assert saved.exists()
    await bench.finish(launch)


async def stop_kills_after_grace(bench: EngineBench) -> None:
    """A task that ignores SIGTERM has its grace, and then is killed."""
    mark = bench.path("mark")
    grace_s = 0.4
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    began_s = asyncio.get_running_loop().time()
    await bench.stop(launch, grace_s, "cancelled")
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.phase == "stopping"
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, True, "cancelled")
    assert asyncio.get_running_loop().time() - began_s >= grace_s * 0.9
    await bench.finish(launch)


async def second_stop_may_hurry(bench: EngineBench) -> None:
    """Of two stop requests, the earlier deadline counts."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    await bench.stop(launch, 100 * bench.timeout_s, "preempted")
    await bench.stop(launch, 0.0, "cancelled")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, True, "preempted")
    await bench.finish(launch)


async def one_crash_fails_the_gang(bench: EngineBench) -> None:
    """When one task fails the others are stopped, and the failure of that one is told: once, for the gang."""
    marks = bench.path("mark"), bench.path("mark")
    launch = await bench.launch(bench.run.wait(bench.path("never"), mark=marks[0]), bench.run.fail(5))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 5, None, False, "")
    assert sum(isinstance(event, Exited) for event in bench.told(launch)) == 1
    await bench.finish(launch)


async def failed_start_leaves_nothing(bench: EngineBench) -> None:
    """If one task can't be started, none runs, and the reason is told."""
    launch = await bench.launch_of(bench.run.wait(bench.path("never")), bench.run.succeed)
    missing = bench.path("missing")
    launch = replace(launch, tasks=(launch.tasks[0], replace(launch.tasks[1], workdir=str(missing))))
    await bench.engine.launch(launch)
    failed = await bench.event(StartFailed, launch)
    assert missing.name in failed.reason
    assert bench.told(launch) == [failed]
    ended = await bench.ended(launch)
    assert not ended.started
    assert ended.reason == failed.reason
    await bench.finish(launch)


async def restart_finds_what_runs(bench: EngineBench) -> None:
    """A new controller finds what runs, with its places, and later is told how it ended."""
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, code=4), bench.run.wait(gate))
    await bench.event(Started, launch)
    await bench.restart()
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.phase == "running"
    assert record.epoch == launch.epoch
    assert [(place.rank, place.node, place.gpus) for place in record.places] == [
        (task.rank, task.node, task.gpus) for task in launch.tasks
    ]
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 4, None, False, "")
    await bench.finish(launch)


async def ends_are_kept_until_acknowledged(bench: EngineBench) -> None:
    """What ends while no controller is there is found by the next, and by the one after; until acknowledged."""
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, code=6))
    await bench.event(Started, launch)
    await bench.close()
    bench.run.open(gate)
    await bench.open()
    ended = await bench.ended(launch)
    assert (ended.started, ended.exit_code, ended.after_stop) == (True, 6, False)
    await bench.restart()
    assert await bench.record(launch) == ended
    await bench.finish(launch)
    await bench.restart()
    assert await bench.record(launch) is None
    await bench.engine.launch(replace(launch, epoch=bench.epoch))
    assert await bench.record(launch) is None


async def stop_after_restart(bench: EngineBench) -> None:
    """A new controller can stop what an older one has started."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.ignore(mark))
    await bench.until(mark.exists)
    await bench.restart()
    await bench.stop(launch, 0.1)
    assert (await bench.event(Exited, launch)).after_stop
    await bench.finish(launch)


async def stale_epoch_is_refused(bench: EngineBench) -> None:
    """A controller that has been replaced can neither launch nor stop nor acknowledge, and can't fence either."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    bench.epoch += 1
    await bench.engine.fence(bench.epoch)
    other = await bench.launch_of(bench.run.wait(gate, mark=mark))
    await raises(StaleEpoch, bench.engine.launch(replace(other, epoch=bench.epoch - 1)))
    await raises(StaleEpoch, bench.engine.stop(bench.epoch - 1, launch.job, launch.attempt, 0.0, "cancelled"))
    await raises(StaleEpoch, bench.engine.fence(bench.epoch - 1))
    assert await bench.record(other) is None
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    await raises(StaleEpoch, bench.engine.acknowledge(bench.epoch - 1, launch.job, launch.attempt))
    assert isinstance(await bench.record(launch), Ended)
    assert not mark.exists()
    await bench.finish(launch)


async def stale_attempt_is_refused(bench: EngineBench) -> None:
    """An attempt older than one that is known never starts, even if the newer one is over and acknowledged."""
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.succeed, attempt=3)
    await bench.event(Exited, launch)
    older = await bench.launch_of(bench.run.wait(mark, mark=mark), job=launch.job, attempt=2)
    await raises(StaleAttempt, bench.engine.launch(older))
    await bench.finish(launch)
    await raises(StaleAttempt, bench.engine.launch(older))
    await bench.restart()
    await raises(StaleAttempt, bench.engine.launch(replace(older, epoch=bench.epoch)))
    assert not mark.exists()
    newer = await bench.launch(bench.run.succeed, job=launch.job, attempt=4)
    await bench.event(Exited, newer)
    await bench.finish(newer)


async def nothing_runs_twice(bench: EngineBench) -> None:
    """A second live attempt of a job, or a second one on a slot, is refused and leaves nothing; also after a restart."""
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    for _ in range(2):
        again = await bench.launch_of(bench.run.wait(gate, mark=mark), job=launch.job, attempt=2)
        beside = await bench.launch_of(bench.run.wait(gate, mark=mark))
        for refused in (again, beside):
            await raises(EngineInvariant, bench.engine.launch(refused))
            assert await bench.record(refused) is None
        await bench.restart()
    await raises(EngineInvariant, bench.engine.acknowledge(bench.epoch, launch.job, launch.attempt))
    bench.run.open(gate)
    await bench.ended(launch)
    await bench.finish(launch)
    assert not mark.exists()


async def devices_are_those_asked_for(bench: EngineBench) -> None:
    """A task gets the devices that it was placed on, and as many: not other ones that are free as well."""
    node = (await bench.engine.inventory())[0]
    slot = node.gpus - 1
    gate, mark = bench.path("gate"), bench.path("mark")
    launch = await bench.launch_of(bench.run.devices(mark, gate))
    launch = replace(launch, tasks=(replace(launch.tasks[0], node=node.name, gpus=(slot,)),))
    await bench.engine.launch(launch)
    await bench.until(lambda: bench.run.lines(mark) == 1)
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.places == (Place(0, node.name, (slot,)),)
    assert len(mark.read_text().strip().split(",")) == 1
    bench.run.open(gate)
    await bench.event(Exited, launch)
    await bench.finish(launch)


async def gangs_may_be_uneven(bench: EngineBench) -> None:
    """The tasks of a gang may have different numbers of GPUs, and nodes different numbers of its tasks."""
    launch = await bench.launch_of(bench.run.succeed, bench.run.succeed, bench.run.succeed)
    first, second, third = launch.tasks
    if first.node == second.node:
        tasks = (replace(first, gpus=(*first.gpus, *second.gpus)), replace(third, rank=1))
    else:
        tasks = (first, replace(second, gpus=(*second.gpus, *third.gpus)))
    launch = replace(launch, tasks=tasks)
    await bench.engine.launch(launch)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    await bench.finish(launch)


async def gpus_are_given_whole(bench: EngineBench) -> None:
    """Where no GPU is shared, half a GPU is the scheduler's error."""
    launch = await bench.launch_of(bench.run.succeed)
    launch = replace(launch, tasks=(replace(launch.tasks[0], milli=500),))
    await raises(EngineInvariant, bench.engine.launch(launch))
    assert await bench.record(launch) is None


async def gpus_are_shared_up_to_one(bench: EngineBench) -> None:
    """Two halves of a GPU run side by side; a third is refused."""
    gate = bench.path("gate")
    halves = []
    for _ in range(2):
        half = await bench.launch_of(bench.run.wait(gate))
        half = replace(half, tasks=(replace(half.tasks[0], milli=500),))
        await bench.engine.launch(half)
        halves.append(half)
    third = await bench.launch_of(bench.run.wait(gate))
    third = replace(third, tasks=(replace(third.tasks[0], milli=500),))
    await raises(EngineInvariant, bench.engine.launch(third))
    bench.run.open(gate)
    for half in halves:
        await bench.event(Exited, half)
        await bench.finish(half)


async def declared_figures_make_sense(bench: EngineBench) -> None:
    """Slice and grace are seconds; they don't change while the engine lives."""
    declared = bench.engine.capabilities()
    assert 0.0 <= declared.slice_s_min < float("inf")
    assert declared.grace_s > 0.0
    await bench.restart()
    assert bench.engine.capabilities() == declared


async def nonsense_is_refused(bench: EngineBench) -> None:
    """A gang that no world could start is the scheduler's error, and leaves nothing."""
    good = await bench.launch_of(bench.run.succeed)
    task = good.tasks[0]
    slots = {node.name: node.gpus for node in await bench.engine.inventory()}
    for tasks in (
        (),
        (replace(task, rank=1),),
        (replace(task, node="no such node"),),
        (replace(task, gpus=(slots[task.node],)),),
        (replace(task, gpus=(-1,)),),
        (replace(task, gpus=(0, 0)),),
        (replace(task, milli=0),),
        (replace(task, milli=1001),),
        (task, replace(task, rank=1)),
    ):
        await raises(EngineInvariant, bench.engine.launch(replace(good, tasks=tasks)))
    assert await bench.record(good) is None
    with contextlib.suppress(ValueError):
        await bench.engine.stop(bench.epoch, good.job, 1, float("nan"), "cancelled")
        raise AssertionError("a grace that is not a number was taken")


Check: TypeAlias = Callable[[EngineBench], Awaitable[None]]

ENGINE_CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        completes,
        tells_exit_code,
        launch_is_idempotent,
        stop_of_unknown_is_no_error,
        stop_gives_grace,
        stop_kills_after_grace,
        second_stop_may_hurry,
        one_crash_fails_the_gang,
        failed_start_leaves_nothing,
        restart_finds_what_runs,
        ends_are_kept_until_acknowledged,
        stop_after_restart,
        stale_epoch_is_refused,
        stale_attempt_is_refused,
        nothing_runs_twice,
        nonsense_is_refused,
        declared_figures_make_sense,
        devices_are_those_asked_for,
        gangs_may_be_uneven,
        gpus_are_given_whole,
        gpus_are_shared_up_to_one,
    )
}
CALLED_FOR: dict[str, Callable[[Capabilities], bool]] = {
    "devices_are_those_asked_for": lambda declared: declared.exact_devices,
    "gangs_may_be_uneven": lambda declared: declared.uneven_gangs,
    "gpus_are_given_whole": lambda declared: not declared.fractional_gpus,
    "gpus_are_shared_up_to_one": lambda declared: declared.fractional_gpus,
}
"""When a check is called for; all others always are."""


def called_for(name: str, declared: Capabilities) -> bool:
    """Whether an engine with these capabilities must pass this check."""
    return name not in CALLED_FOR or CALLED_FOR[name](declared)


async def run_engine_check(
    check: Check, make: Make, *, scratch: Path, commands: Commands | None = None, timeout_s: float = 30.0
) -> None:
    """Run one check in a fresh world, if the engine's capabilities call for it.

    `scratch` is an empty directory; `timeout_s` bounds each wait, in seconds.
    """
    bench = EngineBench(make, scratch, commands, timeout_s)
    await bench.open()
    try:
        if called_for(check.__name__, bench.engine.capabilities()):
            await check(bench)
    finally:
        await bench.close()


async def check_engine(make: Make, *, scratch: Path, commands: Commands | None = None, timeout_s: float = 30.0) -> None:
    """Run all of `ENGINE_CHECKS` in one world; nothing may be left of one when the next begins."""
    bench = EngineBench(make, scratch, commands, timeout_s)
    await bench.open()
    try:
        for name, check in ENGINE_CHECKS.items():
            if not called_for(name, bench.engine.capabilities()):
                continue
            await check(bench)
            left = await bench.engine.snapshot()
            assert left == (), f"{name} left {left}"
    finally:
        await bench.close()
