"""The journal's bytes: round trips, every way of being damaged, schema versions, and the hash."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import codec
from headway.core import columns as c
from headway.core.codec import CHUNK, DamagedSegmentError, JournalWriter, decode, encode, read, run_of
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import EMPTY, EventBatch, EventBuffer, concatenate

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def batches(draw: st.DrawFn, most: int = 6) -> EventBatch:
    """Any numbers at all, with payloads and texts: the codec does not look at what they mean."""
    buffer = EventBuffer(1, 1)
    for _ in range(draw(st.integers(0, most))):
        t, kind, subject, attempt, a, b, e = draw(st.tuples(*[INT64] * 7))
        buffer.add(t, kind, subject, attempt, a, b, e, draw(st.lists(INT64, max_size=5)), draw(st.none() | TEXTS))
    return buffer.take()


def same(a: EventBatch, b: EventBatch) -> bool:
    return np.array_equal(a.records, b.records) and np.array_equal(a.pool, b.pool) and dict(a.texts) == dict(b.texts)


def numbered(first: int, stop: int) -> EventBatch:
    """Events that differ, some with a payload or a text."""
    buffer = EventBuffer()
    for i in range(first, stop):
        buffer.add(i, EventKind.NAMED, i, payload=range(i % 4), text=f"node {i}" if i % 3 == 0 else None)
    return buffer.take()


def journal(*batches: EventBatch) -> bytes:
    return b"".join(map(encode, batches))


# -- round trips ---------------------------------------------------------------------------------------------------
@given(st.lists(batches(), max_size=4))
def test_what_is_written_is_read(parts: list[EventBatch]) -> None:
    found = list(decode(io.BytesIO(journal(*parts))))
    assert len(found) == len(parts) and all(map(same, found, parts))
    whole, trouble = read(io.BytesIO(journal(*parts)))
    assert trouble is None and same(whole, concatenate(parts))


def test_an_empty_stream_is_an_empty_journal() -> None:
    assert list(decode(io.BytesIO(b""))) == [] and read(io.BytesIO(b"")) == (EMPTY, None)
    assert len(read(io.BytesIO(encode(EMPTY)))[0]) == 0


@pytest.mark.parametrize("text", ["", "Zoë", "a\nb\r\nc", '{"name": "日本"}', "\x00\x1f\u2028", "😀" * 50, "\\n", '"'])
def test_texts_come_through(text: str) -> None:
    buffer = EventBuffer()
    buffer.add(0, EventKind.NAMED, 3, text=text)
    assert encode(buffer.peek()).split(b"\n", 1)[1] == buffer.peek().records.T.tobytes(), "the header is one line"
    found, trouble = read(io.BytesIO(encode(buffer.take())))
    assert trouble is None and dict(found.texts) == {0: text}


def test_the_layout_is_eight_columns_and_the_pool_little_endian() -> None:
    buffer = EventBuffer()
    buffer.add(1, EventKind.WHY, 2, 3, 4, 5, 6, [7, -8])
    buffer.add(9, EventKind.ROUND, payload=[10])
    header, body = encode(buffer.take()).split(b"\n", 1)
    numbers = [1, 9, 26, 28, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0, 2, 1, 7, -8, 10]
    assert body == b"".join(n.to_bytes(8, "little", signed=True) for n in numbers)
    magic, checksum, rest = header.split(b" ", 2)
    assert magic == b"headway-journal" and checksum.decode() == hashlib.sha256(rest + b"\n" + body).hexdigest()
    assert json.loads(rest) == {"schema": codec.SCHEMA, "events": 2, "pool": 3, "texts": {}}


# -- damage --------------------------------------------------------------------------------------------------------
def test_cut_short_at_every_byte_of_the_last_segment() -> None:
    first, last = numbered(0, 5), numbered(5, 7)
    start, whole = len(encode(first)), journal(first, last)
    for length in range(start, len(whole)):
        found, trouble = read(io.BytesIO(whole[:length]))
        assert same(found, first), length
        assert (trouble is None) == (length == start), length
    assert read(io.BytesIO(whole))[1] is None


def test_a_first_segment_whose_body_is_cut_short() -> None:
    whole = journal(numbered(0, 5))
    for length in range(whole.index(b"\n") + 1, len(whole)):
        found, trouble = read(io.BytesIO(whole[:length]))
        assert len(found) == 0 and trouble == "a segment is cut short or altered"


def test_a_first_segment_whose_header_is_cut_short_is_damage_too() -> None:
    whole = journal(numbered(0, 5))
    for length in range(1, whole.index(b"\n")):
        found, trouble = read(io.BytesIO(whole[:length]))
        assert len(found) == 0 and trouble is not None


def test_a_flipped_bit_in_a_body_is_found() -> None:
    first, last = numbered(0, 3), numbered(3, 6)
    whole = journal(first, last)
    begin = whole.index(b"\n", len(encode(first))) + 1
    for at in range(begin, len(whole)):
        for bit in (0, 7):
            altered = bytearray(whole)
            altered[at] ^= 1 << bit
            found, trouble = read(io.BytesIO(bytes(altered)))
            assert same(found, first) and trouble == "a segment is cut short or altered"


def test_a_flipped_bit_in_an_earlier_segment_loses_what_follows() -> None:
    parts = [numbered(0, 3), numbered(3, 6), numbered(6, 9)]
    altered = bytearray(journal(*parts))
    altered[len(encode(parts[0])) + len(encode(parts[1])) - 1] ^= 1
    found, trouble = read(io.BytesIO(bytes(altered)))
    assert same(found, parts[0]) and trouble is not None
    segments = decode(io.BytesIO(bytes(altered)))
    assert same(next(segments), parts[0])
    with pytest.raises(DamagedSegmentError, match="cut short or altered"):
        next(segments)


def test_a_flipped_bit_in_a_header_is_found() -> None:
    first, last = numbered(0, 3), numbered(3, 6)
    begin, whole = len(encode(first)), journal(first, last)
    for at in range(begin, whole.index(b"\n", begin)):
        for bit in range(8):
            altered = bytearray(whole)
            altered[at] ^= 1 << bit
            try:
                found, trouble = read(io.BytesIO(bytes(altered)))
            except UserError:  # the version has become a higher one
                continue
            assert same(found, first) and trouble is not None, (at, bit, bytes(altered[begin:][:200]))


HEADER = json.loads(encode(EMPTY).split(b" ", 2)[2])


def segment(header: object, body: bytes = b"") -> bytes:
    """A segment with any header, and its checksum."""
    rest = json.dumps(header, sort_keys=True).encode() + b"\n" + body
    return f"{codec.MAGIC} {hashlib.sha256(rest).hexdigest()} ".encode() + rest


@pytest.mark.parametrize(
    "content",
    [
        b"\n",
        b"hello\n",
        b"\x00\x01\x02",
        b"\xff\xfe\n",
        b"{}\n",
        b"[]\n",
        b"1\n",
        b"null\n",
        b'{"magic": "other"}\n',
        b'"headway-journal"\n',
        b"SQLite format 3\x00",
        b'{"name": "job"}\n',
        b"\x1f\x8b\x08\x00" * 4,
    ],
)
def test_what_is_not_a_journal(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^not a Headway journal$"):
        read(io.BytesIO(content))
    found, trouble = read(io.BytesIO(encode(numbered(0, 2)) + content))
    assert len(found) == 2 and trouble == "a segment's header is damaged"


@pytest.mark.parametrize("key", ["schema", "events", "pool", "texts"])
def test_a_header_that_lacks_something(key: str) -> None:
    header = {k: v for k, v in HEADER.items() if k != key}
    found, trouble = read(io.BytesIO(encode(numbered(0, 2)) + segment(header)))
    assert len(found) == 2 and trouble == "a segment's header is damaged"


@pytest.mark.parametrize("header", [[], 1, None, HEADER | {"events": -1}, HEADER | {"pool": -1}, HEADER | {"texts": []}])
def test_a_header_that_cannot_be(header: object) -> None:
    found, trouble = read(io.BytesIO(encode(numbered(0, 2)) + segment(header)))
    assert len(found) == 2 and trouble == "a segment's header is damaged"


def test_a_header_is_the_magic_word_a_checksum_and_json() -> None:
    assert segment(HEADER) == encode(EMPTY) and read(io.BytesIO(segment(HEADER)))[1] is None


# -- schema versions -----------------------------------------------------------------------------------------------
def test_a_newer_journal_is_refused_with_one_clear_line() -> None:
    for schema in (codec.SCHEMA + 1, 99):
        with pytest.raises(UserError) as error:
            read(io.BytesIO(encode(numbered(0, 2), schema=schema)))
        line = str(error.value)
        assert (
            line == f"the journal has schema version {schema}, this Headway reads up to {codec.SCHEMA}: upgrade Headway"
            and "\n" not in line
        )


def test_an_older_journal_is_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 3 counts time in µs where 1 counted ms (until 2), and has a payload number more."""

    def to_us(batch: EventBatch) -> EventBatch:
        records = batch.records.copy()
        records[:, c.E_T] *= 1000
        return EventBatch(records, batch.pool, batch.texts)

    def longer(batch: EventBatch) -> EventBatch:
        buffer = EventBuffer()
        for i, (record, payload) in enumerate(zip(batch.records.tolist(), batch.payloads(), strict=False)):
            buffer.add(*record[:7], payload=[*payload.tolist(), 77], text=batch.texts.get(i))
        return buffer.take()

    monkeypatch.setattr(codec, "SCHEMA", 3)
    monkeypatch.setattr(codec, "MIGRATIONS", {1: to_us, 2: longer})
    old, newer, present = numbered(1, 3), numbered(3, 5), numbered(5, 7)
    stream = encode(old, schema=1) + encode(newer, schema=2) + encode(present, schema=3)
    first, second, third = decode(io.BytesIO(stream))
    assert first.records[:, c.E_T].tolist() == [1000, 2000] and [p.tolist() for p in first.payloads()] == [[0, 77], [0, 1, 77]]
    assert second.records[:, c.E_T].tolist() == [3, 4] and [p.tolist() for p in second.payloads()] == [[0, 1, 2, 77], [77]]
    assert same(third, present) and dict(second.texts) == {0: "node 3"}
    with pytest.raises(UserError, match="version 4"):
        read(io.BytesIO(encode(old, schema=4)))


