"""What running jobs tell of themselves, held against what can be. One job of 1000 steps and 1000 s, which lives from second 0."""

from __future__ import annotations

from itertools import pairwise
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.columns import NOTHING, EventKind, Reason
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.runtime.progress import STEPS_MAX, Fault, Progress, Report
from headway.testing import builders

US = 1_000_000
HERE = [(0, [0])]


def live(units: int = 1000, estimate_s: float | None = 1000, up: bool = True) -> State:
    made = builders.state([1], [builders.job("a", units=units)], running={"a": HERE} if up else {})
    made.J[c.J_ESTIMATE, 0] = c.NEVER if estimate_s is None else round(estimate_s * US)
    return made


def tell(progress: Progress, state: State, at_s: float, *reports: Report) -> tuple[list[tuple[int, int, int]], list[Fault]]:
    """Take reports in, apply what comes of it; the (steps, loss, accuracy) that are kept, and the faults."""
    batch, findings = progress.take(state, reports, round(at_s * US))
    state.apply(batch)
    assert all(kind == EventKind.OBSERVED for kind in batch.kinds())
    return kept(batch), [finding.fault for finding in findings]


def kept(batch: EventBatch) -> list[tuple[int, int, int]]:
    return [(int(r[c.E_A]), int(r[c.E_B]), int(r[c.E_C])) for r in batch.records]


def at(
    step: object, loss: float | None = None, accuracy: float | None = None, *, attempt: int = 1, total: object = None
) -> Report:
    return Report(0, attempt, step, loss, accuracy, total)


def restart(state: State, at_s: float) -> None:
    """The job is stopped, and started again at once."""
    out, now, attempt = EventBuffer(), round(at_s * US), int(state.J[c.J_ATTEMPT, 0])
    place = builders.place_ints(builders.job("a"), HERE)
    out.add(now, EventKind.STOP_REQUESTED, 0, attempt, a=Reason.PREEMPTED)
    out.add(now, EventKind.STOPPED, 0, attempt, a=Reason.PREEMPTED, b=-1)
    out.add(now, EventKind.START_REQUESTED, 0, attempt + 1, b=1, payload=place)
    out.add(now, EventKind.STARTED, 0, attempt + 1)
    state.apply(out.take())


def test_what_an_honest_job_tells_is_kept_as_it_is() -> None:
    progress, state = Progress(), live()
    for second in range(1, 201):
        report = at(second, 1 / second, second / 1000)
        assert tell(progress, state, second, report) == ([(second, round(1e9 / second), 1000 * second)], [])
    assert state.J[c.J_UNITS_DONE, 0] == 200


def test_after_two_hundred_points_one_is_kept_in_each_hundredth_of_the_run_time() -> None:
    progress, state = Progress(), live()
    kept = [second for second in range(1, 2001) if tell(progress, state, second, at(min(second, 1000), 1.0, 0.5))[0]]
    assert kept[:200] == list(range(1, 201))
    gaps = [b - a for a, b in pairwise(kept[200:])]
    # The least whole gap with gap ≥ (t + gap) / 100 is k + 1 between 100 k and 100 (k + 1) seconds, but for their ends: there are
    # 100 / (k + 1) points, 100 (H(20) − H(2)) = 210 in all.
    assert gaps[0] == 3 and gaps[-1] in (20, 21) and sorted(gaps) == gaps
    assert len(kept) - 200 == pytest.approx(210, abs=10)


def test_an_honest_job_may_stall_hurry_and_be_three_times_as_fast_as_announced() -> None:
    progress, state = Progress(), live()
    for second, step in ((30, 0), (59, 3), (90, 100), (91, 103), (150, 300), (151, 301), (300, 900)):
        assert tell(progress, state, second, at(step)) == ([(step, NOTHING, NOTHING)], [])


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        (Report(7, 1, 5), Fault.UNKNOWN),
        (at(5, attempt=2), Fault.STALE),
        (at(5, attempt=0), Fault.STALE),
        *((at(step), Fault.NO_STEP) for step in (-1, 1.5, nan, inf, -inf, 2**54, 1e300, "5", None, True, [5])),
    ],
)
def test_what_is_no_report_is_refused(report: Report, fault: Fault) -> None:
    progress, state = Progress(), live()
    assert tell(progress, state, 100, report) == ([], [fault]) and state.J[c.J_UNITS_DONE, 0] == 0


