"""The report of real runs and of how well the simulator foretold them: a page, the same in Markdown, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from markupsafe import Markup

from headway.metrics.compare import median
from headway.report.page import page_css
from headway.report.scale import duration, number, percent
from headway.report.templates import template

Json = dict[str, Any]
COLUMNS = (
    ("completed", "finished", number),
    ("JCT, average", "avg_jct_s", duration),
    ("JCT, p90", "p90_jct_s", duration),
    ("waiting, average", "avg_wait_s", duration),
    ("makespan", "makespan_s", duration),
    ("deadlines kept", "deadline_ratio", percent),
    ("accuracy at the end", "avg_final_accuracy", percent),
    ("preemptions", "preemptions", number),
)
"""Heading, key, format; figures are medians over the seeds."""
SIDE, MARGIN = 420, 46
ASSUMED = (
    "The simulator knows of a judged run only which jobs came when: step times, warm-up, starting, saving and going on are those "
    "of runs of other seeds.",
    "Jobs that ran beside each other share memory and caches; how much a job is slowed by its neighbour is in "
    "the step times as an average, not for each pair.",
    "What else ran on the machine meanwhile is in the errors.",
)


@dataclass(frozen=True, slots=True)
class LiveReport:
    """All that a report shows. `rows`: one for each judged job; `figures`: of what happened, by policy, one a seed."""

    command: str
    version: str
    jobs: int
    slots: int
    seeds: Sequence[int]
    figures: dict[str, list[Json]]
    rows: list[Json]
    errors: Json
    by_policy: dict[str, Json]
    profile: Json
    verdict: str
    notes: list[str]

    def to_json(self) -> Json:
        """The numbers."""
        return asdict(self)

    def table(self) -> list[tuple[str, list[str]]]:
        """Policies and their figures, medians over the seeds."""
        return [
            (policy, [form(median([run[key] for run in runs])) for _, key, form in COLUMNS])
            for policy, runs in self.figures.items()
        ]

    def error_table(self) -> list[tuple[str, list[str]]]:
        """The errors, of all jobs and by policy."""
        groups = {"all": self.errors, **self.by_policy}
        return [
            (name, [number(of["jobs"]), *(percent(of[key]) for key in ("median", "p90", "max"))]) for name, of in groups.items()
        ]


def scatter(rows: Sequence[Json]) -> str:
    """Simulated against real completion times on logarithmic axes, as an SVG: on the line they are equal; beside it, 25 %."""
    values = [row[key] for row in rows for key in ("real_jct_s", "sim_jct_s") if row[key] > 0]
    if not values:
        return ""
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05
    span = max(high - low, 0.1)
    inner = SIDE - 2 * MARGIN

    def x(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / span * inner

    def y(value: float) -> float:
        return SIDE - x(value)

    policies = list(dict.fromkeys(row["policy"] for row in rows))
    size = f'viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" height="{SIDE}"'
    parts = [f'<svg class="hw" role="img" {size}><title>Simulated against real JCT</title>']
    ends = 10**low, 10 ** (low + span)
    for factor, dash in ((1.0, ""), (1.25, ' stroke-dasharray="4 4"'), (0.8, ' stroke-dasharray="4 4"')):
        a, b = max(ends[0], ends[0] / factor), min(ends[1], ends[1] / factor)
        parts.append(
            f'<line class="axis"{dash} x1="{x(a):.1f}" y1="{y(a * factor):.1f}" x2="{x(b):.1f}" y2="{y(b * factor):.1f}"/>'
        )
    for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000):
        if ends[0] <= tick <= ends[1]:
            parts.append(f'<text class="mid" x="{x(tick):.1f}" y="{SIDE - MARGIN + 18}">{tick}</text>')
            parts.append(f'<text class="end" x="{MARGIN - 6}" y="{y(tick) + 4:.1f}">{tick}</text>')
            parts.append(f'<line class="grid" x1="{x(tick):.1f}" y1="{MARGIN}" x2="{x(tick):.1f}" y2="{SIDE - MARGIN}"/>')
            parts.append(f'<line class="grid" x1="{MARGIN}" y1="{y(tick):.1f}" x2="{SIDE - MARGIN}" y2="{y(tick):.1f}"/>')
    for row in rows:
        if row["real_jct_s"] > 0 and row["sim_jct_s"] > 0:
            about = escape(
                f"{row['job']}, {row['policy']}, seed {row['seed']}: {row['real_jct_s']:.1f} s, {row['sim_jct_s']:.1f} s"
            )
            parts.append(
                f'<circle fill="var(--c{policies.index(row["policy"]) % 8})" cx="{x(row["real_jct_s"]):.1f}" '
                f'cy="{y(row["sim_jct_s"]):.1f}" r="3.5"><title>{about}</title></circle>'
            )
    parts.append(f'<text class="mid" x="{SIDE / 2}" y="{SIDE - 8}">real JCT (s)</text>')
    parts.append(f'<text class="mid" x="12" y="{SIDE / 2}" transform="rotate(-90 12 {SIDE / 2})">simulated JCT (s)</text>')
    for i, policy in enumerate(policies):
        parts.append(f'<circle fill="var(--c{i % 8})" cx="{MARGIN + 8}" cy="{MARGIN + 10 + 16 * i}" r="4"/>')
        parts.append(f'<text x="{MARGIN + 18}" y="{MARGIN + 14 + 16 * i}">{escape(policy)}</text>')
    return "".join([*parts, "</svg>"])


def page(report: LiveReport) -> str:
    """The page."""
    return template("live.html.j2").render(
        css=Markup(page_css()),
        report=report,
        heads=[head for head, _, _ in COLUMNS],
        picture=Markup(scatter(report.rows)),
        assumed=(*ASSUMED, *report.notes),
        duration=duration,
        percent=percent,
        number=number,
    )


def markdown(report: LiveReport) -> str:
    """The tables as Markdown."""
    lines = ["# Real jobs, and the simulator", "", report.verdict, "", "```", report.command, "```", ""]
    lines += [
        f"{report.jobs} jobs a run on {report.slots} slots; seeds {', '.join(map(str, report.seeds))}; medians over them.",
        "",
    ]
    lines += _table(["policy", *(head for head, _, _ in COLUMNS)], report.table())
    lines += ["", "## Errors of the simulator", ""]
    lines += _table(["jobs of", "jobs", "median", "p90", "largest"], report.error_table())
    lines += ["", "## What was assumed", "", *(f"- {note}" for note in (*ASSUMED, *report.notes)), ""]
    return "\n".join(lines)


def _table(heads: Sequence[str], rows: Sequence[tuple[str, list[str]]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return lines + [f"| {' | '.join([name, *cells])} |" for name, cells in rows]
