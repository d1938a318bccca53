"""The policies of section 4. Each looks at the cluster and returns a plan; nothing is changed here."""

from __future__ import annotations

from typing import Any

from .fair import fair_order
from .model import Cluster, JobState, Place, Plan, arrival, gpus_of, nodes_of
from .placement import find_place, make_views
from .quotas import has_quotas, pass_within_quotas, place_on_pool, release_losers, serve_claims, within_limit
from .victims import Classes, by_turns, victims_of

Params = dict[str, Any]


PREEMPTIVE = ("srtf", "oracle-srtf", "las", "tiresias")


def decide(cluster: Cluster, policy: str, params: Params, kernel: str) -> Plan:
    if policy == "tiresias":
        kernel = "consolidated"
    if policy in PREEMPTIVE or (policy in ("edf", "drf", "borg-fair") and params.get("preempt", True)):
        plan = with_preemption(cluster, policy, params, kernel)
    else:
        plan = without_preemption(cluster, policy, params, kernel)
    if policy == "tiresias":
        plan.promoted = {n for n in plan.places if is_promoted(cluster.jobs[n], params, cluster.now)}
    return plan


def with_preemption(cluster: Cluster, policy: str, params: Params, kernel: str) -> Plan:
    rankable = [s for s in cluster.live_jobs() if s.placed or s.waiting]
    if policy in ("drf", "borg-fair"):
        ranked = fair_order(cluster, rankable, [], policy, params)
        classes: Classes = {s.number: (place,) for place, s in enumerate(ranked)}
    else:
        ranked = sorted(rankable, key=lambda s: rank(s, policy, params, cluster.now))
        classes = {s.number: rank(s, policy, params, cluster.now)[:2] for s in ranked}
    if any(queue.quota is not None or queue.limit is not None for queue in cluster.queues):
        return pass_within_quotas(cluster, ranked, classes, kernel)
    return preemptive_pass(cluster, ranked, classes, kernel)


def without_preemption(cluster: Cluster, policy: str, params: Params, kernel: str) -> Plan:
    waiting = [s for s in cluster.live_jobs() if s.waiting]
    if policy in ("drf", "borg-fair"):
        queue = fair_order(cluster, waiting, [s for s in cluster.live_jobs() if s.placed], policy, params)
    elif policy in ("fifo", "fifo-backfill"):
        queue = sorted(waiting, key=lambda s: (-s.job.priority, arrival(s)))
    else:
        queue = sorted(waiting, key=lambda s: rank(s, policy, params, cluster.now))
    plan = Plan()
    wanted = cluster.wanted()
    if has_quotas(cluster):
        serve_claims(cluster, kernel, plan, wanted, queue, in_turn=policy in ("fifo", "fifo-backfill"))
        queue = [s for s in queue if s.number not in plan.places]
    unfit = {"fifo": "block", "fifo-backfill": "backfill"}.get(policy) or params.get("unfit", "backfill")
    if unfit == "block":
        block(cluster, kernel, plan, wanted, queue)
    elif unfit == "skip":
        skip(cluster, kernel, plan, wanted, queue)
    else:
        easy_backfill(cluster, kernel, plan, wanted, queue, params.get("depth", 1000))
    return plan


def rank(state: JobState, policy: str, params: Params, now: int) -> tuple[int, int, tuple[int, int]]:
    """Lowest first: higher priority, then the policy's key, then arrival."""
    return (-state.job.priority, policy_key(state, policy, params, now), arrival(state))


def policy_key(state: JobState, policy: str, params: Params, now: int) -> int:
    if policy in ("srtf", "sjf"):
        return max(0, state.job.estimate - state.run_s)
    if policy == "oracle-srtf":
        return max(0, state.job.work_s - state.run_s)
    if policy == "las":
        return state.attained // int(params.get("quantum_s", 600))
    if policy == "edf":
        return 10**12 if state.job.deadline_s is None else state.job.deadline_s
    if policy == "random":
        return random_key(state, params.get("seed", 0))
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


def random_key(state: JobState, seed: int) -> int:
    z = seed
    job = state.job
    for column in (job.submit_s * 1_000_000, job.estimate * 1_000_000, job.gpus_per_task * 1000, job.tasks):
        z = splitmix(z ^ column)
    return z


def splitmix(z: int) -> int:
    whole = 2**64 - 1
    z = (z + 0x9E3779B97F4A7C15) & whole
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & whole
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & whole
    return z ^ z >> 31


def block(cluster: Cluster, kernel: str, plan: Plan, wanted: dict[int, Place], queue: list[JobState]) -> None:
    held = cluster.held()
    blockers: list[JobState] = []
    for state in queue:
        if any(share_a_kind(state, blocker) for blocker in blockers) or not within_limit(cluster, wanted, state):
            continue
        place = find_place(kernel, state.job, make_views(cluster, wanted, held))
        if place is None:
            blockers.append(state)
        else:
            wanted[state.number] = plan.places[state.number] = place


def skip(cluster: Cluster, kernel: str, plan: Plan, wanted: dict[int, Place], queue: list[JobState]) -> None:
    for state in queue:
        if within_limit(cluster, wanted, state):
            place = find_place(kernel, state.job, make_views(cluster, wanted, cluster.held()))
            if place is not None:
                wanted[state.number] = plan.places[state.number] = place


def share_a_kind(one: JobState, other: JobState) -> bool:
    """Whether there is a kind of GPU that both jobs could use. A job of no kind could use any."""
    if one.job.gpus == 0 or other.job.gpus == 0:
        return False
    return not one.job.kind or not other.job.kind or one.job.kind == other.job.kind


def easy_backfill(cluster: Cluster, kernel: str, plan: Plan, wanted: dict[int, Place], queue: list[JobState], depth: int) -> None:
    queue = list(queue)
    while queue:
        head = queue.pop(0)
        if not within_limit(cluster, wanted, head):
            continue
        place = find_place(kernel, head.job, make_views(cluster, wanted, cluster.held()))
        if place is None:
            backfill(cluster, kernel, plan, wanted, head, queue[:depth])
            break
        wanted[head.number] = plan.places[head.number] = place


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
        if not within_limit(cluster, wanted, state):
            continue
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


def preemptive_pass(cluster: Cluster, ranked: list[JobState], classes: Classes, kernel: str) -> Plan:
    plan = Plan()
    wanted = cluster.wanted()
    selected = select_by_count(cluster, by_turns(cluster, ranked, classes))
    victims = victims_of(cluster, [s for s in ranked if s.placed and s.number not in selected])
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
