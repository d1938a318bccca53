"""The columns that MLF-RL weighs (MLFS §3.4; their scales are ours, all about 0…1), and the kernels that fill them.

Three tables, one for each decision: RANK, a row a job; SERVER, a row a node that may take a task; MOVE, a row a task that may
leave an overloaded node. `SCHEMA` names the whole: a model that was made for another one is refused.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import ALL_REDUCE, CUT_CHAIN, PARAMETER_SERVER, QUEUED, UP
from headway.core.columns import Cut, StopRule
from headway.core.jit import inner, kernel
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_POWER, C_RATE, C_SLOPE, WIDTH

Singles = NDArray[np.float32]
"""A vector or table of float32."""
CUT_LAYERED, OPTSTOP = int(Cut.LAYERED), int(StopRule.OPTSTOP)
VERSION = 1
MODELS = ("alexnet", "mlp", "resnet", "lstm", "svm")
"""The paper's five types of model; any other has none of their columns set."""
GLOBAL = ("sharing", "queue", "queued_demand", "free_frac", "load", "overloaded_frac", "live")
RANK = (
    "placed", "left", "left_told", "gpus", "request", "priority_mlf_h", "pml", "pc", "loss_ratio", "progress", "first",
    "slack", "late", "has_deadline", "waited", "age", "ran", "accuracy", "required", "short_of", "plateau", "has_curve",
    "stops_early", "urgency", "depth", "chain", "layered", "server", "ring", "batch", "edge", "sync", "cpu", "memory",
    "preemptions", "pause", *(f"is_{name}" for name in MODELS), *GLOBAL,
)  # fmt: skip
TASK = ("task_gpu", "task_cpu", "task_memory", "task_share", "task_is_server", "job_gpus")
SERVER = (
    "by_pass", "far", "nearest", "gpu", "cpu", "memory", "network", "least_gpu", "mean_gpu", "after_gpu", "volume", "together",
    "free", "moves", *TASK, *GLOBAL,
)  # fmt: skip
MOVE = (
    "stays", "far", "nearest", "hot_gpu", "use_gpu", "use_cpu", "use_memory", "use_network", "volume", "priority_mlf_h", "left",
    "gpus", "ran", *GLOBAL,
)  # fmt: skip
ML_COLUMNS = ("priority_mlf_h", "pml", "loss_ratio", "progress", "first", "accuracy", "required", "short_of", "plateau",
              "has_curve", "stops_early", "depth", "chain", "layered", "batch", *(f"is_{name}" for name in MODELS))  # fmt: skip
"""Columns of RANK (and `priority_mlf_h` of MOVE) that come from machine learning: what `rl-placement` does not see."""
SCHEMA = hashlib.sha256(repr((VERSION, RANK, SERVER, MOVE)).encode()).hexdigest()

LEFT_MIN_S, LEFT_RANGE = 30.0, math.log(5760.0)
"""Times left are told by the logarithm, from 30 s (0) to 48 h (1)."""
GPUS_RANGE = math.log(64.0)
NEAR, SLACK = 0.015, 0.002
"""OptStop's distances, as MLF-C has them by default."""
US_PER_S, DAY_S = 1_000_000.0, 86_400.0
PPM = 1_000_000.0

(
    R_PLACED, R_LEFT, R_LEFT_TOLD, R_GPUS, R_REQUEST, R_P, R_PML, R_PC, R_LOSS, R_PROGRESS, R_FIRST, R_SLACK, R_LATE,
    R_HAS_DEADLINE, R_WAITED, R_AGE, R_RAN, R_ACCURACY, R_REQUIRED, R_SHORT, R_PLATEAU, R_HAS_CURVE, R_STOPS, R_URGENCY,
    R_DEPTH, R_CHAIN, R_LAYERED, R_SERVER, R_RING, R_BATCH, R_EDGE, R_SYNC, R_CPU, R_MEMORY, R_PREEMPTIONS, R_PAUSE, R_MODEL,
) = range(37)  # fmt: skip
R_GLOBAL = R_MODEL + len(MODELS)
G_SHARING, G_QUEUE, G_DEMAND, G_FREE, G_LOAD, G_OVER, G_LIVE = range(len(GLOBAL))


@inner
def log_of(x: float, top: float) -> float:
    """The logarithm of 1 + x, 1 at `top`."""
    return float(math.log1p(max(x, 0.0)) / math.log1p(top))


@inner
def left_of(us: float) -> float:
    """A time left (µs) by its logarithm."""
    return float(math.log(max(us / US_PER_S, LEFT_MIN_S) / LEFT_MIN_S) / LEFT_RANGE)


@inner
def clipped(x: float, low: float, high: float) -> float:
    """Within bounds."""
    return float(min(max(x, low), high))


