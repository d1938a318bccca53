"""The HTML page of a report: one file, with its pictures, its style and no script, that opens without a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from headway.metrics.compare import HIGHER_IS_BETTER, LOWER_IS_BETTER
from headway.report.content import Content, Json, PolicyRun
from headway.report.figures import NARROW, WIDE, Figure, figures
from headway.report.scale import NBSP, duration, durations, number, percent
from headway.report.svg import DARK, LIGHT, figure_css, look
from headway.report.templates import template

GROUP_ROWS_MAX = 20
Format = Callable[[Sequence[float | None]], list[str]]


def _each(form: Callable[[float | None], str]) -> Format:
    """A format for a row, from one for a value."""
    return lambda values: [form(value) for value in values]


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{number(value)}{NBSP}ms"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}{NBSP}×"


def _bytes(value: float | None) -> str:
    if value is None:
        return "–"
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.1f}{NBSP}{unit}"
    return f"{value:,.0f}{NBSP}B"


FIGURES: tuple[tuple[str, tuple[tuple[str, str, Format], ...]], ...] = (
    (
        "Completion",
        (
            ("avg_jct_s", "JCT, average", durations),
            ("avg_jct_bound_s", "its lower bound", durations),
            ("avg_jct_of_bound", "average over lower bound", _each(_times)),
            ("p50_jct_s", "JCT, median", durations),
            ("p90_jct_s", "JCT, p90", durations),
            ("p99_jct_s", "JCT, p99", durations),
            ("makespan_s", "makespan", durations),
            ("avg_bounded_slowdown", "bounded slowdown, average", _each(number)),
        ),
    ),
    (
        "Waiting",
        (
            ("avg_wait_s", "waiting, average", durations),
            ("p50_wait_s", "waiting, median", durations),
            ("p99_wait_s", "waiting, p99", durations),
            ("queue_length_avg", "queue length, average", _each(number)),
            ("queue_length_max", "queue length, longest", _each(number)),
        ),
    ),
    (
        "Promises",
        (
            ("deadline_ratio", "deadlines kept", _each(percent)),
            ("urgent_deadline_ratio", "deadlines kept, urgent jobs", _each(percent)),
            ("avg_accuracy", "accuracy by the deadline", _each(percent)),
            ("avg_final_accuracy", "accuracy at the end", _each(percent)),
            ("accuracy_ratio", "accuracy wanted is reached", _each(percent)),
        ),
    ),
    (
        "Fairness",
        (
            ("finish_time_fairness", "finish-time fairness ρ, average", _each(number)),
            ("finish_time_fairness_max", "finish-time fairness ρ, worst", _each(number)),
            ("unfair_job_frac", "jobs with ρ above 1", _each(percent)),
            ("fairness_jain", "Jain's index of ρ", _each(number)),
        ),
    ),
    (
        "Cluster",
        (
            ("gpu_busy_frac", "GPUs busy", _each(percent)),
            ("gpu_booked_frac", "GPUs booked", _each(percent)),
            ("gpu_hours_booked", "GPU hours booked", _each(number)),
            ("gpu_overhead_frac", "of them restoring and saving", _each(percent)),
            ("cross_node_bytes", "traffic between nodes", _each(_bytes)),
            ("preemptions", "preemptions", _each(number)),
            ("migrations", "migrations", _each(number)),
        ),
    ),
    (
        "Jobs",
        (
            ("finished", "completed", _each(number)),
            ("failed", "failed", _each(number)),
            ("rejected", "rejected", _each(number)),
            ("cancelled", "cancelled", _each(number)),
        ),
    ),
    (
        "Scheduler",
        (
            ("rounds", "rounds", _each(number)),
            ("decide_ms_avg", "time to decide, average", _each(_ms)),
            ("decide_ms_p50", "time to decide, median", _each(_ms)),
            ("decide_ms_p99", "time to decide, p99", _each(_ms)),
        ),
    ),
)
"""Sections of the table of figures: (key of an entry, name, format). A row without a value for any policy is left out."""
ALWAYS_ONE = frozenset({"failed", "rejected", "cancelled"})
"""Left out where they are 0 everywhere."""
SEED_FIGURES = ("avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "avg_wait_s", "finish_time_fairness", "deadline_ratio")


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table of figures: one cell for each policy."""

    key: str
    name: str
    cells: Sequence[str]
    best: Sequence[bool]


def figure_rows(runs: Sequence[PolicyRun]) -> list[tuple[str, list[Row]]]:
    """The table of figures, by section; the best of a row is marked where the policies differ."""
    pair = ("avg_jct_s", "avg_jct_bound_s")
    together = durations([run.entry.get(key) for key in pair for run in runs])
    averages = {key: together[k * len(runs) : (k + 1) * len(runs)] for k, key in enumerate(pair)}
    sections = []
    for title, lines in FIGURES:
        rows = []
        for key, name, form in lines:
            values = [_of_bound(run.entry) if key == "avg_jct_of_bound" else run.entry.get(key) for run in runs]
            if all(v is None for v in values) or (key in ALWAYS_ONE and not any(values)):
                continue
            cells = averages[key] if key in averages else form(values)
            rows.append(Row(key, name, cells, _best(key, values, cells)))
        if rows:
            sections.append((title, rows))
    return sections


def _of_bound(entry: Json) -> float | None:
    bound, average = entry.get("avg_jct_bound_s"), entry.get("avg_jct_s")
    return average / bound if bound and average is not None else None


