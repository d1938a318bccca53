"""`apply`: every row of its table of transitions, what is stale, what is impossible, and what it counts, by hand-worked
numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from tests.core.dense import GB, US, Desk, place, spec

from headway.core import columns as c
from headway.core.columns import EventKind, NodePhase, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.life import BACKOFF_US
from headway.core.state import INVARIANTS, InvariantError
from headway.testing.invariants import verify

K = EventKind
STALE, IMPOSSIBLE = "stale", "impossible"
BOTH: list[tuple[int, list[int]]] = [(0, [0]), (1, [0])]

REPORTS = (K.STARTED, K.START_FAILED, K.STOPPED, K.COMPLETED, K.FAILED, K.OBSERVED, K.SAVED, K.USAGE)


def desk_with(where: str) -> Desk:
    """Job 0, a gang of two on nodes 0 and 1, in the place of its life that the word names. Node 2 is free."""
    desk = Desk((1, 1, 2))
    desk.submit(0, data=2, t=0)
    if where == "queued":
        return desk
    if where == "placed":
        desk.want(0, BOTH)
        return desk
    desk.start(0, BOTH, t=1 * US)
    if where == "starting":
        return desk
    desk.report(K.STARTED, 0, t=2 * US)
    if where == "stopping":
        desk.stop(0, t=3 * US)
    elif where == "migrating":
        desk.stop(0, Reason.MIGRATED, [(2, [0]), (2, [1])], t=3 * US)
    elif where == "finishing":
        desk.stop(0, Reason.EARLY_STOP, t=3 * US)
    elif where == "ended":
        desk.report(K.COMPLETED, 0, t=3 * US)
    return desk


# what happens to a job: (event, a) and where the job is afterwards, for each place in its life
TABLE: dict[str, dict[tuple[EventKind, int], Phase | str]] = {
    "queued": {
        (K.REJECTED, Reason.LARGER_THAN_CLUSTER): Phase.REJECTED,
        (K.CANCEL_REQUESTED, 0): Phase.CANCELLED,
        (K.FINISHED, Reason.EARLY_STOP): Phase.COMPLETED,
        (K.WANTED, 0): Phase.QUEUED,
        (K.UNWANTED, 0): IMPOSSIBLE,
        (K.START_REQUESTED, 0): Phase.STARTING,
        (K.STOP_REQUESTED, Reason.PREEMPTED): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.CANCELLED): IMPOSSIBLE,
        **{(report, 0): STALE for report in REPORTS},
    },
    "placed": {
        (K.REJECTED, Reason.LARGER_THAN_CLUSTER): Phase.REJECTED,
        (K.CANCEL_REQUESTED, 0): Phase.CANCELLED,
        (K.FINISHED, Reason.EARLY_STOP): Phase.COMPLETED,
        (K.WANTED, 0): Phase.QUEUED,
        (K.UNWANTED, 0): Phase.QUEUED,
        (K.START_REQUESTED, 0): Phase.STARTING,
        (K.STOP_REQUESTED, Reason.PREEMPTED): IMPOSSIBLE,
        **{(report, 0): STALE for report in REPORTS},
    },
    "starting": {
        (K.REJECTED, 0): IMPOSSIBLE,
        (K.FINISHED, 0): IMPOSSIBLE,
        (K.CANCEL_REQUESTED, 0): Phase.STARTING,
        (K.WANTED, 0): IMPOSSIBLE,
        (K.UNWANTED, 0): IMPOSSIBLE,
        (K.START_REQUESTED, 0): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.PREEMPTED): Phase.STOPPING,
        (K.STARTED, 0): Phase.RUNNING,
        (K.START_FAILED, 0): Phase.QUEUED,
        (K.STOPPED, 0): Phase.QUEUED,
        (K.COMPLETED, 0): Phase.COMPLETED,
        (K.FAILED, 0): Phase.QUEUED,
    },
    "running": {
        (K.REJECTED, 0): IMPOSSIBLE,
        (K.FINISHED, 0): IMPOSSIBLE,
        (K.CANCEL_REQUESTED, 0): Phase.RUNNING,
        (K.WANTED, 0): IMPOSSIBLE,
        (K.UNWANTED, 0): IMPOSSIBLE,
        (K.START_REQUESTED, 0): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.PREEMPTED): Phase.STOPPING,
        (K.STARTED, 0): STALE,
        (K.STOPPED, 0): Phase.QUEUED,
        (K.COMPLETED, 0): Phase.COMPLETED,
        (K.FAILED, 0): Phase.QUEUED,
    },
    "stopping": {
        (K.REJECTED, 0): IMPOSSIBLE,
        (K.FINISHED, 0): IMPOSSIBLE,
        (K.CANCEL_REQUESTED, 0): Phase.STOPPING,
        (K.WANTED, 0): Phase.STOPPING,
        (K.UNWANTED, 0): IMPOSSIBLE,
        (K.START_REQUESTED, 0): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.PREEMPTED): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.MIGRATED): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.CANCELLED): Phase.STOPPING,
        (K.STOP_REQUESTED, Reason.EARLY_STOP): Phase.STOPPING,
        (K.STOP_REQUESTED, Reason.TIME_LIMIT): Phase.STOPPING,
        (K.STARTED, 0): STALE,
        (K.START_FAILED, 0): Phase.QUEUED,
        (K.STOPPED, 0): Phase.QUEUED,
        (K.COMPLETED, 0): Phase.COMPLETED,
        (K.FAILED, 0): Phase.QUEUED,
    },
    "migrating": {
        (K.UNWANTED, 0): Phase.STOPPING,
        (K.WANTED, 0): Phase.STOPPING,
        (K.START_REQUESTED, 0): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.PREEMPTED): IMPOSSIBLE,
        (K.STOP_REQUESTED, Reason.EARLY_STOP): Phase.STOPPING,
        (K.CANCEL_REQUESTED, 0): Phase.STOPPING,
        (K.STARTED, 0): STALE,
        (K.STOPPED, 0): Phase.QUEUED,
        (K.START_FAILED, 0): Phase.QUEUED,
        (K.FAILED, 0): Phase.QUEUED,
        (K.COMPLETED, 0): Phase.COMPLETED,
    },
    "finishing": {(K.WANTED, 0): IMPOSSIBLE, (K.UNWANTED, 0): IMPOSSIBLE, (K.STOPPED, 0): Phase.COMPLETED},
    "ended": {
        **{(report, 0): STALE for report in REPORTS},
        (K.CANCEL_REQUESTED, 0): STALE,
        (K.REJECTED, 0): STALE,
        (K.FINISHED, 0): STALE,
        (K.WANTED, 0): STALE,
        (K.UNWANTED, 0): STALE,
        (K.START_REQUESTED, 0): STALE,
        (K.STOP_REQUESTED, Reason.PREEMPTED): STALE,
    },
}
ROWS = [(where, kind, a, after) for where, row in TABLE.items() for (kind, a), after in row.items()]


def payload_of(kind: EventKind, a: int) -> list[int]:
    if kind in (K.WANTED, K.START_REQUESTED):
        return place([(2, [0]), (2, [1])])
    if kind == K.STOP_REQUESTED and a == Reason.MIGRATED:
        return place(BOTH)
    return [1, 2, 3, 4] if kind == K.USAGE else []


def emit(desk: Desk, kind: EventKind, a: int) -> None:
    """The event, for the attempt that fits."""
    attempt = 1 if desk.state.row(0) is None else desk.get(0, "attempt")
    attempt += kind == K.START_REQUESTED
    shape = 2 if kind in (K.WANTED, K.START_REQUESTED, K.STOP_REQUESTED) else -1 if kind in REPORTS else 0
    desk.emit(kind, 0, attempt, a=a, b=shape, payload=payload_of(kind, a), t=5 * US)


def tables(desk: Desk) -> tuple[bytes, ...]:
    """Everything but the counters of stale events, of all events, and the time."""
    C = desk.state.C.copy()
    C[[c.C_STALE, c.C_SEQUENCE, c.C_NOW]] = 0
    return (*(getattr(desk.state, name).tobytes() for name in "JTXFNGQBR"), C.tobytes())


@pytest.mark.parametrize(("where", "kind", "a", "after"), ROWS, ids=[f"{w}-{k.name}-{a}" for w, k, a, _ in ROWS])
def test_the_table_of_transitions(where: str, kind: EventKind, a: int, after: Phase | str) -> None:
    desk = desk_with(where)
    before, stale = tables(desk), desk.count("stale")
    if after == IMPOSSIBLE:
        with pytest.raises(InvariantError, match="an impossible transition") as error:
            emit(desk, kind, a)
        phase = {"placed": "queued", "migrating": "stopping", "finishing": "stopping"}.get(where, where)
        attempt = int(where not in ("queued", "placed"))
        told = attempt + (kind == K.START_REQUESTED)
        story = f"event {kind.name.lower()} at 5000000 µs for attempt {told}; the job is {phase}, attempt {attempt}"
        assert story in str(error.value) and error.value.job == 0
        return
    emit(desk, kind, a)
    if after == STALE:
        assert tables(desk) == before and desk.count("stale") == stale + 1
    else:
        assert desk.phase(0) == after and desk.count("stale") == stale


def test_the_table_names_every_event_of_a_job() -> None:
    kinds = {kind for row in TABLE.values() for kind, _ in row}
    elsewhere = {
        K.SUBMITTED,
        K.HOLD_SET,
        K.PRIORITY_SET,
        K.UPDATED,
        K.RULE_SET,
        K.WHY,
        K.REFUSED,
        K.ROUND,
        K.ESTIMATE_REQUESTED,
        K.ESTIMATED,
        K.EVALUATED,
        K.SHADOWED,
        K.GUARDED,
    }
    of_the_cluster = {
        K.NAMED,
        K.NODE_ADDED,
        K.NODE_UP,
        K.NODE_DOWN,
        K.NODE_DRAINING,
        K.QUEUE_SET,
        K.CLUSTER_SET,
        K.EPOCH,
        K.SETTINGS_SET,
    }
    assert kinds | elsewhere | of_the_cluster == set(EventKind)


def test_a_gang_that_has_come_up_cannot_fail_to_start() -> None:
    desk = desk_with("running")
    with pytest.raises(InvariantError):
        emit(desk, K.START_FAILED, 0)


@pytest.mark.parametrize("where", ["queued", "running", "stopping"])
def test_how_good_an_ended_job_was_changes_nothing(where: str) -> None:
    """Not even of a job that is not there."""
    desk = desk_with(where)
    before = tables(desk)
    for number in (0, 77):
        desk.emit(K.EVALUATED, number, 1, payload=[0, 900_000, 900_000], t=9 * US)
    assert tables(desk) == before and desk.count("stale") == 0 and desk.count("now") == 9 * US


# -- stale and impossible ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.parametrize("where", ["starting", "running", "stopping", "migrating"])
@pytest.mark.parametrize("attempt", [0, 2, -1, 99])
def test_a_report_of_another_attempt_changes_nothing(where: str, kind: EventKind, attempt: int) -> None:
    desk = desk_with(where)
    before = tables(desk)
    desk.emit(kind, 0, attempt, a=1, b=2, c=3, payload=payload_of(kind, 0), t=9 * US)
    assert tables(desk) == before and desk.count("stale") == 1 and desk.count("now") == 9 * US


def test_a_repeated_report_changes_nothing_the_second_time() -> None:
    desk = desk_with("running")
    for kind in (K.STARTED, K.STOPPED, K.STOPPED, K.COMPLETED):
        desk.emit(kind, 0, 1, b=-1)
    assert desk.phase(0) == Phase.QUEUED and desk.count("stale") == 3
    desk.run(0, BOTH)
    desk.emit(K.COMPLETED, 0, 1)
    assert desk.phase(0) == Phase.RUNNING, "a completion of the first attempt does not end the second"
    desk.emit(K.COMPLETED, 0, 2)
    desk.emit(K.COMPLETED, 0, 2)
    assert desk.phase(0) == Phase.COMPLETED and desk.count("stale") == 5 and desk.count("finished") == 1


def test_a_gang_that_comes_up_after_it_was_told_to_stop_goes_on_stopping() -> None:
    desk = desk_with("starting")
    desk.stop(0)
    desk.report(K.STARTED, 0)
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "started_at") == -1 and desk.count("running") == 0
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.QUEUED and desk.get(0, "run") == 0


WRONG: dict[str, tuple[int, Callable[[Desk], object]]] = {
    "a start of the attempt before": (21, lambda d: d.emit(K.START_REQUESTED, 1, 0, b=1, payload=place([(2, [0])]))),
    "a start of the attempt after the next": (21, lambda d: d.emit(K.START_REQUESTED, 1, 2, b=1, payload=place([(2, [0])]))),
    "a stop of another attempt": (21, lambda d: d.emit(K.STOP_REQUESTED, 0, 2, a=Reason.PREEMPTED)),
    "an event of a job that was never submitted": (22, lambda d: d.emit(K.STARTED, 7, 1)),
    "an event of a job beyond the map": (22, lambda d: d.emit(K.STARTED, 1 << 40, 1)),
    "a number that is taken": (23, lambda d: d.submit(1)),
    "a number below the last": (23, lambda d: (d.submit(5), d.submit(4))),
    "time that goes back": (25, lambda d: d.submit(2, t=desk_time(d) - 1)),
    "cluster time that goes back": (25, lambda d: d.emit(K.NODE_UP, 0, t=desk_time(d) - 1)),
    "a GPU that is taken": (11, lambda d: d.start(1, [(0, [0])])),
    "cpus that are taken": (12, lambda d: (d.submit(2, gpu_task=0, cpu_task=7001), d.start(2, [(0, [])]))),
    "memory that is taken": (13, lambda d: (d.submit(2, gpu_task=0, mem_task=63 * GB + 1), d.start(2, [(0, [])]))),
    "a wanted GPU that is taken": (11, lambda d: d.want(1, [(0, [0])])),
    "a held GPU": (14, lambda d: (d.stop(0), d.start(1, [(0, [0])]))),
    "held cpus": (15, lambda d: (d.submit(2, gpu_task=0, cpu_task=7001), d.stop(0), d.start(2, [(0, [])]))),
    "held memory": (15, lambda d: (d.submit(2, gpu_task=0, mem_task=63 * GB + 1), d.stop(0), d.start(2, [(0, [])]))),
    "a gang that is too small": (17, lambda d: (d.submit(2, data=2), d.start(2, [(2, [0])]))),
    "a gang that is too large": (17, lambda d: d.start(1, [(2, [0]), (2, [1])])),
    "a GPU that the node does not have": (18, lambda d: d.start(1, [(0, [1])])),
    "a migration onto a taken GPU": (11, lambda d: (d.run(1, [(2, [0])]), d.stop(1, Reason.MIGRATED, [(0, [0])]))),
}


def desk_time(desk: Desk) -> int:
    return desk.count("now")


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_raises_with_the_sentence_and_the_story(what: str) -> None:
    desk = desk_with("running")
    desk.submit(1)
    code, act = WRONG[what]
    with pytest.raises(InvariantError, match=re.escape(INVARIANTS[code])) as error:
        act(desk)
    assert error.value.code == code and re.search(r"event \w+ at -?\d+ µs for attempt -?\d+; the job is ", str(error.value))


@pytest.mark.parametrize("kind", [0, 15, 43])
def test_a_kind_that_is_not_there_is_an_invariant_too(kind: int) -> None:
    desk = desk_with("running")
    with pytest.raises(InvariantError):
        desk.emit(kind, 0, 1)  # type: ignore[arg-type]


WANTED_TWICE, HELD_TWICE = ("booked", "tasks", "cpu", "mem"), ("held", "held_tasks", "held_cpu", "held_mem")
GIVES_BACK: list[tuple[str, EventKind, int, tuple[str, ...]]] = [  # where the job is, what happens, and what that gives back
    ("running", K.COMPLETED, 0, WANTED_TWICE + HELD_TWICE),
    ("running", K.FAILED, 0, WANTED_TWICE + HELD_TWICE),
    ("starting", K.START_FAILED, 0, WANTED_TWICE + HELD_TWICE),
    ("stopping", K.STOPPED, 0, HELD_TWICE),
    ("running", K.STOP_REQUESTED, Reason.PREEMPTED, WANTED_TWICE),
    ("migrating", K.STOP_REQUESTED, Reason.EARLY_STOP, WANTED_TWICE),
    ("migrating", K.CANCEL_REQUESTED, 0, WANTED_TWICE),
    ("migrating", K.UNWANTED, 0, WANTED_TWICE),
    ("placed", K.UNWANTED, 0, WANTED_TWICE),
    ("placed", K.WANTED, 0, WANTED_TWICE),
    ("placed", K.START_REQUESTED, 0, WANTED_TWICE),
    ("placed", K.CANCEL_REQUESTED, 0, WANTED_TWICE),
]


@pytest.mark.parametrize(("where", "kind", "a", "columns"), GIVES_BACK, ids=[f"{w}-{k.name}" for w, k, *_ in GIVES_BACK])
def test_what_would_be_given_back_twice_is_found(where: str, kind: EventKind, a: int, columns: tuple[str, ...]) -> None:
    for column in columns:
        desk = desk_with(where)
        desk.audited = False
        if column in c.GPU_COLUMN_NAMES:
            desk.state.G[c.GPU_COLUMN_NAMES.index(column)] = 0
        else:
            desk.state.N[c.NODE_COLUMN_NAMES.index(column)] = 0
        with pytest.raises(InvariantError, match="given back twice"):
            emit(desk, kind, a)


def test_a_start_while_processes_are_left_is_found() -> None:
    desk = desk_with("queued")
    desk.audited = False
    desk.state.J[c.J_HELD_TASKS, 0] = 2
    with pytest.raises(InvariantError, match="whose processes are not gone"):
        desk.start(0, BOTH)


# -- accounting ----------------------------------------------------------------------------------------------------
def test_waiting_run_and_attained_by_hand() -> None:
    desk = Desk((2,))
    desk.submit(0, gpu_task=300, share=1, t=1_000_000)
    desk.start(0, [(0, [0], 300)], t=1_500_000)
    desk.report(K.STARTED, 0, t=2_000_001)
    assert [desk.get(0, x) for x in ("waited", "last_wait", "first_start", "started_at")] == [
        1_000_001,
        500_000,
        2_000_001,
        2_000_001,
    ]
    desk.stop(0, t=4_500_000)
    desk.report(K.STOPPED, 0, t=4_500_005)
    # 2,500,004 µs on 300 milli: 2500 whole ms give 750,000 GPU·µs, and 4 µs · 300 = 1200 milli give 1 more
    assert [desk.get(0, x) for x in ("run", "attained", "started_at", "queued_at")] == [2_500_004, 750_001, -1, 4_500_005]
    desk.run(0, [(0, [1], 300)], t=5_000_000)
    desk.report(K.STOPPED, 0, t=5_000_003)
    # 3 µs · 300 = 900 milli: nothing whole; each period is rounded by itself
    assert [desk.get(0, x) for x in ("run", "attained", "waited", "last_wait")] == [
        2_500_007,
        750_001,
        1_000_001 + 499_995,
        499_995,
    ]
    assert desk.get(0, "first_start") == 2_000_001


def test_service_is_what_is_held_summed_over_the_gang() -> None:
    desk = Desk((4, 4))
    desk.submit(0, data=2, gpu_task=2000, t=0)
    desk.run(0, [(0, [0, 1]), (1, [2, 3])], t=10)
    assert desk.get(0, "held_milli") == 4000
    assert desk.view().attained_us(np.array([0])).tolist() == [0]
    desk.t = 1_000_017
    assert desk.view().attained_us(np.array([0])).tolist() == [4_000_028] and desk.view().run_us(np.array([0])).tolist() == [
        1_000_007
    ]
    desk.report(K.STOPPED, 0)
    assert (desk.get(0, "attained"), desk.get(0, "held_milli")) == (4_000_028, 0)


def test_a_job_that_never_came_up_has_got_nothing() -> None:
    desk = desk_with("starting")
    desk.stop(0, t=50 * US)
    desk.report(K.STOPPED, 0, t=60 * US)
    assert [desk.get(0, x) for x in ("run", "attained", "waited", "first_start")] == [0, 0, 0, -1]


def test_waiting_counts_from_the_last_stop_and_what_came_before_is_noted() -> None:
    desk = desk_with("running")
    desk.report(K.STOPPED, 0, t=10 * US)  # up from 2 s to 10 s on two GPUs
    desk.want(0, BOTH, t=17 * US)
    assert [desk.get(0, x) for x in ("last_wait", "attained_at_start", "run_at_start")] == [7 * US, 16 * US, 8 * US]
    desk.start(0, BOTH, t=19 * US)
    assert desk.get(0, "last_wait") == 7 * US, "what was noted when the place was given stays"
    desk.report(K.STARTED, 0, t=20 * US)
    assert desk.get(0, "waited") == 2 * US + 10 * US


def test_a_place_taken_away_again_does_not_restart_the_waiting() -> None:
    desk = Desk((1,))
    desk.submit(0, t=3)
    desk.want(0, [(0, [0])], t=10)
    desk.emit(K.UNWANTED, 0, a=Reason.PREEMPTED, t=20)
    assert desk.get(0, "queued_at") == 3 and desk.count("waiting") == 1 and desk.count("placed_waiting") == 0
    desk.start(0, [(0, [0])], t=30)
    assert desk.get(0, "last_wait") == 27


def test_completion_books_the_last_period_and_the_end() -> None:
    desk = desk_with("running")
    desk.report(K.COMPLETED, 0, t=5 * US)
    assert desk.state.row(0) is None and desk.state.ended_phase(0) == Phase.COMPLETED
    assert (desk.state.J[c.J_RUN, 0], desk.state.J[c.J_ATTAINED, 0], desk.state.J[c.J_REASON, 0]) == (3 * US, 6 * US, Reason.DONE)


# -- retries -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("kind", "reason"), [(K.FAILED, Reason.EXIT_CODE), (K.START_FAILED, Reason.START_FAILED)])
def test_retries_back_off_and_are_spent(kind: EventKind, reason: Reason) -> None:
    desk = Desk((1,))
    desk.submit(0, retry_max=8)
    assert BACKOFF_US == 10 * US
    for n, seconds in enumerate((10, 20, 40, 80, 160, 320, 320, 320), start=1):
        desk.start(0, [(0, [0])], t=1000 * n * US)
        desk.report(kind, 0)
        assert desk.phase(0) == Phase.QUEUED and desk.get(0, "not_before") == (1000 * n + seconds) * US
        assert [desk.get(0, x) for x in ("retries", "reason", "attempt", "placed")] == [n, reason, n, 0]
    desk.start(0, [(0, [0])])
    desk.report(kind, 0)
    assert desk.phase(0) == Phase.FAILED and desk.state.J[c.J_REASON, 0] == reason


def test_no_retries_means_that_the_first_failure_is_the_end() -> None:
    desk = Desk((1,))
    desk.submit(0, retry_max=0)
    desk.run(0, [(0, [0])])
    desk.report(K.FAILED, 0)
    assert desk.phase(0) == Phase.FAILED and desk.count("dead") == 1


@pytest.mark.parametrize("kind", [K.STOPPED, K.FAILED, K.START_FAILED])
def test_what_was_told_to_stop_spends_no_retry(kind: EventKind) -> None:
    desk = Desk((1,))
    desk.submit(0, retry_max=0)
    desk.start(0, [(0, [0])])
    desk.stop(0)
    desk.report(kind, 0)
    assert desk.phase(0) == Phase.QUEUED and [desk.get(0, x) for x in ("retries", "not_before", "reason")] == [
        0,
        0,
        Reason.PREEMPTED,
    ]


def test_a_stop_that_nobody_asked_for_spends_no_retry() -> None:
    desk = Desk((1,))
    desk.submit(0, retry_max=0)
    desk.run(0, [(0, [0])])
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.QUEUED and desk.get(0, "placed") == 0


# -- stops that end a job ------------------------------------------------------------------------------------------
ENDS = {Reason.CANCELLED: Phase.CANCELLED, Reason.EARLY_STOP: Phase.COMPLETED, Reason.TIME_LIMIT: Phase.FAILED}


@pytest.mark.parametrize(("reason", "end"), ENDS.items())
@pytest.mark.parametrize("kind", [K.STOPPED, K.FAILED, K.START_FAILED])
@pytest.mark.parametrize("where", ["starting", "running", "stopping", "migrating"])
def test_a_stop_with_an_ending_reason_ends_the_job_when_it_has_stopped(
    reason: Reason, end: Phase, kind: EventKind, where: str
) -> None:
    desk = desk_with(where)
    desk.stop(0, reason)
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "placed") == 0 and desk.get(0, "finishing") == reason
    desk.report(kind, 0)
    assert desk.phase(0) == end and desk.state.J[c.J_REASON, 0] == reason


@pytest.mark.parametrize("where", ["queued", "placed"])
def test_cancel_of_a_job_without_processes_ends_it_at_once(where: str) -> None:
    desk = desk_with(where)
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert desk.phase(0) == Phase.CANCELLED and desk.settle() == [] and desk.state.J[c.J_REASON, 0] == Reason.CANCELLED


@pytest.mark.parametrize("where", ["starting", "running"])
def test_cancel_of_a_job_with_processes_stops_it(where: str) -> None:
    desk = desk_with(where)
    desk.emit(K.CANCEL_REQUESTED, 0)
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert desk.count("must_stop") == 1
    assert desk.settle() == [K.STOP_REQUESTED] and desk.settle() == []
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "finishing") == Reason.CANCELLED
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.CANCELLED


@pytest.mark.parametrize("where", ["stopping", "migrating"])
def test_cancel_of_a_stopping_job_ends_it_when_it_has_stopped(where: str) -> None:
    desk = desk_with(where)
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert desk.settle() == [] and desk.get(0, "placed") == 0
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.CANCELLED


@pytest.mark.parametrize("kind", [K.STOPPED, K.FAILED, K.START_FAILED, K.COMPLETED])
def test_a_cancelled_job_that_goes_by_itself_before_it_is_told(kind: EventKind) -> None:
    desk = desk_with("starting")
    desk.emit(K.CANCEL_REQUESTED, 0)
    desk.report(kind, 0)
    assert desk.phase(0) == (Phase.COMPLETED if kind == K.COMPLETED else Phase.CANCELLED)
    assert desk.count("must_stop") == 0 and desk.settle() == []


def test_a_cancelled_job_that_fails_before_it_is_told_is_cancelled_whatever_its_retries() -> None:
    desk = Desk((1,))
    desk.submit(0, retry_max=0)
    desk.run(0, [(0, [0])])
    desk.emit(K.CANCEL_REQUESTED, 0)
    desk.report(K.FAILED, 0)
    assert desk.phase(0) == Phase.CANCELLED


# -- nodes ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("where", ["starting", "running"])
def test_a_lost_node_stops_the_jobs_on_it(where: str) -> None:
    desk = desk_with(where)
    desk.emit(K.NODE_DOWN, 1)
    assert desk.node(1, "phase") == NodePhase.DOWN and desk.count("gpus_up") == 3
    assert desk.settle() == [K.STOP_REQUESTED] and desk.get(0, "reason") == Reason.NODE_LOST and desk.get(0, "placed") == 0
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.QUEUED and desk.get(0, "retries") == 0


@pytest.mark.parametrize(("kind", "retries"), [(K.STOPPED, 0), (K.FAILED, 1), (K.START_FAILED, 1)])
def test_a_job_that_is_gone_before_it_is_told_to_leave_a_lost_node_just_queues(kind: EventKind, retries: int) -> None:
    desk = desk_with("starting")
    desk.emit(K.NODE_DOWN, 0)
    desk.report(kind, 0)
    assert (
        desk.phase(0) == Phase.QUEUED
        and desk.settle() == []
        and desk.get(0, "retries") == retries
        and desk.count("must_stop") == 0
    )


def test_a_stopping_job_on_a_lost_node_is_left_to_stop() -> None:
    desk = desk_with("stopping")
    desk.emit(K.NODE_DOWN, 0)
    assert desk.count("must_stop") == 0 and desk.settle() == []


def test_a_placed_job_gives_its_place_on_a_lost_node_up_and_goes_on_waiting() -> None:
    desk = desk_with("placed")
    desk.emit(K.NODE_DOWN, 1, t=4 * US)
    assert desk.settle() == [K.UNWANTED]
    assert (
        desk.phase(0) == Phase.QUEUED
        and desk.get(0, "placed") == 0
        and desk.get(0, "queued_at") == 0
        and desk.count("waiting") == 1
    )


def test_a_migrating_job_gives_up_the_place_on_a_lost_node_but_not_its_stop() -> None:
    desk = desk_with("migrating")
    desk.emit(K.NODE_DOWN, 2)
    assert desk.settle() == [K.UNWANTED]
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "placed") == 0
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.QUEUED and desk.count("waiting") == 1


def test_a_migrating_job_whose_old_node_is_lost_keeps_its_new_place() -> None:
    desk = desk_with("migrating")
    desk.emit(K.NODE_DOWN, 0)
    assert desk.count("must_stop") == 0
    desk.report(K.STOPPED, 0)
    assert desk.get(0, "placed") == 1 and desk.settle() == [K.START_REQUESTED]


def test_a_migrating_job_that_stops_at_the_instant_its_new_node_is_lost_waits_again() -> None:
    desk = desk_with("migrating")
    desk.emit(K.NODE_DOWN, 2)
    desk.report(K.STOPPED, 0)
    desk.settle()
    assert desk.phase(0) == Phase.QUEUED and desk.get(0, "placed") == 0


def test_a_migrating_job_cancelled_at_the_instant_its_new_node_is_lost_just_stops() -> None:
    desk = desk_with("migrating")
    desk.emit(K.NODE_DOWN, 2)
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.phase(0) == Phase.CANCELLED


def test_a_cancelled_job_on_a_lost_node_is_cancelled_in_either_order() -> None:
    for first, second in ((K.NODE_DOWN, K.CANCEL_REQUESTED), (K.CANCEL_REQUESTED, K.NODE_DOWN)):
        desk = desk_with("running")
        desk.emit(first, 0)
        desk.emit(second, 0)
        assert desk.count("must_stop") == 1 and desk.settle() == [K.STOP_REQUESTED]
        desk.report(K.STOPPED, 0)
        assert desk.phase(0) == Phase.CANCELLED


def test_a_node_that_is_back_before_anybody_looked_has_still_lost_its_jobs() -> None:
    desk = desk_with("running")
    desk.emit(K.NODE_DOWN, 0)
    desk.emit(K.NODE_UP, 0)
    assert desk.count("gpus_up") == 4 and desk.settle() == [K.STOP_REQUESTED]


def test_draining_leaves_the_jobs_alone_and_takes_the_node_out_of_the_buckets() -> None:
    desk = desk_with("running")
    desk.emit(K.NODE_DRAINING, 2)
    desk.emit(K.NODE_DRAINING, 0)
    assert desk.count("gpus_up") == 1 and desk.settle() == [] and desk.phase(0) == Phase.RUNNING
    desk.report(K.COMPLETED, 0)  # the audit after it holds the node's free GPUs and the buckets against a recount
    assert desk.node(0, "free") == 1
    desk.emit(K.NODE_UP, 0)
    desk.emit(K.NODE_UP, 0)
    assert desk.count("gpus_up") == 2
    desk.emit(K.NODE_DOWN, 2)
    desk.emit(K.NODE_DRAINING, 2)
    assert desk.count("gpus_up") == 2 and desk.node(2, "phase") == NodePhase.DRAINING


def test_a_placed_job_does_not_start_on_a_lost_node_but_does_on_a_draining_one() -> None:
    desk = Desk((1, 1))
    desk.submit(0)
    desk.submit(1)
    desk.run(0, [(0, [0])])
    desk.stop(0)
    desk.want(1, [(0, [0])])
    desk.emit(K.NODE_DRAINING, 0)
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [K.START_REQUESTED]


def test_nothing_starts_on_a_lost_node() -> None:
    desk = Desk((1, 1))
    desk.submit(0)
    desk.emit(K.NODE_DOWN, 0)
    desk.want(0, [(0, [0])])
    assert desk.settle() == []
    desk.emit(K.NODE_UP, 0)
    assert desk.settle() == [K.START_REQUESTED]


def test_a_wanted_place_whose_node_was_lost_is_given_up_though_it_is_back() -> None:
    desk = Desk((1,))
    desk.submit(0)
    desk.want(0, [(0, [0])])
    desk.emit(K.NODE_DOWN, 0)
    desk.emit(K.NODE_UP, 0)
    assert desk.settle() == [K.UNWANTED] and desk.count("waiting") == 1


def test_two_jobs_on_one_gpu() -> None:
    desk = Desk((2,))
    for job in range(2):
        desk.submit(job, gpu_task=400, share=1)
        desk.run(job, [(0, [0], 400)])
    assert [desk.gpu(0, x) for x in ("booked", "tasks", "held", "held_tasks", "used")] == [800, 2, 800, 2, 800]
    desk.report(K.COMPLETED, 0)
    assert desk.node(0, "free_mask") == 0b10 and desk.node(0, "held_mask") == 0b01
    desk.report(K.COMPLETED, 1)
    assert desk.node(0, "free_mask") == 0b11 and desk.node(0, "held_mask") == 0


# -- the rare events -----------------------------------------------------------------------------------------------
def test_observations() -> None:
    desk = desk_with("running")
    nothing = c.NOTHING
    steps = [  # units, loss, accuracy -> units_done, loss, accuracy, loss_drops, loss_drop_last
        ((5, nothing, nothing), (5, nothing, nothing, 0, 0)),
        ((3, 900, nothing), (5, 900, nothing, 0, 0)),
        ((7, 650, 100), (7, 650, 100, 250, 250)),
        ((7, 800, nothing), (7, 800, 100, 250, 0)),
        ((7, 800, 50), (7, 800, 50, 250, 0)),
        ((8, 790, nothing), (8, 790, 50, 260, 10)),
        ((0, nothing, nothing), (8, 790, 50, 260, 10)),
        ((9, -210, nothing), (9, -210, 50, 1260, 1000)),
    ]
    for told, known in steps:
        desk.report(K.OBSERVED, 0, a=told[0], b=told[1], c=told[2])
        assert tuple(desk.get(0, x) for x in ("units_done", "loss", "accuracy", "loss_drops", "loss_drop_last")) == known


def test_saved_units_never_go_back_and_a_stop_falls_back_to_them() -> None:
    desk = desk_with("running")
    desk.report(K.OBSERVED, 0, a=50, b=c.NOTHING, c=c.NOTHING)
    desk.report(K.SAVED, 0, a=40)
    desk.report(K.SAVED, 0, a=30)
    assert desk.get(0, "units_saved") == 40
    desk.report(K.STOPPED, 0, b=35)
    assert (desk.get(0, "units_saved"), desk.get(0, "units_done")) == (40, 40)
    desk.run(0, BOTH)
    desk.report(K.OBSERVED, 0, a=60, b=c.NOTHING, c=c.NOTHING)
    desk.report(K.STOPPED, 0, b=-1)
    assert (desk.get(0, "units_saved"), desk.get(0, "units_done")) == (40, 60), "nothing told, nothing changed"


def test_usage_moves_what_is_used_on_the_held_place_and_goes_with_it() -> None:
    desk = Desk((4,))
    desk.submit(0, data=2, gpu_task=2000, cpu_task=1000, mem_task=5, net_task=7)
    desk.run(0, [(0, [0, 1]), (0, [2, 3])])
    assert [desk.gpu(g, "used") for g in range(4)] == [1000] * 4
    assert [desk.node(0, x) for x in ("use_cpu", "use_mem", "use_net", "net")] == [2000, 10, 14, 14]
    desk.emit(K.USAGE, 0, 1, a=1, payload=(1501, 300, 50, 0))
    assert [desk.gpu(g, "used") for g in range(4)] == [1000, 1000, 750, 750]
    assert [desk.node(0, x) for x in ("use_cpu", "use_mem", "use_net")] == [1300, 55, 7]
    before = tables(desk)
    for task in (-1, 2, 99):
        desk.emit(K.USAGE, 0, 1, a=task, payload=(1, 1, 1, 1))
    assert tables(desk) == before, "a task that the job does not have"
    desk.stop(0, Reason.PREEMPTED)
    desk.emit(K.USAGE, 0, 1, a=0, payload=(10, 10, 10, 10))
    assert [desk.gpu(g, "used") for g in range(4)] == [5, 5, 750, 750]
    desk.report(K.STOPPED, 0)
    assert [desk.gpu(g, "used") for g in range(4)] == [0] * 4 and desk.node(0, "use_cpu") == desk.node(0, "use_mem") == desk.node(
        0, "use_net"
    ) == 0


def test_the_usage_of_a_task_without_gpus() -> None:
    desk = Desk((1,))
    desk.submit(0, gpu_task=0, cpu_task=1000)
    desk.run(0, [(0, [])])
    desk.emit(K.USAGE, 0, 1, a=0, payload=(0, 250, 0, 0))
    assert desk.node(0, "use_cpu") == 250 and desk.gpu(0, "used") == 0


def test_estimates() -> None:
    desk = Desk((1,))
    desk.submit(0, estimate=77)
    assert desk.get(0, "estimated_remaining") == 77
    bits = np.array([1.5, -0.25, 1e300], np.float64).view(np.int64).tolist()
    desk.emit(K.ESTIMATED, 0, a=c.Estimator.CURVE, b=1, c=5, payload=bits)
    assert desk.state.F[8:12, 0].tolist() == [1.5, -0.25, 1e300, 0.0] and desk.get(0, "estimated_remaining") == 77
    desk.emit(K.ESTIMATED, 0, a=c.Estimator.REMAINING, b=2, c=123)
    assert desk.get(0, "estimated_remaining") == 123
    many = np.arange(1.0, 11.0).view(np.int64).tolist()
    desk.emit(K.ESTIMATED, 0, a=c.Estimator.SPEED, payload=many)
    assert desk.state.F[16:24, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8], "no more parameters than there is room for"
    assert desk.state.F[:8, 0].tolist() == desk.state.F[24:, 0].tolist() == [0.0] * 8


def test_rule_why_hold_priority_round_and_refusals() -> None:
    desk = desk_with("running")
    generation = desk.get(0, "generation")
    desk.emit(K.RULE_SET, 0, a=2)
    desk.emit(K.WHY, 0, a=Reason.NO_ROOM, b=4, c=1)
    assert desk.get(0, "generation") == generation
    desk.emit(K.HOLD_SET, 0, a=1)
    generation = desk.get(0, "generation")
    assert generation == desk.count("sequence"), "holding a job is a change of it"
    desk.emit(K.PRIORITY_SET, 0, a=90)
    desk.emit(K.ESTIMATE_REQUESTED, 0, a=1)
    assert [desk.get(0, x) for x in ("rule_in_force", "why", "why_a", "why_b", "hold", "priority")] == [
        2,
        Reason.NO_ROOM,
        4,
        1,
        1,
        90,
    ]
    assert (desk.count("priority_min"), desk.count("priority_max")) == (50, 90)
    desk.emit(K.PRIORITY_SET, 0, a=3)
    assert (desk.count("priority_min"), desk.count("priority_max")) == (3, 90)
    assert desk.get(0, "generation") == generation
    desk.emit(K.REFUSED, 0)
    desk.emit(K.REFUSED, 0)
    assert desk.count("refused_in_row") == 2
    desk.emit(K.ROUND, a=1, b=1)
    assert (desk.count("refused_in_row"), desk.count("rounds")) == (2, 1), "the fallback decided"
    desk.emit(K.ROUND, a=1)
    assert (desk.count("refused_in_row"), desk.count("rounds")) == (0, 2)
    desk.emit(K.EPOCH, a=12)
    assert desk.count("epoch") == 12


def test_updates() -> None:
    desk = desk_with("running")
    before = tables(desk)
    values = {c.J_DEADLINE: 7 * US, c.J_URGENCY: 9, c.J_ESTIMATE: 5 * US, c.J_TIME_LIMIT: 60 * US}
    for column, value in values.items():
        desk.emit(K.UPDATED, 0, a=column, b=value, c=33)
        assert desk.state.J[column, 0] == value and desk.get(0, "generation") == desk.count("sequence")
    assert desk.phase(0) == Phase.RUNNING and desk.count("stale") == 0
    assert desk.get(0, "estimated_remaining") == 5 * US, "it had not been estimated"
    desk.emit(K.ESTIMATED, 0, a=c.Estimator.REMAINING, b=1, c=3 * US)
    desk.emit(K.UPDATED, 0, a=c.J_ESTIMATE, b=8 * US)
    assert (desk.get(0, "estimate"), desk.get(0, "estimated_remaining")) == (8 * US, 3 * US)
    changed = {c.SPEC_COLUMN_NAMES[x] for x in values} | {"estimated_remaining", "generation"}
    names, old = c.JOB_COLUMN_NAMES, np.frombuffer(before[0], np.int64).reshape(c.JOB_COLUMNS, -1)
    assert {names[x] for x in np.flatnonzero(old[:, 0] != desk.state.J[:, 0])} == changed


def test_a_queue_changes_while_a_job_waits() -> None:
    desk = desk_with("queued")
    for queue in (1, 2):
        desk.emit(K.QUEUE_SET, queue, payload=[-1, -1, 1, -1])
    waiting = desk.state.Q[c.Q_WAITING].copy()
    desk.emit(K.UPDATED, 0, a=c.J_QUEUE, b=2)
    assert (desk.state.Q[c.Q_WAITING] - waiting).tolist() == [-1, 0, 1] and desk.get(0, "queue") == 2
    verify(desk.state)


@pytest.mark.parametrize("where", ["placed", "running", "stopping", "migrating"])
def test_no_other_jobs_queue_changes(where: str) -> None:
    desk = desk_with(where)
    with pytest.raises(InvariantError, match="an impossible transition"):
        desk.emit(K.UPDATED, 0, a=c.J_QUEUE, b=0)


@pytest.mark.parametrize("queue", [-1, 1, 99])
def test_a_queue_that_there_is_not_is_no_update(queue: int) -> None:
    desk = desk_with("queued")
    with pytest.raises(InvariantError, match="a queue that the cluster does not have"):
        desk.emit(K.UPDATED, 0, a=c.J_QUEUE, b=queue)


@pytest.mark.parametrize("column", [*sorted(set(range(c.JOB_COLUMNS)) - set(c.UPDATABLE)), -1, c.JOB_COLUMNS])
def test_nothing_else_is_updated(column: int) -> None:
    desk = desk_with("queued")
    with pytest.raises(InvariantError, match="an impossible transition"):
        desk.emit(K.UPDATED, 0, a=column, b=1)


def test_an_update_of_a_job_that_has_ended_is_stale() -> None:
    desk = desk_with("ended")
    before, stale = tables(desk), desk.count("stale")
    for kind in (K.UPDATED, K.HOLD_SET, K.PRIORITY_SET):
        desk.emit(kind, 0, a=c.J_URGENCY, b=1)
    assert tables(desk) == before and desk.count("stale") == stale + 3


def test_a_requeued_job_spends_nothing() -> None:
    desk = desk_with("running")
    desk.stop(0, Reason.REQUEUED, t=3 * US)
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "reason") == Reason.REQUEUED
    desk.emit(K.STOPPED, 0, 1, a=Reason.REQUEUED, b=-1, t=4 * US)
    assert desk.phase(0) == Phase.QUEUED
    assert [desk.get(0, x) for x in ("retries", "preemptions", "migrations", "finishing", "placed", "not_before")] == [0] * 6


def test_a_finished_or_rejected_job_keeps_the_reason_it_was_given() -> None:
    for kind, reason, phase in (
        (K.FINISHED, Reason.EARLY_STOP, Phase.COMPLETED),
        (K.FINISHED, Reason.TIME_LIMIT, Phase.FAILED),
        (K.REJECTED, Reason.UNKNOWN_QUEUE, Phase.REJECTED),
    ):
        desk = desk_with("placed")
        desk.emit(kind, 0, a=reason)
        assert (
            desk.phase(0) == phase
            and desk.state.J[c.J_REASON, 0] == reason
            and desk.count("rejected") == (phase == Phase.REJECTED)
        )


# -- another shape -------------------------------------------------------------------------------------------------
def elastic(where: str) -> Desk:
    """Job 0 in one of 1 to 4 replicas on node 0; jobs 1 and 2 behind it."""
    desk = Desk((4, 4))
    desk.submit(0, data=2, data_max=4, data_min=1, pipeline=1, batch=64)
    desk.submit(1)
    if where == "running":
        desk.run(0, [(0, [0]), (0, [1])])
    return desk


def test_a_start_in_another_shape() -> None:
    desk = elastic("queued")
    desk.start(0, [(0, [0]), (0, [1]), (0, [2])], data=3, batch=96)
    assert [desk.get(0, x) for x in ("data", "tasks", "workers", "gpus", "gpu_milli", "batch", "held_milli")] == [
        3,
        3,
        3,
        3,
        3000,
        96,
        3000,
    ]
    assert [t["replica"] for t in desk.tasks(0)] == [0, 1, 2] and desk.count("dead_tasks") == 2
    desk.report(K.STOPPED, 0)
    desk.start(0, [(1, [0])], data=1, batch=96)
    assert desk.get(0, "held_milli") == 1000 and desk.count("dead_tasks") == 5


def test_a_wanted_place_in_another_shape() -> None:
    desk = elastic("queued")
    desk.want(0, [(0, [0]), (0, [1]), (0, [2])], data=3)
    assert desk.get(0, "tasks") == 3 and desk.queue(0, "booked") == 3000
    desk.want(0, [(1, [0])], data=1)
    assert desk.get(0, "tasks") == 1 and desk.queue(0, "booked") == 1000 and desk.node(0, "free") == 4
    desk.start(0, [(1, [1])], data=1)
    assert desk.get(0, "held_milli") == 1000 and desk.node(1, "free_mask") == 0b1101


def test_a_running_job_keeps_the_block_of_its_old_shape_until_it_has_stopped() -> None:
    desk = elastic("running")
    old = desk.get(0, "task0")
    desk.stop(0, Reason.RESIZED, [(1, [k]) for k in range(4)], data=4, batch=128)
    assert [desk.get(0, x) for x in ("data", "tasks", "held_tasks", "held_milli", "held_task0", "migrations", "batch")] == [
        4,
        4,
        2,
        2000,
        old,
        1,
        128,
    ]
    assert desk.node(0, "held_mask") == 0b11 and desk.node(0, "free") == 4 and desk.node(1, "free") == 0
    desk.emit(K.USAGE, 0, 1, a=1, payload=(500, 0, 0, 0))
    assert desk.gpu(1, "used") == 500, "usage is that of the old shape"
    desk.report(K.STOPPED, 0)
    assert (
        desk.phase(0) == Phase.QUEUED
        and desk.get(0, "placed") == 1
        and desk.node(0, "held_mask") == 0
        and desk.count("dead_tasks") == 2
    )
    assert desk.settle() == [K.START_REQUESTED] and desk.get(0, "held_milli") == 4000 and desk.get(0, "attempt") == 2


def test_a_resized_job_whose_new_place_is_lost_queues_in_its_new_shape() -> None:
    desk = elastic("running")
    desk.stop(0, Reason.RESIZED, [(1, [0])], data=1)
    desk.emit(K.NODE_DOWN, 1)
    assert desk.settle() == [K.UNWANTED]
    desk.report(K.STOPPED, 0)
    assert desk.get(0, "data") == 1 and desk.get(0, "held_task0") == -1 and desk.count("waiting") == 2


def test_a_resized_job_that_completes_frees_both_shapes() -> None:
    desk = elastic("running")
    desk.stop(0, Reason.RESIZED, [(1, [0])], data=1)
    desk.report(K.COMPLETED, 0)
    assert (
        desk.phase(0) == Phase.COMPLETED
        and desk.node(0, "held_mask") == 0
        and desk.node(1, "free") == 4
        and desk.count("dead_tasks") == 3
    )


def test_servers_come_and_go_with_the_shape() -> None:
    desk = Desk((4,))
    desk.submit(0, data=1, sync=2, servers=1, server_cpu=500, server_mem=3, sync_bytes=10)
    desk.run(0, [(0, [0]), (0, [])])
    assert desk.node(0, "held_cpu") == 1500 and desk.node(0, "mem") == GB + 3
    desk.stop(0, Reason.RESIZED, [(0, [0]), (0, []), (0, [])], servers=2)
    assert desk.node(0, "cpu") == 2000 and desk.get(0, "servers") == 2 and desk.get(0, "workers") == 1
    desk.report(K.STOPPED, 0)
    assert desk.node(0, "held_cpu") == 0 and desk.settle() == [K.START_REQUESTED] and desk.node(0, "held_cpu") == 2000


def test_a_wanted_place_takes_the_batch_size_along() -> None:
    desk = elastic("queued")
    desk.want(0, [(0, [0]), (0, [1])], batch=256)
    desk.settle()
    assert desk.get(0, "batch") == 256


def full_table() -> tuple[Desk, int]:
    """A table whose task rows are all taken, by job 0 (elastic) and others behind it; how many those are."""
    desk = Desk((4, 4), tasks=4)
    desk.submit(0, data_min=1, data_max=4, data=1)
    others = 0
    while desk.count("tasks") < desk.state.T.shape[1]:
        others += 1
        desk.submit(others)
    return desk, others


THREE: list[tuple[int, list[int]]] = [(1, [0]), (1, [1]), (1, [2])]


def test_a_wanted_place_for_which_the_task_table_has_to_grow() -> None:
    desk, others = full_table()
    desk.want(0, THREE, data=3)
    assert desk.count("waiting") == others and desk.count("placed_waiting") == 1


def test_another_wanted_place_for_which_the_task_table_has_to_grow() -> None:
    desk, others = full_table()
    desk.want(0, [(0, [0])])
    desk.want(0, THREE, data=3)
    assert desk.count("waiting") == others and desk.count("placed_waiting") == 1 and desk.get(0, "tasks") == 3


def test_a_start_of_a_placed_job_for_which_the_task_table_has_to_grow() -> None:
    desk, others = full_table()
    desk.want(0, [(0, [0])])
    desk.start(0, THREE, data=3)
    assert desk.count("waiting") == desk.count("queued") == others


def test_a_start_for_which_the_task_table_has_to_grow() -> None:
    desk, others = full_table()
    desk.start(0, THREE, data=3)
    assert desk.count("waiting") == others and desk.get(0, "held_milli") == 3000


def test_a_resize_for_which_the_task_table_has_to_grow() -> None:
    desk, _ = full_table()
    desk.run(0, [(0, [0])])
    desk.stop(0, Reason.RESIZED, THREE, data=3)
    assert desk.get(0, "tasks") == 3 and desk.count("running") == 0 and desk.get(0, "migrations") == 1


def test_a_start_for_which_the_edge_table_has_to_grow() -> None:
    desk = Desk((4, 4), edges=2)
    desk.submit(0, data=1, data_max=3, pipeline=2, cut=1)
    desk.start(0, [(k // 4, [k % 4]) for k in range(6)], data=3)
    assert desk.state.X.shape[1] >= desk.count("edges") == 4 and [t["edges"] for t in desk.tasks(0)] == [1, 0] * 3


def test_a_submission_that_does_not_fit_is_applied_once() -> None:
    desk = Desk((1,), jobs=1, tasks=1, edges=1)
    for job in range(70):
        desk.submit(job, data=1, pipeline=3, cut=1)
    assert desk.count("rows") == 70 and desk.count("tasks") == 210 and desk.count("edges") == 140
    assert [t["edges"] for t in desk.tasks(69)] == [1, 1, 0]


def test_spec_payload_is_what_the_row_begins_with() -> None:
    desk = Desk((1,))
    numbers = list(range(1000, 1000 + c.SPEC_COLUMNS))
    for name, value in {
        "data": 1,
        "pipeline": 1,
        "tensor": 1,
        "servers": 0,
        "queue": 0,
        "cut": 0,
        "width": 1,
        "details": 0,
    }.items():
        numbers[c.SPEC_COLUMN_NAMES.index(name)] = value
    desk.emit(K.SUBMITTED, 3, payload=numbers)
    assert desk.state.J[: c.SPEC_COLUMNS, 0].tolist() == numbers
    assert desk.get(3, "rule_in_force") == desk.get(3, "stop_rule") and desk.get(3, "estimated_remaining") == desk.get(
        3, "estimate"
    )
    assert desk.get(3, "loss") == desk.get(3, "accuracy") == c.NOTHING and desk.get(3, "trial_until") == c.NEVER
    assert len(spec()) == c.SPEC_COLUMNS


def test_nothing_happens_in_an_empty_batch() -> None:
    desk = Desk((1,))
    before = desk.state.digest()
    desk.state.apply(EventBuffer().take())
    assert desk.state.digest() == before
