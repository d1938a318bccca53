"""MLF-C: which rule is in force, who has done enough, and whole runs of jobs with known curves."""

from __future__ import annotations

import numpy as np
import pytest
from tests.policies.mlfs.known_curves import load_of

from headway.core import columns as c
from headway.core.columns import EventKind, Reason, StopRule
from headway.core.errors import UserError
from headway.core.events import EventBatch
from headway.core.state import State
from headway.core.view import ClusterView
from headway.metrics.fold import M_ACCURACY, MetricsFold
from headway.perf.forecast import reach_probability
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_PLATEAU_SPREAD, C_SLOPE, WIDTH
from headway.policies.mlfs.load_control import (
    LoadControlParams,
    enough,
    free_milli,
    mean_load,
    of_now,
    overloaded,
    rules,
    targets,
    unlikely,
)
from headway.policies.registry import choose, make_policy
from headway.sim.run import Simulation, simulate
from headway.sim.world import World
from headway.testing.builders import cluster, job, state, workload
from headway.workloads.schema import Workload

US = 1_000_000
FIXED, OPTSTOP, ACCURACY = StopRule.FIXED, StopRule.OPTSTOP, StopRule.ACCURACY
ALLOW_BOTH, ALLOW_ACCURACY = 1 << OPTSTOP | 1 << ACCURACY, 1 << ACCURACY


def rule_of(choice: StopRule, allow: int, *, over: bool, required: float = 0.8, lost: bool = False) -> StopRule:
    J = np.zeros((c.JOB_COLUMNS, 1), np.int64)
    J[c.J_STOP_RULE], J[c.J_STOP_ALLOW] = choice, allow
    return StopRule(int(rules(J, np.array([required]), np.array([lost]), over)[0]))


def test_downgrades_only_under_overload_only_as_allowed_and_never_upward() -> None:
    assert rule_of(FIXED, ALLOW_BOTH, over=False) == FIXED
    assert rule_of(FIXED, ALLOW_BOTH, over=True) == ACCURACY, "that saves most"
    assert rule_of(FIXED, 1 << OPTSTOP, over=True) == OPTSTOP
    assert rule_of(OPTSTOP, ALLOW_ACCURACY, over=True) == ACCURACY
    assert rule_of(FIXED, 0, over=True) == FIXED and rule_of(OPTSTOP, 0, over=True) == OPTSTOP
    assert rule_of(ACCURACY, ALLOW_BOTH, over=True) == ACCURACY
    assert rule_of(OPTSTOP, ALLOW_ACCURACY, over=True, required=0) == OPTSTOP, "no accuracy is asked for"
    assert rule_of(OPTSTOP, ALLOW_ACCURACY, over=True, lost=True) == OPTSTOP, "an accuracy out of reach saves nothing"


NEAR = LoadControlParams(near=0.005)


@pytest.mark.parametrize(
    ("rule", "level", "best", "required", "lost", "stops"),
    [
        (FIXED, 0.9, 0.9, 0.5, False, False),
        (OPTSTOP, 0.900, 0.904, 0.85, False, True),
        (OPTSTOP, 0.900, 0.906, 0.85, False, False),
        (OPTSTOP, 0.900, 0.904, 0.91, False, False),  # never before the required accuracy while it is in reach
        (OPTSTOP, 0.900, 0.904, 0.95, True, True),
        (OPTSTOP, 0.900, 0.904, 0.0, False, True),
        (ACCURACY, 0.853, 0.95, 0.85, False, True),
        (ACCURACY, 0.851, 0.95, 0.85, False, False),
        (ACCURACY, 0.80, 0.81, 0.85, True, False),  # out of reach: as OptStop
        (ACCURACY, 0.80, 0.803, 0.85, True, True),
    ],
)
def test_who_has_done_enough(rule: StopRule, level: float, best: float, required: float, lost: bool, stops: bool) -> None:
    curve = np.zeros((1, WIDTH))
    curve[0, C_LEVEL], curve[0, C_PLATEAU] = level, best
    assert bool(enough(curve, np.array([required]), np.array([lost]), np.array([rule]), NEAR)[0]) == stops


