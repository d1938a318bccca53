"""Load (or, the first time on a machine, compile) the kernels that a policy needs, before anybody waits for them."""

from __future__ import annotations

from contextlib import suppress

from headway.core.policy import Policy, teacher_of
from headway.sim.run import StuckError, simulate
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

WORKLOAD = "poisson:jobs=30,load=1.2,cluster=2x2"


def warm_up(policy: Policy) -> None:
    """Decide for some jobs of a simulated world, the policy's teacher too. Nothing is kept."""
    with suppress(StuckError):
        simulate(load_workload(WORKLOAD), parse_cluster("2x2"), policy)
    if (teacher := teacher_of(policy)) is not None:
        warm_up(teacher)
