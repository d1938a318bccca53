"""The frozen generators: pinned hashes, marginals, and what may be asked of them."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from statistics import NormalDist

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import EventBuffer
from headway.core.state import State
from headway.sim.world import too_large
from headway.workloads import truth as y
from headway.workloads.cluster import Queue, parse_cluster
from headway.workloads.generators import mlfs_paper, philly_like, trials
from headway.workloads.generators.draws import NORMAL_KNOTS, Draws, choices, normal_ppm, quantiles, share_of, uniform
from headway.workloads.generators.params import list_column
from headway.workloads.registry import load_workload

ENDS = np.array([0, 1, 2**31, 2**32 - 1], np.int64)

PINNED = [
    ("philly-like:jobs=5000,load=1.0", 1, "c6c0d5f7b67e7c02b5e2ca152ff60c8555b0d69e925d415fa6b5ed9bdfb2f1ac"),
    ("philly-like:jobs=5000,load=1.0", 2, "fe0bb537253f730298b908f17e6171c2ac4d81dc9d39794f891a5ed09b97e31b"),
    ("philly-like:jobs=5000,load=1.0", 100, "2c237ec2261b7f51fbdaa572a4ebd8a4518d2a10fedb9a52cc6d52a2ae2c68cf"),
    ("philly-like:jobs=2000,load=1.1", 1, "b86e8c681673d18e8b80abc184785ea8960fb9d996fcd8792dfeefaa07b252a1"),
    ("philly-like:jobs=900,load=.5,cluster=8x4", 9, "d0ec9ec3af99ed09f1a4b841a26dacf95e2360665e656e73d3c2de0e9fcab9fb"),
    ("mlfs-paper:jobs=155,protocol=stress", 1, "14d996a8fff6d03bc1fc9fa3d2f46594ec36fc76d488ad73d9cfb61bd0787435"),
    ("mlfs-paper:jobs=620,protocol=stress", 1, "a4e2dfed4b45fd3d889e27866c6a1b02c1622442f7a3c07e76e85cd0a6292495"),
    ("mlfs-paper:jobs=1860,protocol=stress", 100, "c00f7e86a8a4c0a216943314276fa800174dfe8649ee26d671bbd98fccf8e23d"),
    ("mlfs-paper:jobs=620,protocol=literal", 1, "e960aea6e99438e54c54b157584e0056e0b2372e40cb9fe29fa82f19ee72014f"),
    ("mlfs-paper:jobs=620,protocol=overload", 1, "73b41d9602e35958c05688e50dc46daa555031b7a17d4993fbc074cbe0818b8f"),
    ("mlfs-paper:jobs=620,protocol=overload", 2, "853df957be3fa699a201cbd3b6f887b84dab8897cafd8f48a9850f2ab7bc4837"),
    ("mlfs-paper-large:jobs=2000", 1, "1702641771eba140e9569b6e8756a5d52fd07b64c45a635f8018d19738e9e8fa"),
    ("production:jobs=500,load=0.35", 1, "ca034113afc17a30cfb465410e5c5f25639253e1b2fc957bc7930086dd98805d"),
    ("production:jobs=500,load=0.35", 2, "fb2889b7d37b8b85fdb75efc08b905bc3dd5c561cf5407fa39b32f831b7fc256"),
    ("production:jobs=300,load=0.7", 100, "5d522b922df84778a7b29d3b3011a04960f4f4603c2f2ec19e169f1dc81e5e0f"),
    ("trials:groups=60,load=1.5", 1, "c8ebe2a5c4365f5fd6b92871d4b491ab3daf4aabc5071fab5520fd9b3e69b9f6"),
    ("trials:groups=60,load=1.5", 2, "31674beeb2eb23d6ca506e35f19cd15c96cee738e4d467c856dcaa91163d7fcf"),
    ("trials:groups=100,load=0.7", 100, "1bd7198c38abc3443f0d601f6e38e104aef3ce3e2d755593296e7620c8501b2b"),
]  # fmt: skip
"""The twins' tests hash other parameters by an independent route."""


