"""Priorities of tasks and jobs (MLFS §3.3.1, Eqs. 2–6), of all live tasks in one pass.

The tasks of a job lie in layers: a chain has one to a layer, a layered model `width`, a data-parallel job all in one; parameter
servers are the layer that every sink sends to. All tasks of a layer have the same dependents, the whole next layer of their
replica. So the sums over dependents in Eqs. 3 and 5 are one number a layer, worked out from the last layer to the first.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import CUT_CHAIN, CUT_NONE, PARAMETER_SERVER, QUEUED, STOPPING
from headway.core.jit import inner, kernel

UNIQUE, LITERAL, MEAN = range(3)
"""How dependents count (A5): each once with γ^distance; once a path, as Eqs. 3 and 5 read; by the mean of the direct ones."""
HOLD, DROP, CAP = range(3)
"""The deadline term of a late job (A3): held at its clamp for an hour, then 0; 0 once it cannot be met; capped at 1/r."""

(
    W_ALPHA, W_GAMMA, W_DEADLINE, W_REMAINING, W_WAIT, W_UNIT_US, W_TAU_US, W_FLOOR, W_URGENCY, W_NORMALIZE, W_DAG, W_LATE, W_TOP,
    W_BELIEVE,
) = range(14)  # fmt: skip
"""The weights array of `priorities`: α, γ, γ_d, γ_r, γ_w, the unit of time and the clamp τ (µs), the least loss ratio, whether
urgency counts (else 1), whether PML and PC are normalised before Eq. 6, the mode of the sums, that of late deadlines, the
urgency that counts as 1 (0: urgency as it is), and how far a job's word is believed (0: all of it; `docs/fairness.md`)."""
WEIGHTS = 14
US_PER_HOUR = 3_600_000_000
STEPS_TO_PERCENT = 1000
"""A job with more units than these counts steps: its iteration is the percent of them that it is in (`GLOSSARY.md`)."""


@inner
def ran_us(J: Table, row: int, now: int) -> int:
    """Run time up to now, µs."""
    return int(J[c.J_RUN, row] + (now - J[c.J_STARTED_AT, row] if J[c.J_STARTED_AT, row] >= 0 else 0))


