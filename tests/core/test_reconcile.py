"""`reconcile`: what the scheduler believes × what the engine has, and what runs but must not."""

from __future__ import annotations

import pytest
from tests.core.dense import US, Desk

from headway.core.columns import EventKind, Phase, Reason
from headway.core.reconcile import Found, reconcile

K = EventKind
BELIEVED = ("queued", "starting", "running", "stopping", "cancelling", "migrating")


def desk_with(believed: str, attempt: int = 2) -> Desk:
    """Job 7 in its second attempt (or back from it)."""
    desk = Desk((2,))
    desk.submit(7, retry_max=5)
    for n in range(attempt):
        desk.start(7, [(0, [0])], t=n * US)
        if n + 1 < attempt:
            desk.report(K.STOPPED, 7)
    if believed == "queued":
        desk.report(K.STOPPED, 7)
    elif believed != "starting":
        desk.report(K.STARTED, 7)
    if believed in ("stopping", "cancelling"):
        desk.stop(7)
    if believed == "cancelling":
        desk.emit(K.CANCEL_REQUESTED, 7)
    if believed == "migrating":
        desk.stop(7, Reason.MIGRATED, [(0, [1])])
    return desk


def found(runs: bool = True, *, attempt: int = 2, up: bool = True, ended: EventKind = K.STOPPED, code: int = 0) -> Found:
    return Found(7, attempt, runs, up, ended, code)


GONE: dict[str, Phase] = {
    "queued": Phase.QUEUED,
    "starting": Phase.QUEUED,
    "running": Phase.QUEUED,
    "stopping": Phase.QUEUED,
    "cancelling": Phase.CANCELLED,
    "migrating": Phase.QUEUED,
}
SAME: dict[str, Phase] = {
    "queued": Phase.QUEUED,
    "starting": Phase.STARTING,
    "running": Phase.RUNNING,
    "stopping": Phase.STOPPING,
    "cancelling": Phase.STOPPING,
    "migrating": Phase.STOPPING,
}
CASES = {  # what is found -> the event that tells it (None: none), and where each believed phase goes
    "nothing": (None, K.STOPPED, GONE),
    "an older attempt that runs": (found(attempt=1), K.STOPPED, GONE),
    "an older attempt that has ended": (found(False, attempt=1, ended=K.COMPLETED), K.STOPPED, GONE),
    "it runs and is up": (found(), None, {**SAME, "starting": Phase.RUNNING}),
    "it runs and is not up yet": (found(up=False), None, SAME),
    "it has completed": (
        found(False, ended=K.COMPLETED),
        K.COMPLETED,
        {**dict.fromkeys(GONE, Phase.COMPLETED), "queued": Phase.QUEUED},
    ),
    "it has failed": (found(False, ended=K.FAILED, code=3), K.FAILED, GONE),
    "it has stopped": (found(False, ended=K.STOPPED), K.STOPPED, GONE),
}


@pytest.mark.parametrize("believed", BELIEVED)
@pytest.mark.parametrize("what", CASES)
def test_what_is_believed_against_what_is_found(believed: str, what: str) -> None:
    desk = desk_with(believed)
    seen, event, after = CASES[what]
    batch, orphans = reconcile(desk.state, {} if seen is None else {7: seen}, 50 * US)
    if what == "it runs and is up" and believed == "starting":
        event = K.STARTED
    assert batch.kinds() == ([] if event is None or believed == "queued" else [event])
    assert batch.records[:, :4].tolist() == [[50 * US, kind, 7, 2] for kind in batch.kinds()]
    must_not_run = seen is not None and seen.runs and (believed not in ("starting", "running") or seen.attempt != 2)
    assert orphans == ([seen] if must_not_run else [])
    desk.apply(batch)
    assert desk.phase(7) == after[believed] and desk.count("stale") == 0
    again, _ = reconcile(desk.state, {} if seen is None else {7: seen}, 60 * US)
    assert believed == "queued" or desk.phase(7) not in (Phase.STARTING, Phase.RUNNING, Phase.STOPPING) or len(again) == 0


