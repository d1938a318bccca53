"""Names of every column, code and limit of the tables: the vocabulary that state, plan, kernels and journal share.

A table is one int64 array of shape (columns, rows), so that a column is a contiguous vector and a kernel takes a table as one
flat argument.
Times are microseconds, GPUs thousandths (milli), sizes bytes, shares and accuracies parts per million, losses 1e-9 (nano).
"""

from __future__ import annotations

from enum import IntEnum

NEVER = 1 << 62
"""A point in time that does not come (µs); also 'no limit'."""
NOTHING = -(1 << 62)
"""A number that has not been observed (loss, accuracy)."""
WHOLE = 1000
"""One GPU in milli-GPUs."""
GPUS_PER_NODE_MAX = 64
"""A node's GPUs are the bits of one word."""
ROW_BITS = 21
"""A rank key keeps so many bits for a job's row: at most two million live jobs at once."""
ROW_MASK = (1 << ROW_BITS) - 1


class Phase(IntEnum):
    """Where a job stands. The last four are final."""

    QUEUED = 0
    STARTING = 1
    RUNNING = 2
    STOPPING = 3
    COMPLETED = 4
    FAILED = 5
    CANCELLED = 6
    REJECTED = 7


class NodePhase(IntEnum):
    UP = 0
    DRAINING = 1
    DOWN = 2


class Reason(IntEnum):
    """Why a job is where it is; the words are `Reason.X.word`."""

    NONE = 0
    PREEMPTED = 1
    MIGRATED = 2
    RESIZED = 3
    NODE_LOST = 4
    CANCELLED = 5
    EARLY_STOP = 6
    TIME_LIMIT = 7
    START_FAILED = 8
    EXIT_CODE = 9
    LARGER_THAN_CLUSTER = 10
    NO_ROOM = 11
    BEHIND_OTHERS = 12
    RESERVED_FOR_HEAD = 13
    OVER_QUOTA = 14
    HELD_BY_USER = 15
    RETRY_LATER = 16
    LOW_RANK = 17
    NOT_CONSOLIDATED = 18
    WAITS_FOR_STOP = 19
    DONE = 20
    TRIAL = 21
    UNKNOWN_QUEUE = 22
    RETRIES_SPENT = 23
    GANG_INCOMPLETE = 24
    DEADLOCK = 25
    REQUEUED = 26

    @property
    def word(self) -> str:
        """The reason as people and JSON see it, e.g. `no-room`."""
        return self.name.lower().replace("_", "-")


class EventKind(IntEnum):
    """What has happened. `docs/journal.md` lists the fields of each."""

    # the cluster
    NAMED = 1
    NODE_ADDED = 2
    NODE_UP = 3
    NODE_DOWN = 4
    NODE_DRAINING = 5
    QUEUE_SET = 6
    CLUSTER_SET = 7
    SETTINGS_SET = 8
    # a job, from its people
    SUBMITTED = 10
    REJECTED = 11
    CANCEL_REQUESTED = 12
    HOLD_SET = 13
    PRIORITY_SET = 14
    UPDATED = 15
    # a round's decisions
    WANTED = 20
    UNWANTED = 21
    START_REQUESTED = 22
    STOP_REQUESTED = 23
    FINISHED = 24
    RULE_SET = 25
    WHY = 26
    REFUSED = 27
    ROUND = 28
    ESTIMATE_REQUESTED = 29
    # an engine's reports
    STARTED = 30
    START_FAILED = 31
    STOPPED = 32
    COMPLETED = 33
    FAILED = 34
    OBSERVED = 35
    SAVED = 36
    USAGE = 37
    ESTIMATED = 38
    EPOCH = 39
    EVALUATED = 40
    # forked futures of a live state
    SHADOWED = 41
    GUARDED = 42


class Name(IntEnum):
    """The tables of names that NAMED fills."""

    USER = 0
    QUEUE = 1
    NODE = 2
    KIND = 3
    JOB = 4
    GROUP = 5
    MODEL = 6


class Cut(IntEnum):
    NONE = 0
    CHAIN = 1
    LAYERED = 2


class Sync(IntEnum):
    NONE = 0
    ALL_REDUCE = 1
    PARAMETER_SERVER = 2


class StopRule(IntEnum):
    FIXED = 0
    OPTSTOP = 1
    ACCURACY = 2


class Role(IntEnum):
    WORKER = 0
    SERVER = 1


class Estimator(IntEnum):
    """The estimators whose newest result a job's row carries."""

    REMAINING = 0
    CURVE = 1
    SPEED = 2
    INVERSE = 3
    """Optimus' curve 1/(b0·k + b1) + b2 of the loss (Peng et al., EuroSys 2018)."""


ESTIMATORS = len(Estimator)
ESTIMATE_PARAMS_MAX = 8

