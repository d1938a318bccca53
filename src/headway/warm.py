"""`python -m headway.warm [POLICY …]`: compile kernels into the cache, in processes side by side. Done once for each version of
the source."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind, Reason
from headway.core.jit import cache_dir, kernels_digest
from headway.core.plan import Capabilities
from headway.core.round import check, diff, settled
from headway.core.state import State
from headway.core.view import ClusterView
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.schema import Workload, plain_spec, set_workers

MARK = "complete"


def small_workload() -> Workload:
    """Two jobs of two GPUs (two, so that a table in column order looks different from one in row order)."""
    spec = plain_spec(2)
    set_workers(spec, np.array([2, 2], np.int64))
    return Workload("warm", np.zeros(2, np.int64), spec, np.full(2, 1_000_000, np.int64))


def small_state(cluster: Cluster) -> State:
    """A cluster with nothing on it."""
    state = State()
    state.apply(cluster.events(0, ("user",), ("default",)))
    return state


def warm_core() -> None:
    """apply, compact, check, diff, settle."""
    cluster = parse_cluster("1x4")
    state = small_state(cluster)
    state.compact()
    draft = ClusterView(state, 0, 0).draft()
    draft.why(-1, Reason.NO_ROOM)
    check(state, draft.plan(), Capabilities())
    plan = ClusterView(state, 0, 0).draft().plan()
    plan.overrides = np.zeros((1, c.OVERRIDE), np.int64)
    plan.overrides[0, c.O_OP] = c.Op.WHY
    plan.seen = -1
    check(state, plan, Capabilities())
    plan.overrides = np.zeros((1, c.OVERRIDE), np.int64)
    plan.overrides[0, c.O_OP] = c.Op.WHY
    diff(state, plan, 0)
    state.C[c.C_PLACED_WAITING] = 1
    settled(state, 0)


def warm_world() -> None:
    """The world and the metrics."""
    from headway.metrics.fold import MetricsFold
    from headway.sim.world import World

    cluster = parse_cluster("1x4")
    world = World(small_workload(), cluster)
    reports = world.advance(0, 1)
    MetricsFold().update(reports)
    requests = reports.records.copy()
    requests[:, c.E_KIND] = EventKind.WHY
    world.execute(type(reports)(requests, reports.pool), 0)


def warm_fits() -> None:
    """The fits that answer a plan's requests, and what policies ask of their curves."""
    from headway.perf import forecast
    from headway.perf.estimators import JobHistory, answer
    from headway.perf.observed import rolling_median

    k = np.arange(1.0, 10.0)
    job = JobHistory(k=k, loss=1 / k, accuracy=1 - 1 / k, step_s=k, workers=k)
    for kind in (Estimator.CURVE, Estimator.INVERSE, Estimator.SPEED):
        answer(kind, [job])
    params = answer(Estimator.CURVE, [job]).params
    forecast.value_at(params, 1.0)
    forecast.reach_probability(params, 1.0)
    rolling_median(k, 3)


def waiting_state() -> State:
    """A state in whose counters a job waits and another runs, so that policies call their kernels."""
    state = State()
    state._resize_cluster(1, 4, 1, np.array([4, 1000], np.int64))
    state.C[c.C_WAITING] = state.C[c.C_RUNNING] = 1
    return state


def warm_policies(names: Sequence[str]) -> None:
    """These policies, or all; and what runs under quotas."""
    from headway.policies.registry import REGISTRY, make_policy

    state = waiting_state()
    for name in names or REGISTRY:
        make_policy(name).decide(ClusterView(state, 0, 0), None)
    if not names:
        make_policy("sjf:unfit=skip").decide(ClusterView(state, 0, 0), None)
    state.Q[c.Q_QUOTA] = 0
    for name in names or ("srtf",):
        make_policy(name).decide(ClusterView(state, 0, 0), None)


def main(argv: list[str]) -> int:
    """`[POLICY …]`: compile what these policies need, or everything, in processes side by side (`--part NAME`: one of them)."""
    if argv[:1] == ["--part"]:
        part, names = argv[1], argv[2:]
        if part == "policies":
            warm_policies(names)
        else:
            {"core": warm_core, "world": warm_world, "fits": warm_fits}[part]()
        return 0
    digest = kernels_digest()
    marks = [cache_dir() / f"{MARK}-{digest}", cache_dir() / "-".join([MARK, digest, *sorted(argv)])]
    if any(mark.exists() for mark in marks):
        return 0
    print("compiling once (about a minute) …", file=sys.stderr, flush=True)
    begin = time.perf_counter()
    parts = (["core"], ["world"], ["fits"], ["policies", *argv])
    runs = [subprocess.Popen([sys.executable, "-m", "headway.warm", "--part", *part]) for part in parts]
    codes = [run.wait() for run in runs]
    if not any(codes):
        marks[1].touch()
        print(f"compiled in {time.perf_counter() - begin:.0f} s", file=sys.stderr)
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
