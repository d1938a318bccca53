"""Lying doesn't pay: what a job can gain by what it tells of itself, policy by policy (`docs/fairness.md`)."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.columns import EventKind, Op, StopRule
from headway.core.events import EventBuffer, report_ints
from headway.core.plan import Request
from headway.core.state import State
from headway.core.view import ClusterView
from headway.perf.histories import Histories
from headway.perf.params import C_K_LAST
from headway.policies.hypersched import gains
from headway.policies.mlfs import priority as p
from headway.policies.registry import choose
from headway.policies.slaq import gain
from headway.testing import builders
from headway.testing.builders import job

US = 1_000_000
HOUR_S = 3600
UNITS = 100
FIGURES = st.one_of(st.none(), st.sampled_from([nan, inf, -inf, 0.0, 1e9, -1e9, 1e300]), st.floats(-1e10, 1e10))
REPORTS = st.lists(st.tuples(st.integers(0, UNITS), FIGURES, FIGURES), max_size=20)
ALONE = ["fifo", "fifo-backfill", "srtf", "las", "tiresias", "sjf", "edf", "drf", "borg-fair", "random", "graphene"]
"""Policies to which it is all the same what running jobs tell."""


def observe(state: State, reports: list[tuple[int, float | None, float | None]], number: int = 0) -> None:
    """What a job tells, as the journal would have it."""
    out = EventBuffer()
    for units, loss, accuracy in reports:
        loss_nano, ppm = report_ints(loss, accuracy)
        out.add(int(state.C[c.C_NOW]), EventKind.OBSERVED, number, 1, a=units, b=loss_nano, c=ppm)
    state.apply(out.take())


# -- policies that do not listen ----------------------------------------------------------------------------------------
def crowd(estimate_s: float = 1000) -> State:
    """A running job that may lie, another, and two that wait for the two GPUs."""
    jobs = [job("liar", work_s=1000, estimate_s=estimate_s, units=UNITS), job("b", work_s=900, units=UNITS)]
    jobs += [job("c", work_s=500, submit_s=1, units=UNITS), job("d", 2, work_s=2000, submit_s=2, units=UNITS)]
    return builders.state([2], jobs, running={"liar": [(0, [0])], "b": [(0, [1])]})


@pytest.mark.parametrize("policy", ALONE)
@settings(max_examples=10, deadline=None)
@given(reports=REPORTS)
def test_where_nobody_listens_no_report_moves_anything(
    policy: str, reports: list[tuple[int, float | None, float | None]]
) -> None:  # fmt: skip
    plans = []
    for told in ([], reports):
        state = crowd()
        observe(state, told)
        plan = choose(policy).policy.decide(ClusterView(state, 600 * US, 0), None)
        plans.append((plan.overrides.copy(), plan.places.copy()))
    assert all(np.array_equal(a, b) for a, b in zip(*plans, strict=True))


# -- MLF-H: loss, pace, estimate, deadline ------------------------------------------------------------------------------
def alone(
    run_s: float, *, units: int = UNITS, estimate_s: float = HOUR_S, urgency: int = 5, deadline_s: float | None = None
) -> State:
    """One job with one task that has run for so long and waits now."""
    state = builders.state([1], [job("a", estimate_s=estimate_s, units=units, deadline_s=deadline_s)], running={"a": [(0, [0])]})
    state.J[c.J_URGENCY, 0], state.J[c.J_RUN, 0], state.J[c.J_STARTED_AT, 0] = urgency, round(run_s * US), -1
    return state


def terms(state: State, now_s: float = 0, *, believe: float = 1, **words: str) -> tuple[float, float]:
    """PML and PC of its task."""
    q = ",".join(f"{key}={value}" for key, value in {"believe": f"{believe:g}", **words}.items())
    W = choose(f"mlf-h:{q}").policy.weights  # type: ignore[attr-defined]
    ML, CP = np.zeros(8), np.zeros(8)
    p.job_terms(0, round(now_s * US), W, state.J, state.T, ML, CP, np.zeros(8, np.int64))
    return float(ML[0]), float(CP[0])


def best_honest(iterations: int, urgency: int) -> float:
    """PML of a job whose loss has fallen by as much in each iteration: nobody whose loss flattens out has more (Eq. 2)."""
    return urgency if iterations <= 1 else urgency / iterations / (iterations - 1)


@settings(max_examples=200, deadline=None)
@given(REPORTS, st.integers(0, UNITS - 1), st.integers(1, 10))
def test_whatever_a_job_tells_it_has_no_more_than_the_best_honest_one(
    reports: list[tuple[int, float | None, float | None]], done: int, urgency: int
) -> None:
    """At the pace that it has announced, after `done` of 100 iterations; it may tell less, more or nothing."""
    state = alone(HOUR_S * done / UNITS, urgency=urgency)
    observe(state, reports)
    for believe in (1, 2, 4):
        pml, _ = terms(state, believe=believe)
        reached = int(done / believe) + 1
        bound = urgency if reached <= 1 else urgency / reached * min(1.0, believe / (reached - 1))
        assert 0 <= pml <= bound * (1 + 1e-9)
        if believe == 1:
            assert pml <= best_honest(done + 1, urgency) * (1 + 1e-9)
    assert 0 <= terms(state, believe=0)[0] <= urgency, "even if it is believed all"


@given(st.lists(st.floats(0.001, 10), min_size=2, max_size=40))
def test_an_honest_job_whose_loss_flattens_out_is_believed_in_full(drops: list[float]) -> None:
    """Drops that never grow: the last is at most the mean of all."""
    drops = sorted(drops, reverse=True)
    losses = np.concatenate([[1000.0], 1000.0 - np.cumsum(drops)])
    state = alone(HOUR_S * (len(losses) - 1) / UNITS)
    observe(state, [(k, float(loss), None) for k, loss in enumerate(losses)])
    assert terms(state, believe=1)[0] == pytest.approx(terms(state, believe=0)[0], rel=1e-6)


def test_who_tells_nothing_is_no_new_job_for_ever() -> None:
    """Of 100 iterations in an hour, after 45 minutes: believed in all it is in its first, with all of L = 5."""
    silent = alone(0.75 * HOUR_S)
    assert terms(silent, believe=0)[0] == 5
    assert terms(silent, believe=1)[0] == pytest.approx(5 / 76 / 75)
    assert terms(silent, believe=4)[0] == pytest.approx(5 / 19 * 4 / 18), "the 19th, at a quarter of the pace"
    assert terms(alone(0.75 * HOUR_S, units=0), believe=1)[0] == pytest.approx(5 / 76 / 75), "without units: percent"


def test_losses_that_fall_ever_faster_gain_less_than_believe() -> None:
    """The 20th iteration: losses of a liar, of an even fall, and of an honest 1/k."""

    def told(losses: list[float], believe: float) -> float:
        state = alone(HOUR_S * 19 / UNITS)
        observe(state, [(k, loss, None) for k, loss in enumerate(losses)])
        return terms(state, believe=believe)[0]

    liar, even, honest = [-(2.0**k) for k in range(20)], [-float(k) for k in range(20)], [1 / (k + 1) for k in range(20)]
    assert told(liar, 0) == pytest.approx(5 / 20 / 2, rel=1e-4), "half of all in the last"
    assert told(even, 0) == told(even, 1) == told(liar, 1) == pytest.approx(5 / 20 / 19)
    assert told(liar, 4) == pytest.approx(4 * told(even, 4))
    assert told(honest, 0) == told(honest, 1) == pytest.approx(5 / 20 * (1 / 19 - 1 / 20) / (1 - 1 / 20), rel=1e-6)


def test_an_estimate_far_too_small_helps_until_it_has_been_outrun() -> None:
    """A job of ten hours that says a minute; γ_r = 0.3, the clamp a minute. An honest one has 1/10 h at first."""

    def remaining(estimate_s: float, run_s: float, believe: float) -> float:
        return terms(alone(run_s, estimate_s=estimate_s, units=0), believe=believe, gamma_w="0")[1]

    assert remaining(60, 0, 4) == pytest.approx(0.3 * 60) and remaining(10 * HOUR_S, 0, 4) == pytest.approx(0.03)
    assert remaining(60, 5 * HOUR_S, 0) == pytest.approx(0.3 * 60), "believed in all, it is about to end for ever"
    assert remaining(60, 5 * HOUR_S, 4) == pytest.approx(0.3 / (5 - 4 / 60)) and remaining(10 * HOUR_S, 5 * HOUR_S, 4) == 0.06
    assert remaining(60, 9 * HOUR_S, 4) < remaining(10 * HOUR_S, 9 * HOUR_S, 4) / 8, "late, honesty has more"


def test_a_deadline_that_nobody_could_keep_helps_for_an_hour_and_with_drop_not_at_all() -> None:
    """A job of ten hours that is due in a minute; γ_d = 0.3, the clamp a minute, so a term of 18 against 0.03."""

    def term(deadline_s: float | None, now_s: float, late: str) -> float:
        state = alone(0, units=0, estimate_s=10 * HOUR_S, deadline_s=deadline_s)
        return terms(state, now_s, gamma_r="0", gamma_w="0", late=late)[1]

    assert term(60, 0, "hold") == term(60, 60 + 3599, "hold") == pytest.approx(18) and term(60, 60 + 3601, "hold") == 0
    assert term(60, 0, "drop") == term(60, 3000, "drop") == 0 and term(10 * HOUR_S, 0, "drop") == pytest.approx(0.03)
    assert term(60, 0, "cap") == term(60, 3000, "cap") == pytest.approx(0.03), "no more than one due when it can be done"
    assert term(None, 0, "hold") == 0


# -- SLAQ, HyperSched ---------------------------------------------------------------------------------------------------
def estimated(state: State, reports: list[tuple[int, float | None, float | None]], kind: int) -> State:
    """A running job's reports, and the curve that is fitted to them."""
    histories, out = Histories(), EventBuffer()
    histories.update(builders.submissions(builders.workload([job("a", units=UNITS)])))
    for units, loss, accuracy in reports:
        loss_nano, ppm = report_ints(loss, accuracy)
        out.add(int(state.C[c.C_NOW]), EventKind.OBSERVED, 0, 1, a=units, b=loss_nano, c=ppm)
    batch = out.take()
    histories.update(batch)
    state.apply(batch)
    state.apply(histories.answer(state, [Request(c.Estimator(kind), 0)], int(state.C[c.C_NOW])))
    return state


