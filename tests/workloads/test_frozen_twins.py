"""The frozen generators against slow twins that were written from their description alone (`tests/reference/frozen.py`)."""

import hashlib
from fractions import Fraction

import numpy as np
import pytest
from tests.reference import frozen

from headway.core import columns as c
from headway.core.columns import Cut, Sync
from headway.workloads import truth as y
from headway.workloads.generators.arrivals import FLAT, OFFICE, WEEK_US, arrivals
from headway.workloads.generators.draws import Draws
from headway.workloads.registry import load_workload


def sha256(nodes: int, gpus: int, *columns: list[int]) -> str:
    """The documented hash: the cluster, then column by column."""
    numbers = [nodes, *[gpus] * nodes, *(value for column in columns for value in column)]
    return hashlib.sha256(b"".join(int(number).to_bytes(8, "little", signed=True) for number in numbers)).hexdigest()


def lists(column: list[list[int]]) -> list[int]:
    return [number for values in column for number in (len(values), *values)]


def column(jobs: list[frozen.Job], name: str) -> list[int]:
    return [job[name] for job in jobs]


def test_the_stream_is_pcg64() -> None:
    slow = frozen.Stream("mlfs-paper", 7)
    assert Draws("mlfs-paper", 7).draw(1000).tolist() == [slow.u() for _ in range(1000)]


