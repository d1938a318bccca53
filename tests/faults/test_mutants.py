"""Each guard of the live controller, taken away, is missed by some seed.

| taken away | what the world then sees, for example |
|---|---|
| epochs at the engine | a replaced controller launches or stops |
| the epoch of an acknowledgement | a completed job runs again |
| attempts at the engine | a launch that comes twice runs twice |
| the journal before an acknowledgement | a completed job runs again |
| the journal before a launch | a GPU is given twice |
| looking at what runs, at recovery or later | a job never ends |
| the attempt of a report | a second live attempt |
| one writer of the journal; giving up when it can't be written | the journal, replayed, gives another state |
| a lost node is no failure of the job | a job fails that may not |
| the job's grace | a stop gives less |
| ids that may be handed in again | a job runs twice |
| comparing nodes, asking again for stops | a job never ends |
| the journal before the answer to a cancellation | a cancelled job starts |
| one checkpoint directory for all attempts | an attempt begins before what was saved |
| what is out of reach still runs | a second live attempt |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.testing.live_run import replay_live_seed

from .mutants import MUTANTS

FIRST_TRIED = (22, 24, 16, 17, 81, 123, 154, 147, 165, 20)
"""Seeds by which some mutant is found that others pass over; tried before all others, to save time."""
SEEDS_MAX = 400


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_guard_that_is_taken_away_is_missed(mutant: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch.setattr)
    for seed in (*range(1, 8), *FIRST_TRIED, *range(8, SEEDS_MAX)):
        if replay_live_seed(seed).wrongs:
            return
    pytest.fail(f"{SEEDS_MAX} seeds pass without it")
