"""An example job under a controller: its figures arrive, it makes room for a more urgent job, and goes on from where it was."""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .conftest import ROOT, Cluster, until

pytestmark = [pytest.mark.slow, pytest.mark.live]


@pytest.mark.skipif(find_spec("torch") is None, reason="the example jobs need torch: pip install headway[jobs]")
def test_a_training_makes_room_and_goes_on(cluster: Cluster) -> None:
    (cluster.scratch / "examples").symlink_to(ROOT / "examples")
    text = (ROOT / "examples/digits-ddp.yaml").read_text().replace("deadline: 10m", "")
    text = re.sub("--epochs [0-9]+", "--epochs 60", re.sub("total: [0-9]+", "total: 1320", text))
    (cluster.scratch / "job.yaml").write_text(text)
    (cluster.scratch / "urgent.yaml").write_text("run: 'true'\nresources: {gpu: 2, cpus: 0.1}\ndeadline: 1m\n")
    cluster.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    controller = cluster.up("--nodes", "1x2", "--policy", "edf")
    assert cluster.json("submit", "job.yaml")["job"] == "digits-ddp-1"
    told = until(lambda: (found := cluster.job("digits-ddp-1"))["steps"] and found["steps"] >= 22 and found, "figures", 240)
    assert 0 <= told["accuracy"] <= 1
    assert told["loss"] > 0
    cluster.run("submit", "--wait", "urgent.yaml")
    job = until(lambda: (found := cluster.job("digits-ddp-1"))["state"] == "completed" and found, "its end", 240)
    assert (job["attempt"], job["preemptions"]) == (2, 1)
    printed = cluster.run("logs", "digits-ddp-1", "--attempt", "2").stdout
    went_on = re.match(r"goes on from step (\d+)\n", printed)
    assert went_on is not None and 22 <= int(went_on[1]) < 1320
    assert printed.splitlines()[-1].startswith("done at step 1320 of 1320")
    assert cluster.end(controller) == 0


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("digits-*.yaml")), ids=lambda file: file.stem)
def test_a_job_file_says_how_many_steps_its_script_makes(file: Path) -> None:
    from headway.app.jobfile import load_job

    spec = load_job(file)
    epochs = re.search(r"--epochs (\d+)", spec.run)
    assert epochs is not None
    assert spec.progress.total == 22 * int(epochs[1])  # 1,440 pictures in batches of 64
    assert (spec.name, spec.checkpoint.dir) == (file.stem, f"build/checkpoints/{file.stem}")
    assert f"--stages {spec.parallelism.pipeline}" in spec.run or spec.parallelism.pipeline == 1
