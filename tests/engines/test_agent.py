"""Node agents that are killed, hang, or are of another version; what they measure; and under whose account they start tasks."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import random
import signal
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headway.engines import accounts, link, nodes, proc, wire
from headway.engines.base import (
    Ended,
    EngineError,
    EngineEvent,
    Exited,
    NodeBack,
    NodeLost,
    Started,
    StartFailed,
    Usage,
)
from headway.engines.link import AgentLink
from headway.testing.engine_checks import EngineBench

from .conftest import LocalWorld

pytestmark = pytest.mark.live
AGENT_BYTES_MAX = 30_000_000
KILLS = 25


@pytest.fixture
async def bench(world: LocalWorld) -> AsyncIterator[EngineBench]:
    made = world.bench()
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def killed_agent(world: LocalWorld, node: str = "n0", number: int = signal.SIGKILL) -> proc.Process:
    agent = world.agent(node)
    assert agent is not None
    proc.kill(agent, number)
    return agent


async def another(bench: EngineBench, world: LocalWorld, before: proc.Process, node: str = "n0") -> None:
    """Wait until the node has another agent than before."""
    await bench.until(lambda: (now := world.agent(node)) is not None and now != before and now.pid != before.pid)


# Agents that die


async def test_a_killed_agent_comes_back_and_its_tasks_run_on(bench: EngineBench, world: LocalWorld) -> None:
    gate, mark = bench.path("gate"), bench.path("mark")
    launch = await bench.launch(bench.run.wait(gate, code=4, mark=mark))
    await bench.event(Started, launch)
    await another(bench, world, killed_agent(world))
    later = await bench.launch_of(bench.run.succeed)
    later = replace(later, tasks=(replace(later.tasks[0], node="n0", gpus=(1,)),))
    await bench.engine.launch(later)
    assert await bench.event(Exited, later) == Exited(later.job, 1, 0, None, False, "")
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 4, None, False, "")
    assert bench.run.lines(mark) == 1
    assert not any(isinstance(event, NodeLost) for event in bench.seen)


async def test_a_launch_while_the_agent_is_dead_is_carried_out_by_the_next(bench: EngineBench, world: LocalWorld) -> None:
    killed_agent(world)
    mark = bench.path("mark")
    launch = await bench.launch(f"echo ran >> '{mark}'")
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    assert bench.run.lines(mark) == 1


async def test_an_agent_that_hangs_is_replaced(bench: EngineBench, world: LocalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PING_S", 0.1)
    monkeypatch.setattr(link, "ANSWER_S", 0.2)
    await bench.restart()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    await another(bench, world, killed_agent(world, number=signal.SIGSTOP))
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")


async def test_ends_are_written_down_while_nobody_is_connected(bench: EngineBench, world: LocalWorld) -> None:
    """Supervisor and agent are killed, the next agent finds what is left, ends it and says so on the disk."""
    launch = await bench.launch(bench.run.ignore(bench.path("mark")))
    await bench.event(Started, launch)
    identity = world.identity(launch.job)
    await bench.close()
    os.kill(identity["pid"], signal.SIGKILL)
    record = world.state_dir / "attempts" / f"{launch.job}.1" / "0.exit.json"
    await bench.until(record.exists)
    assert proc.lives(identity["task_pid"], identity["task_start_ticks"]) is None
    await bench.open()
    assert await bench.ended(launch) == Ended(launch.job, 1, launch.epoch, True, 137, 9, False, "runner-lost")
    await bench.finish(launch)


async def test_a_node_whose_agent_cannot_be_had_is_lost_and_comes_back(
    world: LocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.options |= {"silent_s": 0.4, "poll_s": 0.05}
    bench = world.bench()
    await bench.open()
    real = AgentLink._spawn

    def forbidden(self: AgentLink) -> int:
        if self.node == "n0":
            raise OSError("no more processes")
        return real(self)

    launch = await bench.launch(bench.run.ignore(bench.path("mark")))
    elsewhere = await bench.launch_of(bench.run.wait(gate := bench.path("gate")))
    elsewhere = replace(elsewhere, tasks=(replace(elsewhere.tasks[0], node="n1"),))
    await bench.engine.launch(elsewhere)
    await bench.event(Started, launch)
    await bench.event(Started, elsewhere)
    monkeypatch.setattr(AgentLink, "_spawn", forbidden)
    killed_agent(world)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 137, 9, False, "node-lost")
    await bench.until(lambda: NodeLost("n0") in bench.seen)
    assert bench.seen.index(NodeLost("n0")) > bench.seen.index(bench.told(launch)[-1])
    refused = await bench.launch_of(bench.run.succeed)
    with pytest.raises(EngineError, match="n0"):
        await bench.engine.launch(refused)
    monkeypatch.undo()
    await bench.until(lambda: NodeBack("n0") in bench.seen)
    await bench.engine.launch(refused)
    assert (await bench.event(Exited, refused)).exit_code == 0
    bench.run.open(gate)
    assert await bench.event(Exited, elsewhere) == Exited(elsewhere.job, 1, 0, None, False, "")
    await bench.close()


async def test_agents_killed_at_random_lose_and_double_nothing(world: LocalWorld) -> None:
    """Jobs count in a file that they lock; one that is stopped goes on from there with its next attempt."""
    chance = random.Random(5)
    bench = world.bench()
    await bench.open()
    steps, jobs = 40, 6
    job_script = bench.path("job.sh")
    job_script.write_text(
        'exec 9>"$1.lock"; flock -n 9 || { echo twice >> "$1.twice"; exit 9; }\n'
        'n=$(cat "$1" 2>/dev/null || echo 0); echo "$n" >> "$1.starts"\n'
        f'while [ "$n" -lt {steps} ]; do n=$((n+1)); echo "$n" > "$1.new"; mv "$1.new" "$1"; sleep 0.02; done\n'
    )
    files = [bench.path("progress") for _ in range(jobs)]
    slots = [("n0", 0), ("n0", 1), ("n1", 0), ("n1", 1)]

    async def work(number: int, slot: asyncio.Queue[tuple[str, int]]) -> int:
        attempt = 0
        while True:
            attempt += 1
            node, gpu = await slot.get()
            launch = await bench.launch_of(f"sh '{job_script}' '{files[number]}'", job=number + 1, attempt=attempt)
            launch = replace(launch, tasks=(replace(launch.tasks[0], node=node, gpus=(gpu,)),))
            await bench.engine.launch(launch)
            if attempt <= 2 and number % 2:
                await asyncio.sleep(chance.uniform(0.05, 0.4))
                await bench.stop(launch, 1.0)
            ended = await bench.event(Exited, launch)
            await bench.finish(launch)
            slot.put_nowait((node, gpu))
            if not ended.after_stop:
                assert ended.exit_code == 0, ended
                return attempt

    async def harm() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.02, 0.12))
            if (agent := world.agent(chance.choice(("n0", "n1")))) is not None:
                proc.kill(agent, signal.SIGKILL)

    free: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    for one in slots:
        free.put_nowait(one)
    harming = asyncio.create_task(harm())
    async with asyncio.timeout(60):
        attempts = await asyncio.gather(*(work(number, free) for number in range(jobs)))
        await harming
    assert [path.read_text().strip() for path in files] == [str(steps)] * jobs
    assert not list(bench.scratch.glob("*.twice"))
    for path, count in zip(files, attempts, strict=True):
        starts = [int(line) for line in Path(f"{path}.starts").read_text().split()]
        assert starts == sorted(starts), "an attempt began before where the one before it was"
        assert len(starts) <= count
    assert await bench.engine.snapshot() == ()
    await bench.close()


async def test_an_idle_agent_ends_by_itself(world: LocalWorld) -> None:
    world.options["idle_s"] = 0.2
    bench = world.bench()
    await bench.open()
    await bench.close()
    await bench.until(lambda: world.agent() is None)


async def test_an_agent_stays_as_long_as_a_task_runs(world: LocalWorld) -> None:
    world.options |= {"idle_s": 0.1, "sample_s": 0.05}
    bench = world.bench()
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    await bench.close()
    await bench.until(lambda: world.agent("n1") is None)
    assert world.agent("n0") is not None
    bench.run.open(gate)
    await bench.until(lambda: world.agent("n0") is None)
    await bench.open()
    await bench.ended(launch)
    await bench.finish(launch)
    await bench.close()


# Who speaks


def call(world: LocalWorld, *messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Say something to the agent of n0, and read until it hangs up or has answered all."""
    folder = os.open(world.state_dir / "nodes" / "n0", os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(f"/proc/self/fd/{folder}/socket")
            file = line.makefile("rwb")
            answers = []
            for message in messages:
                file.write(wire.encoded(message))
                file.flush()
                answers.append(json.loads(file.readline()))
            return answers
    finally:
        os.close(folder)


async def test_another_version_is_told_so_in_words(bench: EngineBench, world: LocalWorld) -> None:
    answer = (await asyncio.to_thread(call, world, {"op": "hello", "protocol": 99, "version": "9.0"}))[0]
    assert "this agent speaks protocol 1, the controller protocol 99, Headway 9.0" in answer["error"]
    for nonsense in ({"op": "spawn"}, {"op": "hello"}):
        assert (await asyncio.to_thread(call, world, nonsense))[0]["event"] == "error"
    launch = await bench.launch(bench.run.succeed)
    assert (await bench.event(Exited, launch)).exit_code == 0


async def test_it_answers_pings_and_refuses_what_it_does_not_know(bench: EngineBench, world: LocalWorld) -> None:
    hello = {"op": "hello", "protocol": wire.PROTOCOL, "version": ""}
    answers = await asyncio.to_thread(call, world, hello, {"op": "ping", "id": 7}, {"op": "dance"})
    assert (answers[0]["node"], answers[1]) == ("n0", {"event": "pong", "id": 7})
    assert "knows no 'dance'" in answers[2]["error"]
    assert answers[0]["cpus_milli"] >= 1000 and answers[0]["memory_bytes"] > 1 << 28


async def test_the_socket_is_for_its_owner_alone(bench: EngineBench, world: LocalWorld) -> None:
    found = (world.state_dir / "nodes" / "n0" / "socket").stat()
    assert found.st_mode & 0o777 == 0o600
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert wire.may_speak(ours)


async def test_an_agent_of_a_newer_version_stops_the_engine_with_words(world: LocalWorld) -> None:
    bench = world.bench()
    await bench.open()
    await bench.close()
    card = world.state_dir / "nodes" / "n0" / wire.CARD
    card.write_text(json.dumps({**json.loads(card.read_text()), "protocol": 2, "version": "7.0"}))
    engine = await world.make()
    with pytest.raises(EngineError, match=r"n0: this controller speaks protocol 1, the agent protocol 2, Headway 7\.0"):
        await engine.start()


async def test_an_agent_of_an_older_version_is_replaced(world: LocalWorld) -> None:
    bench = world.bench()
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate))
    await bench.event(Started, launch)
    await bench.close()
    before = world.agent()
    assert before is not None
    card = world.state_dir / "nodes" / "n0" / wire.CARD
    card.write_text(json.dumps({**json.loads(card.read_text()), "protocol": 0}))
    await bench.open()
    await another(bench, world, before)
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    await bench.close()


