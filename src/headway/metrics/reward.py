"""The reward of a schedule (MLFS Eq. 7): five goals of what has become of the jobs of a window, in one number.

The goals are those of Eq. 1: short job completion times, deadlines kept, few bytes between nodes, accuracy requirements met, and
accuracy. As the paper has them they are of wildly different scale (1e-2, 1e2, 1e-9, 1e2, 1), so that weights mean nothing
(`specs` A12). By default they are rates in [0, 1]:

    g1' = T0 / (T0 + mean JCT)        T0 = 1 h
    g2' = the share of jobs on time, of those with a deadline
    g3' = B0 / (B0 + B)               B bytes between nodes an hour, B0 = 1 TB (1e12 bytes) an hour
    g4' = the share of jobs that reach the accuracy they require, of those that require one
    g5' = the mean accuracy, of those that tell one

B0 is of the order of what the paper's figures come to on 80 GPUs (53 PB in 3,024 h on 2,474 GPUs: 0.6 TB an hour), so that g3' is
near a half there. With `normalize=False` they are the raw ones: 1 / mean JCT, a count, 1 / bytes, a count, the mean accuracy.

**Bad numbers.** NaN means *not known*, or no such job (padding): it is left out of its goal. ±inf and 1e30 are clipped to the
range that the quantity has. So goals are always finite. A NaN goal or reward, which can only come from elsewhere, is refused by
`reward` and `returns` with a ValueError; rewards beyond ±REWARD_MAX are clipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
TERMS = 5
TERM_NAMES = ("jct", "on_time", "bytes", "accuracy_ok", "accuracy")
BETAS = (0.5, 0.55, 0.25, 0.15, 0.15)
"""The paper's weights."""
T0_S = 3600.0
B0_BYTES_PER_H = 1e12
ETA = 0.95
"""What the next window counts against this one."""
M = 60
"""So many windows after its own a decision is credited with: an hour of rounds a minute apart."""
JCT_S_MAX = 1e12
BYTES_MAX = 1e24
REWARD_MAX = 1e9


def terms(
    jct_s: ArrayLike, on_time: ArrayLike, accuracy_ok: ArrayLike, accuracy: ArrayLike, moved_bytes: ArrayLike, *,
    normalize: bool = True, window_s: float = 3600.0, empty: float = 1.0,
) -> Values:  # fmt: skip
    """The five goals of each window, shape (…, 5), each finite.

    Args:
        jct_s: (…, jobs) completion times of the jobs that have ended in the window, s, and the predicted ones of those that live.
        on_time: (…, jobs) 1 if the job keeps its deadline, 0 if not, or the probability; NaN: it has none.
        accuracy_ok: (…, jobs) the same of the accuracy that it requires.
        accuracy: (…, jobs) its accuracy, a share; NaN: not known.
        moved_bytes: (…) bytes between nodes in the window; NaN: not known.
        normalize: rates in [0, 1]; else the raw terms of Eq. 1.
        window_s: how long a window is, s: bytes are rated an hour. The raw term is not.
        empty: a rate that no job of the window speaks for. By default 1: where nobody waits nothing is left to be desired.

    Raises:
        ValueError: `window_s` is not above 0, or `empty` is not finite.
    """
    if not (np.isfinite(window_s) and window_s > 0 and np.isfinite(empty)):
        raise ValueError(f"a window of {window_s} s, {empty} for an empty one: expected a finite length above 0, and a number")
    jct = _clipped(jct_s, JCT_S_MAX)
    moved = _clipped(moved_bytes, BYTES_MAX)
    mean_jct, none = _mean(jct)
    timely, no_deadline = _mean(_clipped(on_time, 1.0), total=not normalize)
    good, no_requirement = _mean(_clipped(accuracy_ok, 1.0), total=not normalize)
    quality, untold = _mean(_clipped(accuracy, 1.0))
    unknown = np.isnan(moved)
    if normalize:
        per_h = moved * (3600.0 / window_s)
        speed, thrift = T0_S / (T0_S + mean_jct), B0_BYTES_PER_H / (B0_BYTES_PER_H + per_h)
        timely, good = np.where(no_deadline, empty, timely), np.where(no_requirement, empty, good)
    else:
        speed, thrift = 1.0 / np.maximum(mean_jct, 1.0), 1.0 / np.maximum(moved, 1.0)
    columns = (
        np.where(none, empty, speed), timely, np.where(unknown, empty, thrift), good, np.where(untold, empty, quality),
    )  # fmt: skip
    return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)


def reward(goals: ArrayLike, betas: Sequence[float] = BETAS) -> Values:
    """The weighted sum of the five goals of each window (…, 5): shape (…).

    Raises:
        ValueError: there are not five weights, one is not finite, or a goal is NaN.
    """
    values, weights = np.asarray(goals, np.float64), np.asarray(betas, np.float64)
    if weights.shape != (TERMS,) or not np.isfinite(weights).all():
        raise ValueError(f"betas {tuple(weights.ravel().tolist())}: expected {TERMS} finite numbers")
    if values.shape[-1:] != (TERMS,):
        raise ValueError(f"goals of shape {values.shape}: expected {TERMS} in the last axis")
    _refuse_nan(values, "goal")
    summed: Values = np.clip(values, -REWARD_MAX, REWARD_MAX) @ weights
    return summed


def returns(rewards: ArrayLike, eta: float = ETA, m: int = M) -> Values:
    """What is credited to the decision at each window: R_t = Σ_{i=0}^{m} η^i · r_{t+i}, along the last axis, which is time.

    What lies beyond the last window counts 0. Rewards are clipped to ±REWARD_MAX.

    Raises:
        ValueError: η is not in [0, 1], m is negative, or a reward is NaN.
    """
    if not 0.0 <= eta <= 1.0 or m < 0:
        raise ValueError(f"eta {eta}, m {m}: expected a share, and a count")
    values = np.asarray(rewards, np.float64)
    _refuse_nan(values, "reward")
    values = np.clip(values, -REWARD_MAX, REWARD_MAX)
    credited: Values = values.copy()
    count, weight = values.shape[-1], 1.0
    for ahead in range(1, min(m, count - 1) + 1):
        weight *= eta
        credited[..., : count - ahead] += weight * values[..., ahead:]
    return credited


def _refuse_nan(values: Values, what: str) -> None:
    at = np.argwhere(np.isnan(values))
    if len(at):
        raise ValueError(f"the {what} at {tuple(at[0].tolist())} is not a number")


def _clipped(values: ArrayLike, most: float) -> Values:
    """Within [0, most]; NaN stays."""
    return np.clip(np.asarray(values, np.float64), 0.0, most)


def _mean(values: Values, *, total: bool = False) -> tuple[Values, Any]:
    """The mean (or the sum) along the last axis of what is known (0 of nothing), and whether that is nothing."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    summed: Values = np.where(known, values, 0.0).sum(axis=-1)
    return (summed if total else summed / np.maximum(count, 1)), count == 0