def test_a_segment_of_version_0_is_read_after_a_step_for_it_was_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MIGRATIONS", {**codec.MIGRATIONS, 0: lambda batch: batch.cut(1, len(batch))})
    found, trouble = read(io.BytesIO(encode(numbered(0, 4), schema=0)))
    assert trouble is None and found.records[:, c.E_ID].tolist() == [1, 2, 3]


def test_every_version_can_be_brought_to_the_present_one() -> None:
    assert sorted(codec.MIGRATIONS) == list(range(1, codec.SCHEMA))


# -- the hash ------------------------------------------------------------------------------------------------------
def hashed(parts: Sequence[EventBatch]) -> str:
    writer = JournalWriter()
    for part in parts:
        writer.append(part)
    return writer.close()


LONG = numbered(0, 2 * CHUNK + 100)


@given(st.sets(st.integers(0, len(LONG)), max_size=8))
@settings(max_examples=25)
def test_the_hash_does_not_know_how_events_came_in_batches(cuts: set[int]) -> None:
    points = [0, *sorted(cuts), len(LONG)]
    chunks: list[EventBatch] = []
    writer = JournalWriter((chunks.append,))
    for first, stop in pairwise(points):
        writer.append(LONG.cut(first, stop))
    assert writer.close() == hashed([LONG]) and writer.events == len(LONG)
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 100] and same(concatenate(chunks), LONG)
    assert same(read(io.BytesIO(journal(*chunks)))[0], LONG)