async def test_a_repeated_spawn_starts_nothing_twice(bench: EngineBench, world: LocalWorld, monkeypatch: Any) -> None:
    """The same request reaches two agents, one after the other, and the second knows nothing of the first."""
    sent: list[tuple[str, dict[str, Any]]] = []
    send = nodes.LocalNodes.send

    def recorded(self: nodes.LocalNodes, node: str, message: dict[str, Any]) -> bool:
        sent.append((node, message))
        return send(self, node, message)

    monkeypatch.setattr(nodes.LocalNodes, "send", recorded)
    mark, gate = bench.path("mark"), bench.path("gate")
    launch = await bench.launch(bench.run.wait(gate, mark=mark))
    for _ in range(5):
        send(bench.engine._nodes, *sent[0])  # type: ignore[attr-defined]
        if (agent := world.agent()) is not None:
            proc.kill(agent, signal.SIGKILL)
        await asyncio.sleep(0.02)
    await bench.event(Started, launch)
    bench.run.open(gate)
    assert await bench.event(Exited, launch) == Exited(launch.job, 1, 0, None, False, "")
    assert bench.run.lines(mark) == 1


# What it measures, and what it needs


async def test_usage_of_a_busy_task_is_told(world: LocalWorld) -> None:
    world.options |= {"sample_s": 0.2}
    bench = world.bench()
    await bench.open()
    gate = bench.path("gate")
    launch = await bench.launch(f"until [ -e '{gate}' ]; do :; done", bench.run.wait(gate))

    def found(rank: int) -> list[Usage]:
        return [event for event in bench.seen if isinstance(event, Usage) and (event.job, event.rank) == (launch.job, rank)]

    await bench.until(lambda: any(usage.cpus_milli > 100 for usage in found(0)))
    await bench.until(lambda: bool(found(1)))
    busy = max(usage.cpus_milli for usage in found(0))
    assert busy <= 1000 * (os.cpu_count() or 1)
    assert all(usage.gpu_milli == min(usage.cpus_milli, 1000) for usage in found(0))
    assert all(usage.network_bytes_per_s is None for usage in found(0))
    bench.run.open(gate)
    await bench.event(Exited, launch)
    await bench.finish(launch)
    await bench.close()


