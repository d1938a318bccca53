"""One run of a reproduction, in a process of its own: the figures of `headway simulate`, and those that only the paper has."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from headway.app import simulate as simulation
from headway.app.simulate import Json, SimulateRequest
from headway.core import columns as c
from headway.core.columns import NodePhase, Phase, Reason
from headway.core.errors import UserError
from headway.core.plan import Plan
from headway.core.policy import Memo, Policy
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.metrics.fold import M_END, M_FINISHING, M_PHASE, M_SUBMITTED
from headway.sim.run import Outcome

CLUSTERS = {"testbed": "20x4", "large": "mlfs-paper-large"}
GENERATORS = {"testbed": "mlfs-paper", "large": "mlfs-paper-large"}
WARM_UP = "mlfs-paper:jobs=60"
H_R = 0.9
"""Usage above which a resource of a server is overloaded (MLFS §4.1)."""
SLOW_S = 6000.0
"""The 100 minutes of Fig. 4(a)."""
_warm: set[str] = set()
"""Policies whose kernels this process has loaded: compiling is not in a policy's times."""


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: all that makes it what it is."""

    scale: str
    protocol: str
    load: int
    policy: str
    seed: int
    counted: bool = False
    """Whether overloaded servers are counted, for which every round is held: nothing else changes but the time to decide."""

    @property
    def key(self) -> str:
        return json.dumps(asdict(self))

    @property
    def workload(self) -> str:
        return f"{GENERATORS[self.scale]}:jobs={self.load},protocol={self.protocol}"


class CountsOverload:
    """A policy as it is, with a count of the servers that it finds overloaded: one for each of them in each round."""

    def __init__(self, inner: Policy) -> None:
        self.inner, self.overloads = inner, 0

    @property
    def name(self) -> str:
        return self.inner.name

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        self.overloads += overloaded(view.state)
        return self.inner.decide(view, memo)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.inner, attribute)


def overloaded(state: State) -> int:
    """How many servers that are up have a resource that is used above `H_R`: cpus, memory, network, or a GPU with several
    tasks.
    """
    nodes = int(state.C[c.C_NODES])
    N, G = state.N[:, :nodes], state.G[:, : int(state.C[c.C_GPUS])]
    hot = np.zeros(nodes, np.bool_)
    hot[G[c.G_NODE, (G[c.G_TASKS] > 1) & (G[c.G_USED] > H_R * c.WHOLE)]] = True
    for used, most in ((c.N_USE_CPU, c.N_CPU_MAX), (c.N_USE_MEM, c.N_MEM_MAX), (c.N_USE_NET, c.N_NET_MAX)):
        hot |= N[used] > H_R * np.maximum(N[most], 1)
    return int(np.count_nonzero(hot & (N[c.N_PHASE] == NodePhase.UP)))


def run_one(run: Run) -> Json:
    """The figures of a run. One in which jobs wait for ever has only `stuck`, and why."""
    if run.policy not in _warm:
        _warm.add(run.policy)
        with suppress(UserError):
            _figures(replace(run, scale="testbed"), WARM_UP)
    try:
        return _figures(run, run.workload)
    except UserError as error:
        return {"stuck": str(error)}


def _figures(run: Run, workload: str) -> Json:
    asked = SimulateRequest(
        workload=workload, cluster=CLUSTERS[run.scale], policies=(run.policy,), seed=run.seed, skip=not run.counted
    )
    prepared = simulation.prepare(asked)
    counter = None
    if run.counted:
        chosen = prepared.policies[0]
        counter = CountsOverload(chosen.policy)
        prepared = replace(prepared, policies=(replace(chosen, policy=counter),))
    for chosen, outcome in simulation.outcomes(asked, prepared, warm_up=False):
        entry = simulation.result(chosen, prepared.workload, prepared.cluster, asked.seed, prepared.round_s, outcome)
        return {
            **entry,
            **_extra(outcome),
            "span_s": prepared.workload.span_us / US_PER_S,
            "refused": int(outcome.refused),
            "overloads": counter.overloads if counter else None,
        }
    raise AssertionError("one policy, one outcome")


def _extra(outcome: Outcome) -> Json:
    """Quantiles of the completion times (every per cent, by nearest rank), deadlocks, and who ended early."""
    M = outcome.metrics.M[outcome.metrics.M[:, M_PHASE] != -1]
    done = M[M[:, M_PHASE] == Phase.COMPLETED]
    jct = np.sort(done[:, M_END] - done[:, M_SUBMITTED])
    ranks = np.maximum(-(-len(jct) * np.arange(101) // 100), 1) - 1
    return {
        "jct_quantiles_s": (jct[ranks] / US_PER_S).tolist() if len(jct) else [],
        "jct_under_100min_frac": float(np.count_nonzero(jct < SLOW_S * US_PER_S)) / len(M) if len(M) else None,
        "deadlocks": outcome.metrics.deadlocks,
        "early_stops": int(np.count_nonzero(done[:, M_FINISHING] == Reason.EARLY_STOP)),
    }
