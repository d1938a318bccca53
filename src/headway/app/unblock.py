"""Why a job is not running, with numbers, and what would let it run: from the state alone, for `headway why`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import ROW_MASK, Name, NodePhase, Phase, Reason
from headway.core.explain import Explanation
from headway.core.units import US_PER_S
from headway.core.view import ClusterView, JobView
from headway.place.assign import choose_for
from headway.place.gang import copy_room, give_mask
from headway.place.passes import estimated_end, leaving_keys

Json = dict[str, Any]
JOBS_NAMED_MAX = 8
"""How many jobs an answer names; of the others it tells how many."""

WORDS = {
    Reason.NONE: "no reason was given",
    Reason.PREEMPTED: "it was stopped for a job that ranks before it",
    Reason.MIGRATED: "it moves to another place",
    Reason.RESIZED: "it changes its shape",
    Reason.NODE_LOST: "a node that it ran on was lost",
    Reason.CANCELLED: "it was cancelled",
    Reason.EARLY_STOP: "it has done enough, and was stopped early",
    Reason.TIME_LIMIT: "its time limit was reached",
    Reason.START_FAILED: "its start failed",
    Reason.EXIT_CODE: "it failed",
    Reason.LARGER_THAN_CLUSTER: "it is larger than the empty cluster",
    Reason.NO_ROOM: "no place is free for it",
    Reason.BEHIND_OTHERS: "others go before it",
    Reason.RESERVED_FOR_HEAD: "what is free is reserved for the first in the queue, whom it would delay",
    Reason.OVER_QUOTA: "its queue has no room left below its limit",
    Reason.HELD_BY_USER: "its owner holds it",
    Reason.RETRY_LATER: "it failed, and is to be tried again later",
    Reason.LOW_RANK: "others rank before it",
    Reason.NOT_CONSOLIDATED: "it needs the fewest nodes possible, and they are not free",
    Reason.WAITS_FOR_STOP: "its place is still held by others, who are stopping",
    Reason.DONE: "it is done",
    Reason.TRIAL: "it is on trial",
    Reason.UNKNOWN_QUEUE: "its queue does not exist",
    Reason.RETRIES_SPENT: "it failed too often",
    Reason.GANG_INCOMPLETE: "some of its tasks have places, and it starts when all have",
    Reason.DEADLOCK: "jobs held places and waited for each other, and one of them was let through",
}


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs that nobody wants, on nodes that are up and of a kind that the job may use."""

    free: int
    free_max: int
    """The most on one node."""
    up: int
    """GPUs of such nodes in all."""


def room_for(view: ClusterView, row: int) -> Room:
    """The room that there is for a job."""
    J, N = view.state.J, view.state.N
    kinds = int(J[c.J_KIND_MASK, row] | J[c.J_ALT_MASK, row])
    up = N[:, (N[c.N_PHASE] == NodePhase.UP) & ((kinds >> N[c.N_KIND]) & 1 == 1)]
    return Room(int(up[c.N_FREE].sum()), int(up[c.N_FREE].max(initial=0)), int(up[c.N_GPUS].sum()))


def reason(view: ClusterView, job: JobView) -> Json:
    """Why the job is where it is: the journalled reason in words, the numbers that came with it, and the room now."""
    J, row = view.state.J, job.row
    why = Reason.RETRY_LATER if job.retry_at_s is not None and not job.hold else job.reason
    room = room_for(view, row)
    told: Json = {"word": why.word, "words": WORDS[why], "needs_gpus": job.gpus, "free_gpus": room.free,
                  "free_on_a_node_max": room.free_max, "gpus_up": room.up}  # fmt: skip
    if job.phase == Phase.QUEUED and int(J[c.J_WHY, row]) == why == Reason.NO_ROOM:
        told["then_needed_gpus"], told["then_free_on_a_node_max"] = int(J[c.J_WHY_A, row]), int(J[c.J_WHY_B, row])
    queue = int(J[c.J_QUEUE, row])
    limit, quota = int(view.state.Q[c.Q_LIMIT, queue]), int(view.state.Q[c.Q_QUOTA, queue])
    if limit >= 0 or quota >= 0:
        told["queue_booked_gpus"] = int(view.state.Q[c.Q_BOOKED, queue]) / c.WHOLE
        told["queue_limit_gpus"] = limit / c.WHOLE if limit >= 0 else None
        told["queue_quota_gpus"] = quota / c.WHOLE if quota >= 0 else None
    if job.retry_at_s is not None:
        told["retry_at_s"] = job.retry_at_s
    return told