@inner
def one(true: bool) -> float:
    """1 where something holds, else 0."""
    return 1.0 if true else 0.0


@inner
def units_at(curve: Floats, row: int, goal: float) -> float:
    """The number of iterations at which a fitted curve is at `goal` (`perf.forecast.k_at` with `given`); infinite: never."""
    at = c.ESTIMATE_PARAMS_MAX
    k_last, level, slope = curve[at + C_K_LAST, row], curve[at + C_LEVEL, row], curve[at + C_SLOPE, row]
    rate, power = curve[at + C_RATE, row], curve[at + C_POWER, row]
    if slope <= 0.0:
        return math.inf
    if goal <= level:
        return float(k_last)
    base = 1.0 - power * rate * (goal - level) / slope
    if base <= 0.0 or power == 0.0 or rate == 0.0:
        return math.inf
    return float(k_last + math.expm1(min(-math.log(base) / power, 700.0)) / rate)


@inner
def run_to(J: Table, row: int, now: int) -> int:
    """Run time up to now, µs."""
    return int(J[c.J_RUN, row] + (now - J[c.J_STARTED_AT, row] if J[c.J_STARTED_AT, row] >= 0 else 0))


@inner
def told_left_us(J: Table, row: int, now: int) -> float:
    """What the owner's estimate leaves, µs; without one it is as long again as it has run."""
    ran = float(run_to(J, row, now))
    estimate = float(J[c.J_ESTIMATE, row])
    return max(estimate - ran, 0.0) if 0.0 < estimate < c.NEVER else max(ran, 600.0 * US_PER_S)


@kernel
def global_row(now: int, sharing: bool, h_r: float, J: Table, N: Table, G: Table, C: Ints, out: Singles) -> None:
    """The columns GLOBAL, into `out`."""
    demand, gpus, free, up, over, load = 0.0, 0.0, 0.0, 0, 0, 0.0
    for row in range(C[c.C_FIRST_WAITING], C[c.C_ROWS]):
        if J[c.J_PHASE, row] == QUEUED and J[c.J_PLACED, row] == 0:
            demand += float(J[c.J_GPUS, row])
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] != UP:
            continue
        up += 1
        gpus += N[c.N_GPUS, node]
        free += N[c.N_FREE, node]
        used, hot = 0.0, False
        for g in range(N[c.N_GPU0, node], N[c.N_GPU0, node] + N[c.N_GPUS, node]):
            used += G[c.G_USED, g]
            hot = hot or (G[c.G_TASKS, g] > 1 and G[c.G_USED, g] > h_r * c.WHOLE)
        a = used / max(N[c.N_GPUS, node] * c.WHOLE, 1)
        b = N[c.N_USE_CPU, node] / max(float(N[c.N_CPU_MAX, node]), 1.0)
        m = N[c.N_USE_MEM, node] / max(float(N[c.N_MEM_MAX, node]), 1.0)
        n = N[c.N_USE_NET, node] / max(float(N[c.N_NET_MAX, node]), 1.0)
        load += math.sqrt((a * a + b * b + m * m + n * n) / 4.0)
        over += int(hot or b > h_r or m > h_r or n > h_r)
    out[G_SHARING] = 1.0 if sharing else 0.0
    out[G_QUEUE] = log_of(float(C[c.C_WAITING]), 1000.0)
    out[G_DEMAND] = log_of(demand / max(gpus, 1.0), 50.0)
    out[G_FREE] = free / max(gpus, 1.0)
    out[G_LOAD] = clipped(load / max(up, 1), 0.0, 2.0)
    out[G_OVER] = over / max(up, 1)
    out[G_LIVE] = log_of(float(C[c.C_ROWS] - C[c.C_DEAD]) / max(gpus, 1.0), 50.0)


