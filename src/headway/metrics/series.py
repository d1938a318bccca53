"""A run over time: queue length and GPUs in use in a bounded number of bins, and who was where in a window.

Levels are sums of steps, and each bin holds the exact integral of its level: no sampling, so nothing falls between two bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from headway.core.arrays import Floats, Ints, Table
from headway.core.columns import NEVER, WHOLE
from headway.core.units import US_PER_S
from headway.metrics.spans import Spans

BINS_MAX = 600
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WIDTHS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(n * _MINUTE for n in (1, 2, 5, 10, 15, 30)),
    *(n * _HOUR for n in (1, 2, 3, 6, 12)),
    *(n * _DAY for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10_000, 100_000)),
)


class State(IntEnum):
    """What an attempt does with the GPUs that it holds."""

    STARTING = 0
    RESTORING = 1
    RUNNING = 2
    STOPPING = 3


@dataclass(frozen=True, slots=True)
class Series:
    """Means over bins `edges_us[i] … edges_us[i + 1]`; the last bin may be shorter than the others."""

    edges_us: Ints
    queue_length: Floats
    jobs_up: Floats
    """Jobs that hold GPUs or cpus."""
    gpus_booked: Floats
    gpus_busy: Floats

    def to_json(self) -> dict[str, list[float]]:
        """The bins' edges in seconds, and each level's means."""
        levels = ("queue_length", "jobs_up", "gpus_booked", "gpus_busy")
        return {
            "edges_s": (self.edges_us / US_PER_S).tolist(),
            **{name: np.round(getattr(self, name), 6).tolist() for name in levels},
        }


def bin_edges(start_us: int, end_us: int, bins_max: int = BINS_MAX) -> Ints:
    """Edges of at most `bins_max` bins from start to end, of the smallest width in whole seconds, minutes, hours or days."""
    length = max(end_us - start_us, 1)
    wanted = (width * US_PER_S for width in _WIDTHS_S)
    width = next((us for us in wanted if us * bins_max >= length), -(-length // bins_max))
    count = -(-length // width)
    return np.append(start_us + width * np.arange(count, dtype=np.int64), start_us + length)


def integrals(times: Ints, steps: Ints, edges: Ints) -> Ints:
    """Integrals between neighbouring edges of the level that changes by `steps[i]` at `times[i]`, in steps' unit · µs.

    Running sums may pass 2^63 and wrap; their differences are right as long as a bin's own integral stays below that.
    """
    if not len(times):
        return np.zeros(len(edges) - 1, np.int64)
    order = np.argsort(times, kind="stable")
    t, step = times[order], steps[order]
    level = np.concatenate(([0], np.cumsum(step)))
    moment = np.concatenate(([0], np.cumsum(step * t)))
    at = np.searchsorted(t, edges, side="right")
    area: Ints = np.diff(edges * level[at] - moment[at])
    return area


def series(jobs: Mapping[str, Ints], spans: Spans, edges: Ints) -> Series:
    """Levels of a run; `jobs` are the columns of `metrics.fold`, of all jobs submitted."""
    width = np.diff(edges)

    def area(begin: Ints, end: Ints, height: Ints) -> Ints:
        times, steps = np.concatenate((begin, end)), np.concatenate((height, -height))
        lasts = times < NEVER
        return integrals(times[lasts], steps[lasts], edges)

    ended = np.where(jobs["end"] >= 0, jobs["end"], NEVER)
    live = area(jobs["submitted"], ended, np.ones_like(ended))
    up = area(spans.requested, spans.ended, np.ones_like(spans.milli))
    ran = spans.started < NEVER
    until = np.minimum(spans.stopping, spans.ended)
    return Series(
        edges_us=edges,
        queue_length=(live - up) / width,
        jobs_up=up / width,
        gpus_booked=area(spans.requested, spans.ended, spans.milli) / (width * WHOLE),
        gpus_busy=area(spans.started[ran], until[ran], spans.milli[ran]) / (width * WHOLE),
    )


# -- who was where --------------------------------------------------------------------------------------------------
SEGMENT_COLUMNS = ("job", "attempt", "node", "mask", "start", "end", "state")


def segments(spans: Spans, start_us: int, end_us: int) -> Table:
    """Rows (job, attempt, node, mask of its GPUs, start, end, `State`) of what held GPUs within a window, cut to it, by start.

    The tasks of a gang on one node make one row.
    """
    here = np.flatnonzero((spans.requested < end_us) & (spans.ended > start_us))
    until = np.minimum(spans.ended, end_us)
    stop = np.minimum(spans.stopping, until)
    up = np.minimum(spans.started, stop)
    works = np.minimum(up + spans.restore, stop)
    parts: list[Table] = []
    spans_of, nodes, masks = _places(spans, here)
    for state, begin, end in (
        (State.STARTING, spans.requested, up),
        (State.RESTORING, up, works),
        (State.RUNNING, works, stop),
        (State.STOPPING, stop, until),
    ):
        first, last = np.maximum(begin, start_us)[spans_of], np.minimum(end, end_us)[spans_of]
        some = first < last
        of = spans_of[some]
        columns = (spans.job[of], spans.attempt[of], nodes[some], masks[some], first[some], last[some])
        parts.append(np.column_stack((*columns, np.full(len(of), state, np.int64))))
    rows = np.concatenate(parts)
    return rows[np.lexsort((rows[:, 2], rows[:, 0], rows[:, 4]))]


def _places(spans: Spans, chosen: Ints) -> tuple[Ints, Ints, Ints]:
    """(attempt, node, mask) once for each node of the chosen attempts; places without a GPU are left out."""
    sizes = spans.place_at[chosen + 1] - spans.place_at[chosen]
    of = np.repeat(chosen, sizes)
    rows = np.repeat(spans.place_at[chosen] - np.concatenate(([0], np.cumsum(sizes)[:-1])), sizes) + np.arange(len(of))
    nodes, masks = spans.places[rows, 0], spans.places[rows, 1]
    of, nodes, masks = of[masks != 0], nodes[masks != 0], masks[masks != 0]
    if not len(of):
        return of, nodes, masks
    order = np.lexsort((nodes, of))
    of, nodes, masks = of[order], nodes[order], masks[order]
    heads = np.flatnonzero(np.append(True, (of[1:] != of[:-1]) | (nodes[1:] != nodes[:-1])))
    return of[heads], nodes[heads], np.bitwise_or.reduceat(masks, heads)
