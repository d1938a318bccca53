"""`check`: a plan for each violation that has exactly it, a neighbour that has not, and a dense twin on random plans."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from tests.core.dense import GB, Desk, dense_check, entries_of, random_desk, random_plan

from headway.core import columns as c
from headway.core.check import (
    V_BAD_GPU,
    V_BORROWED,
    V_CPU,
    V_ENDED,
    V_FRACTION,
    V_GANG,
    V_GPU,
    V_HELD,
    V_KIND,
    V_MEM,
    V_NODE,
    V_NOT_PLACED,
    V_OP,
    V_QUOTA,
    V_RULE,
    V_SHAPE,
    V_SHARE,
    V_TWICE,
    V_UNEVEN,
    VIOLATIONS,
)
from headway.core.columns import EventKind, Op, Phase, Reason, StopRule
from headway.core.plan import Plan
from headway.policies.registry import make_policy

K = EventKind


def cluster() -> Desk:
    """Four nodes: 0 and 1 with four GPUs of kind 0, 2 with two of kind 1, 3 with one that is lost. Queue 1 may have three GPUs.

    Jobs: 0 waits (one GPU), 1 runs on GPU 0 of node 0, 2 waits (gang of two), 3 is stopping, 4 takes parts of GPUs, 5 is elastic
    (1 to 3 replicas), 6 waits in queue 1.
    """
    desk = Desk((4, 4, 2, 1), kinds=(0, 0, 1, 0), cpus=4000, mem=4 * GB, limits=(-1, 3000), share_limit=900)
    desk.submit(0)
    desk.submit(1, stop_rule=StopRule.OPTSTOP, stop_allow=1 << StopRule.ACCURACY)
    desk.submit(2, data=2)
    desk.submit(3)
    desk.submit(4, gpu_task=400, share=1)
    desk.submit(5, data=2, data_min=1, data_max=3)
    desk.submit(6, queue=1)
    desk.run(1, [(0, [0])])
    desk.run(3, [(1, [0])])
    desk.stop(3)
    desk.emit(K.NODE_DOWN, 3)
    return desk


Act = Callable[[Desk], Plan]


def plan(*verbs: Callable[..., object], before: Callable[[Desk], object] = lambda d: None) -> Act:
    """A plan of some verbs, after something has been done to the cluster."""

    def make(desk: Desk) -> Plan:
        before(desk)
        draft = desk.draft()
        for verb in verbs:
            verb(draft)
        return draft.plan()

    return make


def put(job: int, *tasks: tuple[int, list[int]], **more: int) -> Callable[..., object]:
    return lambda d: d.place(job, [t[0] for t in tasks], [t[1] for t in tasks], **more)


def edited(act: Act, column: int, value: int) -> Act:
    """The plan with one number of its first override changed, as a faulty policy would hand it in."""

    def make(desk: Desk) -> Plan:
        made = act(desk)
        made.overrides[0, column] = value
        return made

    return make


def sub(job: int, **columns: int) -> Callable[[Desk], object]:
    return lambda desk: desk.submit(job, **columns)


ONE = put(0, (0, [1]))
# code -> plans that have it, and neighbours that hold
CASES: dict[str, tuple[int, Act, Act]] = {
    "a GPU that is wanted already": (V_GPU, plan(put(0, (0, [0]))), plan(ONE)),
    "a GPU for two jobs of the plan": (V_GPU, plan(ONE, put(6, (0, [1]))), plan(ONE, put(6, (0, [2])))),
    "a GPU twice in one gang": (V_GPU, plan(put(2, (0, [1]), (0, [1]))), plan(put(2, (0, [1]), (0, [2])))),
    "a GPU whose job is not released": (
        V_GPU,
        plan(put(0, (0, [0])), lambda d: d.why(1, Reason.LOW_RANK)),
        plan(put(0, (0, [0])), lambda d: d.release(1)),
    ),
    "a GPU whose job goes to another that is taken": (
        V_GPU,
        plan(put(0, (0, [0])), put(1, (0, [0]))),
        plan(put(0, (0, [0])), put(1, (0, [1]))),
    ),
    "shares over the limit": (
        V_GPU,
        plan(put(4, (0, [1]), milli=400), put(7, (0, [1]), milli=501), before=sub(7, gpu_task=501, share=1)),
        plan(put(4, (0, [1]), milli=400), put(7, (0, [1]), milli=500), before=sub(7, gpu_task=500, share=1)),
    ),
    "a whole GPU beside a share": (
        V_GPU,
        plan(put(4, (0, [1]), milli=400), put(0, (0, [1]))),
        plan(put(4, (0, [1]), milli=400), put(0, (0, [2]))),
    ),
    "cpus": (
        V_CPU,
        plan(put(7, (0, [])), before=sub(7, gpu_task=0, cpu_task=3001)),
        plan(put(7, (0, [])), before=sub(7, gpu_task=0, cpu_task=3000)),
    ),
    "cpus of two jobs": (
        V_CPU,
        plan(put(7, (0, [])), ONE, before=sub(7, gpu_task=0, cpu_task=2001)),
        plan(put(7, (0, [])), ONE, before=sub(7, gpu_task=0, cpu_task=2000)),
    ),
    "cpus of a shape": (
        V_CPU,
        plan(put(7, (0, [1]), (0, [2]), data=2), before=sub(7, data=1, data_max=2, cpu_task=1501)),
        plan(put(7, (0, [1]), (0, [2]), data=2), before=sub(7, data=1, data_max=2, cpu_task=1500)),
    ),
    "cpus of servers": (
        V_CPU,
        plan(put(7, (1, [1]), (1, [])), before=sub(7, sync=2, servers=1, cpu_task=1000, server_cpu=3001)),
        plan(put(7, (1, [1]), (1, [])), before=sub(7, sync=2, servers=1, cpu_task=1000, server_cpu=3000)),
    ),
    "cpus of one server more": (
        V_CPU,
        plan(put(7, (1, [1]), (1, []), (1, []), servers=2), before=sub(7, sync=2, servers=1, servers_max=2, server_cpu=1501)),
        plan(put(7, (1, [1]), (1, []), (1, []), servers=2), before=sub(7, sync=2, servers=1, servers_max=2, server_cpu=1500)),
    ),
    "memory": (
        V_MEM,
        plan(put(7, (0, [])), before=sub(7, gpu_task=0, mem_task=3 * GB + 1)),
        plan(put(7, (0, [])), before=sub(7, gpu_task=0, mem_task=3 * GB)),
    ),
    "half a gang": (V_GANG, plan(put(2, (0, [1]))), plan(put(2, (0, [1]), (1, [1])))),
    "more than the gang": (V_GANG, plan(put(0, (0, [1]), (0, [2]))), plan(ONE)),
    "a gang without its server": (
        V_GANG,
        plan(put(7, (0, [1])), before=sub(7, sync=2, servers=1)),
        plan(put(7, (0, [1]), (1, [])), before=sub(7, sync=2, servers=1)),
    ),
    "a job that is unknown": (V_ENDED, plan(put(99, (0, [1]))), plan(ONE)),
    "a job that has ended": (V_ENDED, plan(ONE, before=lambda d: d.emit(K.CANCEL_REQUESTED, 0)), plan(ONE)),
    "a queue's limit": (
        V_QUOTA,
        plan(put(6, (0, [1])), put(7, (0, [2]), (0, [3]), (1, [1])), before=sub(7, queue=1, data=3)),
        plan(put(6, (0, [1])), put(7, (0, [2]), (0, [3])), before=sub(7, queue=1, data=2)),
    ),
    "a place that another queue claims": (
        V_BORROWED,
        plan(ONE, before=lambda d: d.emit(K.QUEUE_SET, 1, payload=(1000, 3000, 1, -1))),
        plan(ONE, before=lambda d: d.emit(K.QUEUE_SET, 1, payload=(0, 3000, 1, -1))),
    ),
    "a whole GPU for a job that does not share and asks for a part": (
        V_SHARE,
        plan(put(7, (0, [1]), milli=300), before=sub(7, gpu_task=300)),
        plan(put(7, (0, [1])), before=sub(7, gpu_task=300)),
    ),
    "a lost node": (V_NODE, plan(put(0, (3, [0]))), plan(ONE)),
    "a node below the first": (V_NODE, plan(put(0, (-1, [0]))), plan(ONE)),
    "a node beyond the last": (V_NODE, plan(put(0, (4, [0]))), plan(ONE)),
    "a draining node": (
        V_NODE,
        plan(put(0, (1, [1])), before=lambda d: d.emit(K.NODE_DRAINING, 1)),
        plan(ONE, before=lambda d: d.emit(K.NODE_DRAINING, 1)),
    ),
    "a lost node for a placed job": (
        V_NODE,
        plan(put(1, (3, [0]))),
        plan(put(1, (0, [0])), before=lambda d: d.emit(K.NODE_DRAINING, 0)),
    ),
    "another draining node for a placed job": (
        V_NODE,
        plan(put(1, (1, [1])), before=lambda d: d.emit(K.NODE_DRAINING, 1)),
        plan(put(1, (1, [1]))),
    ),
    "a place for a job that must stop": (
        V_ENDED,
        plan(put(1, (1, [1])), before=lambda d: d.emit(K.NODE_DOWN, 0)),
        plan(put(1, (1, [1]))),
    ),
    "a place for a job that is finishing": (
        V_ENDED,
        plan(put(3, (0, [1])), before=lambda d: d.emit(K.CANCEL_REQUESTED, 3)),
        plan(put(3, (0, [1]))),
    ),
    "a release for a migration": (
        V_OP,
        plan(lambda d: d.release(1, Reason.MIGRATED)),
        plan(lambda d: d.release(1, Reason.LOW_RANK)),
    ),
    "more servers than allowed": (
        V_SHAPE,
        plan(put(7, (1, [1]), (1, []), (1, []), servers=2), before=sub(7, sync=2, servers=1, servers_max=1)),
        plan(put(7, (1, [1]), (1, []), (1, []), servers=2), before=sub(7, sync=2, servers=1, servers_max=2)),
    ),
    "too few GPUs": (
        V_BAD_GPU,
        plan(put(7, (0, [1])), before=sub(7, gpu_task=2000)),
        plan(put(7, (0, [1, 2])), before=sub(7, gpu_task=2000)),
    ),
    "no GPU": (V_BAD_GPU, plan(put(0, (0, []))), plan(ONE)),
    "a GPU for a job without": (
        V_BAD_GPU,
        plan(put(7, (0, [1])), before=sub(7, gpu_task=0)),
        plan(put(7, (0, [])), before=sub(7, gpu_task=0)),
    ),
    "a GPU that the node does not have": (V_BAD_GPU, plan(put(0, (2, [2]))), plan(put(0, (2, [1])))),
    "another share than asked for": (V_BAD_GPU, plan(put(4, (0, [1]), milli=500)), plan(put(4, (0, [1]), milli=400))),
    "a part of a whole GPU": (
        V_BAD_GPU,
        plan(put(7, (0, [1]), milli=999), before=sub(7, share=1)),
        plan(put(7, (0, [1])), before=sub(7, share=1)),
    ),
    "a server on a GPU": (
        V_BAD_GPU,
        plan(put(7, (0, [1]), (0, [2])), before=sub(7, sync=2, servers=1)),
        plan(put(7, (0, [1]), (0, [])), before=sub(7, sync=2, servers=1)),
    ),
    "another number than the alternative": (
        V_BAD_GPU,
        plan(put(7, (2, [0])), before=sub(7, gpu_task=4000, kind_mask=1, alt_gpu=2000, alt_mask=2)),
        plan(put(7, (2, [0, 1])), before=sub(7, gpu_task=4000, kind_mask=1, alt_gpu=2000, alt_mask=2)),
    ),
    "a kind that is not asked for": (
        V_KIND,
        plan(put(7, (0, [1])), before=sub(7, kind_mask=2)),
        plan(put(7, (2, [1])), before=sub(7, kind_mask=2)),
    ),
    "a kind that is not among the alternatives": (
        V_KIND,
        plan(put(7, (2, [0])), before=sub(7, kind_mask=1, alt_gpu=1000, alt_mask=1)),
        plan(put(7, (2, [0])), before=sub(7, kind_mask=1, alt_gpu=1000, alt_mask=2)),
    ),
    "a job twice": (V_TWICE, plan(ONE, put(0, (0, [2]))), plan(ONE, lambda d: d.why(0, Reason.TRIAL))),
    "a job released and placed": (
        V_TWICE,
        plan(lambda d: d.release(1), put(1, (0, [1]))),
        plan(lambda d: d.rule(1, StopRule.ACCURACY), put(1, (0, [1]))),
    ),
    "a job finished and released": (V_TWICE, plan(lambda d: d.finish(1), lambda d: d.release(1)), plan(lambda d: d.finish(1))),
    "fewer replicas than allowed": (V_SHAPE, edited(plan(put(5, (0, [1]))), c.O_DATA, 0), plan(put(5, (0, [1]), data=1))),
    "more replicas than allowed": (
        V_SHAPE,
        plan(put(5, *[(1, [k]) for k in range(4)], data=4), before=lambda d: d.report(K.STOPPED, 3)),
        plan(put(5, *[(1, [k]) for k in range(3)], data=3), before=lambda d: d.report(K.STOPPED, 3)),
    ),
    "servers below none": (V_SHAPE, edited(plan(ONE), c.O_SERVERS, -1), plan(ONE)),
    "a job that its user holds": (
        V_HELD,
        plan(ONE, before=lambda d: d.emit(K.HOLD_SET, 0, a=1)),
        plan(put(1, (0, [1])), before=lambda d: d.emit(K.HOLD_SET, 1, a=1)),
    ),
    "a place that is not there to release": (V_NOT_PLACED, plan(lambda d: d.release(0)), plan(lambda d: d.release(1))),
    "a stopping job released": (V_NOT_PLACED, plan(lambda d: d.release(3)), plan(lambda d: d.finish(3))),
    "an operation that is not there": (V_OP, edited(plan(ONE), c.O_OP, 6), plan(ONE)),
    "no operation": (V_OP, edited(plan(ONE), c.O_OP, 0), plan(ONE)),
    "a stop rule that is not allowed": (
        V_RULE,
        plan(lambda d: d.rule(1, StopRule.FIXED)),
        plan(lambda d: d.rule(1, StopRule.ACCURACY)),
    ),
    "a stop rule where none is allowed": (
        V_RULE,
        plan(lambda d: d.rule(0, StopRule.OPTSTOP)),
        plan(lambda d: d.rule(1, StopRule.OPTSTOP)),
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_each_violation_and_its_neighbour(what: str) -> None:
    code, bad, good = CASES[what]
    desk = cluster()
    found = desk.check(bad(desk))
    assert found is not None and found.code == code and found.sentence == f"{VIOLATIONS[code]} (job {found.job})"
    assert dense_check(desk.state, bad(cluster()))[0] == {code}
    desk = cluster()
    assert desk.check(good(desk)) is None
    assert dense_check(desk.state, good(cluster())) == (set(), -1)


def test_each_violation_has_a_case() -> None:
    by_capability = {V_FRACTION, V_UNEVEN}
    assert {code for code, _, _ in CASES.values()} | by_capability == set(VIOLATIONS)


def test_an_engine_without_fractions() -> None:
    part = plan(put(4, (0, [1]), milli=400))
    whole = plan(put(4, (0, [1])))
    desk = cluster()
    found = desk.check(part(desk), fractional_gpus=False)
    assert found is not None and found.code == V_FRACTION and desk.check(whole(desk), fractional_gpus=False) is None
    assert desk.check(part(desk)) is None


@pytest.mark.parametrize(
    ("where", "even"),
    [
        ([0, 0, 0, 0], True),
        ([0, 0, 1, 1], True),
        ([0, 1, 0, 1], True),
        ([0, 0, 0, 1], False),
        ([0, 1, 0, 0], False),
        ([2, 1, 2, 1], True),
    ],
)
def test_an_engine_without_uneven_gangs(where: list[int], even: bool) -> None:
    desk = Desk((4, 4, 4))
    desk.submit(0, data=4)
    count = Counter[int]()
    gpus = []
    for node in where:
        gpus.append([count[node]])
        count[node] += 1
    draft = desk.draft()
    draft.place(0, where, gpus)
    found = desk.check(draft.plan(), uneven_gangs=False)
    assert (found is None) == even and (found is None or found.code == V_UNEVEN)
    assert desk.check(draft.plan()) is None


@pytest.mark.parametrize("where", [[0, 0, 1, 2], [1, 0, 0, 0], [0, 0, 1, 1, 1, 2], [0, 0, 1, 2, 2, 2]])
def test_an_uneven_gang_whose_first_node_divides_it(where: list[int]) -> None:
    desk = Desk((4, 4, 4))
    desk.submit(0, data=len(where))
    draft = desk.draft()
    draft.place(0, where, [[where[:k].count(node)] for k, node in enumerate(where)])
    found = desk.check(draft.plan(), uneven_gangs=False)
    assert found is not None and found.code == V_UNEVEN


def test_servers_do_not_make_a_gang_uneven() -> None:
    desk = Desk((4, 4))
    desk.submit(0, data=2, sync=2, servers=1)
    draft = desk.draft()
    draft.place(0, [0, 1, 1], [[0], [0], []])
    assert desk.check(draft.plan(), uneven_gangs=False) is None


def test_tasks_that_differ_are_checked_each_by_its_own_demand() -> None:
    details = [2000, 500, GB, 0, 600_000, 1000, 3600, GB, 0, 400_000]

    def found(cpus: int, gpus: list[list[int]], servers: int = 0) -> int:
        desk = Desk((4,), cpus=cpus)
        desk.submit(0, data=2, details=1, tasks=details)
        draft = desk.draft()
        draft.place(0, [0] * len(gpus), gpus, servers=servers)
        violation = desk.check(draft.plan())
        return violation.code if violation else 0

    assert found(4100, [[0, 1], [2]]) == 0
    assert found(4100, [[0], [1, 2]]) == V_BAD_GPU
    assert found(4099, [[0, 1], [2]]) == V_CPU
    assert found(4100, [[0, 1], [2], []], servers=1) == V_SHAPE, "the shape of a job whose tasks differ is fixed"


def test_the_first_violation_is_the_one_that_is_told() -> None:
    desk = cluster()
    draft = desk.draft()
    draft.place(0, [0], [[0]])  # taken: found only when everything has been added up
    draft.release(6)  # not placed: found at once
    draft.release(2)
    found = desk.check(draft.plan())
    assert found is not None and (found.code, found.job) == (V_NOT_PLACED, 6)


def test_an_over_full_queue_may_shrink_and_keep_but_not_grow() -> None:
    desk = cluster()
    desk.run(6, [(0, [1])])
    desk.submit(7, queue=1)
    desk.run(7, [(0, [2])])
    desk.emit(K.QUEUE_SET, 1, payload=(-1, 1000, 1, -1))
    draft = desk.draft()
    draft.place(6, [0], [[3]])
    assert desk.check(draft.plan()) is None, "as much as before"
    desk.submit(8, queue=1)
    draft = desk.draft()
    draft.place(8, [0], [[3]])
    draft.release(6)
    assert desk.check(draft.plan()) is None, "one for one"
    draft = desk.draft()
    draft.place(8, [0], [[3]])
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_QUOTA


def test_a_full_node_refuses_only_what_makes_it_fuller() -> None:
    desk = Desk((2, 2), cpus=2000)
    for job in range(3):
        desk.submit(job, gpu_task=0)
    desk.run(0, [(0, [])])
    desk.run(1, [(0, [])])
    draft = desk.draft()
    draft.place(2, [0], [[]])
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_CPU
    draft = desk.draft()
    draft.place(2, [0], [[]])
    draft.place(0, [1], [[]])
    assert desk.check(draft.plan()) is None


def test_a_placed_job_does_not_move_to_a_draining_node() -> None:
    desk = cluster()
    desk.emit(K.NODE_DRAINING, 1)
    draft = desk.draft()
    draft.place(1, [1], [[1]])
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_NODE


def test_servers_beyond_what_the_job_allows() -> None:
    desk = cluster()
    draft = desk.draft()
    draft.place(0, [0] * 3, [[1], [], []], servers=2)
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_SHAPE


@pytest.mark.parametrize("reason", [Reason.MIGRATED, Reason.RESIZED])
def test_a_release_with_a_reason_that_wants_another_place(reason: Reason) -> None:
    desk = cluster()
    draft = desk.draft()
    draft.release(1, reason)
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_OP


# -- the dense twin ------------------------------------------------------------------------------------------------
def test_check_agrees_with_the_twin_on_random_plans() -> None:
    seen = Counter[int]()
    for seed in range(300):
        r = random.Random(seed)
        desk = random_desk(r)
        for _ in range(8):
            made = random_plan(r, desk, jobs=r.randint(1, 4))
            fractions = r.random() < 0.8
            expected, where = dense_check(desk.state, made, fractions=fractions)
            entries = entries_of(made)
            found = desk.check(made, fractional_gpus=fractions)
            code = 0 if found is None else found.code
            assert (code in expected) if expected else code == 0, (seed, code, expected, entries)
            if found is not None and where >= 0:
                assert found.job == int(made.overrides[where, c.O_JOB])
            seen[code] += 1
    assert seen[0] > 100 and set(seen) >= {
        V_GPU,
        V_CPU,
        V_MEM,
        V_GANG,
        V_QUOTA,
        V_SHARE,
        V_NODE,
        V_BAD_GPU,
        V_KIND,
        V_TWICE,
        V_SHAPE,
        V_HELD,
    }
    assert set(seen) >= {V_FRACTION, V_NOT_PLACED, V_OP, V_RULE, V_ENDED}


CLAIMS: dict[str, tuple[dict[str, int], bool]] = {
    "as large": ({}, True),
    "of lower priority than nobody": ({"priority": 1}, True),
    "a gang": ({"data": 2}, False),
    "more GPUs": ({"gpu_task": 2000}, False),
    "more cpus": ({"cpu_task": 1500}, False),
    "more memory": ({"mem_task": 2 * GB}, False),
    "another kind": ({"kind_mask": 2}, False),
    "with a server": ({"sync": 2, "servers": 1}, False),
    "shares": ({"gpu_task": 500, "share": 1}, False),
    "no GPU": ({"gpu_task": 0}, False),
}
"""What job 7 of queue 1 asks for, and whether it claims the place of job 0 (one GPU of kind 0, no cpus, no memory)."""


def quota_desk(**columns: int) -> Desk:
    """Queue 0 has the one GPU that it is guaranteed; its job 0 would borrow. Queue 1, with two guaranteed, has nothing."""
    desk = Desk((4, 4), kinds=(0, 1), cpus=4000, mem=4 * GB, limits=(-1, -1), quotas=(1000, 2000))
    desk.submit(0)
    desk.submit(1)
    desk.run(1, [(0, [0])])
    desk.submit(7, queue=1, **columns)
    return desk


@pytest.mark.parametrize("what", CLAIMS)
def test_a_place_is_claimed_by_a_job_that_could_have_it_as_it_is(what: str) -> None:
    columns, refused = CLAIMS[what]
    desk = quota_desk(**columns)
    draft = desk.draft()
    draft.place(0, [0], [[1]])
    found = desk.check(draft.plan())
    assert (found.code if found else 0) == (V_BORROWED if refused else 0)


def claim_of(what: str) -> None:
    """Job 7 claims, unless something is in the way."""
    desk = quota_desk()
    if what == "held":
        desk.emit(K.HOLD_SET, 7, a=1)
    elif what == "over its limit":
        desk.emit(K.QUEUE_SET, 1, payload=(2000, 500, 1, -1))
    elif what == "behind a gang":
        desk.submit(8, queue=1, data=3, priority=90)
    elif what == "over its quota":
        desk.submit(8, queue=1, data=2)
        desk.run(8, [(1, [0]), (1, [1])])
    elif what == "one for one":
        desk.submit(8)
        desk.run(8, [(0, [3])])
    draft = desk.draft()
    draft.place(0, [0], [[1]])
    if what == "one for one":
        draft.release(1)
    elif what == "placed with it":
        draft.place(7, [0], [[2]])
    assert desk.check(draft.plan()) is None, what


@pytest.mark.parametrize("what", ["held", "over its limit", "behind a gang", "over its quota", "one for one", "placed with it"])
def test_what_is_no_claim(what: str) -> None:
    claim_of(what)


def test_a_claim_of_more_than_the_quota() -> None:
    desk = Desk((4, 4), limits=(-1, -1), quotas=(0, 2000))
    desk.submit(0, data=2)
    desk.submit(6, queue=1)
    desk.run(6, [(1, [0])])
    desk.submit(7, queue=1, data=2)
    draft = desk.draft()
    draft.place(0, [0, 0], [[0], [1]])
    assert desk.check(draft.plan()) is None


def test_a_move_borrows_nothing_and_growing_does() -> None:
    desk = Desk((4, 4), limits=(-1, -1), quotas=(0, 2000))
    desk.submit(0, data=1, data_min=1, data_max=2)
    desk.run(0, [(0, [0])])
    desk.submit(2, cpu_task=100)
    desk.submit(7, queue=1)
    draft = desk.draft()
    draft.place(0, [1], [[0]])
    draft.place(2, [0], [[1]])
    assert desk.check(draft.plan()) is None, "job 0 only moves, and job 2 has too few cpus for job 7"
    draft = desk.draft()
    draft.place(0, [1, 1], [[0], [1]], data=2)
    found = desk.check(draft.plan())
    assert found is not None and found.code == V_BORROWED


@pytest.mark.parametrize(
    "name",
    ["fifo", "fifo-backfill:depth=3", "srtf", "las:quantum=5", "tiresias:threshold=5", "srtf:placement=topology", "sjf", "drf"],
)
def test_plans_of_policies_hold_and_broken_ones_are_found(name: str) -> None:
    policy = make_policy(name)
    held = broken = 0
    for seed in range(40):
        r = random.Random(seed)
        desk = random_desk(r, limits=(-1, -1))
        made = policy.decide(desk.view(), None).copy()
        assert dense_check(desk.state, made) == (set(), -1) and desk.check(made) is None, (name, seed)
        held += len(made) > 0
        if not len(made.places):
            continue
        made.places[r.randrange(len(made.places)), r.randrange(3)] += r.choice((-1, 1, 2))
        expected, _ = dense_check(desk.state, made)
        found = desk.check(made)
        assert (found.code in expected) if found else not expected, (name, seed, expected)
        broken += found is not None
    assert held > 10 and broken > 5


# -- what went stale while the policy was thinking -------------------------------------------------------------------
def stale_desk() -> tuple[Desk, Plan]:
    """A plan with six entries for six jobs, and something else that has happened since."""
    desk = Desk((4, 4))
    for job in range(6):
        desk.submit(job, retry_max=9)
    desk.run(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    draft = desk.draft()
    draft.release(0)
    draft.release(1)
    draft.place(2, [0], [[2]])
    draft.place(3, [1], [[0]])
    draft.why(4, Reason.NO_ROOM)
    draft.finish(5)
    made = draft.plan().copy()
    desk.emit(K.WHY, 4, a=Reason.LOW_RANK)
    return desk, made


def jobs_of(made: Plan) -> list[tuple[int, Op]]:
    return [(int(o[c.O_JOB]), Op(int(o[c.O_OP]))) for o in made.overrides]


ALL = [(0, Op.RELEASE), (1, Op.RELEASE), (2, Op.PLACE), (3, Op.PLACE), (4, Op.WHY), (5, Op.FINISH)]


@pytest.mark.parametrize(
    ("happens", "job"),
    [
        (lambda d: d.report(K.STOPPED, 0), 0),
        (lambda d: d.report(K.COMPLETED, 1), 1),
        (lambda d: d.start(2, [(1, [3])]), 2),
        (lambda d: d.want(3, [(1, [3])]), 3),
        (lambda d: d.emit(K.CANCEL_REQUESTED, 4), 4),
        (lambda d: d.emit(K.CANCEL_REQUESTED, 5), 5),
        (lambda d: d.emit(K.NODE_DOWN, 1), 3),
        (lambda d: d.emit(K.NODE_DRAINING, 1), 3),
        (lambda d: d.stop(0), 0),
    ],
)
def test_an_entry_that_went_stale_is_dropped_alone(happens: Callable[[Desk], object], job: int) -> None:
    desk, made = stale_desk()
    happens(desk)
    assert desk.check(made) is None
    assert jobs_of(made) == [entry for entry in ALL if entry[0] != job]
    desk.do(made)


def test_nothing_is_dropped_when_nothing_of_it_has_changed() -> None:
    desk, made = stale_desk()
    desk.submit(6)
    desk.report(K.OBSERVED, 0, a=3, b=c.NOTHING, c=c.NOTHING)
    desk.emit(K.NODE_UP, 1)  # it was up: still a change of the node
    assert desk.check(made) is None and jobs_of(made) == [entry for entry in ALL if entry[0] != 3]


def test_rows_are_looked_up_anew() -> None:
    desk, made = stale_desk()
    desk.emit(K.CANCEL_REQUESTED, 4)
    desk.emit(K.CANCEL_REQUESTED, 5)
    desk.report(K.COMPLETED, 0)
    desk.state.compact()
    assert desk.check(made) is None and jobs_of(made) == ALL[1:4]
    assert made.overrides[:, c.O_ROW].tolist() == [0, 1, 2]
    assert [kind for kind, _ in desk.do(made)] == [K.STOP_REQUESTED, K.START_REQUESTED, K.START_REQUESTED, K.ROUND]
    assert desk.phase(1) == Phase.STOPPING


def test_a_plan_that_went_stale_whole_holds_and_is_empty() -> None:
    desk = Desk((1,))
    desk.submit(0)
    draft = desk.draft()
    draft.place(0, [0], [[0]])
    made = draft.plan().copy()
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert desk.check(made) is None and len(made) == 0 and desk.do(made) == []


def test_an_unknown_job_in_a_fresh_plan_is_the_policys_error() -> None:
    desk = Desk((1,))
    draft = desk.draft()
    draft.release(77)
    found = desk.check(draft.plan())
    assert found is not None and (found.code, found.job) == (V_ENDED, -1)


def test_the_first_event_after_the_view_makes_an_entry_stale() -> None:
    desk = Desk((2,))
    desk.submit(0)
    desk.run(0, [(0, [0])])
    draft = desk.draft()
    draft.release(0)
    made = draft.plan().copy()
    desk.report(K.STOPPED, 0)
    assert desk.check(made) is None and len(made) == 0


@pytest.mark.parametrize("what", ["held", "cancelled while it migrates"])
def test_a_user_who_acts_while_the_policy_thinks_does_not_make_its_plan_wrong(what: str) -> None:
    desk = Desk((4,))
    desk.submit(0)
    desk.submit(1)
    desk.run(1, [(0, [0])])
    desk.stop(1, Reason.MIGRATED, [(0, [1])])
    draft = desk.draft()
    if what == "held":
        draft.place(0, [0], [[2]])
    else:
        draft.release(1)
    made = draft.plan().copy()
    desk.submit(2)
    if what == "held":
        desk.emit(K.HOLD_SET, 0, a=1)
    else:
        desk.emit(K.CANCEL_REQUESTED, 1)
    assert desk.check(made) is None and len(made) == 0
