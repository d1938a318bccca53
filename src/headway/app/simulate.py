"""Simulate a workload on a cluster under one policy after another: what `headway simulate` does, without the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from headway.app.output import whole_or_nothing
from headway.core import columns as c
from headway.core import jit, units
from headway.core.arrays import Ints
from headway.core.columns import Phase, Reason
from headway.core.errors import UserError, one_line, shown
from headway.core.events import EventBatch
from headway.core.plan import Capabilities
from headway.core.units import US_PER_S
from headway.metrics.bound import jct_bound
from headway.metrics.fold import M_FINISHING, M_PHASE, M_RUN
from headway.metrics.summary import nearest_rank
from headway.policies.registry import Chosen, choose, entry, names
from headway.sim.run import Outcome, StuckError, simulate
from headway.sim.world import World
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.kinds import for_cluster, without_kind
from headway.workloads.registry import load_reader, load_workload
from headway.workloads.schema import Workload
from headway.workloads.select import parse_window
from headway.workloads.truth import Y_SPEED, Speed

NS_PER_MS = 1_000_000
SEED_MAX = 2**63 - 1
RESTART_S = 30.0
"""What starting again takes a job that says nothing of it."""
LIE = 2.0
"""How many times their progress jobs report that lie, unless it is said."""
NAMES_LENGTH_MAX = 1 << 24
"""Characters of job names that a journal's header takes in, so that it stays a line that can be read."""

