"""Quotas and limits of section 4, and what both preemptive passes do with a pool of jobs that may have to go."""

from __future__ import annotations

from .model import Cluster, JobState, Place, Plan, arrival, gpus_of, nodes_of
from .placement import booked_on, find_place, make_views
from .victims import Classes, giving_way, goes_first, lost_work

Wanted = dict[int, Place]


def has_quotas(cluster: Cluster) -> bool:
    return any(queue.quota is not None for queue in cluster.queues)


def used(cluster: Cluster, wanted: Wanted, queue: int) -> int:
    return sum(cluster.jobs[n].job.gpus for n in wanted if cluster.jobs[n].job.queue == queue)


def quota(cluster: Cluster, queue: int) -> int:
    return cluster.queues[queue].quota or 0


def within_limit(cluster: Cluster, wanted: Wanted, state: JobState) -> bool:
    limit = cluster.queues[state.job.queue].limit
    return limit is None or used(cluster, wanted, state.job.queue) + state.job.gpus <= limit


def claims(cluster: Cluster, wanted: Wanted, state: JobState) -> bool:
    after = used(cluster, wanted, state.job.queue) + state.job.gpus
    return state.job.gpus > 0 and after <= quota(cluster, state.job.queue) and within_limit(cluster, wanted, state)


def may_go(cluster: Cluster, wanted: Wanted, pool: list[int]) -> list[JobState]:
    """Jobs that were placed when the round began and still are, and are not in the pool."""
    placed = [s for s in cluster.live_jobs() if s.placed and s.number in wanted and s.number not in pool]
    return [s for s in placed if s.job.gpus > 0 and nodes_of(wanted[s.number]) <= cluster.up]


def borrowing(cluster: Cluster, wanted: Wanted, pool: list[int], state: JobState) -> int:
    """By how much the job's queue is above its quota, without the pool."""
    left = {n: place for n, place in wanted.items() if n not in pool}
    return used(cluster, left, state.job.queue) - quota(cluster, state.job.queue)


def next_borrower(cluster: Cluster, wanted: Wanted, pool: list[int]) -> int | None:
    candidates = [s for s in may_go(cluster, wanted, pool) if borrowing(cluster, wanted, pool, s) > 0]
    if not candidates:
        return None
    worst = max(borrowing(cluster, wanted, pool, s) for s in candidates)
    of_worst = [s for s in candidates if borrowing(cluster, wanted, pool, s) == worst]
    first = min(of_worst, key=lambda s: (s.job.priority, lost_work(s, cluster.now), -s.placed_s, [-n for n in arrival(s)]))
    return first.number


def serve_claims(cluster: Cluster, kernel: str, plan: Plan, wanted: Wanted, order: list[JobState], *, in_turn: bool) -> None:
    again = True
    while again:
        again = False
        stuck: set[int] = set()
        for state in order:
            if state.number in wanted or state.job.queue in stuck or not claims(cluster, wanted, state):
                continue
            before = len(plan.releases)
            if serve(cluster, kernel, plan, wanted, state):
                again = again or len(plan.releases) > before
            elif in_turn:
                stuck.add(state.job.queue)


def serve(cluster: Cluster, kernel: str, plan: Plan, wanted: Wanted, state: JobState) -> bool:
    place = find_place(kernel, state.job, make_views(cluster, wanted, cluster.held()))
    pool: list[int] = []
    while place is None:
        borrower = next_borrower(cluster, wanted, pool)
        if borrower is None:
            return False
        pool.append(borrower)
        place = place_on_pool(cluster, kernel, state, wanted, pool)
    wanted[state.number] = plan.places[state.number] = place
    release_losers(cluster, plan, place, wanted, pool)
    return True


