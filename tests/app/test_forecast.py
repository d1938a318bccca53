"""Forecasts by forks: quantiles by hand, certain futures exactly, and how often the interval holds on simulated runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.app.calibration import Range
from headway.app.forecast import forecast, quantiles
from headway.core import columns as c
from headway.core.round import Brains
from headway.core.state import State
from headway.policies.registry import make_policy
from headway.sim.guess import Guess
from headway.testing.builders import job, state
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

US = 1_000_000
ROOT = Path(__file__).resolve().parents[2]


def certain(of: State, left_s: dict[int, float]) -> Guess:
    """A guess that knows."""
    jobs, count = np.array(sorted(left_s), np.int64), len(left_s)
    assert count == len(of.live_rows())
    none = np.zeros(count, np.int64)
    median = np.array([left_s[number] for number in sorted(left_s)])
    return Guess(jobs, median, np.zeros(count), np.full(count, np.inf), none, np.full((count, 8), np.nan), none, none)


def test_quantiles_of_few_values() -> None:
    times = np.array([10, 20, 30, 40, 50, 60, 70, 80, 90], np.int64) * US
    assert quantiles(times, 0) == Range(10.0, 50.0, 90.0), "p · (n + 1) of nine"
    assert quantiles(times, 5 * US) == Range(5.0, 45.0, 85.0)
    assert quantiles(np.array([10, c.NEVER, 20, c.NEVER]), 0).p90 is None
    assert quantiles(np.array([c.NEVER] * 5), 0) == Range(None, None, None)
    assert quantiles(np.array([7 * US]), 0) == Range(None, 7.0, None), "one simulation gives no interval"


@pytest.mark.parametrize("policy", ["fifo", "fifo-backfill"])
def test_a_certain_future_is_told_as_it_is(policy: str) -> None:
    """Four GPUs: `a` has three until 50, `b` wants four, `c` one for 20: beside `a` if it may be let past, else after `b`."""
    jobs = [job("a", 3, 50), job("b", 4, 30), job("c", 1, 20)]
    made = state([4], jobs, running={"a": [(0, [0]), (0, [1]), (0, [2])]})
    chosen = make_policy(policy)
    found = forecast(made, None, Brains(chosen, chosen, chosen), certain(made, {0: 50, 1: 30, 2: 20}), now_us=0)
    starts = [found.start(at).p50 for at in range(3)]
    ends = [found.end(at).p50 for at in range(3)]
    if policy == "fifo":
        assert (starts, ends) == ([0, 50, 80], [50, 80, 100])
    else:
        assert (starts, ends) == ([0, 50, 0], [50, 80, 20])
    assert found.samples == 16 and found.whole and not found.cut
    assert found.start(1) == Range(50.0, 50.0, 50.0)


def test_who_is_stopped_for_others_is_told() -> None:
    made = state([4], [job("long", 4, 500), job("short", 4, 10)], running={"long": [(0, [g]) for g in range(4)]})
    chosen = make_policy("srtf")
    found = forecast(made, None, Brains(chosen, chosen, chosen), certain(made, {0: 500, 1: 10}), now_us=0)
    assert found.stop_us[:, 0].tolist() == [0] * 16 and found.preemptions[:, 0].tolist() == [1] * 16
    assert (found.end(1).p50, found.end(0).p50) == (10, 510)


def test_a_budget_cuts_the_samples_and_one_run_always_counts() -> None:
    made = state([4], [job(f"j{i}", 4, 100) for i in range(40)])
    chosen = make_policy("fifo")
    ticks = iter(range(10**6))
    told = certain(made, {i: 100 for i in range(40)})
    found = forecast(made, None, Brains(chosen, chosen, chosen), told, now_us=0, budget_s=3, clock=lambda: float(next(ticks)))
    assert found.cut and found.samples == 1 and not found.whole
    assert found.end(0).p50 == 100 and found.end(39).p50 is None, "as far as it went"
    whole = forecast(made, None, Brains(chosen, chosen, chosen), told, now_us=0, watch=3)
    assert whole.end(3).p50 == 400 and whole.end(5).p50 is None and not whole.whole


def bench() -> Any:
    """`bench/forecast.py` as a module."""
    spec = importlib.util.spec_from_file_location("bench_forecast", ROOT / "bench" / "forecast.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_forecast"] = module
    spec.loader.exec_module(module)
    return module


def test_the_interval_holds_about_as_often_as_it_says() -> None:
    measure = bench()
    said = []
    for seed in range(2):
        load = load_workload("poisson:jobs=120,load=1.2,cluster=2x4", seed=seed)
        starts, _, _ = measure.examined(measure.Run(load, parse_cluster("2x4"), "fifo-backfill", seed), 6, 16, True)
        said += starts
    assert len(said) > 60
    alone = np.mean([measure.inside(one.raw, one.alone_s) for one in said])
    assert 0.5 < alone <= 1.0, alone
