"""Leaving out the rounds at which nothing can change changes no action, on workloads with hundreds of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core import columns as c
from headway.policies import classic
from headway.policies.registry import make_policy
from headway.sim.run import Outcome, simulate
from headway.testing.builders import cluster, job, workload
from headway.testing.policy_checks import ACTIONS
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

POLICIES = (
    "fifo", "fifo-backfill", "srtf", "oracle-srtf", "las", "las:quantum=1800,placement=topology", "tiresias",
    "tiresias:queues=3,threshold=900,promote=3", "sjf", "edf", "drf", "borg-fair", "random",
)  # fmt: skip


def actions(run: Outcome) -> list[tuple[Any, ...]]:
    """Start and stop requests with times and places."""
    assert run.journal is not None
    return [
        (*record[:5], *payload.tolist())
        for record, payload in zip(run.journal.records.tolist(), run.journal.payloads(), strict=True)
        if record[c.E_KIND] in ACTIONS
    ]


def run_of(policy: str, seed: int, *, jobs: int = 120, skip: bool = True) -> Outcome:
    """A contended small cluster, with a price for every restart."""
    load = load_workload(f"poisson:jobs={jobs},load=1.1,cluster=2x4", seed=seed).with_costs(save_s=30, restore_s=45, every_s=600)
    if policy == "oracle-srtf":
        load = load.with_estimates(load.work_us)
    return simulate(load, parse_cluster("2x4"), make_policy(policy), seed=seed, interval_s=60, skip=skip, keep_journal=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [1, 2])
def test_skipping_changes_nothing(policy: str, seed: int) -> None:
    skipped, every = run_of(policy, seed), run_of(policy, seed, skip=False)
    assert every.rounds > 2 * skipped.rounds, "hardly a round was left out"
    assert actions(skipped) == actions(every)


def test_skipping_changes_nothing_by_gittins_indices() -> None:
    for seed in (1, 2, 3):
        assert actions(run_of("tiresias:variant=gittins", seed)) == actions(run_of("tiresias:variant=gittins", seed, skip=False))


@pytest.mark.parametrize("policy", ["srtf", "las:quantum=1800", "tiresias:threshold=900"])
def test_sorting_only_the_best_changes_nothing(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many waiting jobs only the best are sorted, and the rest when those were not enough: here from the third job on."""
    every = actions(run_of(policy, 3))
    monkeypatch.setattr(classic, "BEST", 1)
    assert actions(run_of(policy, 3)) == every


def test_a_cut_depth_of_backfill_wakes_up() -> None:
    """a runs, b needs the whole node and waits. Of those behind it one is looked at in a round: c at 0, so d at 1."""
    jobs = [job("a", 1, 100), job("b", 3, 1), job("c", 1, 5), job("d", 1, 5)]
    runs = [
        simulate(workload(jobs), cluster([3]), make_policy("fifo-backfill:depth=1"), interval_s=1, skip=skip, keep_journal=True)
        for skip in (True, False)
    ]
    assert actions(runs[0]) == actions(runs[1])
