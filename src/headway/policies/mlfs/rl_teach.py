"""MLF-RL for those who train it: with plain parameters, and a teacher whose decisions are told in MLF-RL's terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import Op
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.policies.mlfs import priority as p
from headway.policies.mlfs.net import Net
from headway.policies.mlfs.observe import look
from headway.policies.mlfs.policy import MlfH, MlfHParams
from headway.policies.mlfs.rl import Decision, Explore, MlfRl, MlfRlParams, watched
from headway.policies.mlfs.rl_pass import TEACH

KEPT = 1000.0
"""Added to the utility of jobs that the teacher leaves where they are: MLF-H stops nobody for another."""
Told = Callable[[Decision, Floats], None]


def mlf_rl(net: Net, *, sharing: bool = True, explore: Explore | None = None, masked: tuple[str, ...] = ()) -> MlfRl:
    """MLF-RL with a network in hand, believed everywhere."""
    params = MlfRlParams(sharing=sharing, guard=False)
    return MlfRl(params, net, MlfH(MlfHParams(sharing=sharing)), explore=explore, masked=masked)


@dataclass(frozen=True, slots=True)
class Watch:
    """Decides as MLF-H does, and tells each round in MLF-RL's terms: the rank decision with the utilities of the candidates
    (greater first, equal: a tie), and the node and the task that MLF-H would have taken wherever the heads are asked (no
    utilities)."""

    teacher: MlfH
    took: Told
    pupil: MlfRl = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pupil", mlf_rl(Net.plain(), sharing=self.teacher.params.sharing))

    @property
    def name(self) -> str:
        return self.teacher.name

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        plan = self.teacher.decide(view, memo).copy()
        st = view.state
        at = watched(view)
        n = look(view, self.pupil.weights, self.teacher.params.sharing, at)
        if n == 0 or (view.waiting == 0 and not st.C[c.C_RUNNING]):
            return plan
        utility = self.utilities(view, at.rows[:n])
        X = at.X[:n].copy()
        O = plan.overrides
        holds = st.J[c.J_PLACED, at.rows[:n]] == 1
        holds[np.isin(at.rows[:n], O[O[:, c.O_OP] == Op.PLACE, c.O_ROW])] = True
        order = np.argsort(-utility, kind="stable")
        self.took(Decision("rank", view.now_us, X, order[holds[order]]), utility)

        def nodes(decision: Decision) -> None:
            if decision.head != "rank":
                self.took(decision, np.zeros(0))

        self.pupil.carried_out(view, at, n, utility, TEACH, nodes)
        return plan

    def utilities(self, view: ClusterView, rows: Any) -> Floats:
        """MLF-H's order of the candidates: those with a place first, all alike, then by their highest task."""
        st = view.state
        tasks = st.T.shape[1]
        ML, CP, P = np.zeros((3, tasks))
        top, bounds = np.zeros(st.J.shape[1]), np.zeros(tasks + 1, np.int64)
        p.priorities(view.now_us, self.teacher.weights, st.J, st.T, st.C, ML, CP, bounds, P, top)
        found: Floats = np.where(st.J[c.J_PLACED, rows] == 1, KEPT, np.maximum(top[rows], 0.0))
        return found


def watch(teacher: MlfH, took: Told) -> Watch:
    """A teacher whose decisions are told."""
    return Watch(teacher, took)