def having(view: ClusterView, job: JobView) -> Json:
    """Why a job that starts, runs or stops does so, and when it ends by its estimate."""
    phase = job.phase.name.lower()
    words = {Phase.STARTING: "it has a place, and is starting there", Phase.RUNNING: "it has a place, and runs there"}
    told: Json = {
        "word": phase,
        "words": words.get(job.phase, f"it is stopping: {WORDS[job.reason]}"),
        "came_by": job.reason.word,
    }
    known = job.phase != Phase.STOPPING and view.state.J[c.J_ESTIMATE, job.row] < c.NEVER
    return told | {"ends_s": estimated_end(view.state.J, job.row, view.now_us) / US_PER_S if known else None}


def unblock(view: ClusterView, job: JobView, explained: Explanation, kernel: int) -> list[Json]:
    """What would let a queued job run, each with its numbers. `explained`: by the policy; `kernel`: how it places gangs."""
    found: list[Json] = []
    if job.hold:
        found.append({"what": "release", "words": "that its owner releases it"})
    if job.retry_at_s is not None:
        words = f"time: it is tried again at {job.retry_at_s:,.0f} s"
        found.append({"what": "retry", "words": words, "at_s": job.retry_at_s})
    if job.place:
        return [*found, *_holders(view, job)]
    found += _limit(view, job)
    found += _others(view, job, explained)
    return [*found, _ends(view, job, kernel)]


def threats(view: ClusterView, job: JobView, explained: Explanation) -> list[Json]:
    """What would take the place of a job that has one, each with its numbers."""
    state, row = view.state, job.row
    J, Q, found = state.J, state.Q, list[Json]()
    if explained.stops and explained.rank is not None:
        rows = np.array([state.row(other) for other in explained.order[: explained.rank - 1]], np.int64)
        waits = rows[(J[c.J_PLACED, rows] == 0) & (J[c.J_HOLD, rows] == 0)] if len(rows) else rows
        words = "jobs that rank before it and find no other place"
        if len(waits):
            gpus = int(J[c.J_GPUS, waits].sum())
            words += f": {len(waits):,} wait{'s' if len(waits) == 1 else ''} now ({gpus:,} GPUs)"
        named = J[c.J_ID, waits[-JOBS_NAMED_MAX:]].tolist()
        found.append({"what": "rank", "words": words, "count": len(waits), "jobs": named})
    queue = int(J[c.J_QUEUE, row])
    if (Q[c.Q_QUOTA] >= 0).any():
        over = (int(Q[c.Q_BOOKED, queue]) - max(int(Q[c.Q_QUOTA, queue]), 0)) / c.WHOLE
        if over > 0:
            words = f"claims of other queues: its own has {over:g} GPUs more than its quota"
            found.append({"what": "quota", "words": words, "gpus": over})
    if J[c.J_TIME_LIMIT, row] < c.NEVER and J[c.J_STARTED_AT, row] >= 0:
        ends = int(J[c.J_STARTED_AT, row] + J[c.J_TIME_LIMIT, row] - J[c.J_RUN, row]) / US_PER_S
        found.append({"what": "time-limit", "words": f"its time limit, at {ends:,.0f} s", "at_s": ends})
    if not found:
        found.append({"what": "nothing", "words": "nothing that the policy does: it stops no job for another"})
    return found


