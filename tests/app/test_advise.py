"""`headway advise` on accounting files, and on commands that pretend to be Slurm's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.app import advise
from headway.cli import run_command

SAMPLES = Path(__file__).resolve().parents[1] / "slurm"
HEADER = "JobID|User|Account|Partition|Submit|Start|ElapsedRaw|Timelimit|State|NNodes|ReqTRES|NodeList"
Captured = pytest.CaptureFixture[str]


def job(
    number: int, user: str, submit: int, start: int, run: int, gpus: int, limit: str = "10:00", state: str = "COMPLETED"
) -> str:
    """A row; times in seconds after 1.7e9."""
    times = f"{1_700_000_000 + submit}|{1_700_000_000 + start}|{run}|{limit}"
    return f"{number}|{user}|lab-{user}|gpu|{times}|{state}|1|cpu=1,mem=1G,gres/gpu={gpus}|n1"


# One node of 4 GPUs. Slurm ran them in order of arrival: a long job of alice, then two short ones of bob that waited for it.
THREE = "\n".join(
    [
        HEADER,
        job(1, "alice", 0, 0, 1000, 4, "20:00"),
        job(2, "bob", 10, 1000, 100, 4, "02:00"),
        job(3, "bob", 20, 1100, 100, 4, "02:00"),
    ]
)


@pytest.fixture
def three(tmp_path: Path) -> str:
    path = tmp_path / "three.psv"
    path.write_text(THREE)
    return str(path)


def told(capsys: Captured, *arguments: str) -> dict[str, Any]:
    assert run_command(["advise", *arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: Captured, *arguments: str) -> str:
    assert run_command(["advise", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("headway: ") and err.count("\n") == 1
    return err


def test_what_happened_is_replayed_exactly_where_slurm_went_by_arrival(three: str, capsys: Captured) -> None:
    found = told(capsys, "--file", three, "--nodes", "1x4", "--policy", "fifo-backfill", "--policy", "srtf")
    # waits 0, 990, 1080; completions 1000, 1090, 1180 after submission; 1200 s of 4 GPUs
    recorded = found["recorded"]
    assert recorded["avg_wait_s"] == 690 and recorded["p50_wait_s"] == 990 and recorded["p90_wait_s"] == 1080
    assert recorded["avg_jct_s"] == 1090 and recorded["gpu_hours"] == pytest.approx(4800 / 3600)
    assert found["replay"] == recorded
    assert found["replay_error"] == {
        "p50_abs_wait_error_s": 0,
        "p90_abs_wait_error_s": 0,
        "mean_wait_error_s": 0,
        "mean_jct_ratio": 1,
    }
    # srtf stops alice at 10 s; bob runs 10…110 and 110…210; alice loses 30 s on her restart and ends at 210 + 30 + 990
    srtf = found["policies"]["srtf"]
    assert srtf["avg_wait_s"] == pytest.approx((200 + 0 + 90) / 3) and srtf["preemptions"] == 1
    assert srtf["avg_jct_s"] == pytest.approx((1230 + 100 + 190) / 3)
    assert srtf["change"]["gpu_hours"] == pytest.approx(30 * 4 / 3600)
    assert srtf["change"]["avg_wait_s"] == pytest.approx(290 / 3 - 690)
    assert [(group["name"], group["jobs"]) for group in found["groups"]] == [("alice", 1), ("bob", 2)]
    bob = found["groups"][1]
    assert bob["recorded"]["avg_wait_s"] == 1035 and bob["policies"]["srtf"]["avg_wait_s"] == 45
    assert found["cluster"] == {"name": "1x4", "nodes": 1, "gpus": 4}
    assert found["rows"] == 3 and found["first_submitted_at"] == "2023-11-14T22:13:20+00:00"


@pytest.mark.parametrize(("by", "names"), [("account", ["lab-alice", "lab-bob"]), ("queue", ["gpu"])])
def test_other_groups(by: str, names: list[str], three: str, capsys: Captured) -> None:
    found = told(capsys, "--file", three, "--nodes", "1x4", "-p", "fifo", "--by", by)
    assert [group["name"] for group in found["groups"]] == names
    # the replay that is held against reality does not depend on what is asked
    assert found["replay_policy"] == "fifo-backfill" and list(found["policies"]) == ["fifo"]


def test_jobs_from_before_the_window_take_their_places_only(three: str, capsys: Captured) -> None:
    # 1195 s before the last end: alice ran then already
    found = told(capsys, "--file", three, "--nodes", "1x4", "-p", "fifo-backfill", "--since", "1195s")
    assert found["jobs"] == 2 and found["jobs_replayed"] == 3
    assert found["replay"]["avg_wait_s"] == found["recorded"]["avg_wait_s"] == 1035
    assert any("1 job submitted before the window" in text for text in found["assumptions"])
    assert "since: no job" in refused(capsys, "--file", three, "--nodes", "1x4", "--since", "1s")


def test_jobs_that_waited_when_the_window_opened(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "more.psv"
    path.write_text("\n".join([THREE, job(4, "carol", 700, 1200, 50, 4)]))
    found = told(capsys, "--file", str(path), "--nodes", "1x4", "-p", "fifo-backfill", "--since", "600s")
    # the window opens at 650: alice runs since 0, bob's two wait; carol is the one that is measured
    assert found["jobs"] == 1 and found["jobs_replayed"] == 4
    assert found["replay"]["avg_wait_s"] == found["recorded"]["avg_wait_s"] == 500


def test_jobs_larger_than_the_cluster_are_left_out(three: str, capsys: Captured, tmp_path: Path) -> None:
    path = tmp_path / "more.psv"
    path.write_text("\n".join([THREE, job(4, "carol", 30, 1200, 50, 8)]))
    found = told(capsys, "--file", str(path), "--nodes", "1x4", "-p", "fifo")
    assert found["jobs"] == 3 and any("1 job larger than the cluster left out" in text for text in found["assumptions"])
    assert "no job fits" in refused(capsys, "--file", three, "--nodes", "4x1")


def test_oracles_are_told_the_truth(tmp_path: Path, capsys: Captured) -> None:
    # The limits say that the second is the longer one; in truth it is short.
    path = tmp_path / "liars.psv"
    rows = [job(1, "alice", 0, 0, 100, 4, "20:00"), job(2, "bob", 1, 100, 500, 4, "02:00"), job(3, "bob", 1, 600, 50, 4, "30:00")]
    path.write_text("\n".join([HEADER, *rows]))
    found = told(capsys, "--file", str(path), "--nodes", "1x4", "-p", "srtf", "-p", "oracle-srtf")
    assert found["policies"]["oracle-srtf"]["avg_jct_s"] < found["policies"]["srtf"]["avg_jct_s"]


def test_jobs_that_use_all_cpus_do_not_slow_each_other(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "full.psv"
    path.write_text("\n".join([HEADER, *(job(i, "alice", 0, 0, 1000, 1).replace("cpu=1", "cpu=8") for i in range(1, 5))]))
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("n1|gpu|32|64000|gpu:4|idle|(null)\n")
    found = told(capsys, "--file", str(path), "--nodes", str(nodes), "-p", "fifo")
    assert found["replay"] == found["recorded"] and found["recorded"]["avg_jct_s"] == 1000


def test_a_real_slurms_history(capsys: Captured) -> None:
    nodes = str(SAMPLES / "sinfo.txt")
    found = told(capsys, "--file", str(SAMPLES / "sample.psv"), "--nodes", nodes, "-p", "fifo-backfill", "-p", "srtf")
    assert found["jobs"] == 35 and found["merged"] == 1 and found["ignored"] == {"job step": 36}
    # by hand: the sum of Elapsed times GPUs over the 36 allocations is 447 GPU·s
    assert found["recorded"]["gpu_hours"] == pytest.approx(447 / 3600)
    assert found["replay_error"]["p50_abs_wait_error_s"] <= 5


def test_tables_for_people(three: str, capsys: Captured) -> None:
    assert run_command(["advise", "--file", three, "--nodes", "1x4", "-p", "srtf"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "3 jobs submitted from 2023-11-14T22:13:20+00:00" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["what", "happened", "11.5m", "16.5m", "18.0m", "18.2m", "1.33", "0"] in lines
    assert ["fifo-backfill", "(replay)", "11.5m", "16.5m", "18.0m", "18.2m", "1.33", "0"] in lines
    assert ["srtf", "96.7s", "90.0s", "3.3m", "8.4m", "1.37", "1", "−9.9m", "−9.7m", "+0.03"] in lines
    assert "user bob, 2 jobs: what happened" in out and "- the estimate of a job is its time limit" in out


def test_the_rows_that_were_dropped_are_told(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "odd.psv"
    path.write_text("\n".join([THREE, job(9, "carol", 0, 10, 0, 1)]))
    assert run_command(["advise", "--file", str(path), "--nodes", "1x4", "-p", "fifo", "--json"]) == 0
    assert "dropped 1 row that cannot be jobs (1 zero duration)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected either --slurm or --file FILE, got neither"),
        (["--slurm", "--file", "FILE"], "got both"),
        (["--file", "FILE", "--policy", "sjff"], "policy"),
        (["--file", "FILE", "--by", "team"], "by: expected user, account or queue"),
        (["--file", "FILE", "--since", "week"], "since: expected a duration"),
        (["--file", "FILE", "--since", "0"], "since: expected a duration above 0"),
        (["--file", "FILE", "--nodes", "4by4"], "unknown cluster '4by4'"),
        (["--file", "FILE", "--nodes", "FILE"], "three.psv:1: expected cpus"),
        (["--file", "FILE", "--queue", "cluster"], "queue: expected partition"),
        (["--file", "FILE", "--tz", "Mars"], "tz: expected a time zone"),
        (["--file", "FILE", "--seed", "-1"], "seed"),
        (["--file", "FILE", "--restart-cost", "-1"], "restart-cost"),
        (["--file", "nowhere.psv"], "nowhere.psv: cannot be read"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, three: str, capsys: Captured) -> None:
    assert message in refused(capsys, *(three if text == "FILE" else text for text in arguments))


def test_a_file_without_submissions_is_refused(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "none.psv"
    path.write_text(THREE.replace("Submit", "Reserved"))
    assert "no column 'Submit'; found" in refused(capsys, "--file", str(path), "--nodes", "1x4")


# -- a Slurm that is pretended ------------------------------------------------------------------------------------
def pretend(folder: Path, patch: pytest.MonkeyPatch, **commands: str) -> None:
    """Put commands of these scripts where Slurm's would be found, and nothing else."""
    for name, script in commands.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    patch.setenv("PATH", str(folder))


