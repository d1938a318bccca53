"""Buckets of nodes by (GPU kind, number of free GPUs), each a two-level bitmap over node numbers.

Row `kind · (gpus_max + 1) + free` of a bucket array holds `words` words of node bits and then the summary: one bit for each
word that is not zero.
The lowest node of a bucket is found in a few instructions, and the content depends on the state alone, never on its history.
"""

from __future__ import annotations

from headway.core.arrays import Table
from headway.core.jit import ctz, inner, kernel


def words_for(nodes: int) -> int:
    """How many 64-bit words the bits of `nodes` nodes take (at least 1)."""
    return max(1, (nodes + 63) // 64)


def width_for(words: int) -> int:
    """Words of a bucket row: the bits and their summary."""
    return words + (words + 63) // 64


@inner
def set_bit(buckets: Table, words: int, row: int, node: int) -> None:
    """Put `node` into bucket `row`."""
    word = node >> 6
    buckets[row, word] |= 1 << (node & 63)
    buckets[row, words + (word >> 6)] |= 1 << (word & 63)


@inner
def clear_bit(buckets: Table, words: int, row: int, node: int) -> None:
    """Take `node` out of bucket `row`."""
    word = node >> 6
    buckets[row, word] &= ~(1 << (node & 63))
    if buckets[row, word] == 0:
        buckets[row, words + (word >> 6)] &= ~(1 << (word & 63))


@kernel
def first_bit(buckets: Table, words: int, row: int, start: int) -> int:
    """The lowest node ≥ `start` in bucket `row`, or -1."""
    word = start >> 6
    if word >= words:
        return -1
    rest = (buckets[row, word] >> (start & 63)) << (start & 63)
    if rest != 0:
        return int((word << 6) + ctz(rest))
    word += 1
    top = word >> 6
    tops = (words + 63) >> 6
    if top >= tops:
        return -1
    rest = (buckets[row, words + top] >> (word & 63)) << (word & 63)
    while rest == 0:
        top += 1
        if top >= tops:
            return -1
        rest = buckets[row, words + top]
    word = (top << 6) + ctz(rest)
    return int((word << 6) + ctz(buckets[row, word]))


@inner
def lowest(buckets: Table, words: int, row: int) -> int:
    """The lowest node in bucket `row`, or -1: by the summary alone."""
    for top in range(words, buckets.shape[1]):
        summary = buckets[row, top]
        if summary != 0:
            word = ((top - words) << 6) + ctz(summary)
            return int((word << 6) + ctz(buckets[row, word]))
    return -1


@inner
def move(buckets: Table, words: int, kind_row: int, node: int, before: int, after: int) -> None:
    """Move `node` from the bucket of `before` free GPUs to that of `after`, within its kind's rows that begin at `kind_row`."""
    if before != after:
        clear_bit(buckets, words, kind_row + before, node)
        set_bit(buckets, words, kind_row + after, node)


def members(buckets: Table, words: int, row: int) -> list[int]:
    """Every node of bucket `row`, ascending (for tests and people)."""
    found = []
    for word in range(words):
        bits = int(buckets[row, word]) & 0xFFFF_FFFF_FFFF_FFFF
        while bits:
            low = bits & -bits
            found.append(word * 64 + low.bit_length() - 1)
            bits ^= low
    return found
