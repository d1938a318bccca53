"""One decision of MLF-H with many live tasks: the jobs of `mlfs-paper` (about eleven tasks each) on nodes of eight GPUs.

`steady`: the cluster is as MLF-H has filled it, the rest waits, and 1 % of the running jobs have just ended. `cold`: all jobs
wait, and the cluster is empty.
"""

from __future__ import annotations

import time

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, Phase
from headway.core.events import EventBatch, EventBuffer
from headway.core.plan import Capabilities, Plan
from headway.core.policy import Policy
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView
from headway.policies.registry import make_policy
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

US = 1_000_000
SUBMITTED_US, FILLED_US, NOW_US = 0, 60 * US, 900 * US
PERIOD = 100


def cold(jobs: int, nodes: str) -> State:
    """All jobs wait on an empty cluster."""
    load, where = load_workload(f"mlfs-paper:jobs={jobs}", seed=1), parse_cluster(nodes)
    state = State()
    state.apply(where.events(SUBMITTED_US, load.users, load.queues))
    out = EventBuffer()
    for i in range(jobs):
        payload = np.concatenate((load.spec[:, i], load.details[load.detail_at[i] : load.detail_at[i + 1]]))
        out.add(SUBMITTED_US, EventKind.SUBMITTED, i, payload=payload)
    state.apply(out.take())
    return state


def steady(jobs: int, nodes: str, policy: Policy) -> State:
    """What fits runs, and of that every hundredth job has just ended."""
    state = cold(jobs, nodes)
    events = diff(state, policy.decide(ClusterView(state, FILLED_US, 0), None), FILLED_US)
    state.apply(EventBatch(events.records.copy(), events.pool.copy()))
    out = EventBuffer()
    starting = np.flatnonzero(state.J[c.J_PHASE, : int(state.C[c.C_ROWS])] == Phase.STARTING)
    for row in starting.tolist():
        out.add(FILLED_US, EventKind.STARTED, int(state.J[c.J_ID, row]), int(state.J[c.J_ATTEMPT, row]))
    for row in starting[::PERIOD].tolist():
        out.add(NOW_US, EventKind.COMPLETED, int(state.J[c.J_ID, row]), int(state.J[c.J_ATTEMPT, row]))
    state.apply(out.take())
    return state


def decide_ms(kind: str, jobs: int, nodes: str, repeats: int = 9) -> tuple[float, float, int, int]:
    """Median time of `decide`, and of the whole round with check and diff, in ms; live tasks, and jobs that start."""
    policy = make_policy("mlf-h")
    state = cold(jobs, nodes) if kind == "cold" else steady(jobs, nodes, policy)
    deciding, whole = [], []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        plan: Plan = policy.decide(ClusterView(state, NOW_US, 0), None)
        deciding.append((time.perf_counter() - begin) * 1e3)
        fault = check(state, plan, Capabilities())
        events = diff(state, plan, NOW_US)
        whole.append((time.perf_counter() - begin) * 1e3)
        assert fault is None, fault
    live = int(state.C[c.C_TASKS] - state.C[c.C_DEAD_TASKS])
    starts = int(np.count_nonzero(events.records[:, c.E_KIND] == EventKind.START_REQUESTED))
    return float(np.median(deciding[2:])), float(np.median(whole[2:])), live, starts
