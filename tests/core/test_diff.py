"""`diff` and `settle`: from what is wanted to what is asked for, and places that are being freed."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from tests.core.dense import GB, US, Desk, random_desk, random_plan

from headway.core import columns as c
from headway.core.columns import EventKind, Phase, Reason, StopRule
from headway.core.plan import Draft
from headway.policies.registry import make_policy

K = EventKind
START, STOP, WANTED, UNWANTED, ROUND = K.START_REQUESTED, K.STOP_REQUESTED, K.WANTED, K.UNWANTED, K.ROUND


def do(desk: Desk, *verbs: Callable[[Draft], object]) -> list[tuple[EventKind, int]]:
    draft = desk.draft()
    for verb in verbs:
        verb(draft)
    return desk.do(draft.plan())


def put(job: int, *tasks: tuple[int, list[int]], **more: int) -> Callable[[Draft], object]:
    return lambda d: d.place(job, [t[0] for t in tasks], [t[1] for t in tasks], **more)


def fresh(jobs: int = 4, nodes: tuple[int, ...] = (4,), **columns: int) -> Desk:
    desk = Desk(nodes)
    for job in range(jobs):
        desk.submit(job, **columns)
    return desk


# -- what a round asks for -----------------------------------------------------------------------------------------
def test_a_free_place_is_started_at_once() -> None:
    desk = fresh()
    assert do(desk, put(0, (0, [2]))) == [(START, 0), (ROUND, 0)]
    assert desk.phase(0) == Phase.STARTING and desk.get(0, "attempt") == 1 and desk.gpu(2, "held") == 1000


def test_stops_come_before_starts_each_by_job_number() -> None:
    desk = fresh(6)
    desk.run(4, [(0, [0])])
    desk.run(2, [(0, [1])])
    asked = do(
        desk,
        put(5, (0, [2])),
        lambda d: d.release(4),
        put(0, (0, [3])),
        lambda d: d.why(3, Reason.NO_ROOM),
        lambda d: d.release(2),
    )
    assert asked == [(STOP, 2), (K.WHY, 3), (STOP, 4), (START, 0), (START, 5), (ROUND, 0)]


def test_the_round_mark_counts_the_overrides_and_stands_only_where_something_moved() -> None:
    desk = fresh()
    draft = desk.draft()
    draft.place(0, [0], [[0]])
    draft.why(1, Reason.NO_ROOM)
    batch = desk.diff(draft.plan())
    assert batch.records[-1].tolist() == [0, ROUND, 0, 0, 2, 0, 0, 0]
    assert do(desk) == []
    assert do(desk, lambda d: d.why(1, Reason.NO_ROOM)) == [(K.WHY, 1)]
    assert do(desk, lambda d: d.rule(1, StopRule.FIXED)) == []
    assert do(desk, lambda d: d.finish(1)) == [(K.FINISHED, 1), (ROUND, 0)]


def test_events_carry_time_attempt_shape_and_place() -> None:
    desk = Desk((4, 4))
    desk.submit(0, data=1, data_max=3, batch=32)
    desk.t = 5 * US
    draft = desk.draft()
    draft.place(0, [1, 1, 0], [[3], [1], [0]], data=3, batch=96)
    batch = desk.diff(draft.plan())
    assert batch.records[0].tolist() == [5 * US, START, 0, 1, 0, 3, 96 << 20, 9]
    assert batch.pool.tolist() == [1, 8, 1000, 1, 2, 1000, 0, 1, 1000]
    desk.apply(batch)
    desk.report(K.STARTED, 0)
    draft = desk.draft()
    draft.place(0, [0], [[0]], data=1, batch=7)
    batch = desk.diff(draft.plan())
    assert batch.records[0].tolist() == [5 * US, STOP, 0, 1, Reason.RESIZED, 0, 0, 0]
    assert batch.records[1].tolist() == [5 * US, WANTED, 0, 1, 0, 1, 7 << 20, 3] and batch.pool.tolist() == [0, 1, 1000]
    desk.apply(batch)
    assert (desk.phase(0), desk.get(0, "reason"), desk.get(0, "batch")) == (Phase.STOPPING, Reason.RESIZED, 7)


@pytest.mark.parametrize("phase", ["starting", "running"])
def test_a_job_with_processes_that_gets_another_place_is_stopped_for_it(phase: str) -> None:
    desk = fresh(1, (4, 4), data_max=2)
    desk.start(0, [(0, [0])])
    if phase == "running":
        desk.report(K.STARTED, 0)
    assert do(desk, put(0, (1, [0]))) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]
    assert desk.phase(0) == Phase.STOPPING and desk.get(0, "reason") == Reason.MIGRATED and desk.get(0, "migrations") == 1
    assert desk.gpu(4, "booked") == 1000 and desk.gpu(0, "booked") == 0 and desk.gpu(0, "held") == 1000
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START] and desk.get(0, "attempt") == 2 and desk.gpu(4, "held") == 1000


def test_another_gpu_on_the_same_node_and_another_share_are_other_places() -> None:
    desk = fresh(1)
    desk.run(0, [(0, [0])])
    assert do(desk, put(0, (0, [1]))) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]
    desk = fresh(1, gpu_task=400, share=1)
    desk.run(0, [(0, [0], 400)])
    assert do(desk, put(0, (0, [0]), milli=400)) == []
    assert do(desk, put(0, (0, [0]))) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]


def test_another_shape_is_a_resize() -> None:
    desk = fresh(1, data_max=2)
    desk.run(0, [(0, [0])])
    assert do(desk, put(0, (0, [0]), (0, [1]), data=2)) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]
    assert desk.get(0, "reason") == Reason.RESIZED and desk.get(0, "tasks") == 2 and desk.get(0, "held_tasks") == 1
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START]
    desk.report(K.STARTED, 0)
    assert do(desk, put(0, (0, [0]), data=1)) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]
    assert desk.get(0, "migrations") == 2 and desk.get(0, "preemptions") == 0


def test_more_servers_are_a_resize() -> None:
    desk = fresh(1, sync=2, servers=1, servers_max=2)
    desk.run(0, [(0, [0]), (0, [])])
    assert (
        do(desk, put(0, (0, [0]), (0, []), (0, []), servers=2)) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]
        and desk.get(0, "reason") == Reason.RESIZED
    )


def test_the_same_place_again_is_nothing() -> None:
    desk = fresh(3)
    desk.run(0, [(0, [0])])
    desk.start(1, [(0, [1])])
    desk.run(2, [(0, [2])])
    desk.stop(2)
    desk.submit(3)
    assert do(desk, put(3, (0, [2]))) == [(WANTED, 3), (ROUND, 0)]
    assert do(desk, put(0, (0, [0])), put(1, (0, [1])), put(3, (0, [2]))) == []


def test_release_in_each_phase() -> None:
    desk = fresh(4)
    desk.start(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    desk.want(2, [(0, [2])])
    desk.run(3, [(0, [3])])
    assert do(desk, put(3, (0, [3]))) == []
    desk.submit(4)
    desk.stop(3)
    desk.want(4, [(0, [3])])
    released = [lambda d, j=j: d.release(j) for j in (0, 1, 2, 4)]
    assert do(desk, *released) == [(STOP, 0), (STOP, 1), (UNWANTED, 2), (UNWANTED, 4), (ROUND, 0)]
    assert [desk.phase(j) for j in range(5)] == [Phase.STOPPING, Phase.STOPPING, Phase.QUEUED, Phase.STOPPING, Phase.QUEUED]
    assert desk.get(0, "preemptions") == desk.get(1, "preemptions") == 1 and desk.get(2, "preemptions") == 0


def test_a_migrating_job_can_be_released_from_the_place_it_was_to_get() -> None:
    desk = fresh(1)
    desk.run(0, [(0, [0])])
    do(desk, put(0, (0, [1])))
    assert do(desk, lambda d: d.release(0)) == [(UNWANTED, 0), (ROUND, 0)]
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [] and desk.count("waiting") == 1


def test_finish_in_each_phase() -> None:
    desk = fresh(4)
    desk.start(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    desk.stop(1)
    desk.run(2, [(0, [2])])
    finished = [lambda d, j=j: d.finish(j) for j in range(4)]
    assert do(desk, *finished) == [(STOP, 0), (STOP, 1), (STOP, 2), (K.FINISHED, 3), (ROUND, 0)]
    for job in range(3):
        desk.report(K.STOPPED, job)
    assert [desk.phase(j) for j in range(4)] == [Phase.COMPLETED] * 4


def test_jobs_of_a_plan_compete_for_what_is_still_held() -> None:
    """Node 0 has 8 cpus; job 0, which holds 5 of them, stops. Jobs 1 and 2 want 2 each: only the first can start."""
    desk = Desk((4,), cpus=8000)
    desk.submit(0, cpu_task=5000)
    for job in (1, 2, 3):
        desk.submit(job, cpu_task=2000)
    desk.run(0, [(0, [0])])
    desk.stop(0)
    assert do(desk, put(2, (0, [2])), put(3, (0, [3])), put(1, (0, [1]))) == [(START, 1), (WANTED, 2), (WANTED, 3), (ROUND, 0)]
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START, START] and desk.node(0, "held_cpu") == 6000


def test_jobs_of_a_plan_compete_for_memory_and_for_shares_too() -> None:
    desk = Desk((4,), mem=8 * GB)
    desk.submit(0, mem_task=5 * GB)
    for job in (1, 2):
        desk.submit(job, mem_task=2 * GB)
    desk.run(0, [(0, [0])])
    desk.stop(0)
    assert do(desk, put(1, (0, [1])), put(2, (0, [2]))) == [(START, 1), (WANTED, 2), (ROUND, 0)]
    desk = Desk((1,))
    desk.submit(0, gpu_task=600, share=1)
    desk.submit(1, gpu_task=300, share=1)
    desk.submit(2, gpu_task=300, share=1)
    desk.run(0, [(0, [0], 600)])
    desk.stop(0)
    assert do(desk, put(1, (0, [0]), milli=300), put(2, (0, [0]), milli=300)) == [(START, 1), (WANTED, 2), (ROUND, 0)]


def test_a_gang_counts_against_itself() -> None:
    desk = Desk((4,), cpus=8000)
    desk.submit(0, cpu_task=4000)
    desk.submit(1, data=2, cpu_task=3000)
    desk.run(0, [(0, [0])])
    desk.stop(0)
    assert do(desk, put(1, (0, [1]), (0, [2]))) == [(WANTED, 1), (ROUND, 0)], (
        "one of its tasks would fit beside what is held, not both"
    )
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START]


# -- a place that is being freed -----------------------------------------------------------------------------------
def handed_over() -> Desk:
    """Job 0 stops on GPU 0 in favour of job 1, which wants it; GPU 1 is free; job 2 waits."""
    desk = fresh(3, (2,))
    desk.run(0, [(0, [0])])
    assert do(desk, lambda d: d.release(0), put(1, (0, [0]))) == [(STOP, 0), (WANTED, 1), (ROUND, 0)]
    return desk


def test_a_place_that_is_being_freed_belongs_to_the_job_it_is_freed_for() -> None:
    desk = handed_over()
    assert (desk.gpu(0, "booked"), desk.gpu(0, "held"), desk.node(0, "free_mask")) == (1000, 1000, 0b10)
    assert desk.phase(1) == Phase.QUEUED and desk.get(1, "placed") == 1 and desk.count("waiting") == 1
    draft = desk.draft()
    draft.place(2, [0], [[0]])
    found = desk.check(draft.plan())
    assert found is not None, "given away twice"
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START] and desk.settle() == [] and desk.phase(1) == Phase.STARTING and desk.get(1, "attempt") == 1


@pytest.mark.parametrize("name", ["fifo", "fifo-backfill", "srtf", "las", "tiresias"])
def test_policies_do_not_give_a_place_away_that_is_being_freed(name: str) -> None:
    desk = handed_over()
    desk.submit(3, priority=50)
    plan = make_policy(name).decide(desk.view(), None)
    places = {int(o[c.O_JOB]): plan.places[o[c.O_TASK0]].tolist() for o in plan.overrides if o[c.O_OP] == c.Op.PLACE}
    assert [0, 1, 1000] not in places.values() and desk.check(plan) is None


def test_a_place_whose_new_owner_is_cancelled_is_free_again_though_still_held() -> None:
    desk = handed_over()
    desk.emit(K.CANCEL_REQUESTED, 1)
    assert desk.node(0, "free_mask") == 0b11 and desk.gpu(0, "held") == 1000
    assert do(desk, put(2, (0, [0]))) == [(WANTED, 2), (ROUND, 0)]
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START]


def test_a_victim_can_be_given_its_place_back_only_as_a_new_attempt() -> None:
    desk = handed_over()
    assert do(desk, lambda d: d.release(1)) == [(UNWANTED, 1), (ROUND, 0)]
    desk.report(K.STOPPED, 0)
    assert do(desk, put(0, (0, [0]))) == [(START, 0), (ROUND, 0)] and desk.get(0, "attempt") == 2


def test_a_late_start_report_of_the_victim_does_not_free_its_place() -> None:
    desk = fresh(2, (1,))
    desk.start(0, [(0, [0])])
    do(desk, lambda d: d.release(0), put(1, (0, [0])))
    desk.report(K.STARTED, 0)
    assert desk.settle() == []
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START]


def test_pending_starts_compete_in_settle_by_job_number() -> None:
    desk = Desk((4,), cpus=8000)
    desk.submit(0, cpu_task=5000)
    desk.submit(1, cpu_task=3000)
    for job in (2, 3, 4):
        desk.submit(job, cpu_task=2500)
    desk.run(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    desk.stop(0)
    desk.stop(1)
    assert do(desk, put(4, (0, [2])), put(2, (0, [3])), put(3, (0, [0]))) == [(WANTED, 2), (WANTED, 3), (WANTED, 4), (ROUND, 0)]
    desk.report(K.STOPPED, 1)  # 3 of 8 cpus are free: one of the two whose GPUs are free
    assert desk.settle() == [START] and desk.phase(2) == Phase.STARTING and desk.phase(4) == Phase.QUEUED
    desk.report(K.STOPPED, 0)
    assert desk.settle() == [START, START] and desk.settle() == []


def test_settle_gives_back_what_it_borrowed() -> None:
    desk = Desk((4,), cpus=8000)
    for job in range(4):
        desk.submit(job, cpu_task=2000)
        desk.want(job, [(0, [job])])
    before = desk.state.digest()
    from headway.core.round import settled

    assert settled(desk.state, 0).kinds() == [START] * 4
    assert desk.state.digest() == before


def test_settle_stops_before_it_starts() -> None:
    desk = fresh(5, (2, 2))
    desk.run(3, [(0, [0])])
    desk.run(4, [(1, [0])])
    desk.stop(4)
    desk.want(0, [(1, [0])])
    desk.want(1, [(0, [1])])
    desk.want(2, [(1, [1])])
    desk.emit(K.NODE_DOWN, 0)
    desk.report(K.STOPPED, 4)
    desk.emit(K.CANCEL_REQUESTED, 3)
    from tests.core.dense import said

    from headway.core.round import settled

    assert said(settled(desk.state, desk.t)) == [(UNWANTED, 1), (STOP, 3), (START, 0), (START, 2)]
    desk.settle()
    assert desk.settle() == []


def test_settle_starts_a_job_with_its_shape() -> None:
    desk = Desk((4,))
    desk.submit(0, sync=2, servers=1, batch=48)
    desk.submit(1)
    desk.run(1, [(0, [0])])
    desk.stop(1)
    do(desk, put(0, (0, [0]), (0, [])))
    desk.report(K.STOPPED, 1)
    from headway.core.round import settled

    batch = settled(desk.state, 9)
    assert batch.records[0].tolist() == [9, START, 0, 1, 0, 1, 1 | 48 << 20, 6] and batch.pool.tolist() == [0, 1, 1000, 0, 0, 0]


# -- applying a plan twice -----------------------------------------------------------------------------------------
def test_a_plan_applied_twice_does_nothing_the_second_time() -> None:
    again = 0
    for seed in range(150):
        r = random.Random(seed)
        desk = random_desk(r)
        desk.submit(1000)
        plan = random_plan(r, desk, jobs=1, wild=False)
        if desk.check(plan) is not None:
            continue
        names = {int(o[c.O_OP]) for o in plan.overrides}
        kept = plan.copy()
        if names & {c.Op.WHY, c.Op.FINISH, c.Op.RELEASE}:
            continue
        desk.do(plan)
        kept.seen = desk.count("sequence")
        assert desk.check(kept) is None and len(desk.diff(kept)) == 0, seed
        again += len(kept) > 0
    assert again > 30


def test_the_same_reason_again_is_nothing() -> None:
    desk = fresh(1)
    assert do(desk, lambda d: d.why(0, Reason.NO_ROOM, 1, 0)) == [(K.WHY, 0)]
    assert do(desk, lambda d: d.why(0, Reason.NO_ROOM, 1, 0)) == []


def test_a_reason_may_carry_the_places_of_an_incomplete_gang() -> None:
    """Then it is told each time, in the order of the jobs, before the starts; nothing is wanted there by it."""
    desk = fresh(2)
    draft = desk.draft()
    draft.place(1, [0], [[3]])
    draft.why(0, Reason.GANG_INCOMPLETE, 1, 2)
    plan = draft.plan()
    plan.places = np.concatenate([plan.places, np.array([[0, 4, 1000], [-1, 0, 0]])])
    plan.overrides[1, [c.O_TASK0, c.O_TASKS]] = 1, 2
    again = plan.copy()
    batch = desk.diff(plan)
    assert batch.kinds() == [K.WHY, START, ROUND]
    assert [payload.tolist() for payload in batch.payloads()] == [[0, 4, 1000, -1, 0, 0], [0, 8, 1000], []]
    desk.do(plan)
    assert desk.diff(again).kinds() == [K.WHY]
    assert desk.get(0, "why") == Reason.GANG_INCOMPLETE and desk.get(0, "placed") == 0 and desk.gpu(2, "booked") == 0


def test_a_finish_again_is_nothing() -> None:
    desk = fresh(1)
    desk.run(0, [(0, [0])])
    assert do(desk, lambda d: d.finish(0)) == [(STOP, 0), (ROUND, 0)]
    assert do(desk, lambda d: d.finish(0)) == []


def test_another_batch_size_alone_is_a_resize() -> None:
    desk = fresh(1, batch=32)
    desk.run(0, [(0, [0])])
    assert do(desk, put(0, (0, [0]), batch=64)) == [(STOP, 0), (WANTED, 0), (ROUND, 0)]


def test_a_place_that_is_being_freed_takes_the_batch_size_along() -> None:
    desk = fresh(2, (1,), batch=32)
    desk.run(0, [(0, [0])])
    do(desk, lambda d: d.release(0), put(1, (0, [0]), batch=64))
    desk.report(K.STOPPED, 0)
    desk.settle()
    assert desk.get(1, "batch") == 64


# -- plans that hold together, and whose events must do so one by one ------------------------------------------------


def test_a_running_job_migrates_to_the_place_of_a_later_one_that_is_released() -> None:
    desk = fresh(2, (2,))
    desk.run(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    do(desk, put(0, (0, [1])), lambda d: d.release(1))
    assert desk.gpu(1, "booked") == 1000


def test_a_running_job_migrates_to_the_place_of_an_earlier_one_that_is_released() -> None:
    desk = fresh(2, (2,))
    desk.run(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    assert do(desk, put(1, (0, [0])), lambda d: d.release(0)) == [(STOP, 0), (STOP, 1), (WANTED, 1), (ROUND, 0)]


def test_two_running_jobs_change_places() -> None:
    desk = fresh(2, (2,))
    desk.run(0, [(0, [0])])
    desk.run(1, [(0, [1])])
    do(desk, put(0, (0, [1])), put(1, (0, [0])))
    desk.report(K.STOPPED, 0)
    desk.report(K.STOPPED, 1)
    assert desk.settle() == [START, START]


def test_a_waiting_job_gets_the_place_that_a_later_one_waits_for() -> None:
    desk = fresh(3, (2,))
    desk.run(2, [(0, [0])])
    desk.stop(2)
    desk.want(1, [(0, [0])])
    do(desk, put(0, (0, [0])), put(1, (0, [1])))
    assert desk.phase(1) == Phase.STARTING


def test_a_migration_frees_cpus_for_an_earlier_one() -> None:
    desk = Desk((2, 2), cpus=4000)
    for job in range(2):
        desk.submit(job, cpu_task=3000)
        desk.run(job, [(job, [0])])
    do(desk, put(0, (1, [1])), put(1, (0, [1])))


def test_a_stopping_job_whose_new_place_the_plan_gives_to_another() -> None:
    desk = fresh(2, (2,))
    desk.run(0, [(0, [0])])
    do(desk, put(0, (0, [1])))
    do(desk, put(0, (0, [0])), put(1, (0, [1])))
    assert desk.get(1, "placed") == 1


def reshuffled(seed: int) -> tuple[Desk, dict[int, int]]:
    """Jobs of one GPU each in all phases, and a plan that gives a random part of them other GPUs, carried out to the end.

    Returns the desk, and the GPU that each job should be on (-1: none).
    """
    r = random.Random(seed)
    desk = Desk((2, 2, 1))
    gpus = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    wanted = dict.fromkeys(range(7), -1)
    for job in range(7):
        desk.submit(job)
    for job, gpu in zip(r.sample(range(7), 5), r.sample(range(5), 5), strict=False):
        node, bit = gpus[gpu]
        what = r.choice(("want", "start", "run", "move", "none"))
        if what == "want":
            desk.want(job, [(node, [bit])])
        elif what != "none":
            desk.start(job, [(node, [bit])])
        if what in ("run", "move"):
            desk.report(K.STARTED, job)
        wanted[job] = gpu if what != "none" else -1
    free = sorted(set(range(5)) - set(wanted.values()))
    for job, gpu in list(wanted.items()):
        if gpu >= 0 and desk.phase(job) == Phase.RUNNING and free and r.random() < 0.4:
            wanted[job] = free.pop()
            desk.stop(job, Reason.MIGRATED, [(gpus[wanted[job]][0], [gpus[wanted[job]][1]])])
    draft = desk.draft()
    moved = r.sample(range(7), r.randint(2, 7))
    targets = sorted(set(range(5)) - {gpu for job, gpu in wanted.items() if job not in moved})
    r.shuffle(targets)
    for job in moved:
        gpu = targets.pop() if targets and r.random() < 0.8 else -1
        if gpu >= 0:
            draft.place(job, [gpus[gpu][0]], [[gpus[gpu][1]]])
            wanted[job] = gpu
        elif wanted[job] >= 0:
            draft.release(job)
            wanted[job] = -1
    plan = draft.plan()
    desk.do(plan)
    for _ in range(20):
        for job in r.sample(range(7), 7):
            if desk.phase(job) == Phase.STOPPING and r.random() < 0.7:
                desk.report(K.STOPPED, job)
                desk.settle()
            elif desk.phase(job) == Phase.STARTING:
                desk.report(K.STARTED, job)
        desk.settle()
    return desk, wanted


def test_every_reshuffle_that_check_passes_is_carried_out() -> None:
    for seed in range(300):
        desk, wanted = reshuffled(seed)
        for job, gpu in wanted.items():
            assert desk.phase(job) == (Phase.QUEUED if gpu < 0 else Phase.RUNNING), (seed, job)
            if gpu >= 0:
                assert desk.view().job(job).place[0].node == gpu // 2 and desk.view().job(job).place[0].gpus == (gpu % 2,), (
                    seed,
                    job,
                )


def test_every_plan_of_releases_and_starts_that_check_passes_can_be_applied() -> None:
    moved = 0
    for seed in range(300):
        r = random.Random(seed)
        desk = random_desk(r)
        plan = random_plan(r, desk, jobs=3, wild=False)
        J = desk.state.J
        if any(o[c.O_OP] == c.Op.PLACE and J[c.J_PLACED, o[c.O_ROW]] for o in plan.overrides) or desk.check(plan) is not None:
            continue
        moved += len(desk.do(plan)) > 1
        desk.settle()
    assert moved > 20
