"""Golden charts: five workloads that a person can follow, under each policy. `GOLDEN=write pytest tests/sim/test_gantt.py`
rewrites them.

Rounds take place each second. Parameters are small, so that quanta and thresholds matter within seconds: see `SPECS`.
"""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from headway.policies.registry import REGISTRY, make_policy
from headway.sim.run import simulate
from headway.sim.world import World
from headway.testing.builders import JobSketch, cluster, job, workload
from headway.testing.gantt import gantt
from headway.workloads.cluster import Cluster

CASES: dict[str, tuple[Cluster, list[JobSketch], int]] = {
    # One node of two GPUs; a gang of two, another, and two single jobs.
    "gangs": (cluster([2]), [job("a", 2, 4), job("b", 2, 2, 1), job("c", 1, 3, 1), job("d", 1, 1, 2)], 2),
    # One GPU, and estimates in the wrong order: a says 1 and takes 4, b says 3 and takes 1, c is right.
    "estimates": (cluster([1]), [job("a", 1, 4, estimate_s=1), job("b", 1, 1, estimate_s=3), job("c", 1, 2)], 1),
    # Two nodes; a gang that needs both, and small jobs that could fill the gap before it, one short and one long.
    "gap": (cluster([2, 2]), [job("a", 2, 4), job("b", 4, 2, 1), job("c", 1, 2, 1), job("d", 1, 5, 1)], 4),
    # One GPU; a takes 1 s to save and 1 s to restore.
    "costs": (cluster([1]), [job("a", 1, 7, save_s=1, restore_s=1), job("b", 1, 3, 2)], 2),
    # Two nodes of one GPU of two kinds; d takes any kind.
    "kinds": (
        cluster([1, 1], kinds=["x", "y"]),
        [job("a", 1, 3, kinds=("x",)), job("b", 1, 2, kinds=("x",)), job("c", 1, 1, 1, kinds=("y",)), job("d", 1, 2, 1)],
        1,
    ),
}
"""Cluster, jobs, and the quantum or threshold in GPU·s."""

SPECS = {
    "las": "las:quantum={}", "tiresias": "tiresias:threshold={},promote=0", "mlf-rl": "mlf-rl:guard=false",
    "rl-placement": "rl-placement:guard=false",
}  # fmt: skip

