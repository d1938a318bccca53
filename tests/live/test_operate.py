"""What operators type, against a real `headway up`: settings, reload, drain."""

from __future__ import annotations

import json
import signal

import pytest

from headway.cli import run_command

from .conftest import Cluster, until
from .test_commands import Here, here

__all__ = ["here"]

TEXT = """\
[cluster]
nodes = "2x1"
round = "200ms"

[policy]
name = "tiresias"
queues = 3

[queues.vision]
quota = 1

[users.ann]
queues = ["vision"]
urgency_budget = 3
"""
IN_FORCE = """\
cluster.nodes             2x1
cluster.round             200ms
engine.silent             15s
limits.body               1MB
limits.logs               20
limits.queue              100000
limits.reports            10000
policy                    tiresias:queues=3
quarantine.quiet          30m
quarantine.troubles       3
quarantine.window         1h
queues.vision.quota       1
shadow.budget             30s
shadow.every              1h
shadow.horizon            6h
shadow.policies
users.ann.queues          vision
users.ann.urgency_budget  3
"""


def test_check_config_shows_what_would_be_in_force(here: Here, capsys: pytest.CaptureFixture[str]) -> None:
    here.home.mkdir()
    (here.home / "headway.toml").write_text(TEXT)
    assert run_command(["check-config"]) == 0
    assert capsys.readouterr().out == IN_FORCE
    assert run_command(["check-config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["queues"] == {"vision": {"quota": 1}} and found["file"] == str(here.home / "headway.toml")


def test_a_mistake_in_the_file_is_one_line(here: Here) -> None:
    assert here.refusal("check-config") == f"headway: {here.home}/headway.toml: cannot be read: No such file or directory"
    here.home.mkdir()
    (here.home / "headway.toml").write_text("[cluster]\nnods = '2x1'\n")
    mistake = f"headway: {here.home}/headway.toml:2: cluster.nods: unknown key (did you mean 'nodes'?)"
    assert here.refusal("check-config") == mistake
    assert here.refusal("up") == mistake
    assert sorted(path.name for path in here.home.iterdir()) == ["headway.toml"], "nothing has been started or written"
    assert "other.toml: cannot be read" in here.refusal("up", "--config", "other.toml")


@pytest.mark.live
def test_drain_reload_and_back(cluster: Cluster) -> None:
    cluster.home.mkdir(mode=0o700)
    file = cluster.home / "headway.toml"
    file.write_text(TEXT)
    controller = cluster.up()
    assert (cluster.ready["nodes"], cluster.ready["policy"]) == (2, "tiresias:queues=3")
    assert cluster.run("nodes").stdout == (
        "NODE  STATE  KIND      GPUS  FREE  REASON\n"
        "n0    up     cpu-slot     1     1\n"
        "n1    up     cpu-slot     1     1\n"
    )  # fmt: skip
    assert cluster.run("drain", "n1", "--reason", "new fans").stdout.splitlines()[1].split(None, 5) == [
        "n1", "draining", "cpu-slot", "1", "1", "drained: new fans",
    ]  # fmt: skip
    assert 'there is no node "n9"' in cluster.run("drain", "n9", code=2).stderr
    # A second controller goes on with it.
    assert cluster.end(controller) == 0
    controller = cluster.up()
    assert [node["reasons"] for node in cluster.ask("/v1/nodes")["nodes"]] == [[], ["drained: new fans"]]
    assert "there is no queue" in cluster.run("submit", "--queue", "visoin", "--", "true", code=2).stderr
    # Reloads: by command, with a mistake, and by SIGHUP.
    file.write_text(TEXT.replace('"2x1"', '"3x1"').replace("[queues.vision]\nquota = 1", "[queues.vision]\nquota = 2"))
    assert cluster.run("reload").stdout == "queues.vision.quota: in force\ncluster.nodes: at the next start of the controller\n"
    file.write_text("[limits]\nbody = 3\n")
    assert f"{file}:2: limits.body: expected a size" in cluster.run("reload", code=2).stderr
    file.write_text(TEXT.replace("queues = 3", "queues = 4"))
    controller.send_signal(signal.SIGHUP)
    until(lambda: "settings reloaded: policy, queues.vision.quota" in cluster.errors(), "the reload")
    assert controller.poll() is None
    assert cluster.json("undrain", "n1")["nodes"][0]["state"] == "up"
    assert cluster.json("submit", "--queue", "vision", "--wait", "--", "true")["state"] == "completed"
    assert cluster.end(controller) == 0