@inner
def iteration(J: Table, row: int, now: int, believe: float) -> int:
    """The iteration that a job is in: 1 before the first has ended. With `believe`, it is at least the one that a job would be in
    at a pace so many times slower than the announced one, whatever it tells; one without units counts percent of its estimate."""
    done, total = J[c.J_UNITS_DONE, row], J[c.J_UNITS_TOTAL, row]
    told = max(done, 0) + 1
    if total > STEPS_TO_PERCENT:
        told = max((100 * done + total - 1) // total, 1)
    if believe <= 0.0 or J[c.J_ESTIMATE, row] >= c.NEVER:
        return int(told)
    whole = total if 0 < total <= STEPS_TO_PERCENT else 100
    paced = whole * float(ran_us(J, row, now)) / (believe * max(J[c.J_ESTIMATE, row], 1))
    return int(max(told, min(int(paced), whole - 1) + 1))


@inner
def loss_ratio(J: Table, row: int, current: int, floor: float, believe: float) -> float:
    """δl of the last finished iteration over the sum of all (Eq. 2), rises counted as 0; 1 in the first iteration (A1, A2).
    With `believe` at most so many times that of a loss that falls by as much in each iteration, which is 1/(I − 1)."""
    if current <= 1:
        return 1.0
    most = min(believe / (current - 1), 1.0) if believe > 0.0 else 1.0
    if J[c.J_LOSS_DROPS, row] <= 0:
        return float(most)
    return float(min(max(J[c.J_LOSS_DROP_LAST, row] / J[c.J_LOSS_DROPS, row], floor), most))


@inner
def remaining_us(J: Table, row: int, now: int, believe: float) -> int:
    """What a job has left to run by its estimate, µs. With `believe`: one that has run for more than so many times its estimate
    is expected to run as long again as it is beyond that."""
    ran, estimate = ran_us(J, row, now), J[c.J_ESTIMATE, row]
    if believe > 0.0 and ran > believe * estimate:
        return int(ran - believe * estimate)
    return int(max(estimate - ran, 0))


@inner
def waited_us(J: Table, row: int, now: int) -> int:
    """How long a job has waited in all, µs."""
    waits = J[c.J_PHASE, row] == QUEUED or J[c.J_STARTED_AT, row] < 0
    return int(J[c.J_WAITED, row] + (now - J[c.J_QUEUED_AT, row] if waits else 0))


@inner
def deadline_term(deadline_us: int, left_us: int, now: int, W: Floats) -> float:
    """1/(d − t) of Eq. 4 in the unit of time, clamped at τ; 0 without a deadline."""
    if deadline_us >= c.NEVER:
        return 0.0
    slack = deadline_us - now
    if W[W_LATE] == DROP and slack < left_us:
        return 0.0
    if W[W_LATE] == HOLD and slack < -US_PER_HOUR:
        return 0.0
    floor = W[W_TAU_US]
    if W[W_LATE] == CAP:
        floor = max(floor, float(left_us))
    return float(W[W_UNIT_US] / max(float(slack), floor))


@kernel
def sum_layers(
    first: int, bounds: Ints, layers: int, gamma: float, mode: int, ml_next: float, cp_next: float, ML: Floats, CP: Floats
) -> None:
    """Eqs. 3 and 5, in place: add γ times the sum over dependents to the base priorities of the tasks from row `first` on.

    Layer i holds the tasks `bounds[i] … bounds[i + 1] - 1`, and all of the next layer depend on each of them. `ml_next` and
    `cp_next` are the sums of what depends on the last layer.
    """
    for layer in range(layers - 1, -1, -1):
        low, high = first + bounds[layer], first + bounds[layer + 1]
        ml_all, cp_all = 0.0, 0.0
        for t in range(low, high):
            if mode == UNIQUE:
                ml_all, cp_all = ml_all + ML[t], cp_all + CP[t]
            ML[t] += gamma * ml_next
            CP[t] += gamma * cp_next
            if mode != UNIQUE:
                ml_all, cp_all = ml_all + ML[t], cp_all + CP[t]
        if mode == UNIQUE:
            ml_all, cp_all = ml_all + gamma * ml_next, cp_all + gamma * cp_next
        elif mode == MEAN:
            ml_all, cp_all = ml_all / (high - low), cp_all / (high - low)
        ml_next, cp_next = ml_all, cp_all


@kernel
def layer_bounds(cut: int, width: int, partitions: int, bounds: Ints) -> int:
    """Where the layers of a model begin and, behind the last, its partitions end; returns how many layers it has."""
    step = partitions if cut == CUT_NONE else (1 if cut == CUT_CHAIN else width)
    layers = (partitions + step - 1) // step
    for layer in range(layers):
        bounds[layer] = layer * step
    bounds[layers] = partitions
    return layers


@kernel
def job_terms(row: int, now: int, W: Floats, J: Table, T: Table, ML: Floats, CP: Floats, bounds: Ints) -> None:
    """PML and PC (Eqs. 2–5) of every task of a job. `bounds`: scratch, one number a partition and one more."""
    partitions, replicas = J[c.J_PIPELINE, row] * J[c.J_TENSOR, row], J[c.J_DATA, row]
    servers = J[c.J_SERVERS, row] if J[c.J_SYNC, row] == PARAMETER_SERVER else 0
    first, total = J[c.J_TASK0, row], J[c.J_UNITS_TOTAL, row]
    layers = layer_bounds(J[c.J_CUT, row], max(J[c.J_WIDTH, row], 1), partitions, bounds)
    current = iteration(J, row, now, W[W_BELIEVE])
    urgency = float(J[c.J_URGENCY, row]) if W[W_URGENCY] else 1.0
    if W[W_TOP]:
        urgency /= W[W_TOP]
    ml_job = urgency / current * loss_ratio(J, row, current, W[W_FLOOR], W[W_BELIEVE])
    left = remaining_us(J, row, now, W[W_BELIEVE])
    stage = J[c.J_ESTIMATE, row] // total // layers if total else 0
    """How long a layer takes in an iteration: what lies between the deadlines of a task and of its dependents (A4)."""
    common = W[W_REMAINING] * W[W_UNIT_US] / max(float(left), W[W_TAU_US]) + W[W_WAIT] * waited_us(J, row, now) / W[W_UNIT_US]
    due = J[c.J_DEADLINE, row]
    if due < c.NEVER and total:
        due -= max(left - J[c.J_ESTIMATE, row] // total, 0)
    server_c = W[W_DEADLINE] * deadline_term(due, left, now, W) + common
    for t in range(first + J[c.J_WORKERS, row], first + J[c.J_TASKS, row]):
        ML[t], CP[t] = 0.0, server_c
    for layer in range(layers):
        at = due - (layers - 1 - layer) * stage if due < c.NEVER else due
        base_c = W[W_DEADLINE] * deadline_term(at, left, now, W) + common
        for replica in range(replicas):
            here = first + replica * partitions
            for t in range(here + bounds[layer], here + bounds[layer + 1]):
                ML[t], CP[t] = ml_job * T[c.T_SHARE, t] / 1_000_000, base_c
    behind = server_c if W[W_DAG] == MEAN else server_c * servers
    for replica in range(replicas):
        sum_layers(
            first + replica * partitions, bounds, layers, W[W_GAMMA], int(W[W_DAG]), 0.0, behind if servers else 0.0, ML, CP
        )


@kernel
def priorities(
    now: int, W: Floats, J: Table, T: Table, C: Ints,
    ML: Floats, CP: Floats, bounds: Ints, P: Floats, top: Floats,
) -> None:  # fmt: skip
    """Eq. 6 for every task of every live job: `P` by task row, and `top` by job row, the priority of its highest task that is no
    server. `ML` and `CP` keep Eqs. 3 and 5 by task row, unscaled."""
    ml_low, ml_high, cp_low, cp_high = 1e300, -1e300, 1e300, -1e300
    for row in range(C[c.C_ROWS]):
        if J[c.J_PHASE, row] > STOPPING:
            continue
        job_terms(row, now, W, J, T, ML, CP, bounds)
        if W[W_NORMALIZE]:
            for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_WORKERS, row]):
                ml_low, ml_high = min(ml_low, ML[t]), max(ml_high, ML[t])
                cp_low, cp_high = min(cp_low, CP[t]), max(cp_high, CP[t])
    ml_range, cp_range = 1.0, 1.0
    if W[W_NORMALIZE]:
        ml_range = ml_high - ml_low if ml_high > ml_low else 1.0
        cp_range = cp_high - cp_low if cp_high > cp_low else 1.0
    else:
        ml_low, cp_low = 0.0, 0.0
    alpha = W[W_ALPHA]
    for row in range(C[c.C_ROWS]):
        if J[c.J_PHASE, row] > STOPPING:
            continue
        best = -1e300
        stop = J[c.J_TASK0, row] + J[c.J_WORKERS, row]
        for t in range(J[c.J_TASK0, row], J[c.J_TASK0, row] + J[c.J_TASKS, row]):
            P[t] = alpha * (ML[t] - ml_low) / ml_range + (1.0 - alpha) * (CP[t] - cp_low) / cp_range
            if t < stop:
                best = max(best, P[t])
        top[row] = best
