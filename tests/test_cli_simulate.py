"""The command line of the simulator: what a person sees, and the exit code."""

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from headway import __version__, cli
from headway.app import simulate as use_case
from headway.cli import run_command

SMALL = ["simulate", "--workload", "poisson:jobs=40,cluster=1x8", "--cluster", "1x8", "--policy", "fifo"]
HEADER = b"timestamp,duration,num_gpus,gpu_time,cluster\n"
ROW = b"2017-10-09 06:13:03,2951.0,1,2951.0,6214e9\n"

Captured = pytest.CaptureFixture[str]


def test_json_is_one_object_and_nothing_else(capsys: Captured) -> None:
    assert run_command([*SMALL, "--policy", "las", "--seed", "3", "--json"]) == 0
    out, err = capsys.readouterr()
    entries = json.loads(out)["results"]
    assert [(entry["policy"], entry["seed"], entry["jobs"]) for entry in entries] == [("fifo", 3, 40), ("las", 3, 40)]
    assert err == ""


def test_a_table_for_people(capsys: Captured) -> None:
    assert run_command(SMALL) == 0
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert lines[1][:4] == ["policy", "jobs", "JCT", "JCT"] and lines[3][:2] == ["fifo", "40"]
    assert err == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.0s"),
        (119.94, "119.9s"),
        (120.0, "2.0m"),
        (7200.0, "2.0h"),
        (172_800.0, "2.0d"),
        (1e8, "1,157.4d"),
    ],
)
def test_times_for_people(seconds: float | None, text: str) -> None:
    assert cli._time(seconds) == text


def test_policies_are_listed(capsys: Captured) -> None:
    assert run_command(["policies"]) == 0
    out = capsys.readouterr().out
    assert "tiresias" in out and "queues=2" in out
    assert run_command(["policies", "--json"]) == 0
    assert "fifo" in [entry["name"] for entry in json.loads(capsys.readouterr().out)["policies"]]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_is_shown_without_arguments(arguments: list[str], capsys: Captured) -> None:
    assert run_command(arguments) == 0
    out, err = capsys.readouterr()
    assert "simulate" in out and "policies" in out and err == ""


def test_every_command_and_option_has_help(capsys: Captured) -> None:
    assert run_command(["simulate", "--help"]) == 0
    out = capsys.readouterr().out
    for option in ("workload", "cluster", "policy", "seed", "load", "round", "window", "filter", "save-cost", "restart-cost"):
        assert f"--{option}" in out
    for option in ("estimate-scale", "liars", "checkpoint-every", "no-skip", "journal", "json"):
        assert f"--{option}" in out


def test_the_version(capsys: Captured) -> None:
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out == f"headway {__version__}\n"


FILES = {
    "empty.csv": b"",
    "binary.csv": bytes(range(256)) * 4,
    "cut.csv.gz": gzip.compress(HEADER + ROW * 100)[:-20],
    "header.csv": b"job,start\n1,2\n",
    "nan.csv": HEADER + ROW.replace(b"2951.0,1", b"nan,1"),
    "unknown.yaml": b"nodes:\n  - {count: 2, gpu: 8}\n",
    "none.yaml": b"nodes: []\n",
    "empty.yaml": b"",
    "binary.yaml": bytes(range(256)),
}


