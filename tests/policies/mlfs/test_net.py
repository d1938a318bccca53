"""MLF-RL's network where it decides: by hand, and against the formula in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.features.table import RANK
from headway.policies.mlfs.net import COLUMNS, HEADS, Net, scores, shapes


def test_one_path_by_hand() -> None:
    """x₀ = 2: hidden 3·2 − 1 = 5, then 0.5·5 = 2.5, then 4·2.5, and 7 by the skip and 1 of bias: 2·7 + 10 + 1 = 25."""
    arrays = {name: np.zeros_like(array) for name, array in Net.plain().to_arrays().items()}
    arrays["rank.w1"][0, 5], arrays["rank.b1"][5] = 3, -1
    arrays["rank.w2"][5, 3], arrays["rank.w3"][3] = 0.5, 4
    arrays["rank.skip"][0], arrays["rank.b3"][0] = 7, 1
    net = Net.from_arrays(arrays)
    x = np.zeros((2, len(RANK)), np.float32)
    x[0, 0] = 2
    assert scores(net.rank, x).tolist() == [25.0, 1.0]  # with x = 0 the first layer is at −1, and silent


@pytest.mark.parametrize("head", HEADS)
def test_the_formula(head: str) -> None:
    net, random = Net.plain(3), np.random.default_rng(1)
    X = random.standard_normal((40, len(COLUMNS[head]))).astype(np.float32)
    h = getattr(net, head)
    hidden = np.maximum(np.maximum(X @ h.w1 + h.b1, 0) @ h.w2 + h.b2, 0)
    assert np.allclose(scores(h, X), X @ h.skip + hidden @ h.w3 + h.b3, atol=1e-4)


def test_arrays_there_and_back() -> None:
    net = Net.plain(7)
    back = Net.from_arrays(net.to_arrays())
    for name, array in net.to_arrays().items():
        assert np.array_equal(array, back.to_arrays()[name])


@pytest.mark.parametrize("name", ["rank.w1", "server.b2", "move.skip"])
def test_another_shape_is_refused(name: str) -> None:
    arrays = dict(Net.plain().to_arrays())
    arrays[name] = arrays[name][..., :-1]
    with pytest.raises(UserError, match=rf"{name}: expected an array of .*got"):
        Net.from_arrays(arrays)
    del arrays[name]
    with pytest.raises(UserError, match="got nothing"):
        Net.from_arrays(arrays)


def test_a_number_that_is_none_is_refused() -> None:
    arrays = dict(Net.plain().to_arrays())
    arrays["rank.b1"] = np.full(shapes("rank")["b1"], np.nan, np.float32)
    with pytest.raises(UserError, match="expected finite numbers"):
        Net.from_arrays(arrays)


def test_no_rows() -> None:
    assert scores(Net.plain().rank, np.zeros((0, len(RANK)), np.float32)).shape == (0,)
