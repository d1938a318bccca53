"""Which part of a run the Gantt charts show: the busiest day, or hour, that a person can still read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.core.arrays import Table
from headway.core.units import US_PER_S
from headway.metrics.series import SEGMENT_COLUMNS, Series, segments
from headway.metrics.spans import Spans

GPUS_SHOWN_MAX = 128
SEGMENTS_MAX = 2500
LENGTHS_S = (86_400, 6 * 3600, 3600, 600, 60)
_NODE, _START, _END = (SEGMENT_COLUMNS.index(name) for name in ("node", "start", "end"))


def nodes_shown(sizes: Sequence[int]) -> int:
    """How many nodes, from the first, a chart of at most `GPUS_SHOWN_MAX` rows holds; at least one."""
    total = np.cumsum(sizes)
    return max(int(np.searchsorted(total, GPUS_SHOWN_MAX, side="right")), min(len(sizes), 1))


def busiest_window(series: Series, runs: Sequence[Spans], nodes: int) -> tuple[int, int]:
    """The longest of `LENGTHS_S` with few enough segments under every policy, where most jobs are live in `series`, as (start,
    end) in µs. A run that is shorter is shown whole.
    """
    edges = series.edges_us
    begin, end = int(edges[0]), int(edges[-1])
    live = (series.queue_length + series.jobs_up) * np.diff(edges)
    width = int(edges[1] - edges[0])
    window = (begin, end)
    for length in (s * US_PER_S for s in LENGTHS_S):
        window = (begin, end)
        if length < end - begin:
            bins = max(length // width, 1)
            sums = np.convolve(live, np.ones(min(bins, len(live))), "valid")
            start = min(int(edges[int(np.argmax(sums))]), end - length)
            window = (start, start + length)
        if all(len(shown(spans, window, nodes)) <= SEGMENTS_MAX for spans in runs):
            break
    return window


def shown(spans: Spans, window: tuple[int, int], nodes: int) -> Table:
    """The segments of a window on the first `nodes` nodes."""
    rows = segments(spans, *window)
    return rows[rows[:, _NODE] < nodes]


def thin(rows: Table) -> tuple[Table, int]:
    """At most `SEGMENTS_MAX` segments, the longest, and how many are left out."""
    if len(rows) <= SEGMENTS_MAX:
        return rows, 0
    longest = np.argsort(rows[:, _START] - rows[:, _END], kind="stable")[:SEGMENTS_MAX]
    return rows[np.sort(longest)], len(rows) - SEGMENTS_MAX