@kernel
def rank_row(
    i: int, row: int, now: int, J: Table, E: Floats, kinds: Ints, ml: float, pc: float, p: float, X: Singles
) -> None:  # fmt: skip
    """The columns RANK of a job but for GLOBAL, in row `i` of `X`. `E`: the state's estimates; `kinds`: by number of a model's
    name its place in MODELS, −1: none; `ml`, `pc`, `p`: Eqs. 3, 5 and 6 of the job's highest task, the first two as parts of the
    largest."""
    ran, told = float(run_to(J, row, now)), told_left_us(J, row, now)
    total, done = float(max(J[c.J_UNITS_TOTAL, row], 0)), float(max(J[c.J_UNITS_DONE, row], 0))
    required = J[c.J_ACC_REQUIRED, row] / PPM
    accuracy = J[c.J_ACCURACY, row] / PPM if J[c.J_ACCURACY, row] != c.NOTHING else 0.0
    at = WIDTH
    last, plateau = E[at + C_K_LAST, row], E[at + C_PLATEAU, row]
    known = last > 0.0 and last <= done and E[at + C_SLOPE, row] >= 0.0 and J[c.J_ACCURACY, row] != c.NOTHING
    left = told
    stops = J[c.J_RULE_IN_FORCE, row] >= OPTSTOP
    if total > 0.0 and done >= 5.0:
        goal_units = total
        if known and stops:
            goal = plateau - NEAR
            if plateau >= required + SLACK:
                goal = max(goal, required + SLACK)
            goal_units = min(units_at(E, row, goal), total)
        left = max(goal_units - done, 1.0) * ran / done
    X[i, R_PLACED] = float(J[c.J_PLACED, row])
    X[i, R_LEFT], X[i, R_LEFT_TOLD] = left_of(left), left_of(told)
    gpus = float(max(J[c.J_GPUS, row], 1))
    X[i, R_GPUS] = math.log(gpus) / GPUS_RANGE
    X[i, R_REQUEST] = J[c.J_GPU_MILLI, row] / (gpus * c.WHOLE)
    X[i, R_P], X[i, R_PML], X[i, R_PC] = clipped(p, 0.0, 4.0), clipped(ml, 0.0, 1.0), clipped(pc, 0.0, 1.0)
    drops = float(J[c.J_LOSS_DROPS, row])
    X[i, R_LOSS] = clipped(J[c.J_LOSS_DROP_LAST, row] / drops, 0.0, 1.0) if drops > 0.0 else 0.0
    X[i, R_PROGRESS] = clipped(done / total, 0.0, 1.0) if total > 0.0 else 0.0
    X[i, R_FIRST] = 1.0 / (1.0 + done)
    due = J[c.J_DEADLINE, row]
    has = 0 < due < c.NEVER
    slack = (due - now) / US_PER_S if has else DAY_S
    X[i, R_SLACK], X[i, R_LATE], X[i, R_HAS_DEADLINE] = clipped(slack / DAY_S, -1.0, 1.0), one(slack < 0.0), one(has)
    waits = J[c.J_PHASE, row] == QUEUED or J[c.J_STARTED_AT, row] < 0
    waited = float(J[c.J_WAITED, row] + (now - J[c.J_QUEUED_AT, row] if waits else 0)) / US_PER_S
    X[i, R_WAITED] = log_of(waited / 60.0, 2880.0)
    X[i, R_AGE] = log_of((now - J[c.J_SUBMITTED, row]) / US_PER_S / 60.0, 2880.0)
    X[i, R_RAN] = log_of(ran / US_PER_S / 60.0, 2880.0)
    X[i, R_ACCURACY], X[i, R_REQUIRED] = clipped(accuracy, 0.0, 1.0), clipped(required, 0.0, 1.0)
    X[i, R_SHORT] = clipped(required - accuracy, -1.0, 1.0)
    X[i, R_PLATEAU], X[i, R_HAS_CURVE] = (clipped(plateau, 0.0, 1.0) if known else 0.0), one(known)
    X[i, R_STOPS] = one(stops)
    X[i, R_URGENCY] = clipped(J[c.J_URGENCY, row] / 10.0, 0.0, 1.0)
    X[i, R_DEPTH] = log_of(float(J[c.J_PIPELINE, row] * J[c.J_TENSOR, row] - 1), 63.0)
    X[i, R_CHAIN], X[i, R_LAYERED] = one(J[c.J_CUT, row] == CUT_CHAIN), one(J[c.J_CUT, row] == CUT_LAYERED)
    X[i, R_SERVER], X[i, R_RING] = one(J[c.J_SYNC, row] == PARAMETER_SERVER), one(J[c.J_SYNC, row] == ALL_REDUCE)
    X[i, R_BATCH] = log_of(float(J[c.J_BATCH, row]), 65536.0)
    X[i, R_EDGE] = log_of(J[c.J_EDGE_BYTES, row] / 1e6, 1000.0)
    X[i, R_SYNC] = log_of(J[c.J_SYNC_BYTES, row] / 1e6, 1000.0)
    X[i, R_CPU] = log_of(J[c.J_CPU_TASK, row] / 1000.0, 64.0)
    X[i, R_MEMORY] = log_of(J[c.J_MEM_TASK, row] / 1e9, 256.0)
    X[i, R_PREEMPTIONS] = log_of(float(J[c.J_PREEMPTIONS, row]), 100.0)
    X[i, R_PAUSE] = log_of((J[c.J_SAVE, row] + J[c.J_RESTORE, row]) / US_PER_S, 3600.0)
    kind = kinds[J[c.J_MODEL, row]] if 0 <= J[c.J_MODEL, row] < kinds.shape[0] else -1
    for k in range(R_MODEL, R_GLOBAL):
        X[i, k] = 1.0 if k - R_MODEL == kind else 0.0
