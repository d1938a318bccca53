"""`mlfs-paper`: the jobs of the evaluation of MLFS (Wang, Liu, Shen, CoNEXT 2020), with what that paper leaves open frozen.

The protocols of one seed hold the same jobs; they differ in when the jobs come and in how far their deadlines lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.specstring import Part, one_of
from headway.workloads import truth as y
from headway.workloads.cluster import Cluster
from headway.workloads.generators.arrivals import OFFICE, WEEK_US, arrivals, span_us
from headway.workloads.generators.draws import PPM, Draws, choice_of, quantiles, share_of, uniform
from headway.workloads.generators.params import count_reader, drawn_sha256, list_column, read
from headway.workloads.schema import Workload, plain_spec
from headway.workloads.truth import Curve, Speed

NAME, LARGE = "mlfs-paper", "mlfs-paper-large"
JOBS, JOBS_MAX = 620, 1_000_000
PROTOCOLS = ("stress", "literal", "overload")
LARGE_WEEKS = 18
OVERLOAD = Fraction(6, 5)
BURST, BURST_GPUS = 25, 80
"""So many jobs join one instant on so many GPUs."""
DELAY_MS = 600_000
MINUTE_MS = 60_000
SLACK_MS = {"literal": (30 * MINUTE_MS, 1440 * MINUTE_MS), "stress": (30 * MINUTE_MS, 180 * MINUTE_MS)}
SLACK_MS["overload"] = SLACK_MS["stress"]
"""From which to which t_r is drawn."""

LEVELS = (0, 5, 25, 100, 250, 500, 750, 900, 975, 995, 1000)
RUN_S = (120, 217, 314, 473, 680, 1020, 1529, 2201, 3306, 4782, 9000)
"""Quantiles of t_e at LEVELS per mille."""
GPUS = (1, 2, 4, 8, 16, 32)
MODELS = ("alexnet", "mlp", "resnet", "lstm", "svm")
CHAINS, SVM = 2, 4
"""The first two models are chains, the next two layered; the last has no graph."""
START_PPM = (100_000, 100_000, 200_000, 100_000, 500_000)
PLATEAU_PPM = (850_000, 970_000, 930_000, 880_000, 920_000)
K_PPM = (450_000, 670_000, 1_000_000, 1_500_000, 2_200_000)
M_PPM = (880_000, 940_000, 1_000_000, 1_060_000, 1_130_000)
LEFT_PPM = (
    (59374, 48975, 40398, 33323, 26619),
    (39954, 32078, 25755, 20678, 16006),
    (26615, 20785, 16232, 12676, 9500),
    (17544, 13317, 10109, 7673, 5563),
    (11794, 8713, 6437, 4756, 3341),
)
"""(1 + c · I_max)^−b, by k and m."""
ESTIMATE_PERCENT = (82, 90, 96, 100, 104, 110, 118)
NOISE_PPM = 10_000
JITTER_PPM, HOLD_US = 300_000, 1_800_000_000
SERVER_CPUS_MILLI, SERVER_BYTES = 1000, 4 * 10**9
RESTORE_US, EVERY_US = 30_000_000, 300_000_000

_HEAD, _TAIL = 5, 6
"""Draws of a job before the weights of its tasks, and after their requests."""
_LONGEST = _HEAD + 32 + 2 + 3 * 32 + _TAIL


@dataclass(frozen=True)
class _Drawn:
    """What is drawn of each job, and, in one row a task, of each task. Shares and factors are ppm or an index."""

    slack: Ints
    run_ms: Ints
    iterations: Ints
    gpus: Ints
    model: Ints
    weight: Ints
    edge_bytes: Ints
    sink_bytes: Ints
    gpu_ppm: Ints
    cpus_milli: Ints
    memory_bytes: Ints
    plateau_ppm: Ints
    k: Ints
    m: Ints
    required_ppm: Ints
    urgency: Ints
    estimate: Ints


def make(part: Part, seed: int) -> Workload:
    """`mlfs-paper:jobs=620,protocol=stress,cluster=20x4`; `mlfs-paper-large` is the same on the cluster of that name."""
    readers = {"jobs": count_reader(JOBS_MAX), "protocol": one_of(*PROTOCOLS)}
    default = LARGE if part.name == LARGE else "20x4"
    params, cluster = read(part, seed, default, {"jobs": JOBS, "protocol": "stress"}, readers)
    jobs, protocol = int(params["jobs"]), str(params["protocol"])
    stream = Draws(NAME, seed)
    drawn = _draw(stream, jobs)
    weeks = LARGE_WEEKS if params["cluster"] == LARGE else 1
    if protocol == "literal":
        submitted = arrivals(stream.draw(jobs), weeks * WEEK_US, OFFICE)
    else:
        span = weeks * WEEK_US
        if protocol == "overload":
            span = span_us(1000 * sum((drawn.run_ms * drawn.gpus).tolist()), OVERLOAD, cluster.gpus, part.name)
        submitted = _bursts(stream, jobs, span, cluster.gpus)
    slack_ms = uniform(drawn.slack, *SLACK_MS[protocol])
    details, detail_at, skew = _details(drawn)
    return Workload(
        str(part),
        submitted,
        _spec(drawn, submitted, slack_ms, np.diff(detail_at) // c.DETAIL, skew, details, detail_at),
        1000 * drawn.run_ms,
        models=MODELS,
        details=details,
        detail_at=detail_at,
        usage_jitter_ppm=JITTER_PPM,
        usage_hold_us=HOLD_US,
        usage_seed=seed,
        truth=_truth(drawn),
        frozen_sha256=_sha256(cluster, submitted, slack_ms, drawn),
    )


def _length(draws: Ints, at: int) -> int:
    gpus = GPUS[draws.item(at + 3) * len(GPUS) >> 32]
    weights = 0 if draws.item(at + 4) * len(MODELS) >> 32 == SVM else gpus
    return _HEAD + weights + 2 + 3 * gpus + _TAIL


def _draw(stream: Draws, jobs: int) -> _Drawn:
    draws, start = stream.records(jobs, _LONGEST, _length)
    slack, run, iterations, gpus, model = (draws[start + i] for i in range(_HEAD))
    gpus, model = choice_of(gpus, GPUS), share_of(model, len(MODELS))
    weights = np.where(model == SVM, 0, gpus)
    after = start + _HEAD + weights
    weighed = draws[np.repeat(start + _HEAD, weights) + _local(weights)]
    request = np.repeat(after + 2, gpus) + 3 * _local(gpus)
    last = after + 2 + 3 * gpus
    plateau, k, m, required, urgency, estimate = (draws[last + i] for i in range(_TAIL))
    return _Drawn(
        slack=slack,
        run_ms=quantiles(run, LEVELS, [1000 * value for value in RUN_S]),
        iterations=uniform(iterations, 50, 200),
        gpus=gpus,
        model=model,
        weight=3 + uniform(weighed, 0, 6),
        edge_bytes=uniform(draws[after], 50_000_000, 100_000_000),
        sink_bytes=uniform(draws[after + 1], 50_000_000, 100_000_000),
        gpu_ppm=uniform(draws[request], 300_000, 700_000),
        cpus_milli=uniform(draws[request + 1], 300, 1300),
        memory_bytes=uniform(draws[request + 2], 2 * 10**9, 10 * 10**9),
        plateau_ppm=uniform(plateau, 970_000, 1_000_000),
        k=share_of(k, len(K_PPM)),
        m=share_of(m, len(M_PPM)),
        required_ppm=uniform(required, 950_000, 990_000),
        urgency=uniform(urgency, 1, 10),
        estimate=share_of(estimate, len(ESTIMATE_PERCENT)),
    )


def _local(counts: Ints) -> Ints:
    """0, 1 … n − 1 for each count n, one behind the other."""
    local: Ints = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    return local


def _bursts(stream: Draws, jobs: int, span: int, gpus: int) -> Ints:
    """Times of jobs that join some instants of the span and come up to ten minutes later: of two delays the smaller."""
    instants = share_of(stream.draw(max(1, jobs * BURST_GPUS // (BURST * gpus))), span)
    draws = stream.draw(3 * jobs).reshape(jobs, 3)
    delay_ms = uniform(np.minimum(draws[:, 1], draws[:, 2]), 0, DELAY_MS)
    times: Ints = np.sort(instants[share_of(draws[:, 0], len(instants))] + 1000 * delay_ms)
    return times


def _details(drawn: _Drawn) -> tuple[Ints, Ints, Ints]:
    """Details of all tasks, where each job's begin, and the largest share of each job. Even jobs have a server behind their
    workers.
    """
    gpus, jobs = drawn.gpus, len(drawn.gpus)
    served = np.arange(jobs) % 2 == 0
    tasks = gpus + served
    first = np.cumsum(tasks) - tasks
    rows = np.zeros((int(tasks.sum()), c.DETAIL), np.int64)
    share = _shares(drawn)
    worker = np.repeat(first, gpus) + _local(gpus)
    rows[worker] = np.stack(
        (drawn.gpu_ppm // 1000, drawn.cpus_milli, drawn.memory_bytes, np.zeros_like(share), share), axis=1
    )  # fmt: skip
    rows[(first + gpus)[served], 1:3] = SERVER_CPUS_MILLI, SERVER_BYTES
    at = np.concatenate(([0], np.cumsum(tasks))) * c.DETAIL
    return rows.ravel(), at, np.maximum.reduceat(share, np.cumsum(gpus) - gpus)


def _shares(drawn: _Drawn) -> Ints:
    """Shares of the model in ppm, task by task: its weight over its job's, by the largest remainder (ties: the earlier task)."""
    gpus = drawn.gpus
    weight = np.ones(int(gpus.sum()), np.int64)
    weight[np.repeat(drawn.model != SVM, gpus)] = drawn.weight
    starts = np.cumsum(gpus) - gpus
    share, remainder = np.divmod(weight * PPM, np.repeat(np.add.reduceat(weight, starts), gpus))
    local, job = _local(gpus), np.repeat(np.arange(len(gpus)), gpus)
    rank = np.empty_like(local)
    rank[np.lexsort((local, -remainder, job))] = local
    found: Ints = share + (rank < np.repeat(PPM - np.add.reduceat(share, starts), gpus))
    return found


