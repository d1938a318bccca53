"""Hypothesis strategies: clusters, workloads, and views in which anything may have happened. Needs the extra `dev`."""

from __future__ import annotations

import random

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from headway.core.view import ClusterView
from headway.testing.builders import workload
from headway.testing.scenarios import random_cluster, random_jobs
from headway.testing.views import Case, random_case
from headway.workloads.cluster import Cluster
from headway.workloads.schema import Workload

SEEDS = st.integers(0, 2**32 - 1)


def clusters(nodes_max: int = 4) -> SearchStrategy[Cluster]:
    """Small clusters: one or two kinds and racks, sometimes tight cpus and memory."""
    return SEEDS.map(lambda seed: random_cluster(random.Random(seed), nodes_max))


def runs(jobs_max: int = 12, *, sharing: bool = False) -> SearchStrategy[tuple[Cluster, Workload]]:
    """A small cluster and jobs of all sorts for it."""
    return SEEDS.map(lambda seed: _run(random.Random(seed), jobs_max, sharing))


def _run(r: random.Random, jobs_max: int, sharing: bool) -> tuple[Cluster, Workload]:
    where = random_cluster(r)
    jobs = random_jobs(r, where, r.randint(1, jobs_max), sharing=sharing)
    return where, workload(jobs, kinds=where.kinds, users=("ann", "bob"), queues=("one", "two"))


def cases() -> SearchStrategy[Case]:
    """Journals in the middle of things, with the time of the decision that is to follow."""
    return SEEDS.map(random_case)


def views() -> SearchStrategy[ClusterView]:
    """What a policy may be shown."""
    return cases().map(lambda case: case.view())
