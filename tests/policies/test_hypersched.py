"""HyperSched by hand: who gains most before the deadline runs, who gains nothing is paused."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind, Op
from headway.core.events import EventBuffer
from headway.core.plan import Plan
from headway.core.state import State
from headway.core.view import ClusterView
from headway.policies.hypersched import HyperSched, gains, run_us
from headway.policies.registry import make_policy
from headway.testing.builders import JobSketch, job, state

US = 1_000_000


def rising(k: float, level: float, plateau: float) -> list[float]:
    """A CURVE vector: Optimus' curve, half of what is left done after 100 units more."""
    way = plateau - level
    return [k, level, way / 100, 0.01, 1.0, plateau, 0.01, 0.1]


FLAT = [50.0, 0.7, 0.0, 1.0, 1.0, 0.7, 0.01, 0.1]


def told(made: State, number: int, units: int, accuracy: float, curve: Sequence[float] | None = None, t_s: float = 50) -> None:
    out = EventBuffer()
    out.add(round(t_s * US), EventKind.OBSERVED, number, 1, a=units, b=c.NOTHING, c=round(accuracy * 1e6))
    if curve is not None:
        out.add(round(t_s * US), EventKind.ESTIMATED, number, a=int(Estimator.CURVE), b=1,
                payload=np.array(curve, np.float64).view(np.int64))  # fmt: skip
    made.apply(out.take())


def decided(made: State, t_s: float, spec: str = "hypersched:review=1") -> Plan:
    return make_policy(spec).decide(ClusterView(made, round(t_s * US), 0), None)


def ops(plan: Plan) -> dict[int, Op]:
    return {int(o[c.O_JOB]): Op(int(o[c.O_OP])) for o in plan.overrides if o[c.O_OP] != Op.WHY}


def two(first: JobSketch, second: JobSketch, curve: Sequence[float] | None) -> State:
    """The first runs on the only GPU and has told of 50 units in 50 s; the second waits."""
    made = state([1], [first, second], running={"a": [(0, [0])]}, at_s=0)
    told(made, 0, 50, 0.7, curve)
    return made


def test_a_job_whose_accuracy_is_flat_is_paused() -> None:
    """It would end sooner than the new one, and has been there longer; but it gains nothing any more."""
    made = two(job("a", 1, 100, units=100), job("b", 1, 400, units=400), FLAT)
    assert ops(decided(made, 50)) == {0: Op.RELEASE, 1: Op.PLACE}


def test_a_job_that_rises_runs_on() -> None:
    made = two(job("a", 1, 100, units=100), job("b", 1, 400, units=400), rising(50, 0.3, 0.9))
    assert ops(decided(made, 50)) == {}


def test_a_paused_job_runs_where_nobody_else_wants_to() -> None:
    made = two(job("a", 1, 100, units=100), job("b", 1, 400, units=400, priority=10), FLAT)
    assert ops(decided(made, 50)) == {}  # of lower priority


@pytest.mark.parametrize("deadline_s", [50.0, 50.4, 10.0])
def test_a_job_that_cannot_gain_before_its_deadline_yields(deadline_s: float) -> None:
    """0.4 s are 0.4 units: a gain of 0.6 · (1 − 1/1.004) = 0.0024, below what is significant (0.1)."""
    made = two(job("a", 1, 100, units=100, deadline_s=deadline_s), job("b", 1, 400, units=400), rising(50, 0.3, 0.9))
    assert ops(decided(made, 50)) == {0: Op.RELEASE, 1: Op.PLACE}
    made = two(job("a", 1, 100, units=100, deadline_s=90), job("b", 1, 400, units=400), rising(50, 0.3, 0.9))
    assert ops(decided(made, 50)) == {}


def test_among_the_paused_the_shortest_goes_first() -> None:
    made = two(job("a", 1, 1000, units=1000), job("b", 1, 40, units=40, deadline_s=1), FLAT)
    assert ops(decided(made, 50)) == {0: Op.RELEASE, 1: Op.PLACE}


def test_the_gain_by_hand() -> None:
    """Level 0.3, plateau 0.9, rate 0.01, power 1: after 40 units more 0.3 + 0.6 · (1 − 1/1.4) = 0.3 + 0.171429."""
    made = two(job("a", 1, 100, units=100, deadline_s=90), job("b", 2, 100, units=100, workers=2), rising(50, 0.3, 0.9))
    rows = np.array([0, 1])
    gain, density = gains(made, rows, 50 * US, run_us(made.J[:, rows], 50 * US), 1.0)
    assert gain[0] == pytest.approx(0.6 * (1 - 1 / 1.4))
    assert density[0] == pytest.approx(0.6 * (1 - 1 / 1.4) / 40)
    assert gain[1] == pytest.approx(1.0)  # nothing known: all of an accuracy of 1
    assert density[1] == pytest.approx(1 / 200)


def test_curves_are_asked_for_as_reports_come_in() -> None:
    made = two(job("a", 1, 100, units=100), job("b", 1, 400, units=400), None)
    assert [(r.estimator, r.job) for r in decided(made, 50).requests] == [(Estimator.CURVE, 0)]
    made = two(job("a", 1, 100, units=100), job("b", 1, 400, units=400), rising(50, 0.3, 0.9))
    assert decided(made, 50).requests == ()
    told(made, 0, 70, 0.72, t_s=60)
    assert [r.job for r in decided(made, 60).requests] == [0]


def test_it_says_that_it_asks() -> None:
    policy = make_policy("hypersched")
    assert isinstance(policy, HyperSched) and policy.asks
