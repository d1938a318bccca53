"""What another policy would have done with what really happened: `headway replay`, without the command line.

The journal becomes a workload (`app.replay_facts`, `app.replay_truth`), which is simulated on the one normal path
(`app.simulate`). The figures of what happened come from the same fold over the journal as those of a simulation. The policy
that really decided is always replayed too: how far that is from what happened says how far the others can be believed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.app import simulate as simulation
from headway.app.replay_facts import Facts, Job, gather
from headway.app.replay_truth import ASSUMED, Built, build
from headway.app.simulate import Json, Prepared, Progress, SimulateRequest
from headway.app.why import SQLITE, Recorded, read_journal
from headway.core import columns as c
from headway.core import units
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Phase
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch, EventBuffer, concatenate
from headway.core.plan import Capabilities
from headway.core.units import US_PER_S
from headway.metrics.fold import (
    M_ACCURACY,
    M_ATTEMPT,
    M_DEADLINE,
    M_END,
    M_FIRST_START,
    M_PHASE,
    M_PREEMPTIONS,
    M_RUN,
    M_SUBMITTED,
    M_WAITED,
    MetricsFold,
)
from headway.policies.registry import Chosen, choose
from headway.runtime.journal import Journal
from headway.runtime.journal_db import parse_where
from headway.runtime.settings import FILE, read_settings
from headway.sim.recorded import RecordedWorld
from headway.sim.run import Outcome
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.kinds import for_cluster

LIVE = Capabilities(fractional_gpus=False)
"""What the engines of real jobs can do."""
WAKE_GRID_S = 1.0
"""The interval of a live controller's rounds, where its settings say nothing."""
JOURNAL = "journal.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequest:
    """What to replay, as a person wrote it. `home`: a home, a journal's file, or the address of a database."""

    home: str
    policies: tuple[str, ...]
    cluster: str | None = None
    seed: int = 1
    ran: str | None = None
    """The policy that has decided, where the journal does not say."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A request that has been read and checked."""

    facts: Facts
    built: Built
    prepared: Prepared
    own: Chosen | None
    """The policy that decided last."""
    wake_grid_s: float
    is_live: bool
    same_cluster: bool
    notes: tuple[str, ...]


# -- reading --------------------------------------------------------------------------------------------------------
def read_home(text: str) -> tuple[Recorded, bool]:
    """The journal that a person means, and whether it is one of a live cluster. It is only read, also while a controller runs.

    Raises:
        UserError: there is none, it can't be read, or it is damaged.
    """
    if "://" in text:
        return _read_database(text), True
    if "\0" in text:
        raise UserError("expected a path, got one with a NUL", key="home")
    path = Path(text).expanduser()
    if path.is_dir():
        inside = path / JOURNAL
        if not inside.exists() and (address := _address_in(path)):
            return _read_database(address), True
        if not inside.exists():
            raise UserError(f"has no {JOURNAL}: expected a home of `headway up`, or a journal", file=text, key="home")
        path = inside
    recorded = read_journal(path)
    with path.open("rb") as stream:
        return recorded, stream.read(len(SQLITE)) == SQLITE


def _address_in(home: Path) -> str:
    """The database that a home's settings name for its journal; empty if they name none."""
    settings = home / FILE
    return (read_settings(settings).cluster.journal or "") if settings.is_file() else ""


def _read_database(text: str) -> Recorded:
    journal = Journal(parse_where(text), writes=False)
    try:
        with journal.still():
            batch = concatenate(list(journal.read()))
        if journal.damage is not None:
            raise UserError(f"the journal is damaged after {len(batch):,} events: {journal.damage.reason}", file=journal.label)
        return Recorded(batch, {})
    finally:
        journal.close()


