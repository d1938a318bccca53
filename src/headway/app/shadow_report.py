"""`headway report --shadow`: what the comparisons in a journal say of a policy and those beside it.

One row an hour and a pair of policies, and over all hours the median of the paired differences (the other's figure minus that of
the policy) with a bootstrap interval. Comparisons look further ahead than the time between two of them, so that neighbours share
much of their future: the interval is narrower than that of as many independent hours would be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.app.replay import read_home
from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.units import US_PER_S
from headway.metrics.compare import PAIRS_MIN, bootstrap_median
from headway.runtime.clock import Calendar
from headway.runtime.folded import note_anchors

Json = dict[str, Any]
HIGHER = ("reward", "completed", "deadlines_kept")
LOWER = ("avg_jct_s", "avg_wait_s", "preemptions", "refused")
FIGURES = (*HIGHER, *LOWER)
SKIPPED = {1: "still_ran", 2: "over_budget", 3: "failed"}
EMPTY = (
    "no comparison in this journal yet. Start one with: headway up --shadow POLICY (the first comes after an hour, while jobs "
    'live; [shadow] every = "10m" in headway.toml makes it sooner)'
)


@dataclass(frozen=True, slots=True)
class Hour:
    """One comparison, as it was journalled."""

    t_us: int
    told: Json

    def pairs(self) -> Iterator[tuple[Json, Json]]:
        """The policy, and each that was simulated beside it."""
        first, *others = self.told["policies"]
        for other in others:
            yield first, other


def shadow_report(home: str) -> Json:
    """The report on a home, a journal's file or a database, ready for JSON.

    Raises:
        UserError: the journal can't be read, or a comparison in it can't.
    """
    recorded, _ = read_home(home)
    batch = recorded.batch
    calendar = Calendar()
    note_anchors(calendar, batch)
    kinds = batch.records[:, c.E_KIND]
    hours: list[Hour] = []
    skipped = dict.fromkeys(SKIPPED.values(), 0)
    for index in np.flatnonzero(kinds == EventKind.SHADOWED).tolist():
        record = batch.records[index]
        if record[c.E_A]:
            skipped[SKIPPED.get(int(record[c.E_A]), "failed")] += 1
        else:
            hours.append(Hour(int(record[c.E_T]), _read(batch.texts.get(index, ""), int(record[c.E_T]), home)))
    return {
        "comparisons": len(hours),
        "skipped": skipped,
        "hours": [_row(hour, ours, other, calendar) for hour in hours for ours, other in hour.pairs()],
        "summary": _summary(hours),
        "guard": list(_switches(batch, calendar)),
        "covered_rounds": int(np.count_nonzero((kinds == EventKind.REFUSED) & (batch.records[:, c.E_B] == 1))),
        "message": "" if hours else EMPTY,
    }


def _read(text: str, t_us: int, home: str) -> Json:
    try:
        told = json.loads(text)
        policies = told["policies"]
        known = bool(policies) and all(isinstance(fate[figure], int | float) for fate in policies for figure in FIGURES)
        if known and isinstance(told["in_force"], str):
            return dict(told)
    except (ValueError, KeyError, TypeError):
        pass
    raise UserError(f"the comparison at {t_us / US_PER_S:g} s can't be read", file=home, key="journal")


def _row(hour: Hour, ours: Json, other: Json, calendar: Calendar) -> Json:
    told, wall = hour.told, calendar.wall(hour.t_us)
    return {
        "at_s": hour.t_us / US_PER_S,
        "at": None if wall is None else wall.isoformat(),
        "jobs": told["jobs"],
        "draws": told["draws"],
        "horizon_s": told["horizon_s"],
        "in_force": told["in_force"],
        "policy": ours,
        "other": other,
        "difference": {figure: other[figure] - ours[figure] for figure in FIGURES},
    }


def _summary(hours: Sequence[Hour]) -> list[Json]:
    """Each pair of policies over all its hours, in the order in which they came."""
    found: dict[tuple[str, str], list[tuple[Json, Json]]] = {}
    for hour in hours:
        for ours, other in hour.pairs():
            found.setdefault((ours["policy"], other["policy"]), []).append((ours, other))
    return [
        {
            "policy": policy,
            "other": other,
            "role": pairs[-1][1]["role"],
            "hours": len(pairs),
            "differences": {
                figure: difference(figure, [two[figure] for _, two in pairs], [one[figure] for one, _ in pairs])
                for figure in FIGURES
            },
        }
        for (policy, other), pairs in found.items()
    ]


def difference(figure: str, others: Sequence[float], ours: Sequence[float]) -> Json:
    """The median of the paired differences, its interval (null with fewer than PAIRS_MIN), and whether the other policy is
    `better`, `worse` or that is `unclear`."""
    values = np.array(others, np.float64) - np.array(ours, np.float64)
    low, high = bootstrap_median(values) if len(values) >= PAIRS_MIN else (None, None)
    verdict = "unclear"
    if low is not None and high is not None and (low > 0 or high < 0):
        verdict = "better" if (low > 0) == (figure in HIGHER) else "worse"
    return {"median": float(np.median(values)), "low": low, "high": high, "verdict": verdict}


def _switches(batch: EventBatch, calendar: Calendar) -> Iterator[Json]:
    """When a guarded policy has lost its place to its teacher, and got it back."""
    teacher: dict[int, bool] = {}
    for index in np.flatnonzero(batch.records[:, c.E_KIND] == EventKind.GUARDED).tolist():
        record = batch.records[index]
        mark, now = int(record[c.E_ID]), bool(record[c.E_A])
        if teacher.get(mark, False) != now:
            t_us = int(record[c.E_T])
            wall = calendar.wall(t_us)
            told = "teacher" if now else "policy"
            at = None if wall is None else wall.isoformat()
            yield {"at_s": t_us / US_PER_S, "at": at, "decides": told, "why": batch.texts.get(index, "")}
        teacher[mark] = now
