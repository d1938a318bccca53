"""One round (decide + check + diff) at several sizes: steady (1 % of the jobs changed), storm (everything preempted), cold
(everything placed)."""

from __future__ import annotations

import time

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.plan import Capabilities
from headway.core.policy import Policy
from headway.core.round import check, diff
from headway.core.state import State
from headway.core.view import ClusterView
from headway.policies.registry import make_policy
from headway.workloads.cluster import parse_cluster
from headway.workloads.schema import plain_spec, set_workers

US = 1_000_000
GPUS_PER_NODE = 8
NOW = 3600 * US


def submissions(first: int, estimates_s: list[int]) -> EventBatch:
    """One-GPU jobs with these estimates, submitted at 0."""
    n = len(estimates_s)
    spec = plain_spec(n)
    set_workers(spec, np.ones(n, np.int64))
    spec[c.J_ESTIMATE] = np.array(estimates_s, np.int64) * US
    records = np.zeros((n, c.RECORD), np.int64)
    records[:, c.E_KIND], records[:, c.E_ID], records[:, c.E_POOL] = (
        EventKind.SUBMITTED,
        np.arange(first, first + n),
        c.SPEC_COLUMNS,
    )
    return EventBatch(records, np.ascontiguousarray(spec.T).reshape(-1))


def started(jobs: list[int]) -> EventBatch:
    """Jobs started at 0, one after the other on the GPUs in order."""
    parts = np.zeros((2 * len(jobs), c.RECORD), np.int64)
    jobs_array = np.array(jobs, np.int64)
    parts[0::2, c.E_KIND], parts[1::2, c.E_KIND] = EventKind.START_REQUESTED, EventKind.STARTED
    parts[0::2, c.E_ID] = parts[1::2, c.E_ID] = jobs_array
    parts[:, c.E_ATTEMPT] = 1
    parts[0::2, c.E_B], parts[0::2, c.E_POOL] = 1, c.PLACE
    gpu = np.arange(len(jobs))
    places = np.stack([gpu // GPUS_PER_NODE, np.int64(1) << (gpu % GPUS_PER_NODE), np.full(len(jobs), c.WHOLE)], axis=1)
    return EventBatch(parts, places.astype(np.int64).reshape(-1))


def completed(jobs: list[int]) -> EventBatch:
    records = np.zeros((len(jobs), c.RECORD), np.int64)
    records[:, c.E_T], records[:, c.E_KIND], records[:, c.E_ID] = NOW, EventKind.COMPLETED, jobs
    records[:, c.E_ATTEMPT] = 1
    return EventBatch(records, np.zeros(0, np.int64))


def build(kind: str, tasks: int, nodes: int) -> tuple[State, Policy]:
    """A state of `tasks` live one-GPU tasks on `nodes` × 8 GPUs, and the policy whose round is timed."""
    state = State()
    state.apply(parse_cluster(f"{nodes}x{GPUS_PER_NODE}").events(0, ("user",), ("default",)))
    gpus = nodes * GPUS_PER_NODE
    if kind == "cold":
        state.apply(submissions(0, [1000] * min(tasks, gpus)))
        return state, make_policy("fifo")
    if kind == "storm":
        running = min(tasks // 2, gpus)
        state.apply(submissions(0, [10**6] * running + [10] * running))
        state.apply(started(list(range(running))))
        full = gpus - running
        if full:
            state.apply(submissions(2 * running, [1] * full))
            state.apply(started_at(range(2 * running, 2 * running + full), running))
        return state, make_policy("srtf")
    running = min(tasks * 9 // 10, gpus)
    changed = max(running // 100, 1)
    state.apply(submissions(0, [10**6] * running + [10**6] * (tasks - running)))
    state.apply(started(list(range(running))))
    state.apply(completed(list(range(0, running, running // changed))[:changed]))
    return state, make_policy("srtf")


def started_at(jobs: range, first_gpu: int) -> EventBatch:
    """As `started`, on the GPUs from `first_gpu` on."""
    batch = started(list(jobs))
    gpu = np.arange(first_gpu, first_gpu + len(jobs))
    batch.pool[0::3], batch.pool[1::3] = gpu // GPUS_PER_NODE, np.int64(1) << (gpu % GPUS_PER_NODE)
    return batch


def round_ms(kind: str, tasks: int, nodes: int, repeats: int = 9) -> tuple[float, int]:
    """Median time of a round in ms, and how many events it decided."""
    state, policy = build(kind, tasks, nodes)
    times, events = [], 0
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        plan = policy.decide(ClusterView(state, NOW, 0), None)
        fault = check(state, plan, Capabilities())
        batch = diff(state, plan, NOW)
        times.append((time.perf_counter() - begin) * 1e3)
        assert fault is None, fault
        events = len(batch)
    return float(np.median(times[2:])), events
