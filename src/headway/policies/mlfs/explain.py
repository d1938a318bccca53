"""MLF-H in numbers: every term of Eqs. 2–6 for one job, by the kernels that `decide` ranks with.

What a weight does is found by asking the kernel of Eqs. 2–5 with that weight alone, so that no formula stands here twice.
"""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.codes import SERVER
from headway.core.columns import ROW_MASK
from headway.core.explain import Explanation, TaskScore, Term, ranked
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.policies.explain import common_terms, row_of
from headway.policies.mlfs import priority as p
from headway.policies.mlfs.heuristic import mlf_h_leave, queue_keys

C_WEIGHTS = (p.W_DEADLINE, p.W_REMAINING, p.W_WAIT)


def queue_order(
    view: ClusterView, weights: Floats, limits: Floats, migration: bool, sharing: bool, bandwidth: bool
) -> tuple[Ints, Floats, Floats, Floats]:
    """Rows in the order of the queue (waiting jobs, and jobs with leaving tasks), and by task row PML, PC and P."""
    st = view.state
    s = view.draft().scratch
    rows, tasks, nodes = int(st.C[c.C_ROWS]), int(st.C[c.C_TASKS]), st.N.shape[1]
    ML, CP, P, top = np.zeros(tasks), np.zeros(tasks), np.zeros(tasks), np.zeros(rows)
    nexts, fate, pool, bounds = np.zeros((4, tasks + 1), np.int64)
    leaving, keys = np.zeros((2, rows), np.int64)
    U, K, L = np.zeros((4, nodes), np.int64), np.zeros((4, nodes), np.int64), np.zeros((3, st.G.shape[1]), np.int64)
    p.priorities(view.now_us, weights, st.J, st.T, st.C, ML, CP, bounds, P, top)
    mlf_h_leave(
        view.now_us, migration, sharing, bandwidth, limits, st.J, st.T, st.N, st.G, st.B, st.C, s.A, s.AB, U, K, L, nexts,
        np.zeros(nodes + 1, np.int64), P, fate, pool, leaving,
    )  # fmt: skip
    count = queue_keys(st.J, st.T, st.C, top, P, leaving, fate, keys)
    return np.sort(keys[:count]) & ROW_MASK, ML, CP, P


def base_terms(view: ClusterView, weights: Floats, row: int, task: int, **changes: float) -> tuple[float, float]:
    """Eqs. 2 and 4 of one task (row of the task table), without what depends on it; `changes`: weights by name."""
    W = weights.copy()
    W[p.W_GAMMA] = 0.0
    for name, value in changes.items():
        W[getattr(p, f"W_{name}")] = value
    st = view.state
    tasks = int(st.C[c.C_TASKS])
    ML, CP = np.zeros(tasks), np.zeros(tasks)
    p.job_terms(row, view.now_us, W, st.J, st.T, ML, CP, np.zeros(tasks + 1, np.int64))
    return float(ML[task]), float(CP[task])


def ranges(view: ClusterView, weights: Floats, values: Floats) -> tuple[float, float]:
    """The least value over the live workers, and the range that it is scaled by; 0 and 1 where nothing is scaled."""
    if not weights[p.W_NORMALIZE]:
        return 0.0, 1.0
    J = view.state.J
    live = [values[J[c.J_TASK0, row] : J[c.J_TASK0, row] + J[c.J_WORKERS, row]] for row in view.live_rows()]
    workers = np.concatenate(live)
    low, high = float(workers.min()), float(workers.max())
    return low, high - low if high > low else 1.0