def test_the_hash_by_hand() -> None:
    batch = numbered(0, 4)
    expected = hashlib.sha256(batch.records.T.tobytes() + batch.pool.tobytes() + b'[0, "node 0"][3, "node 3"]').hexdigest()
    assert hashed([batch]) == expected
    assert hashed([]) == hashed([EMPTY]) == hashlib.sha256().hexdigest()


def test_the_hash_depends_on_every_event() -> None:
    seen = {hashed([LONG]), hashed([LONG.cut(0, len(LONG) - 1)])}
    for at in (0, CHUNK - 1, CHUNK, len(LONG) - 1):
        for column in range(c.RECORD):
            altered = LONG.cut(0, len(LONG))
            altered.records[at, column] ^= 1
            if column == c.E_POOL:
                continue
            seen.add(hashed([altered]))
        shorter = concatenate([LONG.cut(0, at), LONG.cut(at + 1, len(LONG))])
        seen.add(hashed([shorter]))
    altered = LONG.cut(0, len(LONG))
    altered.pool[-1] ^= 1
    seen.add(hashed([altered]))
    seen.add(hashed([EventBatch(LONG.records, LONG.pool, {**LONG.texts, 3: "node 4"})]))
    seen.add(hashed([EventBatch(LONG.records, LONG.pool, {k: v for k, v in LONG.texts.items() if k != 3})]))
    assert len(seen) == 2 + 4 * 8 - 1 + 3  # (leaving out the last event is there twice)


