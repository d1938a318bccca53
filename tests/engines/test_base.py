"""How a gang ended, from how its tasks ended; and the stream of events."""

from __future__ import annotations

import asyncio

import pytest

from headway.engines.base import (
    NEVER_STARTED,
    Ended,
    EventStream,
    Exited,
    Started,
    StartFailed,
    TaskEnd,
    ended_event,
    gang_outcome,
)

DONE = TaskEnd(0, "worker")


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [
        pytest.param([DONE, TaskEnd(1, "worker")], (True, 0, None, False, ""), id="all-done"),
        pytest.param(
            [TaskEnd(0, "worker", 143, 15, stopped_by="gang"), TaskEnd(1, "worker", 3)],
            (True, 3, None, False, ""),
            id="the-cause-counts-and-not-what-came-of-it",
        ),
        pytest.param(
            [TaskEnd(1, "worker", 4), TaskEnd(0, "worker", 137, 9)],
            (True, 137, 9, False, ""),
            id="of-two-causes-the-lower-rank",
        ),
        pytest.param(
            [TaskEnd(0, "worker", stopped_by="controller"), TaskEnd(1, "worker", stopped_by="controller")],
            (True, 0, None, True, ""),
            id="stopped-and-saved",
        ),
        pytest.param(
            [TaskEnd(0, "worker", stopped_by="controller"), TaskEnd(1, "worker", 143, 15, stopped_by="controller")],
            (True, 143, 15, True, ""),
            id="stopped-and-killed",
        ),
        pytest.param(
            [DONE, TaskEnd(1, "worker", 143, 15, stopped_by="controller")],
            (True, 143, 15, True, ""),
            id="one-was-done-before-the-stop",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 1), TaskEnd(1, "worker", 143, 15, stopped_by="controller")],
            (True, 1, None, False, ""),
            id="failed-before-the-stop",
        ),
        pytest.param(
            [DONE, TaskEnd(1, "server", 137, 9, stopped_by="servers")],
            (True, 0, None, False, ""),
            id="servers-end-with-the-workers",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 143, 15, stopped_by="gang"), TaskEnd(1, "server", 2)],
            (True, 2, None, False, ""),
            id="a-server-fails",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 143, 15, stopped_by="start"), TaskEnd(1, "worker", 126, start_error="no")],
            (False, 126, None, False, "rank 1: no"),
            id="start-failed",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 126, start_error=NEVER_STARTED)],
            (False, 126, None, False, "never started"),
            id="never-started",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 2), TaskEnd(1, "worker", 126, start_error=NEVER_STARTED, stopped_by="gang")],
            (False, 126, None, False, "never started"),
            id="a-part-failed-of-what-was-never-whole",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 143, 15, stopped_by="start"), TaskEnd(1, "worker", 137, 9, stopped_by="start")],
            (False, 143, None, False, "the start took too long"),
            id="given-up-while-starting",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 143, start_error=NEVER_STARTED, stopped_by="controller")],
            (True, 143, None, True, ""),
            id="stopped-before-it-started",
        ),
        pytest.param(
            [TaskEnd(0, "worker", 137, 9, reason="runner-lost")],
            (True, 137, 9, False, "runner-lost"),
            id="runner-lost",
        ),
    ],
)
def test_how_a_gang_ended(ends: list[TaskEnd], outcome: tuple[bool, int, int | None, bool, str]) -> None:
    assert gang_outcome(ends) == outcome


def test_an_end_in_a_snapshot_tells_what_its_event_told() -> None:
    assert ended_event(Ended(1, 2, 3, False, 126, None, False, "why")) == StartFailed(1, 2, "why")
    assert ended_event(Ended(1, 2, 3, True, 137, 9, True, "why")) == Exited(1, 2, 137, 9, True, "why")


async def test_a_wait_that_times_out_loses_no_event() -> None:
    stream = EventStream()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(aiter(stream)), 0.001)
    stream.put(Started(1, 1))
    stream.put(Started(2, 1))
    stream.close()
    assert [event async for event in stream] == [Started(1, 1), Started(2, 1)]
    assert [event async for event in stream] == []
