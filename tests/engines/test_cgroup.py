"""Control groups: what is written into them, what is read from them, and what a real one does where the system allows it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.engines import cgroup, proc
from headway.engines.base import Exited, Started

from .conftest import LocalWorld


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory that looks like a hierarchy at whose node `job.slice` we are, with memory and cpu delegated."""
    group = tmp_path / "cg roup" / "job.slice"
    group.mkdir(parents=True)
    for where in (group, group / "headway-x"):
        where.mkdir(exist_ok=True)
        (where / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (group / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "mounts").write_text(f"tmpfs / tmpfs rw 0 0\ncgroup2 {tmp_path}/cg\\040roup cgroup2 rw,relatime 0 0\n")
    (tmp_path / "own").write_text("4:memory:/elsewhere\n0::/job.slice\n")
    return group


def groups(tmp_path: Path) -> cgroup.Groups:
    return cgroup.find_groups("headway-x", mounts=str(tmp_path / "mounts"), own=str(tmp_path / "own"))


def test_limits_are_those_that_were_asked_for(base: Path, tmp_path: Path) -> None:
    found = groups(tmp_path)
    assert found.root == base / "headway-x"
    assert found.limits() == "cgroups limit memory and cpus"
    task = base / "headway-x" / "1.1.0"
    task.mkdir()
    for name in ("memory.max", "memory.oom.group", "cpu.max"):
        (task / name).touch()
    assert found.make("1.1.0", 2500, 1 << 30) == str(task)
    assert {name: (task / name).read_text() for name in ("memory.max", "memory.oom.group", "cpu.max")} == {
        "memory.max": "1073741824",
        "memory.oom.group": "1",
        "cpu.max": "250000 100000",
    }


def test_no_task_is_held_below_one_core(base: Path, tmp_path: Path) -> None:
    task = base / "headway-x" / "1.1.0"
    task.mkdir()
    (task / "cpu.max").touch()
    groups(tmp_path).make("1.1.0", 100, 0)
    assert (task / "cpu.max").read_text() == "100000 100000"


def test_a_limit_that_cannot_be_set_is_an_error(base: Path, tmp_path: Path) -> None:
    """The file isn't there: the task must not start without the limit that it was to have."""
    with pytest.raises(FileNotFoundError):
        groups(tmp_path).make("1.1.0", 0, 1 << 30)


def test_controller_and_agents_may_have_moved_into_a_group_of_their_own(base: Path, tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/job.slice/headway-processes\n")
    assert groups(tmp_path).root == base / "headway-x"


def test_groups_of_tasks_that_are_over_go(base: Path, tmp_path: Path) -> None:
    found = groups(tmp_path)
    for name in ("1.1.0", "1.1.1"):
        (base / "headway-x" / name).mkdir()
    found.sweep({"1.1.1"})
    assert [path.name for path in (base / "headway-x").iterdir() if path.is_dir()] == ["1.1.1"]


def test_without_a_hierarchy_there_are_no_groups(tmp_path: Path) -> None:
    (tmp_path / "mounts").write_text("tmpfs / tmpfs rw 0 0\n")
    (tmp_path / "own").write_text("0::/\n")
    found = groups(tmp_path)
    assert (found.make("1.1.0", 1000, 1), found.path("1.1.0")) == ("", "")
    assert found.limits() == "no cgroups (cgroup v2 isn't mounted): tasks have no memory or cpu limits"


def test_figures_are_read(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1234567\nuser_usec 1000000\n")
    (tmp_path / "memory.current").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    (tmp_path / "cgroup.procs").write_text("12\n34\n0\n")
    group = str(tmp_path)
    assert (cgroup.cpu_us(group), cgroup.memory_bytes(group), cgroup.out_of_memory(group)) == (1234567, 4096, True)
    assert cgroup.members(group) == [12, 34]
    assert (cgroup.cpu_us(""), cgroup.memory_bytes(""), cgroup.out_of_memory(""), cgroup.members("")) == (None, None, False, [])
    assert (cgroup.cpu_us(str(tmp_path / "gone")), cgroup.memory_bytes(str(tmp_path / "gone"))) == (None, None)


@pytest.fixture
def real() -> Iterator[cgroup.Groups]:
    found = cgroup.find_groups(f"headway-test-{os.getpid()}")
    if found.root is None:
        pytest.skip(f"no cgroups here: {found.why}")
    yield found
    cgroup.remove(str(found.root))


# It leaves session, parent and environment behind, and then its group is all that tells whose it is.
ESCAPED = """
import os, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
if len(sys.argv) == 2: os.execve(sys.executable, [sys.executable, "-S", "-E", __file__, sys.argv[1], "bare"], {})
with open(sys.argv[1] + ".new", "w") as file: file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


@pytest.mark.live
async def test_nothing_escapes_from_a_group_when_supervisor_and_agent_are_killed(world: LocalWorld, real: cgroup.Groups) -> None:
    bench = world.bench()
    await bench.open()
    script, mark = bench.path("escaped.py"), bench.path("pid")
    script.write_text(ESCAPED)
    launch = await bench.launch(f"'{sys.executable}' -S -E '{script}' '{mark}'; " + bench.run.ignore(bench.path("on")))
    await bench.event(Started, launch)
    await bench.until(mark.exists)
    pid = int(mark.read_text())
    identity = world.identity(launch.job)
    assert pid in cgroup.members(identity["cgroup"])
    agent = world.agent(launch.tasks[0].node)
    assert agent is not None
    for victim in (agent, proc.process(identity["pid"])):
        assert victim is not None
        proc.kill(victim, 9)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "runner-lost")
    found = proc.process(pid)
    assert found is None or not found.alive
    await bench.until(lambda: not Path(identity["cgroup"]).exists())
    await bench.finish(launch)
    await bench.close()


@pytest.mark.live
async def test_a_group_goes_with_its_task(world: LocalWorld, real: cgroup.Groups) -> None:
    bench = world.bench()
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    group = world.identity(launch.job)["cgroup"]
    assert world.identity(launch.job)["task_pid"] in cgroup.members(group)
    bench.run.open(gate)
    await bench.event(Exited, launch)
    assert not Path(group).exists()
    await bench.close()
    await asyncio.sleep(0)
