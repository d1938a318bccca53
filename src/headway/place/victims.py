"""Who gives way: of jobs that rank as equals the one whose stop would lose the least work (`docs/semantics.md` §4, *Lost work*).

Where nobody would lose anything, as in a simulated workload, all orders are those of the rank alone.
"""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import RUNNING
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import kernel
from headway.core.life import whole_milli

MINUTE_US = 60_000_000
LOST_MAX = (1 << 34) - 1
"""Lost work is compared up to so many GPU-minutes: a thousand GPUs for thirty years."""


@kernel
def at_risk_us(J: Table, row: int, now: int) -> int:
    """How long a job has worked (µs) since its last durable checkpoint, or since this attempt came up if that was later.

    0 for a job that does not run (what it had not saved is gone already), and for one whose grace has no limit (0: its stop waits
    for its checkpoint, as in a simulated workload).
    """
    if J[c.J_PHASE, row] != RUNNING or J[c.J_GRACE, row] == 0:
        return 0
    return int(max(now - max(J[c.J_STARTED_AT, row], J[c.J_SAVED_AT, row]), 0))


@kernel
def lost_work(J: Table, row: int, now: int) -> int:
    """What is lost if a job is stopped now and does not save itself in its grace, in whole GPU-minutes."""
    return min(whole_milli(at_risk_us(J, row, now), J[c.J_HELD_MILLI, row]) // MINUTE_US, LOST_MAX)


@kernel
def goes_first(placed: int, waiting: int, J: Table, now: int) -> bool:
    """Whether a placed job ranks before a waiting one, by their keys. Of equals that is the one that came first; but a placed job
    that has more time at risk than the other has waited stays before it."""
    if placed >> ROW_BITS == waiting >> ROW_BITS and placed > waiting:
        return bool(at_risk_us(J, placed & ROW_MASK, now) > now - J[c.J_QUEUED_AT, waiting & ROW_MASK])
    return placed < waiting


@kernel
def sort(numbers: Ints) -> None:
    """Sort in place, lowest first (heapsort: a kernel may not make an array, as NumPy's sort does)."""
    size = numbers.shape[0]
    first = size // 2
    while size > 1:
        if first > 0:
            first -= 1
        else:
            size -= 1
            numbers[0], numbers[size] = numbers[size], numbers[0]
        at, below = first, 2 * first + 1
        while below < size:
            if below + 1 < size and numbers[below + 1] > numbers[below]:
                below += 1
            if numbers[at] >= numbers[below]:
                break
            numbers[at], numbers[below] = numbers[below], numbers[at]
            at, below = below, 2 * below + 1


@kernel
def least_lost_last(jobs: Ints, first: int, stop: int, now: int, J: Table, work: Ints) -> None:
    """Put `jobs[first … stop - 1]` (rows, or keys with the row in their lowest bits) in order of lost work, the most first; ties
    as they stand. `work`: scratch, as many numbers."""
    losing = False
    for i in range(first, stop):
        if lost_work(J, jobs[i] & ROW_MASK, now) > 0:
            losing = True
            break
    if not losing or stop - first < 2:
        return
    order = work[: stop - first]
    for i in range(first, stop):
        order[i - first] = ((LOST_MAX - lost_work(J, jobs[i] & ROW_MASK, now)) << ROW_BITS) | (i - first)
    sort(order)
    for i in range(stop - first):
        order[i] = jobs[first + (order[i] & ROW_MASK)]
    for i in range(stop - first):
        jobs[first + i] = order[i]


@kernel
def equals_by_loss(keys: Ints, count: int, now: int, J: Table, work: Ints) -> None:
    """Put sorted keys of placed jobs into the order in which these give way, the first to go last: by rank, and of those that
    rank as equals the one that loses least."""
    first = 0
    while first < count:
        stop = first + 1
        while stop < count and keys[stop] >> ROW_BITS == keys[first] >> ROW_BITS:
            stop += 1
        least_lost_last(keys, first, stop, now, J, work)
        first = stop


@kernel
def priorities_by_loss(rows: Ints, count: int, now: int, J: Table, work: Ints) -> None:
    """As `equals_by_loss`, for rows by rank, where all of one user priority are equals."""
    first = 0
    while first < count:
        stop = first + 1
        while stop < count and J[c.J_PRIORITY, rows[stop]] == J[c.J_PRIORITY, rows[first]]:
            stop += 1
        least_lost_last(rows, first, stop, now, J, work)
        first = stop