def test_a_job_without_processes_tells_nothing() -> None:
    progress, state = Progress(), live(up=False)
    assert tell(progress, state, 5, at(5, attempt=0)) == ([], [Fault.STALE]), "it waits"
    out = EventBuffer()
    out.add(6 * US, EventKind.START_REQUESTED, 0, 1, b=1, payload=builders.place_ints(builders.job("a"), HERE))
    state.apply(out.take())
    assert tell(progress, state, 7, at(5)) == ([], [Fault.NOT_UP])


def test_what_an_attempt_tells_that_is_over_does_not_count_for_the_next() -> None:
    progress, state = Progress(), live()
    tell(progress, state, 100, at(100))
    restart(state, 150)
    assert tell(progress, state, 160, at(160), at(90, attempt=2)) == ([(90, NOTHING, NOTHING)], [Fault.STALE])


def test_steps_that_go_back_after_a_resume_are_fine() -> None:
    progress, state = Progress(), live()
    tell(progress, state, 500, at(500))
    restart(state, 500)
    for second, step in ((510, 460), (560, 510), (700, 650)):
        assert tell(progress, state, second, at(step, attempt=2)) == ([(step, NOTHING, NOTHING)], [])


def test_nobody_is_nearly_done_at_once() -> None:
    """After ten seconds of a thousand, four times fifteen steps and one are believed."""
    progress, state = Progress(), live()
    assert tell(progress, state, 10, at(999, 0.5)) == ([(61, 500_000_000, NOTHING)], [Fault.TOO_FAST])


def test_a_lie_is_not_the_measure_of_the_next_one() -> None:
    """By hand, announced pace 1: 1 + 4·15; 1 + 4·64; at the first mark 1 + 4·69 in 64 s, which it is held to up to 128 s."""
    progress, state = Progress(), live(10_000, 10_000)
    told = [tell(progress, state, s, at(9_999))[0][0][0] for s in (10, 59, 64, 65, 100, 127)]
    most = [277 + 1 + int(4 * 277 / 64 * (since + 5)) for since in (1, 36, 63)]
    assert told == [61, 257, 277, *most]


def test_without_an_estimate_a_short_job_is_believed_up_to_its_total() -> None:
    """A job of ten seconds that says nothing of its length shows all of its steps; from a minute on its own pace counts."""
    progress, state = Progress(), live(6000, None)
    assert tell(progress, state, 10, at(6000)) == ([(6000, NOTHING, NOTHING)], [])
    slow, other = Progress(), live(6000, None)
    assert tell(slow, other, 60, at(60)) == ([(60, NOTHING, NOTHING)], [])
    assert tell(slow, other, 70, at(6000)) == ([(60 + 1 + 4 * 15, NOTHING, NOTHING)], [Fault.TOO_FAST])


def test_without_a_total_the_first_minute_is_the_measure() -> None:
    progress, state = Progress(), live(0, None)
    assert tell(progress, state, 30, at(10**6))[1] == [], "there is nothing to hold it against, and nothing that it is near to"
    assert tell(progress, state, 60, at(2 * 10**6, total=5))[1] == []
    told, faults = tell(progress, state, 61, at(10**9))
    assert faults == [Fault.TOO_FAST] and told[0][0] == pytest.approx(2e6 + 4 * 2e6 / 60 * 6, abs=2)


def test_the_total_is_the_one_that_was_handed_in() -> None:
    progress, state = Progress(), live()
    assert tell(progress, state, 500, at(500, total=501)) == ([(500, NOTHING, NOTHING)], [Fault.OTHER_TOTAL])
    assert state.J[c.J_UNITS_TOTAL, 0] == 1000
    assert tell(progress, state, 990, at(1200, total=1000)) == ([(1000, NOTHING, NOTHING)], [Fault.PAST_END])
    assert progress.jobs[0].faults == {Fault.OTHER_TOTAL: 1, Fault.PAST_END: 1}


