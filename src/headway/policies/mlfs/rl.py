"""`mlf-rl` (Wang, Liu, Shen, CoNEXT 2020, §3.4): a network decides what MLF-H decided while it learnt from it.

What the paper says: the state is that of all tasks and servers, the action a whole schedule, the reward Eq. 7; MLF-H schedules
until the model is well trained. Layers and encoding are not given. What we read into it: a round is a row of choices over a set
of candidates that may have any size, each a masked softmax when it learns and the best when it is used (`specs` of the paper
leave it open): who of the placed and waiting jobs has places (the *rank* head; the preemptive pass of `place.ranked` carries an
order of jobs out), which node each task of a starting job gets (*server*), and which tasks leave overloaded nodes (*move*).
Where the network knows nothing, beyond the range of what it was trained on, or where a score is no number, its teacher decides
the round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Op
from headway.core.explain import Explanation, Term
from headway.core.plan import Draft, Plan
from headway.core.policy import Policy, PolicyFault
from headway.core.view import ClusterView
from headway.features.table import MOVE, RANK, SERVER, Singles
from headway.place.quotas import has_quotas
from headway.policies.classic import place_by_rank
from headway.policies.explain import by_keys, row_of
from headway.policies.mlfs.nearest import FLOATS, SIZES, columns_of
from headway.policies.mlfs.net import WIDTHS, Head, Net, score_rows
from headway.policies.mlfs.observe import Watched, look, paper_weights
from headway.policies.mlfs.rl_pass import (
    D_MODE,
    D_ROOM,
    D_SEED,
    HEAD_SERVER,
    R_CHOSEN,
    R_HEAD,
    R_ROWS,
    RECORD,
    ROWS,
    USE,
    move_out,
    refine,
    rehouse,
)
from headway.policies.params import Common, param
from headway.policies.ranks import KEY_MAX, PRIORITY_TOP

US = 1_000_000
STEPS = 100_000
"""Scores are compared in steps of 1/100,000, so that the last bits of a sum decide nothing."""
SCORE_MAX = KEY_MAX // 2 // STEPS
"""Scores lie within ± this."""
CHOICES_MAX = 256
"""Choices of nodes of one round that are told to who trains."""
BEYOND_FRAC, MARGIN = 0.05, 0.25
"""A round goes to the teacher when more than this share of its numbers lies outside of the trained range, which is widened by
this part."""


@dataclass(frozen=True, slots=True)
class MlfRlParams(Common):
    sharing: bool = param(True, "put jobs that allow it side by side on one GPU (A21)")
    model: str = param("shipped", "the folder of a trained model, or the one that is shipped", tuned=False)
    teacher: str = param("mlf-h", "who decides where the network may not", choices=("mlf-h", "mlf-h-tuned"), tuned=False)
    migration: bool = param(True, "tasks leave overloaded nodes")
    h_r: float = param(0.9, "usage from which a resource is overloaded", low=0.05, high=1)
    p_s: float = param(0.1, "share of the lowest tasks on overloaded GPUs that may leave", high=1)
    cool_down: float = param(300.0, "seconds for which a job that has just come up is not moved")
    guard: bool = param(True, "the teacher decides beyond the trained range", tuned=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice, as it was made: what there was to choose from, and what was taken."""

    head: str
    now_us: int
    X: Singles
    """(candidates × columns) the features."""
    order: Ints
    """The candidates that were taken, in order: those who have places after the pass, or one node, or one task."""


class Explore(Protocol):
    """What training adds to decisions, and to whom they are told."""

    scale: float
    """Of the Gumbel noise on the server and move heads; 0: the best is taken."""

    def noise(self, jobs: Ints, now_us: int) -> Floats:
        """What is added to the rank scores of jobs (numbers)."""
        ...

    def took(self, decision: Decision) -> None:
        """Is told every decision."""
        ...


