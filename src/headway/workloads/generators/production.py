"""`production`: long jobs whose shape (workers, servers) and place may be searched for, on clusters of mixed machines."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.specstring import Part
from headway.workloads import truth as y
from headway.workloads.generators.arrivals import FLAT, arrivals, span_us
from headway.workloads.generators.draws import Draws, share_of, uniform
from headway.workloads.generators.params import count_reader, drawn_sha256, load_reader, read
from headway.workloads.schema import Workload, plain_spec
from headway.workloads.truth import Curve, Speed

TYPES = (
    # name, compute of an iteration of the global batch on one v100 (ms), gradient (MB), iterations from, to, parameter server
    ("resnext-cifar", 450, 7, 20_000, 60_000, True),
    ("resnet50", 800, 102, 30_000, 90_000, False),
    ("inception3", 750, 92, 30_000, 90_000, True),
    ("vgg16", 680, 528, 20_000, 60_000, True),
    ("seq2seq", 600, 150, 20_000, 80_000, False),
    ("text-cnn", 80, 6, 50_000, 200_000, True),
    ("dssm", 120, 8, 50_000, 200_000, True),
    ("bert-base", 1200, 440, 10_000, 40_000, False),
)
NAMES = tuple(kind[0] for kind in TYPES)
WORKERS, SERVERS = 4, 4
"""The shape where nobody chooses one."""
SHAPE_MAX = 16
WORKER_CPUS_MILLI, WORKER_BYTES = 4000, 24 * 10**9
SERVER_CPUS_MILLI, SERVER_BYTES = 4000, 8 * 10**9
START_PPM = 2_300_000
PLATEAU_PPM = (100_000, 500_000)
NOISE_PPM = 20_000
OBSERVE_EVERY = 100
RESTORE_US, EVERY_US = 30_000_000, 300_000_000


def make(part: Part, seed: int) -> Workload:
    """`production:jobs=500,load=0.35,cluster=production-mixed`. Three draws a job: type, iterations K, plateau of the loss.

    Its `work_us` is what all iterations compute on one v100, alone and with nothing to exchange.
    """
    defaults = {"jobs": 500, "load": Fraction(35, 100)}
    params, cluster = read(part, seed, "production-mixed", defaults, {"jobs": count_reader(), "load": load_reader})
    jobs = int(params["jobs"])
    stream = Draws(part.name, seed)
    draws = stream.draw(3 * jobs).reshape(jobs, 3)
    kind = share_of(draws[:, 0], len(TYPES))
    iterations = np.empty(jobs, np.int64)
    for i, (_, _, _, low, high, _) in enumerate(TYPES):
        iterations[kind == i] = uniform(draws[kind == i, 1], low, high)
    plateau = uniform(draws[:, 2], *PLATEAU_PPM)
    base_us = _of(kind, [1000 * ms for _, ms, *_ in TYPES])
    work = iterations * base_us
    span = span_us(sum(work.tolist()), params["load"], cluster.gpus, part.name)
    submitted = arrivals(stream.draw(jobs), span, FLAT)

    served = _of(kind, [int(server) for *_, server in TYPES])
    spec = plain_spec(jobs)
    columns: dict[int, Ints | int] = {
        c.J_DATA: WORKERS,
        c.J_DATA_MAX: SHAPE_MAX,
        c.J_SYNC: np.where(served, c.Sync.PARAMETER_SERVER, c.Sync.ALL_REDUCE),
        c.J_SERVERS: served * SERVERS,
        c.J_SERVERS_MAX: served * SHAPE_MAX,
        c.J_SERVER_CPU: served * SERVER_CPUS_MILLI,
        c.J_SERVER_MEM: served * SERVER_BYTES,
        c.J_CPU_TASK: WORKER_CPUS_MILLI,
        c.J_MEM_TASK: WORKER_BYTES,
        c.J_MODEL: kind,
        c.J_ESTIMATE: c.NEVER,
        c.J_RESTORE: RESTORE_US,
        c.J_EVERY: EVERY_US,
    }
    for column, value in columns.items():
        spec[column] = value
    truth = np.zeros((y.TRUTH_COLUMNS, jobs), np.int64)
    truth[y.Y_SPEED], truth[y.Y_CURVE], truth[y.Y_OBSERVE_EVERY] = Speed.SHAPED, Curve.INVERSE, OBSERVE_EVERY
    truth[y.Y_UNITS] = truth[y.Y_K99] = iterations
    truth[y.Y_BASE], truth[y.Y_BYTES] = base_us, _of(kind, [10**6 * size for _, _, size, *_ in TYPES])
    truth[y.Y_START], truth[y.Y_PLATEAU], truth[y.Y_NOISE] = START_PPM, plateau, NOISE_PPM
    return Workload(
        str(part), submitted, spec, work, models=NAMES, truth=truth,
        frozen_sha256=drawn_sha256(cluster, (submitted, kind, iterations, plateau)),
    )  # fmt: skip


def _of(kind: Ints, values: list[int]) -> Ints:
    """A constant of each job's type."""
    column: Ints = np.array(values, np.int64)[kind]
    return column