@pytest.mark.parametrize(
    "span_us", [1, 1_800_000_000, 3_600_000_000, 5 * 10**11, WEEK_US, 3 * WEEK_US + 7, 40 * 365 * 86_400 * 10**6]
)
@pytest.mark.parametrize("office", [True, False])
def test_arrivals_follow_the_profile(span_us: int, office: bool) -> None:
    if span_us > 10 * WEEK_US and office:
        slow = frozen.Stream("x", 3)
        # Too many hours for the twin's table: after whole weeks the profile repeats, so that shares of a week are equal.
        times = arrivals(Draws("x", 3).draw(500), span_us // WEEK_US * WEEK_US, OFFICE)
        ordered = np.sort([slow.u() for _ in range(500)])
        assert np.array_equal(times // WEEK_US, [int(u) * (span_us // WEEK_US) >> 32 for u in ordered])
        return
    draws, slow = Draws("x", 3).draw(200), frozen.Stream("x", 3)
    if span_us > 10 * WEEK_US:
        assert arrivals(draws, span_us, FLAT).tolist() == [int(u) * span_us >> 32 for u in np.sort(draws)]
    else:
        assert arrivals(draws, span_us, OFFICE if office else FLAT).tolist() == frozen.arrivals(slow, 200, span_us, office)


@pytest.mark.parametrize(("seed", "load", "size", "gpus"), [(1, "1.0", "16x8", 128), (100, "0.73", "5x4", 20)])
def test_philly_like(seed: int, load: str, size: str, gpus: int) -> None:
    jobs = load_workload(f"philly-like:jobs=150,load={load},cluster={size}", seed=seed)
    slow = frozen.philly_like(seed, 150, Fraction(load), gpus)
    assert jobs.submitted_us.tolist() == column(slow, "at")
    assert jobs.gpus.tolist() == column(slow, "gpus")
    assert jobs.work_us.tolist() == [1000 * ms for ms in column(slow, "ms")]
    assert jobs.spec[c.J_QUEUE].tolist() == jobs.spec[c.J_USER].tolist() == column(slow, "queue")
    assert jobs.spec[c.J_ESTIMATE].tolist() == column(slow, "estimate_us")
    drawn = (column(slow, name) for name in ("at", "gpus", "ms", "queue", "which"))
    nodes, each = map(int, size.split("x"))
    assert jobs.sha256 == sha256(nodes, each, *drawn)


LEFT = """59374 48975 40398 33323 26619 39954 32078 25755 20678 16006 26615 20785 16232 12676 9500
17544 13317 10109 7673 5563 11794 8713 6437 4756 3341"""
CURVES = {"alexnet": (100, 850), "mlp": (100, 970), "resnet": (200, 930), "lstm": (100, 880), "svm": (500, 920)}


@pytest.mark.parametrize("protocol", ["stress", "literal", "overload"])
@pytest.mark.parametrize("seed", [1, 100])
def test_mlfs_paper(seed: int, protocol: str) -> None:
    jobs = load_workload(f"mlfs-paper:jobs=90,protocol={protocol}", seed=seed)
    spec, truth = jobs.spec, jobs.truth
    slow = frozen.mlfs_paper(seed, 90, protocol, 80)
    assert jobs.submitted_us.tolist() == column(slow, "at")
    assert jobs.work_us.tolist() == [1000 * ms for ms in column(slow, "ms")]
    assert spec[c.J_UNITS_TOTAL].tolist() == truth[y.Y_UNITS].tolist() == column(slow, "iterations")
    assert spec[c.J_PIPELINE].tolist() == jobs.gpus.tolist() == column(slow, "gpus")
    assert [jobs.models[i] for i in spec[c.J_MODEL]] == column(slow, "model")
    assert spec[c.J_EDGE_BYTES].tolist() == column(slow, "edge")
    assert spec[c.J_URGENCY].tolist() == column(slow, "urgency")
    requests = [lists([[task[i] for task in job["requests"]] for job in slow]) for i in range(3)]
    before = [column(slow, name) for name in ("at", "slack_ms", "ms", "iterations", "gpus")]
    model = [list(CURVES).index(job["model"]) for job in slow]
    middle = [model, lists(column(slow, "weights")), column(slow, "edge"), column(slow, "sink")]
    after = [column(slow, name) for name in ("plateau", "k", "m", "required", "urgency", "which")]
    assert jobs.sha256 == sha256(20, 4, *before, *middle, *requests, *after)
    left = [int(word) for word in LEFT.split()]
    for i, job in enumerate(slow):
        later = max(Fraction(11, 10) * job["ms"] * 1000, job["slack_ms"] * 1000)
        assert spec[c.J_DEADLINE, i] == job["at"] + later
        assert spec[c.J_ESTIMATE, i] == Fraction(job["percent"], 100) * job["ms"] * 1000
        start, plateau = (1000 * share for share in CURVES[job["model"]])
        plateau = plateau * job["plateau"] // 10**6
        end = plateau - (plateau - start) * left[5 * job["k"] + job["m"]] // 10**6
        assert truth[[y.Y_START, y.Y_PLATEAU], i].tolist() == [start, plateau]
        assert truth[y.Y_K, i] == [450_000, 670_000, 1_000_000, 1_500_000, 2_200_000][job["k"]]
        assert truth[y.Y_M, i] == [880_000, 940_000, 1_000_000, 1_060_000, 1_130_000][job["m"]]
        assert spec[c.J_ACC_REQUIRED, i] == job["required"] * end // 10**6
        rows = jobs.details[jobs.detail_at[i] : jobs.detail_at[i + 1]].reshape(-1, c.DETAIL)
        workers = rows[: job["gpus"]]
        assert workers[:, :3].tolist() == [[gpu // 1000, cpus, memory] for gpu, cpus, memory in job["requests"]]
        weights = job["weights"] or [1] * job["gpus"]
        exact = [Fraction(weight * 10**6, sum(weights)) for weight in weights]
        assert workers[:, 4].sum() == 10**6 and all(abs(s - e) < 1 for s, e in zip(workers[:, 4].tolist(), exact, strict=True))
        assert rows[job["gpus"] :].tolist() == ([[0, 1000, 4 * 10**9, 0, 0]] if i % 2 == 0 else [])
        assert spec[c.J_SKEW, i] == workers[:, 4].max() and spec[c.J_DETAILS, i] == len(rows)
        assert spec[[c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK], i].tolist() == workers[:, :3].max(axis=0).tolist()
        ring = i % 2 == 1 and job["model"] == "svm"
        assert spec[c.J_SYNC, i] == (Sync.PARAMETER_SERVER if i % 2 == 0 else Sync.ALL_REDUCE if ring else Sync.NONE)
        assert spec[c.J_SYNC_BYTES, i] == (job["sink"] if i % 2 == 0 else job["edge"] if ring else 0)
        cut = {"alexnet": Cut.CHAIN, "mlp": Cut.CHAIN, "svm": Cut.NONE}.get(job["model"], Cut.LAYERED)
        width = 1 if cut != Cut.LAYERED or job["gpus"] < 4 else 2 if job["gpus"] < 16 else 4
        assert spec[[c.J_CUT, c.J_WIDTH, c.J_SERVERS], i].tolist() == [cut, width, int(i % 2 == 0)]


@pytest.mark.parametrize(("seed", "load"), [(1, "0.35"), (100, "0.7")])
def test_production(seed: int, load: str) -> None:
    jobs = load_workload(f"production:jobs=200,load={load}", seed=seed)
    slow = frozen.production(seed, 200, Fraction(load), 256)
    assert jobs.submitted_us.tolist() == column(slow, "at")
    assert jobs.spec[c.J_MODEL].tolist() == column(slow, "type")
    assert jobs.truth[y.Y_UNITS].tolist() == jobs.truth[y.Y_K99].tolist() == column(slow, "K")
    assert jobs.truth[y.Y_PLATEAU].tolist() == column(slow, "b2")
    assert jobs.work_us.tolist() == [job["K"] * job["c"] * 1000 for job in slow]
    assert jobs.sha256 == sha256(64, 4, *(column(slow, name) for name in ("at", "type", "K", "b2")))


def test_the_mixed_cluster_draws_its_background_first() -> None:
    from headway.workloads.cluster import parse_cluster

    for seed in (1, 100):
        slow = frozen.Stream("production-mixed", seed)
        nodes = parse_cluster("production-mixed", seed=seed).nodes
        assert [node.background_ppm for node in nodes] == [100_000 * slow.choice([1] * 5) for _ in range(64)]


@pytest.mark.parametrize(("seed", "load"), [(1, "1.5"), (100, "0.7")])
def test_trials(seed: int, load: str) -> None:
    jobs = load_workload(f"trials:groups=40,load={load}", seed=seed)
    truth, hints = jobs.truth, jobs.hints
    slow = frozen.trials(seed, 40, Fraction(load), 32)
    assert jobs.submitted_us.tolist() == column(slow, "at")
    assert jobs.spec[c.J_GROUP].tolist() == column(slow, "group")
    assert jobs.spec[c.J_MODEL].tolist() == column(slow, "family")
    assert truth[y.Y_PLATEAU].tolist() == column(slow, "b2")
    assert truth[y.Y_B0].tolist() == column(slow, "b0")
    assert truth[y.Y_K99].tolist() == column(slow, "k99")
    assert truth[y.Y_DIVERGES].tolist() == column(slow, "diverges")
    assert truth[y.Y_DROP].tolist() == [job["drop"] and not job["diverges"] for job in slow]
    for i, job in enumerate(slow):
        b1 = Fraction(10**6, int(truth[y.Y_START, i]))
        times = truth[[y.Y_T0, y.Y_T1, y.Y_T3], i].tolist()
        exact = [job["b0"] * 1000, b1 * 10**9, truth[y.Y_PLATEAU, i], *times]
        factors = [*job["errors"][:2], Fraction(job["b2_error"], 1000), *job["errors"][2:]]
        found = hints[: y.H_LOSS0, i].tolist()
        assert found == [
            int(value * factor / 1000) for value, factor in zip(map(Fraction, map(Fraction, exact)), factors, strict=True)
        ]
        assert hints[y.H_LOSS0, i] == truth[y.Y_START, i] + job["b2"]
    of_group = {job["group"]: job for job in slow}
    groups = [column(list(of_group.values()), name) for name in ("at", "family", "drop")]
    groups.insert(1, [sum(job["group"] == group for job in slow) for group in of_group])
    errors = [[job["chosen"][i] for job in slow] for i in range(5)]
    drawn = [column(slow, name) for name in ("b2", "which", "diverges")]
    assert jobs.sha256 == sha256(8, 4, *groups, *drawn, *errors, column(slow, "b2_error"))