class MlfRl:
    """A trained network: who has places, on which nodes, and who leaves overloaded ones."""

    name = "mlf-rl"

    def __init__(
        self, params: MlfRlParams, net: Net, teacher: Policy, ranges: Mapping[str, Singles] | None = None, *,
        explore: Explore | None = None, name: str = "mlf-rl", masked: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """`ranges`: by head the least and the greatest of each column (columns × 2) that training has seen. `masked`: columns
        of RANK that the network is not to see."""
        self.params, self.net, self.teacher, self.explore, self.name = params, net, teacher, explore, name
        self.masked = np.array([RANK.index(column) for column in masked], np.int64)
        self.weights = paper_weights()
        self.limits = np.array([params.h_r, params.p_s, params.cool_down * US, 1.0])
        self.low, self.high = bounds_of(ranges.get("rank") if ranges else None)

    # -- deciding -------------------------------------------------------------------------------------------------
    def decide(self, view: ClusterView, memo: Any) -> Plan:
        st = view.state
        moves = self.params.migration and self.params.sharing and not has_quotas(st.Q)
        if view.waiting == 0 and not (moves and st.C[c.C_RUNNING]):
            return view.draft().plan()
        at, n, score = self.scored(view)
        if self.explore is not None:
            score = score + self.explore.noise(st.J[c.J_ID, at.rows[:n]], view.now_us)
        return self.carried_out(view, at, n, score, USE, self.explore.took if self.explore is not None else None)

    def scored(self, view: ClusterView) -> tuple[Look, int, Floats]:
        """The candidates and their rank scores.

        Raises:
            PolicyFault: a score is no number, or too much lies outside of the trained range.
        """
        at = watched(view)
        n = look(view, self.weights, self.params.sharing, at)
        X = at.X[:n]
        if len(self.masked):
            X[:, self.masked] = 0.0
        if self.params.guard and n:
            beyond = float(np.count_nonzero((self.low > X) | (self.high < X))) / X.size
            if beyond > BEYOND_FRAC:
                raise PolicyFault(f"{100 * beyond:.0f} % of the features lie outside of the trained range")
        got = np.empty(n, np.float32)
        score_rows(n, X, *self.net.rank.arrays(), at.hidden, got)
        score = got.astype(np.float64)
        if not np.isfinite(score).all():
            raise PolicyFault("a score is not a finite number")
        return at, n, score

    def carried_out(
        self, view: ClusterView, at: Look, n: int, score: Floats, mode: int, took: Callable[[Decision], None] | None
    ) -> Plan:
        """The plan that follows from rank scores."""
        st, s = view.state, view.state.scratch
        rows = at.rows[:n]
        keys = keys_of(score, st.J[c.J_PRIORITY, rows], rows)
        placed = st.J[c.J_PLACED, rows] == 1
        here, there = keys[placed], keys[~placed]
        s.keys_placed[: len(here)], s.keys_waiting[: len(there)] = here, there
        sharing = self.params.sharing
        draft = place_by_rank(view, len(here), len(there), self.params.kernel, sharing=sharing)
        if took is not None:
            took(rank_decision(view, draft, at, n, score))
        self.choose_nodes(view, draft, at, mode, took)
        if st.C[c.C_RUNNING] and self.params.migration and sharing:
            draft.wake_at_us(view.now_us)
        return draft.plan()

    def choose_nodes(self, view: ClusterView, draft: Draft, at: Look, mode: int, took: Callable[[Decision], None] | None) -> None:
        """The server and move heads, on the draft of the pass."""
        st, s, q = view.state, draft.scratch, self.params
        starts = bool((s.O[: s.M[0], c.O_OP] == Op.PLACE).any())
        moves = q.migration and q.sharing and bool(st.C[c.C_RUNNING]) and not has_quotas(st.Q)
        if not starts and not moves:
            return
        rows, tasks, nodes = int(st.C[c.C_ROWS]), int(st.C[c.C_TASKS]), st.N.shape[1]
        A, AB = s.ints("mlf-rl room", 4, s.A.shape[1]), s.ints("mlf-rl bits", *s.AB.shape)
        U, K = s.ints("mlf-h loads", 4, nodes), s.ints("mlf-h marks", 4, nodes)
        L, touched = s.ints("mlf-h gpus", 3, st.G.shape[1]), s.ints("mlf-h touched", 1, nodes + 1)[0]
        F, S = s.floats("mlf-h index", FLOATS, columns_of(nodes)), s.ints("mlf-h sizes", SIZES, columns_of(nodes))
        nexts, fate, order, places, pool = s.ints("mlf-h lists", 5, tasks + 1)
        olds, leaving = s.ints("mlf-rl places", 3, tasks + 1), s.ints("mlf-h rows", 2, rows)[0]
        D = np.zeros(3, np.int64)
        D[D_MODE], D[D_SEED] = mode, view.seed
        D[D_ROOM] = int(min(int(q.h_r * c.WHOLE), st.C[c.C_SHARE_LIMIT]))
        scale = self.explore.scale if self.explore is not None and mode == USE else 0.0
        book = at.book if took is not None else at.no_book
        book.count[0] = 0
        server, move = self.net.server.arrays(), self.net.move.arrays()
        over = refine(
            q.sharing, D, scale, self.limits, st.J, st.T, st.N, st.G, st.B, st.C, A, AB, U, K, L, nexts, touched, F, S, at.P,
            fate, order, places, olds, at.near, at.masks, at.fars, at.X_server, *server, at.hidden, at.got, at.of_all,
            book.server, book.kinds, book.count, s.O, s.OT, s.M,
        )  # fmt: skip
        tell(book, book.server, SERVER, view.now_us, took)
        if not moves or (over == 0 and rows):
            return
        leave = move_out(
            view.now_us, q.sharing, D, scale, self.limits, st.J, st.T, st.N, st.G, st.C, A, AB, U, K, L, nexts, touched, at.P,
            fate, pool, at.X_move, *move, at.hidden, at.got, at.fars, at.of_all, book.move, book.kinds, book.count, leaving,
        )  # fmt: skip
        tell(book, book.move, MOVE, view.now_us, took)
        if leave or not rows:
            rehouse(
                q.sharing, D, scale, self.limits, st.J, st.T, st.N, st.G, st.C, A, AB, U, K, L, touched, F, S, at.P, fate, order,
                places, leaving, at.near, at.masks, at.fars, at.X_server, *server, at.hidden, at.got, at.of_all, book.server,
                book.kinds, book.count, s.O, s.OT, s.M,
            )  # fmt: skip
            tell(book, book.server, SERVER, view.now_us, took)

    # -- explaining -----------------------------------------------------------------------------------------------
    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        try:
            at, n, score = self.scored(view)
        except PolicyFault as fault:
            teacher: Any = self.teacher
            told: Explanation = teacher.explain(view, memo, job)
            return replace(told, words=f"{told.words} ({teacher.name} decides this round: {fault.reason})")
        row, rows = row_of(view, job), at.rows[:n]
        keys = np.sort(keys_of(score, view.state.J[c.J_PRIORITY, rows], rows))
        here = np.flatnonzero(rows == row)
        terms: tuple[Term, ...] = ()
        if len(here):
            i = int(here[0])
            terms = (Term("score", float(score[i]), "", "of the rank head: highest first"), *most_of(self.net.rank, at.X[i]))
        return by_keys(view, keys, job, terms, "the highest score of the trained network first", stops=True)


def most_of(head: Head, x: Singles, most: int = 6) -> list[Term]:
    """The features that count most for a score: what it would lose if one were 0, the largest first."""
    X = np.repeat(x[None, :], len(x) + 1, axis=0)
    X[np.arange(len(x)), np.arange(len(x))] = 0.0
    got, hidden = np.empty(len(X), np.float32), np.empty((2, max(WIDTHS)), np.float32)
    score_rows(len(X), X, *head.arrays(), hidden, got)
    gain = got[-1] - got[:-1]
    best = [int(i) for i in np.argsort(-np.abs(gain), kind="stable")[:most] if gain[i] != 0.0]
    return [Term(RANK[i], float(gain[i]), "", f"what it adds to the score, at {x[i]:.2f}") for i in best]


def bounds_of(ranges: Singles | None) -> tuple[Singles, Singles]:
    """The least and the greatest value of each column of RANK for which the network is believed."""
    if ranges is None:
        return np.full(len(RANK), -np.inf, np.float32), np.full(len(RANK), np.inf, np.float32)
    low, high = np.asarray(ranges, np.float64).T
    slack = np.maximum(MARGIN * (high - low), 0.05)
    return (low - slack).astype(np.float32), (high + slack).astype(np.float32)


def keys_of(score: Floats, priority: Ints, rows: Ints) -> Ints:
    """Sortable numbers: the job's class, then the score from the highest down, then the row."""
    steps = ((SCORE_MAX - np.clip(score, -SCORE_MAX, SCORE_MAX)) * STEPS).astype(np.int64)
    packed: Ints = ((PRIORITY_TOP - priority) << (c.ROW_BITS + 34)) | (np.minimum(steps, KEY_MAX) << c.ROW_BITS) | rows
    return packed


def rank_decision(view: ClusterView, draft: Draft, at: Watched, n: int, score: Floats) -> Decision:
    """Who has places after the pass, from the highest score down."""
    s = draft.scratch
    holds = view.state.J[c.J_PLACED, at.rows[:n]] == 1
    O = s.O[: s.M[0]]
    index = np.full(view.state.J.shape[1], -1, np.int64)
    index[at.rows[:n]] = np.arange(n)
    holds[index[O[O[:, c.O_OP] == Op.PLACE, c.O_ROW]]] = True
    holds[index[O[O[:, c.O_OP] == Op.RELEASE, c.O_ROW]]] = False
    order = np.argsort(-score, kind="stable")
    return Decision("rank", view.now_us, at.X[:n].copy(), order[holds[order]])


class Book:
    """Where kernels write choices of nodes down."""

    __slots__ = ("count", "kinds", "move", "server")

    def __init__(self, size: int) -> None:
        self.server = np.zeros((size, ROWS, len(SERVER)), np.float32)
        self.move = np.zeros((size, ROWS, len(MOVE)), np.float32)
        self.kinds, self.count = np.zeros((size, RECORD), np.int64), np.zeros(1, np.int64)


def tell(book: Book, X: Singles, columns: tuple[str, ...], now_us: int, took: Callable[[Decision], None] | None) -> None:
    """Hand on what has been written down, and begin anew."""
    if took is not None:
        for r in range(int(book.count[0])):
            rows, chosen, head = book.kinds[r, R_ROWS], book.kinds[r, R_CHOSEN], book.kinds[r, R_HEAD]
            name = "server" if head == HEAD_SERVER else "move"
            took(Decision(name, now_us, X[r, :rows].copy(), np.array([chosen], np.int64)))
    book.count[0] = 0


class Look(Watched):
    """The working memory of a round."""

    __slots__ = ("X_move", "X_server", "book", "fars", "got", "hidden", "masks", "near", "no_book")

    def __init__(self, state: Any) -> None:
        super().__init__(state)
        self.hidden, self.got = np.empty((2, max(WIDTHS)), np.float32), np.empty(ROWS, np.float32)
        self.near, self.masks, self.fars = np.zeros(ROWS, np.int64), np.zeros(ROWS, np.int64), np.zeros(ROWS)
        self.X_server = np.zeros((ROWS, len(SERVER)), np.float32)
        self.X_move = np.zeros((ROWS, len(MOVE)), np.float32)
        self.book, self.no_book = Book(CHOICES_MAX), Book(0)


def watched(view: ClusterView) -> Look:
    """The working memory for a state: its own, made anew where its tables have grown."""
    s, st = view.state.scratch, view.state
    kept: Look | None = s.of_policy.get("mlf-rl")
    if kept is None or kept.rows.shape[0] < st.J.shape[1] or kept.P.shape[0] < st.T.shape[1]:
        kept = s.of_policy["mlf-rl"] = Look(st)
    return kept
