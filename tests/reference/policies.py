"""The policies of section 4. Each looks at the cluster and returns a plan; nothing is changed here."""

from __future__ import annotations

from typing import Any

from .model import Cluster, JobState, Place, Plan, gpus_of, nodes_of
from .placement import booked_on, find_place, make_views

Params = dict[str, Any]


def decide(cluster: Cluster, policy: str, params: Params, kernel: str) -> Plan:
    if policy == "fifo":
        return fifo(cluster, kernel)
    if policy == "fifo-backfill":
        return fifo_backfill(cluster, kernel, params["depth"])
    if policy == "tiresias":
        kernel = "consolidated"
    rankable = [s for s in cluster.live_jobs() if s.placed or s.waiting]
    ranked = sorted(rankable, key=lambda s: rank(s, policy, params, cluster.now))
    plan = preemptive_pass(cluster, ranked, kernel)
    if policy == "tiresias":
        promoted = {n for n in plan.places if is_promoted(cluster.jobs[n], params, cluster.now)}
        plan.promoted = promoted
    return plan


def arrival(state: JobState) -> tuple[int, int]:
    return (state.job.submit_s, state.number)


def rank(state: JobState, policy: str, params: Params, now: int) -> tuple[int, int, tuple[int, int]]:
    """Lowest first: higher priority, then the policy's key, then arrival."""
    return (-state.job.priority, policy_key(state, policy, params, now), arrival(state))


def policy_key(state: JobState, policy: str, params: Params, now: int) -> int:
    if policy == "srtf":
        return max(0, state.job.estimate - state.run_s)
    if policy == "oracle-srtf":
        return max(0, state.job.work_s - state.run_s)
    if policy == "las":
        return state.attained // int(params.get("quantum_s", 600))
    if policy == "tiresias":
        return tiresias_queue(state, params, now)
    raise ValueError(f"unknown policy {policy}")


def tiresias_queue(state: JobState, params: Params, now: int) -> int:
    effective = effective_attained(state, params, now)
    first = params.get("threshold_s", 3600)
    factor = params.get("factor", 10)
    thresholds = [first * factor**i for i in range(params.get("queues", 2) - 1)]
    return sum(1 for threshold in thresholds if effective >= threshold)


def effective_attained(state: JobState, params: Params, now: int) -> int:
    if is_promoted(state, params, now):
        return 0
    if state.promoted_at is not None:
        return state.attained - state.promoted_at
    return state.attained


def is_promoted(state: JobState, params: Params, now: int) -> bool:
    promote = params.get("promote", 8)
    if promote == 0 or not state.waiting or state.last_stop_s is None:
        return False
    return bool(now - state.last_stop_s >= promote * state.run_s)


def waiting_by_arrival(cluster: Cluster) -> list[JobState]:
    waiting = [s for s in cluster.live_jobs() if s.waiting]
    return sorted(waiting, key=lambda s: (-s.job.priority, arrival(s)))


def fifo(cluster: Cluster, kernel: str) -> Plan:
    plan = Plan()
    wanted, held = cluster.wanted(), cluster.held()
    blockers: list[JobState] = []
    for state in waiting_by_arrival(cluster):
        if any(share_a_kind(state, blocker) for blocker in blockers):
            continue
        place = find_place(kernel, state.job, make_views(cluster, wanted, held))
        if place is None:
            blockers.append(state)
        else:
            wanted[state.number] = plan.places[state.number] = place
    return plan


def share_a_kind(one: JobState, other: JobState) -> bool:
    """Whether there is a kind of GPU that both jobs could use. A job of no kind could use any."""
    if one.job.gpus == 0 or other.job.gpus == 0:
        return False
    return not one.job.kind or not other.job.kind or one.job.kind == other.job.kind


def fifo_backfill(cluster: Cluster, kernel: str, depth: int) -> Plan:
    plan = Plan()
    wanted, held = cluster.wanted(), cluster.held()
    queue = waiting_by_arrival(cluster)
    while queue:
        head = queue.pop(0)
        place = find_place(kernel, head.job, make_views(cluster, wanted, held))
        if place is None:
            backfill(cluster, kernel, plan, wanted, head, queue[:depth])
            break
        wanted[head.number] = plan.places[head.number] = place
    return plan