def prepare(request: ReplayRequest, read: tuple[Recorded, bool] | None = None) -> Ready:
    """Read and check everything that a request names. Nothing has run when this raises `UserError`."""
    if not request.policies:
        raise UserError("expected at least one, got none", key="policy")
    if not 0 <= request.seed <= simulation.SEED_MAX:
        raise UserError(f"expected a whole number from 0 to {simulation.SEED_MAX}, got {shown(request.seed)}", key="seed")
    asked = [choose(text.strip()) for text in request.policies]
    specs = [one.spec for one in asked]
    if twice := next((spec for spec in specs if specs.count(spec) > 1), None):
        raise UserError(f"{shown(twice)} is asked for twice", key="policy")
    other = parse_cluster(request.cluster, seed=request.seed) if request.cluster is not None else None
    recorded, is_live = read or read_home(request.home)
    facts = gather(recorded, request.home)
    if other is not None:
        facts = _elsewhere(facts)
    built = build(facts, request.home)
    own, notes = _own(request, recorded, facts)
    chosen = asked if own is None or own.spec in specs else [*asked, own]
    cluster = other or facts.cluster
    workload = for_cluster(built.workload, cluster) if other is not None else built.workload
    round_s = 0.0 if is_live else float(recorded.run.get("round_s") or 0.0)
    grid_s = _interval_s(facts) if is_live else 0.0
    notes += _notes(facts, built, other is None)
    prepared = Prepared(workload, cluster, tuple(chosen), round_s, tuple(notes))
    return Ready(facts, built, prepared, own, grid_s, is_live, other is None, tuple(notes))


def _elsewhere(facts: Facts) -> Facts:
    """Without what happened to nodes: on another cluster these are not the same."""
    return replace(facts, node_faults=[], of_nodes=[])


def _own(request: ReplayRequest, recorded: Recorded, facts: Facts) -> tuple[Chosen | None, list[str]]:
    """The policy that decided, and what a person should know of that."""
    named = recorded.run.get("policy")
    ran = [request.ran] if request.ran else [named] if isinstance(named, str) else facts.policies
    if not ran:
        return None, ["the journal does not say which policy decided: how good the replay is can't be checked"]
    try:
        own = choose(ran[-1])
    except UserError as error:
        return None, [f"the policy that decided, {shown(ran[-1])}, can't be replayed: {error.message}"]
    if len(ran) > 1:
        return own, [f"several policies decided one after the other ({', '.join(ran)}); the check is against the last alone"]
    return own, []


def _interval_s(facts: Facts) -> float:
    text = (facts.settings[-1].get("cluster") or {}).get("round") if facts.settings else None
    try:
        return units.parse_duration(text) / US_PER_S if text else WAKE_GRID_S
    except ValueError:
        return WAKE_GRID_S


def _notes(facts: Facts, built: Built, same_cluster: bool) -> list[str]:
    """What was assumed, in sentences."""
    jobs = list(facts.jobs.values())
    counts = Counter(built.assumed.values())
    said = [f"{count} job{'s' if count > 1 else ''} {ASSUMED[why]}" for why, count in sorted(counts.items())]
    failed = sum(job.phase == Phase.FAILED for job in jobs)
    if failed:
        said.append(f"{failed} job{'s' if failed > 1 else ''} failed: in the replay they fail after the same time of running")
    died = sum(1 for job in jobs for one in job.attempts if one.end in (EventKind.FAILED, EventKind.START_FAILED))
    if died > failed:
        said.append(f"{died - failed} attempts failed and were tried again: in the replay nothing fails by itself")
    if any(one.started_us >= 0 for job in jobs for one in job.attempts):
        said.append("the pace of a job is the one that it had where it ran, whatever its place and its number of workers")
    if facts.released:
        said.append(f"when the journal ended, {', '.join(facts.released)}: after that it is not so any more")
    if not same_cluster:
        said.append("on another cluster no node is lost or drained")
    return said


# -- running --------------------------------------------------------------------------------------------------------
def run(request: ReplayRequest, ready: Ready, *, progress: Callable[[str], Progress | None] | None = None) -> Json:
    """Replay under each policy; the answer, ready for JSON."""
    asked = SimulateRequest(
        workload=request.home, cluster=ready.prepared.cluster.name, policies=request.policies, seed=request.seed
    )
    worlds: list[RecordedWorld] = []
    refused = np.array([job.refused for job in ready.facts.jobs.values()])

    def world(workload: Any) -> RecordedWorld:
        made = RecordedWorld(workload, ready.prepared.cluster, ready.built.truth, seed=request.seed)
        if ready.same_cluster:
            made.reject((made.refused | refused).astype(np.int64))
        worlds.append(made)
        return made

    found = simulation.outcomes(
        asked, ready.prepared, progress=progress, warm_up=False, world=world, wake_grid_s=ready.wake_grid_s,
        capabilities=LIVE if ready.is_live else None, sinks=lambda _: (seen.update,),
    )  # fmt: skip
    seen = _LastTold()
    entries, tables = {}, {}
    for chosen, outcome in found:
        metrics = _judged(ready, outcome, worlds[-1], seen)
        entry = simulation.result(chosen, ready.prepared.workload, ready.prepared.cluster, request.seed, 0.0, outcome)
        entries[chosen.spec] = {key: value for key, value in entry.items() if key not in _NOT_OF_REPLAYS} | _summary(
            metrics, ready.prepared.cluster
        )
        tables[chosen.spec] = metrics.M
        seen.clear()
    specs = [choose(text.strip()).spec for text in request.policies]
    return _answer(request, ready, specs, entries, tables)


