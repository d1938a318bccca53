"""The vectors that the estimators return: eight float64 of a job, journalled as the payload of `Estimated`.

CURVE, of loss or of accuracy alike (units: those of the observed `k` and `y`):

| index | name | meaning |
|---|---|---|
| 0 | `C_K_LAST` | the last observed k; NaN: no estimate, and the status stands at 1 |
| 1 | `C_LEVEL` | the fitted value there |
| 2 | `C_SLOPE` | its slope per unit of k; 0: flat, positive: rising |
| 3 | `C_RATE` | per unit of k |
| 4 | `C_POWER` | 1 is Optimus' curve `1/(b0·k + b1) + b2`; large: exponential; near 0: logarithm; negative: no plateau |
| 5 | `C_PLATEAU` | median of the value at the end of training; the curve stops there |
| 6 | `C_PLATEAU_SPREAD` | half the width of the 90 % interval of the plateau |
| 7 | `C_TIME_SPREAD` | log of the 95 % quantile over the median of the time left until a value |

`y(k) = level + slope · (1 − (1 + rate·(k − k_last))^−power) / (power·rate)`, never beyond the plateau.

SPEED: 0 the form (`Form`), 1… its coefficients (see `headway.perf.speed`). NaN at 0: no estimate, status at 1.

REMAINING: seconds: 0 median, 1 5 %, 2 25 %, 3 75 %, 4 95 % quantile; 5 by progress alone, 6 by history alone (NaN: none), 7
status.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from headway.core.arrays import Floats
from headway.core.columns import ESTIMATE_PARAMS_MAX

WIDTH = ESTIMATE_PARAMS_MAX
C_K_LAST, C_LEVEL, C_SLOPE, C_RATE, C_POWER, C_PLATEAU, C_PLATEAU_SPREAD, C_TIME_SPREAD = range(WIDTH)
S_FORM, S_COEFFICIENT0 = 0, 1
R_MEDIAN, R_Q05, R_Q25, R_Q75, R_Q95, R_BY_PROGRESS, R_BY_HISTORY, R_STATUS = range(WIDTH)


class Status(IntEnum):
    """How good an estimate is. From NO_DATA on there is none."""

    OK = 0
    FEW_POINTS = 1
    """Fewer than five usable observations: a wide interval."""
    FLAT = 2
    """The values do not change beyond their noise: the plateau is where they are."""
    DIVERGING = 3
    """The values get worse: the plateau is the best that was seen."""
    NO_DATA = 4
    ONE_POINT = 5

    @property
    def word(self) -> str:
        """As people see it, e.g. `few-points`."""
        return self.name.lower().replace("_", "-")


def no_estimate(status: Status) -> Floats:
    """The vector that says that there is no estimate, and why."""
    params = np.full(WIDTH, np.nan)
    params[1] = float(status)
    return params


def status_of(params: Floats) -> Status:
    """The status that a CURVE or SPEED vector tells by itself: OK for any estimate that is neither flat nor missing.

    The fits return the finer status beside the vectors.
    """
    if np.isnan(params[0]):
        known = np.isfinite(params[1]) and 0 <= params[1] <= max(Status)
        return Status(int(params[1])) if known else Status.NO_DATA
    return Status.FLAT if params[C_SLOPE] == 0 else Status.OK
