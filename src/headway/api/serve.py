"""Where the parts of a live cluster meet: a home, its journal, the local engine, a policy, the controller and its API."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from headway import __version__
from headway.api.server import ApiServer
from headway.core import units
from headway.core.columns import GPUS_PER_NODE_MAX
from headway.core.errors import UserError, shown
from headway.core.round import Brains
from headway.engines.base import EngineError
from headway.engines.local import LocalEngine
from headway.engines.nvml import find_gpus
from headway.policies.registry import Chosen, choose
from headway.runtime.controller import Controller
from headway.runtime.home import Home
from headway.runtime.journal import Journal, JournalError
from headway.runtime.journal_db import Where, parse_where
from headway.runtime.keeper import Keeper
from headway.runtime.lease import Beater, Candidate, FencedError, Holder, Times, parse_lease
from headway.runtime.rounds import Pace

NODES_MAX = 1024
KEEP = FALLBACK = "fifo-backfill"
"""Who decides a round whose plan was refused, and after three refusals in a row."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What `headway up` is to start, as a person wrote it.

    `nodes`: NODESxSLOTS; empty: one node with this machine's GPUs, or with `slots`. Slots are GPUs where the machine has them,
    unless `slots` is given: then they stand for GPUs. `journal`: the address of a database; empty: the file in the home.
    `standby`: wait until the lease is free, for which it must stand still for `lease`.
    """

    home: Home
    nodes: str = ""
    slots: int = 0
    policy: str = "fifo"
    port: int = 0
    round: str = "1"
    journal: str = ""
    standby: bool = False
    lease: str = "4s"


@dataclass(frozen=True, slots=True)
class Ready:
    """A controller that listens."""

    url: str
    home: Path
    token_file: Path
    nodes: int
    slots: int
    policy: str
    epoch: int
    live: int
    """Jobs that are live from before."""
    notes: tuple[str, ...] = field(default=())
    engine: tuple[str, ...] = field(default=())
    """What the engine says of itself: whose accounts, which limits, which GPUs."""

    def to_json(self) -> dict[str, Any]:
        """For `--json` and `controller.json`."""
        return {
            "url": self.url,
            "pid": os.getpid(),
            "version": __version__,
            "home": str(self.home),
            "token_file": str(self.token_file),
            "nodes": self.nodes,
            "slots": self.slots,
            "policy": self.policy,
            "epoch": self.epoch,
            "live_jobs": self.live,
            "notes": list(self.notes),
            "engine": list(self.engine),
        }


def parse_nodes(text: str, slots: int = 0) -> dict[str, int]:
    """Names and slots of the nodes of NODESxSLOTS; of one node, without it. `UserError` for anything else."""
    if not 0 <= slots <= GPUS_PER_NODE_MAX:
        raise UserError(f"expected 1 to {GPUS_PER_NODE_MAX} slots, got {slots}", key="slots")
    if not text:
        return {"n0": slots or min(len(os.sched_getaffinity(0)), GPUS_PER_NODE_MAX)}
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", text)
    if match is None:
        raise UserError(f"expected NODESxSLOTS such as 2x4, got {shown(text)}", key="nodes")
    nodes, each = int(match[1]), int(match[2])
    if not 1 <= nodes <= NODES_MAX or not 1 <= each <= GPUS_PER_NODE_MAX:
        raise UserError(f"expected 1 to {NODES_MAX} nodes of 1 to {GPUS_PER_NODE_MAX} slots, got {shown(text)}", key="nodes")
    if slots not in (0, each):
        raise UserError(f"{shown(text)} has {each} slots a node, --slots says {slots}", key="nodes")
    return {f"n{i}": each for i in range(nodes)}


def share_gpus(text: str, slots: int, uuids: Sequence[str]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Slots and GPUs of each node: the machine's GPUs in order, if it has any and no slots are asked for.

    Raises:
        UserError: more are asked for than there are.
    """
    if slots or not uuids:
        return parse_nodes(text, slots), {}
    nodes = parse_nodes(text) if text else {"n0": min(len(uuids), GPUS_PER_NODE_MAX)}
    if sum(nodes.values()) > len(uuids):
        raise UserError(
            f"{shown(text)} wants {sum(nodes.values())} GPUs, this machine has {len(uuids)}; with --slots they need not be real",
            key="nodes",
        )
    rest = iter(uuids)
    return nodes, {node: tuple(islice(rest, count)) for node, count in nodes.items()}


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read and checked."""

    home: Home
    nodes: dict[str, int]
    devices: dict[str, tuple[str, ...]]
    """The UUIDs of each node's GPUs; of none, where slots stand for them."""
    chosen: Chosen
    port: int
    interval_us: int
    journal: Where
    standby: bool
    times: Times


