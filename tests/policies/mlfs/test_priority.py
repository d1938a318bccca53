"""Eqs. 2–6: the values of a diamond by hand, and a twin that walks the edges of the task graph one by one."""

from __future__ import annotations

import random
from collections import deque

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Cut, EventKind, Phase, Sync
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.policies.mlfs import priority as p
from headway.testing.builders import cluster
from headway.workloads.schema import plain_spec

US = 1_000_000
HOUR = 3600 * US
MINUTE_H = 1 / 60
HAND: dict[int, float] = {
    p.W_ALPHA: 0.3, p.W_GAMMA: 0.8, p.W_DEADLINE: 0.3, p.W_REMAINING: 0.3, p.W_WAIT: 0.35, p.W_UNIT_US: HOUR,
    p.W_TAU_US: 60 * US, p.W_FLOOR: 1e-3, p.W_URGENCY: 1,
}  # fmt: skip


def weights(**changes: float) -> Floats:
    W = np.zeros(p.WEIGHTS)
    for index, value in HAND.items():
        W[index] = value
    for name, value in changes.items():
        W[getattr(p, f"W_{name}")] = value
    return W


def test_a_diamond_by_hand() -> None:
    """L = 5, I = 4, δl = (.4, .2, .1), four equal partitions: ratio .1/.7, base 5·¼·.142857·.25 (specs of MLFS, test 1)."""
    ML, CP = np.full(4, 5 / 4 * (0.1 / 0.7) * 0.25), np.zeros(4)
    p.sum_layers(0, np.array([0, 1, 3, 4]), 3, 0.8, p.LITERAL, 0.0, 0.0, ML, CP)
    assert ML.tolist() == pytest.approx([0.173214, 0.080357, 0.080357, 0.044643], abs=1e-6)


@pytest.mark.parametrize(
    ("mode", "root"),
    [(p.LITERAL, 1 + 0.8 * 2 * 1.8), (p.UNIQUE, 1 + 0.8 * 2 + 0.64), (p.MEAN, 1 + 0.8 * 1.8)],
    ids=["literal", "unique", "mean"],
)
def test_the_modes_on_a_diamond(mode: int, root: float) -> None:
    ML, CP = np.ones(4), np.ones(4)
    p.sum_layers(0, np.array([0, 1, 3, 4]), 3, 0.8, mode, 0.0, 0.0, ML, CP)
    assert ML[0] == CP[0] == pytest.approx(root) and ML[1:].tolist() == pytest.approx([1.8, 1.8, 1.0])


def test_the_literal_sum_grows_with_every_path() -> None:
    """Width 4, depth 8: (0.8 · 4)^7 ≈ 3.4e3 times a leaf's priority at the root, and more for what lies between (A5)."""
    ML, CP = np.ones(32), np.ones(32)
    p.sum_layers(0, np.arange(0, 33, 4), 8, 0.8, p.LITERAL, 0.0, 0.0, ML, CP)
    assert ML[0] == pytest.approx(sum(3.2**i for i in range(8))) and pytest.approx(3.4e3, rel=0.02) == 3.2**7


def computation_priority(due_h: float | None, left_h: float, waited_h: float, late: int = p.HOLD) -> float:
    """Eq. 4 of a one-task job."""
    made = state_of([{"deadline": c.NEVER if due_h is None else round(due_h * HOUR), "estimate": round(left_h * HOUR)}])
    ML, CP = np.zeros(8), np.zeros(8)
    now = round(waited_h * HOUR)
    p.job_terms(0, now, weights(LATE=late), made.J, made.T, ML, CP, np.zeros(8, np.int64))
    return float(CP[0])


