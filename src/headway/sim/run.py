"""Simulation: the world in virtual time, and the same `run_round` as live. It ends when every job has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.codec import JournalWriter, encode
from headway.core.columns import EventKind
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.core.plan import Capabilities, Request
from headway.core.policy import Memo, Policy, asks, remembers
from headway.core.reconcile import reconcile
from headway.core.round import Brains, next_round_us, run_round, settled
from headway.core.state import State
from headway.metrics.fold import MetricsFold
from headway.perf.histories import Histories
from headway.sim.faults import Faults, FaultyLink
from headway.sim.kernels import BREAKS, FREES
from headway.sim.world import World
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

US = 1_000_000
SETTLES_MAX = 1000
"""Answers at one instant that may follow from each other before something must be going round in circles."""


class Source(Protocol):
    """Where reports come from: the world itself, or the world behind a faulty link."""

    def next_us(self) -> int: ...
    def advance(self, until_us: int, stop_on: int) -> EventBatch: ...
    def execute(self, batch: EventBatch, now_us: int) -> EventBatch: ...
    def live(self) -> int: ...
    def arrived_all(self) -> bool: ...


class StuckError(RuntimeError):
    """Jobs are live, nothing will ever happen, and the policy does not start them."""


@dataclass(slots=True)
class Outcome:
    """What a simulation has brought. Times of the clock on the wall and of the processor in seconds, over the simulation
    proper."""

    state: State
    metrics: MetricsFold
    rounds: int = 0
    rounds_skipped: int = 0
    refused: int = 0
    events: int = 0
    decide_ns: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    wall_s: float = 0.0
    cpu_s: float = 0.0
    journal_sha256: str = ""
    journal: EventBatch | None = None


class Simulation:
    """One run, step by step: what `simulate` does in a loop, and what an environment or a what-if drives itself."""

    wake_grid_us = 0
    """With an interval of 0: a policy is woken at multiples of this alone, as by a live controller. 0: when it asked to be."""

    def __init__(
        self, workload: Workload, cluster: Cluster, brains: Brains, *, seed: int, interval_us: int, skip: bool,
        faults: Faults | None,
        sinks: tuple[Callable[[EventBatch], None], ...], capabilities: Capabilities | None = None, strict: bool = True,
        world: World | None = None,
    ) -> None:  # fmt: skip
        """`world`: a world made by the caller (with faults of its own choice, say) instead of the one that follows from
        `workload`, `cluster`, `faults`."""
        node_faults = faults.node_faults(len(cluster.nodes)) if faults else []
        cancels = faults.cancels(workload.submitted_us.tolist()) if faults else []
        fail_ppm, latency = (int(faults.fail_frac * 1e6), int(faults.start_s_max * US)) if faults else (0, 0)
        given = world is not None
        world = world or World(
            workload, cluster, seed=seed, fail_ppm=fail_ppm, latency_us=latency, node_faults=node_faults, cancels=cancels
        )
        memo = brains.policy.start() if remembers(brains.policy) else None
        source = FaultyLink(world, faults) if faults else world
        self._begin(
            State(), source, brains, memo, Histories() if asks(brains.policy) else None, seed=seed, interval_us=interval_us,
            capabilities=capabilities, strict=strict,
        )  # fmt: skip
        self.skip = skip
        self.reconcile_us = int(faults.reconcile_s * US) if faults else 0
        self.reconcile_at = self.reconcile_us or c.NEVER
        self.writer = JournalWriter(sinks)
        self.may_fail = given or faults is not None
        self._record(cluster.events(0, workload.users, workload.queues))

    def _begin(
        self, state: State, source: Source, brains: Brains, memo: Memo, histories: Histories | None, *, seed: int,
        interval_us: int, capabilities: Capabilities | None, strict: bool,
    ) -> None:  # fmt: skip
        """Before the first round on a state and a world."""
        self.state, self.source, self.brains, self.seed, self.interval_us = state, source, brains, seed, interval_us
        self.capabilities, self.strict, self.skip = capabilities, strict, True
        self.reconcile_us, self.reconcile_at = 0, c.NEVER
        policy = brains.policy
        self.fold: Callable[[Memo, EventBatch], Memo] | None = policy.fold if remembers(policy) else None
        self.memo = memo
        self.histories = histories
        """What the policy's requests are answered from; nothing is kept for a policy that makes none."""
        self.since_round: list[EventBatch] = []
        self.last_us, self.wake_us, self.now_us = -1, c.NEVER, 0
        self.fresh = False
        """Whether an event has been applied since the last round."""
        self.may_fail, self.surprised = False, False
        """Whether starts may fail, and one did at the instant of the last round: that is news to the policy."""
        self.rounds = self.skipped = self.refused = 0
        self.decide_ns = np.zeros(4096, np.int64)

    def _record(self, batch: EventBatch) -> None:
        """Journal first, then apply."""
        if len(batch.records) == 0:
            return
        self.fresh = True
        self.writer.append(batch)
        self.state.apply(batch)
        if self.histories:
            self.histories.update(batch)
        if self.fold:
            self.since_round.append(EventBatch(batch.records.copy(), batch.pool.copy(), batch.texts))

    def _carry_out(self, batch: EventBatch, now_us: int) -> None:
        """Journal and apply a round's events, execute the requests, take in the answers, and settle until nothing moves."""
        for _ in range(SETTLES_MAX):
            if len(batch.records) == 0:
                return
            self._record(batch)
            answers = self.source.execute(batch, now_us)
            self._record(answers)
            if self.may_fail and np.any(answers.records[:, c.E_KIND] == EventKind.START_FAILED):
                self.surprised = True
            batch = settled(self.state, now_us)
        raise AssertionError("the engine's answers and the scheduler's requests go round in circles")

    def next_us(self) -> int:
        """When the next round is due (µs), or NEVER when there is nothing left that could happen."""
        event = self.source.next_us()
        C = self.state.C
        if C.item(c.C_ROWS) - C.item(c.C_DEAD) > C.item(c.C_QUEUED):  # what is queued only has nothing to reconcile
            event = min(event, self.reconcile_at)
        if self.fresh and self.last_us >= 0:
            event = min(event, self.last_us + int(self.interval_us > 0))
        if not self.skip and self.live():
            event = min(event, self.last_us + 1) if self.last_us >= 0 and self.interval_us else event
        return next_round_us(self.interval_us, self.last_us, event, self.wake_us)

    def live(self) -> bool:
        """Whether a job is live in the scheduler's eyes."""
        C = self.state.C
        return C.item(c.C_ROWS) > C.item(c.C_DEAD)

    def each_due(self) -> Iterator[int]:
        """Go on until nothing more can happen; stops before each round, at its time (µs), which is for the caller to hold."""
        while (due := self.next_us()) < c.NEVER:
            self.take_events(due)
            if not self.live():
                if self.source.next_us() >= c.NEVER:
                    break
                self.last_us, self.fresh = due, False
            elif self.due(due):
                yield due

    def each_round(self) -> Iterator[None]:
        """Go on until nothing more can happen; stops after each round."""
        for due in self.each_due():
            self.round(due)
            yield

    def take_events(self, until_us: int) -> None:
        """Let the world go on to `until_us`, settling at every instant at which places become free or broken."""
        source = self.source
        while True:
            stop_at = min(until_us, self.reconcile_at)
            reports = source.advance(stop_at, FREES if self.state.C.item(c.C_PLACED_WAITING) else BREAKS)
            self._record(reports)
            now = reports.records.item(-1, c.E_T) if len(reports.records) else stop_at
            if source.next_us() > stop_at == self.reconcile_at:
                now = stop_at
                self._reconcile(now)
            self._carry_out(settled(self.state, now), now)
            if source.next_us() > until_us and self.reconcile_at > until_us:
                return

    def _reconcile(self, now_us: int) -> None:
        assert isinstance(self.source, FaultyLink)
        events, orphans = reconcile(self.state, self.source.found(), now_us)
        self._record(events)
        if orphans:
            stops = EventBuffer()
            for found in orphans:
                row = self.state.row(found.job)
                known = row is not None and self.state.J[c.J_ATTEMPT, row] == found.attempt
                reason = int(self.state.J[c.J_REASON, row]) if known else c.Reason.NODE_LOST
                stops.add(now_us, EventKind.STOP_REQUESTED, found.job, found.attempt, a=reason)
            self._record(self.source.execute(stops.take(), now_us))
        self.reconcile_at = now_us + self.reconcile_us

    def round(self, now_us: int) -> None:
        """One round at `now_us`."""
        if self.fold and self.since_round:
            self.memo = self.fold(self.memo, concatenate(self.since_round))
            self.since_round.clear()
        result = run_round(
            self.state,
            self.brains,
            self.memo,
            now_us,
            seed=round_seed(self.seed, now_us),
            capabilities=self.capabilities,
            strict=self.strict,
        )
        if self.rounds == len(self.decide_ns):
            self.decide_ns = np.concatenate([self.decide_ns, np.zeros_like(self.decide_ns)])
        self.decide_ns[self.rounds] = result.decide_ns
        self.rounds += 1
        if self.interval_us and self.last_us >= 0:
            self.skipped += (now_us - self.last_us) // self.interval_us - 1
        self.last_us, self.wake_us, self.now_us = now_us, result.wake_at_us, now_us
        if self.wake_grid_us:
            self.wake_us = next_round_us(self.wake_grid_us, now_us, c.NEVER, result.wake_at_us)
        if result.violation:
            self.refused += 1
        self._carry_out(result.events, now_us)
        if result.requests:
            self._answer(result.requests, now_us)
        self.fresh, self.surprised = self.surprised, False

    def _answer(self, requests: tuple[Request, ...], now_us: int) -> None:
        """Answer a plan's requests."""
        assert self.histories is not None, f"{self.brains.policy.name} requests estimates: it has to say so (asks = True)"
        self._record(self.histories.answer(self.state, requests, now_us))

    def due(self, now_us: int) -> bool:
        """Whether a round is due now that the world has come to `now_us`: not if what was announced for then has become void."""
        return self.fresh or self.wake_us <= now_us or not self.skip