def checkpoint(view: ClusterView, job: JobView) -> Json:
    """What is safe of a job's progress: units, of how many done, and how old that is (s; null: it has said of none)."""
    J, row = view.state.J, job.row
    saved, done = int(J[c.J_UNITS_SAVED, row]), int(J[c.J_UNITS_DONE, row])
    at = int(J[c.J_SAVED_AT, row])
    return {"units": saved, "units_done": max(done, 0), "age_s": (view.now_us - at) / US_PER_S if at >= 0 else None}


def _limit(view: ClusterView, job: JobView) -> list[Json]:
    """The limit of the job's queue, if it has no room for the job."""
    Q, q = view.state.Q, int(view.state.J[c.J_QUEUE, job.row])
    over = (int(Q[c.Q_BOOKED, q]) + job.gpus * c.WHOLE - int(Q[c.Q_LIMIT, q])) / c.WHOLE
    if Q[c.Q_LIMIT, q] < 0 or over <= 0:
        return []
    words = f"a limit of queue {job.queue} that is {over:g} GPUs higher, or as many that its jobs give back"
    return [{"what": "limit", "words": words, "gpus": over}]


def _others(view: ClusterView, job: JobView, explained: Explanation) -> list[Json]:
    """Whom the policy serves before the job, and which placed jobs it would stop first."""
    if explained.rank is None:
        return []
    order, at = explained.order, explained.rank - 1
    rows = np.array([view.state.row(number) for number in order], np.int64)
    J = view.state.J
    placed, gpus = J[c.J_PLACED, rows] == 1, J[c.J_GPUS, rows]
    found: list[Json] = []
    ahead = ~placed[:at] & (J[c.J_HOLD, rows[:at]] == 0)
    if ahead.any():
        count, asked = int(ahead.sum()), int(gpus[:at][ahead].sum())
        words = f"places for the {_jobs(count, 'waiting ')} before it ({asked:,} GPUs), or that it ranks before them"
        named = [order[i] for i in np.flatnonzero(ahead)[-JOBS_NAMED_MAX:]]
        found.append({"what": "ahead", "words": words, "count": count, "gpus": asked, "jobs": named})
    if explained.stops:
        up = room_for(view, job.row).up
        before, after = int(gpus[:at].sum()), placed[at:]
        count, given = int(after.sum()), int(gpus[at:][after].sum())
        left = max(up - before, 0)
        words = f"the rank: jobs before it want {before:,} GPUs of {up:,}, which leaves {left:,} for its {job.gpus:,}"
        words += f"; {_jobs(count, 'placed ')} after it ({given:,} GPUs) may be stopped for it" if count else ""
        found.append({"what": "rank", "words": words, "gpus_before": before, "gpus_left": left, "count": count, "gpus": given})
    return found


def _holders(view: ClusterView, job: JobView) -> list[Json]:
    """The jobs whose processes are still on the place that the job waits for."""
    T, J = view.state.T, view.state.J
    wanted = {(place.node, gpu) for place in job.place for gpu in place.gpus}
    found: list[int] = []
    for row in view.live_rows().tolist():
        first = int(J[c.J_HELD_TASK0, row])
        for t in range(first, first + int(J[c.J_HELD_TASKS, row])):
            node, mask = int(T[c.T_HELD_NODE, t]), int(T[c.T_HELD_MASK, t])
            if any(place == node and mask >> gpu & 1 for place, gpu in wanted):
                found.append(int(J[c.J_ID, row]))
                break
    words = f"that {_jobs(len(found))} on its place {'has' if len(found) == 1 else 'have'} stopped"
    return [{"what": "stop", "words": words, "jobs": found[:JOBS_NAMED_MAX], "count": len(found)}]


def _ends(view: ClusterView, job: JobView, kernel: int) -> Json:
    """Which jobs' ends, by their estimates, would free a place for the job alone, and when."""
    at_us, jobs = place_by_ends(view, job.row, kernel)
    if at_us is None:
        words = "estimates: the ends that they tell do not free a place for it"
        return {"what": "ends", "words": words, "at_s": None, "count": 0, "jobs": []}
    if not jobs:
        words = "nothing more: it would fit on what is free, if no other takes it first"
        return {"what": "ends", "words": words, "at_s": at_us / US_PER_S, "count": 0, "jobs": []}
    ends = [{"job": number, "end_s": end / US_PER_S, "gpus": gpus} for number, end, gpus in jobs]
    words = f"the end of {_jobs(len(ends))}, by estimate by {at_us / US_PER_S:,.0f} s, if no other takes their place"
    return {"what": "ends", "words": words, "at_s": at_us / US_PER_S, "count": len(ends), "jobs": ends[:JOBS_NAMED_MAX]}


