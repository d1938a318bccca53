"""Attempts, levels over time and segments: by hand, against plain sums, and against the totals of a real run."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.columns import NEVER, EventKind, Reason
from headway.core.events import EventBuffer
from headway.metrics.fold import COLUMN_NAMES, MetricsFold
from headway.metrics.series import BINS_MAX, State, bin_edges, integrals, segments, series
from headway.metrics.spans import Spans, SpansFold
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload
from headway.workloads.schema import plain_spec, set_workers

S = 1_000_000


class Journal:
    """Events as a person writes them down, times in seconds."""

    def __init__(self) -> None:
        self.buffer = EventBuffer()

    def submit(self, t: float, job: int, gpus: int = 1, restore: float = 0) -> None:
        spec = plain_spec(1)
        set_workers(spec, np.array([gpus], np.int64))
        spec[c.J_RESTORE] = int(restore * S)
        self.buffer.add(int(t * S), EventKind.SUBMITTED, job, payload=spec[:, 0])

    def add(self, t: float, kind: EventKind, job: int, attempt: int = 1, reason: int = 0) -> None:
        self.buffer.add(int(t * S), kind, job, attempt, a=int(reason), b=-1)

    def start(self, t: float, job: int, attempt: int = 1, place: tuple[int, ...] = (0, 1, 1000)) -> None:
        self.buffer.add(int(t * S), EventKind.START_REQUESTED, job, attempt, payload=place)
        self.add(t, EventKind.STARTED, job, attempt)

    def folds(self) -> tuple[dict[str, np.ndarray], Spans]:
        metrics, spans = MetricsFold(), SpansFold()
        batch = self.buffer.peek()
        half = len(batch) // 2
        for part in (batch.cut(0, half), batch.cut(half, len(batch))):
            metrics.update(part)
            spans.update(part)
        table = metrics.M[metrics.M[:, 0] >= 0]
        return {name: table[:, i] for i, name in enumerate(COLUMN_NAMES)}, spans.spans()


def three_jobs() -> Journal:
    """Two GPUs. Job 0 takes both, is preempted at 30 (saving till 35) for jobs 1 and 2, and runs on from 75 to 100, after 10 s
    of restoring."""
    journal = Journal()
    journal.submit(0, 0, gpus=2, restore=10)
    journal.start(0, 0, place=(0, 0b11, 1000))
    journal.submit(10, 1)
    journal.submit(20, 2)
    journal.add(30, EventKind.STOP_REQUESTED, 0, 1, Reason.PREEMPTED)
    journal.add(35, EventKind.STOPPED, 0, 1)
    journal.start(35, 1, place=(0, 0b01, 1000))
    journal.start(35, 2, place=(0, 0b10, 1000))
    journal.add(55, EventKind.COMPLETED, 1)
    journal.add(75, EventKind.COMPLETED, 2)
    journal.start(75, 0, attempt=2, place=(0, 0b11, 1000))
    journal.add(100, EventKind.COMPLETED, 0, 2)
    return journal


def test_levels_of_three_jobs_by_hand() -> None:
    jobs, spans = three_jobs().folds()
    found = series(jobs, spans, np.array([0, 25, 50, 75, 100]) * S)
    assert found.queue_length.tolist() == [(15 + 5) / 25, (10 + 10 + 15) / 25, 1, 0]
    assert found.jobs_up.tolist() == [1, (10 + 2 * 15) / 25, (2 * 5 + 20) / 25, 1]
    assert found.gpus_booked.tolist() == [2, 2, (2 * 5 + 20) / 25, 2]
    assert found.gpus_busy.tolist() == [2, (2 * 5 + 2 * 15) / 25, (2 * 5 + 20) / 25, 2]
    assert found.to_json()["edges_s"] == [0, 25, 50, 75, 100]


def test_segments_of_a_window_by_hand() -> None:
    _, spans = three_jobs().folds()
    rows = segments(spans, 20 * S, 90 * S)
    told = [(job, attempt, mask, start // S, end // S, State(state).name) for job, attempt, _, mask, start, end, state in rows]
    assert told == [
        (0, 1, 0b11, 20, 30, "RUNNING"),
        (0, 1, 0b11, 30, 35, "STOPPING"),
        (1, 1, 0b01, 35, 55, "RUNNING"),
        (2, 1, 0b10, 35, 75, "RUNNING"),
        (0, 2, 0b11, 75, 85, "RESTORING"),
        (0, 2, 0b11, 85, 90, "RUNNING"),
    ]
    assert len(segments(spans, 100 * S, 200 * S)) == 0


def test_a_gang_has_one_segment_a_node_and_no_gpu_has_none() -> None:
    journal = Journal()
    journal.submit(0, 0, gpus=4)
    journal.start(0, 0, place=(3, 0b0001, 1000, 1, 0b1000, 1000, 3, 0b0100, 1000, 2, 0, 0))
    journal.add(5, EventKind.COMPLETED, 0)
    _, spans = journal.folds()
    assert segments(spans, 0, 9 * S)[:, [2, 3]].tolist() == [[1, 0b1000], [3, 0b0101]]
    assert spans.milli.tolist() == [3000]


def test_what_never_came_up_is_starting_and_what_goes_on_is_open() -> None:
    journal = Journal()
    journal.submit(0, 0)
    journal.buffer.add(2 * S, EventKind.START_REQUESTED, 0, 1, payload=(0, 1, 1000))
    journal.add(4, EventKind.START_FAILED, 0, 1)
    journal.add(5, EventKind.STARTED, 0, 1)  # late
    journal.start(6, 0, attempt=2)
    jobs, spans = journal.folds()
    assert spans.started.tolist() == [NEVER, 6 * S] and spans.ended.tolist() == [4 * S, NEVER]
    rows = segments(spans, 0, 10 * S)
    assert rows[:, 4:].tolist() == [[2 * S, 4 * S, State.STARTING], [6 * S, 10 * S, State.RUNNING]]
    found = series(jobs, spans, np.array([0, 10]) * S)
    assert found.queue_length.tolist() == [pytest.approx(0.4)] and found.gpus_busy.tolist() == [pytest.approx(0.4)]


def test_an_empty_journal_has_no_attempts() -> None:
    jobs, spans = Journal().folds()
    assert len(spans) == 0 and len(segments(spans, 0, S)) == 0
    assert series(jobs, spans, np.array([0, S, 2 * S])).queue_length.tolist() == [0, 0]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(-5, 5)), max_size=12),
    st.lists(st.integers(0, 60), min_size=2, max_size=6, unique=True),
)
def test_an_integral_is_the_sum_over_all_instants(steps: list[tuple[int, int]], edges: list[int]) -> None:
    edges = sorted(edges)
    level = [sum(step for t, step in steps if t <= now) for now in range(60)]
    expected = [sum(level[a:b]) for a, b in pairwise(edges)]
    times, heights = (np.array([pair[k] for pair in steps], np.int64) for k in (0, 1))
    assert integrals(times, heights, np.array(edges)).tolist() == expected


def test_integrals_survive_sums_beyond_int64() -> None:
    """A level of 10¹¹ milli-GPUs that lasts from day 10,000 on: level · time passes 2^63, a bin's integral does not."""
    day = 86_400 * S
    begin = 10_000 * day
    found = integrals(np.array([begin]), np.array([10**11]), np.array([begin - S, begin, begin + S]))
    assert found.tolist() == [0, 10**11 * S]


