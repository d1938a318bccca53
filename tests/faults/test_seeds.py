"""The whole live controller on simulated machines, under faults, from seeds: `make fuzz` runs as many more as you like.

A seed that fails says what must never be, and was, and the last lines of the world's trace. To see it again:
`print(headway.testing.replay_live_seed(SEED))`.
"""

from __future__ import annotations

import pytest

from headway.core.errors import UserError
from headway.testing.live_run import LiveRun, replay_live_seed, run_live
from headway.testing.live_scenarios import POLICIES, live_scenario

SEEDS, CHUNK = 1000, 50

REGRESSIONS = {
    17: "a launch onto a node out of reach counted as the job's failure",
    27: "the report that a node is back was lost: the node stayed down for ever",
    40: "a job that fails while it is being told to stop has not failed once more than it may",
    165: "a controller that had been replaced acknowledged an end that nobody had journalled: the job ran again",
    225: "the same, while reports were lost and late",
    779: "a failure behind a partition, after a request to stop",
}
"""Seeds that have found something once, and what."""


def check(seed: int) -> None:
    outcome = replay_live_seed(seed)
    assert not outcome.wrongs, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_seeds(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")
    for seed in range(first, first + CHUNK):
        check(seed)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_what_a_seed_has_found_stays_found(seed: int) -> None:
    check(seed)


def test_a_seed_gives_the_same_course_each_time() -> None:
    for seed in (3, 17, 28):
        first, second = replay_live_seed(seed), replay_live_seed(seed)
        assert first.trace == second.trace and first.launches > 0


def test_the_seeds_are_of_all_kinds() -> None:
    """Every policy, kill, pause, partition and loss of power is among those of CI, and so is a journal that loses its end."""
    all_of_them = [live_scenario(seed) for seed in range(1, SEEDS + 1)]
    assert {s.policy for s in all_of_them} == set(POLICIES)
    deaths = [death for s in all_of_them for death in s.deaths]
    for where in ("before append", "after append", "lies: written", "lies: not written", "before launch", "sent launch"):
        assert sum(death.where == where for death in deaths) >= 10, where
    assert sum(death.tail_lost > 0 for death in deaths) >= 10
    assert sum(len(s.pauses) > 0 for s in all_of_them) >= 200
    assert {fault.power for s in all_of_them for fault in s.node_faults} == {True, False}
    assert (
        any(s.presume_s < 100 for s in all_of_them)
        and any(s.wall_steps for s in all_of_them)
        and any(s.reboots for s in all_of_them)
    )


def test_a_failing_seed_says_what_and_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveRun, "_judge", lambda self: self.machine.wrong("the sky is green"))
    told = str(run_live(live_scenario(4)))
    assert told.startswith("seed 4: ") and "WRONG " in told and "the sky is green" in told and "event Started(job=1" in told


def test_an_unknown_policy_is_an_error() -> None:
    with pytest.raises(UserError):
        replay_live_seed(1, "fifi")
