"""What each command of a live cluster prints, as text and as JSON, for answers that are written down in `conftest`."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import URL, CommandLine

from headway.cli import run_command

GOLDEN = {
    "submit job.yaml": "job-1\n",
    "submit job.yaml b.yaml": "job-1\nb-2\n",
    "submit --dry-run job.yaml": "would be queued\n",
    "submit --id mine -- python train.py": "mine\n",
    "queue": """\
JOBID       NAME      QUEUE    USER  ST     TIME  GPUS  NODES(REASON)
train-1     train     default  ann   R   1:02:05     2  n0,n1
nächster-2  nächster  vision   ann   PD     0:00     4  (no-room)
""",
    "queue --all --long": """\
JOBID       NAME      QUEUE    USER  ST  PRI     TIME  WAIT  GPUS       STEP     LOSS    ACC    ETA  NODES(REASON)
train-1     train     default  ann   R    80  1:02:05  0:05     2  1500/3000  0.01235  87.5%  10:00  n0,n1
nächster-2  nächster  vision   ann   PD   50     0:00  0:05     4          -        -      -      -  (no-room)
bad-3       bad       default  ann   F    50     1:01  0:05     1          -        -      -      -  (exit-code 3)
""",
    "queue --format job,state,done,exit --all --no-header": """\
train-1     running  50.0%  \n\
nächster-2  queued       -
bad-3       failed       -  3
""",
    "queue --state failed": """\
JOBID  NAME  QUEUE    USER  ST  TIME  GPUS  NODES(REASON)
bad-3  bad   default  ann   F   1:01     1  (exit-code 3)
""",
    "show train-1": """\
job           train-1
number        1
name          train
queue         default
user          ann
state         running
priority      80
urgency       5
held          no
attempt       2
preemptions   1
gpus          2
tasks         2
nodes         n0, n1
node_places   n0: 0, n1: 1
submitted_at  2030-01-31T12:00:00Z
started_at    2030-01-31T12:00:05Z
wait_s        5.0
run_s         3725.0
eta_s         600.0
steps         1500
total         3000
loss          0.012345
accuracy      0.875
saved_step    1400
saved_age_s   30.0
stop_rule     fixed
command       python train.py
""",
    "logs train-1": "epoch 1\nepoch 2\n",
    "events": """\
     41  2030-01-31 12:00:00  submitted         train-1
     42  2030-01-31 12:00:06  observed          train-1           attempt 1  step 1500  loss 0.012345  accuracy 0.875
""",
    "cancel train-1": "train-1: running\n",
    "hold train-1": "train-1: running\n",
    "release --all": "train-1: running\n",
    "requeue train-*": "train-1: running\n",
    "update train-1 --priority 80 --deadline none": "train-1: running; priority 80, deadline none\n",
    "nodes": """\
NODE  STATE     KIND  GPUS  FREE  REASON
n0    up        slot     2     1
n1    draining  slot     2     1  drained: new fans
""",
    "drain n0 --reason fans": """\
NODE  STATE     KIND  GPUS  FREE  REASON
n0    draining  slot     2     1  drained: fans
""",
    "undrain n0": """\
NODE  STATE  KIND  GPUS  FREE  REASON
n0    up     slot     2     1
""",
    "queues": """\
QUEUE    PARENT    WEIGHT  QUOTA  LIMIT  GPUS  RUNNING  QUEUED
default  -              1      -      -     2        1       0
vision   research       2      8     16     0        0       1
""",
    "users": """\
USER  RUNNING  QUEUED  MOST  GPUS  JOB-GPUS  URGENCY  ADMIN
ann         1       1    50     2         -       12  no
""",
    "token create ann": "hw_ann_secret\n",
    "token list": """\
NAME  USER  ROLE  CREATED           EXPIRES
ann   ann   user  2030-01-31 12:00  never
""",
    "token revoke ann": "ann: revoked\n",
    "reload": "policy: in force\ncluster.port: at the next start of the controller\n",
    "down": "stopped: 1 job goes on running, 1 job waits; go on with: headway up\n",
    "top --once": f"""\
headway  fifo  {URL}  13:02:10  2/4 slots  1 job on nodes, 1 waiting  1 of 2 nodes not up

n0  ■·  train-1
n1  ·■  train-1 draining; drained: new fans

JOB      ST     TIME  SLOTS       STEP                   LOSS    ACC    ETA
train-1  R   1:02:05      2  1500/3000  ━━━━━━╌╌╌╌╌╌  0.01235  87.5%  10:00

WAITING     QUEUE   USER  PRI  SLOTS  WAIT  WHY
nächster-2  vision  ann    50      4  0:05  no-room
""",
}
"""Commands, and what they print."""
LINES = {"events"}
"""Whose JSON is an object on each line."""


@pytest.fixture
def files(cli: CommandLine) -> CommandLine:
    cli.write("job.yaml", "run: 'true'\n")
    cli.write("b.yaml", "run: 'true'\n")
    return cli


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("command", GOLDEN)
def test_a_command_prints(command: str, files: CommandLine) -> None:
    assert trimmed(files.run(*command.split())) == trimmed(GOLDEN[command])


@pytest.mark.parametrize("command", GOLDEN)
def test_its_json_is_valid(command: str, files: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    words = command.split()
    at = words.index("--") if "--" in words else len(words)
    assert run_command([*words[:at], "--json", *words[at:]]) == 0
    out = capsys.readouterr().out
    found = [json.loads(line) for line in out.splitlines()] if words[0] in LINES else [json.loads(out)]
    assert found and all(isinstance(one, dict) for one in found)