CHARTS: dict[tuple[str, str], str] = {
    # a; then b as a whole (4-6); c and d beside each other.
    ("gangs", "fifo"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    # Nothing is free while a and b run, so there is nothing to fill.
    ("gangs", "fifo-backfill"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    # 1: b has 2 left, a 3, c 3: b. 2: b and d have 1 left, b came first. 3: d (1), then of a and c (3) there is room for c
    # only, since a needs two. 4: c has 2 left, a 3. 6: a.
    ("gangs", "srtf"): """
n0.0 |abbd..aaa
n0.1 |abbcccaaa""",
    # Estimates are exact here.
    ("gangs", "oracle-srtf"): """
n0.0 |abbd..aaa
n0.1 |abbcccaaa""",
    # Quantum 2 GPU·s. 1: a has got 2, b and c nothing: b. 2: b has got 2: c and d. 3: d is done, and a and b need two. 4: c has
    # got 2; all are in their second quantum: a. 5: a has got 4: b, done at 6. 6: c (2), and a needs two; done at 7. 7: a's last
    # 2 s.
    ("gangs", "las"): """
n0.0 |abccabcaa
n0.1 |abd.ab.aa""",
    # Threshold 2 GPU·s: as las until 4. Then a, b and c are in the second queue, by arrival, each to its end.
    ("gangs", "tiresias"): """
n0.0 |abccaaabc
n0.1 |abd.aaab.""",
    ("estimates", "fifo"): """
n0.0 |aaaabcc""",
    ("estimates", "fifo-backfill"): """
n0.0 |aaaabcc""",
    # a says that it is the shortest, and then that it is all but done; c says 2, b 3.
    ("estimates", "srtf"): """
n0.0 |aaaaccb""",
    # By the truth: 1, 2, 4.
    ("estimates", "oracle-srtf"): """
n0.0 |bccaaaa""",
    # Quantum 1: a, b, c get one each; a its second, c its second (done), a the rest.
    ("estimates", "las"): """
n0.0 |abcacaa""",
    # Threshold 1: a, b, c get one each; then a to its end, and c.
    ("estimates", "tiresias"): """
n0.0 |abcaaac""",
    # b does not fit and holds c and d up until 4. Then b on both nodes; then c and d on the smaller room, node 0.
    ("gap", "fifo"): """
n0.0 |aaaabbcc...
n0.1 |aaaabbddddd
n1.0 |....bb.....
n1.1 |....bb.....""",
    # b will fit at 4, on all GPUs. c ends at 3 and may go before it; d would end at 6 and may not.
    ("gap", "fifo-backfill"): """
n0.0 |aaaabbddddd
n0.1 |aaaabb.....
n1.0 |.cc.bb.....
n1.1 |....bb.....""",
    # 1: b and c have 2 left, a 3, d 5: b, and a has to go. 3: c (2) on node 0, a (3) on node 1 where two are free, d (5) beside
    # c.
    ("gap", "srtf"): """
n0.0 |abbcc...
n0.1 |abbddddd
n1.0 |.bbaaa..
n1.1 |.bbaaa..""",
    ("gap", "oracle-srtf"): """
n0.0 |abbcc...
n0.1 |abbddddd
n1.0 |.bbaaa..
n1.1 |.bbaaa..""",
    # Quantum 4 GPU·s. 1: a has got 2, all are in the first quantum, by arrival: a keeps its place, no room for b, c and d on
    # node 1. 2: a has got 4: b takes all. 3: b has got 4: c and d, and a before b. 4: c is done. 5: a too; d has got 3, so b
    # waits. 6: d has got 4: b, done at 7. 7: d's last.
    ("gap", "las"): """
n0.0 |aabc..bd
n0.1 |aabdddb.
n1.0 |.cbaa.b.
n1.1 |.dbaa.b.""",
    # Threshold 4 GPU·s: each job crosses it just when it enters its second quantum above, and none has got 8 when another
    # waits.
    ("gap", "tiresias"): """
n0.0 |aabc..bd
n0.1 |aabdddb.
n1.0 |.cbaa.b.
n1.1 |.dbaa.b.""",
    ("costs", "fifo"): """
n0.0 |aaaaaaabbb""",
    ("costs", "fifo-backfill"): """
n0.0 |aaaaaaabbb""",
    # 2: a has 5 left, b 3. a saves for a second, then b runs (3-6), then a restores for a second and does its last 5.
    ("costs", "srtf"): """
n0.0 |aaAbbbAaaaaa""",
    ("costs", "oracle-srtf"): """
n0.0 |aaAbbbAaaaaa""",
    # Quantum 2. 2: a has got 2: it saves, and b runs (3-5). 5: b has got 2 and a 3 (saving counts), so a restores; 6: a has got
    # 4 and has done nothing but restore: it saves, b does its last second (7-8), a restores (8-9) and does its last 5.
    ("costs", "las"): """
n0.0 |aaAbbAAbAaaaaa""",
    # Threshold 2: as las until 5; then both are in the second queue, and a came first.
    ("costs", "tiresias"): """
n0.0 |aaAbbAaaaaab""",
    # b waits for x and blocks it; c wants y only; d could use x, so it waits behind b until 3.
    ("kinds", "fifo"): """
n0.0 |aaabb
n1.0 |.c.dd""",
    # b will fit at 3 on x, which is reserved. 1: c ends before, on y. 2: d would end at 4: not on x, but y is free and not
    # reserved.
    ("kinds", "fifo-backfill"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    # b (2) before a (3) on x. 1: c on y. 2: d (2) before a (3); x and y are free, and x is tried first. So a waits for x until
    # 4.
    ("kinds", "srtf"): """
n0.0 |bbddaaa
n1.0 |.c.....""",
    ("kinds", "oracle-srtf"): """
n0.0 |bbddaaa
n1.0 |.c.....""",
    # Quantum 1. 1: a has got 1: b on x, c on y. 2: d has got nothing and counts for x, so neither a nor b is selected for it;
    # but y is free, d takes that, and b, which lost nothing, stays. 3: b is done: a's last 2 s.
    ("kinds", "las"): """
n0.0 |abbaa
n1.0 |.cdd.""",
    # Threshold 1: the same order.
    ("kinds", "tiresias"): """
n0.0 |abbaa
n1.0 |.cdd.""",
    # 4: d (1), then b (2) needs both and holds its place; c (3) would delay it.
    ("gangs", "sjf"): """
n0.0 |aaaadbbccc
n0.1 |aaaa.bb...""",
    # Nobody has a deadline here, so the order is that of arrival; who cannot be selected is passed over, as d at 1 to 6.
    ("gangs", "edf"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    # One user: by arrival.
    ("gangs", "drf"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    # One queue: by arrival.
    ("gangs", "borg-fair"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    # 4: c and d happen to come before b, which needs both.
    ("gangs", "random"): """
n0.0 |aaaacccbb
n0.1 |aaaad..bb""",
    # As srtf, since the shortest comes first anyway.
    ("estimates", "sjf"): """
n0.0 |aaaaccb""",
    ("estimates", "edf"): """
n0.0 |aaaabcc""",
    ("estimates", "drf"): """
n0.0 |aaaabcc""",
    ("estimates", "borg-fair"): """
n0.0 |aaaabcc""",
    # c happens to be first, then a.
    ("estimates", "random"): """
n0.0 |ccaaaab""",
    # 1: c (2), b (2) and d (5): as backfill.
    ("gap", "sjf"): """
n0.0 |aaaabbddddd
n0.1 |aaaabb.....
n1.0 |.cc.bb.....
n1.1 |....bb.....""",
    # 1: b is not selected beside a, so c and d run; 4: b is, and d has to go.
    ("gap", "edf"): """
n0.0 |aaaabbdd
n0.1 |aaaabb..
n1.0 |.cc.bb..
n1.1 |.dddbb..""",
    ("gap", "drf"): """
n0.0 |aaaabbdd
n0.1 |aaaabb..
n1.0 |.cc.bb..
n1.1 |.dddbb..""",
    ("gap", "borg-fair"): """
n0.0 |aaaabbdd
n0.1 |aaaabb..
n1.0 |.cc.bb..
n1.1 |.dddbb..""",
    # c and d pass b; b needs all, so it waits for d.
    ("gap", "random"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "sjf"): """
n0.0 |aaaaaaabbb""",
    ("costs", "edf"): """
n0.0 |aaaaaaabbb""",
    ("costs", "drf"): """
n0.0 |aaaaaaabbb""",
    ("costs", "borg-fair"): """
n0.0 |aaaaaaabbb""",
    ("costs", "random"): """
n0.0 |aaaaaaabbb""",
    # As srtf.
    ("kinds", "sjf"): """
n0.0 |bbddaaa
n1.0 |.c.....""",
    # a, then b on x by arrival; c on y, and d on y when it is free.
    ("kinds", "edf"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    ("kinds", "drf"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    ("kinds", "borg-fair"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    # b happens to come before a, and d before c.
    ("kinds", "random"): """
n0.0 |bbaaa
n1.0 |.ddc.""",
    # mlf-h stops nobody; of equals who waits longest goes first, on the least-loaded node.
    ("gangs", "mlf-h"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    ("estimates", "mlf-h"): """
n0.0 |aaaabcc""",
    ("gap", "mlf-h"): """
n0.0 |aaaa..bb
n0.1 |.cc...bb
n1.0 |aaaa..bb
n1.1 |.dddddbb""",
    ("costs", "mlf-h"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "mlf-h"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    # gandiva: slices of hours do not end here, so first come, first served; jobs of a size share a node.
    ("gangs", "gandiva"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    ("estimates", "gandiva"): """
n0.0 |aaaabcc""",
    ("gap", "gandiva"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "gandiva"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "gandiva"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    # hypersched: nobody has told an accuracy, so the shortest remaining time first, and who has a place keeps it.
    ("gangs", "hypersched"): """
n0.0 |aaaad..bb
n0.1 |aaaacccbb""",
    ("estimates", "hypersched"): """
n0.0 |aaaabcc""",
    ("gap", "hypersched"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "hypersched"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "hypersched"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    # graphene: least work left first, by its score; it stops jobs for shorter ones.
    ("gangs", "graphene"): """
n0.0 |acccbbaaa
n0.1 |a.d.bbaaa""",
    ("estimates", "graphene"): """
n0.0 |aaaaccb""",
    ("gap", "graphene"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "graphene"): """
n0.0 |aaAbbbAaaaaa""",
    ("kinds", "graphene"): """
n0.0 |bbddaaa
n1.0 |.c.....""",
    # slaq: without a loss curve the job that has run least gains most, so they take turns.
    ("gangs", "slaq"): """
n0.0 |accbaabca
n0.1 |a.dbaab.a""",
    ("estimates", "slaq"): """
n0.0 |abccaaa""",
    ("gap", "slaq"): """
n0.0 |aabdddbd
n0.1 |aabc..b.
n1.0 |.cbaa.b.
n1.1 |.dbaa.b.""",
    ("costs", "slaq"): """
n0.0 |aaAbbAaaAbAaaa""",
    ("kinds", "slaq"): """
n0.0 |abbaa
n1.0 |.cdd.""",
    ("gangs", "mlf-rl"): """
n0.0 |acccaaabb
n0.1 |a.d.aaabb""",
    ("estimates", "mlf-rl"): """
n0.0 |aaaabcc""",
    ("gap", "mlf-rl"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "mlf-rl"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "mlf-rl"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    ("gangs", "mlfs"): """
n0.0 |aaaabbccc
n0.1 |aaaabbd..""",
    ("estimates", "mlfs"): """
n0.0 |aaaabcc""",
    ("gap", "mlfs"): """
n0.0 |aaaa..bb
n0.1 |.cc...bb
n1.0 |aaaa..bb
n1.1 |.dddddbb""",
    ("costs", "mlfs"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "mlfs"): """
n0.0 |aaabb
n1.0 |.cdd.""",
    ("gangs", "rl-placement"): """
n0.0 |acccaaabb
n0.1 |a.d.aaabb""",
    ("estimates", "rl-placement"): """
n0.0 |aaaabcc""",
    ("gap", "rl-placement"): """
n0.0 |aaaa..bb
n0.1 |aaaa..bb
n1.0 |.cc...bb
n1.1 |.dddddbb""",
    ("costs", "rl-placement"): """
n0.0 |aaaaaaabbb""",
    ("kinds", "rl-placement"): """
n0.0 |aaabb
n1.0 |.cdd.""",
}


def drawn(case: str, policy: str) -> str:
    where, jobs, amount = CASES[case]
    load = workload(jobs, kinds=where.kinds)
    if policy == "oracle-srtf":
        load = load.with_estimates(load.work_us)
    run = simulate(load, where, make_policy(SPECS.get(policy, policy).format(amount)), interval_s=1, keep_journal=True)
    assert run.journal is not None
    return "\n" + gantt(run.journal)


@pytest.mark.parametrize(("case", "policy"), CHARTS, ids=lambda value: value)
def test_golden(case: str, policy: str) -> None:
    found = drawn(case, policy)
    if os.environ.get("GOLDEN") == "write":
        rewrite(case, policy, found)
    else:
        assert found == CHARTS[case, policy]


def test_every_policy_has_every_chart() -> None:
    assert set(CHARTS) == {(case, policy) for case in CASES for policy in REGISTRY}


def rewrite(case: str, policy: str, chart: str) -> None:
    """Put a chart into this file, in place of the one that is there."""
    path = Path(__file__)
    source = path.read_text("utf-8")
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Tuple) and ast.literal_eval(key) == (case, policy) and value.end_lineno is not None:
                text = f'    ("{case}", "{policy}"): """{chart}""",'
                lines[key.lineno - 1 : value.end_lineno] = text.split("\n")
                path.write_text("\n".join(lines), "utf-8")
                return


def test_a_chart_shows_lost_nodes_shares_and_empty_nodes() -> None:
    """a and b share a GPU (2) until a is done at 2; c is on node 1, lost from 1 to 3, and goes on from its checkpoint at 0."""
    where = cluster([1, 1, 0], kinds=["x", "y", "x"])
    jobs = [
        job("a", 0.5, 2, share=True, kinds=("x",)), job("b", 0.5, 4, share=True, kinds=("x",)), job("c", 1, 2, kinds=("y",)),
    ]  # fmt: skip
    load = workload(jobs, kinds=where.kinds)
    faults = [(1_000_000, 1, False), (3_000_000, 1, True)]
    run = simulate(
        load,
        where,
        make_policy("fifo:sharing=true"),
        interval_s=1,
        keep_journal=True,
        world=World(load, where, node_faults=faults),
    )
    assert run.journal is not None
    # 0.5 + 0.5 is the whole GPU: both go at 0.9 until a has done its 2 s at 2.2; b has 2 of 4 left then, and ends at 4.2.
    assert gantt(run.journal) == "n0.0 |222bb\nn1.0 |cxxcc"
    assert gantt(run.journal, unit_s=2, until_s=4) == "n0.0 |22\nn1.0 |cx"
