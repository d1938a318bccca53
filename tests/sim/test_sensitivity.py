"""Runs in which policies are told what is not so: estimates that are wrong by a factor, and jobs that boast of their progress."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headway.app.simulate import SimulateRequest, prepare
from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload
from headway.workloads import truth as y
from headway.workloads.registry import load_workload
from headway.workloads.schema import Workload
from headway.workloads.truth import Curve

US = 1_000_000


def told(jobs: Workload, kind: EventKind, number: int = 0, policy: str = "srtf") -> list[list[int]]:
    """Time (s), a, b and c of the events of one kind of a job on one GPU."""
    run = simulate(jobs, cluster([1]), make_policy(policy), interval_s=1, keep_journal=True)
    assert run.journal is not None
    E = run.journal.records
    mine = E[(E[:, c.E_KIND] == kind) & (E[:, c.E_ID] == number)]
    return [[int(t) // US, int(a), int(b), int(e)] for t, a, b, e in mine[:, [c.E_T, c.E_A, c.E_B, c.E_C]]]


# -- jobs that boast ---------------------------------------------------------------------------------------------------
def test_a_liar_tells_three_times_its_units_and_takes_as_long() -> None:
    """Ten units in 100 s: one every 10 s; told are 3, 6, 9, and then all ten."""
    honest = workload([job("a", 1, 100, units=10)])
    liar = honest.with_liars(1.0, 3.0)
    true, false = told(honest, EventKind.OBSERVED), told(liar, EventKind.OBSERVED)
    assert [row[1] for row in true] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert [row[1] for row in false] == [3, 6, 9, 10, 10, 10, 10, 10, 10]
    assert [row[0] for row in true] == [row[0] for row in false]
    assert told(honest, EventKind.COMPLETED) == told(liar, EventKind.COMPLETED) == [[100, 0, 0, 0]]


def test_a_liar_lies_about_what_it_has_saved_too() -> None:
    """At 35 a short job stops it: three units are done, and it says six. It goes on from where it really was."""
    honest = workload([job("a", 1, 100, units=10), job("b", 1, 10, 35)])
    liar = replace(honest.with_liars(1.0, 2.0), name="liar")
    true, false = told(honest, EventKind.STOPPED), told(liar, EventKind.STOPPED)
    assert [row[2] for row in true] == [3] and [row[2] for row in false] == [6]
    assert told(liar, EventKind.COMPLETED) == told(honest, EventKind.COMPLETED) == [[110, 0, 0, 0]]


def test_a_liar_tells_a_higher_accuracy_and_its_true_loss() -> None:
    """Accuracy after k of 10 units is 0.8 − 0.6 · (1 + 3k)^−1.2, and the loss 3 · (0.85 − that): told is 1.4 times the accuracy, at
    most 1."""
    table = np.zeros((y.TRUTH_COLUMNS, 1), np.int64)
    for column, value in {
        y.Y_CURVE: Curve.POWER, y.Y_UNITS: 10, y.Y_START: 200_000, y.Y_PLATEAU: 800_000, y.Y_K: 10**6, y.Y_M: 10**6,
    }.items():  # fmt: skip
        table[column] = value
    honest = replace(workload([job("a", 1, 100, units=10)]), truth=table)
    true, false = told(honest, EventKind.OBSERVED), told(honest.with_liars(1.0, 1.4), EventKind.OBSERVED)
    for k, (is_so, is_told) in enumerate(zip(true, false, strict=True), 1):
        accuracy = 0.8 - 0.6 * (1 + 3 * k) ** -1.2
        assert is_so[3] == round(accuracy * 1e6) and is_so[2] == is_told[2]
        assert is_told[3] == pytest.approx(min(1.4 * accuracy, 1.0) * 1e6, abs=2)
    assert false[1][3] == 1_000_000


def test_a_share_of_the_jobs_lies_and_a_larger_share_holds_the_smaller() -> None:
    jobs = load_workload("mlfs-paper:jobs=310", seed=1)
    some, more = (jobs.with_liars(frac, seed=4).truth[y.Y_BOAST] > 0 for frac in (0.1, 0.3))
    assert 18 <= some.sum() <= 44 and 70 <= more.sum() <= 116, "31 ± 2.4 σ and 93 ± 2.8 σ"
    assert np.all(more[some])
    assert np.any(some != (jobs.with_liars(0.1, seed=5).truth[y.Y_BOAST] > 0))
    assert jobs.with_liars(0.0).sha256 == jobs.sha256 == jobs.with_liars(1.0, 1.0).sha256 != jobs.with_liars(0.1).sha256
    assert np.all(jobs.truth[y.Y_BOAST] == 0), "the workload itself stays as it is"


@pytest.mark.parametrize(("frac", "factor"), [(-0.1, 2), (1.1, 2), (float("nan"), 2), (0.5, 0.5), (0.5, 101), (0.5, float("nan"))])
def test_shares_and_factors_that_are_none(frac: float, factor: float) -> None:
    with pytest.raises(UserError, match="liars: expected a"):
        workload([job("a")]).with_liars(frac, factor)


# -- estimates ---------------------------------------------------------------------------------------------------------
def test_estimates_are_scaled_and_none_stays_none() -> None:
    jobs = workload([job("a", 1, 100), job("b", 1, 50), job("c", 1, 10)])
    spec = jobs.spec.copy()
    spec[c.J_ESTIMATE] = (100 * US, c.NEVER, 1)
    jobs = replace(jobs, spec=spec)
    assert jobs.with_estimates_scaled(1.5).spec[c.J_ESTIMATE].tolist() == [150 * US, c.NEVER, 2]
    assert jobs.with_estimates_scaled(0.01).spec[c.J_ESTIMATE].tolist() == [US, c.NEVER, 1]
    assert jobs.with_estimates_scaled(2).work_us.tolist() == jobs.work_us.tolist()
    assert jobs.with_estimates_scaled(1) is jobs
    assert jobs.with_estimates_scaled(2).sha256 != jobs.sha256


@pytest.mark.parametrize("scale", [0, -1, 101, float("nan"), float("inf")])
def test_scales_that_are_none(scale: float) -> None:
    with pytest.raises(UserError, match=r"estimate-scale: expected a number from 0.01 to 100"):
        workload([job("a")]).with_estimates_scaled(scale)


def test_half_the_estimate_makes_a_job_stay_that_ran_over_it() -> None:
    """`a` has 100 s and says so; `b` comes at 60 with 30 s. By true estimates `b` (30) goes before `a` (40 left). By halves `a` has
    nothing left at 50, so it is not stopped for `b` (15)."""
    jobs = workload([job("a", 1, 100), job("b", 1, 30, 60)])
    assert len(told(jobs, EventKind.STOPPED)) == 1
    assert told(jobs.with_estimates_scaled(0.5), EventKind.STOPPED) == []


def test_oracles_are_not_misled() -> None:
    jobs = workload([job("a", 1, 100), job("b", 1, 30, 60)])
    wrong = jobs.with_estimates_scaled(0.5)
    assert len(told(wrong.with_estimates(wrong.work_us), EventKind.STOPPED, policy="oracle-srtf")) == 1


# -- the command line's words ------------------------------------------------------------------------------------------
def asked(**changed: Any) -> SimulateRequest:
    return SimulateRequest(workload="mlfs-paper:jobs=31", cluster="20x4", policies=("srtf",), **changed)


def test_what_is_asked_for_is_in_the_workload() -> None:
    plain = prepare(asked()).workload
    scaled, lying = prepare(asked(estimate_scale="0.5")).workload, prepare(asked(liars="1:1.5")).workload
    assert scaled.spec[c.J_ESTIMATE].tolist() == [round(us / 2) for us in plain.spec[c.J_ESTIMATE].tolist()]
    assert set(lying.truth[y.Y_BOAST].tolist()) == {500_000}
    assert set(prepare(asked(liars="1")).workload.truth[y.Y_BOAST].tolist()) == {1_000_000}
    assert len({plain.sha256, scaled.sha256, lying.sha256}) == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"estimate_scale": "x"}, 'estimate-scale: expected a number, got "x"'), ({"estimate_scale": "nan"}, "estimate-scale: expected"),
        ({"estimate_scale": "0"}, "estimate-scale: expected a number from"), ({"liars": ""}, "liars: expected a number"),
        ({"liars": "0.5:"}, "liars: expected a number"), ({"liars": "2"}, "liars: expected a share from 0 to 1"),
        ({"liars": "0.5:0"}, "liars: expected a factor from 1 to 100"),
    ],
)  # fmt: skip
def test_words_that_are_refused(changed: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        prepare(asked(**changed))
    assert str(error.value).startswith(message)
