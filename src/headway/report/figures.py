"""The figures of a report: which lines over which axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headway.core.columns import GPUS_PER_NODE_MAX
from headway.core.units import US_PER_S
from headway.metrics.series import State
from headway.report.content import Content, PolicyRun
from headway.report.scale import Tick, duration, linear_ticks, log_time_ticks, time_ticks, time_unit
from headway.report.svg import HUES, Axis, Bar, Interval, Line, gantt_chart, interval_chart, line_chart

WIDE, NARROW = 960, 380
CDF_POINTS_MAX = 300
FIGURE_FOR_SEEDS = "avg_jct_s"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that can be drawn in any width: for a page, or alone as a file of its own."""

    name: str
    title: str
    caption: str
    draw: Callable[[int, bool], str]
    """(width, alone) → SVG."""
    scrolls: bool = False
    """Whether a narrow page scrolls it sideways instead of drawing it narrow."""


def figures(content: Content) -> list[Figure]:
    """All figures, in the order of the page."""
    found = [_cdf(content), _queue(content), _busy(content)]
    if content.seeds is not None and any(content.seeds.gains.values()):
        found.append(_gains(content))
    return [*found, *(_gantt(content, run, k) for k, run in enumerate(content.runs))]


def _cdf(content: Content) -> Figure:
    lines = []
    low, high = np.inf, 0.0
    for slot, run in enumerate(content.runs):
        jct = run.jct_us
        if not len(jct):
            continue
        ranks = np.unique(np.linspace(1, len(jct), min(len(jct), CDF_POINTS_MAX)).round().astype(np.int64))
        times = jct[ranks - 1] / US_PER_S
        low, high = min(low, float(times[0])), max(high, float(times[-1]))
        lines.append(Line(run.spec, [float(times[0]), *times.tolist()], [0.0, *(ranks / len(jct)).tolist()], slot))
    low = max(low, 1.0) if lines else 1.0
    high = max(high, low * 10)
    x = Axis("job completion time (logarithmic)", low, high, log_time_ticks(low, high), log=True)
    y = Axis("share of the completed jobs", 0, 1, [Tick(k / 4, f"{25 * k} %") for k in range(5)])
    return Figure(
        "jct-cdf",
        "Job completion times",
        "For each time, the share of the completed jobs that took no longer. Further left is better.",
        lambda width, alone: line_chart(lines, x, y, title="Job completion times", width=width, alone=alone),
    )


def _time_axis(content: Content) -> Axis:
    edges = [run.series.edges_us for run in content.runs]
    low = min(int(e[0]) for e in edges) / US_PER_S
    high = max(int(e[-1]) for e in edges) / US_PER_S
    return Axis(f"time since the start ({time_unit(high - low)[0]})", low, high, time_ticks(low, high))


def _levels(content: Content, level: Callable[[PolicyRun], list[float]]) -> list[Line]:
    return [
        Line(run.spec, (run.series.edges_us / US_PER_S).tolist(), level(run), slot, steps=True)
        for slot, run in enumerate(content.runs)
    ]


def _bin(content: Content) -> str:
    edges = content.runs[0].series.edges_us
    return duration(float(edges[1] - edges[0]) / US_PER_S)


def _queue(content: Content) -> Figure:
    lines = _levels(content, lambda run: run.series.queue_length.tolist())
    ticks = linear_ticks(max(max(line.y) for line in lines), step_min=1)
    y = Axis("jobs queued", 0, ticks[-1].value, ticks)
    x = _time_axis(content)
    return Figure(
        "queue-length",
        "Queue length",
        f"Jobs that wait for their GPUs, on average over {_bin(content)}.",
        lambda width, alone: line_chart(lines, x, y, title="Queue length over time", width=width, height=200, alone=alone),
    )


