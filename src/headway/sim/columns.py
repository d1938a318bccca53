"""Columns of the simulated world's own tables: the truth, which no policy sees."""

from __future__ import annotations

from headway.workloads.truth import TRUTH_COLUMNS

# A job (int64). Times µs; tasks lie in the task table from TASK0 on.
(
    W_STATUS, W_ATTEMPT, W_VERSION, W_SINCE, W_SAVED, W_TASK0, W_TASKS, W_ROOM, W_WORK, W_SAVE, W_RESTORE, W_EVERY, W_UNITS,
    W_STEP, W_STOP_REASON, W_RUNS, W_GPUS, W_SERVERS, W_CUT, W_WIDTH, W_SYNC, W_REPLICAS, W_PARTITIONS, W_EDGE_BYTES,
    W_SYNC_BYTES, W_DUE, W_DUE_PPM, W_NOISE_STEPS, W_START, W_WARM, W_LOSES,
) = range(31)  # fmt: skip
"""GPUS, SERVERS and REPLICAS are those of the present attempt; STEP: units from one observation to the next; DUE: the
deadline (NEVER: none, or not judged), DUE_PPM: the accuracy then (-1: not there yet); START: from a start request until the gang
is up; WARM: from then until an attempt makes progress; LOSES: 1 for a job that saves nothing when it is stopped."""
W_TRUTH = 31
"""The columns of `workloads.truth` follow from here: W[W_TRUTH + Y_SPEED]."""
WORLD_JOB_COLUMNS = W_TRUTH + TRUTH_COLUMNS
# A job (float64): progress in µs of work at rate 1 up to SINCE, the rate since then; the constant factor of its shape and place;
# bytes across nodes for a µs of work; progress when the attempt came up; bytes the attempt has moved; GPU·µs of progress; noise.
F_DONE, F_RATE, F_FACTOR, F_BYTES, F_BEGAN, F_MOVED, F_SERVED, F_NOISE = range(8)
WORLD_JOB_FLOATS = 8

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
    P_LEAD,
    P_IN,
    P_OUT,
    P_WANT,
) = range(19)
WORLD_TASK_COLUMNS = 19
# LEAD: the first task of the job on the same node; at it, bytes that the job takes IN and sends OUT of the node in an iteration,
# and what that is per second if nobody is in the way (WANT).
# A node and a GPU (int64): usage sums, first task on the node, whether it is up; and the slow-down factors (float64).
V_CPU, V_NET, V_HEAD, V_UP, V_GPU0, V_GPUS, V_CPU_MAX, V_NET_MAX, V_FLOWS, V_WANT, V_SPEED, V_BUSY, V_RACK, V_NET_AWAY = range(14)
WORLD_NODE_COLUMNS = 14
# FLOWS: jobs that exchange bytes with other nodes, WANT: bytes per second that they want together; SPEED: of a GPU, BUSY: the
# background load, both ppm.
# Factors of a node: of its cpus, of its network by usage, and a communicating job's share of the NIC.
VF_CPU, VF_NET, VF_SHARE = range(3)
WORLD_NODE_FLOATS = 3
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
    RANK_DUE,
) = range(10)

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