_NOT_OF_REPLAYS = frozenset(
    {"decide_ms_avg", "decide_ms_p50", "decide_ms_p99", "wall_s", "cpu_s", "rounds", "rounds_skipped", "round_s", "cluster",
     "workload", "workload_sha256"}
)  # fmt: skip


class _LastTold:
    """A fold: what each job told of its accuracy last, and last before its deadline (ppm)."""

    def __init__(self) -> None:
        self.last: dict[int, tuple[int, int]] = {}
        self.due: dict[int, int] = {}
        self.deadline: dict[int, int] = {}

    def clear(self) -> None:
        for found in (self.last, self.due, self.deadline):
            found.clear()

    def update(self, batch: EventBatch) -> None:
        """Take in a batch."""
        R = batch.records
        at = np.cumsum(R[:, c.E_POOL])
        for i in np.flatnonzero(R[:, c.E_KIND] == EventKind.SUBMITTED).tolist():
            self.deadline[int(R[i, c.E_ID])] = int(batch.pool[at[i] - R[i, c.E_POOL] + c.J_DEADLINE])
        told = (R[:, c.E_KIND] == EventKind.OBSERVED) & (R[:, c.E_C] != c.NOTHING)
        for t, job, accuracy in R[told][:, (c.E_T, c.E_ID, c.E_C)].tolist():
            self.last[job] = (t, accuracy)
            if t <= self.deadline.get(job, c.NEVER):
                self.due[job] = accuracy


def _evaluated(jobs: Mapping[int, tuple[int, int]], t_us: int) -> EventBatch:
    """Accuracies at the end and by the deadline (ppm), as the figures take them."""
    out = EventBuffer(8, 8)
    for job, (accuracy, due) in jobs.items():
        out.add(t_us, EventKind.EVALUATED, job, payload=(0, accuracy, due))
    return out.take()


def _judged(ready: Ready, outcome: Outcome, world: RecordedWorld, seen: _LastTold) -> MetricsFold:
    """The figures of a replay with the accuracies that the jobs had, and with the failures of those that fail."""
    metrics, M = outcome.metrics, outcome.metrics.M
    judged = {}
    for job, points in world.truth.points.items():
        if len(points.accuracy_at) == 0:
            continue
        final = points.accuracy_of(world.units_done(job))
        in_time = M[job, M_END] <= M[job, M_DEADLINE]
        judged[job] = (final, final if in_time else seen.due.get(job, 0))
    metrics.update(_evaluated(judged, int(M[:, M_END].max())))
    for index, one in enumerate(ready.facts.jobs.values()):
        if one.phase == Phase.FAILED and metrics.M[index, M_PHASE] == Phase.COMPLETED:
            metrics.M[index, M_PHASE] = Phase.FAILED
    return metrics


def happened(facts: Facts) -> MetricsFold:
    """The figures of what really happened, with the accuracies that the jobs told of last."""
    judged = {}
    for job in facts.jobs.values():
        told = [(t, accuracy) for t, _, _, accuracy in job.reports if accuracy != c.NOTHING]
        if told:
            due = [accuracy for t, accuracy in told if t <= job.spec(c.J_DEADLINE)]
            judged[job.number] = (told[-1][1], due[-1] if due else 0)
    facts.metrics.update(_evaluated(judged, facts.horizon_us))
    return facts.metrics


def _summary(metrics: MetricsFold, cluster: Cluster) -> Json:
    """The figures of a fold; no engine has counted bytes between nodes."""
    return metrics.summary(cluster.gpus).to_json() | {"cross_node_bytes": None}


