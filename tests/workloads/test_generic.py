"""The generic table: what a row means, what is wrong with rows, and that a table reads back to the same jobs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.generic import MARK, parse_generic
from headway.workloads.registry import load_workload
from headway.workloads.rows import read_table
from headway.workloads.save import csv_of, read_parquet, write_csv, write_parquet, writer_for
from headway.workloads.schema import Workload, plain_spec
from headway.workloads.sound import SPEC_RANGES, TRUE_RANGES
from headway.workloads.truth import TRUTH_COLUMNS, Y_BASE, Y_K99, Y_T0, Y_UNITS

S = 1_000_000
PLAIN = "submit_s,duration_s,gpus\n"


def one(header: str, row: str) -> dict[str, int]:
    """The spec of the one job of a table, as far as it isn't 0."""
    jobs = parse_generic(f"submit_s,duration_s,gpus{header}\n10,100,{row}\n", estimates="exact")
    assert not jobs.dropped, jobs.dropped_first
    return {name: int(value) for name, value in zip(c.SPEC_COLUMN_NAMES, jobs.spec[:, 0], strict=True) if value}


def test_three_columns_are_enough() -> None:
    jobs = parse_generic(PLAIN + "1000,60,2\n990.5,0.25,1\n")
    assert jobs.submitted_us.tolist() == [0, 9_500_000] and jobs.work_us.tolist() == [S // 4, 60 * S]
    assert jobs.gpus.tolist() == [1, 2] and jobs.users == ("user",) and jobs.queues == ("default",)
    expected = plain_spec(1)[:, 0]
    expected[c.J_ESTIMATE] = 100 * S
    assert one("", "1") == {name: int(v) for name, v in zip(c.SPEC_COLUMN_NAMES, expected, strict=True) if v}


@pytest.mark.parametrize(
    ("header", "row", "expected"),
    [
        ("", "4", {"data": 4, "data_min": 4, "data_max": 4, "gpu_task": 1000}),
        ("", "0.25", {"data": 1, "gpu_task": 250, "share": 1}),
        (",workers", "8,1", {"data": 1, "gpu_task": 8000}),
        (",workers", "8,", {"data": 8, "gpu_task": 1000}),
        (",workers", "8,4", {"data": 4, "gpu_task": 2000}),
        (",workers", "1,2", {"data": 2, "gpu_task": 500, "share": 1}),
        (",cpus,memory_bytes", "1,2.5,1000", {"cpu_task": 2500, "mem_task": 1000}),
        (",cpus,memory_bytes", "1,,", {"cpu_task": 1000, "mem_task": 4 * 10**9}),
        (",priority", "1,70", {"priority": 70}),
        (",priority", "1,", {"priority": 50}),
        (",estimate_s", "1,300", {"estimate": 300 * S}),
        (",time_limit_s", "1,300", {"estimate": 300 * S, "time_limit": 300 * S}),
        (",time_limit_s,estimate_us", "1,300,5", {"estimate": 5, "time_limit": 300 * S}),
        (",time_limit_s", "1,", {"estimate": 100 * S, "time_limit": c.NEVER}),
        (",deadline_s", "1,130", {"deadline": 120 * S}),  # the clock begins with the first submission
        (",deadline_s", "1,", {"deadline": c.NEVER}),
        (",iterations,batch", "1,1000,64", {"units_total": 1000, "batch": 64}),
        (",kinds", "1,V100|a100", {"kind_mask": 0b11}),
        (",kinds", "1,", {"kind_mask": -1}),
        (",model", "1,bert", {"model": 0}),
        (",model", "1,", {"model": -1}),
    ],
)
def test_what_columns_mean(header: str, row: str, expected: dict[str, int]) -> None:
    found = one(header, row)
    assert {key: found.get(key, 0) for key in expected} == expected


def test_a_job_without_gpus_is_one_of_cpus() -> None:
    jobs = parse_generic("submit_s,duration_s,gpus,cpus\n0,10,0,4\n")
    assert jobs.spec[c.J_GPU_TASK, 0] == 0 and jobs.spec[c.J_CPU_TASK, 0] == 4000 and jobs.gpus.tolist() == [0]


def test_durations_may_come_from_start_and_end() -> None:
    jobs = parse_generic("submit_s,start_s,end_s,gpus\n5,10,30,1\n6,,30,1\n")
    assert jobs.work_us.tolist() == [20 * S, 24 * S]
    assert parse_generic("submit_s,end_s,gpus\n5,30,1\n").work_us.tolist() == [25 * S]


def test_time_zones_are_told_apart_and_a_missing_one_among_them_is_counted() -> None:
    jobs = parse_generic(
        "submit_time,duration_s,gpus\n"
        "2026-03-01T12:00:00Z,1,1\n2026-03-01T12:00:01+02:00,1,1\n2026-03-01 12:00:02.5,1,1\n2026-03-01T06:00:03-06:00,1,1\n"
    )
    # 10:00:01, 12:00:00, 12:00:02.5 and 12:00:03 in UTC
    assert jobs.submitted_us.tolist() == [0, 7199 * S, 7_201_500_000, 7202 * S]
    assert jobs.noted == {"submit_time without a time zone among others with one": 1}
    naive = parse_generic("submit_time,duration_s,gpus\n2026-03-01T12:00:00,1,1\n2026-03-02,1,1\n")
    assert naive.submitted_us.tolist() == [0, 12 * 3600 * S] and not naive.noted


def test_names_are_numbered_in_order_and_ids_name_jobs() -> None:
    jobs = parse_generic("submit_s,duration_s,gpus,user,queue,job\n0,1,1,zoe,b,j1\n1,1,1,,a,j2\n2,1,1,ann,,j3\n")
    assert jobs.users == ("ann", "user", "zoe") and jobs.spec[c.J_USER].tolist() == [2, 1, 0]
    assert jobs.queues == ("a", "b", "default") and jobs.spec[c.J_QUEUE].tolist() == [1, 0, 2]
    assert jobs.job_names == ("j1", "j2", "j3")


@pytest.mark.parametrize(
    ("header", "row", "kind", "key"),
    [
        ("submit_s,duration_s,gpus", ",60,1", "missing submit_s", "submit_s"),
        ("submit_s,duration_s,gpus", "-1,60,1", "bad submit_s", "submit_s"),
        ("submit_s,duration_s,gpus", "1e12,60,1", "bad submit_s", "submit_s"),
        ("submit_s,duration_s,gpus", "1,,1", "missing duration_s", "duration_s"),
        ("submit_s,duration_s,gpus", "1,0,1", "zero duration", "duration_s"),
        ("submit_s,duration_s,gpus", "1,7442064000,1", "duration over 100 years", "duration_s"),
        ("submit_s,duration_s,gpus", "1,sixty,1", "bad duration_s", "duration_s"),
        ("submit_s,duration_s,gpus", "1,60", "too few fields", ""),
        ("submit_s,duration_s,gpus", "1,60,", "missing gpus", "gpus"),
        ("submit_s,duration_s,gpus", "1,60,-1", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus", "1,60,1000000", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus", "1,60,1.5", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus", "1,60,0.0001", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus,workers", "1,60,8,3", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus,workers", "1,60,65,1", "bad gpus", "gpus"),
        ("submit_s,duration_s,gpus,workers", "1,60,8,0", "bad workers", "workers"),
        ("submit_s,duration_s,gpus,priority", "1,60,8,101", "bad priority", "priority"),
        ("submit_s,duration_s,gpus,cpus", "1,60,8,many", "bad cpus", "cpus"),
        ("submit_s,duration_s,gpus,kinds", "1,60,8,?", "bad kinds", "kinds"),
        ("submit_s,duration_s,gpus,estimate_s", "1,60,8,0", "bad estimate_s", "estimate_s"),
        ("submit_s,duration_s,gpus,deadline_s", "1,60,8,late", "bad deadline_s", "deadline_s"),
        ("submit_s,duration_s,gpus,spec.data", "1,60,8,0", "bad spec.data", "spec.data"),
        ("submit_s,duration_s,gpus,spec.data", "1,60,8,1.5", "bad spec.data", "spec.data"),
        ("submit_s,duration_s,gpus,spec.tensor", "1,60,8,1000000", "impossible shape", "workers"),
        ("submit_s,duration_s,gpus,details", "1,60,8,1 2 3", "bad details", "details"),
        ("submit_s,end_s,gpus", "10,9,1", "end before start", "end_s"),
        ("submit_s,end_s,gpus", "10,10,1", "zero duration", "end_s"),
        ("submit_s,end_s,gpus", "10,,1", "missing end_s", "end_s"),
        ("submit_s,start_s,end_s,gpus", "10,9,20,1", "start before submission", "start_s"),
        ("submit_time,duration_s,gpus", "2026-13-01T00:00:00Z,60,1", "bad submit_time", "submit_time"),
        ("submit_time,duration_s,gpus", "1969-12-31T00:00:00Z,60,1", "bad submit_time", "submit_time"),
        ("submit_time,duration_s,gpus", "1700000000,60,1", "bad submit_time", "submit_time"),
        ("submit_time,duration_s,gpus", "Unknown,60,1", "bad submit_time", "submit_time"),
    ],
)
def test_an_odd_row_is_dropped_counted_and_named(header: str, row: str, kind: str, key: str) -> None:
    good = {"submit_s": "5", "submit_time": "2026-03-01T12:00:00Z", "duration_s": "9", "gpus": "1", "end_s": "20"}
    line = ",".join(good.get(name, "") for name in header.split(",")).replace("spec", "")
    if "spec." in header:
        line = "5,9,1,1"
    jobs = parse_generic(f"{header}\n{line}\n{row}\n", file="t.csv")
    assert jobs.dropped == {kind: 1} and len(jobs) == 1
    assert jobs.dropped_first.startswith(f"t.csv:3: {key}{': ' if key else ''}expected ")


def test_ids_that_come_again_are_dropped_and_empty_ones_are_not() -> None:
    jobs = parse_generic("submit_s,duration_s,gpus,job\n1,1,1,a\n2,1,1,\n3,1,1,a\n4,1,1,\n")
    assert jobs.dropped == {"duplicate id": 1} and len(jobs) == 3


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("duration_s,gpus", "no column 'submit_s'"),
        ("submit_s,gpus", "no column 'duration_s'"),
        ("submit_s,duration_s", "no column 'gpus'"),
        ("submit_s,submit_us,duration_s,gpus", "expected one of the columns submit_us and submit_s"),
        ("submit_s,submit_s,duration_s,gpus", "more than one column 'submit_s'"),
    ],
)
def test_a_table_that_lacks_a_column_is_refused_with_its_name(header: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_generic(f"{header}\n1,2,3,4\n", file="t.csv")
    assert message in str(error.value) and str(error.value).startswith("t.csv:1: ")


def test_more_kinds_than_a_mask_has_bits_are_refused() -> None:
    rows = "".join(f"1,1,1,k{i}\n" for i in range(64))
    with pytest.raises(UserError, match="over 63 GPU kinds"):
        parse_generic("submit_s,duration_s,gpus,kinds\n" + rows)


# -- there and back ---------------------------------------------------------------------------------------------------
def same(one: Workload, other: Workload) -> None:
    assert other.sha256 == one.sha256
    for name in ("users", "queues", "kinds", "models", "job_names", "quotas_ppm", "usage_jitter_ppm", "rows_read"):
        assert getattr(other, name) == getattr(one, name), name
    assert dict(other.dropped) == dict(one.dropped) and other.dropped_first == one.dropped_first
    assert np.array_equal(other.spec, one.spec) and np.array_equal(other.submitted_us, one.submitted_us)
    assert np.array_equal(other.details, one.details) and np.array_equal(other.detail_at, one.detail_at)


def both_ways(jobs: Workload, folder: Path) -> None:
    for name in ("w.parquet", "w.csv", "w.csv.gz"):
        writer_for(folder / name)(jobs, folder / name)
        same(jobs, load_workload(str(folder / name)))


@pytest.mark.parametrize(
    "spec",
    ["poisson:jobs=60", "philly-like:jobs=60", "mlfs-paper:jobs=40,protocol=stress", "production:jobs=30", "trials:groups=5"],
)
def test_generators_are_written_and_read_back(spec: str, tmp_path: Path) -> None:
    both_ways(load_workload(spec, seed=3), tmp_path)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Jobs with anything in their columns that a column may hold."""
    count = draw(st.integers(1, 6))
    spec = plain_spec(count)
    near = {
        c.J_DATA: st.integers(1, 40), c.J_PIPELINE: st.integers(1, 3), c.J_TENSOR: st.integers(1, 3),
        c.J_SERVERS: st.integers(0, 3), c.J_GPU_TASK: st.sampled_from([0, 1, 250, 1000, 1500, 8000]),
        c.J_SHARE: st.integers(0, 1), c.J_USER: st.integers(0, 2), c.J_QUEUE: st.integers(0, 1), c.J_MODEL: st.integers(-1, 1),
        c.J_KIND_MASK: st.sampled_from([-1, 0, 1, 2, 3, 7]), c.J_PRIORITY: st.integers(0, 100),
        c.J_ALT_MASK: st.sampled_from([0, -1, 5]), c.J_DETAILS: st.just(0),
    }  # fmt: skip
    bounds = (c.J_DATA_MIN, c.J_DATA_MAX, c.J_SERVERS_MAX, c.J_ALT_GPU, c.J_GROUP, c.J_SHARE)
    for column in range(c.SPEC_COLUMNS):
        if column not in bounds or column in near:
            low, high = SPEC_RANGES.get(column, (0, 1 << 62))
            values = near.get(column, st.one_of(st.just(low), st.just(high), st.integers(low, min(high, 2**53 + 1))))
            if draw(st.booleans()):
                spec[column] = draw(st.lists(values, min_size=count, max_size=count))
    spec[c.J_DATA_MIN] = spec[c.J_DATA_MAX] = spec[c.J_DATA]
    times = sorted(draw(st.lists(st.integers(0, 2**53), min_size=count, max_size=count)))
    work = draw(st.lists(st.integers(1, 3 * 10**15), min_size=count, max_size=count))
    names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",), exclude_characters="\0"), max_size=5)
    people = st.lists(names.map(str.strip).filter(bool), min_size=3, max_size=3, unique=True)
    truth = np.zeros((TRUTH_COLUMNS, count), np.int64)
    truth[[Y_UNITS, Y_BASE, Y_T0, Y_K99]] = draw(st.integers(1, 10**9))
    column = draw(st.sampled_from(sorted(set(TRUE_RANGES) - {Y_UNITS, Y_BASE, Y_T0, Y_K99})))
    truth[column] = draw(st.integers(*TRUE_RANGES[column]))
    return Workload(
        "w",
        np.array(times, np.int64),
        spec,
        np.array(work, np.int64),
        users=tuple(draw(people)),
        queues=("q", "default"),
        kinds=("t4", "a100", "h100"),
        models=("m", "n"),
        truth=truth,
        usage_jitter_ppm=draw(st.integers(0, 5)),
        dropped=draw(st.dictionaries(names, st.integers(1, 9), max_size=2)),
        rows_read=draw(st.integers(0, 9)),
    )


@settings(max_examples=60)
@given(workloads())
def test_any_workload_reads_back_to_the_same_hash(tmp_path_factory: pytest.TempPathFactory, jobs: Workload) -> None:
    folder = tmp_path_factory.mktemp("w")
    write_parquet(jobs, folder / "w.parquet")
    write_csv(jobs, folder / "w.csv")
    for read in (read_parquet(folder / "w.parquet"), parse_generic(read_table(folder / "w.csv"))):
        assert read.sha256 == jobs.sha256
        assert np.array_equal(read.spec, jobs.spec) and read.usage_jitter_ppm == jobs.usage_jitter_ppm
        assert dict(read.dropped) == dict(jobs.dropped) and read.users == jobs.users


def test_a_frozen_hash_holds_only_for_the_jobs_that_it_was_written_with(tmp_path: Path) -> None:
    jobs = load_workload("philly-like:jobs=20")
    assert jobs.frozen_sha256
    text = csv_of(jobs)
    assert parse_generic(text).frozen_sha256 == jobs.frozen_sha256
    lines = text.splitlines(keepends=True)
    changed = parse_generic("".join(lines[:-1]))
    assert not changed.frozen_sha256 and changed.sha256 != jobs.sha256


def test_what_cannot_be_written_exactly_is_refused(tmp_path: Path) -> None:
    jobs = load_workload("poisson:jobs=2")
    late = replace(jobs, submitted_us=np.array([0, 2**54], np.int64))
    with pytest.raises(UserError, match="285 years"):
        write_csv(late, tmp_path / "w.csv")
    with pytest.raises(UserError, match="100 years"):
        write_parquet(replace(jobs, work_us=np.array([0, 1], np.int64)), tmp_path / "w.parquet")
    with pytest.raises(UserError, match=r"expected a file that ends in \.parquet, \.csv or \.csv\.gz"):
        writer_for(tmp_path / "w.xlsx")


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not what Headway writes"),
        ('{"schema": "headway-workload/9"}', "expected a workload of schema headway-workload/1"),
        ('{"schema": "headway-workload/1", "users": 5}', "is not what Headway writes"),
        ('{"schema": "headway-workload/1", "dropped": {"x": "y"}}', "is not what Headway writes"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_first_line_is_refused(meta: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_generic(f"{MARK}{meta}\n{PLAIN}1,2,3\n", file="t.csv")
    assert message in str(error.value) and str(error.value).startswith("t.csv:1: ")


def test_numbers_beyond_the_names_of_a_file_are_refused() -> None:
    meta = json.dumps({"schema": "headway-workload/1", "users": ["ann"]})
    with pytest.raises(UserError, match="the file names 1 users, and a job has number 7"):
        parse_generic(f"{MARK}{meta}\nsubmit_s,duration_s,gpus,user,spec.user\n1,2,3,ann,7\n")


# -- Parquet of others ------------------------------------------------------------------------------------------------
def written(tmp_path: Path, columns: dict[str, Any]) -> Path:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_parquet_of_others_may_hold_any_type(tmp_path: Path) -> None:
    import datetime

    utc = datetime.UTC
    when = [datetime.datetime(2026, 3, 1, 12, 0, second, tzinfo=utc) for second in (1, 0, 2)]
    path = written(
        tmp_path,
        {
            "submit_time": pa.array(when, pa.timestamp("ms", "Europe/Berlin")),
            "duration_s": pa.array(["60", "0.5", None]),
            "gpus": pa.array([1.0, 0.5, 2.0], pa.float32()),
            "priority": pa.array([70, None, 1], pa.uint8()),
            "user": pa.array(["ann", None, "bob"]).dictionary_encode(),
            "colour": pa.array([1, 2, 3]),
        },
    )
    jobs = load_workload(str(path))
    assert jobs.submitted_us.tolist() == [0, S] and jobs.work_us.tolist() == [S // 2, 60 * S]
    assert jobs.gpu_milli.tolist() == [500, 1000] and jobs.spec[c.J_PRIORITY].tolist() == [50, 70]
    assert jobs.users == ("ann", "user")
    assert jobs.dropped == {"missing duration_s": 1} and jobs.noted == {'unknown column "colour"': 3}


def test_broken_parquet_is_one_line(tmp_path: Path) -> None:
    path = written(tmp_path, {"submit_s": [1], "duration_s": [2], "gpus": [[1, 2]]})
    with pytest.raises(UserError, match=r"gpus: expected numbers or text, got list"):
        load_workload(str(path))
    path = written(tmp_path, {"duration_s": [2], "gpus": [1]})
    with pytest.raises(UserError, match="no column 'submit_s'"):
        load_workload(str(path))
    whole = path.read_bytes()
    for broken in (whole[:-9], b"PAR1" + b"\xff" * 40, whole[:20]):
        path.write_bytes(broken)
        with pytest.raises(UserError) as error:
            load_workload(str(path))
        assert str(error.value).startswith(f"{path}: not a Parquet file") and "\n" not in str(error.value)


def test_a_table_without_any_known_column_is_refused_by_what_is_missing() -> None:
    with pytest.raises(UserError, match="no column 'submit_s'"):
        parse_generic("JobID,foo\n1,2\n")
