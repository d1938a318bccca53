"""`view`: what a policy and people see, in their units."""

from __future__ import annotations

import numpy as np
import pytest
from tests.core.dense import US, Desk

from headway.core import columns as c
from headway.core.columns import EventKind, Name, NodePhase, Phase, Reason
from headway.core.view import ClusterView, TaskPlace, gpus_of, mask_of

K = EventKind


def desk() -> Desk:
    found = Desk((4, 2), kinds=(0, 1), racks=(3, 7), limits=(-1, -1))
    for table, index, text in (
        (Name.NODE, 0, "big"),
        (Name.KIND, 1, "v100"),
        (Name.QUEUE, 1, "vision"),
        (Name.USER, 5, "ada"),
        (Name.JOB, 11, "train-11"),
    ):
        found.emit(K.NAMED, index, a=table, text=text)
    found.submit(10, t=1_500_000)
    found.submit(11, data=2, gpu_task=2000, queue=1, user=5, priority=80, estimate=90_500_000, t=2 * US)
    found.run(11, [(0, [0, 1]), (0, [2, 3])], t=4 * US)
    return found


def test_a_job_in_peoples_units() -> None:
    d = desk()
    view = ClusterView(d.state, 14 * US, 5)
    job = view.job(11)
    assert (job.id, job.name, job.queue, job.user, job.phase, job.attempt, job.priority) == (
        11,
        "train-11",
        "vision",
        "ada",
        Phase.RUNNING,
        1,
        80,
    )
    assert (job.submitted_s, job.gpus, job.tasks, job.attained_gpu_s, job.run_s, job.estimate_s, job.remaining_s) == (
        2.0,
        4,
        2,
        40.0,
        10.0,
        90.5,
        80.5,
    )
    assert job.place == (TaskPlace(0, (0, 1), 1000), TaskPlace(0, (2, 3), 1000)) and job.preemptions == 0
    assert view.now_s == 14.0 and view.seed == 5 and view.waiting == 1


def test_a_job_without_names_estimate_or_place() -> None:
    job = desk().view().job(10)
    assert (job.name, job.queue, job.user, job.estimate_s, job.remaining_s, job.place) == ("10", "0", "0", None, None, ())
    assert (job.submitted_s, job.run_s, job.attained_gpu_s, job.reason) == (1.5, 0.0, 0.0, Reason.BEHIND_OTHERS)


@pytest.mark.parametrize(("estimate", "seconds"), [(0, None), (-1, None), (1, 1e-6), (c.NEVER, None)])
def test_estimates(estimate: int, seconds: float | None) -> None:
    d = Desk((1,))
    d.submit(0, estimate=estimate)
    assert d.view().job(0).estimate_s == seconds


def test_what_remains_is_never_below_nothing() -> None:
    d = Desk((1,))
    d.submit(0, estimate=3 * US)
    d.run(0, [(0, [0])])
    d.t = 10 * US
    assert d.view().job(0).remaining_s == 0.0


def test_the_reason_of_a_waiting_job_is_the_newest_why() -> None:
    d = Desk((1,))
    d.submit(0)
    d.emit(K.WHY, 0, a=Reason.NO_ROOM, b=4, c=1)
    assert d.view().job(0).reason == Reason.NO_ROOM and Reason.NO_ROOM.word == "no-room"
    d.run(0, [(0, [0])])
    assert d.view().job(0).reason == Reason.NONE
    d.stop(0)
    assert d.view().job(0).reason == Reason.PREEMPTED and d.view().job(0).preemptions == 1


def test_the_reason_of_a_job_that_is_held_or_waits_for_its_place() -> None:
    d = Desk((1,))
    d.submit(0)
    d.emit(K.WHY, 0, a=Reason.NO_ROOM)
    d.want(0, [(0, [0])])
    assert d.view().job(0).reason == Reason.WAITS_FOR_STOP
    d.emit(K.HOLD_SET, 0, a=1)
    assert d.view().job(0).reason == Reason.HELD_BY_USER
    d.run(0, [(0, [0])])
    assert d.view().job(0).reason == Reason.NONE