def test_the_computation_priority_in_hours() -> None:
    """2 h to the deadline, 1 h left, 5 min waited: 0.15 + 0.30 + 0.03 (specs of MLFS, §2.3)."""
    assert computation_priority(2 + 5 / 60, 1, 5 / 60) == pytest.approx(0.3 / 2 + 0.3 / 1 + 0.35 * 5 / 60)
    assert computation_priority(None, 1, 0) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("slack_h", "hold", "drop", "cap"),
    [(2.0, 0.5, 0.5, 0.5), (0.5, 2, 0, 1), (0, 60, 0, 1), (-0.5, 60, 0, 1), (-1.5, 0, 0, 1)],
)
def test_the_deadline_term_of_a_late_job(slack_h: float, hold: float, drop: float, cap: float) -> None:
    """A job with an hour left. Its weight is 0.3; the clamp is a minute: 60 an hour."""
    rest = 0.3 + 0.35 * 3
    for mode, term in ((p.HOLD, hold), (p.DROP, drop), (p.CAP, cap)):
        assert computation_priority(3 + slack_h, 1, 3, mode) == pytest.approx(rest + 0.3 * term), mode


# -- the twin -----------------------------------------------------------------------------------------------------------
def state_of(jobs: list[dict[str, int]]) -> State:
    """Jobs by spec column, submitted at 0."""
    made = State()
    made.apply(cluster([8, 8]).events(0, ("user",), ("default",)))
    out = EventBuffer()
    for i, changes in enumerate(jobs):
        spec = plain_spec(1)[:, 0]
        for name, value in changes.items():
            spec[c.SPEC_COLUMN_NAMES.index(name)] = value
        out.add(0, EventKind.SUBMITTED, i, payload=spec)
    made.apply(out.take())
    return made


def random_state(r: random.Random) -> State:
    jobs = []
    for _ in range(r.randint(1, 6)):
        cut, replicas, parts = r.choice(list(Cut)), r.choice([1, 1, 2]), r.randint(1, 9)
        server = r.random() < 0.5
        jobs.append(
            {
                "cut": cut, "width": r.randint(1, 4), "data": replicas, "data_min": replicas, "data_max": replicas,
                "pipeline": parts,
                "sync": Sync.PARAMETER_SERVER if server else Sync.NONE, "servers": r.randint(1, 2) if server else 0,
                "urgency": r.randint(1, 10), "deadline": r.choice([c.NEVER, r.randint(1, 10 * HOUR)]),
                "estimate": r.randint(1, 5 * HOUR), "units_total": r.choice([0, r.randint(1, 200), 100_000]),
            }
        )  # fmt: skip
    made = state_of(jobs)
    for row in range(len(jobs)):
        made.J[c.J_UNITS_DONE, row] = r.randint(0, 50)
        made.J[c.J_LOSS_DROPS, row] = r.choice([0, r.randint(1, 10**9)])
        made.J[c.J_LOSS_DROP_LAST, row] = r.randint(0, int(made.J[c.J_LOSS_DROPS, row]))
        made.J[c.J_RUN, row] = r.randint(0, HOUR)
        made.J[c.J_WAITED, row] = r.randint(0, HOUR)
    return made