def running(run_s: float = 600) -> State:
    state = builders.state([1], [job("a", estimate_s=HOUR_S, units=UNITS)], running={"a": [(0, [0])]})
    state.J[c.J_RUN, 0] = round(run_s * US)
    return state


@settings(max_examples=60, deadline=None)
@given(REPORTS)
def test_the_gain_of_slaq_is_never_more_than_all(reports: list[tuple[int, float | None, float | None]]) -> None:
    """A new job gains up to 1/(1 + 0) − 1/(1 + 99) = 0.99 of its whole fall; by telling nobody gets beyond 1."""
    state = estimated(running(), reports, c.Estimator.INVERSE)
    for epoch_s in (1, 300, 1e6):
        assert 0 <= gain(state.J, state.F, 0, int(state.C[c.C_NOW]), epoch_s * US) <= 1 + 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, UNITS), FIGURES, st.floats(0, 1)), max_size=20))
def test_the_gain_of_hypersched_is_never_more_than_all(reports: list[tuple[int, float | None, float | None]]) -> None:
    """Accuracies come in within 0 … 1 (`runtime.progress`)."""
    state = estimated(running(), reports, c.Estimator.CURVE)
    rows = np.zeros(1, np.int64)
    total, _ = gains(state, rows, int(state.C[c.C_NOW]), state.J[c.J_RUN, :1], 1.0)
    assert 0 <= total[0] <= 1 + 1e-6


