"""Clusters from what Slurm's commands print, and from what ran where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.core import columns as c
from headway.core.errors import UserError
from headway.workloads.cluster import parse_cluster
from headway.workloads.slurm import SlurmHistory, parse_slurm
from headway.workloads.slurm_cluster import SlurmNode, fitted, inferred, parse_nodes, peaks, rebuild

SAMPLES = Path(__file__).resolve().parents[1] / "slurm"
MIB = 2**20
SINFO = """g1|gpu*|64|512000|gpu:a100:4(S:0-1)|mixed|ib
g1|long|64|512000|gpu:a100:4(S:0-1)|mixed|ib
g2|gpu*|64|512000|gpu:a100:4(S:0-1)|drained*|ib
v1|old|32|128000|gpu:v100:8|idle|(null)
c[01-02]|cpu|128|256000+|(null)|allocated~|(null)
"""
NODES = [
    SlurmNode("g1", ("gpu", "long"), 64, 512_000 * MIB, 4, "a100", "mixed"),
    SlurmNode("g2", ("gpu",), 64, 512_000 * MIB, 4, "a100", "drained*"),
    SlurmNode("v1", ("old",), 32, 128_000 * MIB, 8, "v100", "idle"),
    SlurmNode("c01", ("cpu",), 128, 256_000 * MIB, 0, "", "allocated~"),
    SlurmNode("c02", ("cpu",), 128, 256_000 * MIB, 0, "", "allocated~"),
]


def history(*jobs: tuple[str, int, int, int, str, str, str]) -> SlurmHistory:
    """Jobs as (id, start, run time, GPUs, type asked for, partition, hosts); 4 cpus and 8 GiB each, submitted at 0."""
    lines = ["JobID|Submit|Start|ElapsedRaw|ReqTRES|AllocTRES|Partition|NodeList|NNodes"]
    for job, start, run, gpus, kind, partition, hosts in jobs:
        held = f"cpu=4,mem=8G,gres/gpu={gpus}"
        asked = f"{held},gres/gpu:{kind}={gpus}" if kind else held
        count = 1 + hosts.count("-") + hosts.count(",")
        lines.append(f"{job}|1700000000|{1700000000 + start}|{run}|{asked}|{held}|{partition}|{hosts}|{count}")
    return parse_slurm("\n".join(lines))


def test_nodes_of_sinfo() -> None:
    assert parse_nodes(SINFO, "sinfo") == NODES
    shuffled = "PARTITION|GRES|NODELIST|MEMORY|CPUS\n" + "long|gpu:a100:4|g[1-2]|512000|64\n"
    assert [(node.name, node.gpus, node.state) for node in parse_nodes(shuffled, "sinfo")] == [
        ("g1", 4, "idle"),
        ("g2", 4, "idle"),
    ]
    assert [node.name for node in NODES if node.gone] == ["g2"]


def test_nodes_of_a_real_slurm() -> None:
    found = parse_nodes((SAMPLES / "sinfo.txt").read_text(), "sinfo.txt")
    assert found == [SlurmNode(f"n{i}", ("gpu",), 16, 64_000 * MIB, 4, "a100", "idle") for i in (1, 2, 3, 4)]


def test_nodes_of_scontrol() -> None:
    text = """NodeName=g1 Arch=x86_64 CoresPerSocket=16
   CPUAlloc=0 CPUEfctv=64 CPUTot=64 CPULoad=0.41
   Gres=gpu:a100:4(S:0-1)
   RealMemory=512000 AllocMem=0
   State=MIXED+DRAIN ThreadsPerCore=1
   Partitions=gpu,long

NodeName=c1 Arch=x86_64
   CPUTot=128
   Gres=(null)
   RealMemory=256000
   State=DOWN*