def test_the_literal_sentence_stops_what_is_out_of_reach() -> None:
    curve = np.zeros((1, WIDTH))
    curve[0, C_LEVEL], curve[0, C_PLATEAU] = 0.5, 0.7
    one = np.array([0.85]), np.array([True]), np.array([ACCURACY])
    assert not enough(curve, *one, LoadControlParams())[0] and enough(curve, *one, LoadControlParams(literal=True))[0]


def test_the_load_of_a_cluster_by_hand() -> None:
    """One of two nodes: 3 of 4 GPUs used, half of the cpus: RMS √((0.5625 + 0.25) / 4) = 0.4507; the other is idle."""
    where = cluster([4, 4], cpus=6, memory_bytes=10**12, network_bytes_per_s=10**9)
    made = state(where, [job("a", 3, cpus=1)], running={"a": [(0, [0]), (0, [1]), (0, [2])]})
    assert mean_load(made, "rms") == pytest.approx(0.4507 / 2, abs=1e-4)
    assert mean_load(made, "l2") == pytest.approx(0.9014 / 2, abs=1e-4)


def test_queued_jobs_mean_overload_once_they_have_waited_a_tick_and_fit_nowhere() -> None:
    made = state([2], [job("a", 2), job("b", 1, submit_s=5)], running={"a": [(0, [0]), (0, [1])]}, at_s=5)
    plan = make_policy("fifo").decide(view_at(made, 20), None)
    assert overloaded(made, plan, 20 * US, LoadControlParams()) == (False, 65 * US), "it has not waited a tick: look again then"
    assert overloaded(made, plan, 65 * US, LoadControlParams())[0]
    assert not overloaded(made, plan, 65 * US, LoadControlParams(queue="none"))[0]
    assert free_milli(made, plan) == 0
    roomy = state([2, 2], [job("a", 2), job("b", 1, submit_s=5)], running={"a": [(0, [0]), (0, [1])]}, at_s=5)
    empty = view_at(roomy, 65).draft().plan()
    assert (
        not overloaded(roomy, empty, 65 * US, LoadControlParams())[0]
        and overloaded(roomy, empty, 65 * US, LoadControlParams(queue="any"))[0]
    )


def view_at(made: State, t_s: int) -> ClusterView:
    return ClusterView(made, t_s * US, 0)


# -- whole runs ---------------------------------------------------------------------------------------------------------
def run(load: Workload, gpus: int, policy: str) -> tuple[EventBatch, MetricsFold]:
    outcome = simulate(load, cluster([gpus]), make_policy(policy), interval_s=60, keep_journal=True)
    assert outcome.journal is not None
    return outcome.journal, outcome.metrics


def ended_s(journal: EventBatch) -> dict[int, float]:
    R = journal.records
    ends = R[
        (R[:, c.E_KIND] == EventKind.COMPLETED) | ((R[:, c.E_KIND] == EventKind.STOPPED) & (R[:, c.E_A] == Reason.EARLY_STOP))
    ]
    return {int(r[c.E_ID]): float(r[c.E_T]) / US for r in ends}


def test_optstop_ends_a_job_near_its_best_and_counts_it_as_completed() -> None:
    """With nothing in the queue. 0.005 from 0.8378 is reached at k ≈ 128 of 200; the forecast is on the safe side."""
    journal, metrics = run(load_of(1), 1, "fifo+mlf-c")
    figures = metrics.summary(1)
    assert figures.finished == 1 and 1100 <= ended_s(journal)[0] <= 1800
    assert figures.avg_final_accuracy == pytest.approx(0.834, abs=0.003) and figures.accuracy_ratio == 1.0
    assert ended_s(run(load_of(1), 1, "fifo")[0]) == {0: 2000.0}, "alone, a policy runs all iterations"
    assert ended_s(run(load_of(1, rule=FIXED, allow=0), 1, "fifo+mlf-c")[0]) == {0: 2000.0}, "what the owner asked for"


