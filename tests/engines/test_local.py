"""The local engine against real processes that misbehave, and against controllers and supervisors that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.engines import local, proc, runner
from headway.engines.attempts import Attempt, StateDir, free_ports
from headway.engines.base import Ended, EngineInvariant, Exited, Launch, Running, StaleEpoch, Started, StartFailed
from headway.testing.engine_checks import EngineBench

from .conftest import LocalWorld

pytestmark = pytest.mark.live


@pytest.fixture
async def bench(world: LocalWorld) -> AsyncIterator[EngineBench]:
    made = world.bench()
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def lives(pid: int) -> bool:
    found = proc.process(pid)
    return found is not None and found.alive


def output(bench: EngineBench, launch: Launch, rank: int = 0) -> bytes:
    return bench.engine.log_path(launch.job, launch.attempt, rank).read_bytes()


# A process that leaves the session and the parent behind, ignores SIGTERM, and says who it is.
DETACHED = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1] + ".new", "w") as file: file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def detached(bench: EngineBench) -> tuple[str, Path]:
    script = bench.path("detached.py")
    script.write_text(DETACHED)
    mark = bench.path("pid")
    return f"'{sys.executable}' -S -E '{script}' '{mark}'", mark


# What a job starts, and what it writes


async def test_a_detached_process_is_killed_with_the_job(bench: EngineBench) -> None:
    command, mark = detached(bench)
    launch = await bench.launch(f"{command}; while :; do sleep 0.05; done")
    await bench.until(mark.exists)
    pid = int(mark.read_text())
    assert lives(pid)
    await bench.stop(launch, 0.2)
    await bench.event(Exited, launch)
    assert not lives(pid)


async def test_a_detached_process_does_not_outlive_a_job_that_is_done(bench: EngineBench) -> None:
    command, mark = detached(bench)
    launch = await bench.launch(f"{command}; until [ -e '{mark}' ]; do sleep 0.02; done; exit 0")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    assert not lives(int(mark.read_text()))


async def test_what_saves_below_a_shell_that_is_gone_has_its_grace(bench: EngineBench) -> None:
    """The shell ends at once on SIGTERM, while the training process below it still writes its checkpoint."""
    mark, saved = bench.path("mark"), bench.path("saved")
    launch = await bench.launch(f"({bench.run.obey(mark, saved)}); echo never")
    await bench.until(mark.exists)
    await bench.stop(launch, bench.timeout_s)
    ended = await bench.event(Exited, launch)
    assert (ended.exit_code, ended.signal, ended.after_stop) == (143, 15, True)
    assert saved.exists()


async def test_a_suspended_job_can_be_stopped(bench: EngineBench) -> None:
    mark, saved = bench.path("mark"), bench.path("saved")
    launch = await bench.launch(bench.run.obey(mark, saved))
    await bench.until(mark.exists)
    os.killpg(LocalIdentity(bench, launch).task_pid, signal.SIGSTOP)
    await bench.stop(launch, bench.timeout_s)
    assert (await bench.event(Exited, launch)).after_stop
    assert saved.exists()


async def test_output_is_kept_byte_for_byte(bench: EngineBench) -> None:
    launch = await bench.launch(r"printf 'first\n\377\376\rsecond'; printf 'to stderr, no newline' >&2")
    await bench.event(Exited, launch)
    await bench.finish(launch)
    assert output(bench, launch) == b"first\n\xff\xfe\rsecondto stderr, no newline"


async def test_output_can_be_read_while_the_job_runs(bench: EngineBench) -> None:
    gate = bench.path("gate")
    launch = await bench.launch(f"printf half; {bench.run.wait(gate)}")
    await bench.event(Started, launch)
    await bench.until(lambda: output(bench, launch) == b"half")
    bench.run.open(gate)
    await bench.event(Exited, launch)


async def test_a_long_line_without_an_end_is_kept(bench: EngineBench) -> None:
    launch = await bench.launch("head -c 30000000 /dev/zero | tr '\\0' x")
    await bench.event(Exited, launch)
    assert bench.engine.log_path(launch.job, 1, 0).stat().st_size == 30_000_000


async def test_input_is_empty(bench: EngineBench) -> None:
    launch = await bench.launch("cat; echo end")
    await bench.event(Exited, launch)
    assert output(bench, launch) == b"end\n"


async def test_signals_have_their_default_meaning(bench: EngineBench) -> None:
    launch = await bench.launch("grep -E 'SigBlk|SigIgn' /proc/self/status")
    await bench.event(Exited, launch)
    # The C library keeps 32 and 33 for itself.
    assert {int(line.split()[1], 16) & 0x7FFFFFFF for line in output(bench, launch).decode().splitlines()} == {0}


async def test_no_file_of_ours_is_open_in_the_job(bench: EngineBench) -> None:
    launch = await bench.launch("ls /proc/self/fd")
    await bench.event(Exited, launch)
    # The fourth is the directory that `ls` itself reads.
    assert output(bench, launch).split() == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("command", ["", "  \n "])
async def test_an_empty_command_does_not_start(bench: EngineBench, command: str) -> None:
    launch = await bench.launch(command)
    assert await bench.event(StartFailed, launch) == StartFailed(launch.job, 1, "rank 0: the command is empty")


async def test_a_command_that_is_not_there_is_the_shells_127(bench: EngineBench) -> None:
    launch = await bench.launch("no-such-command-anywhere")
    assert (await bench.event(Exited, launch)).exit_code == 127
    assert b"no-such-command-anywhere" in output(bench, launch)


async def test_an_environment_that_is_too_large_does_not_start(bench: EngineBench) -> None:
    launch = await bench.launch_of(bench.run.succeed)
    launch = replace(launch, tasks=(replace(launch.tasks[0], env={"HUGE": "x" * 200_000}),))
    await bench.engine.launch(launch)
    assert "Argument list too long" in (await bench.event(StartFailed, launch)).reason


async def test_a_supervisor_that_cannot_be_started_fails_the_gang(bench: EngineBench, world: LocalWorld) -> None:
    """The place of the second task's log is taken by a file."""
    never = bench.run.wait(bench.path("never"))
    launch = await bench.launch_of(never, never, never)
    logs = world.state_dir / "logs" / str(launch.job)
    logs.parent.mkdir(exist_ok=True)
    logs.write_text("in the way")
    await bench.engine.launch(launch)
    assert "rank 0: cannot start: " in (await bench.event(StartFailed, launch)).reason
    assert not any(isinstance(event, Started) for event in bench.told(launch))
    await bench.finish(launch)


