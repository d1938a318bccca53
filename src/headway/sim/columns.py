"""Columns of the simulated world's own tables: the truth, which no policy sees."""

from __future__ import annotations

# A job (int64). Times µs; tasks lie in the task table from TASK0 on.
(
    W_STATUS, W_ATTEMPT, W_VERSION, W_SINCE, W_SAVED, W_TASK0, W_TASKS, W_ROOM, W_WORK, W_SAVE, W_RESTORE, W_EVERY, W_UNITS,
    W_GPU, W_CPU, W_NET, W_STOP_REASON, W_RUNS,
) = range(18)  # fmt: skip
WORLD_JOB_COLUMNS = 18
# A job (float64): progress in µs of work at rate 1 up to SINCE, and the rate since then.
F_DONE, F_RATE = range(2)

FUTURE, IDLE, STARTING, RUNNING, SAVING, BROKEN, DONE = range(7)
"""Status of a job in the world. BROKEN: a node of it is lost, survivors wait to be told to stop."""

# A task: where its processes are, what they use, its neighbours on the node (a doubly linked list), the usage interval.
(
    P_JOB,
    P_NODE,
    P_MASK,
    P_BOOK,
    P_GPU,
    P_CPU,
    P_MEM,
    P_NET,
    P_NEXT,
    P_PREV,
    P_VERSION,
    P_REQ_GPU,
    P_REQ_CPU,
    P_REQ_MEM,
    P_REQ_NET,
) = range(15)
WORLD_TASK_COLUMNS = 15
# A node and a GPU (int64): usage sums, first task on the node, whether it is up; and the slow-down factors (float64).
V_CPU, V_NET, V_HEAD, V_UP, V_GPU0, V_GPUS, V_CPU_MAX, V_NET_MAX = range(8)
WORLD_NODE_COLUMNS = 8
D_BOOKED, D_TASKS, D_USED = range(3)

# Events to come: (time, rank · 2^40 + id, version, what)
H_T, H_KEY, H_VERSION, H_WHAT = range(4)
RANK_BITS = 40
(
    RANK_NODE_DOWN,
    RANK_NODE_UP,
    RANK_ENDED,
    RANK_STOPPED,
    RANK_STARTED,
    RANK_OBSERVED,
    RANK_SUBMITTED,
    RANK_CANCELLED,
    RANK_USAGE,
) = range(9)

# Counters of the world.
(
    X_HEAP,
    X_ARRIVED,
    X_NOW,
    X_OUT,
    X_OUT_POOL,
    X_ERROR,
    X_ERROR_JOB,
    X_SLOW,
    X_SEED,
    X_JITTER,
    X_HOLD,
    X_FAIL,
    X_LATENCY,
    X_LIVE,
    X_STALE,
    X_NEXT,
) = range(16)
WORLD_COUNTERS = 16
