"""Quantiles of times of which some have not come yet, by hand; intervals that cover as often as they say."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from headway.app.calibration import OFFSET_S, SCORES_MIN, Calibration, Range, quantile

SAID = Range(100.0, 200.0, 300.0)


def test_the_quantile_of_what_has_happened_is_the_plain_one() -> None:
    values = np.arange(1.0, 11.0)
    everything = np.ones(10, np.bool_)
    assert quantile(values, everything, 0.1) == 1.0
    assert quantile(values, everything, 0.5) == 5.0
    assert quantile(values, everything, 0.9) == 9.0


def test_what_has_not_happened_yet_counts_as_later() -> None:
    # Kaplan–Meier by hand: of five, 1 happens (4/5 left), 2 is not known beyond 2, 3 happens (of three left: 4/5 · 2/3 = 8/15).
    values, happened = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([True, False, True, True, True])
    assert quantile(values, happened, 0.2) == 1.0
    assert quantile(values, happened, 7 / 15) == 3.0
    assert quantile(values, happened, 7 / 15 + 0.01) == 4.0
    assert quantile(values, np.array([True, False, False, False, False]), 0.9) == 1.0, "the greatest that has happened"


def test_nothing_is_moved_before_enough_is_known() -> None:
    of = Calibration()
    for job in range(SCORES_MIN - 1):
        of.expect(job, 0.0, SAID)
        of.happened(job, 10_000.0)
    assert of.widened(SAID, 20_000.0) == SAID
    assert of.widened(Range(None, None, None), 1.0) == Range(None, None, None)


def test_ends_move_by_the_factors_that_were_seen() -> None:
    of = Calibration()
    for job in range(100):
        of.expect(job, 0.0, SAID)
        of.happened(job, 2 * (300.0 + OFFSET_S) - OFFSET_S)
    moved = of.widened(Range(10.0, 20.0, 600.0), 1000.0)
    factor = 2 * (300 + OFFSET_S) / (100 + OFFSET_S)
    assert moved.p10 == pytest.approx((10 + OFFSET_S) * factor - OFFSET_S)
    assert moved.p90 == pytest.approx(2 * (600 + OFFSET_S) - OFFSET_S)
    assert moved.p50 == pytest.approx(moved.p10 if moved.p10 is not None else math.nan), "the median lies within"


def test_what_is_cancelled_is_not_learned_from() -> None:
    of = Calibration()
    of.expect(1, 0.0, SAID)
    of.happened(1, None)
    assert (of.count, of.waiting, of.open) == (0, 0, {})


@pytest.mark.parametrize("bias", [0.3, 1.0, 3.0])
def test_in_the_long_run_four_of_five_lie_within(bias: float) -> None:
    """Forecasts whose truth is log-normal around them, all wrong by the same factor, known only when they have happened."""
    r = random.Random(7)
    of, now, within, counted, moves = Calibration(), 0.0, 0, 0, (0.0, 0.0)
    comes: dict[int, float] = {}
    for job in range(3000):
        now += 20.0
        for known in [known for known, at in comes.items() if at <= now]:
            of.happened(known, comes.pop(known))
        middle = math.exp(r.uniform(3, 8))
        said = Range(middle * 0.8, middle, middle * 1.25)
        real = middle * bias * math.exp(r.gauss(0, 0.8))
        if job % 50 == 0:
            moves = of.moves(now)
        moved = of.widened(said, now, moves)
        if of.count >= 200:
            counted += 1
            within += moved.p10 is not None and moved.p90 is not None and moved.p10 <= real <= moved.p90
        of.expect(job, now, said)
        comes[job] = now + real
    assert counted > 2000 and 0.74 < within / counted < 0.86
