"""Requests of a plan come back as journalled estimates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core import columns as c
from headway.core.columns import Estimator, EventKind
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.testing.builders import cluster, job, workload

US = 1_000_000


@dataclass
class Asks:
    """fifo that asks for the remaining time of every live job in each round."""

    name: str = "asks"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        plan = make_policy("fifo").decide(view, memo)
        draft = view.draft()
        for one in view.jobs():
            draft.request(Estimator.REMAINING, one)
        return Plan(plan.overrides, plan.places, plan.seen, plan.wake_at_us, tuple(draft.requests))


def test_remaining_time_is_what_the_user_said_less_the_run_time() -> None:
    """One GPU: a (10 s, estimated 12) runs from 0; b (5 s, estimated 5) waits from 4 on. At 4: a has 12 - 4 = 8 s left, b 5."""
    jobs = [job("a", 1, 10, estimate_s=12), job("b", 1, 5, submit_s=4, estimate_s=5)]
    run = simulate(workload(jobs), cluster([1]), Asks(), interval_s=1, keep_journal=True)
    assert run.journal is not None
    told = run.journal.records[run.journal.records[:, c.E_KIND] == EventKind.ESTIMATED]
    at_four = {int(r[c.E_ID]): int(r[c.E_C]) for r in told if r[c.E_T] == 4 * US}
    assert at_four == {0: 8 * US, 1: 5 * US}