def changed(option: str, value: str) -> list[str]:
    line = list(SMALL)
    line[line.index(option) + 1] = value
    return line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (changed("--workload", "missing.csv.gz"), "missing.csv.gz: no such file"),
        (changed("--workload", "empty.csv"), "empty.csv: the file is empty"),
        (changed("--workload", "binary.csv"), "binary.csv: not a text file"),
        (changed("--workload", "cut.csv.gz"), "cut.csv.gz: the gzip file is cut off"),
        (changed("--workload", "header.csv"), "header.csv:1: no column 'submit_s', nor the columns of another format"),
        (changed("--workload", "nan.csv"), "nan.csv:2: duration: no row is a job; the first: expected seconds above 0"),
        (changed("--workload", "."), ".: cannot be read: Is a directory"),
        (changed("--workload", "posson:jobs=3"), "unknown workload 'posson' (did you mean 'poisson'?)"),
        (changed("--workload", "poisson:job=3"), "workload poisson: job: unknown parameter (did you mean 'jobs'?)"),
        (changed("--workload", "poisson:load=nan"), "workload poisson: load: expected a number"),
        (changed("--workload", "poisson:jobs=-3"), "workload poisson: jobs: expected a whole number"),
        (changed("--policy", "fifoo"), "unknown policy 'fifoo' (did you mean 'fifo'?)"),
        (changed("--policy", "tiresias:queus=3"), "did you mean 'queues'?"),
        (changed("--policy", "tiresias:queues=nan"), "queues"),
        (changed("--policy", "tiresias:threshold=nan"), "threshold"),
        (changed("--policy", "las:quantum=-5"), "quantum"),
        (changed("--policy", "fifo:"), "expected key=value"),
        (changed("--policy", ""), "expected a policy NAME[:key=value,…]"),
        (changed("--cluster", "phily"), "unknown cluster 'phily' (did you mean 'philly'?)"),
        (changed("--cluster", "0x8"), "cluster 0x8: expected 1 to 131072 nodes, got 0"),
        (changed("--cluster", "missing.yaml"), "missing.yaml: cannot be read: No such file or directory"),
        (changed("--cluster", "unknown.yaml"), "unknown.yaml:2: nodes[0].gpu: unknown key (did you mean 'gpus'?)"),
        (changed("--cluster", "none.yaml"), "none.yaml:1: nodes: expected at least one node, got none"),
        (changed("--cluster", "empty.yaml"), "empty.yaml: expected a cluster, got an empty file"),
        (changed("--cluster", "binary.yaml"), "binary.yaml:2: not text in UTF-8"),
        ([*SMALL, "--load", "nan"], "load: expected a number"),
        ([*SMALL, "--load", "-0.5"], "load: expected a number"),
        ([*SMALL, "--round", "-1"], "round: expected a duration"),
        ([*SMALL, "--seed", "nan"], "Invalid value for '--seed'"),
        ([*SMALL, "--seed", "-1"], "seed: expected a whole number"),
        ([*SMALL, "--window", "9d..8d"], "window: expected START before END"),
        ([*SMALL, "--window", "900d..901d"], "window: no job is submitted between"),
        ([*SMALL, "--filter", "queu=x"], "filter: cannot filter by"),
        ([*SMALL, "--journal", "no/folder/j"], "no/folder/j: journal: cannot be written: no such folder"),
        ([*SMALL, "--journal", "."], "journal: is a folder"),
        ([*SMALL, "--policy", "las", "--journal", "j"], "journal: a journal holds one run"),
        ([*SMALL, "--lod", "1"], "No such option: --lod"),
        (SMALL[:5], "Missing option '--policy'"),
        (["simulat"], "No such command 'simulat'. Did you mean 'simulate'?"),
        ([*SMALL, "extra"], "Got unexpected extra argument"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2_and_writes_nothing(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    journal = (
        [] if "--journal" in arguments or arguments[:1] != ["simulate"] or "extra" in arguments else ["--journal", "run.journal"]
    )
    assert run_command([*arguments, *journal]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("headway: ") and message in err and err.count("\n") == 1 and err.endswith("\n")
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)


def test_a_bad_row_is_told_and_the_rest_runs(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(HEADER + ROW + ROW.replace(b",1,", b",0,"))
    assert run_command([*changed("--workload", str(path)), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][0]["jobs"] == 1
    assert err.startswith(f"headway: {path}: dropped 1 row that cannot be jobs (1 bad num_gpus); the first: {path}:3: num_gpus: ")
    assert err.count("\n") == 1


def test_an_interrupt_is_130(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(use_case, "prepare", interrupt)
    assert run_command(SMALL) == 130
    assert capsys.readouterr() == ("", "")


def test_datasets_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "t.csv").write_bytes(HEADER + ROW)
    monkeypatch.setenv("HEADWAY_DATASETS", str(tmp_path))
    assert run_command([*changed("--workload", "t.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["workload"] == "t.csv"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_fits_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {
        "policy": "fifo-backfill",
        "jobs": 72_294,
        "finished": 72_294,
        "preemptions": 123_456,
        "cpu_s": 1.5,
        "gpu_busy_frac": 0.991,
    }
    entry |= dict.fromkeys(("avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "avg_wait_s"), 119.94)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    cli._print_results([entry])
    assert "…" not in terminal.getvalue() and "fifo-backfill" in terminal.getvalue() and "48,196" in terminal.getvalue()
    assert max(len(line.rstrip()) for line in terminal.getvalue().splitlines()) <= 80


def test_a_terminal_sees_progress_and_the_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(use_case, "compiles_first", lambda: True)
    assert run_command([*SMALL, "--json"]) == 0
    assert "headway: compiling once; later runs start at once\n" in terminal.getvalue()
    assert "fifo" in terminal.getvalue()
