"""Who gives way: of jobs that rank as equals the one whose stop loses the least work; expected values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Op, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.core.view import ClusterView
from headway.place.victims import LOST_MAX, at_risk_us, equals_by_loss, goes_first, least_lost_last, lost_work, sort
from headway.policies.registry import make_policy
from headway.testing import builders
from headway.testing.builders import JobSketch, cluster, job
from headway.workloads.cluster import Cluster, Queue

US = 1_000_000
HOURS = 3600
K = EventKind


def tell(state: State, kind: EventKind, number: int, at_s: float, attempt: int = 1, **fields: int) -> None:
    out = EventBuffer()
    out.add(round(at_s * US), kind, number, attempt, **fields)  # type: ignore[arg-type]
    state.apply(out.take())


def running(*jobs: JobSketch, nodes: Cluster | None = None, at_s: float = 0) -> State:
    """A state in which all of these run side by side on the GPUs of one node, since `at_s`."""
    first, where = 0, {}
    for it in jobs:
        where[it.name] = [(0, [first + g]) for g in range(int(it.gpus))]
        first += int(it.gpus)
    return builders.state(nodes or cluster([first]), jobs, running=where, at_s=at_s)


# -- what is lost ---------------------------------------------------------------------------------------------------
def test_what_is_lost_by_hand() -> None:
    """Two GPUs: up at 100 s, a checkpoint of ten units at 700 s, a stop at 1300 s, up again at 2000 s."""
    state = running(job("a", 2, grace_s=30), at_s=100)
    J = state.J

    def lost(at_s: int) -> tuple[float, int]:
        return at_risk_us(J, 0, at_s * US) / US, lost_work(J, 0, at_s * US)

    assert J[c.J_SAVED_AT, 0] == -1
    assert lost(100) == (0, 0) and lost(129) == (29, 0) and lost(130) == (30, 1) and lost(700) == (600, 20)
    tell(state, K.SAVED, 0, 700, a=10)
    assert (J[c.J_SAVED_AT, 0], J[c.J_UNITS_SAVED, 0]) == (700 * US, 10)
    assert lost(700) == (0, 0) and lost(1300) == (600, 20)
    tell(state, K.SAVED, 0, 1000, a=9)
    assert lost(1300) == (600, 20), "a checkpoint of fewer units than are safe makes nothing safe"
    tell(state, K.SAVED, 0, 1100, attempt=2, a=99)
    assert lost(1300) == (600, 20), "one of another attempt is not its own"
    tell(state, K.STOP_REQUESTED, 0, 1300, a=Reason.PREEMPTED)
    assert lost(1400) == (0, 0), "it has been told to stop already"
    tell(state, K.STOPPED, 0, 1400, a=Reason.PREEMPTED, b=-1)
    assert lost(1500) == (0, 0), "what it had not saved is gone"
    out = EventBuffer()
    out.add(2000 * US, K.START_REQUESTED, 0, 2, b=2, payload=builders.place_ints(job("a", 2), [(0, [0]), (0, [1])]))
    out.add(2000 * US, K.STARTED, 0, 2)
    state.apply(out.take())
    assert J[c.J_PHASE, 0] == Phase.RUNNING and lost(2060) == (60, 2), "since this attempt came up, not since the checkpoint"


def test_who_has_all_the_time_to_save_itself_loses_nothing() -> None:
    """A grace of 0 has no limit: jobs of simulated workloads."""
    state = running(job("a", 2))
    assert lost_work(state.J, 0, 10**9 * US) == 0


# -- orders ---------------------------------------------------------------------------------------------------------
def test_sorting_in_place() -> None:
    r = np.random.default_rng(1)
    for size in [*range(20), 1000]:
        numbers = r.integers(0, 2**62 if size % 2 else 5, size)
        expected = np.sort(numbers)
        sort(numbers)
        assert np.array_equal(numbers, expected)


def test_the_order_of_equals() -> None:
    """After two hours: a saved itself an hour ago (60 GPU-minutes), b never (120), c just now, d never, on two GPUs (240), and e
    as c. Ties stand as they are."""
    state = running(*[job(name, 2 if name == "d" else 1, grace_s=30) for name in "abcde"])
    for row, at_s in ((0, HOURS), (2, 2 * HOURS), (4, 2 * HOURS)):
        tell(state, K.SAVED, row, at_s, a=1)
    now, work = 2 * HOURS * US, np.zeros(5, np.int64)
    assert [lost_work(state.J, row, now) for row in range(5)] == [60, 120, 0, 240, 0]
    rows = np.arange(5)
    least_lost_last(rows, 0, 5, now, state.J, work)
    assert rows.tolist() == [3, 1, 0, 2, 4]
    rows = np.arange(5)
    least_lost_last(rows, 1, 3, now, state.J, work)
    assert rows.tolist() == [0, 1, 2, 3, 4], "b before c already"
    keys = np.array([7 << c.ROW_BITS | row for row in (0, 1)] + [8 << c.ROW_BITS | row for row in (2, 3, 4)], np.int64)
    equals_by_loss(keys, 5, now, state.J, work)
    assert (keys & c.ROW_MASK).tolist() == [1, 0, 3, 2, 4] and (keys >> c.ROW_BITS).tolist() == [7, 7, 8, 8, 8]


def test_a_waiting_equal_comes_first_when_it_has_waited_for_longer_than_the_other_has_to_lose() -> None:
    """b has run since 100 s, a came before it and waits since 0 s. Until b saves itself it is always a hundred seconds behind."""
    state = builders.state(cluster([1]), [job("a", 1, grace_s=30), job("b", 1, grace_s=30)], running={"b": [(0, [0])]}, at_s=100)
    a, b = 5 << c.ROW_BITS, 5 << c.ROW_BITS | 1
    assert not goes_first(b, a, state.J, 900 * US)
    state.J[c.J_QUEUED_AT, 0] = 200 * US
    assert goes_first(b, a, state.J, 900 * US), "it has 800 s at risk, and the other has waited for 700 s"
    tell(state, K.SAVED, 1, 400, a=1)
    assert not goes_first(b, a, state.J, 900 * US), "500 s"
    state.J[c.J_QUEUED_AT, 0] = 890 * US
    assert goes_first(b, a, state.J, 900 * US)
    assert not goes_first(6 << c.ROW_BITS | 1, a, state.J, 900 * US), "another rank stays another rank"
    assert goes_first(a, b, state.J, 900 * US), "who came first needs no such reason"


# -- whole decisions ------------------------------------------------------------------------------------------------
EQUALS = ["tiresias:threshold=100000", "las:quantum=100000", "edf"]
"""Under these, two jobs of one size that have run for as long rank as equals."""
WAYS = ["", "sharing=true", "quota", "limit"]


def with_words(policy: str, way: str) -> str:
    return policy if way != "sharing=true" else f"{policy}{',' if ':' in policy else ':'}{way}"


def released(state: State, policy: str, at_s: float) -> list[int]:
    """Numbers of the jobs that a decision takes their place from."""
    plan = make_policy(policy).decide(ClusterView(state, round(at_s * US), 0), None)
    return sorted(plan.overrides[plan.overrides[:, c.O_OP] == Op.RELEASE][:, c.O_JOB].tolist())


def two_and_one(way: str, saved: int, *, priority: int = 90, **more: float) -> State:
    """Two jobs of two GPUs that have run for three hours on four; one of them saved itself ten seconds ago. A third one comes."""
    where = cluster([4])
    if way in ("quota", "limit"):
        where = Cluster(where.name, where.nodes, where.kinds, (Queue("default", 4 if way == "quota" else None, 4),))
    jobs = [job(name, 2, 9 * HOURS, grace_s=30, **more) for name in "ab"]
    jobs.append(job("high", 2, 60, 3 * HOURS + 10, grace_s=30, priority=priority))
    state = builders.state(where, jobs[:2], running={"a": [(0, [0]), (0, [1])], "b": [(0, [2]), (0, [3])]}, at_s=0)
    tell(state, K.SAVED, saved, 3 * HOURS, a=100)
    state.apply(builders.submissions(builders.workload(jobs[2:]), 2))
    return state


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", EQUALS)
@pytest.mark.parametrize("saved", [0, 1])
def test_of_two_equals_the_one_goes_that_saved_itself_ten_seconds_ago(policy: str, way: str, saved: int) -> None:
    assert released(two_and_one(way, saved), with_words(policy, way), 3 * HOURS + 10) == [saved]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", EQUALS)
def test_nobody_is_stopped_for_the_one_that_was_and_came_before(policy: str, way: str) -> None:
    """When a has been stopped for the third job, b (three hours at risk) is not stopped for a, who came first, until b has saved
    itself too."""
    state, spec = two_and_one(way, 0), with_words(policy, way)
    tell(state, K.STOP_REQUESTED, 0, 3 * HOURS + 11, a=Reason.PREEMPTED)
    tell(state, K.STOPPED, 0, 3 * HOURS + 12, a=Reason.PREEMPTED, b=-1)
    out = EventBuffer()
    place = builders.place_ints(job("high", 2), [(0, [0]), (0, [1])])
    out.add((3 * HOURS + 12) * US, K.START_REQUESTED, 2, 1, b=2, payload=place)
    out.add((3 * HOURS + 12) * US, K.STARTED, 2, 1)
    state.apply(out.take())
    assert released(state, spec, 3 * HOURS + 13) == [] and released(state, spec, 8 * HOURS) == []
    tell(state, K.SAVED, 1, 8 * HOURS, a=500)
    assert released(state, spec, 8 * HOURS + 1) == [1]


@pytest.mark.parametrize("policy", [*EQUALS, "srtf", "drf", "borg-fair", "graphene", "slaq"])
@pytest.mark.parametrize("way", WAYS)
def test_the_lowest_user_priority_goes_first_whatever_it_loses(policy: str, way: str) -> None:
    state = two_and_one(way, 1)
    state.J[c.J_PRIORITY, 0] = 10
    state.C[c.C_PRIORITY_MIN] = 10
    assert released(state, with_words(policy, way), 3 * HOURS + 10) == [0]


def test_of_those_that_were_not_selected_the_one_goes_that_loses_least() -> None:
    """Srtf, four GPUs: a (two GPUs, the longest) and b (one, the second longest, saved just now) are not selected where c keeps
    its one and the third job wants one of three: one of them gives way, and b loses least."""
    jobs = [job("a", 2, 9 * HOURS, grace_s=30), job("b", 1, 8 * HOURS, grace_s=30), job("c", 1, 4 * HOURS, grace_s=30)]
    late = [job("s1", 1, 60, 3 * HOURS, grace_s=30), job("s2", 2, 120, 3 * HOURS, grace_s=30)]
    places = {"a": [(0, [0]), (0, [1])], "b": [(0, [2])], "c": [(0, [3])]}
    state = builders.state(cluster([4]), jobs, running=places, at_s=0)
    tell(state, K.SAVED, 1, 3 * HOURS, a=1)
    state.apply(builders.submissions(builders.workload(late), 3))
    # By rank s1, s2, c take all four: a and b are not selected. s1 is placed over b alone, s2 over a too.
    plan = make_policy("srtf").decide(ClusterView(state, 3 * HOURS * US, 0), None)
    orders = [(int(o[c.O_JOB]), Op(int(o[c.O_OP]))) for o in plan.overrides]
    assert orders.index((1, Op.RELEASE)) < orders.index((0, Op.RELEASE))


def test_claims_take_back_from_who_loses_least() -> None:
    """Queue one has lent its two GPUs to jobs of queue two, which has none of its own; of these the second saved itself now."""
    base = cluster([2])
    where = Cluster(base.name, base.nodes, base.kinds, (Queue("one", 2), Queue("two", 0)))
    jobs = [job(name, 1, 9 * HOURS, grace_s=30, queue=1) for name in "ab"]
    for saved in (0, 1):
        state = builders.state(where, jobs, running={"a": [(0, [0])], "b": [(0, [1])]}, at_s=0, queues=("one", "two"))
        tell(state, K.SAVED, saved, HOURS, a=1)
        late = builders.workload([job("claim", 1, 60, HOURS, grace_s=30)], queues=("one", "two"))
        state.apply(builders.submissions(late, 2))
        for policy in ("fifo", "fifo-backfill", "tiresias", "sjf"):
            assert released(state, policy, HOURS) == [saved]


@pytest.mark.parametrize("policy", EQUALS)
@pytest.mark.parametrize("way", WAYS)
def test_where_nobody_loses_anything_the_newest_of_equals_goes(policy: str, way: str) -> None:
    state = two_and_one(way, 0)
    state.J[c.J_GRACE] = 0
    assert released(state, with_words(policy, way), 3 * HOURS + 10) == [1]


def test_large_losses_do_not_overflow() -> None:
    """Thirty years on 1024 GPUs; on 4096 it is the most that is told apart."""
    state = running(job("a", 2, grace_s=30))
    years_us = 30 * 365 * 86_400 * US
    state.J[c.J_HELD_MILLI, 0] = 1024 * c.WHOLE
    assert lost_work(state.J, 0, years_us) == 1024 * 30 * 365 * 24 * 60
    state.J[c.J_HELD_MILLI, 0] = 4096 * c.WHOLE
    assert lost_work(state.J, 0, years_us) == LOST_MAX
