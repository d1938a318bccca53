"""What a controller knows, as a fold over its journal: replay, and snapshots that shorten it.

A snapshot is what *replay* gives up to a segment, never what a running controller happens to have in memory: so recovery from
a snapshot and the segments after it gives, byte for byte, what the replay of all segments gives. For that, replay takes
segments in groups that begin at fixed numbers, and a snapshot ends with a group.

A snapshot carries a key: a digest of all code that has folded it, and of the policy whose memo is in it. One of another key
is passed over, and the journal is replayed from an older one or from its beginning.
"""

from __future__ import annotations

import hashlib
import inspect
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from datetime import datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import headway.policies
from headway.core import columns as c
from headway.core.columns import EventKind, Name, Phase, Reason
from headway.core.events import EventBatch, concatenate
from headway.core.jit import source_digest
from headway.core.policy import Policy, remembers
from headway.core.scratch import Scratch
from headway.core.state import State
from headway.perf.histories import Histories, Past
from headway.runtime.admit import Names
from headway.runtime.board import Board, JobRecord
from headway.runtime.clock import Anchor, Calendar
from headway.runtime.drains import Drains
from headway.runtime.journal import Journal, SnapshotRow
from headway.runtime.snapshot import DamagedSnapshotError, pack, unpack

GROUP = 64
"""Segments that replay applies at once."""
CODE = source_digest(Path(__file__))
"""A digest of the code that folds, as it was when it was loaded."""
ARRAYS = ("J", "T", "X", "F", "N", "G", "Q", "B", "R", "C")
_MAY_END = np.array(
    [EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED, EventKind.CANCEL_REQUESTED,
     EventKind.FINISHED, EventKind.REJECTED],
    np.int64,
)  # fmt: skip
"""Events after which a job may have ended."""
_OF_JOBS = np.concatenate(
    [_MAY_END, np.array([EventKind.START_REQUESTED, EventKind.STARTED, EventKind.STOP_REQUESTED], np.int64)]
)


@dataclass(slots=True)
class Folded:
    """The folds of one journal. `histories`: for a policy that asks for estimates, and for people who ask why; `memo`: for one
    that remembers."""

    policy: Policy
    state: State
    names: Names
    board: Board
    calendar: Calendar
    drains: Drains
    histories: Histories | None
    memo: Any = None

    def __post_init__(self) -> None:
        self.memo = self.policy.start() if remembers(self.policy) else None

    @classmethod
    def empty(cls, policy: Policy) -> Folded:
        """Before any event, for a policy."""
        return cls(policy, State(), Names(), Board(), Calendar(), Drains(), Histories())

    def take(self, batches: Sequence[EventBatch]) -> None:
        """Take in batches that follow each other."""
        whole = concatenate(batches)
        for piece in pieces(whole):
            self.state.apply(piece)
            self.board.fold(piece, self.state)
        self.names.learn(whole)
        note_anchors(self.calendar, whole)
        self.drains.fold(whole)
        if self.histories:
            self.histories.update(whole)
        if remembers(self.policy):
            for batch in batches:
                self.memo = self.policy.fold(self.memo, batch)

    def key(self) -> str:
        """A digest of the code that folds, and of the policy, if it remembers."""
        parts = [CODE, str(self.histories is not None)]
        if remembers(self.policy):
            parts += [repr(self.policy), _code_of(inspect.getsourcefile(type(self.policy)) or "")]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def pack(self) -> bytes:
        """All of it as bytes. `snapshot.NoPlainValueError` if the memo has no plain form."""
        return pack(
            {
                "state": _of_state(self.state),
                "names": [{int(table): found for table, found in self.names._numbers.items()}, dict(self.names._ids_given)],
                "board": [[_of_record(record) for record in self.board], list(self.board._ended)],
                "calendar": [[a.t_us, a.boot_id, a.boottime_us, a.wall.isoformat()] for a in self.calendar._anchors],
                "drains": self.drains.plain(),
                "histories": _of_histories(self.histories) if self.histories else None,
                "memo": self.memo,
            }
        )

    def restore(self, content: bytes) -> None:
        """Become what was packed. The objects stay the same.

        Raises:
            DamagedSnapshotError: the bytes are not those that `pack` gave; nothing has changed.
        """
        try:
            found = unpack(content)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise DamagedSnapshotError(str(error)) from None
        _to_state(self.state, found["state"])
        numbers, given = found["names"]
        self.names.restore({Name(table): names for table, names in numbers.items()}, given)
        records, ended = found["board"]
        self.board._records = {record.number: record for record in map(_to_record, records)}
        self.board._by_id = {record.id: record.number for record in self.board}
        self.board._ended.clear()
        self.board._ended.extend(ended)
        self.calendar._anchors = [Anchor(t, boot, up, datetime.fromisoformat(wall)) for t, boot, up, wall in found["calendar"]]
        self.drains.restore(found["drains"])
        if self.histories and found["histories"]:
            _to_histories(self.histories, found["histories"])
        self.memo = found["memo"]


# -- replay ---------------------------------------------------------------------------------------------------------
def recover(journal: Journal, folded: Folded) -> list[str]:
    """Fold the journal to its end, from the newest snapshot that fits; returns what people should know of that."""
    notes = []
    after = events = 0
    key = folded.key()
    for row in journal.snapshots():
        if row.key != key:
            continue
        try:
            folded.restore(row.body)
        except DamagedSnapshotError as error:
            notes.append(f"the snapshot after segment {row.seq} is damaged ({error}) and passed over")
            continue
        after, events = row.seq, row.events
        break
    journal.kept_events = events
    group: list[EventBatch] = []
    for batch in journal.read(after, events):
        group.append(batch)
        if journal.segments % GROUP == 0:
            folded.take(group)
            group = []
    if group:
        folded.take(group)
    return notes