# --- an event record: eight int64 --------------------------------------------------------------------------------
E_T, E_KIND, E_ID, E_ATTEMPT, E_A, E_B, E_C, E_POOL = range(8)
RECORD = 8
PLACE = 3
"""Pool ints for the place of one task: node, GPU mask, milli booked on each GPU of the mask."""

# --- J: a job's columns; the first SPEC_COLUMNS are the payload of SUBMITTED --------------------------------------
_SPEC = """USER QUEUE PRIORITY DEADLINE URGENCY DATA PIPELINE TENSOR SERVERS DATA_MIN DATA_MAX BATCH CUT WIDTH SYNC GPU_TASK
KIND_MASK CPU_TASK MEM_TASK NET_TASK ALT_GPU ALT_MASK SHARE ESTIMATE UNITS_TOTAL STOP_RULE STOP_ALLOW ACC_REQUIRED
TIME_LIMIT GRACE SAVE RESTORE EVERY RETRY_MAX GROUP MODEL SKEW EDGE_BYTES SYNC_BYTES SERVER_CPU SERVER_MEM DETAILS
SERVER_NET SERVERS_MAX""".split()
_LIVE = """ID SUBMITTED PHASE REASON ATTEMPT GENERATION TASK0 TASKS WORKERS EDGE0 EDGES GPU_MILLI PLACED UNIFORM MUST_STOP
ATTAINED RUN STARTED_AT HELD_MILLI QUEUED_AT WAITED LAST_WAIT ATTAINED_AT_START RUN_AT_START FIRST_START FINISHING
UNITS_DONE UNITS_SAVED RULE_IN_FORCE LOSS ACCURACY LOSS_DROPS LOSS_DROP_LAST RETRIES PREEMPTIONS MIGRATIONS
NOT_BEFORE HOLD WHY WHY_A WHY_B TRIAL_UNTIL ESTIMATED_REMAINING HELD_TASK0 HELD_TASKS GPUS SAVED_AT""".split()
SPEC_COLUMNS = len(_SPEC)
JOB_COLUMNS = len(_SPEC) + len(_LIVE)
(
    J_USER, J_QUEUE, J_PRIORITY, J_DEADLINE, J_URGENCY, J_DATA, J_PIPELINE, J_TENSOR, J_SERVERS, J_DATA_MIN, J_DATA_MAX,
    J_BATCH, J_CUT, J_WIDTH, J_SYNC, J_GPU_TASK, J_KIND_MASK, J_CPU_TASK, J_MEM_TASK, J_NET_TASK, J_ALT_GPU, J_ALT_MASK,
    J_SHARE, J_ESTIMATE, J_UNITS_TOTAL, J_STOP_RULE, J_STOP_ALLOW, J_ACC_REQUIRED, J_TIME_LIMIT, J_GRACE, J_SAVE,
    J_RESTORE, J_EVERY, J_RETRY_MAX, J_GROUP, J_MODEL, J_SKEW, J_EDGE_BYTES, J_SYNC_BYTES, J_SERVER_CPU, J_SERVER_MEM,
    J_DETAILS, J_SERVER_NET, J_SERVERS_MAX,
) = range(SPEC_COLUMNS)  # fmt: skip
(
    J_ID, J_SUBMITTED, J_PHASE, J_REASON, J_ATTEMPT, J_GENERATION, J_TASK0, J_TASKS, J_WORKERS, J_EDGE0, J_EDGES,
    J_GPU_MILLI, J_PLACED, J_UNIFORM, J_MUST_STOP, J_ATTAINED, J_RUN, J_STARTED_AT, J_HELD_MILLI, J_QUEUED_AT, J_WAITED,
    J_LAST_WAIT, J_ATTAINED_AT_START, J_RUN_AT_START, J_FIRST_START, J_FINISHING, J_UNITS_DONE, J_UNITS_SAVED,
    J_RULE_IN_FORCE, J_LOSS, J_ACCURACY, J_LOSS_DROPS, J_LOSS_DROP_LAST, J_RETRIES, J_PREEMPTIONS, J_MIGRATIONS,
    J_NOT_BEFORE, J_HOLD, J_WHY, J_WHY_A, J_WHY_B, J_TRIAL_UNTIL, J_ESTIMATED_REMAINING, J_HELD_TASK0,
    J_HELD_TASKS, J_GPUS, J_SAVED_AT,
) = range(SPEC_COLUMNS, JOB_COLUMNS)  # fmt: skip
UPDATABLE = (J_QUEUE, J_DEADLINE, J_URGENCY, J_ESTIMATE, J_TIME_LIMIT)
"""What UPDATED may change of a live job."""
JOB_COLUMN_NAMES = tuple(name.lower() for name in _SPEC + _LIVE)
SPEC_COLUMN_NAMES = tuple(name.lower() for name in _SPEC)

