"""Jobs that fill the disk, take their working directory away, print without end, and machines that are too small for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headway.engines import runner
from headway.engines.base import EngineError, EngineInvariant, Exited, NodeHealth, Started, TaskLaunch
from headway.testing.engine_checks import EngineBench

from .conftest import LocalWorld

pytestmark = pytest.mark.live


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill_up(path: Path) -> None:
    """Leave not a byte."""
    with path.open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(bytes(1024))


async def test_a_job_that_fills_the_disk_ends_and_its_end_is_not_lost(world: LocalWorld, small_disk: Path) -> None:
    world.state_dir = small_disk / "state"
    world.options |= {"sample_s": 0.1}
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    gate = bench.path("gate")
    beside = await bench.launch(bench.run.wait(gate, code=3))
    await bench.event(Started, beside)
    filler = await bench.launch_of("head -c 100000000 /dev/zero; echo $? > ../code; exit 5")
    filler = replace(filler, tasks=(replace(filler.tasks[0], gpus=(1,)),))
    await bench.engine.launch(filler)
    assert await bench.event(Exited, filler) == Exited(filler.job, 1, 5, None, False, "")
    node = filler.tasks[0].node
    await bench.until(lambda: any(isinstance(event, NodeHealth) and event.problem for event in bench.seen))
    sick = next(event for event in bench.seen if isinstance(event, NodeHealth) and event.problem)
    assert sick.problem == "the disk of the state directory is full (0 MiB left)"
    bench.run.open(gate)
    assert await bench.event(Exited, beside) == Exited(beside.job, 1, 3, None, False, "")
    fill_up(small_disk / "rest")
    with pytest.raises(EngineError, match="can't be written down"):
        await bench.launch(bench.run.succeed)
    bench.engine.log_path(filler.job, 1, 0).unlink()
    (small_disk / "rest").unlink()
    await bench.until(lambda: [e for e in bench.seen if isinstance(e, NodeHealth) and e.node == node][-1].problem == "")
    await bench.finish(filler)
    await bench.finish(beside)
    await bench.close()


async def test_room_for_the_end_is_set_aside(world: LocalWorld) -> None:
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    reserve = world.state_dir / "attempts" / f"{launch.job}.1" / "0.reserve"
    assert reserve.stat().st_size == runner.RESERVE_BYTES
    bench.run.open(gate)
    await bench.event(Exited, launch)
    assert not reserve.exists()
    await bench.close()


async def test_a_working_directory_that_vanishes_before_the_command(world: LocalWorld) -> None:
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    there = bench.path("workdir")
    there.mkdir()
    launch = await bench.launch_of(bench.run.succeed)
    task = replace(launch.tasks[0], workdir=str(there), setup=f"rmdir '{there}'")
    await bench.engine.launch(replace(launch, tasks=(task,)))
    ended = await bench.event(Exited, launch)
    assert ended.exit_code == 126 and there.name in ended.reason
    await bench.finish(launch)
    await bench.close()


async def test_a_working_directory_that_vanishes_under_a_job(world: LocalWorld) -> None:
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    there, gate = bench.path("workdir"), bench.path("gate")
    there.mkdir()
    launch = await bench.launch_of(bench.run.wait(gate, code=7))
    launch = replace(launch, tasks=(replace(launch.tasks[0], workdir=str(there)),))
    await bench.engine.launch(launch)
    await bench.event(Started, launch)
    there.rmdir()
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 7, None, False, "")
    await bench.finish(launch)
    await bench.close()


async def test_a_job_larger_than_the_machine_is_refused_and_leaves_nothing(world: LocalWorld) -> None:
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    launch = await bench.launch_of(bench.run.succeed)
    tasks = tuple(TaskLaunch(rank, "worker", "n0", (rank,), "true") for rank in range(3))
    with pytest.raises(EngineInvariant, match="node n0 has no slot 2"):
        await bench.engine.launch(replace(launch, tasks=tasks))
    assert await bench.engine.snapshot() == ()
    await bench.close()


@pytest.mark.slow
async def test_a_hundred_megabytes_without_a_line_break(world: LocalWorld) -> None:
    bench = EngineBench(world.make, world.scratch)
    await bench.open()
    launch = await bench.launch("head -c 100000000 /dev/zero | tr '\\0' '\\377'; printf 'the last line'")
    assert (await bench.event(Exited, launch)).exit_code == 0
    log = bench.engine.log_path(launch.job, 1, 0)
    assert log.stat().st_size == 100_000_013
    with log.open("rb") as file:
        file.seek(-20, os.SEEK_END)
        assert file.read() == b"\xff" * 7 + b"the last line"
    log.unlink()
    await bench.finish(launch)
    await bench.close()
