"""What people see of a job: the live side passes over what is there for the figures of simulated runs alone."""

from __future__ import annotations

from headway.core.columns import EventKind, Phase, Reason
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.runtime.board import Board
from headway.testing.builders import cluster, job, workload


def test_how_good_an_ended_job_was_is_passed_over() -> None:
    """Ended in the queue, then evaluated; and an evaluation of a job that nobody knows."""
    load, state, board = workload([job("a", 1, 100)]), State(), Board()
    out = EventBuffer()
    out.extend(cluster([1]).events(0, load.users, load.queues))
    out.add(0, EventKind.SUBMITTED, 0, payload=load.spec[:, 0])
    out.add(5, EventKind.FINISHED, 0, a=Reason.EARLY_STOP)
    for number in (0, 99):
        out.add(5, EventKind.EVALUATED, number, payload=[0, 900_000, 900_000])
    batch = out.take()
    state.apply(batch)
    board.fold(batch, state)
    record = board.by_number(0)
    assert len(board) == 1 and record is not None
    assert (record.phase, record.reason, record.ended_us) == (Phase.COMPLETED, Reason.EARLY_STOP, 5)
