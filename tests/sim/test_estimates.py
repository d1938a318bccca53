"""Requests of a plan come back as journalled estimates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.perf.params import C_PLATEAU
from headway.policies.registry import make_policy
from headway.sim.run import Simulation, simulate
from headway.testing.builders import cluster, job, workload
from headway.workloads import truth as y
from headway.workloads.truth import Curve, Speed

US = 1_000_000


@dataclass
class Asks:
    """fifo that asks for the remaining time of every live job in each round."""

    name: str = "asks"
    asks: bool = True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        plan = make_policy("fifo").decide(view, memo)
        draft = view.draft()
        for one in view.jobs():
            draft.request(Estimator.REMAINING, one)
        return Plan(plan.overrides, plan.places, plan.seen, plan.wake_at_us, tuple(draft.requests))


def test_remaining_time_is_what_the_user_said_less_the_run_time() -> None:
    """One GPU: a (10 s, estimated 12) runs from 0; b (5 s, estimated 5) waits from 4 on. At 4: a has 12 - 4 = 8 s left, b 5."""
    jobs = [job("a", 1, 10, estimate_s=12), job("b", 1, 5, submit_s=4, estimate_s=5)]
    run = simulate(workload(jobs), cluster([1]), Asks(), interval_s=1, keep_journal=True)
    assert run.journal is not None
    told = run.journal.records[run.journal.records[:, c.E_KIND] == EventKind.ESTIMATED]
    at_four = {int(r[c.E_ID]): int(r[c.E_C]) for r in told if r[c.E_T] == 4 * US}
    assert at_four == {0: 8 * US, 1: 5 * US}


@dataclass
class AsksForCurves:
    """fifo that asks for curve and speed of every running job that has told something, in each round."""

    name: str = "asks-for-curves"
    asks: bool = True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        plan = make_policy("fifo").decide(view, memo)
        draft = view.draft()
        for one in view.jobs():
            draft.request(Estimator.CURVE, one)
            draft.request(Estimator.SPEED, one)
        return Plan(plan.overrides, plan.places, plan.seen, plan.wake_at_us, tuple(draft.requests))


def test_curve_and_speed_are_estimated_from_what_the_job_has_told() -> None:
    """100 units in 100 s on one GPU: a second a unit. The accuracy's plateau is near 0.85 − 0.75 · 31^−1.2 = 0.8378 from half-way
    on, and the row of the live job carries the newest vector."""
    table = np.zeros((y.TRUTH_COLUMNS, 1), np.int64)
    for column, value in {
        y.Y_SPEED: Speed.ITERATIONS, y.Y_CURVE: Curve.POWER, y.Y_UNITS: 100, y.Y_START: 100_000, y.Y_PLATEAU: 850_000,
        y.Y_K: 10**6, y.Y_M: 10**6, y.Y_NOISE: 10_000,
    }.items():  # fmt: skip
        table[column] = value
    load = replace(workload([job("a", 1, 100, units=100)]), truth=table)
    seen: dict[int, tuple[float, float]] = {}

    def watch(run: Simulation) -> None:
        if (row := run.state.row(0)) is not None:
            F = run.state.F[:, row].reshape(c.ESTIMATORS, c.ESTIMATE_PARAMS_MAX)
            seen[run.now_us // US] = (F[Estimator.CURVE, C_PLATEAU], F[Estimator.SPEED, 1])

    run = simulate(load, cluster([1]), AsksForCurves(), interval_s=1, keep_journal=True, watch=watch)
    assert run.journal is not None
    assert all(abs(plateau - 0.8378) < 0.03 for t, (plateau, _) in seen.items() if t >= 50)
    told = [p for r, p in zip(run.journal.records, run.journal.payloads(), strict=True) if r[c.E_KIND] == EventKind.ESTIMATED]
    assert len(told) == 2 * len(seen) and all(len(payload) == c.ESTIMATE_PARAMS_MAX for payload in told)


def test_a_policy_that_asks_has_to_say_so() -> None:
    with pytest.raises(AssertionError, match=r"asks requests estimates: it has to say so"):
        simulate(workload([job("a")]), cluster([1]), Asks(asks=False), interval_s=1)