# -- MLF-C --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("told", "ends"), [("too high", True), ("flat", True), ("rising", False)])
def test_an_accuracy_that_is_told_too_high_ends_the_job_and_one_too_low_buys_nothing(told: str, ends: bool) -> None:
    """A job that stops at an accuracy of 0.9. Told as a low plateau, that is out of reach, which ends it, too; told as rising all
    the time, it goes on to the iterations that it asked for, as any job does that names no stop rule."""
    of = {"too high": lambda k: 0.95 * (1 - 1 / (1 + k)), "flat": lambda k: 0.5 * (1 - 1 / (1 + k)), "rising": lambda k: k / 200}
    state = running()
    state.J[c.J_STOP_RULE, 0] = state.J[c.J_RULE_IN_FORCE, 0] = StopRule.ACCURACY
    state.J[c.J_ACC_REQUIRED, 0] = 900_000
    estimated(state, [(k, None, of[told](k)) for k in range(1, 90)], c.Estimator.CURVE)
    assert state.F[C_K_LAST + 8 * c.Estimator.CURVE, 0] > 0
    plan = choose("fifo+mlf-c").policy.decide(ClusterView(state, int(state.C[c.C_NOW]), 0), None)
    assert bool((plan.overrides[:, c.O_OP] == Op.FINISH).any()) == ends
