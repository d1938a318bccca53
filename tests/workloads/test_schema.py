"""Workloads made from workloads: load, window, filter, estimates, costs, and the hash."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.schema import Workload, plain_spec, set_workers
from headway.workloads.select import parse_window

S = 1_000_000


def small(**changed: Any) -> Workload:
    """Four jobs: at 0, 10, 30 and 100 s, of 1, 8, 2 and 8 GPUs, for 10, 20, 30 and 40 s, in queues b, a, b, c."""
    spec = plain_spec(4)
    set_workers(spec, np.array([1, 8, 2, 8], np.int64))
    spec[c.J_QUEUE] = [1, 0, 1, 2]
    spec[c.J_USER] = [0, 0, 1, 1]
    spec[c.J_ESTIMATE] = 7 * S
    times = np.array([0, 10, 30, 100], np.int64) * S
    work = np.array([10, 20, 30, 40], np.int64) * S
    fields: dict[str, Any] = {"users": ("ann", "bob"), "queues": ("a", "b", "c"), **changed}
    return Workload("small", times, spec, work, **fields)


def test_gpus_and_work() -> None:
    jobs = small()
    assert jobs.gpus.tolist() == [1, 8, 2, 8]
    assert jobs.gpu_work_us == (10 + 160 + 60 + 320) * S
    assert (len(jobs), jobs.span_us) == (4, 100 * S)


def test_tasks_that_differ_are_counted_one_by_one() -> None:
    details = np.array([500, 0, 0, 0, 0, 700, 0, 0, 0, 0], np.int64)
    jobs = small(details=details, detail_at=np.array([0, 0, 10, 10, 10], np.int64))
    jobs.spec[c.J_DETAILS, 1] = 10
    assert jobs.gpu_milli.tolist() == [1000, 1200, 2000, 8000]
    assert jobs.gpus.tolist() == [1, 2, 2, 8]
    kept = jobs.filtered("queue=a")
    assert kept.details.tolist() == details.tolist() and kept.detail_at.tolist() == [0, 10]
    assert len(jobs.filtered("queue!=a").details) == 0


def test_load_is_gpu_time_over_capacity() -> None:
    jobs = small().scaled_to_load(0.5, 10)
    # 550 GPU·s at half of 10 GPUs need 110 s.
    assert jobs.submitted_us.tolist() == [0, 11 * S, 33 * S, 110 * S]
    assert jobs.work_us.tolist() == small().work_us.tolist()


@given(st.fractions(Fraction(1, 100), Fraction(100)), st.integers(1, 10**6))
def test_any_load_is_met_to_the_microsecond(load: Fraction, gpus: int) -> None:
    jobs = small()
    scaled = jobs.scaled_to_load(load, gpus)
    assert 0 <= Fraction(jobs.gpu_work_us) / (load * gpus) - scaled.span_us < 1
    assert np.all(np.diff(scaled.submitted_us) >= 0)


def test_deadlines_move_with_their_jobs() -> None:
    jobs = small()
    jobs.spec[c.J_DEADLINE, 1] = 25 * S
    assert jobs.scaled_to_load(0.5, 10).spec[c.J_DEADLINE].tolist() == [c.NEVER, 26 * S, c.NEVER, c.NEVER]
    assert jobs.window(5, 50).spec[c.J_DEADLINE].tolist() == [15 * S, c.NEVER]
    assert jobs.spec[c.J_DEADLINE, 1] == 25 * S


def test_a_window_takes_submissions_and_starts_at_zero() -> None:
    jobs = small().window(10, 100)
    assert jobs.submitted_us.tolist() == [0, 20 * S]
    assert jobs.gpus.tolist() == [8, 2]
    assert jobs.queues == ("a", "b") and jobs.spec[c.J_QUEUE].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("queue=b", [1, 2]),
        ("queue!=b", [8, 8]),
        ("user=bob", [2, 8]),
        ("gpus>=8", [8, 8]),
        ("gpus<=2", [1, 2]),
        ("gpus<2", [1]),
        ("gpus>2", [8, 8]),
        ("gpus=2", [2]),
        ("queue=b,gpus>=2", [2]),
        (" queue = b , gpus >= 2 ", [2]),
    ],
)
def test_filters(text: str, gpus: list[int]) -> None:
    jobs = small().filtered(text)
    assert jobs.gpus.tolist() == gpus
    assert jobs.submitted_us[0] == 0
    assert {jobs.queues[i] for i in jobs.spec[c.J_QUEUE]} == set(jobs.queues)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("queue=d", 'filter: no job of queue "d"; known: a, b, c'),
        ("user=anne", "filter: no job of user \"anne\" (did you mean 'ann'?)"),
        ("gpus>=x", 'filter gpus: expected a whole number of 0 or more, got "x"'),
        ("gpus>=-1", 'filter gpus: expected a whole number of 0 or more, got "-1"'),
        ("gpus>=nan", 'filter gpus: expected a whole number of 0 or more, got "nan"'),
        ("queue>=b", 'filter: expected queue=NAME, got "queue>=b"'),
        ("queu=b", "filter: cannot filter by \"queu\" (did you mean 'queue'?)"),
        ("size=b", 'filter: cannot filter by "size"; known: queue, user, gpus'),
        ("queue", 'filter: expected tests such as queue=NAME,gpus>=8, got "queue"'),
        ("", 'filter: expected tests such as queue=NAME,gpus>=8, got ""'),
        ("gpus>=9", 'filter: no job passes "gpus>=9"'),
    ],
)
def test_filters_that_say_nothing_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        small().filtered(text)
    assert str(error.value) == message


def test_windows_are_durations() -> None:
    assert parse_window("0..7d") == (0, 604_800)
    assert parse_window("1h..") == (3600, 100 * 365 * 86_400)
    assert parse_window("..90") == (0, 90)


@pytest.mark.parametrize("text", ["", "7d", "7d..1d", "a..b", "-1..5", "nan..5", "5..5"])
def test_windows_that_hold_nothing_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^window: expected "):
        parse_window(text)


def test_an_empty_window_is_one_line() -> None:
    with pytest.raises(UserError, match=r"window: no job is submitted between 200 s and 300 s"):
        small().window(200, 300)


@pytest.mark.parametrize(
    ("load", "gpus", "message"),
    [
        (0.0, 8, "load: expected a number from 0.001 to 1000, got 0.0"),
        (-1.0, 8, "load: expected a number from 0.001 to 1000, got -1.0"),
        (1.0, 0, "load: a cluster without GPUs cannot be loaded"),
    ],
)
def test_impossible_loads_are_refused(load: float, gpus: int, message: str) -> None:
    with pytest.raises(UserError) as error:
        small().scaled_to_load(load, gpus)
    assert str(error.value) == message


def test_jobs_that_come_together_cannot_be_spread() -> None:
    with pytest.raises(UserError, match="all jobs are submitted at one instant"):
        small().window(0, 5).scaled_to_load(1.0, 8)


def test_estimates_and_costs_are_columns() -> None:
    jobs = small()
    oracle = jobs.with_estimates(jobs.work_us)
    assert oracle.spec[c.J_ESTIMATE].tolist() == jobs.work_us.tolist()
    costly = jobs.with_costs(save_s=1.5, restore_s=30, every_s=600)
    assert [costly.spec[i, 0] for i in (c.J_SAVE, c.J_RESTORE, c.J_EVERY)] == [1_500_000, 30 * S, 600 * S]
    assert jobs.spec[c.J_ESTIMATE, 0] == 7 * S and jobs.spec[c.J_SAVE, 0] == 0


def test_the_hash_is_of_the_jobs_alone() -> None:
    jobs = small()
    twin = small(queues=("x", "y", "z"))
    assert jobs.sha256 == twin.sha256 == "dbc83e41369b817e90601e4c1b841d576028853ae73d31375e28c5fa85c348b0"
    assert jobs.with_costs(1, 0, 0).sha256 == jobs.sha256, "what stopping costs is a setting of a run"
    changed = [jobs.with_estimates(jobs.work_us), jobs.window(0, 50), jobs.scaled_to_load(1, 8)]
    changed.append(small(usage_seed=1))
    assert len({jobs.sha256, *(other.sha256 for other in changed)}) == 5
