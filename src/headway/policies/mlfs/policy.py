"""`mlf-h` (Wang, Liu, Shen, CoNEXT 2020, §3.3): the heuristic scheduler of MLFS.

What the paper says: every task has a priority of its job's urgency, progress and loss, and of its deadline, remaining and waiting
time, summed over what depends on it; tasks take the host nearest to an ideal one; tasks leave overloaded servers for others.
What we read into it: see the parameters; each ambiguity's number (A1–A31) is named there. Jobs are placed whole, and are only
stopped for a move to another host. Where queues have quotas, which the paper does not know, its order is kept and the places are
those of the pass that lends and takes back (`docs/semantics.md` §4): no ideal hosts, no moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import ROW_MASK
from headway.core.explain import Explanation
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.place.gang import Kernel
from headway.place.quotas import has_quotas
from headway.policies.mlfs import priority as p
from headway.policies.mlfs.explain import explain_mlf_h
from headway.policies.mlfs.heuristic import mlf_h, mlf_h_leave, queue_keys, sift
from headway.policies.mlfs.nearest import FLOATS, SIZES, SLOTS, columns_of
from headway.policies.params import make_params, param
from headway.policies.simple import place_in_order

US = 1_000_000
TIME_UNITS = {"hour": 3600 * US, "minute": 60 * US, "second": US}
DAG_MODES = {"unique": p.UNIQUE, "literal": p.LITERAL, "mean": p.MEAN}
LATE_MODES = {"hold": p.HOLD, "drop": p.DROP, "cap": p.CAP}


@dataclass(frozen=True, slots=True)
class MlfHParams:
    alpha: float = param(0.3, "weight of the ML features against those of computation (Eq. 6)", high=1)
    gamma: float = param(0.8, "what a dependent's priority adds to a task's (Eqs. 3, 5)", high=10)
    gamma_d: float = param(0.3, "weight of the deadline (Eq. 4)", high=1e6)
    gamma_r: float = param(0.3, "weight of the remaining time (Eq. 4)", high=1e6)
    gamma_w: float = param(0.35, "weight of the waiting time (Eq. 4)", high=1e6)
    h_r: float = param(0.9, "usage from which a resource is overloaded", low=0.05, high=1)
    p_s: float = param(0.1, "share of the lowest tasks on overloaded GPUs that may leave", high=1)
    protect: float = param(0.0, "share of the highest tasks that no other overloaded resource moves (A9)", high=1)
    dag_mode: str = param("unique", "how dependents count (A5)", choices=tuple(DAG_MODES))
    normalize: bool = param(True, "scale PML and PC to 0…1 over all live tasks before Eq. 6 (A3)")
    time_unit: str = param("hour", "unit of the times in Eq. 4 (A3)", choices=tuple(TIME_UNITS))
    late: str = param("hold", "the deadline term of a late job (A3)", choices=tuple(LATE_MODES))
    sharing: bool = param(True, "put jobs that allow it side by side on one GPU (A21)")
    migration: bool = param(True, "tasks leave overloaded nodes")
    bandwidth: bool = param(True, "traffic counts where a task goes and which leaves (A11)")
    urgency: bool = param(True, "urgency counts in Eq. 2")
    deadline: bool = param(True, "the deadline counts in Eq. 4")
    placement: str = param("job", "what is given places: whole jobs, or task by task", choices=("job", "task"), tuned=False)
    detector: bool = param(True, "with placement=task, jobs that wait for each other's places are told apart", tuned=False)
    cool_down: float = param(300.0, "seconds for which a job that has just come up is not moved (A10)")
    believe: float = param(4.0, "how far a job is believed of its pace, loss and length; 0: in all", high=1e6, tuned=False)
    tuned: bool = param(False, "take what tuning on development seeds found, where nothing else is given")


TUNED = {
    "alpha": "0.75", "gamma": "0.1", "gamma_d": "1.5", "gamma_r": "4", "gamma_w": "0.05", "h_r": "0.98", "p_s": "0.2",
    "dag_mode": "mean", "normalize": "false", "late": "drop", "cool_down": "1500",
}  # fmt: skip
"""Found by `headway tune mlf-h` (`mlfs-paper`, stress, 1,860 jobs on 20x4, seeds 0–5), rounded from a flat optimum."""


def mlf_h_params(words: dict[str, str]) -> MlfHParams:
    """Parameters from `key=value` words; with `tuned=true` the others default to `TUNED`.

    Raises:
        UserError: as `make_params`.
    """
    params = make_params(MlfHParams, "mlf-h", words)
    given = {key.replace("-", "_"): word for key, word in words.items()}
    return make_params(MlfHParams, "mlf-h", TUNED | given) if params.tuned else params


@dataclass(frozen=True, slots=True)
class MlfH:
    """MLFS' heuristic: priorities by urgency, loss, graph, deadline and waiting; ideal hosts; moves off overloaded nodes."""

    params: MlfHParams
    name: str = "mlf-h"
    weights: Floats = field(init=False, compare=False)
    limits: Floats = field(init=False, compare=False)

    def __post_init__(self) -> None:
        q = self.params
        W = np.zeros(p.WEIGHTS)
        W[p.W_ALPHA], W[p.W_GAMMA], W[p.W_REMAINING], W[p.W_WAIT] = q.alpha, q.gamma, q.gamma_r, q.gamma_w
        W[p.W_DEADLINE] = q.gamma_d if q.deadline else 0.0
        W[p.W_UNIT_US], W[p.W_TAU_US], W[p.W_FLOOR] = TIME_UNITS[q.time_unit], 60 * US, 1e-3
        W[p.W_URGENCY], W[p.W_NORMALIZE] = q.urgency, q.normalize
        W[p.W_BELIEVE] = q.believe
        W[p.W_DAG], W[p.W_LATE] = DAG_MODES[q.dag_mode], LATE_MODES[q.late]
        object.__setattr__(self, "weights", W)
        object.__setattr__(self, "limits", np.array([q.h_r, q.p_s, q.cool_down * US, 1.0 - q.protect]))

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        draft = view.draft()
        st, s, q = view.state, draft.scratch, self.params
        rows, tasks, nodes = int(st.C[c.C_ROWS]), int(st.C[c.C_TASKS]), st.N.shape[1]
        if view.waiting == 0 and not (q.migration and st.C[c.C_RUNNING]):
            return draft.plan()
        quotas = has_quotas(st.Q)
        ML, CP, P = s.floats("mlf-h tasks", 3, tasks)
        top, keys, leaving = s.floats("mlf-h top", 1, rows)[0], *s.ints("mlf-h rows", 2, rows)
        nexts, fate, pool, order, bounds = s.ints("mlf-h lists", 5, tasks + 1)
        U, K = s.ints("mlf-h loads", 4, nodes), s.ints("mlf-h marks", 4, nodes)
        L, touched = s.ints("mlf-h gpus", 3, st.G.shape[1]), s.ints("mlf-h touched", 1, nodes + 1)[0]
        F, S = s.floats("mlf-h index", FLOATS, columns_of(nodes)), s.ints("mlf-h sizes", SIZES, columns_of(nodes))
        slots = s.ints("mlf-h slots", 1, 2 * SLOTS)[0]
        p.priorities(view.now_us, self.weights, st.J, st.T, st.C, ML, CP, bounds, P, top)
        mlf_h_leave(
            view.now_us, q.migration and not quotas, q.sharing, q.bandwidth, self.limits, st.J, st.T, st.N, st.G, st.B, st.C,
            s.A, s.AB, U, K, L, nexts, touched, P, fate, pool, leaving,
        )  # fmt: skip
        count = queue_keys(st.J, st.T, st.C, top, P, leaving, fate, keys)
        if quotas:
            ranked = keys[:count]
            ranked.sort()
            within = place_in_order(view, ranked & ROW_MASK, int(Kernel.CONSOLIDATED), "skip", 0, q.sharing)
            within.wake_at_us(view.now_us)
            return within.plan()
        left = sift(
            keys, count, view.now_us, q.sharing, self.limits, st.J, st.T, st.N, st.Q, st.C, s.A, s.AB, U, K, L, F, S, slots,
            leaving, fate,
        )  # fmt: skip
        ranked = keys[:left]
        ranked.sort()
        _, unplaced = mlf_h(
            ranked, left, count - left, view.now_us, q.sharing, q.bandwidth, self.limits, st.J, st.T, st.N, st.G, st.Q, st.B,
            st.C, s.planned, s.A, s.AB, U, K, L, F, S, touched, P, fate, order, bounds, leaving, s.O, s.OT, s.M,
        )  # fmt: skip
        if unplaced or view.state.C[c.C_RUNNING]:
            draft.wake_at_us(view.now_us)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        q = self.params
        return explain_mlf_h(
            view, job, self.weights, self.limits, q.time_unit, migration=q.migration, sharing=q.sharing, bandwidth=q.bandwidth
        )
