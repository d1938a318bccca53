"""The Gymnasium environment: its picks, its masks, its ends, its rewards by hand."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.utils.env_checker import check_env

import headway.sim.env as module
from headway.core.errors import UserError
from headway.features.table import RANK
from headway.policies.registry import make_policy
from headway.sim.env import ClusterEnv, make_vector
from headway.sim.gym_names import ID, register
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload

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
    ("load", "sharing"), [(POISSON, False), (POISSON, True), ("mlfs-paper:jobs=31", False), ("mlfs-paper:jobs=31", True)]
)
def test_picks_in_the_order_of_srtf_are_srtf(load: str, sharing: bool) -> None:
    env = ClusterEnv(load, "2x4", rows=80, queue=79, sharing=sharing)
    _, info = play(env, first)
    jobs, where = env.setting.read(5)
    policy = make_policy(f"srtf:sharing={str(sharing).lower()}")
    run = simulate(jobs, where, policy, seed=5)
    assert info["journal_sha256"] == run.journal_sha256
    assert info["summary"]["avg_jct_s"] == run.metrics.summary(where.gpus).avg_jct_s


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
    """`a` runs when `b` comes at 60. `b` has less left; picked alone, it has the GPU, and `a` stops. If the round is ended at
    once, `a` keeps it."""
    jobs = workload([job("a", 1, 600, restore_s=30), job("b", 1, 500, 60, restore_s=30)])
    for action, stops in ((0, 1), (4, 0)):
        env = ClusterEnv(jobs, ONE_GPU, rows=4, queue=2)
        env.reset(seed=0)
        _, _, _, _, info = env.step(0)
        assert info["now_s"] == 60 and info["jobs"].tolist() == [1, 0, -1, -1]
        env.step(action)
        env.step(4)
        assert env.episode is not None and env.episode.summary()["preemptions"] == stops


def test_who_nobody_picks_waits_and_the_next_round_comes_by_itself() -> None:
    env = tiny(horizon=5)
    env.reset(seed=0)
    for n in range(1, 6):
        _, _, terminated, truncated, info = env.step(4)
        assert info["now_s"] == 60 * n and not terminated and truncated == (n == 5)
    assert "summary" in info and "journal_sha256" not in info
    with pytest.raises(ResetNeeded):
        env.step(4)


# -- what is shown -----------------------------------------------------------------------------------------------------
def test_where_there_are_more_candidates_than_rows() -> None:
    """Two GPUs are held by jobs with 900 and 800 s left; five wait, with 100 to 500 s. Of four rows two are for the
    waiting ones in any case, and the others for those who have places; in the order of the time left."""
    jobs = [job("p", 1, 900), job("q", 1, 800)] + [job(f"w{i}", 1, 100 * (6 - i), 60) for i in range(1, 6)]
    env = ClusterEnv(workload(jobs), cluster([2]), rows=4, queue=2)
    env.reset(seed=0)
    env.step(0)
    *_, info = env.step(1)
    assert info["now_s"] == 60 and info["jobs"].tolist() == [6, 5, 1, 0]
    env = ClusterEnv(workload(jobs), cluster([2]), rows=3, queue=2)
    env.reset(seed=0)
    env.step(0)
    *_, info = env.step(1)
    assert info["jobs"].tolist() == [6, 5, 0], "of those with places, who has most left"


def test_the_higher_class_stands_and_goes_first() -> None:
    """The agent ranks within a class: `b` is of a higher one, and starts though `a` was picked before it."""
    env = ClusterEnv(workload([job("a", 1, 10, priority=50), job("b", 1, 100, priority=60)]), ONE_GPU, rows=4, queue=3)
    _, info = env.reset(seed=0)
    assert info["jobs"].tolist() == [1, 0, -1, -1]
    env.step(1)
    *_, info = env.step(0)
    assert info["jobs"].tolist() == [0, -1, -1, -1]


def test_random_picks_stay_within_the_spaces_and_end() -> None:
    env = ClusterEnv("mlfs-paper:jobs=31,protocol=stress", "2x4", rows=40, queue=20, sharing=True, horizon=400)
    random = np.random.default_rng(3)

    def pick(observation: Any, info: Any) -> int:
        assert env.observation_space.contains(observation)
        return int(random.choice(np.flatnonzero(info["action_mask"])))

    rewards, info = play(env, pick)
    assert np.isfinite(rewards).all() and min(rewards) >= 0 and max(rewards) <= 1.6 and info["decisions"] <= 400


# -- masks, and the other ends -----------------------------------------------------------------------------------------
def test_a_masked_pick_is_taken_as_stay() -> None:
    env, other = tiny(), tiny()
    env.reset(seed=0)
    other.reset(seed=0)
    *_, info = env.step(3)
    *_, stayed = other.step(4)
    assert info["masked"] and not stayed["masked"] and info["now_s"] == stayed["now_s"]
    env.step(0)
    *_, info = env.step(0)
    assert info["masked"], "who has been picked cannot be picked again"


@pytest.mark.parametrize("action", [2, 5, -1])
def test_a_masked_pick_is_an_error_where_that_is_asked_for(action: int) -> None:
    env = tiny(strict=True)
    env.reset(seed=0)
    with pytest.raises(InvalidAction, match=f"action {action} is masked"):
        env.step(action)
    assert env.step(0)[4]["masked"] is False, "the round goes on"


@pytest.mark.parametrize("strict", [False, True])
def test_without_jobs_all_is_masked_and_the_first_step_ends(strict: bool) -> None:
    env = ClusterEnv(workload([]), ONE_GPU, rows=4, queue=2, strict=strict)
    observation, info = env.reset(seed=0)
    assert observation["mask"].tolist() == [0, 0, 0, 0, 1] and env.observation_space.contains(observation)
    _, earned, terminated, truncated, info = env.step(4)
    assert (earned, terminated, truncated) == (0.0, True, False) and info["summary"]["jobs"] == 0
    with pytest.raises(ResetNeeded):
        env.step(4)


def test_a_step_comes_after_a_reset() -> None:
    with pytest.raises(ResetNeeded):
        tiny().step(0)


# -- reset -------------------------------------------------------------------------------------------------------------
def test_seeds_are_drawn_from_the_last_that_was_given() -> None:
    env = ClusterEnv(POISSON, "2x4", rows=80, queue=70)
    seeds = []
    for _ in range(2):
        seeds.append([env.reset(seed=9)[1]["seed"], env.reset()[1]["seed"], env.reset()[1]["seed"]])
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3 and seeds[0][0] == 9


def test_options_change_workload_and_cluster() -> None:
    env = tiny()
    env.reset(seed=0, options={"workload": "poisson:jobs=3,load=1,cluster=1x2", "cluster": "1x2"})
    assert env.episode is not None and env.episode.cluster.gpus == 2
    env.reset(seed=1)
    assert env.episode.cluster.gpus == 2, "from now on"
    with pytest.raises(UserError, match=r"reset: unknown option 'worklod' \(did you mean 'workload'\?\)|reset: unknown option"):
        env.reset(options={"worklod": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 4, "queue": 4}, "rows: expected"), ({"rows": 1}, "rows: expected"), ({"horizon": 0}, "horizon: expected"),
        ({"render_mode": "human"}, "render_mode: nothing is drawn"), ({"beside": "mlf-x"}, "mlf-x"),
        ({"workload": "poison"}, "unknown workload"), ({"cluster": "0x8"}, "cluster 0x8"), ({"round_s": 0}, "round: expected"),
        ({"round_s": float("nan")}, "round: expected"),
    ],
)  # fmt: skip
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ClusterEnv(**{"workload": TINY, "cluster": ONE_GPU, "rows": 4, "queue": 2} | options).reset(seed=0)


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 5 finite numbers"):
        tiny(betas=(1, 2))


# -- Gymnasium ---------------------------------------------------------------------------------------------------------
def test_gymnasium_finds_no_fault() -> None:
    register()
    check_env(gym.make(ID, workload=POISSON, cluster="2x4", rows=80, queue=70).unwrapped)


def test_it_is_made_by_its_name() -> None:
    register()
    env = gym.make(ID, workload=TINY, cluster=ONE_GPU, rows=4, queue=2)
    assert isinstance(env.unwrapped, ClusterEnv)
    env.reset(seed=0)


def test_two_processes_play_two_workloads() -> None:
    vector = make_vector(2, workload="poisson:jobs=5,load=1,cluster=1x2", cluster="1x2", rows=8, queue=4)
    try:
        observation, info = vector.reset(seed=20)
        assert observation["jobs"].shape == (2, 8, len(RANK)) and info["seed"].tolist() == [20, 21]
        done = np.zeros(2, bool)
        for _ in range(200):
            actions = np.argmax(info["action_mask"], axis=1)
            _, _, terminated, _, info = vector.step(actions)
            done |= terminated
            if done.all():
                break
        assert done.all()
    finally:
        vector.close()


def test_the_number_of_processes_is_checked() -> None:
    with pytest.raises(UserError, match="make_vector: expected 1 to 1024"):
        make_vector(0)


def test_without_gymnasium_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    spec = importlib.util.spec_from_file_location("headway.sim.env_again", str(module.__file__))
    assert spec is not None and spec.loader is not None
    with pytest.raises(UserError, match=r"environment: needs Gymnasium: pip install 'headway\[learn\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_rest_of_the_simulator_does_not_load_gymnasium() -> None:
    code = "import sys, headway.sim.episode, headway.sim.gym_names; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