# Gangs


async def test_a_task_that_is_killed_ends_its_gang_soon(bench: EngineBench) -> None:
    mark, gate = bench.path("mark"), bench.path("never")
    launch = await bench.launch(*[bench.run.wait(gate, mark=mark)] * 4)
    await bench.event(Started, launch)
    pids = [LocalIdentity(bench, launch, rank).task_pid for rank in range(4)]
    os.kill(pids[2], signal.SIGKILL)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "")
    assert not any(lives(pid) for pid in pids)


async def test_a_broken_gang_is_not_held_up_by_one_that_ignores_sigterm(bench: EngineBench) -> None:
    mark = bench.path("mark")
    launch = await bench.launch(bench.run.ignore(mark), bench.run.wait(mark, code=3))
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 3, None, False, "")


async def test_servers_end_when_the_workers_are_done(bench: EngineBench) -> None:
    mark = bench.path("mark")
    launch = await bench.launch_of(bench.run.wait(mark), 'echo "$HEADWAY_ROLE $ROLE_RANK"; ' + bench.run.ignore(mark))
    launch = replace(launch, tasks=(launch.tasks[0], replace(launch.tasks[1], role="server")))
    await bench.engine.launch(launch)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    assert output(bench, launch, 1) == b"server 0\n"


async def test_setup_runs_once_per_node_and_before_any_task(bench: EngineBench) -> None:
    mark = bench.path("mark")
    launch = await bench.launch_of(*[f"echo run >> '{mark}'"] * 4)
    setup = f"sleep 0.1; echo setup-$HEADWAY_NODE >> '{mark}'"
    launch = replace(launch, tasks=tuple(replace(task, setup=setup, node="n0", gpus=()) for task in launch.tasks))
    await bench.engine.launch(launch)
    assert (await bench.event(Exited, launch)).exit_code == 0
    assert mark.read_text().split() == ["setup-n0", "run", "run", "run", "run"]


async def test_a_setup_that_fails_fails_the_job(bench: EngineBench) -> None:
    mark = bench.path("mark")
    launch = await bench.launch_of(*[f"echo run >> '{mark}'"] * 2)
    launch = replace(launch, tasks=tuple(replace(task, setup="exit 9") for task in launch.tasks))
    await bench.engine.launch(launch)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 9, None, False, "setup-failed")
    assert not mark.exists()