def test_a_queue_stops_jobs_at_the_required_accuracy_and_an_empty_one_does_not() -> None:
    """Two jobs on one GPU: the first ends after 0.82 (k = 89; later for the slack and the refits), since the other waits. The
    second has no one behind it and goes on to near its best."""
    journal, metrics = run(load_of(2), 1, "fifo+mlf-c")
    first, second = ended_s(journal)[0], ended_s(journal)[1]
    assert 880 <= first <= 1300 and 1100 <= second - first <= 1800 and first + 100 < second - first
    assert metrics.summary(1).accuracy_ratio == 1.0, "never before the required accuracy"
    R = journal.records
    rules_set = [tuple(r) for r in R[R[:, c.E_KIND] == EventKind.RULE_SET][:, [c.E_ID, c.E_A]].tolist()]
    assert (0, ACCURACY) in rules_set
    assert ended_s(run(load_of(2), 1, "fifo+mlf-c:downgrade=false")[0])[0] > first + 100


def test_the_rule_goes_back_when_the_overload_ends() -> None:
    """Two jobs, one GPU; the second is cancelled while the first runs: its rule is OptStop again, and it goes on past 0.82."""
    load = load_of(2)
    world = World(load, cluster([1]), cancels=[(700 * US, 1)])
    outcome = simulate(load, cluster([1]), make_policy("fifo+mlf-c"), interval_s=60, keep_journal=True, world=world)
    assert outcome.journal is not None
    R = outcome.journal.records
    rules_set = R[(R[:, c.E_KIND] == EventKind.RULE_SET) & (R[:, c.E_ID] == 0)][:, [c.E_T, c.E_A]].tolist()
    assert [rule for _, rule in rules_set] == [ACCURACY, OPTSTOP] and rules_set[1][0] == 720 * US
    assert ended_s(outcome.journal)[0] > 1100


def test_a_job_that_was_stopped_for_another_ends_in_the_queue_and_its_accuracy_is_known() -> None:
    """At 1000 s (k = 100: 0.8237, and 0.8 is required) a job of a higher class comes. The first loses its GPU in the round at
    1020 s, with 102 iterations done, waits, and after a tick that means overload: it has done enough, and ends."""
    first, second = job("first", 1, 2000, units=200), job("second", 1, 2000, units=200, submit_s=1000, priority=90)
    journal, metrics = run(load_of(2, required=0.8, sketches=[first, second]), 1, "srtf+mlf-c:near=0.005")
    R = journal.records[journal.records[:, c.E_ID] == 0]
    finished, told = (np.flatnonzero(R[:, c.E_KIND] == kind) for kind in (EventKind.FINISHED, EventKind.EVALUATED))
    assert R[finished, c.E_T].tolist() == R[told, c.E_T].tolist() == [1080 * US]
    rule = np.flatnonzero(R[:, c.E_KIND] == EventKind.RULE_SET)
    assert R[rule, c.E_A].tolist() == [ACCURACY] and rule[0] < finished[0] < told[0], "a rule that is still its own, then its end"
    truth = 0.85 - 0.75 * (1 + 0.15 * 102) ** -1.2
    assert metrics.column(M_ACCURACY)[0] / 1e6 == pytest.approx(truth, abs=1e-6) and metrics.summary(1).accuracy_ratio == 1.0
    assert metrics.summary(1).finished == 2


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.999])
def test_out_of_reach_is_what_the_forecast_holds_for_unlikely(confidence: float) -> None:
    random = np.random.default_rng(5)
    curve, required = np.zeros((500, WIDTH)), random.uniform(0.5, 0.9, 500)
    curve[:, C_PLATEAU], curve[:, C_PLATEAU_SPREAD] = random.uniform(0.5, 0.9, 500), random.uniform(0.001, 0.2, 500)
    expected = reach_probability(curve, required) < 1 - confidence
    assert unlikely(curve, required, confidence).tolist() == expected.tolist()


def test_a_job_that_has_lost_work_has_to_catch_up_with_its_curve() -> None:
    made = state([1], [job("a", 1, units=200)], running={"a": [(0, [0])]})
    J, curve = made.J[:, :1], np.zeros((1, WIDTH))
    curve[0, [C_K_LAST, C_LEVEL, C_PLATEAU, C_SLOPE]] = 100, 0.83, 0.84, 1e-4
    J[c.J_UNITS_DONE], J[c.J_ACCURACY] = 100, 830_000
    assert of_now(J, curve)[0]
    J[c.J_UNITS_DONE] = 80
    assert not of_now(J, curve)[0]
    J[c.J_UNITS_DONE], J[c.J_ACCURACY] = 100, c.NOTHING
    assert not of_now(J, curve)[0], "a curve of the loss is none of the accuracy"


