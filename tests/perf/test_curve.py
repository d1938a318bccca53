"""Curve fits: known curves come back, odd ones have defined results, and a batch is the sum of its jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.arrays import Floats
from headway.perf import forecast
from headway.perf.curve import fit_curves
from headway.perf.kernels.points import after_warm_up, clean, noise_of, thin
from headway.perf.kernels.shapes import phi, phi_inverse
from headway.perf.observed import POINTS_MAX, prepare, rolling_median
from headway.perf.optimus import fit_inverse, inverse_curves
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_PLATEAU_SPREAD, C_SLOPE, WIDTH, Status, status_of


def inverse(k: Floats, start: float = 2.3, plateau: float = 0.3, k99: float = 1000.0) -> Floats:
    """`1/(b0·k + b1) + b2`, the first term at 1 % of its start at k99."""
    return start / (1 + 99 * k / k99) + plateau


def accuracy(k: Floats, total: float, top: float = 0.9, low: float = 0.1) -> Floats:
    """The curve of mlfs-paper: top − (top − low)·(1 + c·k)^−1.2 with c·total = 30."""
    return top - (top - low) * (1 + 30 * k / total) ** -1.2


def test_a_shape_and_its_inverse() -> None:
    # p = 1, r = ½: (1/(1 + ½(t − 1)) − 1)/½ at t = 3 is (½ − 1)/½ = −1
    assert phi(3.0, 0.5, 1.0) == pytest.approx(-1.0)
    assert phi_inverse(-1.0, 0.5, 1.0) == pytest.approx(3.0)
    # its limit is −2: never
    assert phi_inverse(-2.0, 0.5, 1.0) == np.inf
    # p = −1 is a straight line of slope −1
    assert phi(11.0, 0.5, -1.0) == pytest.approx(-10.0)


@pytest.mark.parametrize(("share", "worst"), [(0.3, 0.2), (0.5, 0.1), (0.8, 0.05)])
def test_when_a_curve_of_optimus_kind_is_at_one_percent(share: float, worst: float) -> None:
    """1 % noise, seen up to a share of k99; the question is k99."""
    rng = np.random.default_rng(1)
    k = np.arange(1.0, 1000 * share, 10)
    series = [(k, inverse(k) * (1 + 0.01 * rng.normal(size=len(k)))) for _ in range(40)]
    target = float(inverse(np.array(1000.0)))
    params = inverse_curves(series, np.zeros(40, np.bool_)).params
    assert np.median(np.abs(forecast.k_at(params, target) / 1000 - 1)) < worst
    low, high = forecast.k_at(params, target, 0.05), forecast.k_at(params, target, 0.95)
    assert np.mean((low <= 1000) & (high >= 1000)) > 0.75
    assert np.median(np.abs(forecast.plateau(params) - 0.3)) < 0.01


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_a_declared_target_is_not_expected_for_ever(share: float) -> None:
    """Real runs end sooner than formulas say, so the mixture leans early; its interval holds what a formula gives."""
    rng = np.random.default_rng(1)
    k = np.arange(1.0, 300 * share, 2)
    series = [(k, inverse(k) * (1 + 0.01 * rng.normal(size=len(k)))) for _ in range(20)]
    target = float(inverse(np.array(300.0)))
    params = fit_curves(series, target=target).params
    assert np.median(np.abs(forecast.k_at(params, target) / 300 - 1)) < 0.5
    assert np.mean(forecast.k_at(params, target, 0.95, given=True) >= 290) > 0.9


def test_the_accuracy_at_a_declared_end() -> None:
    """What OptStop asks for: half of 200 iterations seen with noise ±0.01, what will it be at the end?"""
    rng = np.random.default_rng(2)
    k = np.arange(1.0, 101)
    series = [(k, accuracy(k, 200) + rng.uniform(-0.01, 0.01, len(k))) for _ in range(50)]
    fits = fit_curves(series, True, k_end=200.0, k_end_log_sd=0.05)
    truth = float(accuracy(np.array(200.0), 200))
    assert np.abs(np.median(forecast.value_at(fits.params, 200)) - truth) < 0.01
    inside = (forecast.plateau(fits.params, 0.05) <= truth) & (truth <= forecast.plateau(fits.params, 0.95))
    assert inside.mean() >= 0.85
    assert (fits.params[:, C_SLOPE] > 0).all()


def test_an_exponential_is_not_taken_for_a_slow_curve() -> None:
    k = np.arange(1.0, 60)
    fits = fit_curves([(k, 1 + 2 * np.exp(-k / 12))])
    assert abs(float(forecast.plateau(fits.params)[0]) - 1) < 0.1
    slow = inverse_curves([(k, 1 + 2 * np.exp(-k / 12))], np.array([False]))
    assert abs(float(forecast.plateau(slow.params)[0]) - 1) > 0.1


def test_rising_and_falling_are_mirror_images() -> None:
    k = np.arange(1.0, 80)
    y = inverse(k) + 5
    down, up = fit_curves([(k, y)]).params[0], fit_curves([(k, 20 - y)], True).params[0]
    # Losses are known not to fall below 0; nothing bounds 20 − y.
    assert up[C_LEVEL] == pytest.approx(20 - down[C_LEVEL])
    assert up[C_PLATEAU] == pytest.approx(20 - down[C_PLATEAU])
    assert up[C_SLOPE] == pytest.approx(-down[C_SLOPE])


def test_a_batch_is_the_sum_of_its_jobs() -> None:
    """Bit for bit: what a job's estimate is can't depend on who asked with it."""
    rng = np.random.default_rng(3)
    series = [(np.arange(1.0, n), inverse(np.arange(1.0, n), k99=100 * n) + 0.02 * rng.normal(size=n - 1)) for n in range(3, 303)]
    target = rng.uniform(0.3, 1.0, 300)
    batch = fit_curves(series, target=target)
    for i in (0, 7, 131, 299):
        alone = fit_curves(series[i : i + 1], target=target[i])
        assert alone.params[0].tobytes() == batch.params[i].tobytes()
        assert alone.status[0] == batch.status[i]


NAN = float("nan")
INF = float("inf")


@pytest.mark.parametrize(
    ("k", "y", "status"),
    [
        ([], [], Status.NO_DATA),
        ([1, 2, 3], [NAN, NAN, NAN], Status.NO_DATA),
        ([NAN, INF, -1, 0], [1, 2, 3, 4], Status.NO_DATA),
        ([1, 2], [INF, -INF], Status.NO_DATA),
        ([5], [1.0], Status.ONE_POINT),
        ([5, 5, 5], [1.0, 2.0, 3.0], Status.ONE_POINT),
        ([1, 2], [2.0, 1.0], Status.FEW_POINTS),
        ([1, 2, 3, NAN], [2.0, 1.5, 1.2, 1.0], Status.FEW_POINTS),
        ([1, 2, 3, 4, 5, 6], [0.7] * 6, Status.FLAT),
        ([1, 2, 3, 4, 5, 6], [0.0] * 6, Status.FLAT),
        ([1, 2], [1.0, 1.0], Status.FLAT),
        (list(range(1, 41)), [1 + 0.1 * i for i in range(40)], Status.DIVERGING),
        ([1, 2, 3, 4, 5, 6], [3.0, 1.0, 0.5, 4.0, 9.0, 20.0], Status.DIVERGING),
        ([1e-90, 1e90, 1e95], [1e90, -1e90, 1e-300], Status.FEW_POINTS),
    ],
)
def test_odd_curves_have_defined_results(k: list[float], y: list[float], status: Status) -> None:
    fits = fit_curves([(k, y)], target=0.1, k_end=10.0)
    assert fits.status[0] == status
    params = fits.params[0]
    if status >= Status.NO_DATA:
        assert np.isnan(params[C_K_LAST])
        assert status_of(params) == status
        for answer in (forecast.plateau(params), forecast.value_at(params, 9), forecast.k_at(params, 0.1)):
            assert np.isnan(answer)
        assert np.isnan(forecast.reach_probability(params, 0.1))
    else:
        assert np.isfinite(params).all()
        assert params[C_PLATEAU_SPREAD] >= 0
        assert not np.isnan(forecast.k_at(params, 0.1))
        assert 0 <= float(forecast.reach_probability(params, 0.1)) <= 1


def test_flat_and_diverging_plateaus() -> None:
    k = np.arange(1.0, 41)
    flat, worse = fit_curves([(k, np.full(40, 0.7)), (k, 1 + 0.1 * k)]).params
    assert forecast.plateau(flat) == pytest.approx(0.7)
    assert forecast.value_at(flat, 1000) == pytest.approx(0.7)
    assert forecast.k_at(flat, 0.5) == np.inf
    assert forecast.plateau(worse) == pytest.approx(1.3, abs=0.11)  # the running median's lowest


def test_order_and_repeats_do_not_matter() -> None:
    rng = np.random.default_rng(4)
    k = np.arange(1.0, 60)
    y = inverse(k)
    order = rng.permutation(59)
    mixed_k, mixed_y = np.concatenate([k[order], k[:5], [NAN, 7.0]]), np.concatenate([y[order], y[:5], [1.0, NAN]])
    assert fit_curves([(mixed_k, mixed_y)]).params == pytest.approx(fit_curves([(k, y)]).params)


def test_a_million_points() -> None:
    k = np.arange(1.0, 1_000_001)
    noise = np.random.default_rng(5).normal(size=len(k)) * 0.05
    fits = fit_curves([(k, inverse(k, k99=2e6) + noise)])
    assert fits.status[0] == Status.OK
    few = fit_curves([(k[::1000], inverse(k[::1000], k99=2e6))])
    assert forecast.plateau(fits.params) == pytest.approx(forecast.plateau(few.params), abs=0.05)


def test_lists_of_unequal_length_are_cut() -> None:
    assert fit_curves([([1, 2, 3, 4, 5, 6, 7], [3.0, 2.5, 2.2, 2.1, 2.05])]).params[0, C_K_LAST] == 5


def test_an_empty_batch() -> None:
    assert fit_curves([]).params.shape == (0, WIDTH)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.floats(), st.floats()), max_size=16),
    st.booleans(),
    st.floats(),
    st.floats(),
    st.floats(),
)
def test_anything_gives_an_answer_without_a_warning(
    points: list[tuple[float, float]], rising: bool, target: float, end: float, sd: float
) -> None:
    fits = fit_curves([([k for k, _ in points], [y for _, y in points])], rising, target=target, k_end=end, k_end_log_sd=sd)
    other = inverse_curves([([k for k, _ in points], [y for _, y in points])], np.array([rising]))
    for found in (fits, other):
        params = found.params[0]
        assert np.isfinite(params).all() or found.status[0] >= Status.NO_DATA
        for quantile in (0.05, 0.5, 0.95):
            forecast.value_at(params, 3.0, quantile)
            forecast.k_at(params, target, quantile)
            forecast.plateau(params, quantile)
        forecast.reach_probability(params, target)
        forecast.inverse_of(params)


def test_preparing_by_hand() -> None:
    assert rolling_median(np.array([5.0, 1, 9, 2, 3]), 3) == pytest.approx([1, 5, 2, 3, 2])
    k, y = np.array([3.0, 1, 2, 2, np.nan]), np.array([1.0, 9, 4, 6, 5])
    end = clean(k, y, 0, 5, np.empty(5), np.empty(5))
    assert (list(k[:end]), list(y[:end])) == ([1, 2, 3], [9, 5, 1])
    # A straight line has no noise; alternating ±1 has second differences of 4: 4/0.6745/√6.
    assert noise_of(np.arange(9.0), 0, 9, np.empty(9)) == 0
    assert noise_of(np.array([1.0, -1] * 5), 0, 10, np.empty(10)) == pytest.approx(4 / 0.6745 / 6**0.5)
    # Two points of warm-up above the first one: kept is the last before five in a row lie below it.
    assert after_warm_up(np.array([5.0, 6, 7, 6, 4, 3, 3, 2, 2, 2, 1, 1, 1, 1]), 0, 14) == 3
    t, z = np.zeros((1, POINTS_MAX)), np.zeros((1, POINTS_MAX))
    count = thin(np.arange(1.0, 1001), np.ones(1000), 0, 1000, t, z, 0)
    assert count <= POINTS_MAX
    steps = np.diff(t[0, :count])
    assert np.all(steps > 0)
    assert steps[-1] < 100
    assert list(z[0, :count]) == [1.0] * count
    seen = prepare([([1, 2, 3, 4], [4.0, 3.0, 2.5, 2.0])], np.array([False]))
    assert list(seen.t[0, :4]) == [0.25, 0.5, 0.75, 1]
    assert seen.z[0, :4] == pytest.approx([1, 0.5, 0.25, 0])


def test_forecasts_of_a_vector_by_hand() -> None:
    """level 2 at k = 100, slope −0.01, rate 0.01, power 1: 2 − (1 − 1/(1 + 0.01·x)), which tends to 1; plateau 1.25 ± 0.1."""
    params = np.array([100, 2.0, -0.01, 0.01, 1.0, 1.25, 0.1, np.log(2)])
    assert forecast.value_at(params, 200) == pytest.approx(1.5)
    assert forecast.value_at(params, 1e9) == pytest.approx(1.25)
    assert forecast.plateau(params, 0.95) == pytest.approx(1.35)
    # half of the 0.75 of its way is not yet done at 1.5: two thirds, so two thirds of the spread
    assert forecast.value_at(params, 200, 0.95) == pytest.approx(1.5 + 0.1 * 2 / 3)
    assert forecast.k_at(params, 1.5) == pytest.approx(200)
    assert forecast.k_at(params, 1.5, 0.95) == pytest.approx(300)
    assert forecast.k_at(params, 2.5) == 100
    assert forecast.k_at(params, 1.1) == np.inf
    assert forecast.k_at(params, 1.1, given=True) == pytest.approx(100 + 900)
    assert forecast.k_at(params, 0.9, given=True) == np.inf
    assert forecast.reach_probability(params, 1.25) == pytest.approx(0.5)
    assert forecast.reach_probability(params, 1.35) == pytest.approx(0.95, abs=1e-3)
    both = forecast.k_at(np.stack([params, params]), [1.5, np.nan])
    assert both[0] == pytest.approx(200)
    assert np.isnan(both[1])


def test_the_curve_of_optimus_with_the_same_level_slope_and_plateau() -> None:
    # 1/(b0·k + b1) + b2 with b0 = 0.01, b1 = 1, b2 = 0.5: at k = 100 it is 1.0, with slope −0.01/4.
    params = np.array([100, 1.0, -0.0025, 0.01, 1.0, 0.5, 0.1, 1.0])
    assert forecast.inverse_of(params) == pytest.approx([0.01, 1.0, 0.5])


def test_optimus_own_fit_finds_its_curve() -> None:
    k = np.arange(1.0, 200)
    fits = fit_inverse([(k, inverse(k)), (k, 1 - inverse(k, 0.8, 0.1)), ([1, 2], [1.0, 0.5])], np.array([False, True, False]))
    # start 2.3, 99/1000 per k: b1 = 1/2.3, b0 = 0.099/2.3, b2 = 0.3
    assert fits.b[0] == pytest.approx([0.099 / 2.3, 1 / 2.3, 0.3], rel=0.02)
    reached, sd = fits.k_at(np.array([inverse(np.array(500.0)), 1 - inverse(np.array(500.0), 0.8, 0.1), 0.1]))
    assert reached[:2] == pytest.approx([500, 500], rel=0.05)
    assert np.all(sd[:2] < 100)
    assert np.isnan(fits.b[2]).all()