Json = dict[str, Any]
Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """What to simulate, as a person wrote it; nothing has been read or checked yet. Durations are text such as `30` (s) or
    `10m`.
    """

    workload: str
    cluster: str
    policies: tuple[str, ...]
    seed: int = 1
    load: str | None = None
    round: str = "60"
    window: str | None = None
    filter: str | None = None
    save_cost: str | None = None
    restart_cost: str | None = None
    checkpoint_every: str | None = None
    estimate_scale: str | None = None
    """The users' estimates are multiplied by this."""
    liars: str | None = None
    """The share of the jobs that report more progress than is so, and how many times as much (`0.1`, `0.1:3`)."""
    skip: bool = True
    journal: Path | None = None
    datasets: Path | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read and checked."""

    workload: Workload
    cluster: Cluster
    policies: tuple[Chosen, ...]
    round_s: float
    notes: tuple[str, ...] = ()
    """What a person should know of it before reading the results."""


def prepare(request: SimulateRequest) -> Prepared:
    """Read and check everything that a request names, cheap things first. Nothing has run and nothing is written when this
    raises `UserError`.
    """
    if not request.policies:
        raise UserError("expected at least one, got none", key="policy")
    if not 0 <= request.seed <= SEED_MAX:
        raise UserError(f"expected a whole number from 0 to {SEED_MAX}, got {shown(request.seed)}", key="seed")
    round_s = _seconds(request.round, "round")
    asked = {"save-cost": request.save_cost, "restart-cost": request.restart_cost, "checkpoint-every": request.checkpoint_every}
    costs = [None if text is None else _seconds(text, key) for key, text in asked.items()]
    window = parse_window(request.window) if request.window is not None else None
    load = None
    if request.load is not None:
        try:
            load = load_reader(request.load.strip())
        except ValueError as error:
            raise UserError(str(error), key="load") from None
    scale = _number(request.estimate_scale, "estimate-scale") if request.estimate_scale is not None else None
    liars = None
    if request.liars is not None:
        share, colon, factor = request.liars.partition(":")
        liars = _number(share, "liars"), _number(factor, "liars") if colon else LIE
    policies = tuple(choose(text.strip()) for text in request.policies)
    if request.journal is not None:
        _check_journal(request.journal, len(policies))
    cluster = parse_cluster(request.cluster, seed=request.seed)
    workload = load_workload(request.workload, datasets=request.datasets, seed=request.seed)
    if window is not None:
        workload = workload.window(*window)
    if request.filter is not None:
        workload = workload.filtered(request.filter)
    if load is not None:
        workload = workload.scaled_to_load(load, cluster.gpus)
    if scale is not None:
        workload = workload.with_estimates_scaled(scale)
    if liars is not None:
        workload = workload.with_liars(*liars, seed=request.seed)
    if not workload.has_costs:
        workload = workload.with_costs(restore_s=RESTART_S)
    cluster = cluster.with_quotas(workload.queues, workload.quotas_ppm)
    workload = workload.with_costs(*costs)
    notes = (dropped_line(workload), unserved_line(workload, cluster))
    return Prepared(for_cluster(workload, cluster), cluster, policies, round_s, tuple(note for note in notes if note))


def run(
    request: SimulateRequest, prepared: Prepared, *, progress: Callable[[str], Progress | None] | None = None
) -> Iterator[Json]:
    """Simulate under each policy in turn and yield its entry. `progress` is asked, for each policy, whom to tell the share
    that is done.
    """
    for chosen, outcome in outcomes(request, prepared, progress=progress):
        yield result(chosen, prepared.workload, prepared.cluster, request.seed, prepared.round_s, outcome)


def outcomes(
    request: SimulateRequest,
    prepared: Prepared,
    *,
    progress: Callable[[str], Progress | None] | None = None,
    sinks: Callable[[Chosen], tuple[Callable[[EventBatch], None], ...]] | None = None,
    warm_up: bool = True,
    world: Callable[[Workload], World] | None = None,
    capabilities: Capabilities | None = None,
    wake_grid_s: float = 0.0,
) -> Iterator[tuple[Chosen, Outcome]]:
    """As `run`, with the whole outcome of each policy; `sinks` is asked, for each, who takes in its journal too. `world` makes
    the world of a run, where it is not the plain one; `capabilities` are those of the engine that it stands for.
    """
    workload, cluster = prepared.workload, prepared.cluster
    for chosen in prepared.policies:
        jobs = workload.with_estimates(workload.work_us) if chosen.oracle else workload
        if warm_up:
            _warm_up(chosen)
        tell = progress(chosen.spec) if progress is not None else None
        with whole_or_nothing(request.journal, "journal") if request.journal else nullcontext() as journal:
            try:
                outcome = simulate(
                    jobs,
                    cluster,
                    chosen.policy,
                    seed=request.seed,
                    interval_s=prepared.round_s,
                    skip=request.skip,
                    journal=journal,
                    progress=tell,
                    sinks=sinks(chosen) if sinks is not None else (),
                    world=world(jobs) if world is not None else None,
                    capabilities=capabilities,
                    wake_grid_s=wake_grid_s,
                    about=about(chosen, workload, cluster, request.seed, prepared.round_s) if journal else None,
                )
            except StuckError as error:
                raise UserError(str(error), key=f"policy {chosen.spec}") from None
        yield chosen, outcome


def about(chosen: Chosen, workload: Workload, cluster: Cluster, seed: int, round_s: float) -> Json:
    """What a journal's header says of its run: enough to know it again, and to ask its policy. The names of the jobs too, where
    they have any."""
    names = {"jobs": list(workload.job_names)} if 0 < sum(map(len, workload.job_names)) <= NAMES_LENGTH_MAX else {}
    return {
        "policy": chosen.spec,
        "params": _params(chosen),
        "workload": workload.name,
        "workload_sha256": workload.sha256,
        "cluster": cluster.name,
        "seed": seed,
        "round_s": round_s,
        **names,
    }


def _warm_up(chosen: Chosen) -> None:
    """Run some jobs first (enough for tables to be compacted): compiling or loading kernels is not in a policy's times."""
    cluster = parse_cluster("2x8")
    with suppress(StuckError):
        simulate(load_workload("poisson:jobs=700,load=0.9,cluster=2x8").with_costs(restore_s=30.0), cluster, chosen.policy)


def result(chosen: Chosen, workload: Workload, cluster: Cluster, seed: int, round_s: float, outcome: Outcome) -> Json:
    """The result of one run, ready for JSON: no NaN, None where a figure has no meaning."""
    decide = np.sort(outcome.decide_ns)
    return {
        "policy": chosen.spec,
        "params": _params(chosen),
        "workload": workload.name,
        "workload_sha256": workload.sha256,
        "cluster": cluster.name,
        "seed": seed,
        "round_s": round_s,
        **outcome.metrics.summary(cluster.gpus).to_json(),
        "avg_jct_bound_s": bound(workload, cluster, outcome),
        "rounds": int(outcome.rounds),
        "rounds_skipped": int(outcome.rounds_skipped),
        "decide_ms_avg": float(decide.mean()) / NS_PER_MS if len(decide) else None,
        "decide_ms_p50": _rank_ms(decide, 50),
        "decide_ms_p99": _rank_ms(decide, 99),
        "wall_s": float(outcome.wall_s),
        "cpu_s": float(outcome.cpu_s),
        "journal_sha256": outcome.journal_sha256,
    }


