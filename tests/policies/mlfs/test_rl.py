"""MLF-RL as a policy: orders, nodes, moves, faults, and what training sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.errors import UserError
from headway.core.policy import Policy, PolicyFault, teacher_of
from headway.core.view import ClusterView
from headway.features.table import ML_COLUMNS, MOVE, RANK, SERVER
from headway.learn.artefact import save_model
from headway.policies.mlfs.net import COLUMNS, Net
from headway.policies.mlfs.policy import MlfH, MlfHParams
from headway.policies.mlfs.rl import Decision, MlfRl, MlfRlParams, bounds_of, keys_of
from headway.policies.mlfs.rl_teach import KEPT, mlf_rl, watch
from headway.policies.registry import make_policy
from headway.sim.run import Outcome, simulate
from headway.testing.builders import cluster, job, state, workload
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

US = 1_000_000


def run(policy: Policy) -> Outcome:
    load = load_workload("mlfs-paper:jobs=120,protocol=overload", seed=5)
    return simulate(load, parse_cluster("4x4"), policy, interval_s=60, strict=True)


def net_with(**weights: float) -> Net:
    """A network of skips alone: `head__column=weight`; what is not named is as in the plain one."""
    arrays = dict(Net.plain().to_arrays())
    for name, weight in weights.items():
        head, _, column = name.partition("__")
        arrays[f"{head}.skip"] = arrays[f"{head}.skip"].copy()
        arrays[f"{head}.skip"][COLUMNS[head].index(column)] = weight
    return Net.from_arrays(arrays)


# -- the rank head ------------------------------------------------------------------------------------------------
def test_the_plain_network_ranks_by_time_left_and_gpus() -> None:
    """Without the advantage of those who run it is `srtf:gpus=0.5`, but for times below half a minute: the same journal."""
    jobs = [job(f"j{i}", 1 + i % 4, 300 + 97 * i, submit_s=13.0 * i) for i in range(12)]
    load, where = workload(jobs), cluster([4, 2])
    ours = simulate(load, where, mlf_rl(net_with(rank__placed=0.0), sharing=False), interval_s=10)
    theirs = simulate(load, where, make_policy("srtf:gpus=0.5"), interval_s=10)
    assert ours.journal_sha256 == theirs.journal_sha256


def test_keys_rank_by_class_then_score_then_row() -> None:
    keys = keys_of(np.array([1.0, 2.0, 2.0, 9.0]), np.array([0, 0, 0, -1]), np.array([3, 5, 4, 1]))
    assert (np.argsort(keys)).tolist() == [2, 1, 0, 3]


def test_scores_beyond_all_bounds_are_still_keys() -> None:
    keys = keys_of(np.array([1e30, -1e30, 0.0]), np.zeros(3, np.int64), np.arange(3))
    assert (np.argsort(keys)).tolist() == [0, 2, 1]
    assert (keys > 0).all()


# -- the server and move heads ------------------------------------------------------------------------------------
@pytest.mark.parametrize("sharing", [True, False])
def test_it_may_choose_any_node(sharing: bool) -> None:
    """Nodes by distance alone, and moves whenever there is one: no plan is refused, and all jobs end."""
    wild = net_with(server__by_pass=0.0, server__far=-5.0, move__stays=-20.0)
    done = run(mlf_rl(wild, sharing=sharing))
    assert done.refused == 0
    assert done.state.C[c.C_FINISHED] == 120
    plain = run(mlf_rl(Net.plain(), sharing=sharing))
    assert plain.journal_sha256 != done.journal_sha256


def test_a_head_that_prefers_the_nearest_takes_mlf_hs_host() -> None:
    """One job on two nodes of which one is in use: MLF-H's ideal host is the empty one, consolidation's the other."""
    made = state(cluster([4, 4]), [job("a", 1, 100), job("b", 1, 100)], running={"a": [(0, (0,))]})
    near = mlf_rl(net_with(server__by_pass=0.0, server__nearest=5.0), sharing=False)
    packed = mlf_rl(Net.plain(), sharing=False)
    plan = near.decide(ClusterView(made, 60 * US, 0), None).copy()
    assert plan.places[:, 0].tolist() == [1]
    assert packed.decide(ClusterView(made, 60 * US, 0), None).places[:, 0].tolist() == [0]


# -- faults -------------------------------------------------------------------------------------------------------
def test_a_score_that_is_no_number_gives_the_round_up() -> None:
    arrays = dict(Net.plain().to_arrays())
    arrays["rank.b3"], arrays["rank.w3"] = np.array([3e38], np.float32), np.full(32, 3e38, np.float32)
    arrays["rank.b2"] = np.full(32, 3e38, np.float32)
    made = state(cluster([4]), [job("a", 1, 100)])
    with pytest.raises(PolicyFault, match="not a finite number"):
        mlf_rl(Net.from_arrays(arrays)).decide(ClusterView(made, 0, 0), None)


def test_beyond_the_trained_range_the_teacher_decides() -> None:
    narrow = {head: np.zeros((len(names), 2), np.float32) for head, names in COLUMNS.items()}
    params = MlfRlParams(sharing=False)
    teacher = MlfH(MlfHParams(sharing=False))
    policy = MlfRl(params, Net.plain(), teacher, narrow)
    made = state(cluster([4]), [job("a", 1, 100)])
    with pytest.raises(PolicyFault, match=r"\d+ % of the features lie outside"):
        policy.decide(ClusterView(made, 0, 0), None)
    assert run(policy).journal_sha256 != run(mlf_rl(Net.plain(), sharing=False)).journal_sha256
    assert MlfRl(replace(params, guard=False), Net.plain(), teacher, narrow).decide(ClusterView(made, 0, 0), None)


def test_ranges_are_widened_a_little() -> None:
    ranges = np.tile(np.array([0.0, 1.0], np.float32), (len(RANK), 1))
    low, high = bounds_of(ranges)
    assert (low[0], high[0]) == (pytest.approx(-0.25), pytest.approx(1.25))
    low, high = bounds_of(np.zeros((len(RANK), 2), np.float32))
    assert (low[0], high[0]) == (pytest.approx(-0.05), pytest.approx(0.05))


def test_an_empty_queue() -> None:
    made = state(cluster([4]), [])
    assert len(mlf_rl(Net.plain()).decide(ClusterView(made, 0, 0), None)) == 0


# -- training -----------------------------------------------------------------------------------------------------
class Notes:
    """Notes decisions, and adds a constant to jobs with odd numbers."""

    def __init__(self, scale: float = 0.0, odd: float = 0.0) -> None:
        self.scale, self.odd = scale, odd
        self.told: list[Decision] = []

    def noise(self, jobs: Ints, now_us: int) -> Floats:
        return np.where(jobs % 2 == 1, self.odd, 0.0)

    def took(self, decision: Decision) -> None:
        self.told.append(decision)


def test_decisions_are_told_as_they_were_made() -> None:
    notes = Notes()
    run(mlf_rl(Net.plain(), explore=notes))
    heads = {d.head for d in notes.told}
    assert heads == {"rank", "server", "move"} or heads == {"rank", "server"}
    for d in notes.told:
        assert d.X.shape[1] == {"rank": len(RANK), "server": len(SERVER), "move": len(MOVE)}[d.head]
        assert d.X.dtype == np.float32
        assert len(set(d.order.tolist())) == len(d.order)
        assert d.order.size == 0 or (d.order.min() >= 0 and d.order.max() < len(d.X))
        if d.head != "rank":
            assert len(d.order) == 1
            assert d.order[0] == np.argmax(d.X @ getattr(Net.plain(), d.head).skip)


def test_noise_changes_the_order() -> None:
    made = state(cluster([1]), [job("a", 1, 100), job("b", 1, 100)])
    view = ClusterView(made, 0, 0)
    first = mlf_rl(Net.plain(), explore=Notes(odd=-5.0)).decide(view, None).overrides[0, c.O_JOB]
    other = mlf_rl(Net.plain(), explore=Notes(odd=5.0)).decide(view, None).overrides[0, c.O_JOB]
    assert (first, other) == (0, 1)


def test_noise_on_nodes_follows_its_seed() -> None:
    def places(seed: int) -> list[int]:
        made = state(cluster([4] * 8), [job(f"j{i}", 1, 100) for i in range(6)])
        policy = mlf_rl(net_with(server__by_pass=0.0), sharing=False, explore=Notes(scale=1.0))
        return policy.decide(ClusterView(made, 0, seed), None).places[:, 0].tolist()  # type: ignore[no-any-return]

    assert places(1) == places(1)
    assert len({tuple(places(seed)) for seed in range(8)}) > 4


def test_a_watched_teacher_decides_as_before() -> None:
    told: list[tuple[Decision, Floats]] = []
    teacher = MlfH(MlfHParams())
    assert run(watch(teacher, lambda d, u: told.append((d, u)))).journal_sha256 == run(teacher).journal_sha256
    ranks = [(d, u) for d, u in told if d.head == "rank"]
    assert ranks
    for decision, utility in ranks:
        assert len(utility) == len(decision.X)
        assert ((utility == KEPT) == (decision.X[:, RANK.index("placed")] == 1)).all()
        chosen = utility[decision.order]
        assert (np.diff(chosen) <= 0).all()
    nodes = [d for d, _ in told if d.head == "server"]
    assert nodes
    assert all(d.X[int(d.order[0]), SERVER.index("nearest")] == 1 for d in nodes)


def test_masked_columns_are_not_seen() -> None:
    loud = net_with(**{f"rank__{column}": 50.0 for column in ML_COLUMNS})
    assert run(mlf_rl(loud, masked=ML_COLUMNS)).journal_sha256 == run(mlf_rl(Net.plain())).journal_sha256


# -- by name ------------------------------------------------------------------------------------------------------
@pytest.fixture
def model(tmp_path: Path) -> Callable[[bool], Path]:
    def made(passed: bool) -> Path:
        ranges = {head: np.tile([0.0, 1.0], (len(names), 1)) for head, names in COLUMNS.items()}
        folder = tmp_path / f"model-{passed}"
        save_model(folder, Net.plain(1), "mlf-rl", ranges, {"switch": {"converged": passed, "beats_teacher": True}}, "card")
        return folder

    return made


def test_mlfs_is_mlf_h_until_the_model_is_trained(model: Callable[[bool], Path]) -> None:
    young, grown = (make_policy(f"mlfs:model={model(passed)}") for passed in (False, True))
    assert (young.name, grown.name) == ("mlfs", "mlfs")
    assert teacher_of(young) is None
    assert teacher_of(grown) is not None
    assert run(young).journal_sha256 == run(make_policy("mlf-h+mlf-c")).journal_sha256
    assert run(grown).journal_sha256 == run(make_policy(f"mlf-rl:model={model(True)}+mlf-c")).journal_sha256


def test_mlfs_has_its_load_control() -> None:
    with pytest.raises(UserError, match=r"mlfs\+mlf-c: has MLF-C of its own"):
        make_policy("mlfs+mlf-c")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        make_policy(f"mlf-rl:model={tmp_path}")


def test_why_tells_what_counts() -> None:
    made = state(cluster([1]), [job("a", 1, 100), job("b", 1, 1000)])
    policy = mlf_rl(Net.plain(), sharing=False)
    told = policy.explain(ClusterView(made, 0, 0), None, 1)
    assert {"score", "left_told"} <= {term.name for term in told.terms}


def test_why_tells_when_the_teacher_decides() -> None:
    narrow = {head: np.zeros((len(names), 2), np.float32) for head, names in COLUMNS.items()}
    policy = MlfRl(MlfRlParams(sharing=False), Net.plain(), MlfH(MlfHParams(sharing=False)), narrow)
    made = state(cluster([1]), [job("a", 1, 100), job("b", 1, 1000)])
    told = policy.explain(ClusterView(made, 0, 0), None, 1)
    assert "mlf-h decides this round" in told.words
    assert told.order == policy.teacher.explain(ClusterView(made, 0, 0), None, 1).order  # type: ignore[attr-defined]
