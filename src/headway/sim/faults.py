"""Faults of the world and of the way to it: a seeded plan of lost nodes, failed starts, and late, repeated, reordered and lost
reports."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch, EventBuffer
from headway.core.reconcile import Found
from headway.sim.kernels import BREAKS, FREES
from headway.sim.world import World

REPORTS = frozenset(
    {EventKind.STARTED, EventKind.START_FAILED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.OBSERVED, EventKind.USAGE}
)
WEIGHT = {kind: FREES for kind in (EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED)}
WEIGHT |= {kind: BREAKS for kind in (EventKind.NODE_DOWN, EventKind.NODE_UP, EventKind.CANCEL_REQUESTED)}
US = 1_000_000


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong. Times in seconds, chances as fractions; everything follows from the seed."""

    seed: int = 0
    node_losses: int = 0
    """Nodes that are lost, at random times within `span_s`, each for up to `outage_s_max`."""
    span_s: float = 3600.0
    outage_s_max: float = 600.0
    fail_frac: float = 0.0
    """Starts that fail."""
    start_s_max: float = 0.0
    """Longest time from a start request to the report that the gang is up."""
    late_frac: float = 0.0
    late_s_max: float = 30.0
    repeat_frac: float = 0.0
    lost_frac: float = 0.0
    cancel_frac: float = 0.0
    reconcile_s: float = 60.0
    """How often the scheduler asks what really runs."""

    def node_faults(self, nodes: int) -> list[tuple[int, int, bool]]:
        """(time µs, node, up again?) of every loss and return; a node is not lost again before it is back."""
        random = np.random.Generator(np.random.PCG64([self.seed, 1]))
        faults: list[tuple[int, int, bool]] = []
        back = [0] * nodes
        for t in sorted(random.integers(1, max(int(self.span_s), 2), self.node_losses).tolist()):
            node = int(random.integers(0, nodes))
            if t * US > back[node]:
                back[node] = (t + int(random.integers(1, max(int(self.outage_s_max), 2)))) * US
                faults += [(t * US, node, False), (back[node], node, True)]
        return faults

    def cancels(self, submitted_us: list[int]) -> list[tuple[int, int]]:
        """(time µs, job) of every cancellation."""
        random = np.random.Generator(np.random.PCG64([self.seed, 2]))
        chosen = random.random(len(submitted_us)) < self.cancel_frac
        delays = random.integers(0, max(int(self.span_s), 1), len(submitted_us))
        return [(submitted_us[j] + int(delays[j]) * US, j) for j in range(len(submitted_us)) if chosen[j]]


class FaultyLink:
    """A world seen through an unreliable network: the same interface as `World`, with reports that come late, twice, in another
    order, or not at all.

    Submissions, cancellations and node reports come through. A lost report is found by the next reconciliation.
    """

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self.faults = world, faults
        self._random = np.random.Generator(np.random.PCG64([faults.seed, 3]))
        self._on_the_way: list[tuple[int, int, EventBatch]] = []
        self._count = 0
        self.late = self.repeated = self.lost = 0

    def next_us(self) -> int:
        first = self._on_the_way[0][0] if self._on_the_way else c.NEVER
        return min(first, self.world.next_us())

    def advance(self, until_us: int, stop_on: int) -> EventBatch:
        out = EventBuffer()
        while (t := self.next_us()) <= until_us and t < c.NEVER:
            self._send(self.world.advance(t, FREES), t, out)
            if self._deliver(t, out) >= stop_on:
                break
        return out.take()

    def execute(self, batch: EventBatch, now_us: int) -> EventBatch:
        out = EventBuffer()
        self._send(self.world.execute(batch, now_us), now_us, out)
        self._deliver(now_us, out)
        return out.take()

    def _send(self, reports: EventBatch, now_us: int, out: EventBuffer) -> None:
        faults, draw = self.faults, self._random.random
        for i in range(len(reports)):
            one = reports.cut(i, i + 1)
            kind = EventKind(int(one.records[0, c.E_KIND]))
            if kind not in REPORTS:
                self._post(one, now_us)
                continue
            if draw() < faults.lost_frac:
                self.lost += 1
                continue
            delay = 0
            if draw() < faults.late_frac:
                delay = int(draw() * faults.late_s_max * US)
                self.late += 1
            self._post(one, now_us + delay)
            if draw() < faults.repeat_frac:
                self.repeated += 1
                self._post(one, now_us + delay + int(draw() * faults.late_s_max * US))

    def _post(self, one: EventBatch, t: int) -> None:
        self._count += 1
        heapq.heappush(self._on_the_way, (t, self._count, EventBatch(one.records.copy(), one.pool)))

    def _deliver(self, t: int, out: EventBuffer) -> int:
        weight = 0
        while self._on_the_way and self._on_the_way[0][0] <= t:
            _, _, one = heapq.heappop(self._on_the_way)
            one.records[0, c.E_T] = t
            weight = max(weight, WEIGHT.get(EventKind(int(one.records[0, c.E_KIND])), 0))
            out.extend(one)
        return weight

    def found(self) -> dict[int, Found]:
        """What really runs, and how the last attempt of every other job ended."""
        world = self.world
        running = world.running()
        result = {job: Found(job, attempt, True, world.came_up(job)) for job, attempt in running.items()}
        for job in range(int(len(world.workload))):
            if job not in running:
                attempt, completed = world.ended(job)
                if attempt:
                    result[job] = Found(job, attempt, False, ended=EventKind.COMPLETED if completed else EventKind.STOPPED)
        return result

    def live(self) -> int:
        return self.world.live()

    def arrived_all(self) -> bool:
        return self.world.arrived_all()