def round_seed(seed: int, now_us: int) -> int:
    """The seed of one round: a function of the run's seed and the time, so that any round can be replayed alone."""
    z = (seed * 0x9E3779B97F4A7C15 + now_us * 0xBF58476D1CE4E5B9 + 1) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & (2**63 - 1)


def simulate(
    workload: Workload, cluster: Cluster, policy: Policy, *, seed: int = 0, interval_s: float = 60.0, skip: bool = True,
    journal: Path | None = None, faults: Faults | None = None, progress: Callable[[float], None] | None = None,
    brains: Brains | None = None, keep_journal: bool = False, capabilities: Capabilities | None = None, strict: bool = True,
    watch: Callable[[Simulation], None] | None = None, world: World | None = None,
    sinks: tuple[Callable[[EventBatch], None], ...] = (), about: Mapping[str, Any] | None = None, wake_grid_s: float = 0.0,
) -> Outcome:  # fmt: skip
    """Run a workload on a cluster under a policy, to the end of its last job.

    `interval_s` is the round interval (0: a round at every event); with `skip=False` no round is left out. `progress` is told
    the finished fraction;
    `watch` is called after every round (for tests); `sinks` are handed the journal, chunk by chunk; `about` is what the file
    `journal` says of the run in its header (JSON); `wake_grid_s`: see `Simulation`.

    Raises:
        StuckError: jobs wait for ever under this policy.
    """
    metrics = MetricsFold()
    parts: list[EventBatch] = []
    stream = journal.open("wb") if journal else None
    takers: list[Callable[[EventBatch], None]] = [metrics.update, *sinks]
    if stream:
        takers.append(_writer(stream, about))
    if keep_journal:
        takers.append(parts.append)
    if brains is None:
        brains = Brains(policy, policy, policy)
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        run = Simulation(
            workload, cluster, brains, seed=seed, interval_us=round(interval_s * US), skip=skip, faults=faults,
            sinks=tuple(takers),
            capabilities=capabilities, strict=strict, world=world,
        )  # fmt: skip
        run.wake_grid_us = round(wake_grid_s * US)
        total = max(len(workload), 1)
        for _ in run.each_round():
            if watch:
                watch(run)
            if progress and run.rounds % 256 == 0:
                progress(int(run.state.C[c.C_FINISHED]) / total)
        sha = run.writer.close()
        outcome = Outcome(
            run.state, metrics, run.rounds, run.skipped, run.refused, run.writer.events, run.decide_ns[: run.rounds]
        )
        outcome.wall_s, outcome.cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        if stream:
            stream.close()
    if run.live():
        waiting = int(run.state.C[c.C_WAITING])
        raise StuckError(f"{waiting} jobs wait and {policy.name} will never start them (at {run.now_us / US:.0f} s)")
    outcome.journal_sha256 = sha
    outcome.journal = concatenate(parts) if keep_journal else None
    return outcome


def _writer(stream: BinaryIO, about: Mapping[str, Any] | None) -> Callable[[EventBatch], None]:
    """Who writes the journal's segments; `about` stands in the header of the first."""
    first = [about]

    def write(chunk: EventBatch) -> None:
        stream.write(encode(chunk, run=first.pop() if first else None))

    return write