def prepare(request: UpRequest) -> Prepared:
    """Read and check what a request says. Nothing has started and nothing is written when this raises `UserError`."""
    nodes, devices = share_gpus(request.nodes, request.slots, [gpu.uuid for gpu in find_gpus()])
    chosen = choose(request.policy.strip())
    if chosen.oracle:
        raise UserError("knows the true durations of jobs: it is for simulation only", key=f"policy {chosen.spec}")
    if not 0 <= request.port <= 65_535:
        raise UserError(f"expected a port from 0 to 65535, got {request.port}", key="port")
    interval_us = _interval_us(request.round)
    journal = parse_where(request.journal) if request.journal else request.home.journal
    times = parse_lease(request.lease)
    return Prepared(request.home, nodes, devices, chosen, request.port, interval_us, journal, request.standby, times)


async def serve(prepared: Prepared, on_ready: Callable[[Ready], None], on_wait: Callable[[str], None] = lambda _: None) -> int:
    """Run a controller until SIGINT, SIGTERM or SIGHUP; returns how many jobs are live then. They go on running.

    A standby calls `on_wait` with what it waits for, and waits.

    Raises:
        UserError: another controller runs on this home or journal, or it could not start or go on.
    """
    home = prepared.home
    home.prepare()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    with home.hold() as lock:
        journal = Journal(prepared.journal)
        try:
            me = Holder.me(str(home.root), lock)
            candidate = Candidate(journal.database, home, me, prepared.times, standby=prepared.standby, on_wait=on_wait)
            epoch = await candidate.lead(stopped)
            if epoch is None:
                return 0
            journal.epoch = epoch
            return await _lead(prepared, journal, on_ready)
        finally:
            journal.close()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)


async def _lead(prepared: Prepared, journal: Journal, on_ready: Callable[[Ready], None]) -> int:
    """Be the controller of a journal whose lease is held; returns how many jobs are live at the end."""
    home, loop = prepared.home, asyncio.get_running_loop()
    engine = LocalEngine(home.engine_dir, prepared.nodes, devices=prepared.devices, home=home.root)
    brains = Brains(prepared.chosen.policy, choose(KEEP).policy, choose(FALLBACK).policy)
    pace = Pace(interval_us=prepared.interval_us)
    controller = Controller(journal, engine, brains, pace=pace, capabilities=engine.capabilities())

    def lost(why: str) -> None:
        loop.call_soon_threadsafe(controller.lose, why)

    beater = Beater(journal.where, journal.epoch, prepared.times, lost)
    beater.start()
    try:
        return await _serve(prepared, controller, engine, on_ready)
    except (JournalError, FencedError, EngineError) as error:
        raise UserError(f"stopped: {error} (jobs that run go on running)") from None
    finally:
        beater.stop()
        await controller.close()


async def _serve(prepared: Prepared, controller: Controller, engine: LocalEngine, on_ready: Callable[[Ready], None]) -> int:
    home = prepared.home
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, controller.stop)
    server, keeper = None, None
    try:
        await controller.start()
        keeper = Keeper(controller.journal, prepared.chosen.policy)
        keeper.start()
        server = ApiServer(controller, home.token(), prepared.port)
        await server.start()
        ready = Ready(
            server.url,
            home.root,
            home.token_file,
            len(prepared.nodes),
            sum(prepared.nodes.values()),
            prepared.chosen.spec,
            controller.epoch,
            len(controller.state.live_rows()),
            tuple(controller.notes),
            engine.notes,
        )
        home.publish(ready.to_json())
        on_ready(ready)
        await controller.run()
        return len(controller.state.live_rows())
    finally:
        controller.stop()
        if server is not None:
            home.retract()
            await server.close()
        if keeper is not None:
            keeper.stop()


def _interval_us(text: str) -> int:
    try:
        interval_us = units.parse_duration(text)
    except ValueError as error:
        raise UserError(str(error), key="round") from None
    if not 10_000 <= interval_us <= 3_600_000_000:
        raise UserError(f"expected an interval from 10ms to 1h, got {shown(text)}", key="round")
    return interval_us