@pytest.mark.parametrize(("text", "seed", "sha256"), PINNED)
def test_the_exam_is_pinned(text: str, seed: int, sha256: str) -> None:
    jobs = load_workload(text, seed=seed)
    assert jobs.sha256 == sha256
    assert jobs.name == text


def test_defaults_and_other_names_are_the_same_workload() -> None:
    for text, same in (
        ("philly-like", "philly-like:jobs=5000,load=1,cluster=16x8,max_s=604800"),
        ("mlfs-paper", "mlfs-paper:jobs=620,protocol=stress,cluster=20x4"),
        ("mlfs-paper-large:jobs=50", "mlfs-paper:jobs=50,cluster=mlfs-paper-large"),
        ("production", "production:jobs=500,load=0.35,cluster=production-mixed"),
        ("trials", "trials:groups=60,load=1.50,cluster=8x4"),
    ):
        assert load_workload(text).sha256 == load_workload(same).sha256


def test_the_cluster_is_part_of_the_hash_even_where_it_changes_no_job() -> None:
    one, other = (load_workload(f"mlfs-paper:jobs=50,protocol=literal,cluster={size}") for size in ("20x4", "10x8"))
    assert one.submitted_us.tolist() == other.submitted_us.tolist()
    assert one.sha256 != other.sha256


def test_a_changed_workload_loses_the_frozen_hash_and_one_with_other_costs_keeps_it() -> None:
    jobs = load_workload("philly-like:jobs=50")
    assert jobs.with_costs(restore_s=30).sha256 == jobs.sha256
    assert not jobs.window(0, 3600 * 24 * 365).frozen_sha256 and not jobs.with_estimates(jobs.work_us).frozen_sha256
    kept = load_workload("mlfs-paper:jobs=5").with_costs(save_s=2)
    assert (kept.spec[[c.J_SAVE, c.J_RESTORE, c.J_EVERY], 0] / 1e6).tolist() == [2, 30, 300]


# -- draws --------------------------------------------------------------------------------------------------------
def test_shares_are_exact_where_the_product_needs_more_than_64_bits() -> None:
    for whole in (0, 1, 3, 2**32 - 1, 2**32, 8 * 10**9 + 1, 2**62):
        assert share_of(ENDS, whole).tolist() == [int(u) * whole >> 32 for u in ENDS]


def test_uniform_choices_and_quantiles_hold_at_the_ends() -> None:
    assert uniform(ENDS, 5, 9).tolist() == [5, 5, 7, 9]
    assert choices(ENDS, (1, 7)).tolist() == [0, 0, 1, 1]
    assert choices(np.array([2**29 - 1, 2**29], np.int64), (1, 7)).tolist() == [0, 1]
    assert quantiles(ENDS, (0, 500, 1000), (10, 20, 4 * 10**9)).tolist() == [10, 10, 20, 4 * 10**9 - 2]


def test_the_normal_knots_are_those_of_the_normal_distribution() -> None:
    exact = [NormalDist().inv_cdf(i / 32) for i in range(1, 32)]
    assert np.abs(NORMAL_KNOTS[1:-1] / 1e6 - exact).max() < 1e-6
    assert NORMAL_KNOTS[0] == -NORMAL_KNOTS[-1] == round(NormalDist().inv_cdf(0.001) * 1e6)
    assert normal_ppm(ENDS).tolist()[::2] == [-3090232, 0]
    drawn = normal_ppm(Draws("normal", 1).draw(100_000)) / 1e6
    # Chords lie outside the curve in the tails: by the integral over the pieces, the spread is 1.036.
    low, high = NORMAL_KNOTS[:-1] / 1e6, NORMAL_KNOTS[1:] / 1e6
    spread = ((low**2 + low * high + high**2) / 3).mean() ** 0.5
    assert spread == pytest.approx(1.036, abs=0.001)
    assert abs(drawn.mean()) < 0.01 and drawn.std() == pytest.approx(spread, abs=0.01)


