"""Draws of 32 bits, and what is made of them in integers alone, so that every machine gets the same.

No function here uses floating point or libm. Draws `u` are int64 arrays with values from 0 to 2³² − 1.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headway.core.arrays import Ints
from headway.workloads.truth import NORMAL_PPM

DRAW_MAX = (1 << 32) - 1
PPM = 1_000_000
NORMAL_KNOTS = np.array(NORMAL_PPM, np.int64)
"""The quantile function of the normal distribution in ppm of σ, at 0, 1/32 … 1."""
ESTIMATE_TWENTIETHS = (10, 16, 20, 20, 25, 40, 60)
"""What users say that their jobs take, in twentieths of the truth, by equal odds."""
_CHUNK = 4096
"""Records that are looked at in one go."""


class Draws:
    """The stream of one generator and seed: `PCG64(SeedSequence([seed, crc32(name)]))`, of each output the upper 32 bits."""

    def __init__(self, name: str, seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))
        self._ahead = np.empty(0, np.int64)

    def peek(self, count: int) -> Ints:
        """The next `count` draws, which stay the next ones."""
        if (missing := count - len(self._ahead)) > 0:
            raw: NDArray[np.uint64] = self._bits.random_raw(missing)
            self._ahead = np.concatenate([self._ahead, (raw >> np.uint64(32)).astype(np.int64)])
        return self._ahead[:count]

    def draw(self, count: int) -> Ints:
        """The next `count` draws."""
        draws = self.peek(count)
        self._ahead = self._ahead[count:]
        return draws

    def records(self, count: int, longest: int, length: Callable[[Ints, int], int]) -> tuple[Ints, Ints]:
        """The draws of `count` records of unequal lengths, and where each record starts among them.

        `length(draws, at)` tells from a record's first draws how many it has in all, at most `longest`.
        """
        parts, starts, base = [np.empty(0, np.int64)], [], 0
        for first in range(0, count, _CHUNK):
            here = min(_CHUNK, count - first)
            ahead, at = self.peek(here * longest), 0
            for _ in range(here):
                starts.append(base + at)
                at += length(ahead, at)
            parts.append(self.draw(at))
            base += at
        return np.concatenate(parts), np.array(starts, np.int64)


def share_of(draws: Ints, whole: int) -> Ints:
    """`u · whole >> 32`, exactly, for a whole from 0 to 2⁶² (the product itself may not fit 64 bits)."""
    high, low = divmod(whole, 1 << 32)
    carry = (draws.astype(np.uint64) * np.uint64(low)) >> np.uint64(32)
    share: Ints = draws * high + carry.astype(np.int64)
    return share


def uniform(draws: Ints, low: int, high: int) -> Ints:
    """A whole number from `low` to `high`, both included: `low + (u · (high − low + 1) >> 32)`."""
    return low + share_of(draws, high - low + 1)


def choices(draws: Ints, weights: Sequence[int]) -> Ints:
    """The index that each draw chooses: the first whose weights so far, itself included, exceed `u · (sum of weights) >> 32`."""
    steps = np.cumsum(np.array(weights, np.int64))
    index: Ints = np.searchsorted(steps, share_of(draws, int(steps[-1])), side="right").astype(np.int64)
    return index


def choice_of(draws: Ints, values: Sequence[int]) -> Ints:
    """One of `values` for each draw, by equal odds."""
    chosen: Ints = np.array(values, np.int64)[share_of(draws, len(values))]
    return chosen


def quantiles(draws: Ints, levels: Sequence[int], values: Sequence[int]) -> Ints:
    """The value of a table of quantiles at each draw. `levels` in per mille rise from 0 to 1000; `values` do not fall.

    With `x = 1000 u` between `lᵢ · 2³²` and `lᵢ₊₁ · 2³²`: `f = (x − lᵢ · 2³²) // (lᵢ₊₁ − lᵢ)`, and the value is
    `qᵢ + ((qᵢ₊₁ − qᵢ) · f >> 32)`, in unsigned 64 bits (steps of up to 2³² − 1).
    """
    level, value = np.array(levels, np.uint64), np.array(values, np.uint64)
    x = draws.astype(np.uint64) * np.uint64(1000)
    i = np.searchsorted(level << np.uint64(32), x, side="right") - 1
    f = (x - (level[i] << np.uint64(32))) // (level[i + 1] - level[i])
    found: Ints = (value[i] + ((value[i + 1] - value[i]) * f >> np.uint64(32))).astype(np.int64)
    return found


def equal_steps(draws: Ints, values: Sequence[int] | Ints) -> Ints:
    """Each draw's value on the piecewise-linear curve through `values` at equal distances."""
    table = np.asarray(values, np.int64)
    x = draws * (len(table) - 1)
    low, rest = x >> 32, x & DRAW_MAX
    value: Ints = table[low] + ((table[low + 1] - table[low]) * rest >> 32)
    return value


def normal_ppm(draws: Ints) -> Ints:
    """A normal deviate for each draw, in ppm of σ: linear between the knots, so never beyond ±3.09 σ."""
    return equal_steps(draws, NORMAL_KNOTS)
