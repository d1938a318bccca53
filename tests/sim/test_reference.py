"""The fast simulator against the slow one that was written independently from `docs/semantics.md`: equal journals, entry for
entry."""

from __future__ import annotations

import pytest
from tests.sim.cases import KERNELS, POLICIES, fast_entries, random_case, slow_entries

FEATURES = (
    "", "c", "s", "k", "p", "f", "cs", "fs", "csk", "fskp", "cfskp", "q", "qc", "qsp", "qcfskp", "w", "wcfskp",
)  # fmt: skip
SEEDS_EACH = 12
SEEDS_EACH_MORE = 3
"""For variants of a policy, and where queues have quotas."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("features", FEATURES)
def test_equal_journals(policy: str, features: str) -> None:
    """c: cpus, s: saving takes time, k: GPU kinds, p: priorities, f: lost nodes, q: queues with
    quotas, limits and parents, w: stops that may cost work. With and without skipped rounds."""
    for seed in range(SEEDS_EACH_MORE if ":" in policy or "q" in features else SEEDS_EACH):
        seed += 1000 * FEATURES.index(features)
        case = random_case(
            seed,
            cpus="c" in features,
            saves="s" in features,
            faults="f" in features,
            kinds="k" in features,
            priorities="p" in features,
            quotas="q" in features,
            loses="w" in features,
        )
        kernel = KERNELS[seed % len(KERNELS)]
        expected = slow_entries(case, policy, kernel)
        for skip in (True, False):
            assert fast_entries(case, policy, kernel, skip=skip) == expected, (seed, kernel, skip)


@pytest.mark.parametrize(
    ("policy", "seed", "priorities"),
    [("tiresias", 17015, False), ("tiresias", 17022, False), ("srtf", 17025, True), ("las", 17021, True), ("edf", 17025, True)],
)
def test_equal_journals_where_queues_have_quotas_and_lost_work_decides(policy: str, seed: int, priorities: bool) -> None:
    """Seeds that differ from the same case without a loss."""
    words = {"cpus": False, "saves": False, "faults": False, "kinds": False, "priorities": priorities, "quotas": True}
    case, lossless = random_case(seed, **words, loses=True), random_case(seed, **words)
    expected = slow_entries(case, policy, "best-fit")
    assert fast_entries(case, policy, "best-fit", skip=True) == expected != slow_entries(lossless, policy, "best-fit")
