"""What MLF-RL sees of the jobs: the rows of the feature table for a round, with MLF-H's priorities among them (Eqs. 2–6)."""

from __future__ import annotations

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import STOPPING
from headway.core.columns import Name
from headway.core.jit import kernel
from headway.core.state import State
from headway.core.view import ClusterView
from headway.features.table import MODELS, R_GLOBAL, RANK, Singles, global_row, rank_row
from headway.policies.mlfs import priority as p

OVERLOAD_FRAC = 0.9
"""h_r of the columns GLOBAL."""


@kernel
def fill_rank(
    rows: Ints, n: int, now: int, J: Table, E: Floats, kinds: Ints, ML: Floats, CP: Floats, top: Floats, of_all: Singles,
    X: Singles,
) -> None:  # fmt: skip
    """The columns RANK of `n` jobs. `of_all`: the columns GLOBAL."""
    ml_most, cp_most = 1e-12, 1e-12
    for i in range(n):
        t = J[c.J_TASK0, rows[i]]
        ml_most, cp_most = max(ml_most, ML[t]), max(cp_most, CP[t])
    for i in range(n):
        row = rows[i]
        t = J[c.J_TASK0, row]
        rank_row(i, row, now, J, E, kinds, ML[t] / ml_most, CP[t] / cp_most, top[row], X)
        for k in range(of_all.shape[0]):
            X[i, R_GLOBAL + k] = of_all[k]


@kernel
def candidates(J: Table, C: Ints, rows: Ints) -> int:
    """The rows of placed and waiting jobs, in order of arrival; how many there are."""
    n = 0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        rows[n] = row
        n += 1
    return n


def kinds_of(state: State) -> Ints:
    """By number of a model's name its place among the models that the table knows, −1: none. Where models have numbers but no
    names, as in the simulator, they are those of the paper in order."""
    known = state.names[Name.MODEL]
    if not known:
        return np.arange(len(MODELS))
    kinds = np.full(max(known, default=0) + 1, -1, np.int64)
    for number, name in known.items():
        if name in MODELS:
            kinds[number] = MODELS.index(name)
    return kinds


def paper_weights() -> Floats:
    """MLF-H's weights as the paper has them."""
    from headway.policies.mlfs.policy import MlfH, MlfHParams

    return MlfH(MlfHParams()).weights


class Watched:
    """The working memory of one look at the jobs."""

    __slots__ = ("CP", "ML", "P", "X", "bounds", "of_all", "rows", "top")

    def __init__(self, state: State) -> None:
        rows, tasks = state.J.shape[1], state.T.shape[1]
        self.ML, self.CP, self.P = np.zeros((3, tasks))
        self.top, self.bounds = np.zeros(rows), np.zeros(tasks + 1, np.int64)
        self.rows, self.X = np.zeros(rows, np.int64), np.zeros((rows, len(RANK)), np.float32)
        self.of_all = np.zeros(len(RANK) - R_GLOBAL, np.float32)


def look(view: ClusterView, weights: Floats, sharing: bool, at: Watched) -> int:
    """Fill `at` with the placed and waiting jobs and their features; how many there are."""
    st = view.state
    p.priorities(view.now_us, weights, st.J, st.T, st.C, at.ML, at.CP, at.bounds, at.P, at.top)
    n = candidates(st.J, st.C, at.rows)
    global_row(view.now_us, sharing, OVERLOAD_FRAC, st.J, st.N, st.G, st.C, at.of_all)
    fill_rank(at.rows, n, view.now_us, st.J, st.F, kinds_of(st), at.ML, at.CP, at.top, at.of_all, at.X)
    return n


def rank_features(view: ClusterView, rows: Ints, sharing: bool = True) -> Singles:
    """The columns RANK of some placed or waiting jobs (rows of the state), for training and for people."""
    at = Watched(view.state)
    n = look(view, paper_weights(), sharing, at)
    place = np.full(view.state.J.shape[1], -1, np.int64)
    place[at.rows[:n]] = np.arange(n)
    return at.X[place[rows]].copy()