# -- comparing ------------------------------------------------------------------------------------------------------
def _answer(request: ReplayRequest, ready: Ready, specs: list[str], entries: dict[str, Json], tables: dict[str, Ints]) -> Json:
    facts = ready.facts
    real = happened(facts)
    rows = []
    for index, job in enumerate(facts.jobs.values()):
        name = ready.built.workload.job_names[index] or str(job.number)
        replays = {spec: _job(tables[spec][index]) for spec in specs}
        rows.append(
            {
                "job": name,
                "number": job.number,
                "assumed": ready.built.assumed.get(index, ""),
                "happened": _job(real.M[job.number]),
                "replayed": replays[specs[0]],
                "replays": replays,
            }
        )
    own = ready.own.spec if ready.own else None
    happened_entry = {"policy": own} | _summary(real, facts.cluster)
    return {
        "home": request.home,
        "cluster": ready.prepared.cluster.name if not ready.same_cluster else "as it was",
        "seed": request.seed,
        "policy": entries[specs[0]] | {"paired": paired(tables[specs[0]], real.M, facts)},
        "policies": [entries[spec] | {"paired": paired(tables[spec], real.M, facts)} for spec in specs],
        "happened": happened_entry,
        "fidelity": fidelity(own, tables[own], real.M, facts, ready.built.assumed) if own and ready.same_cluster else None,
        "jobs": rows,
        "notes": list(ready.notes),
    }


def _job(row: Ints) -> Json:
    """What became of a job, ready for JSON."""
    phase = Phase(int(row[M_PHASE]))
    ended, started = phase >= Phase.COMPLETED, int(row[M_FIRST_START])
    return {
        "state": phase.name.lower(),
        "wait_s": int(row[M_WAITED]) / US_PER_S,
        "jct_s": int(row[M_END] - row[M_SUBMITTED]) / US_PER_S if ended else None,
        "first_start_s": (started - int(row[M_SUBMITTED])) / US_PER_S if started >= 0 else None,
        "run_s": int(row[M_RUN]) / US_PER_S,
        "attempts": int(row[M_ATTEMPT]),
        "preemptions": int(row[M_PREEMPTIONS]),
        "in_time": None if row[M_DEADLINE] >= c.NEVER else bool(phase == Phase.COMPLETED and row[M_END] <= row[M_DEADLINE]),
        "accuracy": int(row[M_ACCURACY]) / 1e6 if row[M_ACCURACY] >= 0 else None,
    }


def _both(replayed: Ints, real: Ints, jobs: list[tuple[int, Job]]) -> tuple[Ints, Ints]:
    """JCTs (µs) of the jobs that completed in both, replayed and real."""
    kept = [
        (index, job.number)
        for index, job in jobs
        if replayed[index, M_PHASE] == Phase.COMPLETED and real[job.number, M_PHASE] == Phase.COMPLETED
    ]
    ours = np.array([replayed[i, M_END] - replayed[i, M_SUBMITTED] for i, _ in kept], np.int64)
    theirs = np.array([real[n, M_END] - real[n, M_SUBMITTED] for _, n in kept], np.int64)
    return ours, theirs


def paired(replayed: Ints, real: Ints, facts: Facts) -> Json:
    """The jobs that completed in both: their mean JCTs, and how many were sooner or later by more than a second."""
    ours, theirs = _both(replayed, real, list(enumerate(facts.jobs.values())))
    if not len(ours):
        return {"jobs": 0, "avg_jct_s": None, "happened_avg_jct_s": None, "gain_frac": None, "sooner": 0, "later": 0}
    gap = ours - theirs
    return {
        "jobs": len(ours),
        "avg_jct_s": float(ours.mean()) / US_PER_S,
        "happened_avg_jct_s": float(theirs.mean()) / US_PER_S,
        "gain_frac": float(1 - ours.mean() / theirs.mean()) if theirs.any() else None,
        "sooner": int(np.count_nonzero(gap < -US_PER_S)),
        "later": int(np.count_nonzero(gap > US_PER_S)),
    }


def fidelity(own: str, replayed: Ints, real: Ints, facts: Facts, assumed: Mapping[int, str]) -> Json:
    """How far the replay under the policy that decided is from what happened; jobs that needed an assumption are left out."""
    ours, theirs = _both(replayed, real, [(i, job) for i, job in enumerate(facts.jobs.values()) if i not in assumed])
    known = theirs > 0
    errors = np.abs(ours[known] - theirs[known]) / theirs[known]
    return {
        "policy": own,
        "jobs": len(errors),
        "avg_jct_error_frac": float(ours[known].mean() / theirs[known].mean() - 1) if len(errors) else None,
        "median_abs_error_frac": float(np.median(errors)) if len(errors) else None,
        "p90_abs_error_frac": float(np.quantile(errors, 0.9)) if len(errors) else None,
    }
