"""The Philly reader: good rows, bad rows, broken files, and the real trace."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.philly import noisy_estimates, parse_philly, read_philly, splitmix64

DATASETS = Path(os.environ.get("HEADWAY_DATASETS") or Path(__file__).resolve().parents[3] / "shared" / "data")
TRACE = DATASETS / "traces" / "philly.csv.gz"
HEADER = "timestamp,duration,num_gpus,gpu_time,cluster\n"
ROWS = """\
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,2951.0,6214e9
2017-10-09 07:01:55,0.5,2,1.0,11cb48
"""


def test_rows_become_jobs_in_order_of_submission() -> None:
    jobs = parse_philly(HEADER + ROWS)
    assert (jobs.submitted_us // 1_000_000).tolist() == [0, 2932, 2932]
    assert jobs.work_us.tolist() == [2_951_000_000, 66_000_000, 500_000]
    assert jobs.gpus.tolist() == [8, 1, 2]
    assert jobs.queues == jobs.users == ("11cb48", "6214e9")
    assert jobs.spec[c.J_QUEUE].tolist() == jobs.spec[c.J_USER].tolist() == [1, 0, 0]
    assert not jobs.dropped


def test_the_columns_are_those_of_a_plain_gang() -> None:
    job = parse_philly(HEADER + ROWS).spec[:, 0]
    given = {name: int(value) for name, value in zip(c.SPEC_COLUMN_NAMES, job, strict=True) if value}
    assert given.pop("estimate") in [2_951_000_000 * n // 20 for n in (10, 16, 20, 25, 40, 60)]
    assert given == {
        "user": 1, "queue": 1, "priority": 50, "deadline": c.NEVER, "urgency": 5, "data": 8, "pipeline": 1, "tensor": 1,
        "data_min": 8, "data_max": 8, "width": 1, "gpu_task": 1000, "kind_mask": -1, "cpu_task": 1000, "mem_task": 4 * 10**9,
        "time_limit": c.NEVER, "retry_max": 3, "group": -1, "model": -1,
    }  # fmt: skip


def test_other_columns_and_their_order_do_not_matter() -> None:
    jobs = parse_philly("cluster,extra,num_gpus,duration,timestamp\r\nvc,,2.0,10,2017-10-09T07:01:55\r\n")
    assert jobs.gpus.tolist() == [2] and jobs.queues == ("vc",) and jobs.work_us.tolist() == [10_000_000]


def test_estimates_hang_on_the_row_alone() -> None:
    whole = parse_philly(HEADER + ROWS)
    swapped = parse_philly(HEADER + "".join(reversed(ROWS.splitlines(True))))
    assert whole.spec[c.J_ESTIMATE, 0] == swapped.spec[c.J_ESTIMATE, 0]  # the middle row stays in its place
    exact = parse_philly(HEADER + ROWS, estimates="exact")
    assert exact.spec[c.J_ESTIMATE].tolist() == exact.work_us.tolist()


def test_estimates_take_each_factor_as_often_as_it_is_listed() -> None:
    rows = np.arange(70_000)
    factor = noisy_estimates(np.full(70_000, 20, np.int64), rows)
    values, counts = np.unique(factor, return_counts=True)
    assert values.tolist() == [10, 16, 20, 25, 40, 60]
    assert np.allclose(counts / 10_000, [1, 1, 2, 1, 1, 1], atol=0.05)
    assert noisy_estimates(np.ones(70_000, np.int64), rows).min() == 1


def test_splitmix64_is_the_published_generator() -> None:
    # The first outputs of SplitMix64 from seed 0.
    assert splitmix64(np.arange(3)).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@pytest.mark.parametrize(
    ("row", "kind", "key"),
    [
        ("2017-10-09 06:13,5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-13-09 06:13:00,5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-02-30 06:13:00,5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-10-09 24:13:00,5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-10-09 06:60:00,5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-10-09 06:13:00Z,5,1,5,vc", "bad timestamp", "timestamp"),
        (",5,1,5,vc", "bad timestamp", "timestamp"),
        ("2017-10-09 06:13:00,,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,x,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,0,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,-5,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,nan,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,inf,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,7442064000,1,5,vc", "bad duration", "duration"),
        ("2017-10-09 06:13:00,5,0,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,0.5,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,-1,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,1000000,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,nan,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,many,5,vc", "bad num_gpus", "num_gpus"),
        ("2017-10-09 06:13:00,5,1", "too few fields", ""),
    ],
)
def test_a_bad_row_is_dropped_counted_and_named(row: str, kind: str, key: str) -> None:
    jobs = parse_philly(HEADER + ROWS + "\n" + row + "\n", file="t.csv")
    assert len(jobs) == 3
    assert jobs.dropped == {kind: 1}
    assert jobs.dropped_first.startswith(f"t.csv:6: {key}{': ' if key else ''}expected ")
    with pytest.raises(UserError) as error:
        parse_philly(HEADER + row, file="t.csv")
    assert str(error.value).startswith(f"t.csv:2: {key}{': ' if key else ''}no row is a job; the first: expected ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (bytes(range(256)), "not a text file"),
        (b"timestamp\0,duration", "not a text file"),
        (gzip.compress((HEADER + ROWS).encode(), mtime=0)[:-9], "the gzip file is cut off"),
        (gzip.compress((HEADER + ROWS).encode(), mtime=0)[:20], "the gzip file is cut off"),
        (b"\x1f\x8b\x08" + b"\xff" * 50, "the gzip file is damaged"),
        (b"a,b\n1,2\n", "no column 'timestamp'; found \"a, b\""),
        (HEADER.replace("num_gpus", "gpus").encode(), "no column 'num_gpus'; found"),
        (HEADER.replace("gpu_time", "duration").encode(), "more than one column 'duration'; found"),
        (HEADER.encode(), "a header and no rows"),
        (HEADER.encode() + b'"' + b"x" * 200_000 + b'"', "not a table: field larger than field limit"),
    ],
)
def test_a_broken_file_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        read_philly(path)
    assert str(error.value).startswith(str(path)) and message in str(error.value) and "\n" not in str(error.value)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_philly(tmp_path / "t.csv")
    with pytest.raises(UserError, match="Is a directory"):
        read_philly(tmp_path)


def test_plain_gzip_members_and_a_byte_order_mark_are_the_same_jobs(tmp_path: Path) -> None:
    text = (HEADER + ROWS).encode()
    hashes = set()
    for content in (text, b"\xef\xbb\xbf" + text, gzip.compress(text), gzip.compress(text[:50]) + gzip.compress(text[50:])):
        path = tmp_path / "t"
        path.write_bytes(content)
        hashes.add(read_philly(path).sha256)
    assert len(hashes) == 1


@pytest.mark.skipif(not TRACE.is_file(), reason="the Philly trace is not here: set HEADWAY_DATASETS")
def test_the_real_trace() -> None:
    jobs = read_philly(TRACE)
    assert len(jobs) == 72_294 and not jobs.dropped
    assert len(jobs.queues) == 14
    assert jobs.gpu_work_us == 3_225_150_776 * 10**6
    assert (int(jobs.gpus.max()), jobs.span_us // 10**6) == (128, 9_408_690)
    assert np.percentile(jobs.work_us, 50) / 1e6 == 1092
    assert len(jobs.filtered("queue=ee9e8c")) == 1511
    assert jobs.sha256 == "0707424e1acae14c71a806dd9b250a7335eec59764bef48e9f75154f146e6a58"