def explain_mlf_h(
    view: ClusterView, job: int, weights: Floats, limits: Floats, unit: str, *, migration: bool, sharing: bool, bandwidth: bool
) -> Explanation:
    """The place of a job in MLF-H's queue and the terms of its highest task that is no server, which ranks it."""
    row, J, T, now = row_of(view, job), view.state.J, view.state.T, view.now_us
    order, ML, CP, P = queue_order(view, weights, limits, migration, sharing, bandwidth)
    first, workers = int(J[c.J_TASK0, row]), int(J[c.J_WORKERS, row])
    t = first + int(np.argmax(P[first : first + workers]))
    believe = float(weights[p.W_BELIEVE])
    current = p.iteration(J, row, now, believe)
    ratio = p.loss_ratio(J, row, current, weights[p.W_FLOOR], believe)
    urgency = (float(J[c.J_URGENCY, row]) if weights[p.W_URGENCY] else 1.0) / (weights[p.W_TOP] or 1.0)
    left_s, waited_s = p.remaining_us(J, row, now, believe) / US_PER_S, p.waited_us(J, row, now) / US_PER_S
    due = int(J[c.J_DEADLINE, row])
    due_words = "it has none" if due >= c.NEVER else f"the job is due at {due / US_PER_S:,.0f} s"
    alpha, gamma = float(weights[p.W_ALPHA]), float(weights[p.W_GAMMA])
    nothing = {"DEADLINE": 0.0, "REMAINING": 0.0, "WAIT": 0.0}
    values = [base_terms(view, weights, row, t, **(nothing | {name: 1.0}))[1] for name in nothing]
    base_ml, base_c = base_terms(view, weights, row, t)
    parts = [float(weights[index]) * value for index, value in zip(C_WEIGHTS, values, strict=True)]
    below_ml, below_c = float(ML[t]) - base_ml, float(CP[t]) - base_c
    (low_ml, range_ml), (low_c, range_c) = ranges(view, weights, ML), ranges(view, weights, CP)
    scaled_ml, scaled_c = (float(ML[t]) - low_ml) / range_ml, (float(CP[t]) - low_c) / range_c
    how = "scaled to 0…1 over all live tasks" if weights[p.W_NORMALIZE] else "as it is"
    arrival = common_terms(view, row)
    share = T[c.T_SHARE, t] / 1_000_000
    terms = (
        arrival[0],
        Term("urgency", urgency, "", "L of Eq. 2, a factor of the base of PML"),
        Term("iteration", float(current), "", "I of Eq. 2, which the base of PML is divided by"),
        Term("loss ratio", ratio, "", "the last drop of the loss by all drops (Eq. 2), a factor"),
        Term("share", float(share), "", f"of the parameters, of task {t - first} (Eq. 2), a factor"),
        Term("base ML", base_ml, "", "Eq. 2: urgency ÷ iteration × loss ratio × share; added to PML", 1.0, base_ml),
        _below("dependents ML", below_ml, gamma, "PML"),
        Term("PML", float(ML[t]), "", "Eq. 3"),
        Term("deadline", values[0], f"1/{unit}", f"1/(d − t) of Eq. 4: {due_words}; added to PC", *_weighed(weights, 0, parts)),
        Term("remaining", values[1], f"1/{unit}", f"1/r: {left_s:,.0f} s left; added to PC", *_weighed(weights, 1, parts)),
        Term("waiting", values[2], unit, f"w: {waited_s:,.0f} s in all; added to PC", *_weighed(weights, 2, parts)),
        _below("dependents PC", below_c, gamma, "PC"),
        Term("PC", float(CP[t]), "", "Eq. 5"),
        Term("scaled PML", scaled_ml, "", f"{how}; weight α; added to P", alpha, alpha * scaled_ml),
        Term("scaled PC", scaled_c, "", f"{how}; weight 1 − α; added to P", 1 - alpha, (1 - alpha) * scaled_c),
        Term("P", float(P[t]), "", f"Eq. 6, of task {t - first}, the highest that is no server: highest first"),
        arrival[1],
    )
    scores = [
        TaskScore(
            i - first, "server" if T[c.T_ROLE, i] == SERVER else "worker", int(T[c.T_REPLICA, i]), int(T[c.T_PARTITION, i]),
            float(T[c.T_SHARE, i]) / 1_000_000, float(ML[i]), float(CP[i]), float(P[i]),
        )
        for i in range(first, first + int(J[c.J_TASKS, row]))
    ]  # fmt: skip
    words = "the highest P first: the waiting jobs, and those whose tasks leave overloaded nodes; others keep their places"
    return ranked(J[c.J_ID, order].tolist(), job, terms, words, scores)


def _weighed(weights: Floats, index: int, parts: list[float]) -> tuple[float, float]:
    return float(weights[C_WEIGHTS[index]]), parts[index]


def _below(name: str, added: float, gamma: float, where: str) -> Term:
    """What depends on the task: the sum, and γ times it."""
    total = added / gamma if gamma else 0.0
    return Term(name, total, "", f"sum over what depends on the task, weight γ; added to {where}", gamma, added)