def place_by_ends(view: ClusterView, row: int, kernel: int) -> tuple[int | None, list[tuple[int, int, int]]]:
    """When a job fits on whole GPUs if the placed jobs end one by one by their estimates and nobody else comes (µs; None: never
    by what the estimates tell), and those of them that leave the nodes it takes: number, end (µs), GPUs, in order."""
    st, now = view.state, view.now_us
    J, T, N, C, s = st.J, st.T, st.N, st.C, view.draft().scratch
    copy_room(N, st.B, C, s.A, s.AB)
    chosen, _ = choose_for(kernel, row, J, N, C, s.A, s.AB, s.out, False, s.OT, 0)
    if chosen > 0:
        return now, []
    booked = st.G[c.G_BOOKED].copy()
    keys: Ints = np.zeros(J.shape[1], np.int64)
    count = leaving_keys(J, C, now, keys)
    gone: list[tuple[int, int]] = []
    for key in np.sort(keys[:count]).tolist():
        other = key & ROW_MASK
        end = estimated_end(J, other, now)
        if J[c.J_ESTIMATE, other] >= c.NEVER:
            break
        _give_back(view, other, booked)
        gone.append((other, end))
        chosen, _ = choose_for(kernel, row, J, N, C, s.A, s.AB, s.out, False, s.OT, 0)
        if chosen > 0:
            nodes = s.out[0, :chosen]
            left = [(o, e) for o, e in gone if np.isin(T[c.T_NODE, _tasks(J[:, o])], nodes).any()]
            return end, [(int(J[c.J_ID, o]), e, int(J[c.J_GPUS, o])) for o, e in left]
    return None, []


def _give_back(view: ClusterView, row: int, booked: Ints) -> None:
    """Put a placed job's place into the room in the scratch; a GPU is free when all who share it have gone."""
    st = view.state
    s, N = st.scratch, st.N
    for t in range(*_tasks(st.J[:, row]).indices(st.T.shape[1])):
        node, mask, freed = int(st.T[c.T_NODE, t]), int(st.T[c.T_MASK, t]) & (2**64 - 1), 0
        for gpu in range(int(N[c.N_GPUS, node])):
            if mask >> gpu & 1:
                g = int(N[c.N_GPU0, node]) + gpu
                booked[g] -= st.T[c.T_BOOK, t]
                freed |= int(booked[g] == 0) << gpu
        signed = freed - (1 << 64) if freed >> 63 else freed
        give_mask(s.A, s.AB, N, st.C, node, signed, int(st.T[c.T_CPU, t]), int(st.T[c.T_MEM, t]))


def _tasks(column: Ints) -> slice:
    return slice(int(column[c.J_TASK0]), int(column[c.J_TASK0] + column[c.J_TASKS]))


def _jobs(count: int, which: str = "") -> str:
    return f"{count:,} {which}job{'' if count == 1 else 's'}"


def place_words(view: ClusterView, job: JobView) -> str:
    """The job's wanted place: GPUs by node."""
    by_node: dict[int, list[int]] = {}
    for place in job.place:
        by_node.setdefault(place.node, []).extend(place.gpus)
    names = ((view.state.name(Name.NODE, node), sorted(set(gpus))) for node, gpus in sorted(by_node.items()))
    return ", ".join(f"{name} ({_gpus(gpus)})" for name, gpus in names)


def _gpus(gpus: list[int]) -> str:
    return f"GPU{'' if len(gpus) == 1 else 's'} {', '.join(map(str, gpus))}" if gpus else "no GPU"