"""
    first, second = parse_nodes(text, "nodes")
    assert (first.name, first.partitions, first.cpus, first.gpus, first.gpu_type) == ("g1", ("gpu", "long"), 64, 4, "a100")
    assert (second.name, second.gpus, second.gone) == ("c1", 0, True)


def test_nodes_of_json() -> None:
    node = {"name": "g1", "cpus": 64, "real_memory": 512000, "gres": "gpu:a100:4(S:0-1)", "partitions": ["gpu"]}
    old, new = {**node, "state": "idle", "state_flags": ["DRAIN"]}, {**node, "name": "g2", "state": ["IDLE", "NOT_RESPONDING"]}
    found = parse_nodes(json.dumps({"nodes": [old, new, {**node, "name": "g3", "state": ["MIXED"]}]}), "nodes")
    assert [(n.name, n.gpus, n.gone) for n in found] == [("g1", 4, True), ("g2", 4, True), ("g3", 4, False)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no node"),
        ("g1 gpu 64\n", "expected nodes as"),
        ("g1|gpu|many|512000|(null)\n", "expected cpus"),
        ("g[1|gpu|64|512000|(null)\n", "expected hosts"),
        ("NODELIST|GRES\n", "no column CPUS, MEMORY"),
        ("NodeName=g1 CPUTot=1\n", "no RealMemory"),
        ("{", "not JSON"),
        ('{"nodes": [{"cpus": 1}]}', "expected a node with a name"),
        ('{"nodes": [{"name": "g1"}]}', "no cpus"),
    ],
)
def test_other_texts_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        parse_nodes(text, "nodes.txt")
    assert "\n" not in str(error.value)


def test_the_most_in_use_at_one_time() -> None:
    jobs = history(
        ("1", 0, 100, 4, "", "", "g1"),
        ("2", 50, 100, 2, "", "", "g[1-2]"),
        ("3", 100, 50, 1, "", "", "g1"),  # starts as the first ends
    )
    gib4 = 4 * 2**30
    assert peaks(jobs) == {"g1": (5, 6000, 3 * gib4), "g2": (1, 2000, gib4)}
    uneven = peaks(history(("1", 0, 100, 3, "", "", "g[1-2]")))
    assert (uneven["g1"][0], uneven["g2"][0]) == (2, 1)


def test_partitions_and_types_become_kinds() -> None:
    jobs = history(
        ("1", 0, 10, 4, "", "gpu", "g1"),
        ("2", 0, 10, 1, "a100", "long", "g1"),
        ("3", 0, 10, 8, "", "old", "v1"),
        ("4", 0, 10, 0, "", "cpu", "c01"),
        ("5", 0, 10, 1, "h100", "gone", "x9"),
    )
    made = rebuild(jobs, NODES, "sinfo")
    assert made.cluster.kinds == ("a100@gpu+long", "v100@old", "gpu@cpu")  # g2 is drained and ran nothing
    assert [(node.name, node.gpus, node.kind) for node in made.cluster.nodes] == [
        ("g1", 5, 0),
        ("v1", 8, 1),
        ("c01", 0, 2),
        ("c02", 0, 2),
    ]
    assert made.workload.spec[c.J_KIND_MASK].tolist() == [1, 1, 2, -1, -1]
    words = " / ".join(made.assumptions)
    for said in (
        "1 node that cannot run",
        "1 node ran more at one time than they have",
        "1 node on which jobs ran",
        "1 job of a partition",
        "without GPUs",
    ):
        assert said in words, (said, words)


def test_a_cluster_of_one_partition_keeps_its_types() -> None:
    jobs = history(("1", 0, 10, 4, "v100", "gpu", "v1"), ("2", 0, 10, 4, "", "gpu", "a1"))
    nodes = [SlurmNode("a1", ("gpu",), 64, 2**40, 4, "a100"), SlurmNode("v1", ("gpu",), 64, 2**40, 4, "v100")]
    made = rebuild(jobs, nodes, "sinfo")
    assert made.cluster.kinds == ("a100", "v100") and made.workload.spec[c.J_KIND_MASK].tolist() == [2, 3]
    assert not made.assumptions


def test_given_nodes_have_room_for_what_ran() -> None:
    jobs = history(("1", 0, 10, 4, "a100", "gpu", "g1"), ("2", 0, 10, 0, "", "gpu", "g1"))
    made = fitted(jobs, parse_cluster("2x1"))
    assert {(node.cpus_milli, node.memory_bytes) for node in made.cluster.nodes} == {(8000, 64 * 10**9)}
    assert set(made.workload.spec[c.J_KIND_MASK].tolist()) == {-1} and made.workload.kinds == ()


def test_without_nodes_they_are_those_that_ran_something() -> None:
    jobs = history(("1", 0, 10, 4, "", "", "g1"), ("2", 5, 10, 2, "", "", "g1,g2"), ("3", 0, 5, 0, "", "", "c1"))
    made = inferred(jobs)
    assert [(node.name, node.gpus) for node in made.cluster.nodes] == [("c1", 0), ("g1", 5), ("g2", 1)]
    assert "one node for each that ran a job" in made.assumptions[0]


def test_without_hosts_it_is_the_peak_of_all() -> None:
    jobs = history(("1", 0, 10, 4, "", "", ""), ("2", 0, 10, 4, "", "", ""), ("3", 5, 10, 1, "", "", ""))
    made = inferred(jobs)
    assert [node.gpus for node in made.cluster.nodes] == [4, 4, 4]  # nine GPUs at once, four on a node
    alone = inferred(history(("1", 0, 10, 0, "", "", "")))
    assert len(alone.cluster.nodes) == 1 and alone.cluster.gpus == 0


def test_everything_down_is_refused() -> None:
    with pytest.raises(UserError, match="no node is up"):
        rebuild(history(("1", 0, 10, 1, "", "", "")), [SlurmNode("g1", (), 1, 1, 1, "", "down*")], "sinfo")


def test_jobs_keep_their_order_when_they_are_submitted_at_other_times() -> None:
    jobs = history(("1", 100, 10, 1, "", "a", "g1"), ("2", 50, 10, 2, "", "b", "g2"))
    moved = np.array([100, 50]) * 10**6
    late = jobs.resubmitted(moved, np.argsort(moved, kind="stable"))
    assert late.partitions == ("b", "a") and late.workload.submitted_us.tolist() == [0, 50 * 10**6]
    assert late.started_us.tolist() == [0, 50 * 10**6] and late.zero_s == jobs.zero_s + 50
    assert sorted((run.job, run.hosts) for run in late.runs) == [(0, "g2"), (1, "g1")]
    assert late.waited_us.tolist() == [0, 0]