def test_jobs_by_number_and_by_name() -> None:
    d = desk()
    view = d.view()
    assert view.job("train-11") == view.job(11) and [j.id for j in view.jobs()] == [10, 11]
    for unknown in (12, -1, 10**9, "train-12", "10", ""):
        with pytest.raises(KeyError) as error:
            view.job(unknown)
        assert error.value.args == (unknown,)
    d.report(K.COMPLETED, 11)
    for ended in (11, "train-11"):
        with pytest.raises(KeyError):
            d.view().job(ended)
    assert [j.id for j in d.view().jobs()] == [10]


def test_a_name_that_is_used_again_means_the_live_job() -> None:
    d = Desk((1,))
    for job in (0, 1):
        d.submit(job)
        d.emit(K.NAMED, job, a=Name.JOB, text="train")
        if job == 0:
            d.emit(K.CANCEL_REQUESTED, 0)
    assert d.view().job("train").id == 1


def test_nodes() -> None:
    d = desk()
    d.stop(11)
    d.emit(K.NODE_DRAINING, 1)
    big, small = d.view().nodes()
    assert (big.number, big.name, big.rack, big.kind, big.phase, big.gpus, big.free, big.held) == (
        0,
        "big",
        3,
        "0",
        NodePhase.UP,
        4,
        4,
        4,
    )
    assert (small.number, small.name, small.rack, small.kind, small.phase, small.gpus, small.free, small.held) == (
        1,
        "1",
        7,
        "v100",
        NodePhase.DRAINING,
        2,
        2,
        0,
    )


def test_rows_by_what_they_are() -> None:
    d = Desk((4, 4))
    for job in range(7):
        d.submit(job)
    d.run(0, [(0, [0])])
    d.start(1, [(0, [1])])
    d.want(2, [(0, [2])])
    d.run(3, [(0, [3])])
    d.stop(3)
    d.run(4, [(1, [0])])
    d.stop(4, Reason.MIGRATED, [(1, [1])])
    d.emit(K.CANCEL_REQUESTED, 5)
    view = d.view()
    assert view.live_rows().tolist() == [0, 1, 2, 3, 4, 6]
    assert view.placed_rows().tolist() == [0, 1, 2, 4]
    assert view.waiting_rows().tolist() == [6] and view.waiting == 1
    assert view.ranked_rows().tolist() == [0, 1, 2, 4, 6], "a job that is only stopping is left out"


def test_columns_up_to_now() -> None:
    d = Desk((4,))
    d.submit(0, t=1_250_000)
    d.submit(1, gpu_task=300, share=1, t=1_250_000)
    d.run(0, [(0, [0])], t=2 * US)
    d.run(1, [(0, [1], 300)], t=2 * US)
    d.stop(0, t=3 * US)
    d.report(K.STOPPED, 0)
    rows = np.array([0, 1])
    view = ClusterView(d.state, 2 * US + 3_000_007, 0)
    assert view.run_us(rows).tolist() == [US, 3_000_007]
    assert view.attained_us(rows).tolist() == [US, 900_002]
    assert view.submitted_s(rows).tolist() == [1.25, 1.25]
    assert view.run_us(np.array([], np.int64)).tolist() == []


def test_an_empty_cluster_has_an_empty_view() -> None:
    from headway.core.state import State

    view = ClusterView(State(), 0, 0)
    assert (
        list(view.jobs()) == list(view.nodes()) == []
        and view.waiting == 0
        and view.waiting_rows().tolist() == view.live_rows().tolist() == []
    )
    assert len(view.draft().plan()) == 0


@pytest.mark.parametrize("gpus", [(), (0,), (1, 5), (63,), (0, 63), tuple(range(64))])
def test_masks_and_gpus(gpus: tuple[int, ...]) -> None:
    mask = mask_of(gpus)
    assert gpus_of(mask) == gpus and -(1 << 63) <= mask < 1 << 63


def test_every_reason_has_its_word() -> None:
    assert {r.word for r in Reason} >= {"none", "early-stop", "preempted", "no-room", "node-lost"} and all(
        " " not in r.word for r in Reason
    )
