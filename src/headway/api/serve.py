"""Where the parts of a live cluster meet: a home, its journal, the local engine, a policy, the controller and its API."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway import __version__
from headway.api.auth import Access
from headway.api.server import LOOPBACK, ApiServer, may_listen
from headway.app.operate import Given, Reloader
from headway.app.shadow_live import keep_compared
from headway.app.why_live import keep_calibrated
from headway.core.errors import UserError
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
from headway.runtime.machine import share_gpus
from headway.runtime.rights import Identity
from headway.runtime.rounds import Pace
from headway.runtime.settings import ClusterSettings, Settings, choose_policy, parse_host, parse_round_us
from headway.runtime.tokens import TokenStore

KEEP = FALLBACK = "fifo-backfill"
"""Who decides a round whose plan was refused, and after three refusals in a row."""
ROUND, LEASE = "1", "4s"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpRequest:
    """What `headway up` is to start, as a person wrote it.

    `nodes`: NODESxSLOTS; empty: one node with this machine's GPUs, or with `slots`. Slots are GPUs where the machine has them,
    unless `slots` is given: then they stand for GPUs. `journal`: the address of a database; empty: the file in the home.
    `standby`: wait until the lease is free, for which it must stand still for `lease`. What is None stands in the settings
    (`config`; by default `headway.toml` in the home, if there is one), or is the default.
    """

    home: Home
    config: Path | None = None
    nodes: str | None = None
    slots: int | None = None
    policy: str | None = None
    shadows: tuple[str, ...] = ()
    host: str | None = None
    port: int | None = None
    round: str | None = None
    journal: str | None = None
    standby: bool = False
    lease: str | None = None


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


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read and checked."""

    home: Home
    nodes: dict[str, int]
    devices: dict[str, tuple[str, ...]]
    """The UUIDs of each node's GPUs; of none, where slots stand for them."""
    chosen: Chosen
    host: str
    port: int
    interval_us: int
    journal: Where
    standby: bool
    times: Times
    given: Given
    settings: Settings


def prepare(request: UpRequest) -> Prepared:
    """Read and check what a request says. Nothing has started and nothing is written when this raises `UserError`."""
    options = ClusterSettings(
        nodes=request.nodes or None,
        slots=request.slots or None,
        journal=request.journal or None,
        lease=request.lease,
        host=request.host,
        port=request.port,
        round=request.round,
    )
    given = Given(home=request.home, file=request.config, options=options, policy=request.policy, shadows=request.shadows)
    settings = given.load()
    cluster = settings.cluster
    nodes, devices = share_gpus(cluster.nodes or "", cluster.slots or 0, [gpu.uuid for gpu in find_gpus()])
    chosen = choose_policy(settings.policy)
    port = cluster.port or 0
    if not 0 <= port <= 65_535:
        raise UserError(f"expected a port from 0 to 65535, got {port}", key="port")
    host = parse_host(cluster.host or LOOPBACK)
    may_listen(host, Access("", store=TokenStore(request.home.tokens_file)))
    interval_us = parse_round_us(cluster.round or ROUND)
    journal = parse_where(cluster.journal) if cluster.journal else request.home.journal
    times = parse_lease(cluster.lease or LEASE)
    return Prepared(
        request.home, nodes, devices, chosen, host, port, interval_us, journal, request.standby, times, given,
        settings,
    )  # fmt: skip


async def serve(prepared: Prepared, on_ready: Callable[[Ready], None], on_wait: Callable[[str], None] = lambda _: None) -> int:
    """Run a controller until SIGINT or SIGTERM, or until its terminal has gone; returns how many jobs are live then. They go on
    running. On SIGHUP it reads its settings again.

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
    has_terminal = _terminal_lives()
    loop.add_signal_handler(signal.SIGHUP, lambda: _hung_up(has_terminal, stopped.set, lambda: None))
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
            for number in (*_SIGNALS, signal.SIGHUP):
                loop.remove_signal_handler(number)


async def _lead(prepared: Prepared, journal: Journal, on_ready: Callable[[Ready], None]) -> int:
    """Be the controller of a journal whose lease is held; returns how many jobs are live at the end."""
    home, loop = prepared.home, asyncio.get_running_loop()
    own = prepared.settings.engine
    engine = LocalEngine(
        home.engine_dir, prepared.nodes, devices=prepared.devices, home=home.root, silent_s=own.silent_s,
        cpus_milli=own.cpus_milli, memory_bytes=own.memory_bytes,
    )  # fmt: skip
    controller = Controller(
        journal, engine, _brains(prepared.chosen), pace=Pace(interval_us=prepared.interval_us),
        capabilities=engine.capabilities(), settings=prepared.settings, identity=Identity.here(), home=home.root,
    )  # fmt: skip

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


def _brains(chosen: Chosen) -> Brains:
    return Brains(chosen.policy, choose(KEEP).policy, choose(FALLBACK).policy)


def owner_name() -> str:
    """The user who starts the controller, whose the home's own token is; his number where he has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _terminal_lives() -> bool:
    """Whether this process has a terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _hung_up(has_terminal: bool, stop: Callable[[], object], reload: Callable[[], object]) -> None:
    """SIGHUP: the terminal has been closed, or somebody wants the settings read again."""
    if has_terminal and not _terminal_lives():
        stop()
    else:
        reload()


async def _serve(prepared: Prepared, controller: Controller, engine: LocalEngine, on_ready: Callable[[Ready], None]) -> int:
    home = prepared.home
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, controller.stop)
    server, beside = None, list[asyncio.Task[None]]()
    keeper = Keeper(controller.journal, prepared.chosen.policy)
    reloads: set[asyncio.Task[None]] = set()

    async def adopted(chosen: Chosen) -> None:
        """Snapshots hold the memo of the policy that decides."""
        nonlocal keeper
        await asyncio.to_thread(keeper.stop)
        keeper = Keeper(controller.journal, chosen.policy)
        keeper.start()

    reloader = Reloader(controller, prepared.given, prepared.settings, _brains, adopted)

    def reload() -> None:
        task = asyncio.create_task(reloader.on_signal(), name="headway-reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    try:
        access = Access(home.token(), owner_name(), TokenStore(home.tokens_file), controller.reporting.tokens)
        server = ApiServer(controller, access, prepared.port, reloader, host=prepared.host)
        controller.url = server.url  # which the tasks of the very first round are told
        await controller.start()
        keeper = Keeper(controller.journal, prepared.chosen.policy)
        keeper.start()
        has_terminal = _terminal_lives()
        loop.add_signal_handler(signal.SIGHUP, lambda: _hung_up(has_terminal, controller.stop, reload))
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
        beside.append(asyncio.create_task(keep_calibrated(controller), name="headway-calibrates"))
        beside.append(asyncio.create_task(keep_compared(controller), name="headway-compares"))
        if prepared.standby:
            reload()  # the file may have changed while this one waited
        await controller.run()
        return len(controller.state.live_rows())
    finally:
        controller.stop()
        for task in beside:
            task.cancel()
        if server is not None:
            home.retract()
            await server.close()
        keeper.stop()
