"""Agents and controllers of a real cluster are killed at random while real jobs run: all finish, none twice at once."""

from __future__ import annotations

import json
import random
import signal
import time

import pytest

from headway.engines import proc

from .conftest import Cluster, until

pytestmark = [pytest.mark.live, pytest.mark.slow]
STEPS = 60
JOBS = 6
JOB = """
exec 9>"$1.lock"; flock -n 9 || { echo twice >> "$1.twice"; exit 9; }
n=$(cat "$1" 2>/dev/null || echo 0); echo "$n" >> "$1.starts"
while [ "$n" -lt STEPS ]; do n=$((n+1)); echo "$n" > "$1.new"; mv "$1.new" "$1"; sleep 0.05; done
"""


def agents(cluster: Cluster) -> list[proc.Process]:
    cards = [json.loads(path.read_text()) for path in cluster.home.glob("engine/nodes/*/agent.json")]
    found = [proc.lives(card["pid"], card["start_ticks"]) for card in cards]
    return [one for one in found if one is not None]


def test_agents_and_controllers_are_killed_while_jobs_run(cluster: Cluster) -> None:
    chance = random.Random(11)
    script = cluster.scratch / "job.sh"
    script.write_text(JOB.replace("STEPS", str(STEPS)))
    controller = cluster.up("--nodes", "2x2")
    files = [cluster.scratch / f"progress-{number}" for number in range(JOBS)]
    for number, path in enumerate(files):
        cluster.run("submit", "--name", f"job{number}", "--", "sh", str(script), str(path))
    for strike in range(12):
        time.sleep(chance.uniform(0.05, 0.25))
        for agent in agents(cluster):
            if chance.random() < 0.6:
                proc.kill(agent, signal.SIGKILL)
        if strike in (4, 9):
            cluster.end(controller, signal.SIGKILL)
            for agent in agents(cluster):
                proc.kill(agent, signal.SIGKILL)
            controller = cluster.up("--nodes", "2x2")
    for number in range(JOBS):
        until(lambda number=number: cluster.job(f"job{number}-1")["state"] == "completed", f"job {number} ends")  # type: ignore[misc]
    assert [path.read_text().strip() for path in files] == [str(STEPS)] * JOBS
    assert not list(cluster.scratch.glob("*.twice"))
    for path in files:
        starts = [int(line) for line in (cluster.scratch / f"{path.name}.starts").read_text().split()]
        assert starts == sorted(starts), "an attempt began before where the one before it was"
        assert starts.count(0) == 1, "a job began from zero again although it had a checkpoint"
    assert max(cluster.job(f"job{number}-1")["attempt"] for number in range(JOBS)) <= 2


def test_what_the_engine_is_like_is_said_at_start(cluster: Cluster) -> None:
    cluster.up("--nodes", "2x2")
    whose, *limits, slots = cluster.ready["engine"]
    assert "trust domain" in whose or "their own Unix account" in whose
    assert len(limits) == 1 and "cgroups" in limits[0]
    assert slots == "slots stand for GPUs"