@pytest.mark.parametrize(
    ("length_s", "width_s", "bins"), [(1, 1, 1), (600, 1, 600), (601, 2, 301), (90 * 86_400, 6 * 3600, 360), (0, 1, 1)]
)
def test_bins_are_few_and_of_a_round_width(length_s: int, width_s: int, bins: int) -> None:
    edges = bin_edges(7 * S, (7 + length_s) * S)
    assert len(edges) - 1 == bins <= BINS_MAX
    assert edges[0] == 7 * S and edges[-1] == max((7 + length_s) * S, 7 * S + 1)
    assert bins == 1 or edges[1] - edges[0] == width_s * S


def test_the_levels_of_a_run_add_up_to_its_totals() -> None:
    workload = load_workload("poisson:jobs=200,load=1.2,cluster=2x4").with_costs(save_s=5, restore_s=30)
    spans = SpansFold()
    outcome = simulate(workload, parse_cluster("2x4"), make_policy("srtf"), sinks=(spans.update,))
    M = outcome.metrics.M[:200]
    jobs = {name: M[:, i] for i, name in enumerate(COLUMN_NAMES)}
    found, summary = spans.spans(), outcome.metrics.summary(8)
    assert len(found) == summary.attempts and (summary.preemptions > 0)
    edges = bin_edges(0, int(M[:, COLUMN_NAMES.index("end")].max()))
    levels = series(jobs, found, edges)
    width = np.diff(edges)
    assert float(levels.gpus_booked @ width) == pytest.approx(jobs["held_gpu_us"].sum())
    assert float(levels.gpus_busy @ width) == pytest.approx(jobs["busy_gpu_us"].sum())
    assert float(levels.queue_length @ width) == pytest.approx(int(outcome.metrics.A[6]) * 1000, rel=1e-3)
    assert levels.gpus_booked.max() <= 8 + 1e-9
    rows = segments(found, 0, int(edges[-1]))
    gpu_us = sum(int(mask).bit_count() * (end - start) for _, _, _, mask, start, end, _ in rows.tolist())
    assert gpu_us == jobs["held_gpu_us"].sum()
