"""The tables of a reproduction, as words: the page and the Markdown show the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from headway.metrics.compare import PAIRS_MIN, bootstrap_median, median
from headway.report.mlfs.claims import Claim, interval
from headway.report.mlfs.content import EQUAL, PAPER, TITLES, Block
from headway.report.mlfs.paper import LARGE, Paper
from headway.report.scale import NBSP, number


@dataclass(frozen=True, slots=True)
class Metric:
    """A figure of the report: its key in a run's entry, and how it is written."""

    key: str
    title: str
    unit: float = 1.0
    word: str = ""
    decimals: int = 3

    def written(self, value: float | None) -> str:
        """A value in the metric's unit, without its name."""
        return "–" if value is None else f"{value / self.unit:,.{self.decimals}f}"

    @property
    def heading(self) -> str:
        return f"{self.title}, {self.word}" if self.word else self.title


METRICS = (
    Metric("avg_jct_s", "JCT, average", 60, "min", 1),
    Metric("deadline_ratio", "deadlines kept"),
    Metric("avg_wait_s", "waiting, average", 60, "min", 1),
    Metric("avg_accuracy", "accuracy by the deadline"),
    Metric("accuracy_ratio", "accuracy wanted is reached"),
    Metric("cross_node_bytes", "traffic between nodes", 1e12, "TB", 1),
    Metric("decide_ms_avg", "time to decide, average", 1, "ms"),
    Metric("makespan_s", "makespan", 3600, "h", 1),
    Metric("jct_under_100min_frac", "jobs with a JCT under 100 min"),
)
OTHERS = (Metric("urgent_deadline_ratio", "deadlines kept, urgent jobs"), Metric("overloads", "overloaded servers", 1, "", 0))
BY_KEY = {metric.key: metric for metric in (*METRICS, *OTHERS)}
BOUND = "lower bound"


@dataclass(frozen=True, slots=True)
class Table:
    """A table; the first column names the row. `verdicts` is the column that holds verdicts, if one does; `words` those that may
    be broken into lines.
    """

    name: str
    title: str
    note: str
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    verdicts: int = -1
    words: frozenset[int] = frozenset()


def claims_table(block: Block, claims: Sequence[Claim]) -> Table:
    """Paper says, we measured, verdict."""
    rows = []
    for claim in claims:
        metric = f"{BY_KEY[claim.key].title}: {claim.figures}"
        rows.append((metric, claim.verdict, claim.says, claim.measured, claim.reason))
    star = ""
    if any(claim.stand_in for claim in claims):
        star = " An asterisk: MLF-H + MLF-C stands for MLFS, whose learnt policy is not there."
    note = (
        f"At {block.loads[0]:,} jobs where the figure says so, else at {block.loads[-1]:,}. Gains are paired by seed, more is "
        f"better, with the bootstrap interval of 95 % of the median. In the baselines' setting of the paper.{star}"
    )
    headers = ("metric: figures", "", "the paper says", "we measured", "why")
    return Table("claims", "Paper says, we measured", note, headers, rows, verdicts=1, words=frozenset({2, 3, 4}))


def metric_tables(block: Block, table: str, paper: Paper) -> list[Table]:
    """A table for each metric: medians over the seeds at every load, the interval at the highest, and who is better."""
    return [_metric_table(block, table, paper, metric) for metric in METRICS if block.methods[table]]


def _metric_table(block: Block, table: str, paper: Paper, metric: Metric) -> Table:
    drawn = paper.figure(metric.key, block.scale) if table == PAPER else None
    high = block.loads[-1]
    versus = [name for name in (("mlf-h", "srtf") if table == EQUAL else ("mlf-h", "tiresias")) if name in block.methods[table]]
    headers = ["", *(f"{load:,} jobs" for load in block.loads), f"interval at {high:,}"]
    headers += [f"against {TITLES[name]}" for name in versus]
    rows = []
    if metric.key == "avg_jct_s":
        rows.append([BOUND, *(metric.written(lower_bound(block, load)) for load in block.loads), "", *("" for _ in versus)])
    for method, policy in block.methods[table].items():
        cells = []
        for load in block.loads:
            cell = metric.written(median(block.values(policy, load, metric.key)))
            theirs = drawn.at(method, load) if drawn is not None else None
            cells.append(cell if theirs is None else f"{cell}{NBSP}({metric.written(theirs)})")
        gains = [
            "" if name == method else interval(block.gain(policy, block.methods[table][name], high, metric.key))
            for name in versus
        ]
        rows.append([TITLES[method], *cells, spread(metric, block.values(policy, high, metric.key)), *gains])
    note = (
        f"Medians over the seeds; in parentheses Fig. {drawn.name} of the paper."
        if drawn is not None
        else "Medians over the seeds."
    )
    return Table(f"{table}-{metric.key}", metric.heading, note, headers, rows)


