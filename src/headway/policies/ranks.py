"""Rank keys of all placed and waiting jobs in one compiled pass.

A key packs (100 − priority) in 7 bits, the policy's own key in KEY_BITS, and the row in ROW_BITS: sorting keys ranks jobs, ties
by arrival. Placed and waiting jobs
come apart, since of the waiting ones only the best need to be sorted.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import QUEUED, STOPPING
from headway.core.columns import ROW_BITS
from headway.core.jit import kernel
from headway.core.life import whole_milli

KEY_BITS = 34
KEY_MAX = (1 << KEY_BITS) - 1
PRIORITY_TOP = 100
HUGE = 1 << 50


@kernel
def pack(priority: int, key: int, row: int) -> int:
    """One sortable number."""
    return ((PRIORITY_TOP - priority) << (ROW_BITS + KEY_BITS)) | (min(key, KEY_MAX) << ROW_BITS) | row


@kernel
def run_us(J: Table, row: int, now: int) -> int:
    """Run time up to now, µs."""
    return int(J[c.J_RUN, row] + (now - J[c.J_STARTED_AT, row] if J[c.J_STARTED_AT, row] >= 0 else 0))


@kernel
def attained_us(J: Table, row: int, now: int) -> int:
    """Attained service up to now, GPU·µs."""
    if J[c.J_STARTED_AT, row] < 0:
        return int(J[c.J_ATTAINED, row])
    return int(J[c.J_ATTAINED, row] + whole_milli(now - J[c.J_STARTED_AT, row], J[c.J_HELD_MILLI, row]))


@kernel
def remaining_keys(J: Table, C: Ints, now: int, unit: int, placed: Ints, waiting: Ints) -> tuple[int, int]:
    """Keys by remaining time, `max(0, estimate − run time) // unit` (µs). Fills `placed` and `waiting`; returns how many of
    each."""
    p, w = 0, 0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        key = pack(J[c.J_PRIORITY, row], max(J[c.J_ESTIMATE, row] - run_us(J, row, now), 0) // unit, row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w


@kernel
def area_keys(
    J: Table, C: Ints, now: int, unit: int, power: float, placed: Ints, waiting: Ints
) -> tuple[int, int]:  # fmt: skip
    """Keys by remaining time × GPUs^power, with the time in whole µs and the product rounded down to units of `unit`; a job
    without GPUs counts as on one. As `remaining_keys`."""
    p, w = 0, 0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        left = max(J[c.J_ESTIMATE, row] - run_us(J, row, now), 0)
        area = float(left) * float(max(J[c.J_GPUS, row], 1)) ** power
        key = pack(J[c.J_PRIORITY, row], int(min(area / unit, float(KEY_MAX))), row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w


@kernel
def limit_of(service: int, quantum: int, thresholds: Ints) -> tuple[int, int]:
    """The rank of a service (GPU·µs), and the service at which the rank changes: by quantum if it is not 0, else by thresholds"""
    if quantum:
        return service // quantum, (service // quantum + 1) * quantum
    queue = 0
    while queue < thresholds.shape[0] and service >= thresholds[queue]:
        queue += 1
    return queue, thresholds[queue] if queue < thresholds.shape[0] else c.NEVER


@kernel
def crossing(now: int, service: int, limit: int, milli: int) -> int:
    """When a job with `milli` thousandths of GPUs will have got from `service` to `limit` (GPU·µs): an instant in µs, rounded
    up."""
    if limit >= c.NEVER or milli <= 0:
        return c.NEVER
    need = limit - service
    if need > HUGE:
        return now + (need // milli + 1) * 1000
    return now + (need * 1000 + milli - 1) // milli


@kernel
def effective(J: Table, row: int, now: int, promote: int) -> tuple[int, int]:
    """Service that counts for Tiresias' queue (GPU·µs), and when a waiting job is promoted (µs; NEVER if not, or already).

    `promote` is the knob in thousandths, 0 for never (`docs/semantics.md` §4).
    """
    attained = attained_us(J, row, now)
    if promote == 0:
        return attained, c.NEVER
    waits = J[c.J_PHASE, row] == QUEUED and J[c.J_PLACED, row] == 0
    ran = J[c.J_RUN, row] if waits else J[c.J_RUN_AT_START, row]
    if ran == 0 or ran > c.NEVER // promote:
        return attained, c.NEVER
    limit = (ran * promote + 999) // 1000
    wait = now - J[c.J_QUEUED_AT, row] if waits else J[c.J_LAST_WAIT, row]
    if wait < limit:
        return attained, J[c.J_QUEUED_AT, row] + limit if waits else c.NEVER
    return (0, c.NEVER) if waits else (attained - J[c.J_ATTAINED_AT_START, row], c.NEVER)


@kernel
def overdue(J: Table, row: int, now: int, promote: int, first: int) -> tuple[bool, int]:
    """Whether a job has waited so long (before its present place, if it has one) that it goes before all others of the first
    queue, and when it will have (µs; NEVER if it does not wait).

    That is as in `effective`, and for a job that had never run `promote` × the time after which it would leave the first queue,
    at the service `first` (GPU·µs).
    """
    waits = J[c.J_PHASE, row] == QUEUED and J[c.J_PLACED, row] == 0
    ran = J[c.J_RUN, row] if waits else J[c.J_RUN_AT_START, row]
    if ran == 0 and first < HUGE:
        ran = (first + max(J[c.J_GPUS, row], 1) - 1) // max(J[c.J_GPUS, row], 1)
    if promote == 0 or ran == 0 or ran > c.NEVER // promote:
        return False, c.NEVER
    limit = (ran * promote + 999) // 1000
    wait = now - J[c.J_QUEUED_AT, row] if waits else J[c.J_LAST_WAIT, row]
    return bool(wait >= limit), J[c.J_QUEUED_AT, row] + limit if waits and wait < limit else c.NEVER


@kernel
def service_keys(
    J: Table, C: Ints, now: int, quantum: int, thresholds: Ints, promote: int, within: Ints, placed: Ints, waiting: Ints
) -> tuple[int, int, int]:
    """Keys by attained service: its quantum, or its queue and, in `within` (one number a service bin; empty: none), the order
    within the queue.

    Returns how many placed and waiting keys there are, and the next instant (µs) at which a running job's key or a waiting
    job's promotion changes a rank.
    """
    p, w, wake = 0, 0, c.NEVER
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        service, promotion = effective(J, row, now, promote)
        rank, limit = limit_of(service, quantum, thresholds)
        if rank > 0:
            wake = min(wake, promotion)
        if J[c.J_STARTED_AT, row] >= 0:
            wake = min(wake, crossing(now, service, limit, J[c.J_HELD_MILLI, row]))
        if within.shape[0]:
            attained = attained_us(J, row, now)
            due, later = overdue(J, row, now, promote, thresholds[0] if thresholds.shape[0] else c.NEVER)
            wake = min(wake, later)
            rank = rank * (within.shape[0] + 1) + (0 if due and rank == 0 else 1 + within[service_bin(attained)])
            if J[c.J_STARTED_AT, row] >= 0:
                wake = min(wake, crossing(now, attained, next_bin_us(attained), J[c.J_HELD_MILLI, row]))
        key = pack(J[c.J_PRIORITY, row], rank, row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w, wake


@kernel
def placed_crossing(O: Table, count: int, J: Table, now: int, quantum: int, thresholds: Ints, promote: int, bins: bool) -> int:
    """The next instant (µs) at which a job that the plan has just placed will change its rank, if it starts now."""
    wake = c.NEVER
    for i in range(count):
        if O[i, c.O_OP] == 1:
            row = O[i, c.O_ROW]
            service, _ = effective(J, row, now, promote)
            _, limit = limit_of(service, quantum, thresholds)
            wake = min(wake, crossing(now, service, limit, J[c.J_GPUS, row] * c.WHOLE))
            if bins:
                attained = attained_us(J, row, now)
                wake = min(wake, crossing(now, attained, next_bin_us(attained), J[c.J_GPUS, row] * c.WHOLE))
    return wake


BINS = 160
"""Service bins: four to each doubling, from 1 GPU·s."""


@kernel
def service_bin(gpu_us: int) -> int:
    """The bin of a service (GPU·µs)."""
    seconds = max(gpu_us // 1_000_000, 1)
    octave = 0
    while seconds >> (octave + 1):
        octave += 1
    quarter = ((seconds - (1 << octave)) * 4) >> octave
    return min(octave * 4 + quarter, BINS - 1)


@kernel
def next_bin_us(gpu_us: int) -> int:
    """The service (GPU·µs) at which the next bin begins."""
    index = service_bin(gpu_us)
    if index >= BINS - 1:
        return c.NEVER
    seconds = max(gpu_us // 1_000_000, 1) + 1
    octave = (index + 1) // 4
    start = ((1 << octave) * (4 + (index + 1) % 4) + 3) // 4
    start = max(start, seconds)
    while service_bin(start * 1_000_000) == index:
        start += 1
    return int(start * 1_000_000)
