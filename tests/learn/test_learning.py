"""Imitation, policy gradients and PGPE on problems whose answers are known, and on rewards and choices that are bad."""

import math

import numpy as np
import pytest
import torch

from headway.features.table import RANK, SERVER
from headway.learn.adam import Adam
from headway.learn.gradient import Learner, entropy, log_probability, rewards_of, steps_of
from headway.learn.imitation import Imitation, choice_loss, rank_loss
from headway.learn.nets import Twin
from headway.learn.pgpe import Pgpe
from headway.learn.rollout import Kept, Played
from headway.metrics.reward import BETAS, TERMS
from headway.policies.mlfs.net import Net, scores

MINUTE = 60_000_000


def choices(count: int, n: int, columns: int, seed: int) -> list[Kept]:
    """A teacher who likes column 1 of jobs; of nodes it takes the one with the least of column 2."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        X = random.uniform(0, 1, (n, columns)).astype(np.float32)
        if columns == len(RANK):
            u = np.round(X[:, 1].astype(np.float64), 1)
            found.append(Kept(X, np.argsort(-u, kind="stable")[: n // 2], 0, u))
        else:
            found.append(Kept(X, np.array([int(X[:, 2].argmin())]), 0))
    return found


def test_imitation_learns_an_order_and_a_choice() -> None:
    learner = Imitation(Twin(Net.plain(0)), {"rank": choices(60, 20, len(RANK), 1), "server": choices(60, 8, len(SERVER), 2)})
    random = np.random.default_rng(0)
    first = learner.steps(random, 20)
    for _ in range(4):
        last = learner.steps(random, 200)
    assert last < 0.6 * first
    net = learner.twin.net()
    held = choices(40, 20, len(RANK), 9)
    right = []
    for kept in held:
        found, u = scores(net.rank, kept.X), kept.utilities
        assert u is not None
        ahead = np.sign(found[:, None] - found[None, :])
        apart = u[:, None] > u[None, :]
        right.append((ahead[apart] > 0).mean())
    assert np.mean(right) > 0.9


def test_nothing_to_imitate_is_no_loss() -> None:
    twin, random = Twin(Net.plain(0)), np.random.default_rng(0)
    tie = Kept(np.zeros((5, len(RANK)), np.float32), np.arange(2), 0, np.zeros(5))
    alone = Kept(np.zeros((1, len(RANK)), np.float32), np.arange(1), 0, np.zeros(1))
    assert rank_loss(twin, [tie, alone], random) is None
    assert choice_loss(twin, "server", [Kept(np.zeros((1, len(SERVER)), np.float32), np.arange(1), 0)]) is None
    before = twin.flat()
    assert Imitation(twin, {"rank": [tie], "server": []}).steps(random, 3) == 0.0
    assert np.array_equal(twin.flat(), before)


# -- the policy gradient --------------------------------------------------------------------------------------------
def test_the_probability_of_an_order_is_that_of_plackett_and_luce() -> None:
    logits = torch.log(torch.tensor([1.0, 2.0, 3.0]))
    # By hand: 3/6 · 1/3 for (third, first), of three with weights 1, 2, 3.
    assert math.exp(log_probability(logits, torch.tensor([2, 0]))) == pytest.approx(3 / 6 * 1 / 3)
    assert math.exp(log_probability(logits, torch.tensor([2, 0, 1]))) == pytest.approx(3 / 6 * 1 / 3)
    mask = torch.tensor([True, True, False])
    assert math.exp(log_probability(logits, torch.tensor([2, 0]), mask)) == pytest.approx(1 / 3)
    assert float(entropy(torch.zeros(4))) == pytest.approx(math.log(4))


def test_where_all_is_masked_or_the_queue_is_empty_there_was_no_choice() -> None:
    logits = torch.zeros(3, requires_grad=True)
    nothing = torch.zeros(3, dtype=torch.bool)
    assert float(log_probability(logits, torch.tensor([0, 1]), nothing)) == 0.0
    assert float(entropy(logits, nothing)) == 0.0
    empty = torch.zeros(0)
    assert float(log_probability(empty, torch.zeros(0, dtype=torch.int64))) == 0.0
    assert float(entropy(empty)) == 0.0


def rollout(goals: list[float], chosen: list[int], at: list[int], n: int = 4) -> Played:
    X = np.eye(n, len(SERVER), dtype=np.float32)
    kept = [Kept(X, np.array([k]), round_ * MINUTE) for k, round_ in zip(chosen, at, strict=True)]
    return Played({}, np.tile(np.array(goals)[:, None], (1, TERMS)), {"server": kept})


def test_advantages_are_against_the_mean_of_rollouts_at_the_same_round() -> None:
    ones = (1.0, 0.0, 0.0, 0.0, 0.0)
    good, bad = rollout([1.0, 0.0], [0, 0], [0, 1]), rollout([0.0], [1], [0])
    steps = steps_of([good, bad], ones)
    # Returns are (1, 0) and (0): at round 0 the mean is ½; at round 1 the one that got there is its own mean. Spread of
    # (½, 0, −½) is √(1/6).
    spread = math.sqrt(1 / 6)
    assert [s.advantage for s in steps] == pytest.approx([0.5 / spread, 0.0, -0.5 / spread])


def test_bad_rewards_and_single_transitions_teach_nothing() -> None:
    assert steps_of([rollout([1.0], [0], [0])], BETAS) == []
    assert steps_of([], BETAS) == [] and steps_of([Played(None, np.zeros((0, TERMS)))], BETAS) == []
    assert rewards_of(rollout([math.nan], [0], [0]), BETAS) is None
    good, broken = rollout([1.0], [0], [0]), rollout([math.nan, 1.0], [1], [0])
    assert steps_of([good, broken], BETAS) == []
    huge = steps_of([rollout([1e30], [0], [0]), rollout([0.0], [1], [0])], BETAS)
    assert [s.advantage for s in huge] == pytest.approx([1.0, -1.0])
    none = Played({}, np.ones((1, TERMS)), {"rank": [Kept(np.zeros((0, len(RANK)), np.float32), np.zeros(0, np.int64), 0)]})
    assert steps_of([none, none], BETAS) == []


@pytest.mark.parametrize("way", ["reinforce", "proximal"])
def test_a_better_choice_becomes_more_likely(way: str) -> None:
    twin = Twin(Net.plain(0))
    learner = Learner(twin, Adam.of(len(twin.flat()), 1e-2, clip=1.0), 0.0, 1.0)
    steps = steps_of([rollout([1.0], [2], [0]), rollout([0.0], [1], [0])], BETAS)
    X = steps[0].kept.X
    before = scores(twin.net().server, X)
    for _ in range(10):
        getattr(learner, way)(steps)
    after = scores(twin.net().server, X)
    assert after[2] - after[1] > before[2] - before[1]
    flat = twin.flat()
    assert getattr(learner, way)([]) == 0.0 and np.array_equal(twin.flat(), flat)


# -- PGPE -----------------------------------------------------------------------------------------------------------
def test_pgpe_climbs_a_hill() -> None:
    base, random = Net.plain(), np.random.default_rng(3)
    search = Pgpe.of(base, "skip", rate=0.3, sigma=0.3)
    goal = search.mean + np.linspace(-1, 1, len(search.mean))

    def height(at: np.ndarray) -> float:  # type: ignore[type-arg]
        return -float(((at - goal) ** 2).sum())

    first = height(search.mean)
    for _ in range(150):
        epsilon = search.draw(8, random)
        plus = np.array([height(search.mean + e) for e in epsilon])
        minus = np.array([height(search.mean - e) for e in epsilon])
        search.step(epsilon, plus, minus)
    assert height(search.mean) > 0.2 * first


def test_pgpe_leaves_out_pairs_without_a_value_and_columns_that_are_hidden() -> None:
    search, random = Pgpe.of(Net.plain(), "skip", 0.3, 0.3), np.random.default_rng(0)
    mask = np.ones(len(RANK), np.float32)
    mask[3] = 0.0
    search.hide({"rank": mask})
    start = search.mean.copy()
    epsilon = search.draw(3, random)
    assert not epsilon[:, 3].any()
    search.step(epsilon, np.full(3, np.nan), np.full(3, np.inf))
    assert np.array_equal(search.mean, start)
    search.step(epsilon, np.ones(3), np.ones(3))
    assert np.array_equal(search.mean, start)
    search.step(epsilon, np.array([1.0, np.nan, 2.0]), np.zeros(3))
    assert search.mean[3] == start[3] and not np.array_equal(search.mean, start) and np.isfinite(search.mean).all()
    net = search.net(Net.plain())
    assert np.allclose(net.rank.skip, search.mean) and np.array_equal(net.server.skip, Net.plain().server.skip)
