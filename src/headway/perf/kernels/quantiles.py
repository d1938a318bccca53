"""Medians and weighted quantiles by selection, without sorting: compiled, in place."""

from __future__ import annotations

from headway.core.arrays import Floats
from headway.core.jit import inner, kernel


@inner
def swap(v: Floats, i: int, j: int) -> None:
    """Exchange two values."""
    kept = v[i]
    v[i] = v[j]
    v[j] = kept


@inner
def middle_of_three(a: float, b: float, c: float) -> float:
    """The median of three numbers."""
    return max(min(a, b), min(max(a, b), c))


@kernel
def median(v: Floats, lo: int, hi: int) -> float:
    """The median of v[lo:hi] (one value at least), which is put in another order; of an even number the mean of two."""
    want, first, last = (lo + hi) // 2, lo, hi
    while last - first > 1:
        pivot = middle_of_three(v[first], v[(first + last) // 2], v[last - 1])
        below, above, i = first, last, first
        while i < above:
            if v[i] < pivot:
                swap(v, i, below)
                below += 1
                i += 1
            elif v[i] > pivot:
                above -= 1
                swap(v, i, above)
            else:
                i += 1
        if want < below:
            last = below
        elif want >= above:
            first = above
        else:
            break
    if (hi - lo) % 2 == 1:
        return float(v[want])
    under = v[lo]
    for i in range(lo, want):
        under = max(under, v[i])
    return float((under + v[want]) / 2.0)


@kernel
def weighted_quantile(v: Floats, w: Floats, count: int, wanted: float) -> float:
    """The smallest of v[:count] up to which the weights come to `wanted`; the largest if they never do. Reorders both alike."""
    lo, hi, before, pivot = 0, count, 0.0, v[0]
    while lo < hi:
        pivot = middle_of_three(v[lo], v[(lo + hi) // 2], v[hi - 1])
        below, above, i, less, same = lo, hi, lo, 0.0, 0.0
        while i < above:
            if v[i] < pivot:
                less += w[i]
                swap(v, i, below)
                swap(w, i, below)
                below += 1
                i += 1
            elif v[i] > pivot:
                above -= 1
                swap(v, i, above)
                swap(w, i, above)
            else:
                same += w[i]
                i += 1
        if below > lo and before + less >= wanted:
            hi = below
        elif before + less + same >= wanted:
            break
        else:
            before += less + same
            lo = above
    return float(pivot)
