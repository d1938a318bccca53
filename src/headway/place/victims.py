"""Who gives way first: of jobs of one user priority the one whose stop would lose the least work (`docs/semantics.md` §4, *Lost
work*)."""

from __future__ import annotations

from headway.core import columns as c
from headway.core.arrays import Ints, Table
from headway.core.codes import RUNNING
from headway.core.columns import ROW_BITS, ROW_MASK
from headway.core.jit import kernel
from headway.core.life import whole_milli

MINUTE_US = 60_000_000
LOST_BITS = 34
"""Lost work is compared up to 2^34 GPU-minutes: a thousand GPUs for thirty years."""
LOST_MAX = (1 << LOST_BITS) - 1
PRIORITY_TOP = 100


@kernel
def lost_work(J: Table, row: int, now: int) -> int:
    """What may be lost if a job is stopped now, in whole GPU-minutes: what it has done since its last durable checkpoint, or
    since this attempt came up, if that is later.

    0 for a job that does not run (what it had not saved is gone already) and for one whose grace has no limit (0: its stop waits
    for its checkpoint, as in a simulated workload).
    """
    if J[c.J_PHASE, row] != RUNNING or J[c.J_GRACE, row] == 0:
        return 0
    at_risk_us = now - max(J[c.J_STARTED_AT, row], J[c.J_SAVED_AT, row])
    return min(whole_milli(max(at_risk_us, 0), J[c.J_HELD_MILLI, row]) // MINUTE_US, LOST_MAX)


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
def put_least_lost_last(jobs: Ints, count: int, now: int, J: Table, work: Ints) -> None:
    """Put placed jobs that are sorted by rank, best first, into the order in which they give way, the first to go last: by
    user priority, lost work, rank, the lowest of each first.

    `jobs`: rows, or keys with the row in their lowest bits; `work`: scratch, `count` numbers at least. Where nobody would lose
    anything, nothing is moved: a rank has the priority first.
    """
    losing = False
    for i in range(count):
        if lost_work(J, jobs[i] & ROW_MASK, now) > 0:
            losing = True
            break
    if not losing:
        return
    order = work[:count]
    for i in range(count):
        row = jobs[i] & ROW_MASK
        stays = ((PRIORITY_TOP - J[c.J_PRIORITY, row]) << LOST_BITS) | (LOST_MAX - lost_work(J, row, now))
        order[i] = (stays << ROW_BITS) | i
    sort(order)
    for i in range(count):
        order[i] = jobs[order[i] & ROW_MASK]
    for i in range(count):
        jobs[i] = order[i]