def test_usage_is_told_when_it_changes_and_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[EngineEvent] = []
    found = nodes.LocalNodes(
        {"n0": 1}, {}, silent_s=1.0, agent={}, look=lambda job, attempt: None, up=lambda node: None, tell=told.append
    )
    now_s = 0.0
    monkeypatch.setattr(nodes.time, "monotonic", lambda: now_s)
    for step in range(400):
        now_s = 1.0 * step
        figures = {"job": 1, "attempt": 1, "rank": 0, "gpu_milli": 0, "memory_bytes": 0}
        found._heard("n0", {"event": "usage", "tasks": [{**figures, "cpus_milli": 1000 if step % 2 else 500}]})
    # First at 0 s; then after pauses of 5, 10, 20, 40, 80, 80, 80 s, at the next sample that differs from the last one told.
    assert len(told) == 8
    found.forget(1, 1)
    found._heard("n0", {"event": "usage", "tasks": [{**figures, "cpus_milli": 1000}]})
    assert len(told) == 9
    now_s += 1000.0
    found._heard("n0", {"event": "usage", "tasks": [{**figures, "cpus_milli": 1040}]})
    assert len(told) == 9, "a change that small is none"


async def test_an_agent_is_small(bench: EngineBench, world: LocalWorld) -> None:
    launch = await bench.launch(bench.run.succeed)
    await bench.event(Exited, launch)
    agent = world.agent()
    assert agent is not None
    words = Path(f"/proc/{agent.pid}/statm").read_text().split()
    assert int(words[1]) * os.sysconf("SC_PAGE_SIZE") <= AGENT_BYTES_MAX


