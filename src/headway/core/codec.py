"""The journal's bytes: segments of event columns, and the hash of a whole journal.

A segment is a header line (a magic word, the SHA-256 of all that follows, JSON) and a body: the
eight record columns one after the
other, then the pool, all int64 little-endian. The hash of a journal is SHA-256 over fixed chunks of CHUNK events, so that it
does not depend on how
events came in batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from headway.core import columns as c
from headway.core.errors import UserError
from headway.core.events import EMPTY, EventBatch, EventBuffer, concatenate

SCHEMA = 5
"""Version of the event records. A change of fields or codes raises it and adds a step to MIGRATIONS."""
CHUNK = 4096
MAGIC = "headway-journal"


def _as_it_is(batch: EventBatch) -> EventBatch:
    """The step to a version that only knows more: kinds of events, or fields that were 0."""
    return batch


MIGRATIONS: dict[int, Callable[[EventBatch], EventBatch]] = {1: _as_it_is, 2: _as_it_is, 3: _as_it_is, 4: _as_it_is}
"""From version n to n + 1."""


class DamagedSegmentError(Exception):
    """A segment that is cut short or altered; everything before it is whole."""


def encode(batch: EventBatch, *, schema: int | None = None, run: Mapping[str, Any] | None = None) -> bytes:
    """One segment. `run`: what the first one of a run says of it (JSON); it is no event, and not part of the journal's hash."""
    body = np.ascontiguousarray(batch.records.T).astype("<i8").tobytes() + batch.pool.astype("<i8").tobytes()
    header: dict[str, Any] = {
        "schema": SCHEMA if schema is None else schema,
        "events": len(batch),
        "pool": len(batch.pool),
        "texts": {str(i): text for i, text in sorted(batch.texts.items())},
    }
    if run is not None:
        header["run"] = dict(run)
    line = json.dumps(header, ensure_ascii=False, sort_keys=True).encode()
    return f"{MAGIC} {_checksum(line, body)} ".encode() + line + b"\n" + body


def _checksum(line: bytes, body: bytes) -> str:
    """SHA-256 over a segment's header and body."""
    return hashlib.sha256(line + b"\n" + body).hexdigest()


def decode(stream: BinaryIO) -> Iterator[EventBatch]:
    """The segments of a stream, brought to the present schema.

    Raises:
        DamagedSegmentError: after the last whole segment, if something follows that is not one.
        UserError: the stream is not a journal, or one of a newer version.
    """
    first = True
    while line := stream.readline(1 << 26):
        magic, _, rest = line.partition(b" ")
        if magic != MAGIC.encode():
            if first and not MAGIC.encode().startswith(line):
                raise UserError("not a Headway journal")
            raise DamagedSegmentError("a segment's header is damaged")
        first = False
        checksum, _, text = rest.partition(b" ")
        yield _segment(stream, checksum.decode("ascii", "replace"), text)


def _segment(stream: BinaryIO, checksum: str, line: bytes) -> EventBatch:
    """The segment whose header line (after the magic word and the checksum) has been read."""
    try:
        header: dict[str, Any] = json.loads(line)
        schema, events, pool = int(header["schema"]), int(header["events"]), int(header["pool"])
        texts = {int(i): str(text) for i, text in header["texts"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DamagedSegmentError("a segment's header is damaged") from None
    size = 8 * (events * c.RECORD + pool)
    if events < 0 or pool < 0 or not line.endswith(b"\n"):
        raise DamagedSegmentError("a segment's header is damaged")
    body = stream.read(size)
    if len(body) < size or _checksum(line[:-1], body) != checksum:
        raise DamagedSegmentError("a segment is cut short or altered")
    if schema > SCHEMA:
        raise UserError(f"the journal has schema version {schema}, this Headway reads up to {SCHEMA}: upgrade Headway")
    numbers = np.frombuffer(body, "<i8").astype(np.int64)
    records = np.ascontiguousarray(numbers[: events * c.RECORD].reshape(c.RECORD, events).T)
    batch = EventBatch(records, numbers[events * c.RECORD :].copy(), texts)
    for version in range(schema, SCHEMA):
        batch = MIGRATIONS[version](batch)
    return batch


def read(stream: BinaryIO) -> tuple[EventBatch, str | None]:
    """All whole segments as one batch, and what is wrong with the rest (None: nothing)."""
    parts: list[EventBatch] = []
    try:
        for batch in decode(stream):
            parts.append(batch)
    except DamagedSegmentError as damage:
        return concatenate(parts) if parts else EMPTY, str(damage)
    return concatenate(parts) if parts else EMPTY, None


def run_of(stream: BinaryIO) -> dict[str, Any] | None:
    """What the first header of a journal says of its run; None if nothing, or if there is no such header. The stream, which must
    be at its beginning, is put back there; whether the header is sound is for `decode` to say."""
    _, _, rest = stream.readline(1 << 26).partition(b" ")
    stream.seek(0)
    try:
        run = json.loads(rest.partition(b" ")[2])["run"]
    except (ValueError, KeyError, TypeError):
        return None
    return run if isinstance(run, dict) else None


class JournalWriter:
    """Collects events into chunks of CHUNK and hands each full chunk to its sinks; keeps the journal's hash."""

    def __init__(self, sinks: tuple[Callable[[EventBatch], None], ...] = ()) -> None:
        self._buffer = EventBuffer(2 * CHUNK, 16 * CHUNK)
        self._hash = hashlib.sha256()
        self._sinks = sinks
        self.events = 0

    def append(self, batch: EventBatch) -> None:
        """Add events; they are copied."""
        buffer = self._buffer
        buffer.extend(batch)
        if buffer.count >= CHUNK:
            self._emit_full()

    def _emit_full(self) -> None:
        whole = self._buffer.take()
        first = 0
        while len(whole) - first >= CHUNK:
            self._emit(whole.cut(first, first + CHUNK))
            first += CHUNK
        self._buffer.extend(whole.cut(first, len(whole)))

    def close(self) -> str:
        """Emit what is left; the journal's SHA-256."""
        if self._buffer.count:
            self._emit(self._buffer.take())
        return self._hash.hexdigest()

    def _emit(self, chunk: EventBatch) -> None:
        self.events += len(chunk)
        self._hash.update(np.ascontiguousarray(chunk.records.T).astype("<i8", copy=False).tobytes())
        self._hash.update(chunk.pool.astype("<i8", copy=False).tobytes())
        for index, text in sorted(chunk.texts.items()):
            self._hash.update(json.dumps([index, text]).encode())
        for sink in self._sinks:
            sink(chunk)