def _busy(content: Content) -> Figure:
    gpus = max(content.gpus, 1)
    lines = _levels(content, lambda run: (run.series.gpus_busy / gpus).tolist())
    y = Axis(f"share of {content.gpus:,} GPUs at work", 0, 1, [Tick(k / 4, f"{25 * k} %") for k in range(5)])
    x = _time_axis(content)
    return Figure(
        "utilisation",
        "Utilisation",
        f"GPUs whose job is up and not being stopped, on average over {_bin(content)}.",
        lambda width, alone: line_chart(lines, x, y, title="Utilisation over time", width=width, height=200, alone=alone),
    )


def _gains(content: Content) -> Figure:
    assert content.seeds is not None
    slots = {run.spec: k for k, run in enumerate(content.runs)}
    rows = [
        Interval(spec, gain.median_frac, gain.low_frac, gain.high_frac, slots[spec])
        for spec, figures_of in content.seeds.gains.items()
        if (gain := figures_of[FIGURE_FOR_SEEDS]).median_frac is not None
    ]
    ends = [0.0, *(v for row in rows for v in (row.middle, row.low, row.high) if v is not None)]
    ticks = [Tick(t.value / 100, f"{t.label} %") for t in linear_ticks(100 * max(ends), 6, 100 * min(ends))]
    x = Axis("reduction of the average JCT (above 0: better)", ticks[0].value, ticks[-1].value, ticks)
    title = f"Average JCT against {content.seeds.baseline}, {len(content.seeds.seeds)} seeds"
    return Figure(
        "seeds",
        title,
        "Median of the paired differences, and its bootstrap interval of 95 %. Where the line crosses 0, the seeds do not tell.",
        lambda width, alone: interval_chart(rows, x, title=title, width=width, alone=alone),
    )


def _gantt(content: Content, run: PolicyRun, index: int) -> Figure:
    start, end = (t / US_PER_S for t in content.window_us)
    nodes = content.nodes[: content.nodes_shown]
    unit = time_unit(end - start)[0]
    x = Axis(f"time since the start ({unit})", start, end, time_ticks(start, end))
    bars = list(gantt_bars(content, run))
    title = f"Who ran where: {run.spec}"
    some = "" if len(nodes) == len(content.nodes) else f" The first {len(nodes)} of {len(content.nodes):,} nodes."
    left_out = f" {run.segments_left_out:,} of the shortest pieces are left out." if run.segments_left_out else ""
    return Figure(
        f"gantt-{index + 1}",
        title,
        f"A row for each GPU, {duration(end - start)} from {duration(start)} after the start; a colour for each job, pale while "
        f"it starts, restores or stops.{some}{left_out}",
        lambda width, alone: gantt_chart(bars, nodes, x, title=title, width=width, alone=alone),
        scrolls=True,
    )


def gantt_bars(content: Content, run: PolicyRun) -> list[Bar]:
    """The pieces of a Gantt chart: one for each run of neighbouring GPUs of a segment."""
    first_row = np.concatenate(([0], np.cumsum([gpus for _, gpus in content.nodes[: content.nodes_shown]]))).tolist()
    names = content.job_names
    bars = []
    for job, attempt, node, mask, start, end, state in run.segments.tolist():
        name = names[job] if names else f"job {job}"
        word = State(state).name.lower()
        where = content.nodes[node][0]
        for low, count in runs_of_bits(mask):
            gpus = f"GPU {low}" if count == 1 else f"GPUs {low}–{low + count - 1}"
            tip = f"{name}, attempt {attempt}: {word} {duration((end - start) / US_PER_S)} on {where}, {gpus}"
            pale = state != State.RUNNING
            bars.append(Bar(first_row[node] + low, count, start / US_PER_S, end / US_PER_S, job % HUES, pale, str(job), tip))
    return bars


def runs_of_bits(mask: int) -> list[tuple[int, int]]:
    """(lowest bit, length) of each run of set bits of a word; bit 63 makes it negative."""
    bits = mask & (1 << GPUS_PER_NODE_MAX) - 1
    found: list[tuple[int, int]] = []
    at = 0
    while bits >> at:
        at += ((bits >> at) & -(bits >> at)).bit_length() - 1
        length = (~(bits >> at) & ((bits >> at) + 1)).bit_length() - 1
        found.append((at, length))
        at += length
    return found
