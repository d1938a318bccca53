"""The commands as people type them, against a real `headway up` that is stopped, killed and started again."""

from __future__ import annotations

import http.server
import json
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import cli_output
from headway.cli import run_command

from .conftest import Cluster, until

pytestmark = pytest.mark.live
WAITS = "until [ -e '{gate}' ]; do sleep 0.02; done"


class Here:
    """The command line in this process, with a home in which nothing runs."""

    def __init__(self, home: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.set, self._capsys = home, patch.setenv, capsys

    def refusal(self, *arguments: str) -> str:
        """The one line with which a command refuses."""
        assert run_command(list(arguments)) == 2
        said = self._capsys.readouterr()
        assert said.out == "" and said.err.startswith("headway: ") and said.err.count("\n") == 1, said
        return said.err.strip()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    for name in ("HEADWAY_URL", "HEADWAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Here(tmp_path / "home", monkeypatch, capsys)


def state_of(cluster: Cluster, job: str) -> str:
    return str(cluster.job(job)["state"])


def test_from_the_first_command_to_the_last(cluster: Cluster) -> None:
    controller = cluster.up("--nodes", "2x2")
    assert cluster.ready["nodes"] == 2 and cluster.ready["slots"] == 4 and cluster.ready["policy"] == "fifo"
    assert Path(cluster.ready["token_file"]).stat().st_mode & 0o777 == 0o600
    assert json.loads((cluster.home / "controller.json").read_text())["url"] == cluster.ready["url"]
    (cluster.scratch / "gang.yaml").write_text(
        'name: gäng\nrun: echo "rank $RANK of $WORLD_SIZE in $PWD with $A"\n'
        'workdir: sub\nenv: {A: "1 2"}\nparallelism: {data: 2}\n'
    )
    (cluster.scratch / "sub").mkdir()
    answer = cluster.json("submit", "gang.yaml", "--wait")
    assert (answer["job"], answer["state"], answer["exit_code"], answer["created"]) == ("gäng-1", "completed", 0, True)
    assert cluster.run("logs", "gäng-1", "--rank", "1").stdout == f"rank 1 of 2 in {cluster.scratch / 'sub'} with 1 2\n"
    gate = cluster.scratch / "gate"
    for name, run in (("hold", f"echo held; {WAITS.format(gate=gate)}; echo done"), ("next", "true")):
        assert (
            cluster.run("submit", "--name", name, "--gpus", "2", "--workers", "2", "--", "sh", "-c", run).stdout == f"{name}-1\n"
        )
    until(lambda: state_of(cluster, "hold-1") == "running", "the job runs")
    lines = cluster.run("queue").stdout.splitlines()
    assert lines[0].split() == ["JOBID", "NAME", "QUEUE", "USER", "ST", "TIME", "GPUS", "NODES(REASON)"]
    assert lines[1].split()[0::2] == ["hold-1", "default", "R", "4"] and lines[1].split()[-1] == "n0,n1"
    assert lines[2].split()[4] == "PD" and lines[2].split()[-1] == "(no-room)"
    assert [job["job"] for job in cluster.json("queue", "--all", "--state", "completed")["jobs"]] == ["gäng-1"]
    shown = cluster.run("show", "hold-1").stdout
    lines = {tuple(line.split(maxsplit=1)) for line in shown.splitlines()}
    assert {("state", "running"), ("nodes", "n0, n1")} <= lines
    gate.touch()
    assert cluster.run("logs", "-f", "hold-1").stdout == "held\ndone\n"
    assert cluster.run("cancel", "hold-1", "next-1").stdout.count("\n") == 2
    assert cluster.end(controller) == 0
    assert "stopped" in cluster.errors() and not (cluster.home / "controller.json").exists()


def test_a_killed_controller_that_is_started_again_goes_on_with_the_same_jobs(cluster: Cluster) -> None:
    controller = cluster.up("--nodes", "1x2")
    gates = [cluster.scratch / f"gate{i}" for i in range(2)]
    marks = cluster.scratch / "marks"
    for i, gate in enumerate(gates):
        run = f"echo started{i} >> '{marks}'; {WAITS.format(gate=gate)}; echo ended{i} >> '{marks}'; exit {5 * i}"
        cluster.run("submit", "--name", f"j{i}", "--", "sh", "-c", run)
    cluster.run("submit", "--name", "queued", "--gpus", "2", "--", "sh", "-c", f"echo queued >> '{marks}'")
    until(lambda: marks.exists() and len(marks.read_text().split()) == 2, "both jobs run")
    assert cluster.end(controller, signal.SIGKILL) == -signal.SIGKILL
    assert cluster.run("queue", code=2).stderr.strip().endswith("start one with: headway up")
    gates[0].touch()
    until(lambda: "ended0" in marks.read_text(), "a job ends while no controller runs")
    cluster.up("--nodes", "1x2")
    assert cluster.ready["epoch"] == 2 and cluster.ready["live_jobs"] == 2, "one job's end was taken in at the start"
    assert (state_of(cluster, "j0-1"), state_of(cluster, "j1-1"), state_of(cluster, "queued-1")) == (
        "completed",
        "running",
        "queued",
    )
    assert cluster.job("j1-1")["attempt"] == 1
    gates[1].touch()
    until(lambda: "queued" in marks.read_text(), "the queued job runs")
    until(lambda: state_of(cluster, "queued-1") == "completed", "the queued job ends")
    assert sorted(marks.read_text().split()) == ["ended0", "ended1", "queued", "started0", "started1"]
    failed = cluster.job("j1-1")
    assert (failed["state"], failed["exit_code"], failed["attempt"]) == ("queued", 5, 1), "it will be tried again"


def test_jobs_outlive_a_controller_that_is_stopped(cluster: Cluster) -> None:
    controller = cluster.up("--nodes", "1x1")
    gate = cluster.scratch / "gate"
    cluster.run("submit", "--name", "j", "--", "sh", "-c", WAITS.format(gate=gate))
    until(lambda: state_of(cluster, "j-1") == "running", "the job runs")
    assert cluster.end(controller, signal.SIGINT) == 0
    assert "1 job left, and what runs goes on running" in cluster.errors()
    cluster.up("--nodes", "1x1")
    gate.touch()
    until(lambda: state_of(cluster, "j-1") == "completed", "the job ends")
    assert cluster.json("show", "j-1")["attempt"] == 1


def test_a_journal_with_a_damaged_end_is_survived_and_said(cluster: Cluster) -> None:
    controller = cluster.up("--nodes", "1x1")
    cluster.run("submit", "--wait", "--name", "j", "--", "true")
    cluster.end(controller, signal.SIGKILL)
    with sqlite3.connect(cluster.home / "journal.db") as db:
        db.execute("UPDATE segments SET body = substr(body, 1, 40) WHERE seq = (SELECT max(seq) FROM segments)")
    db.close()
    cluster.up("--nodes", "1x1")
    (note,) = cluster.ready["notes"]
    assert "the journal is damaged after" in note and "journal.db.damaged-1" in note
    until(lambda: state_of(cluster, "j-1") == "completed", "the job whose end was lost ends")


def test_a_second_controller_on_the_same_home_is_refused(cluster: Cluster) -> None:
    cluster.up("--nodes", "1x1")
    refused = cluster.run("up", code=2)
    assert "another controller runs on the home" in refused.stderr and cluster.ready["url"] in refused.stderr
    told = cluster.ask("/v1/jobs")
    assert told.pop("policy")["in_charge"] == "policy" and told == {"jobs": [], "more": 0, "next": ""}


def test_waiting_for_a_job_tells_how_it_ended(cluster: Cluster) -> None:
    cluster.up("--nodes", "1x1")
    (cluster.scratch / "fails.yaml").write_text("run: exit 3\nretry: {max: 0}\n")
    failed = cluster.run("submit", "--wait", "fails.yaml", code=1)
    assert failed.stdout == "fails-1: failed (exit code 3)\n" and "waiting" in failed.stderr
    assert cluster.run("submit", "--wait", "--", "true").stdout == "true-1: completed after 0:00\n"
    big = cluster.run("submit", "--gpus", "2", "--", "true", code=2)
    assert "true-2 is rejected: larger than the cluster: it needs 1 worker of 2 GPU" in big.stderr
    assert cluster.json("submit", "--gpus", "2", "--", "true", code=2)["reason"] == "larger-than-cluster"
    for _ in range(2):
        assert cluster.run("submit", "--id", "mine", "--", "true").stdout == "mine\n"
    assert "belongs to another job" in cluster.run("submit", "--id", "mine", "--", "false", code=2).stderr
    assert "there is no job" in cluster.run("cancel", "mine", "nobody", code=2).stderr
    assert "there is no job" in cluster.run("logs", "nobody", code=2).stderr
    cluster.environment["HEADWAY_TOKEN"] = "wrong"
    assert "refuses the token" in cluster.run("queue", code=2).stderr
    assert "refuses the token" in cluster.run("logs", "mine", code=2).stderr


@pytest.mark.parametrize("command", [["queue"], ["show", "j-1"], ["logs", "j-1"], ["cancel", "j-1"], ["submit", "--", "true"]])
def test_without_a_controller_a_hint_says_how_to_start_one(command: list[str], here: Here) -> None:
    assert here.refusal(*command).endswith("start one with: headway up")
    here.set("HEADWAY_URL", "http://127.0.0.1:9")
    assert here.refusal(*command).endswith("start one with: headway up")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["up", "--nodes", "0x2"], "nodes: expected 1 to"),
        (["up", "--nodes", "2x65"], "nodes: expected 1 to"),
        (["up", "--nodes", "two"], "nodes: expected NODESxSLOTS"),
        (["up", "--policy", "fifa"], "did you mean 'fifo'"),
        (["up", "--policy", "oracle-srtf"], "simulation only"),
        (["up", "--port", "70000"], "port: expected"),
        (["up", "--round", "nan"], "round: "),
        (["up", "--round", "0"], "round: expected an interval"),
        (["submit"], "expected a job file"),
        (["submit", "--"], "run: expected a command"),
        (["submit", "--gpus", "-1", "--", "true"], "resources.gpu"),
        (["submit", "missing.yaml"], "missing.yaml: can't read"),
        (["submit", "missing.yaml", "--", "true"], "not both"),
        (["submit", "--gpus", "1", "missing.yaml"], "--gpus: belongs to a command"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(arguments: list[str], text: str, here: Here) -> None:
    assert text in here.refusal(*arguments)
    assert not here.home.exists()


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0:00"), (61, "1:01"), (3600, "1:00:00"), (90_061, "1-01:01:01")])
def test_times_are_written_as_squeue_does(seconds: float, text: str) -> None:
    assert cli_output.duration(seconds) == text


def test_columns_are_as_wide_as_they_look(capsys: pytest.CaptureFixture[str]) -> None:
    cli_output.print_columns(("NAME", "GPUS", "WHY"), [("训练", "1", "a b"), ("x" * 99, "10", "\x1b[31m")], numbers=("GPUS",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "训练" + " " * 28 + "     1  a b"
    assert lines[2] == "x" * 31 + "…" + "    10  \\x1b[31m"


@pytest.fixture
def stranger() -> Iterator[str]:
    """Some other web server."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>hello</h1>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_another_server_is_not_taken_for_a_controller(stranger: str, here: Here) -> None:
    here.set("HEADWAY_URL", stranger)
    here.set("HEADWAY_TOKEN", "x")
    assert "is no Headway controller" in here.refusal("queue")
    here.set("HEADWAY_URL", "nonsense")
    assert "HEADWAY_URL: expected a URL" in here.refusal("queue")