def test_lists_stand_behind_their_lengths() -> None:
    column = list_column(np.array([2, 0, 1], np.int64), np.array([7, 8, 9], np.int64))
    assert column.tolist() == [2, 7, 8, 0, 1, 9]


def test_draws_ahead_change_nothing() -> None:
    plain, peeked = Draws("x", 5).draw(1000), Draws("x", 5)
    peeked.peek(700)
    draws, starts = peeked.records(100, 9, lambda draws, at: 3 + int(draws[at]) % 7)
    assert np.concatenate([draws, peeked.draw(1000 - len(draws))]).tolist() == plain.tolist()
    assert np.diff(starts).tolist() == [3 + int(draws[at]) % 7 for at in starts[:-1]]


# -- philly-like --------------------------------------------------------------------------------------------------
def test_philly_like_has_the_marginals_of_its_table() -> None:
    jobs = load_workload("philly-like:jobs=100000,max_s=10000000", seed=5)
    for i, (gpus, weight) in enumerate(zip(philly_like.GPUS, philly_like.GPU_WEIGHTS, strict=True)):
        of = jobs.gpus == gpus
        share = weight / 1000
        assert of.mean() == pytest.approx(share, abs=4 * (share / 100_000) ** 0.5)
        seconds = np.array(philly_like.DURATIONS_S[min(i, 4)])
        inside = (jobs.work_us[of, None] < 10**6 * seconds).mean(axis=0)
        assert inside == pytest.approx(np.array(philly_like.LEVELS) / 1000, abs=2.5 / of.sum() ** 0.5)
    queue = np.bincount(jobs.spec[c.J_QUEUE]) / 100_000
    assert queue == pytest.approx(np.array(philly_like.QUEUE_WEIGHTS) / 100, abs=0.006)
    assert jobs.gpu_work_us / (128 * jobs.span_us) == pytest.approx(1.0, rel=0.001)


def test_philly_like_comes_at_office_hours() -> None:
    jobs = load_workload("philly-like:jobs=100000,load=0.1")
    day, hour = jobs.submitted_us // 86_400_000_000 % 7, jobs.submitted_us // 3_600_000_000 % 24
    weekdays = np.bincount(day) / len(jobs) * 7
    assert weekdays == pytest.approx([0.84, 1.05, 1.12, 1.27, 1.52, 0.60, 0.60], abs=0.05)
    assert 1.9 < (hour == 7).mean() * 24 < 2.25 and 0.5 < (hour == 17).mean() * 24 < 0.7


def test_durations_are_capped_and_queues_guaranteed() -> None:
    jobs = load_workload("philly-like:jobs=5000")
    assert jobs.work_us.max() == 604_800 * 10**6
    cluster = parse_cluster("16x8").with_quotas(jobs.queues, jobs.quotas_ppm)
    assert cluster.queues == tuple(Queue(f"vc{i}", quota_gpus=16) for i in range(1, 9))
    kept = jobs.filtered("queue=vc3")
    assert kept.queues == ("vc3",) and kept.quotas_ppm == (125_000,)
    assert cluster.with_quotas(jobs.queues, jobs.quotas_ppm) == cluster


def test_jobs_that_ask_for_too_much_stay_in_the_workload() -> None:
    jobs = load_workload("philly-like:jobs=5000,cluster=2x8")
    assert too_large(jobs, parse_cluster("2x8")).tolist() == (jobs.gpus > 16).astype(int).tolist()


# -- mlfs-paper ---------------------------------------------------------------------------------------------------
def test_what_is_left_of_the_accuracy_is_the_formula() -> None:
    for k, row in zip(mlfs_paper.K_PPM, mlfs_paper.LEFT_PPM, strict=True):
        for m, left in zip(mlfs_paper.M_PPM, row, strict=True):
            assert left == round(1e6 * (1 + 30 * k / 1e6) ** (-1.2 * m / 1e6))


