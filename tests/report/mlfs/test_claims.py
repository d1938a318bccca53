"""Paper says, we measured: verdicts on numbers made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from headway.report.mlfs.claims import CANNOT, DOES_NOT, HOLDS, claims, judge, judge_order, judge_ratio, judge_study
from headway.report.mlfs.content import EQUAL, PAPER, Block, gain
from headway.report.mlfs.paper import Order, Ratio, Study, paper

SEEDS = (100, 101, 102, 103, 104)
Values = Mapping[str, Sequence[float | None]]


def block(key: str, values: Values, *, load: int = 1860, missing: Mapping[str, str] | None = None, **more: Any) -> Block:
    """A block of one load, in which each method's policy has the method's name and `key` these values, seed by seed."""
    methods = {name: name for name in values if name in paper().figures[0].methods or name == "mlf-h+mlf-c"}
    runs = {
        (name, load, key == "overloads"): [None if v is None else {key: v, **more} for v in of] for name, of in values.items()
    }
    seeds = tuple(range(100, 100 + len(next(iter(values.values())))))
    return Block("testbed", "stress", (load,), seeds, {PAPER: methods, EQUAL: {}}, {PAPER: missing or {}}, runs, studies=True)


def about(middle: float) -> list[float]:
    """Five values around one."""
    return [middle * k for k in (0.98, 0.99, 1.0, 1.01, 1.02)]


def test_an_order_holds_only_where_the_interval_says_so() -> None:
    order = Order("avg_jct_s", "4(b)", (("mlf-h",), ("graphene",), ("slaq",)), False, "")
    values = {"mlf-h": about(70), "graphene": about(100), "slaq": [90, 120, 95, 130, 80]}
    first, second = judge_order(block("avg_jct_s", values), order)
    assert (first.says, first.verdict, first.reason) == ("MLF-H < Graphene", HOLDS, "")
    assert first.gain is not None and first.gain.median_frac == pytest.approx(0.30)
    assert (second.says, second.verdict) == ("Graphene < SLAQ", DOES_NOT)
    assert second.reason == "Graphene and SLAQ can't be told apart"


def test_a_figure_of_which_more_is_better_is_ordered_the_other_way() -> None:
    order = Order("deadline_ratio", "4(c)", (("mlf-h",), ("tiresias",)), False, "")
    (claim,) = judge_order(block("deadline_ratio", {"mlf-h": about(0.5), "tiresias": about(0.8)}), order)
    assert (claim.says, claim.verdict, claim.reason) == ("MLF-H > Tiresias", DOES_NOT, "MLF-H is worse than Tiresias")


def test_methods_that_are_missing_are_named_and_their_neighbours_meet() -> None:
    order = Order("avg_jct_s", "4(b)", (("mlf-rl",), ("mlf-h",), ("graphene",), ("tiresias",)), False, "")
    found = list(
        judge_order(block("avg_jct_s", {"mlf-h": about(70), "tiresias": about(90)}, missing={"graphene": "none"}), order)
    )
    assert [(claim.says, claim.verdict) for claim in found] == [
        ("MLF-H < Tiresias", HOLDS),
        ("the place of MLF-RL, Graphene", CANNOT),
    ]
    assert found[1].reason == "MLF-RL: not among the methods of this run; Graphene: none"


def test_about_equal_is_within_a_tenth() -> None:
    order = Order("avg_jct_s", "4(b)", (("tiresias", "gandiva"),), False, "")
    (near,) = judge_order(block("avg_jct_s", {"tiresias": about(100), "gandiva": about(105)}), order)
    (far,) = judge_order(block("avg_jct_s", {"tiresias": about(100), "gandiva": about(125)}), order)
    assert (near.says, near.verdict) == ("Tiresias ≈ Gandiva", HOLDS)
    assert (far.verdict, far.reason) == (DOES_NOT, "Tiresias and Gandiva are not within ±10%")


def test_few_seeds_claim_nothing() -> None:
    order = Order("avg_jct_s", "4(b)", (("mlf-h",), ("tiresias",)), False, "")
    (claim,) = judge_order(block("avg_jct_s", {"mlf-h": [50, 50], "tiresias": [100, 100]}), order)
    assert (claim.verdict, claim.reason) == (CANNOT, "2 pairs of runs: an interval needs 5")


@pytest.mark.parametrize(
    ("ours", "claimed", "expected"),
    [
        (66, 0.34, (HOLDS, "")),  # as stated
        (74, 0.34, (HOLDS, "")),  # 26 % is more than three quarters of 34 %
        (80, 0.34, (DOES_NOT, "better, by less than 25.5\u00a0%")),
        (120, 0.34, (DOES_NOT, "worse")),
        (100, 0.34, (DOES_NOT, "the interval includes 0")),
        (112, -0.14, (HOLDS, "")),  # a price of 12 %
        (103, -0.14, (HOLDS, "costs less than that")),
        (130, -0.14, (DOES_NOT, "costs more than that")),
    ],
)
def test_a_stated_gain(ours: float, claimed: float, expected: tuple[str, str]) -> None:
    noise = (0.0, 0.001, -0.001, 0.002, -0.002)
    assert judge(gain("avg_jct_s", [ours * (1 + e) for e in noise], [100.0] * 5), claimed) == expected


def test_a_gain_for_which_there_is_no_room_cannot_hold() -> None:
    ratio = Ratio("deadline_ratio", "deadlines kept", "4(c)", False, (("mlfs", "hypersched", 0.47, 0.43),))
    (claim,) = judge_ratio(block("deadline_ratio", {"mlf-h+mlf-c": about(0.95), "hypersched": about(0.80)}), ratio, paper())
    assert claim.verdict == CANNOT and claim.reason == "HyperSched is at 0.80 already: no more than +25\u00a0% is left (A27)"
    assert claim.stand_in and claim.says == "MLFS*: +47\u00a0% against HyperSched (its own figure: +49.2\u00a0%)"


def test_a_makespan_cannot_be_shorter_than_the_arrivals() -> None:
    ratio = Ratio("makespan_s", "makespan", "no figure", False, (("mlfs", "slaq", 0.52, 0.39),))
    made = block("makespan_s", {"mlf-h+mlf-c": about(98), "slaq": about(100)}, span_s=95.0)
    (claim,) = judge_ratio(made, ratio, paper())
    assert (claim.verdict, claim.reason) == (CANNOT, "the arrivals alone take 95% of SLAQ's makespan (A28)")


def test_a_study_counts_overloads_in_runs_of_their_own() -> None:
    study = Study("migration", "8(a)", "overloads", "overloaded servers", (0.36, 0.60), "mlf-h", "mlf-h:migration=false", (), ())
    made = block("overloads", {"mlf-h": about(60), "mlf-h:migration=false": about(200)})
    claim = judge_study(made, study)
    assert claim.verdict == HOLDS and claim.gain is not None and claim.gain.median_frac == pytest.approx(0.70)
    assert judge_study(block("overloads", {"mlf-h": about(60)}), study).verdict == CANNOT


def test_every_claim_of_the_paper_is_judged() -> None:
    found = claims(block("avg_jct_s", {"mlf-h": about(70)}), paper())
    assert {claim.kind for claim in found} == {"order", "ratio", "study"}
    assert sum(claim.kind == "ratio" for claim in found) == 40 and sum(claim.kind == "study" for claim in found) == 10
    assert all(claim.to_json()["verdict"] == CANNOT for claim in found)


def test_the_papers_numbers() -> None:
    """A few that its abstract and text state, and that all figures are whole."""
    read = paper()
    jct = read.figure("avg_jct_s")
    assert jct is not None and jct.at("mlfs", 1860) == 50 * 60 and jct.at("slaq", 1860) == 106 * 60 and jct.at("mlfs", 7) is None
    assert all(len(of) == len(figure.loads) == 5 for figure in read.figures for of in figure.methods.values())
    assert {len(figure.methods) for figure in read.figures} == {10} and len(read.figures) == 14
    assert all(len(study.with_values) == len(study.without_values) == 5 for study in read.studies)
    ours, theirs = jct.methods["mlfs"][-1], jct.methods["slaq"][-1]
    assert (theirs - ours) / theirs == pytest.approx(0.53, abs=0.005)  # the abstract's 53 %
    migration = next(s for s in read.studies if s.key == "overloads")
    assert migration.with_values[0] / migration.without_values[0] == pytest.approx(1 - 0.37, abs=0.005)