def _accuracy_ppm(drawn: _Drawn) -> tuple[Ints, Ints, Ints]:
    """Start, plateau and the accuracy after all iterations."""
    start = np.array(START_PPM, np.int64)[drawn.model]
    plateau = np.array(PLATEAU_PPM, np.int64)[drawn.model] * drawn.plateau_ppm // PPM
    left = np.array(LEFT_PPM, np.int64)[drawn.k, drawn.m]
    return start, plateau, plateau - (plateau - start) * left // PPM


def _spec(drawn: _Drawn, submitted: Ints, slack_ms: Ints, tasks: Ints, skew: Ints, details: Ints, detail_at: Ints) -> Table:
    model, gpus = drawn.model, drawn.gpus
    jobs = len(gpus)
    even = np.arange(jobs) % 2 == 0
    ring = ~even & (model == SVM)
    graph = np.where(model == SVM, c.Cut.NONE, np.where(model < CHAINS, c.Cut.CHAIN, c.Cut.LAYERED))
    largest = np.maximum.reduceat(details.reshape(-1, c.DETAIL), detail_at[:-1] // c.DETAIL)
    spec = plain_spec(jobs)
    columns: dict[int, Ints | int] = {
        c.J_PIPELINE: gpus,
        c.J_CUT: graph,
        c.J_WIDTH: np.where(graph == c.Cut.LAYERED, np.where(gpus < 4, 1, np.where(gpus < 16, 2, 4)), 1),
        c.J_SYNC: np.where(even, c.Sync.PARAMETER_SERVER, np.where(ring, c.Sync.ALL_REDUCE, c.Sync.NONE)),
        c.J_SERVERS: even,
        c.J_SERVERS_MAX: even,
        c.J_SERVER_CPU: even * SERVER_CPUS_MILLI,
        c.J_SERVER_MEM: even * SERVER_BYTES,
        c.J_EDGE_BYTES: drawn.edge_bytes,
        c.J_SYNC_BYTES: np.where(even, drawn.sink_bytes, np.where(ring, drawn.edge_bytes, 0)),
        c.J_GPU_TASK: largest[:, 0],
        c.J_CPU_TASK: _largest_of_workers(drawn.cpus_milli, gpus),
        c.J_MEM_TASK: _largest_of_workers(drawn.memory_bytes, gpus),
        c.J_SHARE: 1,
        c.J_DETAILS: tasks,
        c.J_SKEW: skew,
        c.J_MODEL: model,
        c.J_DEADLINE: submitted + np.maximum(1100 * drawn.run_ms, 1000 * slack_ms),
        c.J_URGENCY: drawn.urgency,
        c.J_ESTIMATE: 10 * drawn.run_ms * np.array(ESTIMATE_PERCENT, np.int64)[drawn.estimate],
        c.J_UNITS_TOTAL: drawn.iterations,
        c.J_ACC_REQUIRED: drawn.required_ppm * _accuracy_ppm(drawn)[2] // PPM,
        c.J_STOP_RULE: c.StopRule.OPTSTOP,
        c.J_STOP_ALLOW: 1 << c.StopRule.ACCURACY,
        c.J_RESTORE: RESTORE_US,
        c.J_EVERY: EVERY_US,
    }
    for column, value in columns.items():
        spec[column] = value
    return spec


def _largest_of_workers(values: Ints, gpus: Ints) -> Ints:
    largest: Ints = np.maximum.reduceat(values, np.cumsum(gpus) - gpus)
    return largest


def _truth(drawn: _Drawn) -> Table:
    start, plateau, _ = _accuracy_ppm(drawn)
    truth = np.zeros((y.TRUTH_COLUMNS, len(drawn.gpus)), np.int64)
    truth[y.Y_SPEED], truth[y.Y_CURVE], truth[y.Y_OBSERVE_EVERY] = Speed.ITERATIONS, Curve.POWER, 1
    truth[y.Y_UNITS], truth[y.Y_START], truth[y.Y_PLATEAU] = drawn.iterations, start, plateau
    truth[y.Y_K], truth[y.Y_M] = np.array(K_PPM, np.int64)[drawn.k], np.array(M_PPM, np.int64)[drawn.m]
    truth[y.Y_NOISE] = NOISE_PPM
    return truth


def _sha256(cluster: Cluster, submitted: Ints, slack_ms: Ints, drawn: _Drawn) -> str:
    gpus = drawn.gpus
    columns = (
        submitted, slack_ms, drawn.run_ms, drawn.iterations, gpus, drawn.model,
        list_column(np.where(drawn.model == SVM, 0, gpus), drawn.weight), drawn.edge_bytes, drawn.sink_bytes,
        list_column(gpus, drawn.gpu_ppm), list_column(gpus, drawn.cpus_milli), list_column(gpus, drawn.memory_bytes),
        drawn.plateau_ppm, drawn.k, drawn.m, drawn.required_ppm, drawn.urgency, drawn.estimate,
    )  # fmt: skip
    return drawn_sha256(cluster, columns)
