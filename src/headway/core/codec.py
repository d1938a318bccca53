"""The journal's bytes: segments of event columns, and the hash of a whole journal.

A segment is a JSON header line (schema version, number of events, pool length, texts, SHA-256 of the body) and a body: the
eight record columns one after the
other, then the pool, all int64 little-endian. The hash of a journal is SHA-256 over fixed chunks of CHUNK events, so that it
does not depend on how
events came in batches.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import numpy as np

from headway.core import columns as c
from headway.core.errors import UserError
from headway.core.events import EMPTY, EventBatch, EventBuffer, concatenate

SCHEMA = 1
"""Version of the event records. A change of fields or codes raises it and adds a step to MIGRATIONS."""
CHUNK = 4096
MAGIC = "headway-journal"

MIGRATIONS: dict[int, Callable[[EventBatch], EventBatch]] = {}
"""From version n to n + 1."""


class DamagedSegmentError(Exception):
    """A segment that is cut short or altered; everything before it is whole."""


def encode(batch: EventBatch, *, schema: int = SCHEMA) -> bytes:
    """One segment."""
    body = np.ascontiguousarray(batch.records.T).astype("<i8").tobytes() + batch.pool.astype("<i8").tobytes()
    header = {
        "magic": MAGIC,
        "schema": schema,
        "events": len(batch),
        "pool": len(batch.pool),
        "texts": {str(i): text for i, text in sorted(batch.texts.items())},
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    return json.dumps(header, ensure_ascii=False, sort_keys=True).encode() + b"\n" + body


def decode(stream: BinaryIO) -> Iterator[EventBatch]:
    """The segments of a stream, brought to the present schema.

    Raises:
        DamagedSegmentError: after the last whole segment, if something follows that is not one.
        UserError: the stream is not a journal, or one of a newer version.
    """
    first = True
    while line := stream.readline(1 << 26):
        try:
            header = json.loads(line)
            if header["magic"] != MAGIC:
                raise ValueError
        except (ValueError, KeyError, TypeError, UnicodeDecodeError):
            if first:
                raise UserError("not a Headway journal") from None
            raise DamagedSegmentError("a segment's header is damaged") from None
        first = False
        if header["schema"] > SCHEMA:
            raise UserError(
                f"the journal has schema version {header['schema']}, this Headway reads up to {SCHEMA}: upgrade Headway"
            )
        yield _body(stream, header)


def _body(stream: BinaryIO, header: dict[str, Any]) -> EventBatch:
    events, pool = int(header["events"]), int(header["pool"])
    size = 8 * (events * c.RECORD + pool)
    body = stream.read(size)
    if len(body) < size or hashlib.sha256(body).hexdigest() != header["sha256"]:
        raise DamagedSegmentError("a segment is cut short or altered")
    numbers = np.frombuffer(body, "<i8").astype(np.int64)
    records = np.ascontiguousarray(numbers[: events * c.RECORD].reshape(c.RECORD, events).T)
    batch = EventBatch(records, numbers[events * c.RECORD :].copy(), {int(i): text for i, text in header["texts"].items()})
    for version in range(int(header["schema"]), SCHEMA):
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
            self._hash.update(f"{index} {text}\n".encode())
        for sink in self._sinks:
            sink(chunk)
