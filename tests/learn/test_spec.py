"""What a training is worth, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headway.learn.rollout import Played, Setting
from headway.learn.spec import TrainSpec

FIGURES = {
    "avg_jct_s": 3600.0, "deadline_ratio": 0.9, "accuracy_ratio": 0.8, "avg_accuracy": 0.5, "cross_node_bytes": 4e12,
    "makespan_s": 7200.0,
}  # fmt: skip


def played(**changed: float | None) -> Played:
    return Played({**FIGURES, **changed}, np.zeros((0, 5)))


def test_an_episode_as_one_window() -> None:
    """T0 = 1 h: g1 = 1/2. 4 TB in two hours are 2 TB an hour: g3 = 1/3. ½·½ + .55·.9 + .25/3 + .15·.8 + .15·.5."""
    spec = TrainSpec(settings=(Setting("mlfs-paper:jobs=10", "2x4"),))
    expected = 0.5 * 0.5 + 0.55 * 0.9 + 0.25 / 3 + 0.15 * 0.8 + 0.15 * 0.5
    assert spec.whole_reward(played()) == pytest.approx(expected)


def test_rl_placement_is_rewarded_for_completion_times_alone() -> None:
    spec = TrainSpec(settings=(Setting("mlfs-paper:jobs=10", "2x4"),), kind="rl-placement")
    assert spec.whole_reward(played()) == pytest.approx(0.5)
    assert spec.whole_reward(played(deadline_ratio=0.0, accuracy_ratio=0.0)) == pytest.approx(0.5)


def test_an_episode_that_did_not_end_has_none() -> None:
    spec = TrainSpec(settings=(Setting("mlfs-paper:jobs=10", "2x4"),))
    assert math.isnan(spec.whole_reward(Played(None, np.zeros((0, 5)))))
    assert math.isnan(spec.whole_reward(played(makespan_s=None)))
