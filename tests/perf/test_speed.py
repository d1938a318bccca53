"""Speed models give back what made the measurements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.perf.params import Status, status_of
from headway.perf.speed import Form, fit_optimus, fit_pollux, step_s

W, P, M = (g.ravel().astype(float) for g in np.meshgrid([1, 2, 4, 8, 16], [1, 2, 4, 8], [16, 32]))


def test_optimus_finds_the_coefficients_of_servers() -> None:
    step = 0.01 * M + 0.05 + 0.02 * W / P + 0.003 * W + 0.001 * P
    params = fit_optimus(step, W, P, 1, M)
    assert params[0] == Form.OPTIMUS
    assert params[1:7] == pytest.approx([0.01, 0.05, 0.02, 0.003, 0.001, 0.0], abs=1e-6)
    assert float(step_s(params, 3, 2, 1, 20)) == pytest.approx(0.2 + 0.05 + 0.03 + 0.009 + 0.002)


def test_optimus_of_a_ring_by_hand() -> None:
    w = np.array([1.0, 2, 4, 8, 2, 4, 8])
    nodes = np.array([1.0, 1, 1, 1, 2, 2, 2])
    params = fit_optimus(0.1 + 0.04 * (w - 1) / w + 0.5 * (nodes > 1), w, 0, nodes)
    assert float(step_s(params, 16, 0, 4)) == pytest.approx(0.1 + 0.04 * 15 / 16 + 0.5)


def test_pollux_finds_a_surface() -> None:
    shapes = [(w, n, m) for w in (1, 2, 4, 8, 16) for n in (1, 2, 4) if n <= w for m in (8, 64)]
    w, n, m = np.array(shapes, float).T
    compute = 0.02 + 0.001 * m
    sync = np.where(w > 1, np.where(n > 1, 0.06 + 0.004 * (w - 2), 0.01 + 0.001 * (w - 2)), 0)
    step = (compute**2 + sync**2) ** 0.5
    params = fit_pollux(step, w, n, m)
    assert step_s(params, w, 0, n, m) == pytest.approx(step, rel=0.02)
    # between what was measured, too: 6 workers on 2 nodes, batch 32
    assert float(step_s(params, 6, 0, 2, 32)) == pytest.approx((0.052**2 + 0.076**2) ** 0.5, rel=0.05)


def test_pollux_assumes_no_cost_that_was_never_measured() -> None:
    params = fit_pollux([0.1, 0.2], [1, 1], 1, [8, 16])
    assert params[3:7] == pytest.approx([0, 0, 0, 0])
    assert float(step_s(params, 8, 0, 2, 16)) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("fit", [fit_optimus, fit_pollux])
def test_odd_measurements(fit: object) -> None:
    assert callable(fit)
    for step, workers in (([], []), ([np.nan, np.inf, -1, 0], [1, 2, 3, 4]), ([1.0], [np.nan]), ([1.0], [0])):
        params = fit(step, workers)
        assert status_of(params) == Status.NO_DATA
        assert np.isnan(step_s(params, [1, 2])).all()
    assert float(step_s(fit([2.0, np.nan, 2.0], [4, 1, 4]), 4)) == pytest.approx(2.0, rel=0.02)


@given(
    st.lists(
        st.tuples(st.floats(1e-9, 1e12), st.integers(1, 10**6), st.integers(1, 1000), st.floats(0, 1e9)), min_size=1, max_size=12
    )
)
def test_any_measurements_give_numbers(rows: list[tuple[float, int, int, float]]) -> None:
    step, w, n, m = (np.array(c, float) for c in zip(*rows, strict=True))
    for params in (fit_pollux(step, w, n, m), fit_optimus(step, w, 0, n, m)):
        assert np.isfinite(params).all()
        assert (params[1:] >= 0).all()