def spread(metric: Metric, values: Sequence[float | None]) -> str:
    """The bootstrap interval of the median."""
    known = np.array([value for value in values if value is not None], np.float64)
    if len(known) < PAIRS_MIN:
        return "–"
    low, high = bootstrap_median(known)
    return f"[{metric.written(low)}, {metric.written(high)}]"


def lower_bound(block: Block, load: int) -> float | None:
    """The lower bound of the mean JCT of jobs that train to the end: the same for all policies that stop nobody."""
    bounds: list[float | None] = []
    for k in range(len(block.seeds)):
        found = [of[k] for (_, at, _), of in block.runs.items() if at == load]
        known = [e["avg_jct_bound_s"] for e in found if e and e.get("avg_jct_bound_s") and e["finished"] == e["jobs"]]
        bounds.append(min(known, default=None))
    return median(bounds)


def stated_table(block: Block, paper: Paper) -> list[Table]:
    """What the text states without a figure, beside ours."""
    tables = []
    for stated in paper.stated:
        if block.scale == LARGE:
            continue
        metric = BY_KEY[stated.key]
        ends = (block.loads[0], block.loads[-1])
        rows = [
            (
                TITLES[name],
                " – ".join(metric.written(value) for value in values),
                " – ".join(
                    metric.written(median(block.values(block.methods[PAPER][name], load, stated.key)))
                    for load in ends[-len(values) :]
                )
                if name in block.methods[PAPER]
                else "–",
            )
            for name, values in stated.methods.items()
        ]
        note = f"At the {stated.loads} load."
        tables.append(Table(f"stated-{stated.key}", metric.heading, note, ("", "the paper", "we measured"), rows))
    return tables


def study_tables(block: Block, paper: Paper) -> list[Table]:
    """Figures 6 to 9: with and without one part, at every load, the paper's beside ours."""
    if not block.studies:
        return []
    tables = []
    for study in paper.studies:
        metric = BY_KEY[study.key]
        rows = []
        for side, policy, theirs in (("with", study.base, study.with_values), ("without", study.without, study.without_values)):
            ours = [metric.written(median(block.values(policy, load, study.key))) for load in block.loads]
            rows.append((f"we, {side} ({policy})", *ours))
            drawn = paper.figures[0].loads
            at = [metric.written(theirs[drawn.index(load)]) if load in drawn else "–" for load in block.loads]
            rows.append((f"the paper, {side}", *at))
        gains = (interval(block.gain(study.base, study.without, load, study.key)) for load in block.loads)
        rows.append(("our gain", *gains))
        title = f"Fig. {study.figure}: {study.name}, {metric.heading}"
        headers = ("", *(f"{load:,} jobs" for load in block.loads))
        tables.append(Table(f"study-{study.name}-{study.key}", title, "", headers, rows))
    return tables


def split_table(block: Block) -> Table | None:
    """Where the gain comes from, step by step, at the highest load."""
    if len(block.split) < 2:
        return None
    load = block.loads[-1]
    rows, before = [], ""
    for name, policy in block.split:
        jct = block.values(policy, load, "avg_jct_s")
        points = _points(block.values(policy, load, "avg_final_accuracy"), block.values(before, load, "avg_final_accuracy"))
        kept = _points(block.values(policy, load, "accuracy_ratio"), block.values(before, load, "accuracy_ratio"))
        step = interval(block.gain(policy, before, load, "avg_jct_s")) if before else ""
        rows.append((name, policy, BY_KEY["avg_jct_s"].written(median(jct)), step, points, kept))
        before = policy
    headers = ("added", "policy", "JCT, min", "gain over the row above", "accuracy at the end", "accuracy wanted is reached")
    note = f"At {load:,} jobs; changes of accuracy and of jobs that reach what they want in points (of 100)."
    return Table("split", "Where the gain comes from", note, headers, rows, words=frozenset({1}))


def _points(ours: Sequence[float | None], before: Sequence[float | None]) -> str:
    """The mean change in points."""
    pairs = [(y, z) for y, z in zip(ours, before, strict=True) if y is not None and z is not None]
    if not pairs:
        return ""
    change = 100 * fsum(y - z for y, z in pairs) / len(pairs)
    return f"{'+' if change > 0 else ''}{number(round(change, 2), 2)}"