def pass_within_quotas(cluster: Cluster, ranked: list[JobState], classes: Classes, kernel: str) -> Plan:
    plan, wanted = Plan(), cluster.wanted()
    waiting = [s for s in ranked if s.waiting]
    if has_quotas(cluster):
        serve_claims(cluster, kernel, plan, wanted, waiting, in_turn=False)
    order = giving_way(cluster, ranked, classes)
    for state in ranked:
        if not state.waiting or state.number in wanted:
            continue
        before = len(plan.releases)
        below = [s.number for s in order if not goes_first(s, state, cluster.now, classes)]
        place_one(cluster, kernel, plan, wanted, state, below)
        if has_quotas(cluster) and len(plan.releases) > before:
            serve_claims(cluster, kernel, plan, wanted, waiting, in_turn=False)
    return plan


def place_one(cluster: Cluster, kernel: str, plan: Plan, wanted: Wanted, state: JobState, below: list[int]) -> None:
    """`below`: the jobs that rank below it, in the order in which they give way."""
    if state.job.gpus == 0 or within_limit(cluster, wanted, state):
        place = find_place(kernel, state.job, make_views(cluster, wanted, cluster.held()))
        if place is not None:
            wanted[state.number] = plan.places[state.number] = place
        if place is not None or state.job.gpus == 0:
            return
        if over_borrowers(cluster, kernel, plan, wanted, state, below):
            return
    over_own(cluster, kernel, plan, wanted, state, below)


def over_borrowers(cluster: Cluster, kernel: str, plan: Plan, wanted: Wanted, state: JobState, below: list[int]) -> bool:
    pool: list[int] = []
    for number in below:
        able = [s for s in may_go(cluster, wanted, pool) if s.number == number]
        if not able or borrowing(cluster, wanted, pool, able[0]) <= 0:
            continue
        pool.append(number)
        place = place_on_pool(cluster, kernel, state, wanted, pool)
        if place is not None:
            wanted[state.number] = plan.places[state.number] = place
            release_losers(cluster, plan, place, wanted, pool)
            return True
    return False


def over_own(cluster: Cluster, kernel: str, plan: Plan, wanted: Wanted, state: JobState, below: list[int]) -> None:
    queue = state.job.queue
    caps = [10**9 if cluster.queues[queue].limit is None else cluster.queues[queue].limit or 0]
    if has_quotas(cluster):
        caps.append(max(quota(cluster, queue), used(cluster, wanted, queue)))
    cap = min(caps)
    pool: list[int] = []
    for number in below:
        if number not in [s.number for s in may_go(cluster, wanted, pool) if s.job.queue == queue]:
            continue
        pool.append(number)
        left = {n: place for n, place in wanted.items() if n not in pool}
        if used(cluster, left, queue) + state.job.gpus > cap:
            continue
        place = place_on_pool(cluster, kernel, state, wanted, pool)
        if place is not None:
            wanted[state.number] = plan.places[state.number] = place
            release_losers(cluster, plan, place, wanted, pool)
            while used(cluster, wanted, queue) > cap:
                release(pool[0], plan, wanted, pool)
            return


def place_on_pool(cluster: Cluster, kernel: str, state: JobState, wanted: dict[int, Place], pool: list[int]) -> Place | None:
    views = make_views(cluster, wanted, cluster.held(), pool)
    if sum(view.avail for view in views) < state.job.gpus:
        return None
    return find_place(kernel, state.job, views)


def release_losers(cluster: Cluster, plan: Plan, place: Place, wanted: dict[int, Place], pool: list[int]) -> None:
    """Release pooled jobs that lost a GPU, then, in the order in which they joined, those whose cpus or memory it needs."""
    taken = gpus_of(place)
    for number in [n for n in pool if gpus_of(wanted[n]) & taken]:
        release(number, plan, wanted, pool)
    for node in sorted(nodes_of(place)):
        for number in [n for n in pool if node in nodes_of(wanted[n])]:
            if over_booked(cluster, wanted, node):
                release(number, plan, wanted, pool)


def release(number: int, plan: Plan, wanted: dict[int, Place], pool: list[int]) -> None:
    plan.releases.append(number)
    pool.remove(number)
    del wanted[number]


def over_booked(cluster: Cluster, wanted: dict[int, Place], number: int) -> bool:
    cpus, memory = booked_on(cluster.jobs, wanted, number)
    node = cluster.nodes[number]
    return cpus > node.cpus_milli or memory > node.memory_bytes
