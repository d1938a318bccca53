"""How good `headway why`'s forecasts are: simulated runs are stopped at many instants, the scheduler's state (not the truth) is
forked, and what it says of the waiting jobs' starts and of all live jobs' ends is held against what then happens.

    python bench/forecast.py                                  # the table of docs/why.md
    python bench/forecast.py --policy srtf --seeds 0..1 --instants 5
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from headway.app.calibration import Calibration, Range
from headway.app.forecast import forecast
from headway.core import columns as c
from headway.core.columns import EventKind, Phase
from headway.core.events import EventBatch
from headway.core.policy import remembers
from headway.core.round import Brains
from headway.perf.histories import Histories
from headway.policies.registry import make_policy
from headway.sim.fork import Rhythm
from headway.sim.guess import guess, known_of
from headway.sim.run import Simulation
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.registry import load_workload
from headway.workloads.schema import Workload

US = 1_000_000
WORKLOADS = (("poisson:jobs=300,load=1.1,cluster=8x4", "8x4"), ("mlfs-paper:jobs=155", "20x4"), ("mlfs-paper:jobs=310", "20x4"))
SETTLED = 200
"""Forecasts that have come true before the calibration is judged."""
POLICIES = ("fifo-backfill", "srtf", "tiresias", "mlf-h")


@dataclass
class Said:
    """One forecast, and what happened: seconds from the instant."""

    job: int
    at_s: float
    raw: Range
    calibrated: Range
    known: int
    """How many of the forecasts before it had come true by then."""
    real_s: float = np.nan
    alone_s: float = np.nan
    """What happened, and what would have if nobody had arrived after the instant."""


class Noted(Simulation):
    """A simulation that notes at once when jobs come up, and when they end."""

    starts: dict[int, list[int]]
    ends: dict[int, int]

    def _record(self, batch: EventBatch) -> None:
        for t, kind, job, *_ in batch.records[np.isin(batch.records[:, c.E_KIND], NOTED)].tolist():
            if kind == EventKind.STARTED:
                self.starts.setdefault(job, []).append(t)
            else:
                self.ends[job] = t
        super()._record(batch)


NOTED = (EventKind.STARTED, EventKind.COMPLETED)


@dataclass
class Run:
    """One simulated run that can be watched, and that knows what a controller's histories do."""

    load: Workload
    where: Cluster
    policy: str
    seed: int
    interval_us: int = 60 * US
    starts: dict[int, list[int]] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def rounds(self) -> Iterator[Noted]:
        """Go on to the end; gives the simulation after each round."""
        chosen = make_policy(self.policy)
        run = Noted(
            self.load, self.where, Brains(chosen, chosen, chosen), seed=self.seed, interval_us=self.interval_us, skip=True,
            faults=None, sinks=(),
        )  # fmt: skip
        run.histories, run.starts, run.ends = Histories(), self.starts, self.ends
        for _ in run.each_round():
            yield run

    def start_after(self, job: int, now: int) -> float:
        """When a job comes up next, s from now."""
        return next(((t - now) / US for t in self.starts.get(job, ()) if t >= now), np.inf)

    def end_after(self, job: int, now: int) -> float:
        return (self.ends[job] - now) / US


def until(load: Workload, now: int) -> Workload:
    """The jobs that were there by an instant."""
    kept = int(np.searchsorted(load.submitted_us, now, side="right"))
    tables = {name: getattr(load, name) for name in ("spec", "truth", "hints")}
    columns = {name: table[:, :kept] if table.size else table for name, table in tables.items()}
    return replace(
        load, submitted_us=load.submitted_us[:kept], work_us=load.work_us[:kept], detail_at=load.detail_at[: kept + 1],
        details=load.details[: load.detail_at[kept]], job_names=load.job_names[:kept], frozen_sha256="", **columns,
    )  # fmt: skip