@pytest.mark.parametrize("believed", ["starting", "stopping", "cancelling", "migrating"])
def test_a_start_that_has_failed(believed: str) -> None:
    desk = desk_with(believed)
    batch, orphans = reconcile(desk.state, {7: found(False, ended=K.START_FAILED, code=127)}, 50 * US)
    assert batch.kinds() == [K.START_FAILED] and batch.records[0, 4:].tolist() == [0, -1, 127, 0] and orphans == []
    desk.apply(batch)
    assert desk.phase(7) == GONE[believed]


def test_a_gone_attempt_is_told_as_lost_with_its_node_and_keeps_its_progress() -> None:
    desk = desk_with("running")
    desk.report(K.SAVED, 7, a=4)
    batch, _ = reconcile(desk.state, {}, 50 * US)
    assert batch.records.tolist() == [[50 * US, K.STOPPED, 7, 2, Reason.NODE_LOST, -1, 0, 0]]
    desk.apply(batch)
    assert desk.get(7, "retries") == 0 and desk.get(7, "units_saved") == 4


def test_a_migrating_job_that_is_gone_starts_on_its_new_place() -> None:
    desk = desk_with("migrating")
    desk.apply(reconcile(desk.state, {}, 50 * US)[0])
    desk.t = 50 * US
    assert desk.settle() == [K.START_REQUESTED] and desk.get(7, "attempt") == 3


@pytest.mark.parametrize(
    ("job", "attempt", "runs", "orphan"),
    [
        (7, 2, True, False),
        (7, 1, True, True),
        (7, 3, True, True),
        (7, 1, False, False),
        (8, 1, True, True),
        (8, 1, False, False),
        (10**9, 1, True, True),
        (0, 1, True, True),
    ],
)
def test_orphans_run_but_are_not_what_is_wanted(job: int, attempt: int, runs: bool, orphan: bool) -> None:
    """Job 0 has ended, 7 runs in its second attempt, 8 waits, and 10^9 was never heard of."""
    desk = Desk((2,))
    desk.submit(0)
    desk.run(0, [(0, [0])])
    desk.report(K.COMPLETED, 0)
    desk.submit(7)
    desk.run(7, [(0, [0])])
    desk.report(K.STOPPED, 7)
    desk.run(7, [(0, [0])])
    desk.submit(8)
    one = Found(job, attempt, runs, True)
    assert reconcile(desk.state, {job: one}, 0)[1] == ([one] if orphan else [])


def test_jobs_come_in_order_and_only_live_ones() -> None:
    desk = Desk((4,))
    for job in range(5):
        desk.submit(job)
    for job in (3, 1, 2):
        desk.run(job, [(0, [job])])
    desk.report(K.COMPLETED, 2)
    batch, _ = reconcile(desk.state, {}, 9)
    assert batch.records[:, 2].tolist() == [1, 3]
    assert reconcile(Desk((1,)).state, {}, 9)[0].kinds() == []


@pytest.mark.parametrize("runs", [True, False])
def test_a_newer_attempt_than_the_believed_one(runs: bool) -> None:
    desk = desk_with("running")
    batch, _ = reconcile(desk.state, {7: found(runs, attempt=3, ended=K.COMPLETED)}, 50 * US)
    assert batch.records.tolist() == [[50 * US, K.STOPPED, 7, 2, Reason.NODE_LOST, -1, 0, 0]]
    desk.apply(batch)
    assert desk.phase(7) == Phase.QUEUED, "the attempt that is believed in is gone, and only it"


@pytest.mark.parametrize("believed", ["stopping", "cancelling", "migrating"])
def test_a_stopping_job_that_still_runs_is_told_again(believed: str) -> None:
    desk = desk_with(believed)
    assert reconcile(desk.state, {7: found()}, 9)[1] == [found()]