async def test_a_stop_during_setup_starts_no_task(bench: EngineBench) -> None:
    mark, ran = bench.path("mark"), bench.path("ran")
    launch = await bench.launch_of(*[f": > '{ran}'"] * 2)
    tasks = (replace(launch.tasks[0], setup=bench.run.ignore(mark)), replace(launch.tasks[1], setup="exit 0", node="n0", gpus=()))
    launch = replace(launch, tasks=tasks)
    await bench.engine.launch(launch)
    await bench.until(mark.exists)
    await bench.stop(launch, 0.0, "cancelled")
    ended = await bench.event(Exited, launch)
    assert (ended.after_stop, ended.reason) == (True, "cancelled")
    assert not ran.exists()


async def test_tasks_get_torchruns_environment_and_their_own(bench: EngineBench, world: LocalWorld) -> None:
    mark = bench.path("mark")
    command = f"env; echo here >> '{mark}'; until [ $(wc -l < '{mark}') -eq 3 ]; do sleep 0.02; done"
    launch = await bench.launch_of(*[command] * 3)
    tasks = tuple(replace(task, env={"SEED": "1", "RANK": "77", "ODD": "a\udcff\nb"}) for task in launch.tasks)
    launch = replace(launch, tasks=(*tasks[:2], replace(tasks[2], role="server")), checkpoint_dir=str(bench.path("ckpt")))
    await bench.engine.launch(launch)
    await bench.event(Exited, launch)
    found = [dict(line.split(b"=", 1) for line in output(bench, launch, rank).split(b"\n") if b"=" in line) for rank in range(3)]
    assert [one[b"RANK"] for one in found] == [b"0", b"1", b"2"]
    assert {one[b"WORLD_SIZE"] for one in found} == {b"2"}
    assert {one[b"SEED"] for one in found} == {b"1"}
    assert {one[b"ODD"] for one in found} == {b"a\xff"}
    assert {one[b"HEADWAY_HOME"] for one in found} == {os.fsencode(world.state_dir)}
    ports = {one[b"MASTER_PORT"] for one in found} | {one[b"HEADWAY_SERVERS"].rpartition(b":")[2] for one in found}
    assert len(ports) == 2
    assert Path(launch.checkpoint_dir).is_dir()


async def test_secrets_in_the_environment_are_not_written_down(bench: EngineBench, world: LocalWorld) -> None:
    gate = bench.path("gate")
    launch = await bench.launch_of(bench.run.wait(gate))
    launch = replace(launch, tasks=(replace(launch.tasks[0], env={"TOKEN": "hunter2"}),))
    await bench.engine.launch(launch)
    await bench.event(Started, launch)
    bench.run.open(gate)
    await bench.event(Exited, launch)
    files = [path for path in world.state_dir.rglob("*") if path.is_file()]
    assert files
    assert not any(b"hunter2" in path.read_bytes() for path in files)


# Supervisors


class LocalIdentity:
    """Who supervises a task, and who it is."""

    def __init__(self, bench: EngineBench, launch: Launch, rank: int = 0) -> None:
        state_dir = bench.scratch.parent / "state"
        found = json.loads((state_dir / "attempts" / f"{launch.job}.{launch.attempt}" / f"{rank}.json").read_text())
        self.pid: int = found["pid"]
        self.task_pid: int = found["task_pid"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1])
async def test_no_ordinary_signal_ends_a_supervisor(bench: EngineBench, number: signal.Signals) -> None:
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    for _ in range(3):
        os.kill(LocalIdentity(bench, launch).pid, number)
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")


@pytest.mark.parametrize("use_pidfd", [True, False], ids=["pidfd", "polling"])
async def test_a_supervisor_that_is_killed_ends_its_gang(world: LocalWorld, use_pidfd: bool) -> None:
    world.options["use_pidfd"] = use_pidfd
    bench = world.bench()
    await bench.open()
    command, mark = detached(bench)
    launch = await bench.launch(f"{command}; while :; do sleep 0.05; done", bench.run.wait(bench.path("never")))
    await bench.event(Started, launch)
    await bench.until(mark.exists)
    one = LocalIdentity(bench, launch)
    os.kill(one.pid, signal.SIGKILL)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "runner-lost")
    assert not lives(one.task_pid)
    assert not lives(int(mark.read_text())), "a detached process outlived its supervisor and its job"
    await bench.close()