def test_the_hash_tells_texts_apart() -> None:
    def two(first: str, second: str | None) -> EventBatch:
        buffer = EventBuffer()
        buffer.add(0, EventKind.NAMED, 0, text=first)
        buffer.add(0, EventKind.NAMED, 1, text=second)
        return buffer.take()

    assert hashed([two("a\n1 b", None)]) != hashed([two("a", "b")])


def test_a_batch_is_copied_when_it_is_handed_over() -> None:
    batch = numbered(0, 4)
    writer = JournalWriter()
    writer.append(batch)
    batch.records[:] = 0
    assert writer.close() == hashed([numbered(0, 4)])


# -- what the header says of the run ---------------------------------------------------------------------------------
def test_what_the_header_says_of_the_run_changes_no_event() -> None:
    run = {"policy": "las:quantum=600", "seed": 7, "jobs": ["train-1", "Zoë\n"]}
    named = encode(numbered(0, 3), run=run) + encode(numbered(3, 5))
    stream = io.BytesIO(named)
    assert run_of(stream) == run
    found, trouble = read(stream)
    assert trouble is None and same(found, numbered(0, 5))
    assert named.split(b"\n", 1)[1].startswith(numbered(0, 3).records.T.tobytes()), "the body stays as it was"


def test_a_journal_from_before_runs_had_names_reads_as_ever() -> None:
    """Byte for byte what version 1 wrote first: one event, no word of the run; an older reader looks up its own keys alone."""
    rest = b'{"events": 1, "pool": 1, "schema": 1, "texts": {}}'
    body = b"".join(n.to_bytes(8, "little", signed=True) for n in [5, 28, 0, 0, 2, 0, 0, 1, 9])
    old = b"headway-journal " + hashlib.sha256(rest + b"\n" + body).hexdigest().encode() + b" " + rest + b"\n" + body
    stream = io.BytesIO(old)
    assert run_of(stream) is None
    found, trouble = read(stream)
    assert trouble is None and found.records.tolist() == [[5, 28, 0, 0, 2, 0, 0, 1]] and found.pool.tolist() == [9]
    assert encode(found, schema=1) == old
    header = json.loads(encode(found, run={"seed": 1}).split(b"\n", 1)[0].split(b" ", 2)[2])
    assert header == json.loads(rest) | {"run": {"seed": 1}, "schema": codec.SCHEMA}, (
        "an older reader finds all that it looks for"
    )


def test_version_2_only_knows_one_more_kind_of_event() -> None:
    """So what version 1 wrote is read as it is."""
    stream = io.BytesIO(encode(numbered(0, 4), schema=1) + encode(numbered(4, 6)))
    found, trouble = read(stream)
    assert trouble is None and same(found, numbered(0, 6))


@pytest.mark.parametrize(
    "junk", [b"", b"x", b"headway-journal", b"headway-journal 12 {", b'headway-journal 12 {"run": 3}\n', b"\xff\x00" * 9]
)
def test_no_header_says_nothing_of_the_run(junk: bytes) -> None:
    stream = io.BytesIO(junk)
    assert run_of(stream) is None and stream.tell() == 0


def test_an_altered_word_about_the_run_is_damage() -> None:
    altered = encode(numbered(0, 3), run={"seed": 1}).replace(b'"seed": 1', b'"seed": 2')
    assert read(io.BytesIO(altered))[1] == "a segment is cut short or altered"
