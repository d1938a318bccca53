"""`headway advise --slurm` on a real Slurm that has run real jobs: seconds of sleep on four emulated nodes of four GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.core import columns as c
from headway.workloads.slurm import parse_slurm
from headway.workloads.slurm_cluster import SINFO_FORMAT, parse_nodes

from .emulated import EmulatedSlurm, carriers, until

pytestmark = [pytest.mark.live, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
PEOPLE = ("games", "news", "mail")
"""Accounts that every Debian has."""


def advise(slurm: EmulatedSlurm, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli", "advise", *arguments],
        env={**slurm.environment, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done


def run_a_busy_minute(slurm: EmulatedSlurm) -> None:
    """More jobs than fit at once: gangs, an array, jobs without GPUs, and ends of every kind."""
    games, news, mail = PEOPLE
    limited = slurm.submit("sleep 600", "--gres=gpu:4", "-N2", "-t1", "-Jlimited", f"--uid={games}")
    slurm.wait_for(limited, "RUNNING")
    slurm.run("scontrol", "update", f"jobid={limited}", "EndTime=now+1")  # limits are looked at every half a minute
    again = slurm.submit("touch up; sleep 3", "--gres=gpu:1", "--requeue", f"--uid={mail}")
    ended = slurm.submit("sleep 600", "--gres=gpu:1", "-t1", f"--uid={mail}")
    never = slurm.submit("sleep 600", "--gres=gpu:1", "--begin=now+1hour", f"--uid={mail}")
    slurm.submit("sleep 2; false", "--gres=gpu:1", "-t1", "--account=vision", f"--uid={news}")
    slurm.submit("sleep 3", "--gres=gpu:2", "--array=0-5", "-t2", "-Ja|b", f"--uid={news}")
    for i in range(16):
        size, seconds = (1, 2, 4, 1)[i % 4], (2, 4, 3)[i % 3]
        slurm.submit(f"sleep {seconds}", f"--gres=gpu:{size}", f"-N{1 + (i % 8 == 2)}", "-t1", f"--uid={PEOPLE[i % 3]}")
    slurm.submit("sleep 2", "-c4", "--mem=8000", "-t1", f"--uid={mail}")
    until((slurm.root / "jobs" / "up").exists, "the job is up")  # requeued while it is launched, it would fail
    slurm.run("scontrol", "requeue", again)
    slurm.wait_for(again, "PENDING")
    slurm.run("scancel", never)
    slurm.wait_for(ended, "RUNNING")
    slurm.run("scancel", ended)
    # Slurm lets a requeued job wait for two minutes.
    slurm.run("scontrol", "update", f"jobid={again}", "StartTime=now+3")
    slurm.wait_all_ended(60)


def test_advice_on_a_real_slurm(slurm: EmulatedSlurm) -> None:
    assert len(carriers(f"SLURM_CONF={slurm.conf}")) >= len(slurm.daemons), "what it leaves behind would be found by its settings"
    run_a_busy_minute(slurm)

    # The accounting by its two outputs is the same history.
    table = slurm.run(
        "sacct", "-aP", "--duplicates", "-Snow-1hours",
        "-oJobID,JobName,User,Account,Partition,Submit,Eligible,Start,End,Elapsed,Timelimit,State,NNodes,NCPUS,ReqTRES,AllocTRES,NodeList",
    )  # fmt: skip
    history = parse_slurm(table)
    states = [line.split("|")[-6] for line in table.splitlines() if "." not in line.split("|")[0]]
    assert {"TIMEOUT", "REQUEUED", "FAILED", "COMPLETED"} < set(states)
    assert any(state.startswith("CANCELLED by") for state in states)
    assert history.workload.users == tuple(sorted(PEOPLE)) and history.workload.queues == ("gpu",)
    # All but the one that never began; the one cancelled as it came up counts if it ran for a second.
    assert len(history.workload) in (26, 27) and history.merged == 1 and history.noted["delimiter in a name"] == 6
    assert np.all(history.waited_us >= 0)
    answer = parse_slurm(slurm.run("sacct", "-a", "--json", "--duplicates"))
    same = [i for i in range(c.SPEC_COLUMNS) if i != c.J_USER]  # 22.05 leaves out users that its database doesn't know
    assert np.array_equal(answer.workload.spec[same], history.workload.spec[same])
    assert np.array_equal(answer.workload.work_us, history.workload.work_us)
    assert np.array_equal(answer.started_us, history.started_us)

    # So are the nodes by their three.
    nodes = parse_nodes(slurm.run("sinfo", "-N", "-h", "-o", SINFO_FORMAT), "sinfo")
    assert [(node.name, node.cpus, node.gpus, node.gpu_type, node.gone) for node in nodes] == [
        (f"n{i}", 16, 4, "a100", False) for i in (1, 2, 3, 4)
    ]
    for other in (("scontrol", "show", "node"), ("sinfo", "--json")):
        found = parse_nodes(slurm.run(*other), "nodes")
        key = [(node.name, node.partitions, node.cpus, node.memory_bytes, node.gpus, node.gpu_type) for node in nodes]
        assert [(n.name, n.partitions, n.cpus, n.memory_bytes, n.gpus, n.gpu_type) for n in found] == key

    # The command asks for itself.
    told: dict[str, Any] = json.loads(advise(slurm, "--slurm", "--since", "1h", "-p", "fifo", "-p", "srtf", "--json").stdout)
    assert told["cluster"] == {"name": "sinfo", "nodes": 4, "gpus": 16}
    assert told["jobs"] == len(history.workload) and set(told["policies"]) == {"fifo", "srtf"}
    assert {group["name"] for group in told["groups"]} == set(PEOPLE)
    gpu_s = sum((history.workload.work_us * history.workload.gpus).tolist()) / 1e6
    assert told["recorded"]["gpu_hours"] == pytest.approx(gpu_s / 3600)
    assert told["recorded"]["avg_wait_s"] == pytest.approx(history.waited_us.mean() / 1e6)
    assert any("sched/backfill" in text for text in told["assumptions"])
    # Jobs of some seconds in a Slurm that takes about one to start the next: the replay is off by seconds, not more.
    assert told["replay_policy"] == "fifo-backfill" and told["replay_error"]["p50_abs_wait_error_s"] <= 10
    assert 0.5 < told["replay_error"]["mean_jct_ratio"] < 1.5
    people = advise(slurm, "--slurm", "-p", "fifo-backfill", "--by", "account").stdout
    assert "what happened" in people and "account vision, 1 job:" in people and "Assumed:" in people

    # Accounting that is down is one line.
    slurm.end("slurmdbd")
    error = advise(slurm, "--slurm", code=2).stderr
    assert error.startswith("headway: sacct: ") and error.count("\n") == 1