async def test_a_supervisor_that_is_killed_while_no_controller_is_there(bench: EngineBench) -> None:
    command, mark = detached(bench)
    launch = await bench.launch(f"{command}; while :; do sleep 0.05; done")
    await bench.until(mark.exists)
    one = LocalIdentity(bench, launch)
    await bench.close()
    os.kill(one.pid, signal.SIGKILL)
    await bench.until(lambda: not lives(one.pid))
    await bench.open()
    ended = await bench.ended(launch)
    assert (ended.started, ended.exit_code, ended.signal, ended.reason) == (True, 137, 9, "runner-lost")
    assert not lives(one.task_pid)
    assert not lives(int(mark.read_text()))


async def test_strangers_are_spared(bench: EngineBench) -> None:
    """The pids of an attempt that is long over have been given to others: nothing is done to those."""
    launch = await bench.launch(bench.run.wait(bench.path("never")))
    await bench.event(Started, launch)
    one = LocalIdentity(bench, launch)
    await bench.close()
    path = bench.scratch.parent / "state" / "attempts" / f"{launch.job}.1" / "0.json"
    identity = json.loads(path.read_text())
    for pid in (one.pid, one.task_pid):
        os.kill(pid, signal.SIGKILL)
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        # The stranger may have been born within the same tick of the clock, as no real one could be.
        ticks = {"start_ticks": identity["start_ticks"] - 1, "task_start_ticks": identity["task_start_ticks"] - 1}
        path.write_text(json.dumps({**identity, **ticks, "pid": stranger.pid, "task_pid": stranger.pid}))
        await bench.open()
        assert (await bench.ended(launch)).reason == "runner-lost"
        await bench.finish(launch)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_supervisor_that_is_late_sees_the_stop_request_and_starts_nothing(tmp_path: Path) -> None:
    attempt_dir, ran = tmp_path / "attempts" / "1.1", tmp_path / "ran"
    attempt_dir.mkdir(parents=True)
    (attempt_dir / "launch.json").write_text("{}")
    proc.write_json(proc.stop_path(attempt_dir), {"kind": "start", "deadline_s": 0.0})
    supervise(attempt_dir, f": > '{ran}'")
    record = proc.read_json(proc.exit_path(attempt_dir, 0))
    assert record is not None
    assert (record["exit_code"], record["stopped_by"]) == (143, "start")
    assert not ran.exists()


