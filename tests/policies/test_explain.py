"""What policies say of a job's standing: the order is the one in which they place jobs, and the terms by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from headway.app.why import memo_of
from headway.core import columns as c
from headway.core.columns import EventKind, Op
from headway.core.events import EventBuffer
from headway.core.explain import Explanation, Term
from headway.core.policy import Policy
from headway.core.state import State
from headway.core.view import ClusterView
from headway.policies.explain import by_arrival
from headway.policies.mlfs import priority as p
from headway.policies.registry import REGISTRY, choose, make_policy
from headway.testing.builders import cluster, job, state
from headway.testing.policy_checks import decided, tables
from headway.testing.views import Case, random_case
from headway.workloads.cluster import Queue
from headway.workloads.schema import plain_spec

US = 1_000_000
EXPLAIN = [name for name in REGISTRY if hasattr(make_policy(name), "explain")]
SPECS = [
    *EXPLAIN, "sjf:unfit=block", "edf:preempt=false", "drf:preempt=false,over=queue", "borg-fair:over=user", "borg-fair:over=job",
    "random:seed=3", "tiresias:variant=gittins", "tiresias:queues=3,promote=1", "las:quantum=2",
    "mlf-h:normalize=false,dag_mode=mean", "mlf-h:migration=false,urgency=false,deadline=false", "graphene:preempt=false",
    "graphene:sharing=true", "graphene:jct=0,fair=1", "srtf:gpus=0.5", "oracle-srtf:gpus=1",
    "slaq:sharing=true,steps=4", "gandiva:slice=100", "gandiva:sharing=true,slice=60",
    "hypersched:sharing=true", "srtf:sharing=true", "borg-fair:sharing=true", "mlf-h+mlf-c", "gandiva:sharing=true+mlf-c",
]  # fmt: skip


def explain(spec: str, view: ClusterView, number: int, memo: Any = None) -> Explanation:
    found: Explanation = made(spec).explain(view, memo, number)  # type: ignore[attr-defined]
    return found


@cache
def made(spec: str) -> Policy:
    """A policy; that it remembers nothing is held elsewhere."""
    return make_policy(spec)


@cache
def drawn(seed: int) -> Case:
    """A random history; it is drawn once for all policies."""
    return random_case(seed)


def terms(found: Explanation) -> dict[str, Term]:
    return {term.name: term for term in found.terms}


def values(found: Explanation) -> dict[str, float | None]:
    return {term.name: term.value for term in found.terms}


def placed_in_turn(spec: str, view: ClusterView, memo: Any) -> list[int]:
    """The waiting jobs that a round places, as the plan lists them: in the order in which the pass came to them."""
    plan = decided(made(spec), view, memo)
    placed = plan.overrides[plan.overrides[:, c.O_OP] == Op.PLACE]
    waits = view.state.J[c.J_PLACED, placed[:, c.O_ROW]] == 0
    return [int(number) for number in placed[waits, c.O_JOB]]


def test_every_policy_that_ships_explains_itself() -> None:
    wanted = "fifo fifo-backfill sjf srtf oracle-srtf las tiresias edf drf borg-fair random".split()
    assert {*wanted, "mlf-h", "graphene", "slaq", "gandiva", "hypersched"} <= set(EXPLAIN)


MIXED = [
    job("a", 2, 500, user=0, queue=0, deadline_s=9000, priority=50),
    job("b", 1, 100, user=0, queue=0, priority=50),
    job("c", 1, 900, user=1, queue=1, deadline_s=800, priority=50),
    job("d", 4, 50, user=1, queue=1, deadline_s=4000, priority=70),
    job("e", 1, 700, user=0, queue=1, deadline_s=100, priority=50),
    job("f", 3, 300, user=1, queue=0, priority=20),
]


@pytest.mark.parametrize("spec", SPECS)
def test_on_a_cluster_with_room_jobs_are_placed_in_the_order_explained(spec: str) -> None:
    filled = state(cluster([8, 8]), MIXED, users=("ann", "bob"), queues=("one", "two"))
    view = ClusterView(filled, 60 * US, 0)
    found = explain(spec, view, 0)
    assert placed_in_turn(spec, view, None) == list(found.order) and len(found.order) == len(MIXED)
    for number in range(len(MIXED)):
        assert explain(spec, view, number).rank == found.order.index(number) + 1


@pytest.mark.parametrize("spec", SPECS)
def test_whatever_has_happened_jobs_are_placed_in_the_order_explained(spec: str) -> None:
    """Also where not all fit, where jobs run, stop, are held or on shares of GPUs: those placed keep the explained order."""
    placed = 0
    for seed in range(40):
        case = drawn(seed)
        view = case.view(seed)
        memo = memo_of(choose(spec), [case.journal])
        turn = placed_in_turn(spec, view, memo)
        before = tables(view.state)
        for row in view.live_rows().tolist():
            number = int(view.state.J[c.J_ID, row])
            found = explain(spec, view, number, memo)
            assert found.rank == (found.order.index(number) + 1 if number in found.order else None)
            assert [number for number in found.order if number in turn] == turn, seed
        assert tables(view.state) == before, "explaining has changed the view"
        placed += len(turn)
    assert placed > 30, "the views leave something to place"


def test_a_policy_without_a_word_has_arrival() -> None:
    view = ClusterView(state(cluster([8, 8]), MIXED[:2]), 0, 0)
    found = by_arrival(view, 1)
    assert found.order == (0, 1) and found.rank == 2


# -- by hand --------------------------------------------------------------------------------------------------------
def running_and_waiting() -> ClusterView:
    """At 0 `a` comes up on two GPUs; it is 1000 s later. `b` waits, and has an estimate of 300 s."""
    jobs = [job("a", 2, 5000, deadline_s=4000), job("b", 1, 300, deadline_s=2500)]
    return ClusterView(state(cluster([2]), jobs, running={"a": [(0, [0]), (0, [1])]}), 1000 * US, 0)


def test_remaining_time_by_hand() -> None:
    view = running_and_waiting()
    a, b = explain("srtf", view, 0), explain("srtf", view, 1)
    assert (values(a)["estimate"], values(a)["run time"], values(a)["remaining"]) == (5000, 1000, 4000)
    assert sum(term.contribution or 0 for term in a.terms) == 4000
    assert (values(b)["remaining"], b.rank, a.rank, a.order) == (300, 1, 2, (1, 0))
    assert explain("sjf", view, 1).order == (1,) and explain("sjf", view, 0).rank is None
    assert values(explain("sjf", view, 0))["remaining"] == 4000


def test_remaining_time_times_gpus_by_hand() -> None:
    """4000 s on two GPUs against 300 s on one; in steps of 10 ms."""
    view = running_and_waiting()
    root, area = explain("srtf:gpus=0.5", view, 0), explain("srtf:gpus=1", view, 0)
    assert (values(root)["remaining"], values(root)["GPUs"], values(root)["area"]) == (4000, 2, 5656.85)
    assert values(area)["area"] == 8000 and values(explain("srtf:gpus=0.5", view, 1))["area"] == 300
    assert root.order == (1, 0) and "GPUs^0.5" in root.words
    assert "area" not in values(explain("srtf", view, 0))


def test_a_job_without_an_estimate_comes_last() -> None:
    unknown = state(cluster([2]), [job("a"), job("b")])
    unknown.J[c.J_ESTIMATE, 0] = c.NEVER
    found = explain("srtf", ClusterView(unknown, 0, 0), 0)
    assert found.rank == 2 and values(found)["estimate"] is None and values(found)["remaining"] is None
    found = explain("srtf:gpus=2", ClusterView(unknown, 0, 0), 0)
    assert found.rank == 2 and values(found)["area"] is None


def test_service_by_hand() -> None:
    """Two GPUs for 1000 s: 2000 GPU·s, in the fourth quantum of 600 (from 0: 3), and in queue 1 of a threshold of 1500."""
    view = running_and_waiting()
    found = values(explain("las:quantum=600", view, 0))
    assert (found["attained"], found["quantum"], found["step"]) == (2000, 600, 3)
    found = values(explain("tiresias:threshold=1500,queues=3,factor=4", view, 0))
    assert (found["attained"], found["counted"], found["queue"], found["queue's end"]) == (2000, 2000, 1, 6000)
    assert found["promotion"] is None
    assert explain("tiresias:threshold=1500", view, 1).order == (1, 0)
    assert explain("tiresias", view, 1).order == (0, 1), "both in the first queue: by arrival"


def test_a_promotion_by_hand() -> None:
    """`a` has run 1000 s and is stopped at 1000: with a knob of 2 it is promoted when it has waited 2000 s, at 3000."""
    view = running_and_waiting()
    out = EventBuffer()
    out.add(1000 * US, EventKind.STOP_REQUESTED, 0, 1, a=c.Reason.PREEMPTED)
    out.add(1000 * US, EventKind.STOPPED, 0, 1, a=c.Reason.PREEMPTED, b=-1)
    view.state.apply(out.take())
    found = values(explain("tiresias:threshold=1500,promote=2", view, 0))
    assert (found["queue"], found["counted"], found["promotion"]) == (1, 2000, 3000)
    found = values(explain("tiresias:threshold=1500,promote=2", ClusterView(view.state, 3000 * US, 0), 0))
    assert (found["queue"], found["attained"], found["counted"]) == (0, 2000, 0)


def test_deadlines_by_hand() -> None:
    view = running_and_waiting()
    found = explain("edf", view, 1)
    assert (values(found)["deadline"], values(found)["slack"], found.order) == (2500, 1500, (1, 0))
    assert explain("edf:preempt=false", view, 1).order == (1,)


def test_shares_by_hand() -> None:
    """Eight GPUs; queue A counts twice. A takes a0 (2 GPUs), B b0 (2), then A at 2/8 ÷ 2 = 1/8 takes a1, before B at 2/8."""
    where = replace(cluster([8]), queues=(Queue("A", weight=2), Queue("B")))
    jobs = [job("a0", 2), job("a1", 2), job("b0", 2, queue=1), job("b1", 2, queue=1)]
    view = ClusterView(state(where, jobs, queues=("A", "B")), 0, 0)
    a1, b1 = explain("borg-fair", view, 1), explain("borg-fair", view, 3)
    assert a1.order == (0, 2, 1, 3) and (a1.rank, b1.rank) == (3, 4)
    assert (values(a1)["ahead of it"], values(a1)["share"], values(a1)["weight"]) == (1, 0.25, 2)
    assert terms(a1)["share"].contribution == 0.125 and terms(b1)["share"].contribution == 0.25


def test_a_dominant_share_by_hand() -> None:
    """10 cpus and 4 GPUs: a job of one GPU and 5 cpus has half of the cpus."""
    where = cluster([4], cpus=10)
    jobs = [job("a", 1, cpus=5), job("b", 1, cpus=5), job("c", 1, cpus=1, user=1)]
    found = explain("drf", ClusterView(state(where, jobs, users=("ann", "bob")), 0, 0), 1)
    assert values(found)["share"] == 0.5 and found.order == (0, 2, 1)


def mlf_view() -> ClusterView:
    """Two jobs of a chain of two equal parts, and one of a single task. All wait since 0; it is 1800 s."""
    filled = State()
    filled.apply(cluster([2]).events(0, ("user",), ("default",)))
    out = EventBuffer()
    for i, (urgency, estimate_h, due_h, parts) in enumerate([(5, 1.0, 2.5, 2), (8, 2.0, None, 1), (2, 0.5, 6.0, 2)]):
        spec = plain_spec(1)[:, 0]
        for name, value in {
            "urgency": urgency, "estimate": round(estimate_h * 3600 * US), "pipeline": parts, "cut": c.Cut.CHAIN,
            "deadline": c.NEVER if due_h is None else round(due_h * 3600 * US), "units_total": 0,
        }.items():  # fmt: skip
            spec[c.SPEC_COLUMN_NAMES.index(name)] = value
        out.add(0, EventKind.SUBMITTED, i, payload=spec)
    filled.apply(out.take())
    filled.J[c.J_UNITS_TOTAL, 0], filled.J[c.J_UNITS_DONE, 0] = 100, 3
    filled.J[c.J_LOSS_DROPS, 0], filled.J[c.J_LOSS_DROP_LAST, 0] = 700_000_000, 100_000_000
    filled.J[c.J_UNITS_TOTAL, 0] = 0
    return ClusterView(filled, 1800 * US, 0)


def test_mlf_h_by_hand_unscaled() -> None:
    """Job 0: urgency 5, iteration 4, last drop 0.1 of 0.7, a chain of two halves, each with the base 5/4 · 1/7 · ½ = 0.0892857:
    the first task has 1.8 times that, 0.1607143, with γ = 0.8 of the second's. PC: deadline in 2 h, 1 h left, ½ h waited:
    .3/2 + .3 + .35/2 = 0.625, and again 1.8 times that. P = 0.3 · 0.1607143 + 0.7 · 1.125 = 0.8357143."""
    found = explain("mlf-h:normalize=false", mlf_view(), 0)
    v, t = values(found), terms(found)
    assert (v["urgency"], v["iteration"], v["share"]) == (5, 4, 0.5)
    assert v["loss ratio"] == pytest.approx(1 / 7) and v["base ML"] == pytest.approx(0.0892857, abs=1e-7)
    assert (t["dependents ML"].value, t["dependents ML"].contribution) == pytest.approx((0.0892857, 0.0714286), abs=1e-7)
    assert v["PML"] == pytest.approx(0.1607143, abs=1e-7)
    assert (v["deadline"], v["remaining"], v["waiting"]) == pytest.approx((0.5, 1.0, 0.5))
    gives = [t[name].contribution for name in ("deadline", "remaining", "waiting", "dependents PC")]
    assert gives == pytest.approx([0.15, 0.3, 0.175, 0.5]) and v["PC"] == pytest.approx(1.125)
    assert v["P"] == pytest.approx(0.8357143, abs=1e-7)
    assert [score.priority for score in found.tasks] == pytest.approx([0.8357143, 0.3 * 0.0892857 + 0.7 * 0.625], abs=1e-7)
    assert [(score.partition, score.role, score.share) for score in found.tasks] == [(0, "worker", 0.5), (1, "worker", 0.5)]


@pytest.mark.parametrize(
    "spec", ["mlf-h", "mlf-h:normalize=false", "mlf-h:gamma=0,alpha=0.6", "mlf-h:deadline=false,dag_mode=literal"]
)
def test_the_terms_of_mlf_h_add_up(spec: str) -> None:
    """In each sum the contributions give the whole, which is what the kernel ranks by."""
    policy, view = made(spec), mlf_view()
    st = view.state
    tasks = int(st.C[c.C_TASKS])
    ML, CP, P, top = (np.zeros(tasks) for _ in range(4))
    p.priorities(view.now_us, policy.weights, st.J, st.T, st.C, ML, CP, np.zeros(tasks + 1, np.int64), P, top)  # type: ignore[attr-defined]
    for number in range(3):
        found = explain(spec, view, number)
        v, t = values(found), terms(found)
        for whole, parts in {
            "PML": ("base ML", "dependents ML"), "PC": ("deadline", "remaining", "waiting", "dependents PC"),
            "P": ("scaled PML", "scaled PC"),
        }.items():  # fmt: skip
            assert sum(t[name].contribution or 0 for name in parts) == pytest.approx(v[whole]), whole
        factors = (v["urgency"] or 0) / (v["iteration"] or 1) * (v["loss ratio"] or 0) * (v["share"] or 0)
        assert v["base ML"] == pytest.approx(factors) and v["P"] == top[number]
        assert list(found.order) == sorted(range(3), key=lambda i: -top[i])


def test_the_score_of_graphene_by_hand() -> None:
    """Four GPUs, submitted at 0, now 10 s. a: 1 GPU, 30 s, runs since 0: 20 GPU·s left. b: 2 GPUs, 20 s: 40 left. c: 4 GPUs,
    15 s: 60 left; the mean is 40. Demands are a third of 1/4, 2/4, 4/4 (nobody asks for cpus or memory). A fair part is 4/3 of a
    GPU, or what a job asks for: a has all of it, b and c nothing. b: 1 · 1 − 0.1 · 0.5 − 0.2 · 1 = 0.75."""
    jobs = [job("a", 1, 30), job("b", 2, 20), job("c", 4, 15)]
    view = ClusterView(state(cluster([4]), jobs, running={"a": [(0, [0])]}, at_s=0), 10 * US, 0)
    found = explain("graphene:fair=0.2", view, 1)
    v, t = values(found), terms(found)
    assert (v["work left"], v["mean work"], v["work"], v["size"], v["lacks"]) == (40, 40, 1, 0.5, 1)
    assert v["demand"] == pytest.approx(1 / 6) and v["fair part"] == pytest.approx(4 / 3)
    assert [t[name].contribution for name in ("work", "size", "lacks")] == pytest.approx([1.0, -0.05, -0.2])
    assert v["score"] == pytest.approx(0.75, abs=2e-5) and (found.order, found.rank, found.stops) == ((0, 1, 2), 2, True)
    assert values(explain("graphene:fair=0.2", view, 0))["score"] == pytest.approx(0.5 - 0.1 * 0.25, abs=2e-5)
    assert explain("graphene:preempt=false", view, 1).order == (1, 2)


def test_graphene_puts_jobs_without_an_estimate_last_and_they_change_nothing_for_the_others() -> None:
    jobs = [job("a", 1, 30), job("b", 2, 20), job("c", 1, 15), job("d", 2, 15)]
    made_of = state(cluster([4]), jobs)
    made_of.J[c.J_ESTIMATE, [0, 3]] = c.NEVER
    view = ClusterView(made_of, 0, 0)
    found = explain("graphene", view, 0)
    assert found.order == (2, 1, 0, 3) and values(found)["work left"] is None
    assert values(found)["mean work"] == (40 + 15) / 2, "of b and c alone"
    assert values(found)["work"] == pytest.approx(1 / 1.5), "one GPU, where such jobs have one and two"
    assert explain("graphene:jct=0,fair=0", view, 0).order == (1, 3, 0, 2), "where work counts nothing: by demand"


def test_the_gain_of_slaq_by_hand() -> None:
    """100 units in 100 s, an epoch of 10 s, two GPUs: from 1/(1 + 0) to 1/(1 + 9.9), halved; 1/2 to 1/4 is the second step."""
    view = ClusterView(state(cluster([4]), [job("a", 2, 100, units=100), job("b", 1, 100, units=100)]), 0, 0)
    found = explain("slaq:epoch=10", view, 0)
    v = values(found)
    assert (v["done"], v["in all"], v["speed"], v["ahead"], v["GPUs"], v["fitted at"]) == (0, 100, 1, 10, 2, None)
    assert v["fall"] == pytest.approx(1 - 1 / 10.9) and v["gain"] == pytest.approx((1 - 1 / 10.9) / 2)
    assert (v["step"], found.order, found.rank) == (2, (1, 0), 2)
    assert values(explain("slaq:epoch=10", view, 1))["step"] == 1


def test_slaq_of_a_job_that_tells_nothing_counts_seconds() -> None:
    """It has run 20 of 100 s by its estimate."""
    made_of = state(cluster([1]), [job("a", 1, 100)], running={"a": [(0, [0])]}, at_s=0)
    found = values(explain("slaq:epoch=10", ClusterView(made_of, 20 * US, 0), 0))
    assert (found["done"], found["in all"], found["speed"], found["ahead"]) == (20, 100, 1, 10)


def test_the_gain_of_hypersched_by_hand() -> None:
    """It has done 50 of 100 units in 50 s and is due at 90 s: 40 units ahead. Its curve stands at 0.3, ends at 0.9, and has half
    of its way done 100 units on: 0.6 · (1 − 1/1.4) in 40 s on one GPU. The step is ⌊−log₂⌋ of that, less 10 for its place."""
    made_of = state(
        [1], [job("a", 1, 100, units=100, deadline_s=90), job("b", 1, 400, units=400)], running={"a": [(0, [0])]}, at_s=0
    )
    out = EventBuffer()
    out.add(50 * US, EventKind.OBSERVED, 0, 1, a=50, b=c.NOTHING, c=300_000)
    curve = np.array([50, 0.3, 0.006, 0.01, 1.0, 0.9, 0.01, 0.1])
    out.add(50 * US, EventKind.ESTIMATED, 0, a=int(c.Estimator.CURVE), b=1, payload=curve.view(np.int64))
    made_of.apply(out.take())
    view = ClusterView(made_of, 50 * US, 0)
    found = explain("hypersched:review=1", view, 0)
    v, gain = values(found), 0.6 * (1 - 1 / 1.4)
    assert (v["deadline"], v["done"], v["in all"], v["speed"], v["ahead"], v["stick"]) == (90, 50, 100, 1, 40, 10)
    assert v["gain"] == pytest.approx(gain) and v["gain rate"] == pytest.approx(gain / 40)
    assert v["step"] == np.floor(-np.log2(gain / 40)) - 10 and v["remaining"] == 50
    late = explain("hypersched:review=1", ClusterView(made_of, 89 * US, 0), 0)
    assert values(late)["step"] is None and "paused" in late.words and late.order == (1, 0)


def test_turns_of_gandiva_by_hand() -> None:
    """Slices of 100 s. `a` runs since 0, `b` since 110; `c` waits since 120, `d` since 20: at 150 `a` is past its slice, and
    `b` is not."""
    made_of = state(cluster([2]), [job("a"), job("b"), job("c"), job("d")], running={"a": [(0, [0])]}, at_s=0)
    out = EventBuffer()
    out.add(110 * US, EventKind.START_REQUESTED, 1, 1, b=1, payload=[0, 2, c.WHOLE])
    out.add(110 * US, EventKind.STARTED, 1, 1)
    made_of.apply(out.take())
    made_of.J[c.J_QUEUED_AT, 2:4] = 120 * US, 20 * US
    found = explain("gandiva:slice=100", ClusterView(made_of, 150 * US, 0), 3)
    assert (found.order, found.rank, found.stops) == ((1, 3, 2, 0), 2, True)
    assert values(found)["queued at"] == 20 and "running for" not in values(found)
    found = explain("gandiva:slice=100", ClusterView(made_of, 150 * US, 0), 0)
    assert (values(found)["running for"], values(found)["slice's end"], found.rank) == (150, 100, 4)
    assert explain("gandiva:slice=100", ClusterView(made_of, 99 * US, 0), 0).rank == 1


def test_load_control_hands_the_question_on() -> None:
    view = running_and_waiting()
    assert explain("srtf+mlf-c", view, 1) == explain("srtf", view, 1)
