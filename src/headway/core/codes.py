"""The enums of `columns` as plain integers, since a kernel compares int64 with int64."""

from __future__ import annotations

from headway.core.columns import Cut, EventKind, NodePhase, Op, Phase, Reason, Role, Sync

QUEUED, STARTING, RUNNING, STOPPING = int(Phase.QUEUED), int(Phase.STARTING), int(Phase.RUNNING), int(Phase.STOPPING)
COMPLETED, FAILED, CANCELLED, REJECTED = int(Phase.COMPLETED), int(Phase.FAILED), int(Phase.CANCELLED), int(Phase.REJECTED)
UP, DRAINING, DOWN = int(NodePhase.UP), int(NodePhase.DRAINING), int(NodePhase.DOWN)

K_NODE_UP, K_NODE_DOWN = int(EventKind.NODE_UP), int(EventKind.NODE_DOWN)
K_SUBMITTED, K_REJECTED, K_CANCEL = int(EventKind.SUBMITTED), int(EventKind.REJECTED), int(EventKind.CANCEL_REQUESTED)
K_HOLD, K_PRIORITY, K_UPDATED = int(EventKind.HOLD_SET), int(EventKind.PRIORITY_SET), int(EventKind.UPDATED)
K_WANTED, K_UNWANTED = int(EventKind.WANTED), int(EventKind.UNWANTED)
K_START, K_STOP = int(EventKind.START_REQUESTED), int(EventKind.STOP_REQUESTED)
K_FINISHED, K_RULE, K_WHY, K_REFUSED = (
    int(EventKind.FINISHED), int(EventKind.RULE_SET), int(EventKind.WHY), int(EventKind.REFUSED),
)  # fmt: skip
K_ROUND, K_ESTIMATE_REQUESTED, K_ESTIMATED = (
    int(EventKind.ROUND), int(EventKind.ESTIMATE_REQUESTED), int(EventKind.ESTIMATED),
)  # fmt: skip
K_STARTED, K_START_FAILED, K_STOPPED = int(EventKind.STARTED), int(EventKind.START_FAILED), int(EventKind.STOPPED)
K_COMPLETED, K_FAILED = int(EventKind.COMPLETED), int(EventKind.FAILED)
K_OBSERVED, K_SAVED, K_USAGE, K_EPOCH, K_EVALUATED = (
    int(EventKind.OBSERVED), int(EventKind.SAVED), int(EventKind.USAGE), int(EventKind.EPOCH), int(EventKind.EVALUATED),
)  # fmt: skip
K_SHADOWED, K_GUARDED = int(EventKind.SHADOWED), int(EventKind.GUARDED)

R_NONE, R_PREEMPTED, R_MIGRATED, R_RESIZED = (
    int(Reason.NONE), int(Reason.PREEMPTED), int(Reason.MIGRATED), int(Reason.RESIZED),
)  # fmt: skip
R_NODE_LOST, R_CANCELLED, R_EARLY_STOP = int(Reason.NODE_LOST), int(Reason.CANCELLED), int(Reason.EARLY_STOP)
R_TIME_LIMIT, R_START_FAILED, R_EXIT_CODE = int(Reason.TIME_LIMIT), int(Reason.START_FAILED), int(Reason.EXIT_CODE)
R_DONE, R_LARGER, R_NO_ROOM = int(Reason.DONE), int(Reason.LARGER_THAN_CLUSTER), int(Reason.NO_ROOM)
R_TRIAL, R_OVER_QUOTA = int(Reason.TRIAL), int(Reason.OVER_QUOTA)
R_GANG_INCOMPLETE, R_DEADLOCK = int(Reason.GANG_INCOMPLETE), int(Reason.DEADLOCK)
R_RESERVED, R_LOW_RANK, R_NOT_CONSOLIDATED = (
    int(Reason.RESERVED_FOR_HEAD), int(Reason.LOW_RANK), int(Reason.NOT_CONSOLIDATED),
)  # fmt: skip

OP_PLACE, OP_RELEASE, OP_FINISH, OP_RULE, OP_WHY = int(Op.PLACE), int(Op.RELEASE), int(Op.FINISH), int(Op.RULE), int(Op.WHY)
CUT_NONE, CUT_CHAIN = int(Cut.NONE), int(Cut.CHAIN)
ALL_REDUCE, PARAMETER_SERVER = int(Sync.ALL_REDUCE), int(Sync.PARAMETER_SERVER)
WORKER, SERVER = int(Role.WORKER), int(Role.SERVER)
