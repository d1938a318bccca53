"""Types of the flat arrays that tables and kernels are made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""A vector of int64."""
Table = NDArray[np.int64]
"""A table of int64, shape (columns, rows) or (rows, width)."""
Floats = NDArray[np.float64]
"""A vector or table of float64."""
Bools = NDArray[np.bool_]
"""A vector of truth values."""