def test_mlfs_paper_is_what_the_protocols_say() -> None:
    stress, literal, overload = (load_workload(f"mlfs-paper:jobs=1860,protocol={p}") for p in ("stress", "literal", "overload"))
    for other in (literal, overload):
        assert other.work_us.tolist() == stress.work_us.tolist() and other.details.tolist() == stress.details.tolist()
        assert other.truth.tolist() == stress.truth.tolist()
    median = np.median(stress.work_us) / 1e6
    assert median == pytest.approx(1020, rel=0.05) and stress.work_us.min() >= 120 * 10**6
    # About half the cluster is busy in the week of stress; over the span of overload a fifth more is asked than there is.
    busy = int((stress.work_us * stress.gpus).sum())
    assert busy / (80 * 168 * 3600e6) == pytest.approx(0.5, abs=0.04)
    assert busy / (80 * overload.span_us) == pytest.approx(1.2, rel=0.05)
    assert literal.span_us <= 168 * 3600e6 < 1.02 * literal.span_us
    # 74 instants, 25 jobs at each, none later than ten minutes behind it.
    near = np.diff(stress.submitted_us) < 60_000_000
    assert near.mean() > 0.9
    slack = stress.spec[c.J_DEADLINE] - stress.submitted_us
    assert np.all(slack * 10 >= 11 * stress.work_us) and slack.min() >= 1800 * 10**6
    assert 6 * 3600e6 < np.median(literal.spec[c.J_DEADLINE] - literal.submitted_us) < 18 * 3600e6
    assert np.all(stress.spec[c.J_ACC_REQUIRED] < stress.truth[y.Y_PLATEAU])


def test_mlfs_paper_jobs_become_tasks_and_edges() -> None:
    jobs = load_workload("mlfs-paper:jobs=60", seed=3)
    state = State()
    state.apply(parse_cluster("20x4").events(0, jobs.users, jobs.queues))
    out = EventBuffer()
    for i in range(len(jobs)):
        details = jobs.details[jobs.detail_at[i] : jobs.detail_at[i + 1]]
        out.add(0, EventKind.SUBMITTED, i, payload=np.concatenate([jobs.spec[:, i], details]))
    state.apply(out.take())
    rows = range(len(jobs))
    gpus, served = jobs.gpus, np.arange(len(jobs)) % 2 == 0
    assert [int(state.J[c.J_GPUS, row]) for row in rows] == gpus.tolist()
    assert [int(state.J[c.J_TASKS, row]) for row in rows] == (gpus + served).tolist()
    for row in rows:
        model, n, width = jobs.models[jobs.spec[c.J_MODEL, row]], int(gpus[row]), int(jobs.spec[c.J_WIDTH, row])
        layers = [min(width, n - i) for i in range(0, n, width)]
        inner = 0 if model == "svm" else sum(a * b for a, b in pairwise(layers))
        sinks = n if model == "svm" else layers[-1]
        assert state.J[c.J_EDGES, row] == inner + sinks * served[row]


def test_the_large_cluster_has_eighteen_weeks() -> None:
    jobs = load_workload("mlfs-paper-large:jobs=3000,protocol=literal")
    assert 17.9 < jobs.span_us / (7 * 86_400 * 10**6) <= 18


# -- production ---------------------------------------------------------------------------------------------------
def test_production_counts_work_at_the_speed_of_a_v100() -> None:
    jobs = load_workload("production:jobs=5000,load=0.35")
    assert jobs.work_us.sum() / (256 * jobs.span_us) == pytest.approx(0.35, rel=0.01)
    assert jobs.gpu_work_us == jobs.work_us.sum()
    assert np.all(jobs.spec[c.J_UNITS_TOTAL] == 0) and np.all(jobs.spec[c.J_SYNC_BYTES] == 0)
    assert np.bincount(jobs.spec[c.J_MODEL]) == pytest.approx(625, abs=100)
    served = jobs.spec[c.J_SERVERS] > 0
    assert {jobs.models[i] for i in jobs.spec[c.J_MODEL, ~served]} == {"resnet50", "seq2seq", "bert-base"}
    assert set(jobs.spec[c.J_SERVERS, served].tolist()) == {4} and set(jobs.spec[c.J_SERVERS_MAX, served].tolist()) == {16}
    assert set(jobs.gpus.tolist()) == {4}


