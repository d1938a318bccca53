"""A controller in the background, and commands that stay with their jobs, as people type them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import Cluster, until

pytestmark = pytest.mark.live
WAITS = "until [ -e '{gate}' ]; do sleep 0.02; done"


def test_a_controller_in_the_background_comes_and_goes(cluster: Cluster) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = cluster.run("up", "--detach", "--port", str(taken.getsockname()[1]), code=2)
    assert "port" in refused.stderr and not (cluster.home / "controller.json").exists()
    try:
        ready = cluster.json("up", "--detach", "--nodes", "1x2", "--round", "0.2")
        cluster.ready = ready
        log = Path(ready["log"])
        assert log.parent == cluster.home and log.stat().st_mode & 0o777 == 0o600
        again = cluster.run("up", "--detach", code=2)
        assert "another controller runs on the home" in again.stderr
        gate = cluster.scratch / "gate"
        cluster.run("submit", "--name", "a", "--", "sh", "-c", WAITS.format(gate=gate))
        cluster.run("submit", "--name", "big", "--gpus", "2", "--", "true")
        until(lambda: cluster.job("a-1")["state"] == "running", "the job runs")
        assert cluster.json("top")["running"][0]["job"] == "a-1"
        stopped = cluster.run("down", "--wait")
        assert stopped.stdout == "stopped: 1 job goes on running, 1 job waits; go on with: headway up\n"
        assert "start one with: headway up" in cluster.run("queue", code=2).stderr
        assert "2 jobs left" in log.read_text()
        cluster.ready = cluster.json("up", "--detach", "--nodes", "1x2", "--round", "0.2")
        assert cluster.ready["live_jobs"] == 2
        gate.touch()
        until(lambda: cluster.job("big-1")["state"] == "completed", "both jobs end")
        assert cluster.run("down", "--wait").stdout == "stopped: no jobs left\n"
    finally:
        address = cluster.home / "controller.json"
        if address.exists():
            os.kill(json.loads(address.read_text())["pid"], signal.SIGTERM)


def start(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """A command that can be interrupted, also where the tests themselves run in the background, which ignores SIGINT."""
    return subprocess.Popen(
        ["env", "--default-signal=INT", sys.executable, "-m", "headway.cli", *arguments],
        env=cluster.environment,
        cwd=cluster.scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_run_ends_as_its_job_does(cluster: Cluster) -> None:
    cluster.up("--nodes", "1x2")
    done = cluster.run("run", "--name", "a", "--", "sh", "-c", "echo out; echo err >&2; exit 0")
    assert done.stdout == "out\nerr\n" and "a-1: completed" in done.stderr
    (cluster.scratch / "killed.yaml").write_text("run: kill -USR1 $$\nretry: {max: 0}\n")
    assert "killed-1: failed (exit code 138)" in cluster.run("run", "killed.yaml", code=138).stderr
    (cluster.scratch / "none.yaml").write_text("run: exec no-such-program\nretry: {max: 0}\n")
    assert "no-such-program" in cluster.run("run", "none.yaml", code=127).stdout
    (cluster.scratch / "slow.yaml").write_text("run: sleep 60\ntime_limit: 1s\nretry: {max: 0}\n")
    cluster.run("run", "slow.yaml", code=124)
    running = start(cluster, "run", "--name", "long", "--", "sh", "-c", "echo begun; exec sleep 60")
    assert running.stdout is not None and running.stdout.readline() == "begun\n"
    time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, "") and "long-1: cancelled" in err
    assert cluster.job("long-1")["state"] == "cancelled"


def test_jobs_are_held_changed_and_sent_back(cluster: Cluster) -> None:
    cluster.up("--nodes", "1x1")
    gate, marks = cluster.scratch / "gate", cluster.scratch / "marks"
    assert cluster.run("submit", "--hold", "--name", "a", "--", "true").stdout == "a-1\n"
    held = cluster.json("show", "a-1")
    if held["state"] == "queued":  # it may have started before it was held: the two are two requests
        assert held["held"] is True
        assert "held-by-user" in cluster.run("queue").stdout
        assert cluster.json("update", "a-1", "--priority", "90", "--deadline", "2h")["priority"] == 90
    cluster.run("release", "--all")
    until(lambda: cluster.job("a-1")["state"] == "completed", "the released job ends")
    run = f"echo started >> '{marks}'; {WAITS.format(gate=gate)}"
    cluster.run("submit", "--name", "b", "--", "sh", "-c", run)
    until(lambda: cluster.job("b-1")["state"] == "running", "the job runs")
    cluster.run("requeue", "b-*")
    until(lambda: cluster.job("b-1")["attempt"] == 2 and cluster.job("b-1")["state"] == "running", "its second attempt")
    gate.touch()
    until(lambda: cluster.job("b-1")["state"] == "completed", "the job ends")
    kinds = [json.loads(line)["kind"] for line in cluster.run("events", "--json", "--job", "b-1").stdout.splitlines()]
    assert kinds.count("started") == 2 and kinds[-1] == "completed"


def test_each_user_sees_only_what_is_his(cluster: Cluster) -> None:
    made = cluster.run("token", "create", "ann").stdout.strip()
    cluster.up("--nodes", "1x1")
    owner = cluster.run("submit", "--name", "mine", "--", "true").stdout.strip()
    cluster.environment["HEADWAY_TOKEN"] = made
    cluster.environment["HEADWAY_URL"] = cluster.ready["url"]
    assert "there is no job" in cluster.run("show", owner, code=2).stderr
    assert "there is no job" in cluster.run("cancel", owner, code=2).stderr
    assert cluster.json("queue", "--all")["jobs"] == []
    assert "for an admin" in cluster.run("token", "list", code=2).stderr
    assert "for an admin" in cluster.run("down", code=2).stderr
