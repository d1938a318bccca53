"""Workloads by name, and the generator's pinned jobs."""

from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.generators.draws import Draws, choices, equal_steps
from headway.workloads.generators.poisson import DURATIONS_MS as POISSON_MS
from headway.workloads.registry import load_workload


def test_poisson_jobs_are_pinned() -> None:
    jobs = load_workload("poisson:jobs=1000,load=0.8", seed=1)
    assert jobs.name == "poisson:jobs=1000,load=0.8"
    assert jobs.sha256 == "04869cc028fbb8bec106bc00d55871ed68591e5d18faff825564ba4ff8f95387"
    assert jobs.work_us[:3].tolist() == [20281123000, 260259000, 335563000]


def test_poisson_is_what_it_says() -> None:
    jobs = load_workload("poisson:jobs=20000,load=1.2,cluster=4x4", seed=3)
    count = np.bincount(jobs.gpus, minlength=9) / 20000
    assert np.allclose(count[[1, 2, 4, 8]], [0.80, 0.08, 0.07, 0.05], atol=0.01)
    assert jobs.gpu_work_us / (16 * jobs.span_us) == pytest.approx(1.2, rel=0.01)
    assert 60 <= jobs.work_us.min() / 1e6 < 61 and 28_000 < jobs.work_us.max() / 1e6 <= 28_800
    # Log-uniform: the median is the geometric mean of the ends.
    assert np.median(jobs.work_us) / 1e6 == pytest.approx((60 * 28_800) ** 0.5, rel=0.05)
    gaps = np.diff(jobs.submitted_us)
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.05)
    factors = set((jobs.spec[c.J_ESTIMATE] * 100 // jobs.work_us).tolist())
    assert factors == {50, 80, 100, 125, 200, 300} or factors <= {49, 50, 79, 80, 100, 124, 125, 200, 300}


def test_seeds_differ_and_repeat() -> None:
    one, again, two = (load_workload("poisson:jobs=50", seed=seed) for seed in (1, 1, 2))
    assert one.sha256 == again.sha256 != two.sha256


def test_load_stretches_the_same_jobs() -> None:
    low, high = (load_workload(f"poisson:jobs=50,load={load}") for load in (0.4, 0.8))
    assert low.work_us.tolist() == high.work_us.tolist()
    assert low.span_us == pytest.approx(2 * high.span_us, abs=2)


def test_draws_are_32_bits() -> None:
    draws = Draws("x", 1).draw(10_000)
    assert draws.dtype == np.int64 and draws.min() >= 0 and draws.max() < 2**32


def test_choices_and_steps_hold_at_the_ends() -> None:
    ends = np.array([0, 2**32 - 1], np.int64)
    assert choices(ends, (80, 8, 7, 5)).tolist() == [0, 3]
    assert equal_steps(ends, POISSON_MS).tolist() == [60_000, 28_799_999]
    middle = np.array([2**31], np.int64)
    assert equal_steps(middle, POISSON_MS).tolist() == [POISSON_MS[8]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poison", "unknown workload 'poison' (did you mean 'poisson'?)"),
        (
            "zzz",
            "unknown workload 'zzz'; known: mlfs-paper, mlfs-paper-large, philly-like, poisson, production, trials, "
            "or the path of a trace",
        ),
        ("poisson:job=5", "workload poisson: job: unknown parameter (did you mean 'jobs'?)"),
        ("poisson:jobs=0", 'workload poisson: jobs: expected a whole number from 1 to 5000000, got "0"'),
        ("poisson:jobs=-5", 'workload poisson: jobs: expected a whole number from 1 to 5000000, got "-5"'),
        ("poisson:jobs=nan", 'workload poisson: jobs: expected a whole number from 1 to 5000000, got "nan"'),
        ("poisson:load=nan", 'workload poisson: load: expected a number from 0.001 to 1000, got "nan"'),
        ("poisson:load=-1", 'workload poisson: load: expected a number from 0.001 to 1000, got "-1"'),
        ("poisson:load=0", 'workload poisson: load: expected a number from 0.001 to 1000, got "0"'),
        ("poisson:load=.", 'workload poisson: load: expected a number from 0.001 to 1000, got "."'),
        ("poisson:cluster=phily", "unknown cluster 'phily' (did you mean 'philly'?)"),
        ("poisson:", 'workload poisson: expected key=value, got ""'),
        ("poisson+poisson", 'a workload has one part, got "poisson+poisson"'),
        ("missing.csv.gz", "missing.csv.gz: no such file"),
        ("no/such/trace", "no/such/trace: no such file"),
        ("", 'expected a workload NAME[:key=value,…], got ""'),
    ],
)
def test_no_workload_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_workload(text)
    assert str(error.value) == message


def test_a_name_too_long_for_a_file_is_no_file() -> None:
    with pytest.raises(UserError):
        load_workload("a" * 3000)


TRACE = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,vc\n"


def test_files_are_found_in_the_datasets(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "t.csv").write_text(TRACE)
    jobs = load_workload("t.csv", datasets=tmp_path)
    assert jobs.name == "t.csv" and len(jobs) == 1
    assert load_workload(str(tmp_path / "traces" / "t.csv")).sha256 == jobs.sha256


def test_options_follow_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    jobs = load_workload(f"{path}:estimates=exact")
    assert jobs.spec[c.J_ESTIMATE, 0] == 66_000_000
    with pytest.raises(UserError, match="estimates: expected noisy or exact"):
        load_workload(f"{path}:estimates=wild")
    with pytest.raises(UserError, match=r"unknown parameter \(did you mean 'estimates'\?\)"):
        load_workload(f"{path}:estimate=exact")


def test_another_table_says_what_it_found(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("job_id,submission_time\n1,2\n")
    with pytest.raises(UserError) as error:
        load_workload(str(path))
    assert str(error.value) == f"{path}:1: no column 'cluster'; found \"job_id, submission_time\""
