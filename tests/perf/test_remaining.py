"""Remaining time: by progress, by history, and both."""

from __future__ import annotations

import numpy as np
import pytest

from headway.perf.params import R_BY_HISTORY, R_BY_PROGRESS, R_MEDIAN, R_Q05, R_Q25, R_Q75, R_Q95, R_STATUS, Status
from headway.perf.remaining import KEPT_MAX, History, estimate_remaining


def test_progress_alone() -> None:
    # A quarter done in 100 s: 300 s are left. At a measured 2 units/s, 75 units take 37.5 s.
    params = estimate_remaining([100.0, 100.0], [25, 25], [100, 100], rate=[np.nan, 2.0], points=25)
    assert params[:, R_MEDIAN] == pytest.approx([300.0, 37.5])
    # 25 points: a log standard deviation of 0.5/5.
    assert params[0, R_Q95] == pytest.approx(300 * np.exp(1.6449 * 0.1), rel=1e-3)
    assert params[0, R_Q05] == pytest.approx(300 * np.exp(-1.6449 * 0.1), rel=1e-3)


def test_history_of_the_like() -> None:
    history = History()
    for seconds in (100.0, 200.0, 400.0):
        history.add("ann", "bert", 4, seconds)
    history.add("bob", "bert", 4, 1e6)
    assert history.like("ann", "bert", 4) == [100.0, 200.0, 400.0]
    # ann's other jobs of that size: same user and size, whatever the name
    assert history.like("ann", "other", 4) == [100.0, 200.0, 400.0]
    # carl has none: all of that size
    assert history.like("carl", "x", 4) == [100.0, 200.0, 400.0, 1e6]
    # Nothing run yet: the median. After 150 s those of 200 and 400 s are left: 50 and 250, so 150.
    params = estimate_remaining([0.0, 150.0], [0, 0], np.nan, like=[history.like("ann", "bert", 4)] * 2)
    assert params[:, R_MEDIAN] == pytest.approx([200.0, 150.0])
    assert np.isnan(params[:, R_BY_PROGRESS]).all()


def test_a_job_that_outruns_all_of_its_like_takes_as_long_again() -> None:
    params = estimate_remaining([500.0], [0], np.nan, like=[[100.0, 200.0, 300.0]])
    assert params[0, R_MEDIAN] == pytest.approx(500.0)


def test_both_lie_between_and_the_surer_one_counts_more() -> None:
    like = [[100.0, 1000.0, 10000.0]]
    params = estimate_remaining([100.0], [50], [100], points=100, like=like)
    by_progress, by_history = params[0, R_BY_PROGRESS], params[0, R_BY_HISTORY]
    assert by_progress == pytest.approx(100.0)
    assert by_progress < params[0, R_MEDIAN] < by_history
    assert params[0, R_MEDIAN] < 110


def test_the_users_word_is_better_than_nothing_and_worse_than_progress() -> None:
    params = estimate_remaining([100.0, 100.0, 700.0], [0, 50, 0], [np.nan, 100, np.nan], points=100, announced_s=600.0)
    # Alone: 600 − 100. With half of the work done in 100 s: nearly 100. Outrun: as long again.
    assert params[:, R_MEDIAN] == pytest.approx([500.0, 101.0, 700.0], rel=0.01)
    assert params[0, R_STATUS] == Status.FEW_POINTS
    assert np.isnan(params[0, [R_BY_PROGRESS, R_BY_HISTORY]]).all()


def test_quantiles_are_in_order() -> None:
    params = estimate_remaining([100.0, 0.0], [10, 0], [100, 0], like=[[5.0, 500.0, 900.0], [5.0, 500.0, 900.0]])
    assert np.all(np.diff(params[:, [R_Q05, R_Q25, R_MEDIAN, R_Q75, R_Q95]], axis=1) > 0)


def test_done_is_done() -> None:
    params = estimate_remaining([100.0], [120], [100], like=[[5.0, 500.0, 900.0]])
    assert params[0, R_MEDIAN] == params[0, R_Q95] == 0


@pytest.mark.parametrize(
    ("run", "done", "total"),
    [(np.nan, 1, 2), (-5, 1, 2), (0, 0, 10), (10, 0, 10), (10, np.nan, np.inf), (10, 5, 0), (10, 5, np.nan), (10, -1, 5)],
)
def test_odd_progress_is_no_estimate(run: float, done: float, total: float) -> None:
    params = estimate_remaining([run], [done], [total])
    assert params[0, R_STATUS] == Status.NO_DATA
    assert np.isnan(params[0, R_MEDIAN])


def test_history_forgets_the_oldest_and_takes_no_nonsense() -> None:
    history = History()
    for seconds in (np.nan, -1.0, 0.0, np.inf):
        history.add("a", "b", 1, seconds)
    assert history.like("a", "b", 1) == []
    for i in range(KEPT_MAX + 5):
        history.add("a", "b", 1, i + 1.0)
    assert history.like("a", "b", 1)[0] == 6.0
    assert len(history.like("a", "b", 1)) == KEPT_MAX


def test_an_empty_batch() -> None:
    assert estimate_remaining([], [], []).shape == (0, 8)
