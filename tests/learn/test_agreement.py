"""Agreement with a teacher, by hand."""

import numpy as np

from headway.core import columns as c
from headway.core.columns import Op
from headway.learn.agreement import Agreement, compare


def plan(*changes: tuple[int, Op]) -> np.ndarray:  # type: ignore[type-arg]
    overrides = np.zeros((len(changes), c.OVERRIDE), np.int64)
    for k, (row, op) in enumerate(changes):
        overrides[k, [c.O_ROW, c.O_OP]] = row, op
    return overrides


def test_ties_agree_and_others_do_not() -> None:
    placed = np.array([True, True, False, False, False, False])
    utility = np.array([9.0, 9.0, 5.0, 5.0, 1.0, np.nan])
    teacher = plan((2, Op.PLACE), (4, Op.PLACE), (0, Op.RELEASE))
    found = Agreement()
    # Row 3 is as good to the teacher as row 2; row 5 is not told; who gives way is a tie too.
    compare(found, teacher, plan((3, Op.PLACE), (5, Op.PLACE), (1, Op.RELEASE)), placed, utility)
    assert (found.taken["who"], found.agreed["who"]) == (3, 2)
    compare(found, teacher, plan(), placed, utility)
    assert (found.taken["who"], found.agreed["who"]) == (6, 2)
    found.count("server", 100, 100)
    assert found.frac == (2 / 6 + 1) / 2 and Agreement().frac is None
    found.add(found)
    assert found.taken["server"] == 200
