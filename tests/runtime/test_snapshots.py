"""Snapshots and archives: recovery from them gives, byte for byte, what the replay of everything gives."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.state import State
from headway.policies.registry import choose, make_policy
from headway.runtime import folded as folding
from headway.runtime import keeper
from headway.runtime.folded import ARRAYS, GROUP, Folded, pieces, recover
from headway.runtime.journal import ARCHIVE_SEGMENTS, Journal
from headway.runtime.journal_archive import SUFFIX, read_archive
from headway.runtime.journal_db import Where, archives, segments, snapshots
from headway.runtime.lease import FencedError
from headway.runtime.snapshot import DamagedSnapshotError, NoPlainValueError, pack, unpack
from headway.sim.run import simulate
from headway.testing.scenarios import scenario
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

POLICIES = ("fifo", "tiresias:variant=gittins", "gandiva:sharing=true", "srtf+mlf-c")


@cache
def history(seed: int, policy: str) -> EventBatch:
    """All events of a simulated run with faults."""
    it = scenario(seed, policy)
    run = simulate(
        it.workload, it.cluster, choose(policy).policy, seed=seed, interval_s=it.interval_s, faults=it.faults, keep_journal=True
    )
    assert run.journal is not None
    return run.journal


@cache
def long_history() -> tuple[EventBatch, ...]:
    """A longer one, in small batches."""
    load = load_workload("poisson:jobs=100,load=0.9,cluster=2x4")
    run = simulate(load, parse_cluster("2x4"), make_policy("srtf"), keep_journal=True)
    assert run.journal is not None
    return tuple(cuts(run.journal, 1))


def cuts(batch: EventBatch, seed: int) -> list[EventBatch]:
    """A history as batches of one to four events."""
    r = random.Random(seed)
    parts, at = [], 0
    while at < len(batch):
        stop = min(at + r.choice([1, 1, 1, 2, 4]), len(batch))
        parts.append(batch.cut(at, stop))
        at = stop
    return parts


def write(where: Where, batches: list[EventBatch]) -> None:
    journal = Journal(where)
    journal.lead()
    for _ in journal.read():
        pass
    for batch in batches:
        journal.append(batch)
    journal.close()


def lead(where: Where) -> int:
    """A new epoch, which is left behind as by a controller that died."""
    journal = Journal(where)
    epoch = journal.lead()
    journal.epoch = 0
    journal.close()
    return epoch


def recovered(where: Where, policy: str) -> tuple[bytes, int, list[str]]:
    """What recovery folds, from how many events in a snapshot, and what it notes."""
    journal = Journal(where)
    folded = Folded.empty(make_policy(policy))
    notes = recover(journal, folded)
    assert journal.damage is None
    journal.close()
    return folded.pack(), journal.kept_events, notes


def same(found: list[EventBatch], wanted: list[EventBatch]) -> bool:
    return len(found) == len(wanted) and all(
        np.array_equal(a.records, b.records) and np.array_equal(a.pool, b.pool) and a.texts == b.texts
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_snapshot_and_tail_give_what_all_gives(policy: str, seed: int, tmp_path: Path) -> None:
    batches = cuts(history(seed, policy), seed)
    where, plain = tmp_path / "journal.db", tmp_path / "plain.db"
    write(plain, batches)
    r = random.Random(seed)
    marks = sorted(r.sample(range(len(batches)), 2))
    for begin, stop in zip([0, *marks], [*marks, len(batches)], strict=True):
        write(where, batches[begin:stop])
        if stop < len(batches):
            keeper.keep(where, lead(where), make_policy(policy))
    all_of_it, from_snapshot, notes = recovered(where, policy)
    assert notes == [] and (from_snapshot > 0) == (marks[-1] >= GROUP)
    assert (all_of_it, 0, []) == recovered(plain, policy)


def test_archives_hold_all_that_was_compacted(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.runtime.journal.ARCHIVE_SEGMENTS", 100)
    batches = list(long_history())
    batches = batches[: len(batches) // GROUP * GROUP + 5]
    write(where, batches)
    before = recovered_state(where)
    epoch = lead(where)
    assert keeper.keep(where, epoch, make_policy("fifo")) == sum(map(len, batches[:-5]))
    assert keeper.keep(where, epoch, make_policy("fifo")) == 0, "there is nothing new"
    journal = Journal(where)
    with journal.database.engine.connect() as db:
        left = db.execute(sa.select(sa.func.count()).select_from(segments)).scalar_one()
        ranges = db.execute(sa.select(archives.c.first, archives.c.last).order_by(archives.c.first)).all()
    assert left == 5 and [tuple(row) for row in ranges][:2] == [(1, 100), (101, 200)] and ranges[-1].last == len(batches) - 5
    assert same(list(journal.read()), batches) and journal.damage is None
    assert same(list(journal.read(150)), batches[150:])
    journal.lead()
    assert same(list(journal.read()), batches)
    journal.append(batches[-1])
    assert journal.segments == len(batches) + 1
    journal.close()
    assert before == recovered_state(where, upto=len(batches))


def recovered_state(where: Where, upto: int = 1 << 60) -> str:
    journal = Journal(where, writes=False)
    state = State()
    for n, batch in enumerate(journal.read()):
        if n < upto:
            state.apply(batch)
    journal.close()
    return state.digest()


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Path, list[EventBatch]]:
    """A journal in a file whose older part is a snapshot and an archive, and all its batches."""
    batches = list(long_history())[: 3 * GROUP + 7]
    where = tmp_path / "journal.db"
    write(where, batches)
    keeper.keep(where, lead(where), make_policy("fifo"))
    return where, batches


def change(where: Path, statement: str) -> None:
    journal = Journal(where)
    with journal.database.engine.begin() as db:
        db.exec_driver_sql(statement)
    journal.close()


def test_a_snapshot_of_other_code_is_passed_over(kept: tuple[Path, list[EventBatch]], monkeypatch: pytest.MonkeyPatch) -> None:
    where, _ = kept
    found, events, _ = recovered(where, "fifo")
    assert events > 0
    with monkeypatch.context() as patch:
        patch.setattr(folding, "CODE", "another")
        assert recovered(where, "fifo") == (found, 0, [])
    assert recovered(where, "tiresias:variant=gittins")[1] == 0, "it has no memo of this policy"


@pytest.mark.parametrize("harm", ["substr(body, 1, length(body) - 3)", "x'00'", "'text'"])
def test_a_damaged_snapshot_is_passed_over_and_said(harm: str, kept: tuple[Path, list[EventBatch]]) -> None:
    where, _ = kept
    found, _, _ = recovered(where, "fifo")
    change(where, f"UPDATE snapshots SET body = {harm}")
    again, events, notes = recovered(where, "fifo")
    assert (again, events) == (found, 0)
    assert harm == "'text'" or (len(notes) == 1 and "passed over" in notes[0])


def test_a_damaged_archive_stops_only_who_needs_it(kept: tuple[Path, list[EventBatch]]) -> None:
    where, batches = kept
    found, _, _ = recovered(where, "fifo")
    (file,) = (where.parent / "journal.archive").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert recovered(where, "fifo")[0] == found, "the snapshot is enough"
    change(where, "DELETE FROM snapshots")
    for what in ("is damaged", "can't be read"):
        journal = Journal(where)
        journal.lead()
        recover(journal, Folded.empty(make_policy("fifo")))
        assert journal.damage is not None and journal.damage.in_archive and journal.damage.whole == 0
        with pytest.raises(UserError, match=f"{what}.*put the archive back from a backup"):
            journal.cut()
        journal.close()
        file.unlink(missing_ok=True)
    file.write_bytes(content)
    assert recovered(where, "fifo")[0] == found
    assert same(list(read_archive(file)), batches[:-7]) and file.suffix == SUFFIX and len(batches) - 7 <= ARCHIVE_SEGMENTS


def test_damage_after_a_snapshot_leaves_the_snapshot_and_the_archives(kept: tuple[Path, list[EventBatch]]) -> None:
    where, batches = kept
    change(where, f"UPDATE segments SET body = x'00' WHERE seq = {len(batches) - 2}")
    journal = Journal(where)
    journal.lead()
    recover(journal, Folded.empty(make_policy("fifo")))
    assert journal.damage is not None and journal.damage.whole == len(batches) - 3 and journal.kept_events > 0
    journal.cut()
    assert same(list(journal.read()), batches[:-3]) and journal.damage is None
    journal.append(batches[-3])
    journal.close()
    assert recovered(where, "fifo")[1] > 0


def test_an_archive_that_was_written_before_the_controller_died_is_taken_over(
    kept: tuple[Path, list[EventBatch]], monkeypatch: pytest.MonkeyPatch
) -> None:
    where, batches = kept
    batches = list(long_history())[: len(batches) + GROUP]
    write(where, batches[-GROUP:])

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        # The archive's file is there; then the controller dies before the database knows.
        patch.setattr("headway.runtime.journal.leases.beat", dies)
        journal = Journal(where)
        with pytest.raises(KeyboardInterrupt):
            journal.compact(1, len(batches) - 7)
        journal.close()
    assert len(list((where.parent / "journal.archive").iterdir())) == 2
    keeper.keep(where, lead(where), make_policy("fifo"))
    assert len(list((where.parent / "journal.archive").iterdir())) == 2
    journal = Journal(where)
    assert same(list(journal.read()), batches)
    journal.close()


def test_who_was_replaced_keeps_nothing(where: Where) -> None:
    batches = cuts(history(1, "fifo"), 1)[: 2 * GROUP]
    write(where, batches)
    old = lead(where)
    lead(where)
    with pytest.raises(FencedError, match=f"this one had {old}"):
        keeper.keep(where, old, make_policy("fifo"))
    journal = Journal(where)
    with pytest.raises(FencedError):
        journal.compact(old, GROUP)
    assert journal.snapshots() == []
    with journal.database.engine.connect() as db:
        assert db.execute(sa.select(sa.func.count()).select_from(snapshots)).scalar_one() == 0
    assert same(list(journal.read()), batches)
    journal.close()


@pytest.mark.parametrize("seed", range(8))
def test_pieces_tell_the_board_what_single_events_tell_it(seed: int) -> None:
    whole = history(seed, "srtf")
    one, other = Folded.empty(make_policy("fifo")), Folded.empty(make_policy("fifo"))
    for i in range(len(whole)):
        one.state.apply(whole.cut(i, i + 1))
        one.board.fold(whole.cut(i, i + 1), one.state)
    parts = list(pieces(whole))
    for part in parts:
        other.state.apply(part)
        other.board.fold(part, other.state)
    assert list(one.board) == list(other.board) and one.board._ended == other.board._ended
    assert one.state.digest() == other.state.digest()
    assert sum(map(len, parts)) == len(whole) and len(parts) < len(whole) / 3


def test_a_state_has_no_part_that_a_snapshot_leaves_out() -> None:
    assert set(vars(State())) == {*ARRAYS, "names", "files", "scratch"}


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.integers() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    content = pack(value)
    again = unpack(content)
    assert repr(again) == repr(value) and pack(again) == content


def test_arrays_come_back_as_they_were() -> None:
    arrays = {"a": np.arange(12).reshape(3, 4)[:, ::2], "f": np.array([math.nan, -0.0]), "s": np.int64(-5), "e": np.zeros((0, 3))}
    again = unpack(pack(arrays))
    for name, array in arrays.items():
        assert again[name].dtype == array.dtype and again[name].shape == array.shape
        assert np.asarray(again[name]).tobytes() == np.ascontiguousarray(array).tobytes()
    assert isinstance(again["s"], np.int64)


@pytest.mark.parametrize("value", [{1, 2}, object(), np.array(["x"]), b"bytes", 1j])
def test_what_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(NoPlainValueError):
        pack({"memo": [value]})


@pytest.mark.parametrize("content", [b"", b"headway-snapshot", pack([1, 2])[:-1], pack([1, 2]).replace(b"headway", b"hedgway")])
def test_bytes_that_are_no_snapshot_are_refused(content: bytes) -> None:
    with pytest.raises(DamagedSnapshotError):
        unpack(content)
