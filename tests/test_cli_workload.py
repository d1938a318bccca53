"""`headway workload`: what a person sees, what stands in JSON, and that nothing is written when anything is wrong."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from headway.app.plot import bar, columns
from headway.app.workload import arrivals, duration_cdf, gpu_counts, statistics
from headway.cli import run_command
from headway.workloads.generic import parse_generic
from headway.workloads.registry import GENERATORS, load_workload

Captured = pytest.CaptureFixture[str]
ITP = "cluster,job_id,submission_time,duration,num_gpu\nc1,a,0,3600,1\nc2,b,7200,1800,8\nc2,c,10,0,1\nc2,d,,60,1\n"
SMALL = "submit_s,duration_s,gpus,queue\n0,10,1,a\n100,20,2,a\n3600,30,0.5,b\n7200,3600,0,b\n"


def answer(capsys: Captured, *arguments: str) -> Any:
    assert run_command([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def refused(capsys: Captured, *arguments: str) -> str:
    assert run_command(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headway: ") and err.count("\n") == 1
    return err.removeprefix("headway: ").strip()


# -- show -------------------------------------------------------------------------------------------------------------
def test_statistics_by_hand() -> None:
    found = statistics(parse_generic(SMALL, name="small"))
    assert (found["workload"], found["jobs"], found["span_s"], found["jobs_per_hour"]) == ("small", 4, 7200.0, 1.5)
    assert found["gpus"] == {
        "total": 3.5, "mean": 0.875, "p50": 0.5, "p90": 2.0, "p99": 2.0, "max": 2.0,
        "jobs_by_gpus": {"0": 1, "0.5": 1, "1": 1, "2": 1},
    }  # fmt: skip
    assert found["gpu_hours"] == pytest.approx((10 + 40 + 15) / 3600)
    assert found["durations_s"] == {"min": 10.0, "mean": 915.0, "p50": 20.0, "p90": 3600.0, "p99": 3600.0, "max": 3600.0}
    assert (found["users"], found["queues"], found["jobs_without_gpu"], found["jobs_sharing_a_gpu"]) == (1, 2, 1, 1)
    assert [(entry["queue"], entry["jobs"]) for entry in found["by_queue"]] == [("a", 2), ("b", 2)]
    assert (found["rows_read"], found["rows_dropped"], found["dropped"]) == (4, 0, {})


def test_show_answers_what_the_contract_asks(capsys: Captured) -> None:
    found = answer(capsys, "workload", "show", "poisson:jobs=500,load=1.0", "--seed", "5")
    jobs = load_workload("poisson:jobs=500,load=1.0", seed=5)
    assert found["jobs"] == 500 and found["sha256"] == jobs.sha256
    assert found["gpu_hours"] == pytest.approx(jobs.gpu_work_us / 3.6e9)
    assert set(found["durations_s"]) >= {"p50", "p90", "p99"} and sum(found["gpus"]["jobs_by_gpus"].values()) == 500


def test_show_tells_of_rows_and_draws(capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(ITP)
    assert run_command(["workload", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "dropped    1: missing submission_time" in out and "dropped    1: zero duration" in out
    assert f"the first  {path}:4: duration: expected " in out
    assert "80.0%  1 jobs" in out  # of the queue c2: 4 of 5 GPU hours
    assert "█" in out


def test_show_draws_in_ascii_where_it_must(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert run_command(["workload", "show", "poisson:jobs=30"]) == 0
    stream.flush()
    assert "###" in stream.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


def test_arrivals_take_round_bins() -> None:
    found = arrivals(parse_generic(SMALL))
    assert found.per == "2 minutes" and sum(found.bins) == 4
    assert [found.bins[i] for i in (0, 30, 60)] == [2, 1, 1]
    assert arrivals(parse_generic("submit_s,duration_s,gpus\n5,1,1\n")).bins == (1,)
    years = arrivals(parse_generic("submit_s,duration_s,gpus\n0,1,1\n3000000000,1,1\n"))
    assert years.per == "364 days" and years.bins[0] == years.bins[95] == 1


def test_a_cdf_goes_from_none_to_all() -> None:
    assert duration_cdf(parse_generic(SMALL)) == [(1, 0.0), (10, 0.25), (60, 0.75), (600, 0.75), (3600, 1.0)]


def test_many_shares_are_counted_in_tenths() -> None:
    import numpy as np

    milli = np.array([0, 10, 100, 101, 200, 300, 400, 500, 600, 700, 800, 900, 950, 1000, 2000], np.int64)
    assert gpu_counts(milli) == {
        "0": 1, "0-0.1": 2, "0.1-0.2": 2, "0.2-0.3": 1, "0.3-0.4": 1, "0.4-0.5": 1, "0.5-0.6": 1, "0.6-0.7": 1,
        "0.7-0.8": 1, "0.8-0.9": 1, "0.9-1": 1, "1": 1, "2": 1,
    }  # fmt: skip


def test_bars_and_columns() -> None:
    assert [bar(share, 4) for share in (0.0, 0.001, 0.5, 0.53, 1.0)] == ["", "▏", "██", "██▏", "████"]
    assert [bar(share, 4, ascii_only=True) for share in (0.0, 0.001, 0.5, 1.0)] == ["", "#", "##", "####"]
    assert columns([0, 1, 8, 16], 2) == ["   █", " ▁██"]
    assert columns([0, 1, 8, 16], 2, ascii_only=True) == ["   #", " ###"]
    assert columns([0, 0], 1) == ["  "]


# -- import, generate -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz"])
def test_import_counts_rows_and_writes_what_reads_back(suffix: str, capsys: Captured, tmp_path: Path) -> None:
    source, target = tmp_path / "t.csv", tmp_path / f"o.{suffix}"
    source.write_text(ITP)
    found = answer(capsys, "workload", "import", "itp", str(source), "-o", str(target))
    assert (found["rows_read"], found["rows_kept"], found["rows_dropped"], found["jobs"]) == (4, 2, 2, 2)
    assert found["dropped"] == {"missing submission_time": 1, "zero duration": 1}
    assert found["dropped_first"].startswith(f"{source}:4: duration: expected ")
    read = load_workload(str(target))
    assert read.sha256 == found["sha256"] == load_workload(str(source)).sha256
    shown = answer(capsys, "workload", "show", str(target))
    assert shown["sha256"] == found["sha256"] and shown["dropped"] == found["dropped"] and shown["rows_read"] == 4
    assert [path.name for path in sorted(tmp_path.iterdir())] == [target.name, "t.csv"]


def test_import_of_slurms_accounting(capsys: Captured, tmp_path: Path) -> None:
    source, target = Path(__file__).parent / "slurm" / "sample.psv", tmp_path / "o.parquet"
    ids = [line.split("|")[0] for line in source.read_text().splitlines()[1:]]
    steps = sum("." in name for name in ids)
    found = answer(capsys, "workload", "import", "slurm", str(source), "-o", str(target))
    assert found["rows_read"] == len(ids) - steps == found["rows_kept"] + found["rows_dropped"]
    assert found["noted"].get("job step, passed over", 0) == steps and sum(found["dropped"].values()) == found["rows_dropped"]
    # A file of Slurm's is known by its header, and what was written is the same jobs.
    assert found["sha256"] == load_workload(str(target)).sha256 == load_workload(str(source)).sha256
    other = load_workload(f"{source}:queue=account")
    assert other.queues != load_workload(str(source)).queues
    assert "expected partition or account or qos" in refused(capsys, "workload", "show", f"{source}:queue=nobody")


def test_import_takes_a_readers_options(capsys: Captured, tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text(ITP)
    found = answer(capsys, "workload", "import", "itp", f"{source}:estimates=exact", "-o", str(tmp_path / "o.parquet"))
    assert found["sha256"] == load_workload(f"{source}:estimates=exact").sha256


def test_import_for_people(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(ITP)
    assert run_command(["workload", "import", "itp", str(tmp_path / "t.csv"), "-o", str(tmp_path / "o.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "4 rows read, 2 kept, 2 dropped" and lines[1] == "  dropped    1: missing submission_time"
    assert lines[-1].startswith(f"{tmp_path / 'o.csv'}: 2 jobs, sha256 ")


def test_a_file_that_is_there_is_kept_unless_told_otherwise(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(ITP)
    target = tmp_path / "o.parquet"
    target.write_text("mine")
    command = ["workload", "import", "itp", str(tmp_path / "t.csv"), "-o", str(target)]
    assert refused(capsys, *command) == f"{target}: output: is there already; --force replaces it"
    assert target.read_text() == "mine"
    assert answer(capsys, *command, "--force")["jobs"] == 2
    command = ["workload", "generate", "poisson:jobs=5", "-o", str(target)]
    assert "is there already" in refused(capsys, *command)
    assert answer(capsys, *command, "--force")["jobs"] == len(load_workload(str(target))) == 5


def test_nothing_is_written_when_anything_is_wrong(capsys: Captured, tmp_path: Path) -> None:
    source, target = tmp_path / "t.csv", tmp_path / "o.parquet"
    source.write_text(ITP)
    empty = tmp_path / "e.csv"
    empty.write_text("cluster,job_id,submission_time,duration,num_gpu\nc,a,,1,1\n")
    none = tmp_path / "n.csv"
    none.write_text("cluster,job_id,duration,num_gpu\nc,a,1,1\n")
    before = sorted(tmp_path.iterdir())
    for arguments, message in (
        (("itp", str(empty), "-o", str(target)), "no row is a job; the first: expected a time from 0 to 285 years"),
        (("itp", str(none), "-o", str(target)), "no column 'submission_time'; found"),
        (("ipt", str(source), "-o", str(target)), "unknown format 'ipt' (did you mean 'itp'?)"),
        (("itp", str(tmp_path / "x.csv"), "-o", str(target)), "No such file"),
        (("itp", f"{source}:estimates=wild", "-o", str(target)), "expected noisy or exact"),
        (("itp", str(source), "-o", str(tmp_path / "o.xls")), "expected a file that ends in .parquet, .csv or .csv.gz"),
        (("itp", str(source), "-o", str(tmp_path / "no" / "o.parquet")), "no such folder"),
        (("itp", str(source), "-o", str(source), "--force"), "the output is the input"),
        (("philly", str(source), "-o", str(target)), "no column 'timestamp'"),
    ):
        assert message in refused(capsys, "workload", "import", *arguments)
    assert "unknown generator 'poison'" in refused(capsys, "workload", "generate", "poison", "-o", str(target))
    assert "headway workload import" in refused(capsys, "workload", "generate", "t.csv", "-o", str(target))
    assert "jobs: expected" in refused(capsys, "workload", "generate", "poisson:jobs=0", "-o", str(target))
    assert "seed: expected" in refused(capsys, "workload", "generate", "poisson", "--seed", "-1", "-o", str(target))
    assert sorted(tmp_path.iterdir()) == before and source.read_text() == ITP


def test_generate_is_the_generators_workload(capsys: Captured, tmp_path: Path) -> None:
    target = tmp_path / "o.parquet"
    found = answer(capsys, "workload", "generate", "philly-like:jobs=50,load=1.0", "--seed", "7", "-o", str(target))
    jobs = load_workload("philly-like:jobs=50,load=1.0", seed=7)
    assert found["sha256"] == jobs.sha256 == load_workload(str(target)).sha256 and found["seed"] == 7


# -- list -------------------------------------------------------------------------------------------------------------
def test_list_finds_files_by_what_is_in_them(capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_DATASETS", str(tmp_path))
    for folder in ("traces", "clusters"):
        (tmp_path / folder).mkdir()
    (tmp_path / "traces" / "some.csv").write_text(ITP)
    (tmp_path / "mine.csv").write_text(SMALL)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "broken.csv.gz").write_bytes(b"\x1f\x8b\x08\xff")
    (tmp_path / "clusters" / "m.csv").write_text("machineId,number of GPUs\nm0,8\n")
    (tmp_path / "clusters" / "quota.csv").write_text("a,b\n1,2\n")
    found = answer(capsys, "workload", "list")
    assert [(entry["file"], entry["format"]) for entry in found["files"]] == [("mine.csv", "generic"), ("some.csv", "itp")]
    assert [(entry["nodes"], entry["gpus"]) for entry in found["clusters"]] == [(1, 8)]
    assert [entry["name"] for entry in found["generators"]] == sorted(GENERATORS)
    poisson = next(entry for entry in found["generators"] if entry["name"] == "poisson")
    assert poisson["params"] == {"jobs": "1000", "load": "0.8", "cluster": "16x8"} and poisson["description"]
    assert {"philly", "itp", "openb", "muri", "tiresias", "generic"} <= {entry["name"] for entry in found["formats"]}
    assert run_command(["workload", "list"]) == 0
    assert "some.csv" in capsys.readouterr().out


def test_every_generator_states_parameters_that_it_takes(capsys: Captured) -> None:
    for entry in answer(capsys, "workload", "list")["generators"]:
        assert entry["params"] and entry["description"]
        quick = {**entry["params"], **{key: "3" for key in ("jobs", "groups") if key in entry["params"]}}
        if entry["name"] != "mlfs-paper-large":
            spec = f"{entry['name']}:{','.join(f'{key}={value}' for key, value in quick.items())}"
            assert len(load_workload(spec)) > 0
