"""Batches of events, and that every kind is documented with the fields that it has."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from headway.core import codec
from headway.core import columns as c
from headway.core.check import VIOLATIONS
from headway.core.columns import Estimator, EventKind, Name, Reason, StopRule
from headway.core.events import EMPTY, EventBatch, EventBuffer, concatenate, is_sorted
from headway.core.round import GAVE_UP, RAISED, TIMED_OUT

K = EventKind
DOC = (Path(__file__).resolve().parents[2] / "docs" / "journal.md").read_text("utf-8")
ROWS = {int(m[1]): [cell.strip() for cell in m[2].split("|")] for m in re.finditer(r"^\| (\d+) \|( `.*)\|$", DOC, re.MULTILINE)}
HEADER = ("kind", "subject", "attempt", "a", "b", "c", "payload", "text")


# -- the document --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", EventKind)
def test_every_kind_is_documented(kind: EventKind) -> None:
    assert kind in ROWS, f"{kind.name} has no row in docs/journal.md"
    assert len(ROWS[kind]) == len(HEADER) and ROWS[kind][0] == f"`{kind.name}`"


def test_only_kinds_that_are_there_are_documented() -> None:
    assert set(ROWS) == {int(kind) for kind in EventKind}


def test_events_with_a_place_or_a_payload_say_so() -> None:
    payload = {EventKind(n): dict(zip(HEADER, row, strict=False))["payload"] for n, row in ROWS.items()}
    assert {kind for kind, text in payload.items() if text} == {
        K.NODE_ADDED,
        K.QUEUE_SET,
        K.CLUSTER_SET,
        K.SUBMITTED,
        K.WANTED,
        K.START_REQUESTED,
        K.STOP_REQUESTED,
        K.STOPPED,
        K.COMPLETED,
        K.USAGE,
        K.ESTIMATED,
        K.WHY,
        K.EVALUATED,
    }


def test_the_spec_columns_are_listed_in_order() -> None:
    listed = re.search(r"The spec columns, in order: ([^.]*)\.", DOC)
    assert listed is not None and re.findall(r"`(\w+)`", listed[1]) == list(c.SPEC_COLUMN_NAMES)


def test_codes_in_the_document_are_those_of_the_code() -> None:
    reasons = re.search(r"^Reasons: (.*?)\. A stop", DOC, re.MULTILINE | re.DOTALL)
    assert reasons is not None
    assert re.findall(r"(\d+) ([\w-]+)", reasons[1]) == [(str(int(r)), r.word) for r in Reason]
    assert re.findall(r"(\d) (\w+)", ROWS[K.RULE_SET][3]) == [(str(int(r)), r.name.lower()) for r in StopRule]
    assert re.findall(r"(\d) (\w+)", ROWS[K.ESTIMATE_REQUESTED][3]) == [(str(int(e)), e.name.lower()) for e in Estimator]
    tables = [n.name.lower() if n != Name.KIND else "GPU kind" for n in Name]
    assert re.findall(r"\d ([\w ]+)", ROWS[K.NAMED][3]) == tables
    assert not {GAVE_UP, RAISED, TIMED_OUT} & set(VIOLATIONS)
    assert f"{GAVE_UP}: it gave the round up; {TIMED_OUT}: it did not decide in time; {RAISED}: it raised" in ROWS[K.REFUSED][3]


def test_numbers_in_the_document_are_those_of_the_code() -> None:
    assert f"The present version is **{codec.SCHEMA}**" in DOC and re.search(rf"^\| {codec.SCHEMA} \| \w", DOC, re.MULTILINE)
    assert f"chunks of {codec.CHUNK} events" in DOC and f"`{codec.MAGIC} SHA256 JSON`" in DOC
    assert (c.NEVER, c.NOTHING) == (2**62, -(2**62)) and (c.RECORD, c.PLACE, c.DETAIL, c.NODE_SPEC_COLUMNS) == (8, 3, 5, 7)
    assert c.ESTIMATE_PARAMS_MAX == 8


# -- batches -------------------------------------------------------------------------------------------------------
def test_batches_are_cut_and_joined() -> None:
    buffer = EventBuffer(1, 1)
    for i in range(5):
        buffer.add(i, K.NAMED, i, payload=range(i), text=f"t{i}" if i % 2 else None)
    assert len(buffer.peek()) == 5
    whole = buffer.take()
    assert buffer.count == 0 and len(buffer.take()) == 0
    assert whole.kinds() == [K.NAMED] * 5 and [p.tolist() for p in whole.payloads()] == [list(range(i)) for i in range(5)]
    for cut in range(6):
        again = whole.cut(0, cut) + whole.cut(cut, 5)
        assert (
            np.array_equal(again.records, whole.records) and np.array_equal(again.pool, whole.pool) and again.texts == whole.texts
        )
    assert whole.cut(3, 5).texts == {0: "t3"} and whole.cut(2, 3).pool.tolist() == [0, 1]
    assert concatenate([]) is EMPTY and len(EMPTY) == 0
    assert not is_sorted(whole.cut(4, 5) + whole.cut(0, 1)) and is_sorted(whole)


def test_a_buffer_takes_whole_batches() -> None:
    buffer = EventBuffer(1, 1)
    buffer.add(0, K.ROUND, payload=[7])
    other = EventBuffer()
    other.add(1, K.NAMED, text="a")
    other.add(2, K.WHY, payload=[8, 9])
    batch = other.take()
    buffer.extend(batch)
    buffer.extend(EMPTY)
    whole = buffer.take()
    assert whole.kinds() == [K.ROUND, K.NAMED, K.WHY] and whole.pool.tolist() == [7, 8, 9] and whole.texts == {1: "a"}
    batch.records[0, 0] = 99
    assert whole.records[1, 0] == 1


def test_a_buffer_that_kernels_fill() -> None:
    buffer = EventBuffer(1, 1)
    buffer.reserve(3, 5)
    assert len(buffer.records) >= 3 and len(buffer.pool) >= 5
    buffer.records[0] = (1, K.WHY, 2, 3, 4, 5, 6, 2)
    buffer.pool[:2] = (7, 8)
    buffer.fill(1, 2)
    peeked = buffer.peek()
    assert peeked.records.tolist() == [[1, K.WHY, 2, 3, 4, 5, 6, 2]] and np.shares_memory(peeked.records, buffer.records)
    taken = buffer.take()
    assert taken.payloads()[0].tolist() == [7, 8] and not np.shares_memory(taken.records, buffer.records)
    buffer.add(0, K.ROUND, text="x")
    buffer.clear()
    assert len(buffer.peek()) == 0 and buffer.peek().texts == {}


def test_growing_keeps_what_is_there() -> None:
    buffer = EventBuffer(2, 2)
    for i in range(100):
        buffer.add(i, K.WHY, a=i, payload=[i] * (i % 3))
    batch = buffer.take()
    assert batch.records[:, c.E_A].tolist() == list(range(100)) and [p.tolist() for p in batch.payloads()] == [
        [i] * (i % 3) for i in range(100)
    ]
    assert isinstance(batch, EventBatch) and batch.records.shape == (100, c.RECORD)
