"""What raw columns of a workload file may not hold: the row is left out, counted, and the first is told with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.cli import run_command
from headway.core.errors import UserError
from headway.workloads.generic import parse_generic

HEAD, GOOD = "submit_s,duration_s,gpus", "5,9,1"


def details(*shares: int, gpus: int = 1000) -> str:
    return " ".join(f"{gpus} 1000 0 0 {share}" for share in shares)


@pytest.mark.parametrize(
    ("columns", "good", "bad", "kind", "told"),
    [
        ("iterations", "3", "0", "bad iterations", "iterations: expected a whole number from 1"),
        ("iterations", "3", "nan", "bad iterations", "iterations: expected a whole number from 1"),
        ("deadline_s", "8", "nan", "bad deadline_s", "deadline_s: expected a time from 0"),
        ("deadline_s", "8", "-1", "bad deadline_s", "deadline_s: expected a time from 0"),
        ("spec.units_total", "3", str(2**62), "bad spec.units_total", "spec.units_total: expected a whole number from 0 to 9"),
        ("spec.acc_required", "900000", "1500000", "bad spec.acc_required", "spec.acc_required: expected a whole"),
        ("spec.acc_required", "900000", "nan", "bad spec.acc_required", "spec.acc_required: expected a whole"),
        ("spec.urgency", "10", "11", "bad spec.urgency", "spec.urgency: expected a whole number from 0 to 10"),
        ("spec.stop_rule", "2", "3", "bad spec.stop_rule", "spec.stop_rule: expected a whole number from 0 to 2"),
        ("spec.cut", "2", "3", "bad spec.cut", "spec.cut: expected a whole number from 0 to 2"),
        ("spec.width", "1", "0", "bad spec.width", "spec.width: expected a whole number from 1"),
        ("true.noise_ppm", "5", str(2**61), "bad true.noise_ppm", "true.noise_ppm: expected a whole"),
        ("true.curve,true.units", "1,5", "1,0", "impossible truth", "true.units: expected 1 or more units where there"),
        ("true.curve,true.k99", "2,5", "2,0", "impossible truth", "true.k99: expected 1 or more units"),
        ("true.speed,true.units,true.base_us", "2,5,7", "2,5,0", "impossible truth", "true.base_us: expected a step"),
        ("true.speed,true.units,true.t0_us", "3,5,7", "3,5,0", "impossible truth", "true.t0_us: expected a step"),
        ("true.speed,true.units", "1,5", "1,0", "impossible truth", "true.units: expected 1 or more units where steps"),
        (
            "spec.pipeline,spec.details,details", f"2,2,{details(400_000, 600_000)}", f"2,2,{details(400_000, 500_000)}",
            "partitions that do not add up",
            "details: expected shares that add up to 1000000 ppm over the partitions, got a sum of 900000",
        ),
        (
            "spec.pipeline,spec.details,details", f"2,2,{details(0, 1_000_000)}", f"2,2,{details(0, 0)}",
            "partitions that do not add up", "details: expected shares",
        ),
        (
            "spec.details,details", f"1,{details(1_000_000)}", f"1,{details(1_000_000, gpus=10**6)}", "bad details",
            "details: expected tasks of at most 64 GPUs",
        ),
    ],
)  # fmt: skip
def test_a_row_that_no_round_could_stand_is_left_out(columns: str, good: str, bad: str, kind: str, told: str) -> None:
    jobs = parse_generic(f"{HEAD},{columns}\n{GOOD},{good}\n{GOOD},{bad}\n", file="t.csv")
    assert jobs.dropped == {kind: 1} and len(jobs) == 1
    assert jobs.dropped_first.startswith(f"t.csv:3: {told}")


def test_replicas_add_up_each_for_itself() -> None:
    head = f"{HEAD},spec.data,spec.data_min,spec.data_max,spec.pipeline,spec.details,details"
    shape = "5,9,4,2,2,2,2,4"
    even, uneven = details(400_000, 600_000, 1_000_000, 0), details(400_000, 500_000, 600_000, 500_000)
    jobs = parse_generic(f"{head}\n{shape},{even}\n{shape},{uneven}\n", file="t.csv")
    assert jobs.dropped == {"partitions that do not add up": 1} and len(jobs) == 1


def test_a_deadline_in_the_past_is_kept_and_noted() -> None:
    jobs = parse_generic(f"{HEAD},deadline_s\n5,9,1,4\n5,9,1,\n5,9,1,5\n", file="t.csv")
    assert len(jobs) == 3 and jobs.noted == {"deadline before the submission": 1}


def test_a_file_of_nothing_else_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{HEAD},spec.acc_required\n{GOOD},1500000\n")
    with pytest.raises(UserError):
        parse_generic(path.read_text(), file="t.csv")
    assert run_command(["simulate", "--workload", str(path), "--cluster", "1x4", "--policy", "fifo"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and f"{path}:2: spec.acc_required: " in err and "1000000" in err
