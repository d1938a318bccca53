"""Small NNLS against hand-made problems, and against the optimality conditions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.perf.nnls import nnls


def test_plain_least_squares_where_that_is_positive() -> None:
    # y = 2 + 3 k at k = 0, 1, 2
    a = np.array([[[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]])
    assert np.allclose(nnls(a, np.array([[2.0, 5.0, 8.0]])), [[2.0, 3.0]])


def test_a_negative_coefficient_is_left_out() -> None:
    # y = 3 − k fits best with a constant alone: its mean.
    a = np.array([[[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]])
    assert np.allclose(nnls(a, np.array([[3.0, 2.0, 1.0]])), [[2.0, 0.0]])


def test_nothing_fits() -> None:
    assert np.array_equal(nnls(np.ones((2, 3, 1)), np.array([[-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])), np.zeros((2, 1)))


@given(st.integers(0, 10_000), st.integers(1, 4))
def test_the_conditions_of_karush_kuhn_and_tucker(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    a, y = rng.normal(size=(3, 8, columns)), rng.normal(size=(3, 8))
    x = nnls(a, y)
    gradient = np.einsum("nri,nr->ni", a, np.einsum("nri,ni->nr", a, x) - y)
    assert np.all(x >= 0)
    assert np.all(gradient > -1e-6)
    assert np.all(np.abs(gradient * x) < 1e-6)