def test_a_supervisor_of_an_attempt_that_has_been_given_up_starts_nothing(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    supervise(tmp_path / "attempts" / "1.1", f": > '{ran}'")
    assert not ran.exists()
    assert not (tmp_path / "attempts").exists()


def supervise(attempt_dir: Path, command: str) -> None:
    """Run a supervisor in the foreground."""
    task = {"command": command, "setup": "", "setup_rank": None, "workdir": "/", "checkpoint_dir": "", "env": {}}
    log = attempt_dir.parent.parent / "0.log"
    source = "import sys, pathlib as p; sys.path.insert(0, sys.argv[1]); from headway.engines import runner; " + (
        f"runner.run(p.Path(sys.argv[2]), 0, p.Path(sys.argv[3]), {task!r})"
    )
    where = [str(Path(runner.__file__).parents[2]), str(attempt_dir), str(log)]
    subprocess.run([sys.executable, "-I", "-c", source, *where], timeout=30, check=False)


def test_an_exit_record_is_written_again_until_it_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt_dir = tmp_path / "attempts" / "1.1"
    attempt_dir.mkdir(parents=True)
    (attempt_dir / "launch.json").write_text("{}")
    real, failures = runner.write_json, [OSError(28, "no space left"), OSError(5, "broken")]

    def full(*arguments: object, **options: object) -> None:
        if failures:
            raise failures.pop()
        real(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runner, "write_json", full)
    monkeypatch.setattr(runner, "RETRY_S", 0.001)
    runner.Runner(attempt_dir, 0, tmp_path / "log", {}).finish(proc.exit_record(0, 3))
    record = proc.read_json(proc.exit_path(attempt_dir, 0))
    assert record is not None
    assert record["exit_code"] == 3
    assert not failures


# Controllers


CONTROLLER = """
import asyncio, os, signal, sys
from pathlib import Path
from headway.engines.base import Launch, Started, TaskLaunch
from headway.engines.local import LocalEngine

state_dir, gate, where = sys.argv[1:]

def die(*ignored):
    os.kill(os.getpid(), signal.SIGKILL)

if where == "after the intent":
    LocalEngine._start_tasks = die
elif where == "after the first task":
    send = LocalEngine._send
    def send_and_die(self, attempt, node):
        send(self, attempt, node) if node == "n0" else die()
    LocalEngine._send = send_and_die

async def main():
    engine = LocalEngine(Path(state_dir), {"n0": 2, "n1": 2}, idle_s=2.0)
    await engine.start()
    command = f"echo started; until [ -e '{gate}' ]; do sleep 0.02; done; exit 7"
    tasks = tuple(TaskLaunch(rank, "worker", f"n{rank}", (0,), command) for rank in range(2))
    await engine.launch(Launch(1, 1, "train", 1, tasks))
    async for event in engine.events():
        if isinstance(event, Started):
            die()

asyncio.run(main())
"""


def killed_controller(world: LocalWorld, where: str) -> tuple[Launch, Path]:
    """Run a controller that is killed at a certain point; what it launched, and the gate that this waits for."""
    gate = world.scratch / "gate"
    source = Path(local.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(CONTROLLER), str(world.state_dir), str(gate), where],
        env={**os.environ, "PYTHONPATH": str(source)},
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL
    return Launch(1, 1, "train", 1, ()), gate


async def test_a_job_outlives_a_controller_that_is_killed(world: LocalWorld) -> None:
    launch, gate = killed_controller(world, "when all runs")
    bench = world.bench()
    await bench.open()
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert (record.phase, record.epoch) == ("running", 1)
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(1, 1, 7, None, False, "")
    assert output(bench, launch) == b"started\n"
    await bench.finish(launch)
    await bench.close()


async def test_a_job_that_ends_after_its_controller_is_not_lost(world: LocalWorld) -> None:
    launch, gate = killed_controller(world, "when all runs")
    gate.touch()
    bench = world.bench()
    await bench.open()
    assert await bench.ended(launch) == Ended(1, 1, 1, True, 7, None, False, "")
    await bench.finish(launch)
    await bench.close()


async def test_an_intent_without_tasks_never_started(world: LocalWorld) -> None:
    launch, _ = killed_controller(world, "after the intent")
    bench = world.bench()
    await bench.open()
    ended = await bench.ended(launch)
    assert (ended.started, ended.reason) == (False, "never started")
    assert StartFailed(1, 1, "never started") in [*bench.told(launch), StartFailed(1, 1, ended.reason)]
    await bench.finish(launch)
    await bench.close()


async def test_a_gang_that_was_only_half_started_is_ended(world: LocalWorld) -> None:
    launch, _ = killed_controller(world, "after the first task")
    bench = world.bench()
    await bench.open()
    ended = await bench.ended(launch)
    assert (ended.started, ended.reason) == (False, "never started")
    one = LocalIdentity(bench, launch)
    assert not lives(one.task_pid)
    await bench.finish(launch)
    await bench.close()


async def test_a_stop_of_what_never_started_ends_it_at_once(world: LocalWorld) -> None:
    launch, _ = killed_controller(world, "after the intent")
    world.options["start_timeout_s"] = 3600.0
    bench = world.bench()
    await bench.open()
    record = await bench.record(launch)
    assert isinstance(record, Running)
    assert record.phase == "starting"
    await bench.stop(launch, 0.0, "cancelled")
    assert await bench.event(Exited, launch) == Exited(1, 1, 143, None, True, "cancelled")
    await bench.finish(launch)
    await bench.close()


async def test_nothing_of_an_earlier_boot_runs(bench: EngineBench, world: LocalWorld) -> None:
    launch = await bench.launch(bench.run.wait(bench.path("never")))
    await bench.event(Started, launch)
    one = LocalIdentity(bench, launch)
    await bench.close()
    agent = world.agent()
    assert agent is not None
    proc.kill(agent, signal.SIGKILL)
    attempt_dir = world.state_dir / "attempts" / f"{launch.job}.1"
    for name in ("launch.json", "0.json"):
        record = json.loads((attempt_dir / name).read_text())
        (attempt_dir / name).write_text(json.dumps({**record, "boot_id": "another boot"}))
    for pid in (one.pid, one.task_pid):
        os.kill(pid, signal.SIGKILL)
    await bench.open()
    record = await bench.record(launch)
    assert record == Ended(launch.job, 1, launch.epoch, True, 137, 9, False, "node-rebooted")


async def test_a_torn_intent_is_a_failed_start(bench: EngineBench, world: LocalWorld) -> None:
    """After a loss of power a file may be empty although its name is there."""
    await bench.close()
    torn = world.state_dir / "attempts" / "7.2"
    torn.mkdir()
    (torn / "launch.json").touch()
    await bench.open()
    records = await bench.engine.snapshot()
    assert [(record.job, record.attempt) for record in records] == [(7, 2)]
    assert isinstance(records[0], Ended)
    assert not records[0].started
    await bench.engine.acknowledge(bench.epoch, 7, 2)
    assert await bench.engine.snapshot() == ()


async def test_of_two_controllers_only_the_newer_counts(world: LocalWorld) -> None:
    """The older one was suspended, and wakes up with its own memory of the world."""
    older, newer = world.bench(), world.bench()
    await older.open()
    gate, ran = older.path("gate"), older.path("ran")
    launch = await older.launch(older.run.wait(gate))
    await older.event(Started, launch)
    newer.epoch = older.epoch
    await newer.open()
    for call in (
        older.launch(f": > '{ran}'", job=50),
        older.stop(launch, 0.0),
    ):
        with pytest.raises(StaleEpoch):
            await call
    with pytest.raises(EngineInvariant, match="is held by job"):
        await newer.launch(newer.run.succeed, job=51)
    newer.run.open(gate)
    await newer.event(Exited, launch)
    await newer.finish(launch)
    # The older one sees the world, not its memory of it.
    assert await older.engine.snapshot() == ()
    assert not ran.exists()
    await older.close()
    await newer.close()


async def test_a_controller_that_is_replaced_within_a_launch_starts_nothing(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = world.bench(), world.bench()
    await older.open()
    ran = older.path("ran")
    launch = await older.launch_of(f": > '{ran}'")
    record_intent = StateDir.record_intent

    def replaced_meanwhile(self: StateDir, *wanted: Any) -> Attempt | None:
        made = record_intent(self, *wanted)
        self.path("epochs", str(older.epoch + 1)).touch()
        return made

    monkeypatch.setattr(StateDir, "record_intent", replaced_meanwhile)
    with pytest.raises(StaleEpoch):
        await older.engine.launch(launch)
    monkeypatch.undo()
    newer.epoch = older.epoch
    await newer.open()
    assert await newer.engine.snapshot() == ()
    assert not ran.exists()
    await older.close()
    await newer.close()


async def test_closing_leaves_the_tasks_alone_and_no_file_open(world: LocalWorld) -> None:
    bench = world.bench()
    await bench.open()
    await bench.close()
    before = set(os.listdir("/proc/self/fd"))
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate), bench.run.wait(gate))
    await bench.event(Started, launch)
    pids = [LocalIdentity(bench, launch, rank).task_pid for rank in range(2)]
    await bench.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert all(lives(pid) for pid in pids)
    await bench.open()
    bench.run.open(gate)
    await bench.ended(launch)
    await bench.finish(launch)
    await bench.close()
    assert set(os.listdir("/proc/self/fd")) == before


