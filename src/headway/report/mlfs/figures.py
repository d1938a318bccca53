"""The paper's figures beside ours: the same lines over the same loads, each on its own axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headway.metrics.compare import median
from headway.report.mlfs.content import PAPER, TITLES, Block
from headway.report.mlfs.paper import Paper
from headway.report.mlfs.tables import BY_KEY, METRICS, Metric
from headway.report.scale import Tick, linear_ticks, log_time_ticks
from headway.report.svg import Axis, Line, line_chart

SLOTS = {name: slot for slot, name in enumerate(TITLES)}
WIDE, NARROW = 500, 370
HEIGHT = 230


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure: the paper's drawing (None: it has none that was read) and ours, by width."""

    name: str
    title: str
    caption: str
    paper: Callable[[int], str] | None
    ours: Callable[[int], str]


def pairs(block: Block, paper: Paper) -> list[Pair]:
    """All figures of a block."""
    found = [cdf(block)] if block.methods[PAPER] else []
    if len(block.loads) > 1 and block.methods[PAPER]:
        found += [_metric(block, paper, metric) for metric in METRICS if metric.key != "jct_under_100min_frac"]
    if len(block.loads) > 1 and block.studies:
        found += _studies(block, paper)
    return found


def cdf(block: Block) -> Pair:
    """Fig. 4(a): the distribution of completion times at the highest load, of every per cent the median over the seeds."""
    load = block.loads[-1]
    lines, low, high = [], np.inf, 0.0
    for method, policy in block.methods[PAPER].items():
        known = [e["jct_quantiles_s"] for e in block.runs.get((policy, load, False), ()) if e and e["jct_quantiles_s"]]
        if known:
            times = np.median(np.array(known), axis=0).tolist()
            low, high = min(low, times[0]), max(high, times[-1])
            lines.append(Line(TITLES[method], times, [k / 100 for k in range(101)], SLOTS[method]))
    low = max(low, 1.0) if lines else 1.0
    high = max(high, 10 * low)
    x = Axis("job completion time (logarithmic)", low, high, log_time_ticks(low, high), log=True)
    y = Axis("share of the completed jobs", 0, 1, [Tick(k / 4, f"{25 * k} %") for k in range(5)])
    title = f"Fig. 4(a): job completion times, {load:,} jobs"
    return Pair(
        "jct-cdf", title, "Further left is better. The paper's curves are not known as numbers; what it states of 100 minutes is "
        "in a table.", None, lambda width: line_chart(lines, x, y, title=title, width=width, height=HEIGHT),
    )  # fmt: skip


def _metric(block: Block, paper: Paper, metric: Metric) -> Pair:
    drawn = paper.figure(metric.key, block.scale)
    ours = {
        name: [median(block.values(policy, load, metric.key)) for load in block.loads]
        for name, policy in block.methods[PAPER].items()
    }
    titles = {name: TITLES[name] for name in TITLES}
    of_paper = None
    if drawn is not None:
        theirs: dict[str, Sequence[float | None]] = {name: drawn.methods[name] for name in TITLES if name in drawn.methods}
        of_paper = _chart(drawn.loads, theirs, titles, metric, f"Fig. {drawn.name} of the paper")
    title = f"Fig. {drawn.name}: {metric.title}" if drawn is not None else metric.title[0].upper() + metric.title[1:]
    return Pair(metric.key, title, "", of_paper, _chart(block.loads, ours, titles, metric, "ours"))


def _studies(block: Block, paper: Paper) -> list[Pair]:
    found = []
    loads = paper.figures[0].loads
    for study in paper.studies:
        metric = BY_KEY[study.key]
        titles = {"with": f"with {study.name}", "without": "without"}
        theirs: dict[str, Sequence[float | None]] = {"with": study.with_values, "without": study.without_values}
        ours = {
            side: [median(block.values(policy, load, study.key)) for load in block.loads]
            for side, policy in (("with", study.base), ("without", study.without))
        }
        title = f"Fig. {study.figure}: {study.name}, {metric.title}"
        found.append(
            Pair(
                f"study-{study.name}-{study.key}", title, "",
                _chart(loads, theirs, titles, metric, "the paper"), _chart(block.loads, ours, titles, metric, "ours"),
            )
        )  # fmt: skip
    return found


def _chart(
    loads: Sequence[int], values: Mapping[str, Sequence[float | None]], titles: Mapping[str, str], metric: Metric, title: str
) -> Callable[[int], str]:
    lines = []
    for k, (name, of) in enumerate(values.items()):
        known = [(float(load), v / metric.unit) for load, v in zip(loads, of, strict=True) if v is not None]
        if known:
            xs, ys = zip(*known, strict=True)
            lines.append(Line(titles[name], xs, ys, SLOTS.get(name, k)))
    most = max((max(line.y) for line in lines), default=1.0)
    ticks = linear_ticks(most)
    y = Axis(metric.word or "share", 0, ticks[-1].value, ticks)
    x = Axis("jobs", 0, max(loads) * 1.04, [Tick(load, f"{load:,}") for load in loads])
    return lambda width: line_chart(lines, x, y, title=title, width=width, height=HEIGHT)