def twin(made: State, now: int, W: Floats) -> tuple[dict[int, float], dict[int, float]]:
    """PML and PC of every task by walking the edges, in plain Python."""
    J, T, X = made.J.tolist(), made.T.tolist(), made.X.tolist()
    ml, cp = {}, {}
    for row in range(int(made.C[c.C_ROWS])):
        first, tasks, workers = J[c.J_TASK0][row], J[c.J_TASKS][row], J[c.J_WORKERS][row]
        children = {
            k: [X[c.X_CHILD][e] for e in range(T[c.T_EDGE0][first + k], T[c.T_EDGE0][first + k] + T[c.T_EDGES][first + k])]
            for k in range(tasks)
        }
        depth = {k: 0 for k in range(tasks)}
        for k in reversed(range(workers)):
            depth[k] = max((depth[child] + 1 for child in children[k] if child < workers), default=0)
        total, estimate = J[c.J_UNITS_TOTAL][row], J[c.J_ESTIMATE][row]
        done = J[c.J_UNITS_DONE][row]
        current = max(-(-100 * done // total), 1) if total > 1000 else done + 1
        drops = J[c.J_LOSS_DROPS][row]
        ratio = 1.0 if current == 1 or drops <= 0 else max(J[c.J_LOSS_DROP_LAST][row] / drops, 1e-3)
        left = max(estimate - J[c.J_RUN][row], 0)
        levels = max(depth[k] for k in range(workers)) + 1
        base_ml, base_c = {}, {}
        for k in range(tasks):
            due = J[c.J_DEADLINE][row]
            term = 0.0
            if due < c.NEVER:
                if total:
                    due -= max(left - estimate // total, 0) + depth[k] * (estimate // (total * levels))
                slack = due - now
                term = 0.0 if slack < -HOUR else 1 / max(slack / HOUR, MINUTE_H)
            wait = (J[c.J_WAITED][row] + now - J[c.J_QUEUED_AT][row]) / HOUR
            base_c[k] = 0.3 * term + 0.3 / max(left / HOUR, MINUTE_H) + 0.35 * wait
            base_ml[k] = J[c.J_URGENCY][row] / current * ratio * T[c.T_SHARE][first + k] / 1e6 if k < workers else 0.0
        for k in reversed(range(tasks)):
            if W[p.W_DAG] == p.UNIQUE:
                distance, waiting = {k: 0}, deque([k])
                while waiting:
                    at = waiting.popleft()
                    for child in children[at]:
                        if child not in distance:
                            distance[child] = distance[at] + 1
                            waiting.append(child)
                ml[first + k] = sum(0.8**d * base_ml[j] for j, d in distance.items())
                cp[first + k] = sum(0.8**d * base_c[j] for j, d in distance.items())
            else:
                count = len(children[k]) if W[p.W_DAG] == p.MEAN and children[k] else 1
                ml[first + k] = base_ml[k] + 0.8 * sum(ml[first + child] for child in children[k]) / count
                cp[first + k] = base_c[k] + 0.8 * sum(cp[first + child] for child in children[k]) / count
    return ml, cp


@pytest.mark.parametrize("normalize", [0, 1])
@pytest.mark.parametrize("mode", [p.UNIQUE, p.LITERAL, p.MEAN])
def test_every_task_has_the_priority_of_the_twin(mode: int, normalize: int) -> None:
    r = random.Random(mode)
    for _ in range(40):
        made, now, W = random_state(r), r.randint(HOUR, 12 * HOUR), weights(DAG=mode, NORMALIZE=normalize)
        tasks, rows = int(made.C[c.C_TASKS]), int(made.C[c.C_ROWS])
        ML, CP, P, top = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks), np.zeros(rows)
        bounds: Ints = np.zeros(tasks + 1, np.int64)
        p.priorities(now, W, made.J, made.T, made.C, ML, CP, bounds, P, top)
        ml, cp = twin(made, now, W)
        assert {t: ML[t] for t in ml} == pytest.approx(ml, rel=1e-12)
        assert {t: CP[t] for t in cp} == pytest.approx(cp, rel=1e-12)
        workers = [t for t in ml if made.T[c.T_ROLE, t] == c.Role.WORKER]
        if normalize:
            ml, cp = scaled(ml, workers), scaled(cp, workers)
        both = {t: 0.3 * ml[t] + 0.7 * cp[t] for t in ml}
        assert {t: P[t] for t in ml} == pytest.approx(both, rel=1e-9, abs=1e-12)
        for row in range(rows):
            assert top[row] == pytest.approx(max(both[t] for t in workers if made.T[c.T_JOB, t] == row), rel=1e-9, abs=1e-12)


def scaled(values: dict[int, float], over: list[int]) -> dict[int, float]:
    low, high = min(values[t] for t in over), max(values[t] for t in over)
    return {t: (value - low) / (high - low if high > low else 1) for t, value in values.items()}


def test_ended_jobs_and_odd_losses_have_no_part() -> None:
    """A job that has ended is passed over; no loss at all, or a loss that only rises, counts as ratio 1 (A1, A2)."""
    made = state_of([{}, {"urgency": 7}])
    made.J[c.J_PHASE, 0] = Phase.COMPLETED
    made.J[c.J_UNITS_DONE, 1] = 3
    ML, CP, P, top = np.zeros(2), np.zeros(2), np.zeros(2), np.full(2, -5.0)
    p.priorities(0, weights(), made.J, made.T, made.C, ML, CP, np.zeros(3, np.int64), P, top)
    assert top[0] == -5.0 and ML[1] == pytest.approx(7 / 4)
