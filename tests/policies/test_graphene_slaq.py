"""The orders of graphene and slaq, with scores and gains by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind, Op
from headway.core.events import EventBuffer
from headway.core.view import ClusterView
from headway.policies.graphene import STEPS, graphene_keys
from headway.policies.registry import make_policy
from headway.policies.slaq import F_K_LAST, F_LEVEL, F_PLATEAU, F_POWER, F_RATE, F_SLOPE, gain, slaq_keys, step_of
from headway.testing.builders import JobSketch, cluster, job, state

US = 1_000_000
KEY = (1 << 34) - 1


def keys(filled: np.ndarray, count: int) -> dict[int, int]:
    """The policy's own key by row."""
    return {int(key) & c.ROW_MASK: int(key) >> c.ROW_BITS & KEY for key in filled[:count]}


def test_the_score_of_graphene_by_hand() -> None:
    """Four GPUs, submitted at 0, now 10 s. a: 1 GPU, 30 s, runs since 0: 20 GPU·s left. b: 2 GPUs, 20 s: 40 left. c: 4 GPUs,
    15 s: 60 left. The mean is 40. Demands are 1/4, 2/4, 4/4 of the GPUs, over the largest .25, .5, 1. Fair is 4/3 of a GPU: a
    has all that it asks for; the others have nothing, and lack all."""
    jobs = [job("a", 1, 30), job("b", 2, 20), job("c", 4, 15)]
    made = state(cluster([4]), jobs, running={"a": [(0, [0])]}, at_s=0)
    placed, waiting = np.zeros(3, np.int64), np.zeros(3, np.int64)
    weights = np.array([1.0, 0.1, 0.2])
    p, w = graphene_keys(made.J, made.N, made.C, 10 * US, False, weights, placed, waiting)
    found = {**keys(placed, p), **keys(waiting, w)}
    by_hand = {0: 0.5 - 0.1 * 0.25, 1: 1.0 - 0.1 * 0.5 - 0.2, 2: 1.5 - 0.1 - 0.2}
    assert {row: key / STEPS - 0.3 for row, key in found.items()} == pytest.approx(by_hand, abs=2 / STEPS)


def test_graphene_deals_the_largest_shares_first() -> None:
    """0.3 and 0.6 go on one GPU; of 0.4 and 0.6 the second is dealt first."""
    jobs = [job("a", 1.2, 10, workers=2, share=True)]
    made = state(cluster([2], share_limit=0.9), jobs)
    made.T[c.T_GPU, :2] = 300, 600
    plan = make_policy("graphene:sharing=true").decide(ClusterView(made, 0, 0), None)
    assert plan.places[:2].tolist() == [[0, 1, 300], [0, 1, 600]]
    made.T[c.T_GPU, :2] = 400, 600
    plan = make_policy("graphene:sharing=true").decide(ClusterView(made, 0, 0), None)
    assert plan.places[:2].tolist() == [[0, 2, 400], [0, 1, 600]], "the second task was dealt first, to the lowest GPU"


def learner(name: str, gpus: int = 1) -> JobSketch:
    return job(name, gpus, 100, units=100)


def test_the_gain_without_a_fit() -> None:
    """100 units in 100 s: in 10 s from 1/(1 + 0) to 1/(1 + 9.9)."""
    made = state(cluster([4]), [learner("a")])
    assert gain(made.J, made.F, 0, 0, 10.0 * US) == pytest.approx(1 - 1 / 10.9)


def test_the_gain_with_a_fit() -> None:
    """1/(0.5 k + 2) + 0.1, told of at k = 20: 20 units took 40 s, so 10 s are five: 1/12 − 1/14.5 of the fall of 1/2."""
    made = state(cluster([4]), [learner("a")])
    made.J[c.J_UNITS_DONE, 0], made.J[c.J_RUN, 0] = 20, 40 * US
    way = 1 / 12
    for row, value in (
        (F_K_LAST, 20),
        (F_LEVEL, way + 0.1),
        (F_SLOPE, -0.5 * way**2),
        (F_RATE, 0.5 / 12),
        (F_POWER, 1),
        (F_PLATEAU, 0.1),
    ):
        made.F[row, 0] = value
    assert gain(made.J, made.F, 0, 0, 10.0 * US) == pytest.approx(2 * (1 / 12 - 1 / 14.5))
    made.F[F_SLOPE, 0] = 0.01
    assert gain(made.J, made.F, 0, 0, 10.0 * US) == 0, "a loss that rises gains nothing"


def test_steps_of_gains() -> None:
    """One step to a halving: 1 and above, down to 1/2, down to 1/4 …; no gain at all comes last."""
    assert [step_of(value, 1) for value in (1.0, 0.75, 0.5, 0.4, 0.25)] == [1, 1, 2, 2, 3]
    assert step_of(0.0, 1) > step_of(1e-9, 1) > 29


def test_slaq_pauses_who_gains_least() -> None:
    """a has done 90 of its 100 units; b is new. There is one GPU."""
    made = state(cluster([1]), [learner("a"), learner("b")], running={"a": [(0, [0])]}, at_s=0)
    out = EventBuffer()
    out.add(90 * US, EventKind.OBSERVED, 0, 1, a=90, b=10**9, c=0)
    made.apply(out.take())
    plan = make_policy("slaq").decide(ClusterView(made, 90 * US, 0), None)
    ops = [(entry[c.O_OP], entry[c.O_ROW]) for entry in plan.overrides.tolist() if entry[c.O_OP] in (Op.PLACE, Op.RELEASE)]
    assert sorted(ops) == [(Op.PLACE, 1), (Op.RELEASE, 0)]


def test_slaq_asks_for_the_curves_of_those_who_have_gone_on() -> None:
    """An epoch of 20 s at a unit a second: at 5 units nobody is due, at 20 a is."""
    made = state(cluster([1]), [learner("a"), learner("b")], running={"a": [(0, [0])]}, at_s=0)
    found = []
    for t in (5, 20):
        out = EventBuffer()
        out.add(t * US, EventKind.OBSERVED, 0, 1, a=t, b=10**9, c=0)
        made.apply(out.take())
        found.append([one.job for one in make_policy("slaq:epoch=20").decide(ClusterView(made, t * US, 0), None).requests])
    assert found == [[], [0]]


def test_more_gpus_want_more_gain() -> None:
    """Two GPUs for the same fall: a step lower."""
    made = state(cluster([4]), [learner("a", 2), learner("b")])
    waiting, ask = np.zeros(2, np.int64), np.zeros(2, np.int64)
    slaq_keys(made.J, made.F, made.C, 0, 10.0 * US, 1, False, np.zeros(2, np.int64), waiting, ask)
    found = keys(waiting, 2)
    assert found[0] == found[1] + 1