def _best(key: str, values: Sequence[Any], cells: Sequence[str]) -> list[bool]:
    """Which cells to mark: the best, and those that read the same; none if all do."""
    known = [v for v in values if v is not None]
    if len(values) < 2 or not known or len(set(cells)) == 1:
        return [False] * len(values)
    if key in HIGHER_IS_BETTER:
        top = max(known)
    elif key in LOWER_IS_BETTER:
        top = min(known)
    else:
        return [False] * len(values)
    shown = cells[list(values).index(top)]
    return [cell == shown for cell in cells]


def headline(content: Content) -> str:
    """The result in a sentence or two."""
    known = [run for run in content.runs if run.entry.get("avg_jct_s") is not None]
    if not known:
        return "No job completed."
    best = min(known, key=lambda run: run.entry["avg_jct_s"])
    worst = max(known, key=lambda run: run.entry["avg_jct_s"])
    bound = best.entry.get("avg_jct_bound_s")
    low, floor, high = durations([best.entry["avg_jct_s"], bound, worst.entry["avg_jct_s"]])
    said = f"{best.spec}: jobs complete after {low} on average"
    if bound:
        said += f", {best.entry['avg_jct_s'] / bound:.2f} times the lower bound of {floor}"
    if worst is not best:
        said += f". {worst.spec} takes {high}, {worst.entry['avg_jct_s'] / best.entry['avg_jct_s']:.2f} times as long"
    return said + "."


@dataclass(frozen=True, slots=True)
class Group:
    """One user, queue or size, with a line for each policy."""

    name: str
    jobs: str
    lines: Sequence[Sequence[str]]


def groups(runs: Sequence[PolicyRun], table: str) -> tuple[list[Group], int]:
    """The first `GROUP_ROWS_MAX` groups of a table in the order of the first run, and how many are left out."""
    by_name = [{row.name: row for row in run.tables[table]} for run in runs]
    found = list(runs[0].tables[table])
    shown = []
    for first in found[:GROUP_ROWS_MAX]:
        rows = [of[first.name] for of in by_name]
        times = [durations([getattr(row, key) for row in rows]) for key in ("avg_jct_s", "p50_jct_s", "p99_jct_s", "avg_wait_s")]
        lines = [
            (run.spec, f"{row.finished:,}", *(column[k] for column in times), f"{row.gpu_hours:,.0f}", percent(row.share_frac))
            for k, (run, row) in enumerate(zip(runs, rows, strict=True))
        ]
        shown.append(Group(first.name, f"{first.jobs:,}", lines))
    return shown, max(len(found) - GROUP_ROWS_MAX, 0)


def seed_rows(content: Content) -> list[dict[str, Any]]:
    """A line for each policy and figure: medians, improvement with its interval, and the verdict."""
    seeds = content.seeds
    if seeds is None:
        return []
    formats = {key: (name, form) for _, lines in FIGURES for key, name, form in lines}
    rows = []
    for key in SEED_FIGURES:
        if all(medians.get(key) is None for medians in seeds.medians.values()):
            continue
        name, form = formats[key]
        medians = form([seeds.medians[run.spec].get(key) for run in content.runs])
        lines = []
        for run, middle in zip(content.runs, medians, strict=True):
            gain = seeds.gains.get(run.spec, {}).get(key)
            change = interval = verdict = ""
            if gain is not None:
                change, verdict = _signed(gain.median_frac), gain.verdict
                known = gain.low_frac is not None
                interval = f"{_signed(gain.low_frac)} … {_signed(gain.high_frac)}" if known else "too few seeds"
            lines.append((run.spec, middle, change, interval, verdict))
        rows.append({"name": name, "lines": lines})
    return rows


def _signed(share: float | None) -> str:
    text = percent(share)
    return f"+{text}" if share is not None and share > 0 and text != percent(0.0) else text


def page_css() -> str:
    """The page's variables in both lights, and the figures' rules."""
    light, dark = ("".join(f"--{name}:{value};" for name, value in colours.items()) for colours in (LIGHT, DARK))
    return (
        f":root{{color-scheme:light dark;{light}--back:#f5f7f9;--mark:#e6f4ec;--line:#d5dbe2}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}--back:#0e1217;--mark:#173527;--line:#313a45}}}}\n{figure_css()}"
    )


def render(content: Content) -> str:
    """The page."""
    drawn = figures(content)
    charts = [_in_page(figure) for figure in drawn if not figure.scrolls]
    gantts = [_in_page(figure) for figure in drawn if figure.scrolls]
    several = len(content.runs) > 1
    return template("page.html.j2").render(
        content=content,
        css=Markup(page_css()),
        headline=headline(content),
        sections=figure_rows(content.runs),
        has_bound=any(run.entry.get("avg_jct_bound_s") is not None for run in content.runs),
        charts=charts,
        gantts=gantts,
        tables=[
            (title, key, *groups(content.runs, key))
            for title, key in (("By size", "size"), ("By user", "user"), ("By queue", "queue"))
        ],
        seed_rows=seed_rows(content),
        several=several,
        looks=[(run.spec, *look(k)) for k, run in enumerate(content.runs)],
        counted=lambda count, word: f"{count:,} {word}{'' if count == 1 else 's'}",
        duration=duration,
        number=number,
    )


def _in_page(figure: Figure) -> dict[str, Any]:
    widths = (WIDE,) if figure.scrolls else (WIDE, NARROW)
    drawings = [Markup(figure.draw(width, False)) for width in widths]
    return {"name": figure.name, "title": figure.title, "caption": figure.caption, "drawings": drawings}
