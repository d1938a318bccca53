"""Groups of jobs, by hand."""

import numpy as np
import pytest

from headway.core.columns import Phase
from headway.metrics.tables import by_name, by_size, size_names

S = 1_000_000
HOUR = 3600 * S


def columns(*jobs: tuple[int, int, float, float, int, int]) -> dict[str, np.ndarray]:
    """Jobs of (GPU milli, JCT s, waited s, held GPU hours, user, phase)."""
    milli, jct, waited, held, user, phase = (list(column) for column in zip(*jobs, strict=True))
    return {
        "gpu_milli": np.array(milli),
        "submitted": np.zeros(len(jobs), np.int64),
        "end": np.array(jct) * S,
        "waited": (np.array(waited) * S).astype(np.int64),
        "held_gpu_us": (np.array(held) * HOUR).astype(np.int64),
        "user": np.array(user),
        "phase": np.array(phase),
    }


DONE, LOST = int(Phase.COMPLETED), int(Phase.FAILED)


def test_sizes_are_powers_of_two() -> None:
    sizes = (0, 500, 1000, 1500, 2000, 3000, 4000, 5000, 8000, 9000, 64_000)
    rows = by_size(columns(*((milli, 10, 0, 1, 0, DONE) for milli in sizes)))
    assert [(row.name, row.jobs) for row in rows] == [
        ("no GPU", 1), ("under 1 GPU", 1), ("1 GPU", 1), ("2 GPUs", 2), ("3–4 GPUs", 2), ("5–8 GPUs", 2), ("9–16 GPUs", 1),
        ("33–64 GPUs", 1),
    ]  # fmt: skip
    assert size_names(1) == ["no GPU"]


def test_a_group_by_hand() -> None:
    jobs = columns(
        (1000, 10, 2, 1.0, 1, DONE), (1000, 30, 4, 2.0, 0, DONE), (2000, 50, 0, 5.0, 1, LOST), (1000, 40, 6, 0, 1, DONE)
    )
    first, second = by_name(jobs, "user", ("ann", "bob"))
    assert (first.name, first.jobs, first.finished) == ("bob", 3, 2)
    assert (first.avg_jct_s, first.p50_jct_s, first.p99_jct_s, first.avg_wait_s) == (25, 10, 40, 4)
    assert (first.gpu_hours, first.share_frac) == (6, pytest.approx(6 / 8))
    assert (second.name, second.gpu_hours) == ("ann", 2)
    assert second.to_json()["avg_jct_s"] == 30


def test_names_that_nobody_told_are_numbers_and_groups_without_completions_have_no_times() -> None:
    rows = by_name(columns((1000, 5, 0, 0, 3, LOST)), "user", ("ann",))
    assert [(row.name, row.avg_jct_s, row.share_frac) for row in rows] == [("#3", None, 0.0)]
    assert by_size({name: column[:0] for name, column in columns((1, 1, 1, 1, 1, 1)).items()}) == []