def shadow(journal: Journal, folded: Folded, go_on: Callable[[], bool]) -> SnapshotRow | None:
    """The snapshot after the last whole group; None if there is nothing newer, or when `go_on` says no."""
    key = folded.key()
    start = next((row for row in journal.snapshots() if row.key == key), None)
    seq, events = 0, 0
    if start is not None:
        try:
            folded.restore(start.body)
            seq, events = start.seq, start.events
        except DamagedSnapshotError:
            start = None
    begin = seq
    group: list[EventBatch] = []
    for batch in journal.read(seq, events):
        group.append(batch)
        if journal.segments % GROUP == 0:
            folded.take(group)
            group = []
            seq, events = journal.segments, journal.events
            if not go_on():
                return None
    return SnapshotRow(seq, events, key, folded.pack()) if seq > begin else None


def pieces(batch: EventBatch) -> Iterator[EventBatch]:
    """A batch in parts, cut so that a job that may have ended is looked at before more happens to it: the board reads from the
    state whether it has."""
    records = batch.records
    index = np.flatnonzero(np.isin(records[:, c.E_KIND], _OF_JOBS))
    jobs = records[index, c.E_ID]
    order = np.argsort(jobs, kind="stable")
    same = np.flatnonzero(jobs[order[1:]] == jobs[order[:-1]])
    first, then = index[order[same]], index[order[same + 1]]
    ends = np.isin(records[first, c.E_KIND], _MAY_END)
    cuts = [0]
    for stop, start in sorted(zip(then[ends].tolist(), first[ends].tolist(), strict=True)):
        if start >= cuts[-1]:
            cuts.append(stop)
    if len(cuts) == 1:
        yield batch
        return
    cuts.append(len(records))
    at = np.concatenate(([0], np.cumsum(records[:, c.E_POOL])))
    texts = sorted(batch.texts.items())
    for begin, stop in pairwise(cuts):
        mine = {i - begin: text for i, text in texts if begin <= i < stop}
        yield EventBatch(records[begin:stop], batch.pool[at[begin] : at[stop]], mine)


def note_anchors(calendar: Calendar, batch: EventBatch) -> None:
    """Add the anchors of the EPOCH events of a batch to a calendar."""
    for index in np.flatnonzero(batch.records[:, c.E_KIND] == EventKind.EPOCH).tolist():
        if (text := batch.texts.get(index)) is not None:
            anchor = Anchor.from_text(int(batch.records[index, c.E_T]), text)
            if anchor is not None:
                calendar.add(anchor)


# -- plain values ---------------------------------------------------------------------------------------------------
def _of_state(state: State) -> dict[str, Any]:
    names = {int(table): found for table, found in state.names.items()}
    return {name: getattr(state, name) for name in ARRAYS} | {"names": names, "files": state.files}


def _to_state(state: State, found: dict[str, Any]) -> None:
    for name in ARRAYS:
        setattr(state, name, found[name])
    state.names = {Name(table): names for table, names in found["names"].items()}
    state.files = found["files"]
    state.scratch = Scratch()
    state.scratch.fit_cluster(state.N.shape[1], state.G.shape[1], state.B.shape)
    state.scratch.queues, state.scratch.planned = np.zeros((2, state.Q.shape[1]), np.int64)
    state.scratch.fit(state.J.shape[1], state.T.shape[1])


_ENUMS = {"phase": Phase, "reason": Reason, "stop_reason": Reason}
"""Fields of a job's record that are enumerations."""
_REPORTS = [field.name for field in fields(Past)].index("reports")
_FIELDS = tuple(field.name for field in fields(JobRecord))


def _of_record(record: JobRecord) -> list[Any]:
    return [int(getattr(record, name)) if name in _ENUMS else getattr(record, name) for name in _FIELDS]


def _to_record(row: list[Any]) -> JobRecord:
    values: list[Any] = [_ENUMS[name](value) if name in _ENUMS else value for name, value in zip(_FIELDS, row, strict=True)]
    return JobRecord(*values)


def _of_histories(histories: Histories) -> list[Any]:
    """What is known of a job's estimates is no fold of the journal, and left out."""
    return [{job: _of_past(past) for job, past in histories.live.items()}, dict(histories.ended.groups)]


def _of_past(past: Past) -> list[Any]:
    row = list(astuple(replace(past, known={})))
    row[_REPORTS] = np.array(past.reports, np.int64)
    return row


def _to_histories(histories: Histories, found: list[Any]) -> None:
    live, groups = found
    for row in live.values():
        row[_REPORTS] = array("q", row[_REPORTS].tobytes())
    histories.live = {job: Past(*row) for job, row in live.items()}
    histories.ended.groups.clear()
    histories.ended.groups.update(groups)


@cache
def _code_of(own: str) -> str:
    """A digest of the code that a policy's memo may come from: all policies here, and the policy's own file.

    As CODE, it is taken once, and by a controller as it starts: an upgrade in place must not give the new code's key to what
    the old code, which still runs, has folded.
    """
    package = Path(headway.policies.__file__).parent
    sources = [*sorted(package.rglob("*.py")), *([Path(own)] if own else [])]
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in sources)).hexdigest()
