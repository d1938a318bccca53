"""Two real controllers on one home or database: the second takes over when the first is killed or stands still, and one that
wakes can do nothing more."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.conftest import postgres  # noqa: F401
from tests.runtime.postgres import Postgres

from .conftest import Cluster, until

pytestmark = [pytest.mark.live, pytest.mark.slow]
WAITS = "while ! test -e {gate}; do sleep 0.05; done"
TAKEOVER_S = 10.0


def standby(cluster: Cluster) -> subprocess.Popen[str]:
    """A second controller, which waits."""
    before = cluster.errors().count("standing by") if (cluster.root / "up.err").exists() else 0
    started = cluster.start_up("--round", "0.2", "--nodes", "1x2", "--standby", "--lease", "1s")
    until(lambda: cluster.errors().count("standing by") > before, "it stands by")
    return started


def ready(started: subprocess.Popen[str]) -> dict[str, Any]:
    """What a controller says when it listens."""
    assert started.stdout is not None
    line = started.stdout.readline()
    assert line, "it has ended"
    found: dict[str, Any] = json.loads(line)
    return found


def job_that_waits(cluster: Cluster) -> Path:
    gate = cluster.scratch / "gate"
    cluster.run("submit", "--name", "j", "--", "sh", "-c", WAITS.format(gate=gate))
    until(lambda: cluster.job("j-1")["state"] == "running", "the job runs")
    return gate


def takes_over(cluster: Cluster, second: subprocess.Popen[str], begin: float) -> None:
    """Wait until the second controller leads, which takes at most `TAKEOVER_S` from `begin` (monotonic)."""
    first, cluster.ready = cluster.ready, ready(second)
    assert time.monotonic() - begin <= TAKEOVER_S
    assert cluster.ready["epoch"] == first["epoch"] + 1 and cluster.ready["live_jobs"] == 1
    assert cluster.job("j-1")["state"] == "running" and cluster.job("j-1")["attempt"] == 1


def finish(cluster: Cluster, gate: Path) -> None:
    gate.touch()
    until(lambda: cluster.job("j-1")["state"] == "completed", "the job ends")
    assert cluster.job("j-1")["attempt"] == 1
    assert cluster.run("submit", "--wait", "--name", "k", "--", "true").stdout.startswith("k-1: completed")


def test_a_standby_takes_over_when_the_controller_is_killed(cluster: Cluster) -> None:
    first = cluster.up("--nodes", "1x2", "--lease", "1s")
    second = standby(cluster)
    gate = job_that_waits(cluster)
    begin = time.monotonic()
    cluster.end(first, signal.SIGKILL)
    takes_over(cluster, second, begin)
    finish(cluster, gate)
    assert cluster.end(second) == 0


def test_a_standby_takes_over_at_once_when_the_controller_is_stopped(cluster: Cluster) -> None:
    first = cluster.up("--nodes", "1x2")
    second = standby(cluster)
    assert cluster.end(first) == 0
    assert ready(second)["epoch"] == 2
    assert cluster.end(second) == 0


def one_that_is_paused_is_replaced(cluster: Cluster) -> None:
    first = cluster.up("--nodes", "1x2", "--lease", "1s")
    second = standby(cluster)
    gate = job_that_waits(cluster)
    begin = time.monotonic()
    first.send_signal(signal.SIGSTOP)
    takes_over(cluster, second, begin)
    assert json.loads((cluster.home / "controller.json").read_text())["pid"] == second.pid
    first.send_signal(signal.SIGCONT)
    assert first.wait(30) == 2
    (line,) = [line for line in cluster.errors().splitlines() if "has taken over" in line]
    assert line.startswith("headway: stopped: another controller (process ") and "with epoch 2; this one had 1" in line
    assert json.loads((cluster.home / "controller.json").read_text())["pid"] == second.pid
    refused = cluster.run("up", code=2)
    assert "another controller runs on the home" in refused.stderr and cluster.ready["url"] in refused.stderr
    finish(cluster, gate)
    assert cluster.end(second) == 0


def test_a_controller_that_was_paused_and_wakes_can_do_nothing(cluster: Cluster) -> None:
    one_that_is_paused_is_replaced(cluster)


def test_the_same_on_postgresql_and_its_backup_goes_on_in_a_file(cluster: Cluster, postgres: Postgres, tmp_path: Path) -> None:  # noqa: F811
    url = postgres.database().set(drivername="postgresql").render_as_string(hide_password=False)
    cluster.environment["HEADWAY_JOURNAL"] = url
    one_that_is_paused_is_replaced(cluster)
    assert not (cluster.home / "journal.db").exists()
    told = cluster.json("backup", str(tmp_path / "b.db"))
    assert told["events"] > 10 and told["epoch"] == 2
    del cluster.environment["HEADWAY_JOURNAL"]
    cluster.environment["HEADWAY_HOME"] = str(tmp_path / "other")
    assert "go on with: headway up" in cluster.run("restore", str(tmp_path / "b.db")).stdout
    cluster.up("--nodes", "1x2")
    assert cluster.ready["epoch"] == 3
    assert cluster.job("j-1")["state"] == "completed"
    refused = cluster.run("restore", str(tmp_path / "b.db"), code=2)
    assert "empty home only" in refused.stderr