def bound(workload: Workload, cluster: Cluster, outcome: Outcome) -> float | None:
    """The lower bound on the mean JCT of the jobs that completed (`metrics.bound`), in seconds. None where it would not hold:
    a job ended before its work was done, or it may run faster than `work_us` says.
    """
    M = outcome.metrics.M[: len(workload)]
    done = np.flatnonzero(M[:, M_PHASE] == Phase.COMPLETED)
    if np.any((M[done, M_RUN] < workload.work_us[done]) | (M[done, M_FINISHING] == Reason.EARLY_STOP)):
        return None
    if workload.truth.size and np.any(workload.truth[Y_SPEED, done] > Speed.ITERATIONS):
        return None
    found = jct_bound(workload.submitted_us[done], workload.work_us[done], _least_gpu_milli(workload)[done], cluster.gpus)
    return found.avg_jct_s if found is not None else None


def _least_gpu_milli(workload: Workload) -> Ints:
    """Thousandths of GPUs on which each job can run at its full rate: an elastic job on its fewest workers, one that names
    another kind of GPU perhaps on fewer of them.
    """
    spec, milli = workload.spec, workload.gpu_milli
    least = milli * np.minimum(spec[c.J_DATA_MIN], spec[c.J_DATA]) // np.maximum(spec[c.J_DATA], 1)
    fewer = (spec[c.J_ALT_MASK] != 0) & (spec[c.J_ALT_GPU] < spec[c.J_GPU_TASK])
    chosen: Ints = np.where(fewer, least * spec[c.J_ALT_GPU] // np.maximum(spec[c.J_GPU_TASK], 1), least)
    return chosen


def dropped_line(workload: Workload) -> str:
    """What a person is told about rows that are no jobs; empty if there are none."""
    if not workload.dropped:
        return ""
    total = sum(workload.dropped.values())
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(workload.dropped.items()))
    rows = f"{total:,} row{'s' if total > 1 else ''}"
    return one_line(f"{workload.name}: dropped {rows} that cannot be jobs ({kinds}); the first: {workload.dropped_first}")


def unserved_line(workload: Workload, cluster: Cluster) -> str:
    """What a person is told about jobs that ask for GPU kinds of which the cluster has none; empty if there are none."""
    if not workload.kinds:
        return ""
    unserved = without_kind(workload, cluster)
    count = int(unserved.sum())
    if not count:
        return ""
    masks = np.bitwise_or.reduce(workload.spec[c.J_KIND_MASK][unserved] | workload.spec[c.J_ALT_MASK][unserved])
    kinds = ", ".join(kind for bit, kind in enumerate(workload.kinds) if int(masks) >> bit & 1)
    jobs = f"{count:,} job{'s ask' if count > 1 else ' asks'}"
    return one_line(f"{workload.name}: {jobs} for GPU kinds that {cluster.name} has none of ({kinds}), and will be rejected")


def policy_list() -> list[Json]:
    """Every policy's name, one line about it, and its parameters with their defaults, by name."""
    return [
        {
            "name": found.name,
            "description": found.doc,
            "params": {name: {"default": default, "meaning": meaning} for name, default, meaning in found.params},
        }
        for found in map(entry, names())
    ]


def compiles_first() -> bool:
    """Whether the kernels have not been compiled yet on this machine, so that the first run takes long."""
    return not any(jit.cache_dir().rglob("*.nbc"))


def _params(chosen: Chosen) -> Json:
    """All parameters in force: those given, and the defaults of the others."""
    made = getattr(chosen.policy, "params", None)
    return asdict(made) if is_dataclass(made) and not isinstance(made, type) else dict(chosen.params)


def _seconds(text: str, key: str) -> float:
    try:
        return units.parse_duration(text) / US_PER_S
    except ValueError as error:
        raise UserError(str(error), key=key) from None


def _number(text: str, key: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise UserError(f"expected a number, got {shown(text)}", key=key)
    return value


def _rank_ms(ordered: Any, percent: int) -> float | None:
    return nearest_rank(ordered, percent) / NS_PER_MS if len(ordered) else None


def _check_journal(path: Path, policies: int) -> None:
    if policies > 1:
        raise UserError(f"a journal holds one run: expected one --policy, got {policies}", key="journal")
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(
            "cannot be written: no such folder" if not path.is_dir() else "is a folder", file=str(path), key="journal"
        )
