"""The nodes of this machine as the engine sees them: their agents, what those tell, and which node can't be used."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from headway.engines import accounts
from headway.engines.base import EngineError, EngineEvent, NodeBack, NodeHealth, NodeInfo, NodeLost, Usage
from headway.engines.link import AgentLink, Message

__all__ = ["LocalNodes"]

USAGE_STEP = 0.2
"""Usage is told when a figure has changed by this part of it …"""
USAGE_LEAST = {"gpu_milli": 50, "cpus_milli": 50, "memory_bytes": 16 * 1024 * 1024}
"""… and by at least so much …"""
USAGE_PAUSE_S, USAGE_PAUSE_S_MAX = 5.0, 80.0
"""… and not before this pause, which doubles each time: the journal keeps every figure."""


class _Told(NamedTuple):
    """What was told last of a task's usage, when, and how long nothing is told then."""

    figures: dict[str, int]
    at_s: float
    pause_s: float


class LocalNodes:
    """`slots` and `devices` (the GPUs' UUIDs, by slot; none where slots stand for cores) of each node, by name.

    `look` is called with (job, attempt) when something may have become of one, `up` with a node whose agent can be spoken to,
    `tell` with events. A node whose agent has been silent for `silent_s` has to be given up: `silent()` names it, and
    `lose()` is called when nothing of it can run any more.
    """

    def __init__(
        self, slots: Mapping[str, int], devices: Mapping[str, Sequence[str]], *, silent_s: float, agent: Mapping[str, Any],
        look: Callable[[int, int], None], up: Callable[[str], None], tell: Callable[[EngineEvent], None],
    ) -> None:  # fmt: skip
        self.slots = dict(slots)
        self.devices = {node: tuple(devices.get(node, ())) for node in slots}
        self.lost: set[str] = set()
        self.problems: dict[str, str] = {}
        self._silent_s, self._agent = silent_s, dict(agent)
        self._look, self._up, self._tell = look, up, tell
        self._links: dict[str, AgentLink] = {}
        self._used: dict[tuple[int, int, int], _Told] = {}

    async def start(self, root: Path, engine_id: str, timeout_s: float) -> None:
        """See to an agent for each node. Raises `EngineError` if one can't be worked with: of another version, say."""
        for node in self.slots:
            settings = {**self._agent, "engine": engine_id, "devices": self.devices[node]}
            self._links[node] = AgentLink(root, node, settings, self._heard)
        for link in self._links.values():
            link.start()
        waits = [asyncio.create_task(link.known.wait()) for link in self._links.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=timeout_s)
            for wait in late:
                wait.cancel()
        if faults := [link.fault for link in self._links.values() if link.fault and not link.up]:
            await self.close()
            raise EngineError(faults[0])

    async def close(self) -> None:
        await asyncio.gather(*(link.close() for link in self._links.values()))
        self._links.clear()
        self._used.clear()

    def send(self, node: str, message: Message) -> bool:
        """Say something to a node's agent, if it is there."""
        link = self._links.get(node)
        return link is not None and link.send(message)

    def silent(self) -> list[str]:
        """The nodes that have to be given up."""
        return [node for node, link in self._links.items() if node not in self.lost and link.silent_s() >= self._silent_s]

    def is_silent(self, node: str) -> bool:
        link = self._links.get(node)
        return link is not None and link.silent_s() >= self._silent_s

    def lose(self, node: str) -> None:
        self.lost.add(node)
        self._tell(NodeLost(node))

    def forget(self, job: int, attempt: int) -> None:
        """An attempt is over."""
        for key in [key for key in self._used if key[:2] == (job, attempt)]:
            del self._used[key]

    # What agents say

    def _heard(self, node: str, message: Message) -> None:
        said = message.get("event")
        if said == "look":
            self._look(int(message["job"]), int(message["attempt"]))
        elif said == "usage":
            for figures in message["tasks"]:
                self._use(figures)
        elif said in ("hello", "health"):
            if said == "hello":
                self._up(node)
                if node in self.lost:
                    self.lost.discard(node)
                    self._tell(NodeBack(node))
            problem = str(message.get("problem", ""))
            if problem != self.problems.get(node):
                self.problems[node] = problem
                self._tell(NodeHealth(node, problem))

    def _use(self, figures: Message) -> None:
        key = int(figures["job"]), int(figures["attempt"]), int(figures["rank"])
        now = {name: int(figures[name]) for name in USAGE_LEAST}
        at_s, told = time.monotonic(), self._used.get(key)
        if told is not None:
            if at_s < told.at_s + told.pause_s or not _changed(told.figures, now):
                return
            self._used[key] = _Told(now, at_s, min(2 * told.pause_s, USAGE_PAUSE_S_MAX))
        else:
            self._used[key] = _Told(now, at_s, USAGE_PAUSE_S)
        self._tell(Usage(*key, **now))

    # What there is

    def inventory(self, gpu_kind: str, cpus_milli: int | None, memory_bytes: int | None) -> tuple[NodeInfo, ...]:
        """All nodes. Each has its share of the machine, or what is given; a virtual node at least a core a slot."""
        count = max(1, len(self.slots))
        found = []
        for node, slots in self.slots.items():
            link = self._links.get(node)
            hello = link.hello if link is not None else {}
            gpus = hello.get("gpus") or []
            cpus = int(hello.get("cpus_milli", 1000 * len(os.sched_getaffinity(0)))) // count
            memory = int(hello.get("memory_bytes", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))) // count
            found.append(
                NodeInfo(
                    name=node,
                    gpus=slots,
                    gpu_kind=kind_of(str(gpus[0]["name"])) if gpus else gpu_kind,
                    cpus_milli=max(cpus, 1000 * slots) if cpus_milli is None else cpus_milli,
                    memory_bytes=memory if memory_bytes is None else memory_bytes,
                    reachable=node not in self.lost,
                )
            )
        return tuple(found)

    def notes(self) -> tuple[str, ...]:
        """What whoever runs the cluster should know of it: whose accounts, which limits, which GPUs."""
        if accounts.switches():
            whose = "running as root: each user's jobs run under their own Unix account"
        else:
            whose = "jobs run as this user, all in one trust domain"
        hellos = [link.hello for link in self._links.values() if link.hello]
        limits = sorted({str(hello["limits"]) for hello in hellos})
        gpus = sorted({str(gpu["name"]) for hello in hellos for gpu in hello["gpus"]})
        kinds = ", ".join(gpus) if gpus else "slots stand for GPUs"
        sick = [f"node {node}: {problem}" for node, problem in self.problems.items() if problem]
        return (whose, *limits, kinds, *sick)


def _changed(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether a figure is worth telling again."""
    return any(abs(now[name] - before[name]) >= max(least, USAGE_STEP * before[name]) for name, least in USAGE_LEAST.items())


def kind_of(name: str) -> str:
    """A GPU's product name as job files say it: `NVIDIA H200` is `h200`, `Tesla V100-SXM2-16GB` is `v100`."""
    words = [word for word in name.lower().replace("-", " ").split() if word not in ("nvidia", "tesla", "geforce", "quadro")]
    return words[0] if words else "gpu"