def examined(run: Run, instants: int, samples: int, alone: bool) -> tuple[list[Said], list[Said], list[float]]:
    """Forecasts of starts and of ends of one run, and how long each set took (s)."""
    starts, ends, took = list[Said](), list[Said](), list[float]()
    of_starts, of_ends = Calibration(), Calibration()
    gap = max(int(1.3 * run.load.span_us) // instants, 1)
    due = int(run.load.submitted_us[0]) + gap
    for sim in run.rounds():
        now, state = sim.now_us, sim.state
        if now < due or not state.C[c.C_WAITING]:
            continue
        due = now + gap
        for job in list(of_starts.open):  # what is known by now
            made_us = round(of_starts.open[job][-1].at_s * US)
            came_s = run.start_after(job, made_us)
            if np.isfinite(came_s):
                of_starts.happened(job, made_us / US + came_s)
        for job in list(of_ends.open):
            if job in run.ends:
                of_ends.happened(job, run.ends[job] / US)
        policy, memo = sim.brains.policy, sim.memo
        for batch in sim.since_round if remembers(policy) else ():
            memo = policy.fold(memo, batch)  # type: ignore[attr-defined]
        begin = time.perf_counter()
        known = known_of(state, sim.histories)
        made = forecast(
            state, memo, sim.brains, guess(state, known, now), now_us=now, samples=samples, seed=now // US, budget_s=1e9,
            rhythm=Rhythm(sim.interval_us, sim.last_us, sim.wake_us, sim.fresh),
        )  # fmt: skip
        took.append(time.perf_counter() - begin)
        here_s, here_e = list[Said](), list[Said]()
        moves_s, moves_e = of_starts.moves(now / US), of_ends.moves(now / US)
        for at, job in enumerate(made.jobs.tolist()):
            row = state.row(job)
            if state.J[c.J_PHASE, row] == Phase.QUEUED and not state.J[c.J_PLACED, row]:
                said = made.start(at)
                here_s.append(Said(job, now / US, said, of_starts.widened(said, now / US, moves_s), of_starts.count))
                of_starts.expect(job, now / US, said)
            said = made.end(at)
            here_e.append(Said(job, now / US, said, of_ends.widened(said, now / US, moves_e), of_ends.count))
            of_ends.expect(job, now / US, said)
        if alone:
            other = Run(until(run.load, now), run.where, run.policy, run.seed, run.interval_us)
            for _ in other.rounds():
                pass
            for one in here_s:
                one.alone_s = other.start_after(one.job, now)
            for one in here_e:
                one.alone_s = other.end_after(one.job, now)
        starts += here_s
        ends += here_e
    for one in starts:
        one.real_s = run.start_after(one.job, round(one.at_s * US))
    for one in ends:
        one.real_s = run.end_after(one.job, round(one.at_s * US))
    return starts, ends, took


def inside(said: Range, came_s: float) -> bool:
    low = np.inf if said.p10 is None else said.p10
    high = np.inf if said.p90 is None else said.p90
    return bool(low - 1e-6 <= came_s <= high + 1e-6)


def line(what: str, all_of: list[Said]) -> str:
    """Coverage of the 80 % interval and the median's error, against what happened and what would have without arrivals."""
    if not all_of:
        return f"| {what} | 0 |"
    real, alone = np.array([one.real_s for one in all_of]), np.array([one.alone_s for one in all_of])
    middle = np.array([np.inf if one.raw.p50 is None else one.raw.p50 for one in all_of])
    moved = np.array([np.inf if one.calibrated.p50 is None else one.calibrated.p50 for one in all_of])
    cells = [f"{len(all_of):,}", f"{np.median(real):,.0f}"]
    if np.isfinite(alone).any():
        cells += [f"{np.mean([inside(one.raw, one.alone_s) for one in all_of]):.0%}", f"{np.median(np.abs(middle - alone)):,.0f}"]
    cells += [f"{np.mean([inside(one.raw, one.real_s) for one in all_of]):.0%}", f"{np.median(np.abs(middle - real)):,.0f}"]
    late = np.mean([one.real_s > (np.inf if one.raw.p90 is None else one.raw.p90) for one in all_of])
    cells += [f"{late:.0%}", f"{np.mean([inside(one.calibrated, one.real_s) for one in all_of]):.0%}"]
    cells += [f"{np.median(np.abs(moved - real)):,.0f}"]
    widths = [np.median([wide(getattr(one, name)) for one in all_of]) for name in ("raw", "calibrated")]
    cells += [f"{width:,.0f}" for width in widths]
    return f"| {what} | " + " | ".join(cells) + " |"


def wide(said: Range) -> float:
    return np.inf if said.p90 is None or said.p10 is None else said.p90 - said.p10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--workload", action="append", help="SPEC@CLUSTER")
    parser.add_argument("--seeds", default="0..3")
    parser.add_argument("--instants", type=int, default=12)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--no-alone", action="store_true")
    given = parser.parse_args()
    first, _, last = given.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    workloads = [tuple(text.split("@")) for text in given.workload] if given.workload else WORKLOADS
    print("| workload, policy | forecasts | real, s | alone: in 80 % | error, s | real: in 80 % | error, s | later", end=" ")
    print("| calibrated: in 80 % | error, s | width, s | calibrated |\n|" + "---|" * 12)
    for spec, cluster in workloads:
        where = parse_cluster(cluster)
        for policy in given.policy or POLICIES:
            starts, ends, took = list[Said](), list[Said](), list[float]()
            for seed in seeds:
                load = load_workload(spec, seed=seed)
                found = examined(Run(load, where, policy, seed), given.instants, given.samples, not given.no_alone)
                starts, ends, took = starts + found[0], ends + found[1], took + found[2]
            name = f"`{spec.partition(',')[0]}`, `{policy}`"
            for what, all_of in (("start", starts), ("end", ends)):
                print(line(f"{name} {what}", all_of), flush=True)
                if settled := [one for one in all_of if one.known >= SETTLED]:
                    print(line(f"{name} {what}, {SETTLED} known", settled), flush=True)
            longest = max(took, default=0)
            print(
                f"<!-- {len(took)} forecasts of all jobs, median {np.median(took):.2f} s, longest {longest:.2f} s -->", flush=True
            )


if __name__ == "__main__":
    main()
