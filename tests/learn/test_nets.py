"""The twin in PyTorch scores as the network does where it decides."""

import numpy as np
import pytest
import torch

from headway.features.table import ML_COLUMNS, RANK
from headway.learn.adam import Adam
from headway.learn.nets import Twin
from headway.policies.mlfs.net import COLUMNS, HEADS, Net, scores


@pytest.mark.parametrize("seed", range(5))
def test_both_score_alike(seed: int) -> None:
    random = np.random.default_rng(seed)
    net = Net.plain(seed)
    twin = Twin(net)
    for head in HEADS:
        X = random.uniform(-1, 2, (200, len(COLUMNS[head]))).astype(np.float32)
        theirs = twin.scores(head, torch.from_numpy(X)).detach().numpy()
        assert np.allclose(scores(getattr(net, head), X), theirs, atol=1e-5, rtol=1e-5)


def test_a_net_goes_to_torch_and_back() -> None:
    net = Net.plain(7)
    twin = Twin(net)
    back = Twin(Net.plain(None))
    back.take(twin.flat())
    for name, array in net.to_arrays().items():
        assert np.array_equal(back.net().to_arrays()[name], array)


def test_what_is_masked_is_not_seen_and_learns_nothing() -> None:
    mask = np.array([name not in ML_COLUMNS for name in RANK], np.float32)
    masks = {head: np.ones(len(COLUMNS[head]), np.float32) for head in HEADS} | {"rank": mask}
    twin = Twin(Net.plain(1), masks)
    X = np.random.default_rng(0).uniform(0, 1, (50, len(RANK))).astype(np.float32)
    other = X.copy()
    other[:, mask == 0] = 9.0
    net = twin.net()
    assert np.array_equal(scores(net.rank, X), scores(net.rank, other))
    assert np.allclose(scores(net.rank, X), twin.scores("rank", torch.from_numpy(other)).detach().numpy(), atol=1e-5)
    gradient = twin.gradient(twin.scores("rank", torch.from_numpy(X)).sum())
    before = twin.flat()
    twin.take(before - gradient)
    hidden = twin.net().rank.skip[mask == 0]
    assert not hidden.any() and gradient.any()


def test_adam_goes_downhill_and_stays_where_there_is_no_direction() -> None:
    adam = Adam.of(2, 0.1, clip=1.0)
    at = np.array([3.0, -2.0])
    for _ in range(300):
        at = adam.descend(at, 2 * at)
    assert np.abs(at).max() < 0.1
    assert np.array_equal(adam.descend(at, np.array([np.nan, 1e30])), at)
    # By hand: the first step is the rate, whatever the gradient's size, and the clipped norm is 1.
    fresh = Adam.of(1, 0.5, clip=1.0)
    assert fresh.descend(np.array([0.0]), np.array([1e30]))[0] == pytest.approx(-0.5)
    assert fresh.m[0] == pytest.approx(0.1)
