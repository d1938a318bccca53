"""The journal is the run: written, read back and replayed it gives the same state, from every prefix and in any batches."""

from __future__ import annotations

import io
import random
from itertools import pairwise
from pathlib import Path

import pytest

from headway.core.codec import encode, read
from headway.core.columns import EventKind
from headway.core.events import EventBatch
from headway.core.state import State
from headway.policies.registry import choose, make_policy
from headway.sim.run import Outcome, simulate
from headway.testing.builders import cluster, job, workload
from headway.testing.invariants import verify
from headway.testing.scenarios import scenario
from headway.workloads.registry import load_workload

SEEDS = (0, 5, 6, 21, 22, 37)


def run_of(seed: int, journal: Path | None = None) -> Outcome:
    """A scenario with faults, whose jobs save, migrate to other places and lose nodes."""
    it = scenario(seed)
    return simulate(
        it.workload, it.cluster, choose(it.policy).policy, seed=it.seed, interval_s=it.interval_s, faults=it.faults,
        keep_journal=True,
        journal=journal,
    )  # fmt: skip


def replayed(*batches: EventBatch) -> State:
    state = State(jobs=1, tasks=1, edges=1)
    for batch in batches:
        state.apply(batch)
    return state


@pytest.mark.parametrize("seed", SEEDS)
def test_a_written_journal_gives_the_same_state(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    run = run_of(seed, path)
    with path.open("rb") as stream:
        found, damage = read(stream)
    assert damage is None
    assert run.journal is not None
    assert (found.records == run.journal.records).all() and (found.pool == run.journal.pool).all()
    assert found.texts == run.journal.texts
    assert len(found) == run.events
    assert replayed(found).digest() == run.state.digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_prefix_is_a_good_state(seed: int) -> None:
    """Event by event, and from prefixes cut at random and applied at once."""
    journal = run_of(seed).journal
    assert journal is not None
    r = random.Random(seed)
    checked = {0, len(journal), *(r.randrange(len(journal)) for _ in range(25))}
    state = State()
    for i in range(len(journal) + 1):
        if i in checked:
            assert replayed(journal.cut(0, i)).digest() == state.digest(), i
        if i < len(journal):
            state.apply(journal.cut(i, i + 1))
            verify(state, settled=False)


@pytest.mark.parametrize("seed", SEEDS)
def test_batches_do_not_matter(seed: int) -> None:
    run = run_of(seed)
    assert run.journal is not None
    r = random.Random(seed)
    for _ in range(5):
        cuts = sorted({0, len(run.journal), *(r.randrange(len(run.journal)) for _ in range(r.choice([1, 10, 100])))})
        parts = [run.journal.cut(a, b) for a, b in pairwise(cuts)]
        assert replayed(*parts).digest() == run.state.digest()


def test_compaction_does_not_matter() -> None:
    """800 jobs: dead rows are dropped on the way, at other points when the events come in other batches."""
    load = load_workload("poisson:jobs=800,load=0.9,cluster=2x8", seed=3)
    run = simulate(load, cluster([8, 8]), make_policy("srtf"), keep_journal=True)
    assert run.journal is not None and int(run.state.C[2]) < sum(load.spec[5])
    once, halves = replayed(run.journal), State()
    for first in range(0, len(run.journal), 997):
        halves.apply(run.journal.cut(first, min(first + 997, len(run.journal))))
        verify(halves, settled=False)
    for state in (once, halves):
        verify(state)
        assert state.digest() == run.state.digest()
        state.compact()
        verify(state)
        assert state.digest() == run.state.digest()


def test_the_same_line_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("one", "two", "three"))
    runs = [run_of(5, first), run_of(5, second), run_of(6, other)]
    assert first.read_bytes() == second.read_bytes()
    assert runs[0].journal_sha256 == runs[1].journal_sha256 != runs[2].journal_sha256


def test_the_hash_is_of_the_events() -> None:
    """One event more or less, or one number changed, and it is another."""
    shas = set()
    for work_s in (5, 6):
        for late in (0, 1):
            load = workload([job("a", 1, work_s), job("b", 1, 2, late)])
            shas.add(simulate(load, cluster([1]), make_policy("fifo"), interval_s=1).journal_sha256)
    assert len(shas) == 4


def test_a_damaged_journal_keeps_what_is_whole() -> None:
    """Cut anywhere, it gives the whole segments before the cut, and says so."""
    journal = run_of(0).journal
    assert journal is not None
    half = len(journal) // 2
    whole = encode(journal.cut(0, half))
    for cut in (1, 50, 300):
        found, damage = read(io.BytesIO(whole + encode(journal.cut(half, len(journal)))[:-cut]))
        assert damage is not None
        assert len(found) == half
        verify(replayed(found), settled=False)


def test_a_journal_tells_every_end() -> None:
    """A job that has ended has an event that says so; nothing else is at the end of a quiet run."""
    run = simulate(
        workload([job("a", 1, 3), job("b", 2, 1, 1)]), cluster([1]), make_policy("fifo"), interval_s=1, keep_journal=True
    )
    assert run.journal is not None
    assert [kind for kind in run.journal.kinds() if kind > EventKind.CLUSTER_SET] == [
        EventKind.SUBMITTED, EventKind.START_REQUESTED, EventKind.ROUND, EventKind.STARTED, EventKind.SUBMITTED,
        EventKind.REJECTED,
        EventKind.COMPLETED,
    ]  # fmt: skip
