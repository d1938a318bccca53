"""Lost work of section 4: in which order placed jobs give way."""

from __future__ import annotations

from typing import Any

from .model import Cluster, JobState, arrival

Classes = dict[int, tuple[Any, ...]]
"""The rank of each job without its arrival: jobs with the same one rank as equals."""


def at_risk_s(state: JobState, now: int) -> int:
    """For how long a job has run whose stop may cost work. (Nothing tells here of a save between stops.)"""
    if state.state != "running" or state.job.grace_s is None or state.started_s is None:
        return 0
    return now - state.started_s


def lost_work(state: JobState, now: int) -> int:
    """GPU minutes that a stop may cost."""
    return at_risk_s(state, now) * state.job.gpus // 60


def goes_first(placed: JobState, waiting: JobState, now: int, classes: Classes) -> bool:
    if classes[placed.number] != classes[waiting.number]:
        return classes[placed.number] < classes[waiting.number]
    since = waiting.job.submit_s if waiting.last_stop_s is None else waiting.last_stop_s
    return arrival(placed) < arrival(waiting) or at_risk_s(placed, now) > now - since


def by_turns(cluster: Cluster, ranked: list[JobState], classes: Classes) -> list[JobState]:
    """The order in which jobs are selected by count."""
    placed, waiting = [s for s in ranked if s.placed], [s for s in ranked if s.waiting]
    result: list[JobState] = []
    while placed or waiting:
        equals: list[JobState] = []
        while placed and (not equals or classes[placed[0].number] == classes[equals[0].number]):
            if waiting and not goes_first(placed[0], waiting[0], cluster.now, classes):
                break
            equals.append(placed.pop(0))
        result += sorted(equals, key=lambda s: -lost_work(s, cluster.now)) if equals else [waiting.pop(0)]
    return result


def giving_way(cluster: Cluster, ranked: list[JobState], classes: Classes) -> list[JobState]:
    """Placed jobs from the lowest rank up, of equals the one that loses least first."""
    order = sorted([s for s in reversed(ranked) if s.placed], key=lambda s: lost_work(s, cluster.now))
    return sorted(order, key=lambda s: classes[s.number], reverse=True)


def victims_of(cluster: Cluster, unselected: list[JobState]) -> list[int]:
    """Numbers of the jobs that were not selected, in the order in which they join the pool."""
    order = sorted(reversed(unselected), key=lambda s: (s.job.priority, lost_work(s, cluster.now)))
    return [s.number for s in order]
