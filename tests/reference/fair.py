"""The fair order of section 4: progressive filling within a tree of parties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .model import Cluster, JobState, arrival

Row = list[JobState]
Party = tuple[Row, list[JobState], int]
"""The jobs in the order in which they are taken, the placed jobs that count from the start, and the weight."""


def fair_order(cluster: Cluster, jobs: Row, placed: Row, policy: str, params: dict[str, Any]) -> Row:
    over = params.get("over", "user" if policy == "drf" else "queue")
    jobs = sorted(jobs, key=lambda s: (-s.job.priority, arrival(s)))
    if over == "queue":
        tops = [q for q, queue in enumerate(cluster.queues) if queue.parent is None]
        return merged([subtree(cluster, policy, q, jobs, placed) for q in tops], cluster, policy)[0]
    who: Callable[[JobState], int] = (lambda s: s.job.user) if over == "user" else (lambda s: s.number)
    names = sorted({who(s) for s in jobs})
    parties = [([s for s in jobs if who(s) == name], [s for s in placed if who(s) == name], 1) for name in names]
    return merged(parties, cluster, policy)[0]


def subtree(cluster: Cluster, policy: str, queue: int, jobs: Row, placed: Row) -> Party:
    """A queue with all that is below it, as one party."""
    mine = ([s for s in jobs if s.job.queue == queue], [s for s in placed if s.job.queue == queue])
    below = [q for q, other in enumerate(cluster.queues) if other.parent == queue]
    weight = cluster.queues[queue].weight
    if not below:
        return (*mine, weight)
    parties = [(*mine, 1), *(subtree(cluster, policy, q, jobs, placed) for q in below)]
    return (*merged(parties, cluster, policy), weight)


def merged(parties: list[Party], cluster: Cluster, policy: str) -> tuple[Row, Row]:
    rows = [list(row) for row, _, _ in parties]
    has = [[sum(demand(s)[r] for s in start) for r in range(3)] for _, start, _ in parties]
    total = capacity(cluster)
    result: Row = []
    while any(rows):

        def turn(i: int) -> tuple[int, float, tuple[int, int]]:
            resources = range(3 if policy == "drf" else 1)
            share = max((has[i][r] / total[r] for r in resources if total[r] > 0), default=0.0)
            return (-rows[i][0].job.priority, share / parties[i][2], arrival(rows[i][0]))

        first = min((i for i in range(len(rows)) if rows[i]), key=turn)
        state = rows[first].pop(0)
        result.append(state)
        has[first] = [a + b for a, b in zip(has[first], demand(state), strict=True)]
    return result, [s for _, start, _ in parties for s in start]


def demand(state: JobState) -> list[int]:
    job = state.job
    return [job.gpus, job.tasks * job.cpus_milli, job.tasks * job.memory_bytes]


def capacity(cluster: Cluster) -> list[int]:
    up = [cluster.nodes[number] for number in cluster.up]
    return [sum(n.gpus for n in up), sum(n.cpus_milli for n in up), sum(n.memory_bytes for n in up)]
