"""Cells of Slurm's accounting, with values worked out by hand."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.workloads import slurm_cells as cells
from headway.workloads.slurm_cells import Tres

PARIS = cells.find_zone("Europe/Paris")


@pytest.mark.parametrize("text", ["12", "12_3", "12_[0-9]", "12_[0-9%2]", "12_[1,3,5-7:2]", "12_[1,3,...]", "12+0", "4294967295"])
def test_ids_of_jobs(text: str) -> None:
    assert cells.parse_job_id(text) == text and not cells.is_step(text)


@pytest.mark.parametrize("text", ["12.batch", "12.extern", "12.0", "12_3.batch", "12+0.1", "12.interactive"])
def test_ids_of_steps(text: str) -> None:
    assert cells.is_step(text)


@pytest.mark.parametrize("text", ["", "job", "12_", "12_[a]", "-1", "12_3_4", "1e9", "١٢"])
def test_ids_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a job id"):
        cells.parse_job_id(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("05:03", 303),
        ("01:02:03", 3723),
        ("1-02:03:04", 93_784),
        ("00:00:01.250", 1.25),
        ("00:00.004", 0.004),
        ("2-12", 216_000),
        ("100-00:00:00", 8_640_000),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        ("Unknown", None),
        ("", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert cells.parse_duration(text) == (None if seconds is None else round(seconds * 1e6))


@given(st.integers(0, 10**10))
def test_a_duration_is_read_as_it_is_written(seconds: int) -> None:
    minutes, s = divmod(seconds, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    assert cells.parse_duration(f"{days}-{h:02}:{m:02}:{s:02}") == seconds * 10**6


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("2024-03-01T12:00:00", (1709290800, False)),  # Paris is one hour ahead in winter
        ("2024-07-01T12:00:00", (1719828000, False)),  # and two in summer
        ("2024-10-27T02:30:00", (1729989000, False)),  # twice that night: the first
        ("2024-03-01T12:00:00+00:00", (1709294400, True)),
        ("2024-03-01T12:00:00-0500", (1709312400, True)),
        ("2024-03-01T12:00:00Z", (1709294400, True)),
        ("1709294400", (1709294400, True)),
        ("Unknown", (None, True)),
        ("None", (None, True)),
        ("0", (None, True)),
        ("1970-01-01T01:00:00", (None, False)),
    ],
)
def test_times(text: str, when: tuple[int | None, bool]) -> None:
    assert cells.parse_time(text, PARIS) == when


@pytest.mark.parametrize("text", ["yesterday", "2024-02-30T00:00:00", "12:00:00", "-5", "10:00-5"])
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time"):
        cells.parse_time(text, datetime.UTC)


@pytest.mark.parametrize(
    ("text", "mib"),
    [("16Gn", 32 * 1024), ("4000Mc", 4000 * 8), ("244G", 244 * 1024), ("1.50T", 1.5 * 2**20), ("512", 512), ("100K", 100 / 1024)],
)
def test_memory_of_eight_cpus_on_two_nodes(text: str, mib: float) -> None:
    assert cells.parse_memory(text, 8, 2) == round(mib * 2**20)


def test_resources() -> None:
    typed = "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=62.50G,node=2"
    assert cells.parse_tres(typed) == Tres(8, 64_000 * 2**20, 2, 4, "a100")
    assert cells.parse_tres("gres/gpu:a100=4,gres/gpu:v100=2,license/x=1") == Tres(None, None, None, 6, "")
    assert cells.parse_tres("cpu=1,gres/gpu=0,gres/gpumem=80G,gres/shard=3") == Tres(1, None, None, 0, "")
    assert cells.parse_tres("") == Tres()


@pytest.mark.parametrize(
    "text", ["gres/gpu=0.5", "gres/gpu=1000000", "gres/gpu=-1", "gres/gpu=many", "cpu", "mem=lots", "gres/gpu=nan"]
)
def test_resources_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        cells.parse_tres(text)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:a100:4(S:0-1)", {"a100": 4}),
        ("gpu:4(IDX:0,1-3)", {"": 4}),
        ("gpu:a100:2,gpu:V100:1,shard:8", {"a100": 2, "v100": 1}),
        ("gpu:titanrtx:0", {}),
        ("gpu", {"": 1}),
        ("(null)", {}),
    ],
)
def test_generic_resources(text: str, gpus: dict[str, int]) -> None:
    assert cells.parse_gres(text) == gpus


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", "COMPLETED"),
        ("CANCELLED by 1000", "CANCELLED"),
        ("OUT_OF_ME+", "OUT_OF_MEMORY"),
        ("NODE_FAIL", "NODE_FAIL"),
        ("TO", "TIMEOUT"),
        ("completed", "COMPLETED"),
        ("", ""),
    ],
)
def test_states(text: str, state: str) -> None:
    assert cells.parse_state(text) == state


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[01-04,07]", ["gpu01", "gpu02", "gpu03", "gpu04", "gpu07"]),
        ("a1,b[2-3],c", ["a1", "b2", "b3", "c"]),
        ("rack[1-2]n[8-9]-ib", ["rack1n8-ib", "rack1n9-ib", "rack2n8-ib", "rack2n9-ib"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("None assigned", []),
        ("", []),
    ],
)
def test_hosts(text: str, names: list[str]) -> None:
    assert cells.parse_hosts(text) == names


@pytest.mark.parametrize("text", ["gpu[", "gpu[1-", "gpu[3-1]", "gpu[a-b]", "n[0-999999999]", "n[1-9999]m[1-9999]", ","])
def test_hosts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="hosts"):
        cells.parse_hosts(text)


@pytest.mark.parametrize(
    "parse", [cells.parse_job_id, cells.parse_duration, cells.parse_tres, cells.parse_hosts, cells.parse_state]
)
@given(text=st.text(max_size=30))
def test_no_cell_does_more_than_be_refused(parse: Callable[[str], Any], text: str) -> None:
    try:
        parse(text)
    except ValueError as error:
        assert "expected" in str(error)


def test_a_zone_that_is_none() -> None:
    with pytest.raises(ValueError, match="expected a time zone"):
        cells.find_zone("Mars/Olympus")