def test_figures_that_are_none_count_as_not_told_and_the_rest_counts() -> None:
    progress, state = Progress(), live()
    assert tell(progress, state, 10, at(10, nan, 76.1)) == ([(10, NOTHING, NOTHING)], [Fault.NO_ACCURACY, Fault.NO_LOSS])
    assert tell(progress, state, 20, at(20, 1e300, nan)) == ([(20, 10**18, NOTHING)], [Fault.NO_ACCURACY])
    assert tell(progress, state, 30, at(30, -inf, 0.5)) == ([(30, NOTHING, 500_000)], [Fault.NO_LOSS])
    assert tell(progress, state, 40, at(40.0, None, -1e-9)) == ([(40, NOTHING, NOTHING)], [Fault.NO_ACCURACY])


def test_of_a_flood_one_report_a_second_is_kept_the_newest() -> None:
    progress, state = Progress(), live()
    assert tell(progress, state, 100, *(at(n) for n in range(1, 101))) == ([(100, NOTHING, NOTHING)], [])
    assert tell(progress, state, 100.2, at(101, 0.5, 0.25)) == ([], [])
    assert tell(progress, state, 100.4, at(102)) == ([], [])
    assert progress.next_us() == 101 * US
    assert kept(progress.due(state, 101 * US)) == [(102, 500_000_000, 250_000)], "what the last does not tell, the one before did"
    assert kept(progress.due(state, 102 * US)) == [] and progress.next_us() == c.NEVER


def test_what_an_attempt_has_told_last_is_not_lost_with_its_end() -> None:
    progress, state = Progress(), live()
    tell(progress, state, 100, at(100))
    tell(progress, state, 100.5, at(101))
    assert kept(progress.flush(0, 100_600_000)) == [(101, NOTHING, NOTHING)]
    assert kept(progress.flush(0, 100_600_000)) == [] and kept(progress.flush(9, 0)) == []


def test_jobs_that_have_ended_are_forgotten() -> None:
    progress, state = Progress(), live()
    tell(progress, state, 100, at(100))
    tell(progress, state, 100.5, at(101))
    out = EventBuffer()
    out.add(101 * US, EventKind.COMPLETED, 0, 1)
    state.apply(out.take())
    assert kept(progress.due(state, 102 * US)) == [] and not progress.jobs


def test_a_new_controller_goes_on_where_the_tables_are() -> None:
    """The job has told 500 steps after 500 s; a new fold knows only that. A minute and the slack are in doubt."""
    progress, state = Progress(), live(10_000, 10_000)
    for second in range(10, 501, 10):
        tell(progress, state, second, at(second))
    fresh = Progress()
    assert tell(fresh, state, 501, at(501)) == ([(501, NOTHING, NOTHING)], [])
    told, faults = tell(Progress(), state, 502, at(9_000))
    assert faults == [Fault.TOO_FAST] and told[0][0] == pytest.approx(501 + 4 * 501 / 442 * 65, abs=2)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 200), st.integers(0, 3000), st.sampled_from([None, nan, 0.1, -5.0])), max_size=25),
    st.sampled_from([1000, 100_000, 0]),
    st.sampled_from([1000.0, None]),
)
def test_whatever_is_told_what_is_kept_can_be(
    told: list[tuple[int, int, float | None]], total: int, estimate_s: float | None
) -> None:
    """It can be applied, and is never beyond what was told, the total, or five times what there was before."""
    progress, state = Progress(), live(total, estimate_s)
    second, credited = 0, [(0, 0)]
    for wait, step, loss in told:
        second += wait
        for steps, _, _ in tell(progress, state, second, at(step, loss))[0]:
            assert 0 <= steps <= min(step, total or STEPS_MAX)
            if total and second > 2 * 60 and (estimate_s or any(t >= 60 and s for t, s in credited)):
                before = max(s for t, s in credited if t <= second)
                pace = total / estimate_s if estimate_s else 0.0
                assert steps <= 1 + (before + 4 * max(pace, before / 60) * (second + 5))
            credited.append((second, max(steps, credited[-1][1])))
    assert state.J[c.J_UNITS_DONE, 0] == credited[-1][1] and np.all(state.J[c.J_UNITS_DONE, :1] >= 0)
