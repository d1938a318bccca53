"""The page of a replay: what happened beside what other policies would have done. One HTML file without a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from headway.report.page import page_css
from headway.report.scale import duration, number, percent
from headway.report.templates import template

Json = dict[str, Any]


def _time(value: float | None) -> str:
    return "–" if value is None else duration(value)


COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("done", "finished", number),
    ("avg JCT", "avg_jct_s", _time),
    ("p90 JCT", "p90_jct_s", _time),
    ("makespan", "makespan_s", _time),
    ("avg wait", "avg_wait_s", _time),
    ("in time", "deadline_ratio", percent),
    ("accuracy", "avg_final_accuracy", percent),
    ("preempted", "preemptions", number),
)
"""Heading, key of an entry, format."""


def figures(entry: Json) -> list[str]:
    """The figures of one run, in the order of COLUMNS."""
    return [form(entry[key]) for _, key, form in COLUMNS]


def check_line(told: Json) -> str:
    """How far the replay can be believed, in a sentence."""
    found = told["fidelity"]
    if found is None or found["avg_jct_error_frac"] is None:
        return "There is no check of the replay: " + (
            "it is on another cluster." if told["cluster"] != "as it was" else "no job completed, or its policy is not known."
        )
    jobs = f"{found['jobs']} job{'s' if found['jobs'] > 1 else ''}"
    return (
        f"Replayed under its own policy ({found['policy']}) the mean JCT is off by {found['avg_jct_error_frac']:+.1%} ({jobs}; "
        f"of one job: median {found['median_abs_error_frac']:.1%}, p90 {found['p90_abs_error_frac']:.1%})."
    )


def page(told: Json) -> str:
    """The page of what `headway replay --json` prints."""
    specs = [entry["policy"] for entry in told["policies"]]
    jobs = [
        {
            "job": row["job"],
            "state": row["happened"]["state"],
            "times": [_time(of["jct_s"]) for of in (row["happened"], *(row["replays"][spec] for spec in specs))],
            "waits": [_time(of["wait_s"]) for of in (row["happened"], *(row["replays"][spec] for spec in specs))],
            "assumed": row["assumed"],
        }
        for row in told["jobs"]
    ]
    return template("replay.html.j2").render(
        css=Markup(page_css()),
        told=told,
        heads=[head for head, _, _ in COLUMNS],
        rows=[("as it happened", figures(told["happened"]))] + [(entry["policy"], figures(entry)) for entry in told["policies"]],
        specs=specs,
        jobs=jobs,
        check=check_line(told),
    )