def test_a_queue_that_is_always_full_is_the_most_that_holding_jobs_back_could_gain() -> None:
    """One job, alone: it ends at the required accuracy (k = 89, and what the slack and refits add) as if others waited."""
    assert 880 <= ended_s(run(load_of(1), 1, "fifo+mlf-c:queue=always")[0])[0] <= 1300


@pytest.mark.parametrize("rule", [OPTSTOP, ACCURACY])
@pytest.mark.parametrize(("required", "lost"), [(0.82, False), (0.82, True), (0.0, False)])
def test_the_accuracy_that_is_told_is_that_from_which_the_rule_holds(rule: StopRule, required: float, lost: bool) -> None:
    """By bisection of `enough` over the level, the plateau at 0.84."""
    q, curve = LoadControlParams(), np.zeros((1, WIDTH))
    curve[0, C_PLATEAU] = 0.84
    one = np.array([required]), np.array([lost]), np.array([rule])
    found = float(targets(curve, *one, q)[0])
    low, high = 0.0, 1.0
    for _ in range(50):
        curve[0, C_LEVEL] = (low + high) / 2
        low, high = (low, curve[0, C_LEVEL]) if enough(curve, *one, q)[0] else (curve[0, C_LEVEL], high)
    assert found == (np.inf if rule == ACCURACY and required == 0 and not lost else pytest.approx(high, abs=1e-9))


def test_what_is_told_of_a_running_job() -> None:
    """The first job has run 50 iterations of 200, the second waits."""
    load = load_of(2)
    chosen, seen = choose("fifo+mlf-c"), []

    def look(sim: Simulation) -> None:
        if sim.now_us == 540 * US:
            view = ClusterView(sim.state, sim.now_us, 0)
            seen.append((chosen.policy.outlook(view, None, 0), chosen.policy.outlook(view, None, 1)))  # type: ignore[attr-defined]

    simulate(load, cluster([1]), chosen.policy, interval_s=60, watch=look, skip=False)
    [(told, other)] = seen
    assert (told.chosen, told.allowed, told.overloaded, told.done) == ("optstop", ("accuracy",), True, False)
    assert (told.now.rule, told.overload) == ("accuracy", told.now) and told.now.accuracy == pytest.approx(0.822)
    assert told.now.units == pytest.approx(93, abs=30) and told.final is not None and told.final_spread_90 is not None
    assert abs(told.final - 0.8378) < told.final_spread_90
    assert other.accuracy is None and other.now.accuracy is None and not other.done, "it has told nothing"


def test_an_accuracy_out_of_reach_is_treated_as_optstop() -> None:
    journal, metrics = run(load_of(2, required=0.9, rule=ACCURACY), 1, "fifo+mlf-c")
    assert 1100 <= ended_s(journal)[0] < 2000 and metrics.summary(1).accuracy_ratio == 0.0


def test_jobs_that_tell_nothing_run_to_their_end() -> None:
    plain = workload([job("a", 1, 500), job("b", 1, 500, units=50)])
    assert ended_s(run(plain, 2, "srtf+mlf-c")[0]) == {0: 500.0, 1: 500.0}


def test_it_stands_beside_any_policy_by_its_name() -> None:
    found = choose("tiresias:queues=3+mlf-c:downgrade=false,near=0.01")
    assert found.policy.name == "tiresias+mlf-c" and found.spec == "tiresias:queues=3+mlf-c:downgrade=false,near=0.01"
    assert hasattr(make_policy("tiresias:variant=gittins+mlf-c"), "fold") and not hasattr(make_policy("fifo+mlf-c"), "fold")
    for wrong, words in (
        ("fifo+mlfc", "unknown component beside a policy 'mlfc' (did you mean 'mlf-c'?)"),
        ("fifo+mlf-c:near=nan", "mlf-c: near: expected a number from 0 to 1"),
        ("fifo+mlf-c+mlf-c", "given twice"),
        ("mlf-c", "unknown policy 'mlf-c'"),
    ):
        with pytest.raises(UserError) as error:
            choose(wrong)
        assert words in str(error.value)