def backfill(
    cluster: Cluster,
    kernel: str,
    plan: Plan,
    wanted: dict[int, Place],
    head: JobState,
    candidates: list[JobState],
) -> None:
    shadow, reserved = reservation(cluster, kernel, wanted, head)
    held = cluster.held()
    for state in candidates:
        end = cluster.now + max(state.job.estimate - state.run_s, 0)
        hidden = set() if shadow is None or end <= shadow else reserved
        place = find_place(kernel, state.job, make_views(cluster, wanted, held, hidden=hidden))
        if place is not None:
            wanted[state.number] = plan.places[state.number] = place


def reservation(
    cluster: Cluster, kernel: str, wanted: dict[int, Place], head: JobState
) -> tuple[int | None, set[tuple[int, int]]]:
    """The shadow time and the GPUs reserved for the head; (None, nothing) if it would never fit."""
    still_wanted, still_held = dict(wanted), cluster.held()
    placed = [cluster.jobs[number] for number in wanted]
    for state in sorted(placed, key=lambda s: (expected_end(s, cluster.now), s.number)):
        del still_wanted[state.number]
        still_held.pop(state.number, None)
        place = find_place(kernel, head.job, make_views(cluster, still_wanted, still_held))
        if place is not None:
            return expected_end(state, cluster.now), gpus_of(place)
    return None, set()


def expected_end(state: JobState, now: int) -> int:
    started = now if state.started_s is None else state.started_s
    return max(now, started + max(state.job.estimate - state.earlier_run_s, 0))


def preemptive_pass(cluster: Cluster, ranked: list[JobState], kernel: str) -> Plan:
    plan = Plan()
    wanted = cluster.wanted()
    selected = select_by_count(cluster, ranked)
    victims = [s.number for s in reversed(ranked) if s.placed and s.number not in selected]
    pool: list[int] = []
    for state in ranked:
        if state.number in selected and state.waiting:
            place = place_with_victims(cluster, kernel, state, wanted, victims, pool)
            if place is not None:
                wanted[state.number] = plan.places[state.number] = place
                release_losers(cluster, plan, place, wanted, pool)
    return plan


def select_by_count(cluster: Cluster, ranked: list[JobState]) -> set[int]:
    """Numbers of the jobs that fit into the GPUs of the up nodes, kind by kind, best rank first."""
    kinds: list[str] = []
    for number in sorted(cluster.nodes):
        if cluster.nodes[number].kind not in kinds:
            kinds.append(cluster.nodes[number].kind)
    left = {kind: sum(cluster.nodes[n].gpus for n in cluster.up if cluster.nodes[n].kind == kind) for kind in kinds}
    selected = set()
    for state in ranked:
        if state.job.gpus == 0:
            selected.add(state.number)
            continue
        if state.placed:
            kind = cluster.nodes[min(nodes_of(state.wanted or ()))].kind
        else:
            usable = [k for k in kinds if state.job.kind in ("", k)]
            kind = max(usable, key=lambda k: left[k]) if usable else ""
        if state.job.gpus <= left.get(kind, 0):
            selected.add(state.number)
            left[kind] -= state.job.gpus
    return selected


def place_with_victims(
    cluster: Cluster,
    kernel: str,
    state: JobState,
    wanted: dict[int, Place],
    victims: list[int],
    pool: list[int],
) -> Place | None:
    """A place on unwanted GPUs, else on the pool as it is, else with one more victim at a time."""
    held = cluster.held()
    place = find_place(kernel, state.job, make_views(cluster, wanted, held))
    if state.job.gpus == 0:
        return place
    if place is None and pool:
        place = place_on_pool(cluster, kernel, state, wanted, pool)
    while place is None and victims:
        pool.append(victims.pop(0))
        place = place_on_pool(cluster, kernel, state, wanted, pool)
    return place


def place_on_pool(cluster: Cluster, kernel: str, state: JobState, wanted: dict[int, Place], pool: list[int]) -> Place | None:
    views = make_views(cluster, wanted, cluster.held(), pool)
    if sum(view.avail for view in views) < state.job.gpus:
        return None
    return find_place(kernel, state.job, views)


def release_losers(cluster: Cluster, plan: Plan, place: Place, wanted: dict[int, Place], pool: list[int]) -> None:
    """Release pooled jobs that lost a GPU, then, lowest rank first, those whose cpus or memory it needs."""
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