# Accounts


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start tasks under other accounts")
async def test_as_root_a_users_tasks_run_under_their_account(world: LocalWorld) -> None:
    world.options["base_env"] = {"PATH": os.environ["PATH"], "ROOT_ONLY": "secret"}
    bench = world.bench()
    await bench.open()
    there = Path(os.environ.get("TMPDIR", "/tmp")) / f"headway-account-{os.getpid()}"
    there.mkdir()
    try:
        nobody = pwd.getpwnam("nobody")
        os.chown(there, nobody.pw_uid, nobody.pw_gid)
        command = 'id -u; id -G; echo $USER; echo "[$ROOT_ONLY]"; touch mine; kill -9 $PPID 2>&1; echo end'
        launch = await bench.launch_of(command)
        tasks = (replace(launch.tasks[0], workdir=str(there)),)
        launch = replace(launch, tasks=tasks, user="nobody", checkpoint_dir=str(there / "ckpt"))
        await bench.engine.launch(launch)
        assert (await bench.event(Exited, launch)).exit_code == 0
        said = bench.engine.log_path(launch.job, 1, 0).read_text().splitlines()
        assert said[:4] == [str(nobody.pw_uid), str(nobody.pw_gid), "nobody", "[]"]
        assert said[-1] == "end" and "not permitted" in said[4]
        assert (there / "mine").stat().st_uid == (there / "ckpt").stat().st_uid == nobody.pw_uid
    finally:
        await bench.close()
        for path in sorted(there.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        there.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start tasks under other accounts")
async def test_as_root_a_user_without_an_account_starts_nothing(bench: EngineBench) -> None:
    launch = replace(await bench.launch_of(bench.run.succeed), user="no-such-user")
    await bench.engine.launch(launch)
    failed = await bench.event(StartFailed, launch)
    assert failed.reason == "rank 0: the user 'no-such-user' has no Unix account on this node"


def test_another_account_gets_nothing_of_our_environment_but_how_to_find_programs() -> None:
    account = accounts.Account("ann", 1000, 1000, [1000], "/home/ann", "/bin/zsh")
    ours = {"PATH": "/bin", "LC_ALL": "C", "HOME": "/elsewhere", "AWS_SECRET": "x", "USER": "root", "NVIDIA_X": "1"}
    assert accounts.environment_of(account, ours) == {
        "PATH": "/bin", "LC_ALL": "C", "NVIDIA_X": "1", "HOME": "/home/ann", "USER": "ann", "LOGNAME": "ann", "SHELL": "/bin/zsh",
    }  # fmt: skip


def test_who_is_not_root_has_one_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert accounts.account_of("nobody") is None