# --- T: a task's columns ------------------------------------------------------------------------------------------
TASK_COLUMN_NAMES = tuple(
    """job role replica partition share gpu cpu mem net use_gpu use_cpu use_mem use_net node mask book held_node held_mask
held_book edge0 edges""".split()
)
TASK_COLUMNS = len(TASK_COLUMN_NAMES)
(
    T_JOB, T_ROLE, T_REPLICA, T_PARTITION, T_SHARE, T_GPU, T_CPU, T_MEM, T_NET, T_USE_GPU, T_USE_CPU, T_USE_MEM,
    T_USE_NET, T_NODE, T_MASK, T_BOOK, T_HELD_NODE, T_HELD_MASK, T_HELD_BOOK, T_EDGE0, T_EDGES,
) = range(TASK_COLUMNS)  # fmt: skip
DETAIL = 5
"""Pool ints for one task of a job whose tasks differ: gpu milli, cpus milli, memory, network, parameter share."""
X_CHILD, X_BYTES = range(2)
"""An edge: the child's index within its job, and the bytes it carries in one iteration."""

# --- N: a node's columns ------------------------------------------------------------------------------------------
NODE_COLUMN_NAMES = tuple(
    """rack kind gpus gpu0 cpu_max mem_max net_max phase generation free_mask held_mask free cpu mem net held_cpu held_mem
use_cpu use_mem use_net speed""".split()
)
NODE_COLUMNS = len(NODE_COLUMN_NAMES)
NODE_SPEC_COLUMNS = 7
(
    N_RACK, N_KIND, N_GPUS, N_GPU0, N_CPU_MAX, N_MEM_MAX, N_NET_MAX, N_PHASE, N_GENERATION, N_FREE_MASK, N_HELD_MASK,
    N_FREE, N_CPU, N_MEM, N_NET, N_HELD_CPU, N_HELD_MEM, N_USE_CPU, N_USE_MEM, N_USE_NET, N_SPEED,
) = range(NODE_COLUMNS)  # fmt: skip
# --- G: a GPU's columns: booked by what is wanted, and held by what runs ------------------------------------------
GPU_COLUMN_NAMES = ("node", "booked", "tasks", "held", "held_tasks", "used", "free_at")
GPU_COLUMNS = len(GPU_COLUMN_NAMES)
G_NODE, G_BOOKED, G_TASKS, G_HELD, G_HELD_TASKS, G_USED, G_FREE_AT = range(GPU_COLUMNS)
# --- Q: a queue's columns -----------------------------------------------------------------------------------------
QUEUE_COLUMN_NAMES = ("quota", "limit", "weight", "parent", "booked", "waiting")
QUEUE_COLUMNS = len(QUEUE_COLUMN_NAMES)
Q_QUOTA, Q_LIMIT, Q_WEIGHT, Q_PARENT, Q_BOOKED, Q_WAITING = range(QUEUE_COLUMNS)

# --- C: counters of the state -------------------------------------------------------------------------------------
COUNTER_NAMES = tuple(
    """rows tasks edges dead dead_tasks dead_edges queued waiting placed_waiting running must_stop first_waiting
priority_min priority_max now sequence last_id id_base nodes gpus kinds gpus_max words queues share_limit
refused_in_row epoch stale gpus_up finished rejected rounds error_code error_job waiting_cpu
refused_at guard guard_of guard_good guard_at guard_reward guard_teacher""".split()
)
COUNTERS = len(COUNTER_NAMES)
(
    C_ROWS, C_TASKS, C_EDGES, C_DEAD, C_DEAD_TASKS, C_DEAD_EDGES, C_QUEUED, C_WAITING, C_PLACED_WAITING, C_RUNNING,
    C_MUST_STOP, C_FIRST_WAITING, C_PRIORITY_MIN, C_PRIORITY_MAX, C_NOW, C_SEQUENCE, C_LAST_ID, C_ID_BASE, C_NODES,
    C_GPUS, C_KINDS, C_GPUS_MAX, C_WORDS, C_QUEUES, C_SHARE_LIMIT, C_REFUSED_IN_ROW, C_EPOCH, C_STALE, C_GPUS_UP,
    C_FINISHED, C_REJECTED, C_ROUNDS, C_ERROR_CODE, C_ERROR_JOB, C_WAITING_CPU, C_REFUSED_AT, C_GUARD, C_GUARD_OF,
    C_GUARD_GOOD, C_GUARD_AT, C_GUARD_REWARD, C_GUARD_TEACHER,
) = range(COUNTERS)  # fmt: skip


# --- O: a plan's overrides ----------------------------------------------------------------------------------------
class Op(IntEnum):
    """What a plan wants for one job."""

    PLACE = 1
    RELEASE = 2
    FINISH = 3
    RULE = 4
    WHY = 5


O_JOB, O_ROW, O_OP, O_REASON, O_DATA, O_SERVERS, O_BATCH, O_TASK0, O_TASKS, O_A, O_B = range(11)
OVERRIDE = 11
