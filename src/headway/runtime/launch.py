"""From a start request of the journal to an engine's launch, and from an engine's word to events of the journal."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import EventKind, Name, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.model import JobSpec, from_json, to_json
from headway.core.reconcile import Found
from headway.core.state import State
from headway.core.view import gpus_of
from headway.engines.base import NODE_LOST, NODE_REBOOTED, Exited, Launch, Record, Running, StartFailed, TaskLaunch, ended_event

UNKNOWN_UNITS = -1
"""In field b of an end: what the attempt has saved is not known."""
MESSAGE_LENGTH_MAX = 500
TERMINATED = 128 + signal.SIGTERM
GRACE_OF_UNKNOWN_US = 30_000_000
"""What an attempt is given to save itself that runs, and of which the journal knows nothing."""
STRANGE_WAIT_US = 120_000_000
"""For so long nothing is started while such attempts end (only after the journal has lost its end)."""
KILLED = "killed at the end of its grace: what it had not saved by then is lost; checkpoint.grace gives it longer"
"""What the owner of a job reads that was told to stop and had to be killed."""


_TEXT = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def spec_text(spec: JobSpec) -> str:
    """A job as the text of its SUBMITTED event: equal for equal jobs."""
    return _TEXT.encode(to_json(spec, compact=True))


def spec_of(state: State, job: int) -> JobSpec:
    """A live job as it was handed in. `ValueError`, `KeyError` or `UserError`: its text is no job."""
    return from_json(json.loads(state.files[job]))


def make_launch(
    state: State, epoch: int, job: int, attempt: int, places: Ints, public_id: str, account: Callable[[str], str] = str
) -> Launch:
    """The gang of a START_REQUESTED, whose payload is `places`; `account` gives whose Unix account a user's jobs run under.
    `ValueError`, `KeyError` or `UserError`: the text is no job."""
    spec = spec_of(state, job)
    row = state.row(job)
    servers, first = int(state.J[c.J_SERVERS, row]), int(state.J[c.J_TASK0, row])
    tasks_of = state.T[:, first : first + int(state.J[c.J_TASKS, row])]
    rows = places.reshape(-1, c.PLACE).tolist()
    tasks = tuple(
        TaskLaunch(
            rank=rank,
            role="worker" if rank < len(rows) - servers else "server",
            node=state.name(Name.NODE, node),
            gpus=gpus_of(mask),
            command=spec.run,
            setup=spec.setup,
            env=dict(spec.env),
            workdir=spec.workdir,
            milli=milli if mask else c.WHOLE,
            cpus_milli=int(tasks_of[c.T_CPU, rank]),
            memory_bytes=int(tasks_of[c.T_MEM, rank]),
        )
        for rank, (node, mask, milli) in enumerate(rows)
    )
    checkpoints = str(Path(spec.workdir, spec.checkpoint.dir)) if spec.checkpoint.dir else ""
    return Launch(epoch, job, public_id, attempt, tasks, checkpoints, spec.retry_max, account(spec.user))


def add_end(
    out: EventBuffer, t_us: int, end: Exited | StartFailed, stop_reason: int, *, done: bool = False, saved: int = UNKNOWN_UNITS
) -> None:
    """Append the event of an attempt's end. Field c is the exit code; the text what the engine says beside it.

    A job that has said that it is `done` is completed, even after a stop request, unless it was cancelled or has failed: its
    exit code is 0 then, or that of its shell, which SIGTERM ends while the command goes on.
    `saved` is how many steps are in its newest durable checkpoint. A machine that was switched off, or could not be used any
    more, is not the job's failure: that counts as stopped, and no retry is spent.
    """
    if isinstance(end, StartFailed):
        out.add(t_us, EventKind.START_FAILED, end.job, end.attempt, b=saved, text=_message(end.reason))
        return
    if end.after_stop and done and end.exit_code in (0, TERMINATED) and stop_reason != Reason.CANCELLED:
        kind, a, text = EventKind.COMPLETED, 0, ""
    elif end.after_stop:
        kind, a, text = EventKind.STOPPED, stop_reason, KILLED if end.signal == signal.SIGKILL else ""
    elif end.reason in (NODE_REBOOTED, NODE_LOST):
        kind, a, text = EventKind.STOPPED, int(Reason.NODE_LOST), end.reason
    elif end.exit_code == 0:
        kind, a, text = EventKind.COMPLETED, 0, end.reason
    else:
        kind, a = EventKind.FAILED, int(Reason.EXIT_CODE)
        text = end.reason or (f"killed by signal {end.signal}" if end.signal is not None else "")
    out.add(t_us, kind, end.job, end.attempt, a=a, b=saved, c=end.exit_code, text=_message(text) or None)


def _message(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:MESSAGE_LENGTH_MAX]


def found_in(records: Sequence[Record]) -> dict[int, Found]:
    """The newest attempt of each job, as `core.reconcile` wants it."""
    found: dict[int, Found] = {}
    for record in records:
        if record.job in found and found[record.job].attempt > record.attempt:
            continue
        if isinstance(record, Running):
            found[record.job] = Found(record.job, record.attempt, True, record.phase == "running")
            continue
        end = ended_event(record)
        kind = EventKind.START_FAILED
        if isinstance(end, Exited):
            kind = EventKind.STOPPED if end.after_stop else EventKind.COMPLETED if end.exit_code == 0 else EventKind.FAILED
        found[record.job] = Found(record.job, record.attempt, False, False, kind, record.exit_code)
    return found


def owned(batch: EventBatch) -> EventBatch:
    """A batch of its own: that of a round lies in scratch arrays that the next one writes."""
    return EventBatch(batch.records.copy(), batch.pool.copy(), batch.texts) if len(batch) else batch
