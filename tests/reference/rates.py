"""Shared resources (section 5), event by event, in plain floats.

Every job has a fixed start and fixed places. Time jumps from one change of usage to the next (a start, a
completion, the next interval of a task), and at each jump the rates of all jobs are worked out anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

USAGES = ("gpu_milli", "cpus_milli", "network_bytes_per_s")

# usage(job number, task index, interval index) -> usage of each resource in USAGES (left out: none).
Usage = Callable[[int, int, int], dict[str, float]]
Resource = tuple[str, int, int]  # (usage name, node, GPU or -1)


@dataclass(frozen=True)
class RateNode:
    number: int
    cpus_milli: float
    network_bytes_per_s: float


@dataclass(frozen=True)
class RateTask:
    """A task's place. Interval `k` is the times `t` with `k <= (t + phase_s) / interval_s < k + 1`."""

    node: int
    gpu: int | None = None
    phase_s: float = 0.0


@dataclass(frozen=True)
class RateJob:
    number: int
    start_s: float
    work_s: float
    tasks: tuple[RateTask, ...]


@dataclass
class Running:
    job: RateJob
    left_s: float
    intervals: list[int]  # of each task


def slowdown(u: float) -> float:
    """f(u) of section 5."""
    if u <= 0.9:
        return 1.0
    if u <= 1.0:
        return 1.0 - (u - 0.9)
    return 0.9 / u


def completion_times(jobs: list[RateJob], nodes: list[RateNode], usage: Usage, interval_s: float) -> dict[int, float]:
    """When each job completes."""
    node_of = {node.number: node for node in nodes}
    to_start = sorted(jobs, key=lambda j: (j.start_s, j.number))
    running: list[Running] = []
    done: dict[int, float] = {}
    now = 0.0
    while to_start or running:
        while to_start and to_start[0].start_s <= now:
            running.append(begin(to_start.pop(0), interval_s))
        rates = job_rates(running, node_of, usage)
        ends = {r.job.number: now + r.left_s / rates[r.job.number] for r in running}
        changes = list(ends.values()) + [j.start_s for j in to_start[:1]]
        changes += [boundary(r, i, interval_s) for r in running for i in range(len(r.job.tasks))]
        then = min(changes)
        for r in running:
            r.left_s -= (then - now) * rates[r.job.number]
            if ends[r.job.number] <= then:
                done[r.job.number] = then
        running = [r for r in running if r.job.number not in done]
        for r in running:
            for i in range(len(r.job.tasks)):
                if boundary(r, i, interval_s) <= then:
                    r.intervals[i] += 1
        now = then
    return done


def begin(job: RateJob, interval_s: float) -> Running:
    intervals = [int((job.start_s + task.phase_s) // interval_s) for task in job.tasks]
    return Running(job, job.work_s, intervals)


def boundary(r: Running, task: int, interval_s: float) -> float:
    """When the task's present interval is over."""
    return (r.intervals[task] + 1) * interval_s - r.job.tasks[task].phase_s


def job_rates(running: list[Running], nodes: dict[int, RateNode], usage: Usage) -> dict[int, float]:
    """The rate of each running job: the smallest over its tasks."""
    used: dict[Resource, float] = {}
    users: dict[Resource, int] = {}
    uses: dict[tuple[int, int], list[Resource]] = {}
    for r in running:
        for i, task in enumerate(r.job.tasks):
            amounts = task_usage(task, usage(r.job.number, i, r.intervals[i]))
            uses[r.job.number, i] = list(amounts)
            for resource, amount in amounts.items():
                used[resource] = used.get(resource, 0.0) + amount
                users[resource] = users.get(resource, 0) + 1
    rates: dict[int, float] = {}
    for (number, _), resources in uses.items():
        for resource in resources:
            rate = resource_rate(resource, used[resource], users[resource], nodes)
            rates[number] = min(rates.get(number, 1.0), rate)
        rates.setdefault(number, 1.0)
    return rates


def task_usage(task: RateTask, amounts: dict[str, float]) -> dict[Resource, float]:
    """What the task really uses, by resource; what it uses nothing of is left out."""
    found: dict[Resource, float] = {}
    for name in USAGES:
        amount = amounts.get(name, 0.0)
        if name == "gpu_milli" and task.gpu is None:
            continue
        if amount > 0.0:
            gpu = task.gpu if name == "gpu_milli" and task.gpu is not None else -1
            found[name, task.node, gpu] = amount
    return found


def resource_rate(resource: Resource, used: float, users: int, nodes: dict[int, RateNode]) -> float:
    name, node, _ = resource
    if name == "gpu_milli":
        return 1.0 if users == 1 else slowdown(used / 1000.0)
    if name == "cpus_milli":
        return slowdown(used / nodes[node].cpus_milli)
    return slowdown(used / nodes[node].network_bytes_per_s)
