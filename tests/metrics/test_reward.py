"""The reward of Eq. 7, by numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headway.metrics.reward import BETAS, REWARD_MAX, returns, reward, terms

NAN = float("nan")


def test_rates_by_hand() -> None:
    # Mean JCT 3 h: 1 / (1 + 3). Two of three with a deadline keep it. 3 TB in two hours: 1 / (1 + 1.5).
    found = terms([3600.0, 18000.0, 10800.0], [1, 0, 1], [1, NAN, 0], [0.9, 0.7, NAN], 3e12, window_s=7200.0)
    assert found == pytest.approx([0.25, 2 / 3, 0.4, 0.5, 0.8], abs=1e-12)
    # 0.5·0.25 + 0.55·2/3 + 0.25·0.4 + 0.15·0.5 + 0.15·0.8
    assert float(reward(found)) == pytest.approx(0.125 + 0.366666666667 + 0.1 + 0.075 + 0.12)


def test_raw_terms_by_hand() -> None:
    found = terms([100.0, 300.0], [1, 1], [1, 0], [0.9, 0.7], 4e9, normalize=False)
    assert found == pytest.approx([1 / 200, 2, 2.5e-10, 1, 0.8], rel=1e-12)


def test_the_raw_terms_scale_is_why_they_are_not_the_default() -> None:
    raw = terms([3600.0] * 100, [1] * 100, [1] * 100, [0.9] * 100, 1e12, normalize=False)
    assert raw[1] / raw[2] > 1e13


def test_windows_side_by_side_are_each_alone() -> None:
    jct = [[3600.0, NAN], [7200.0, 3600.0]]
    late = [[1, NAN], [0, 1]]
    both = terms(jct, late, late, late, [1e12, 0.0])
    assert both.shape == (2, 5)
    assert both[0] == pytest.approx([0.5, 1, 0.5, 1, 1])
    assert both[1] == pytest.approx([1 / 2.5, 0.5, 1, 0.5, 0.5])
    assert reward(both).shape == (2,)


def test_a_goal_that_nobody_speaks_for() -> None:
    assert terms([], [], [], [], NAN).tolist() == [1, 1, 1, 1, 1]
    assert terms([], [], [], [], NAN, empty=0.0).tolist() == [0, 0, 0, 0, 0]
    assert terms([3600.0], [NAN], [NAN], [NAN], 0.0, empty=0.0).tolist() == [0.5, 0, 1, 0, 0]
    # Of the raw ones the counts are 0 of nobody.
    assert terms([], [], [], [], NAN, normalize=False).tolist() == [1, 0, 1, 0, 1]


@pytest.mark.parametrize("normalize", [True, False])
def test_what_is_beyond_its_range_is_clipped(normalize: bool) -> None:
    wild = terms([1e30, float("inf")], [1e30, -1e30], [1e30, 5.0], [1e30, -1e30], 1e30, normalize=normalize)
    assert np.isfinite(wild).all()
    assert wild[0] < 1e-8 and wild[2] < 1e-8
    assert wild[1] == (0.5 if normalize else 1) and wild[3] == (1 if normalize else 2) and wild[4] == 0.5
    low = terms([-1e30], [0], [0], [-1e30], -1e30, normalize=normalize)
    assert low.tolist() == [1, 0, 1, 0, 0]


@given(
    arrays(np.float64, (3, 4), elements=st.floats(allow_nan=True, allow_infinity=True)),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_rates_are_always_rates(values: np.ndarray, moved: float) -> None:
    found = terms(values, values, values, values, moved)
    assert found.shape == (3, 5) and (found >= 0).all() and (found <= 1).all()
    assert (reward(found) <= sum(BETAS) + 1e-12).all()


def test_nan_is_refused_where_it_would_poison() -> None:
    with pytest.raises(ValueError, match=r"the goal at \(1, 2\) is not a number"):
        reward([[0, 0, 0, 0, 0], [0, 0, NAN, 0, 0]])
    with pytest.raises(ValueError, match=r"the reward at \(1,\) is not a number"):
        returns([0.0, NAN])
    for betas in ((1.0, 2.0), (1.0, 1.0, 1.0, 1.0, NAN)):
        with pytest.raises(ValueError, match="expected 5 finite numbers"):
            reward([0, 0, 0, 0, 0], betas)
    with pytest.raises(ValueError, match="in the last axis"):
        reward([0.0, 1.0])
    with pytest.raises(ValueError, match="expected a finite length"):
        terms([], [], [], [], 0.0, window_s=0.0)


def test_returns_by_hand() -> None:
    # R_0 = 1 + .5·2 + .25·4 with m = 2; what is beyond the end counts 0.
    assert returns([1.0, 2.0, 4.0, 8.0], eta=0.5, m=2).tolist() == [3.0, 6.0, 8.0, 8.0]
    assert returns([1.0, 2.0, 4.0, 8.0], eta=0.5, m=0).tolist() == [1.0, 2.0, 4.0, 8.0]
    assert returns([[1.0, 1.0], [0.0, 2.0]], eta=1.0, m=60).tolist() == [[2.0, 1.0], [2.0, 2.0]]


def test_returns_of_one_window_and_of_none() -> None:
    assert returns([0.7]).tolist() == [0.7]
    assert returns([]).tolist() == []
    assert returns(np.ones(100))[0] == pytest.approx((1 - 0.95**61) / 0.05)


def test_rewards_are_clipped() -> None:
    assert returns([1e30, 0.0], eta=0.5, m=1).tolist() == [REWARD_MAX, 0.0]
    assert returns([0.0, float("-inf")], eta=0.5, m=1).tolist() == [-REWARD_MAX / 2, -REWARD_MAX]
    for eta, m in ((1.5, 2), (NAN, 2), (0.5, -1)):
        with pytest.raises(ValueError, match="expected a share"):
            returns([1.0], eta=eta, m=m)