def echo(text: str) -> str:
    return "".join(f"echo '{line}'\n" for line in text.splitlines())


NODES = echo("n1|gpu*|8|64000|gpu:4|idle|(null)")


def test_a_live_cluster_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    config = echo(
        "SchedulerType           = sched/builtin\nPriorityType            = priority/multifactor\nPreemptType = preempt/none"
    )
    monkeypatch.setenv("SACCT_FORMAT", "JobID")
    monkeypatch.setattr(advise.source.time, "time", lambda: 1_700_002_000.0)
    asked = 'echo "$*" > asked; [ "$SLURM_TIME_FORMAT" = %s ] && [ -z "$SACCT_FORMAT" ] || exit 3\n'
    pretend(tmp_path, monkeypatch, sinfo=NODES, sacct=asked + echo(THREE), scontrol=config)
    monkeypatch.chdir(tmp_path)
    found = told(capsys, "--slurm", "--since", "1h", "-p", "srtf")
    assert "--starttime=now-3600 --endtime=now" in (tmp_path / "asked").read_text()
    assert found["source"] == "sacct" and found["cluster"] == {"name": "sinfo", "nodes": 1, "gpus": 4}
    assert found["replay_policy"] == "fifo" and found["replay"] == found["recorded"]
    assert found["assumptions"][0].startswith("Slurm (sched/builtin, priority/multifactor) is replayed in order of arrival")


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ({}, "no command 'sinfo' here"),
        ({"sinfo": "echo 'Unable to contact slurm controller' >&2; exit 1"}, "sinfo: Unable to contact"),
        ({"sinfo": NODES}, "no command 'sacct' here"),
        ({"sinfo": NODES, "sacct": "echo 'Slurm accounting storage is disabled' >&2; exit 1"}, "sacct: Slurm accounting"),
        ({"sinfo": NODES, "sacct": "exit 4"}, "sacct: failed with exit code 4"),
        ({"sinfo": NODES, "sacct": echo(HEADER)}, "sacct: the accounting shows no job"),
    ],
)  # fmt: skip
def test_a_slurm_that_cannot_be_asked(
    commands: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    pretend(tmp_path, monkeypatch, **commands)
    assert message in refused(capsys, "--slurm")


def test_a_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    pretend(tmp_path, monkeypatch, sinfo="exec /bin/sleep 30")
    monkeypatch.setattr(advise.source, "PATIENCE_S", 0.1)
    assert "sinfo: no answer within 0 s" in refused(capsys, "--slurm")


def test_nobody_asks_for_nothing() -> None:
    from headway.core.errors import UserError

    with pytest.raises(UserError, match="policy"):
        advise.prepare(advise.AdviseRequest(file=SAMPLES / "sample.psv", policies=()))