def test_the_mixed_cluster() -> None:
    cluster = parse_cluster("production-mixed", seed=1)
    assert (len(cluster.nodes), cluster.gpus, cluster.oversubscription, cluster.kinds) == (64, 256, 4, ("v100", "p100", "k80"))
    assert {(n.cpus_milli, n.memory_bytes, n.gpus) for n in cluster.nodes} == {(32_000, 244 * 10**9, 4)}
    racks = [[node for node in cluster.nodes if node.rack == rack] for rack in range(8)]
    assert {len(rack) for rack in racks} == {8}
    kinds = [{(cluster.kinds[n.kind], n.speed_ppm, n.network_bytes_per_s) for n in rack} for rack in racks]
    fast, middle, slow = ("v100", 10**6, 3_125_000_000), ("p100", 550_000, 1_250_000_000), ("k80", 250_000, 1_250_000_000)
    assert kinds == [{fast}] * 3 + [{middle}] * 3 + [{slow}] * 2
    assert {node.background_ppm for node in cluster.nodes} == {0, 100_000, 200_000, 300_000, 400_000}
    assert parse_cluster("production-mixed", seed=1) == cluster != parse_cluster("production-mixed", seed=2)


def test_the_clusters_of_the_paper() -> None:
    small, large = parse_cluster("20x4"), parse_cluster("mlfs-paper-large")
    assert (len(small.nodes), small.gpus) == (20, 80) and (len(large.nodes), large.gpus) == (550, 2474)
    for cluster in (small, large):
        assert {(n.cpus_milli, n.memory_bytes, n.network_bytes_per_s) for n in cluster.nodes} == {
            (32_000, 244 * 10**9, 1_250_000_000)
        }
        assert cluster.share_limit_milli == 900