async def test_an_end_is_told_soon(bench: EngineBench) -> None:
    """From the task's own last act to the event; the bound here is loose, for busy machines: typical is 10 ms."""
    waits_s = []
    for _ in range(5):
        clock = asyncio.get_running_loop().time
        gate = bench.path("gate")
        launch = await bench.launch(f"until [ -e '{gate}' ]; do :; done")
        await bench.event(Started, launch)
        began_s = clock()
        bench.run.open(gate)
        await bench.event(Exited, launch)
        waits_s.append(clock() - began_s)
        await bench.finish(launch)
    assert sorted(waits_s)[2] < 0.5


def test_free_ports_are_different_free_and_not_taken() -> None:
    ports = free_ports(5, ())
    assert len(set(ports)) == 5
    assert not set(free_ports(5, ports)) & set(ports)
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", ports[0]))


async def test_inventory(world: LocalWorld) -> None:
    world.options |= {"cpus_milli": 1500, "memory_bytes": 1 << 30}
    nodes = await (await world.make()).inventory()
    assert [(node.name, node.gpus, node.gpu_kind) for node in nodes] == [("n0", 2, "cpu-slot"), ("n1", 2, "cpu-slot")]
    assert {(node.cpus_milli, node.memory_bytes) for node in nodes} == {(1500, 1 << 30)}
