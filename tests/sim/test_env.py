"""The Gymnasium environment: its picks, its masks, its ends, its rewards by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env

import headway.sim.env as module
from headway.core.errors import UserError
from headway.policies.registry import make_policy
from headway.sim.env import ClusterEnv, make_vector
from headway.sim.gym_names import ID, register
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload
from headway.workloads.schema import Workload

POISSON = "poisson:jobs=40,load=1.2,cluster=2x4"
TINY = workload([job("a", 1, 100, restore_s=30), job("b", 1, 50, restore_s=30)])
ONE_GPU = cluster([1])


def tiny(**options: Any) -> ClusterEnv:
    return ClusterEnv(TINY, ONE_GPU, rows=4, queue=2, **options)


def play(env: ClusterEnv, pick: Any, seed: int = 5) -> tuple[list[float], dict[str, Any]]:
    """All rewards of an episode, and the last info. `pick`: an action from observation and info."""
    observation, info = env.reset(seed=seed)
    rewards, done = [], False
    while not done:
        observation, earned, terminated, truncated, info = env.step(pick(observation, info))
        rewards.append(earned)
        done = terminated or truncated
    return rewards, info


def first(observation: Any, info: Any) -> int:
    return int(np.argmax(info["action_mask"]))


def stay(observation: Any, info: Any) -> int:
    return len(info["action_mask"]) - 1


# -- the picks are what happens ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("load", "sharing"), [(POISSON, False), (POISSON + ",pattern=bursts" if False else POISSON, True), ("mlfs-paper:jobs=31", True)]
)
def test_picks_in_the_order_of_srtf_are_srtf(load: str, sharing: bool) -> None:
    env = ClusterEnv(load, "2x4", rows=80, queue=79, sharing=sharing)
    _, info = play(env, first)
    jobs, where = env.setting.read(5)
    policy = make_policy(f"srtf:sharing={str(sharing).lower()}")
    assert info["journal_sha256"] == simulate(jobs, where, policy, seed=5).journal_sha256
    assert info["summary"]["finished"] == len(jobs)


def test_with_load_control_beside_it_jobs_stop_early() -> None:
    env = ClusterEnv("mlfs-paper:jobs=31", "2x4", rows=40, queue=39, beside="mlf-c")
    _, info = play(env, first)
    jobs, where = env.setting.read(5)
    assert info["journal_sha256"] == simulate(jobs, where, make_policy("srtf+mlf-c"), seed=5).journal_sha256


def test_who_is_picked_first_runs_first_and_the_rewards_by_hand() -> None:
    """One GPU, `a` 100 s and `b` 50 s at 0, a round a minute. `b` has less left, and stands first; `a` is picked. At 100 it is
    done, and the round at 120 is the next with something to decide: `a` took 100 s, `b` will have taken 120 + 50. Then it has."""
    env = tiny()
    observation, info = env.reset(seed=1)
    assert info["jobs"].tolist() == [1, 0, -1, -1] and info["now_s"] == 0 and info["seed"] == 1
    assert observation["mask"].tolist() == [1, 1, 0, 0, 1] == info["action_mask"].tolist()
    assert not observation["jobs"][2:].any() and observation["jobs"][0].any()
    observation, earned, *ends, info = env.step(1)
    assert (earned, ends) == (0.0, [False, False]) and info["now_s"] == 0
    assert observation["picked"].tolist() == [0, 1, 0, 0] and observation["mask"].tolist() == [1, 0, 0, 0, 1]
    observation, earned, *ends, info = env.step(4)
    assert info["now_s"] == 120 and info["window_s"] == 120 and ends == [False, False]
    assert info["goals"]["jct"] == pytest.approx(3600 / (3600 + (100 + 170) / 2))
    assert earned == pytest.approx(0.5 * 3600 / 3735 + 0.55 + 0.25 + 0.15 + 0.15)
    assert observation["picked"].tolist() == [0, 0, 0, 0] and info["jobs"].tolist() == [1, -1, -1, -1]
    observation, earned, *ends, info = env.step(0)
    assert ends == [True, False] and info["window_s"] == 50
    assert earned == pytest.approx(0.5 * 3600 / 3770 + 1.1)
    assert observation["mask"].tolist() == [0, 0, 0, 0, 1] and not observation["jobs"].any()
    assert info["summary"]["avg_jct_s"] == 135 and info["decisions"] == 2


def test_a_running_job_that_is_not_picked_gives_way_to_one_that_is() -> None:
    """`a` runs when `b` comes at 60. Picked alone, `b` has the GPU; if the round is ended at once, `a` keeps it."""
    jobs = workload([job("a", 1, 600, restore_s=30), job("b", 1, 500, 60, restore_s=30)])
    ends = {}
    for name, action in (("b goes before", 0), ("stay", 4)):
        env = ClusterEnv(jobs, ONE_GPU, rows=4, queue=2)
        env.reset(seed=0)
        env.step(0)
        observation, _, _, _, info = env.step(action)
        assert info["now_s"] == 60 or name
        ends[name] = play_on(env, stay)
    assert ends["b goes before"]["preemptions"] == 1 and ends["stay"]["preemptions"] == 0


def play_on(env: ClusterEnv, pick: Any) -> dict[str, Any]:
    raise NotImplementedError