# -- trials -------------------------------------------------------------------------------------------------------
def test_groups_of_trials() -> None:
    jobs = load_workload("trials:groups=2000", seed=100)
    sizes = np.array(list(Counter(jobs.spec[c.J_GROUP].tolist()).values()))
    assert (sizes.min(), sizes.max()) == (4, 16) and sizes.mean() == pytest.approx(10, abs=0.3)
    group = jobs.spec[c.J_GROUP]
    for column in (jobs.submitted_us, jobs.spec[c.J_MODEL]):
        assert len(set(zip(group.tolist(), column.tolist(), strict=True))) == 2000
    diverges, drops = jobs.truth[y.Y_DIVERGES] == 1, jobs.truth[y.Y_DROP] == 1
    assert diverges.mean() == pytest.approx(1 / 8, abs=0.01) and not np.any(diverges & drops)
    assert len(set(group[drops].tolist())) / 2000 == pytest.approx(0.1, abs=0.03)
    assert np.all(np.isin(group[~diverges & ~drops], group[drops], invert=True))
    assert set(jobs.spec[c.J_MODEL].tolist()) == set(range(6))
    assert set(load_workload("trials:groups=500", seed=99).spec[c.J_MODEL].tolist()) == set(range(4))
    service = jobs.truth[y.Y_K99] * jobs.truth[[y.Y_T0, y.Y_T1, y.Y_T3]].sum(axis=0)
    assert service.sum() / 1000 / (32 * jobs.span_us) == pytest.approx(1.5, rel=0.01)
    assert jobs.truth[y.Y_CAP].tolist() == (3 * service // 1000).tolist()


def test_the_values_of_b0_have_equal_ratios() -> None:
    for values in trials.B0_PPM:
        ratio = (values[-1] / values[0]) ** (1 / 16)
        assert values == tuple(round(values[0] * ratio**i) for i in range(17))


def test_a_trial_ends_where_its_quality_is_99_percent() -> None:
    """By the loss curve itself, in floats: one unit before the end the quality is below 0.99, at the end it is not."""
    jobs = load_workload("trials:groups=300", seed=101)
    start, plateau, k99, end = (jobs.truth[row].astype(float) for row in (y.Y_START, y.Y_PLATEAU, y.Y_K99, y.Y_UNITS))
    drops, diverges = jobs.truth[y.Y_DROP] == 1, jobs.truth[y.Y_DIVERGES] == 1
    goal = np.where(drops, 0.7 * plateau, plateau)

    def quality(units: np.ndarray) -> np.ndarray:
        loss = start / (1 + 99 * units / k99) + np.where(units >= k99 / 2, goal, plateau)
        return (start + plateau - loss) / (start + plateau - goal)

    lasting = ~diverges
    assert np.all(quality(end)[lasting] >= 0.99 - 1e-12) and np.all(quality(end - 1)[lasting] < 0.99)
    assert np.all(end[drops] < k99[drops]) and np.all(end[drops] > k99[drops] / 2)
    assert end[diverges].tolist() == (3 * k99[diverges]).tolist()
    # One worker needs at most all of the service that a trial may have.
    assert np.all(jobs.work_us <= jobs.truth[y.Y_CAP])


# -- parameters ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("philly-lik", "unknown workload 'philly-lik' (did you mean 'philly-like'?)"),
        ("philly-like:job=5", "workload philly-like: job: unknown parameter (did you mean 'jobs'?)"),
        ("philly-like:jobs=0", 'workload philly-like: jobs: expected a whole number from 1 to 5000000, got "0"'),
        ("philly-like:max_s=0", 'workload philly-like: max_s: expected a whole number from 1 to 3153600000, got "0"'),
        ("philly-like:load=inf", 'workload philly-like: load: expected a number from 0.001 to 1000, got "inf"'),
        ("philly-like:cluster=16y8", "unknown cluster '16y8'; known: 20x4, mlfs-paper-large, philly, production-mixed, "
         "NODESxGPUS such as 16x8, or a YAML file"),
        ("philly-like:jobs=300000,load=0.001,cluster=1x1", "workload philly-like: load: so many jobs would take over 100 years "
         "to arrive; expected a higher load"),
        ("mlfs-paper:protocol=stres", "workload mlfs-paper: protocol: expected stress or literal or overload, got \"stres\" "
         "(did you mean 'stress'?)"),
        ("mlfs-paper:load=1", "workload mlfs-paper: load: unknown parameter; known: cluster, jobs, protocol"),
        ("mlfs-paper:jobs=1000001", 'workload mlfs-paper: jobs: expected a whole number from 1 to 1000000, got "1000001"'),
        ("production:jobs=x", 'workload production: jobs: expected a whole number from 1 to 5000000, got "x"'),
        ("trials:jobs=5", "workload trials: jobs: unknown parameter; known: cluster, groups, load"),
        ("trials:groups=0", 'workload trials: groups: expected a whole number from 1 to 312500, got "0"'),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_workload(text)
    assert str(error.value) == message


@pytest.mark.parametrize("name", ["philly-like:jobs", "mlfs-paper:jobs", "production:jobs", "trials:groups"])
def test_one_job_is_a_workload(name: str) -> None:
    for seed in (0, 2**63 - 1):
        assert len(load_workload(f"{name}=1", seed=seed)) >= 1


def test_loads_are_exact_fractions() -> None:
    half, whole = (load_workload(f"philly-like:jobs=200,load={load}") for load in ("0.5", "1"))
    assert half.work_us.tolist() == whole.work_us.tolist()
    assert half.span_us / whole.span_us == pytest.approx(2, rel=0.2)
    assert Fraction(half.gpu_work_us, 64 * half.span_us) >= 1
