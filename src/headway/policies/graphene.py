"""Graphene (Grandl et al., OSDI 2016): packing with troublesome tasks first, and one score of several aims for the order of jobs.

What the paper says: within a job the *troublesome* tasks (long, or hard to pack) are put into the free resources first and the
others around them, none before what it depends on. Online, a machine takes the job with the best mix of how well it fits
(Tetris' dot product of demand and room), how little work it has left, and how far its owner is behind his fair share.
What we read into it: the tasks of a gang run at the same time, so none can come before another, and what is left of
*troublesome first* is that the largest shares of GPUs are dealt first (with `sharing=true`; the tasks of a gang on whole GPUs
take the same). The score of a job is `jct · (work left / mean) − pack · (demand / largest) − fair · (part of its fair share
that it lacks)`, lowest first. Work left is the remaining time by the user's estimate × GPUs; jobs without one come after those
that have one, and have a mean of their own. Demand is the mean, over GPUs, cpus and memory, of what it asks for as a part of
what all nodes that are up have: measured against all of it rather than what is free just now, so that a job's place in the
order does not hang on who is running. The fair share of a job is an equal part of the GPUs, at most what it asks for, since its
submission. MLFS' text (§2, §4.1) names the same three aims. Jobs are
preempted, as its other baselines do; `preempt=false` is as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import STOPPING, UP
from headway.core.columns import ROW_MASK
from headway.core.explain import Explanation, Term
from headway.core.jit import inner, kernel
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.policies.classic import US, place_by_rank
from headway.policies.explain import SERVICE, WAITING_ONLY, by_keys, own_key, row_of, sorted_keys
from headway.policies.params import Common, param
from headway.policies.ranks import KEY_MAX, attained_us, pack, run_us
from headway.policies.simple import UNFIT, place_in_order

W_JCT, W_PACK, W_FAIR = range(3)
STEPS = 100_000
"""Scores are compared in steps of 1/100,000, so that the last bits of a sum decide nothing."""
LATER = KEY_MAX // 2
"""Keys from here on are those of jobs without an estimate, where work counts."""


@inner
def need_of(J: Table, row: int, sharing: bool) -> int:
    """Thousandths of GPUs that a job takes."""
    return int(J[c.J_GPU_MILLI, row] if sharing and J[c.J_SHARE, row] else J[c.J_GPUS, row] * c.WHOLE)


@inner
def work_left(J: Table, row: int, now: int, sharing: bool) -> float:
    """Remaining time (µs) × GPUs."""
    left = max(J[c.J_ESTIMATE, row] - run_us(J, row, now), 0)
    return float(left) * float(need_of(J, row, sharing)) / c.WHOLE


@inner
def demand(J: Table, row: int, sharing: bool, gpus: float, cpus: float, memory: float) -> float:
    """What a job asks for, as a part of the cluster: the mean over GPUs, cpus and memory."""
    cpu = J[c.J_WORKERS, row] * J[c.J_CPU_TASK, row] + J[c.J_SERVERS, row] * J[c.J_SERVER_CPU, row]
    mem = J[c.J_WORKERS, row] * J[c.J_MEM_TASK, row] + J[c.J_SERVERS, row] * J[c.J_SERVER_MEM, row]
    return float((need_of(J, row, sharing) / gpus + cpu / cpus + mem / memory) / 3.0)


@inner
def lacking(J: Table, row: int, now: int, sharing: bool, each: float) -> float:
    """The part of its fair share, since its submission, that a job has not had; `each`: an equal part of the GPUs
    (thousandths)."""
    part = min(each, float(need_of(J, row, sharing)))
    due = float(now - J[c.J_SUBMITTED, row]) * part / c.WHOLE
    return float(min(max(1.0 - attained_us(J, row, now) / due, 0.0), 1.0)) if due > 0 else 0.0


@kernel
def totals(
    J: Table, N: Table, C: Ints, now: int, sharing: bool
) -> tuple[float, float, float, float, float, float, float]:  # fmt: skip
    """GPUs (thousandths), cpus (thousandths) and memory (bytes) of the nodes that are up; an equal part of the GPUs for each
    ranked job; the mean work left (GPU·µs) of those with an estimate, and of those without; the largest demand of a job."""
    gpus, cpus, memory = 0, 0, 0
    for node in range(C[c.C_NODES]):
        if N[c.N_PHASE, node] == UP:
            gpus += N[c.N_GPUS, node] * c.WHOLE
            cpus += N[c.N_CPU_MAX, node]
            memory += N[c.N_MEM_MAX, node]
    g, u, m = max(float(gpus), 1.0), max(float(cpus), 1.0), max(float(memory), 1.0)
    jobs, known, work, unknown, largest = 0, 0, 0.0, 0.0, 0.0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (J[c.J_PLACED, row] == 0 and (phase == STOPPING or J[c.J_HOLD, row])):
            continue
        jobs += 1
        if J[c.J_ESTIMATE, row] < c.NEVER:
            known += 1
            work += work_left(J, row, now, sharing)
        else:
            unknown += work_left(J, row, now, sharing)
        largest = max(largest, demand(J, row, sharing, g, u, m))
    return g, u, m, g / max(jobs, 1), max(work / max(known, 1), 1.0), max(unknown / max(jobs - known, 1), 1.0), largest


@kernel
def graphene_keys(
    J: Table, N: Table, C: Ints, now: int, sharing: bool, W: Floats, placed: Ints, waiting: Ints
) -> tuple[int, int]:  # fmt: skip
    """Keys by score, those of jobs without an estimate from LATER on. Fills `placed` and `waiting`; returns how many of each."""
    g, u, m, each, mean_known, mean_unknown, largest = totals(J, N, C, now, sharing)
    p, w = 0, 0
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        known = J[c.J_ESTIMATE, row] < c.NEVER
        score = W[W_JCT] * work_left(J, row, now, sharing) / (mean_known if known else mean_unknown)
        score -= W[W_FAIR] * lacking(J, row, now, sharing, each)
        if largest > 0:
            score -= W[W_PACK] * demand(J, row, sharing, g, u, m) / largest
        steps = int(min(max((score + W[W_PACK] + W[W_FAIR]) * STEPS, 0.0), float(LATER - 1)))
        key = pack(J[c.J_PRIORITY, row], steps if known or W[W_JCT] == 0 else LATER + steps, row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w


@dataclass(frozen=True, slots=True)
class GrapheneParams(Common):
    jct: float = param(1.0, "weight of the work that a job has left, over the mean", high=1e3)
    pack: float = param(0.1, "weight of what a job asks for, over the largest", high=1e3)
    fair: float = param(0.1, "weight of what a job lacks of its fair share", high=1e3)
    preempt: bool = param(True, "stop jobs for those with a better score")
    unfit: str = param("skip", "what follows when the first does not fit (preempt=false)", choices=UNFIT)
    depth: int = param(1000, "how many jobs behind the head are looked at (preempt=false, backfill)")


@dataclass(frozen=True, slots=True)
class Graphene:
    """Troublesome tasks first, and jobs by a score of work left, packing and fairness."""

    params: GrapheneParams
    name: str = "graphene"
    weights: Floats = field(init=False, compare=False)

    def __post_init__(self) -> None:
        p = self.params
        object.__setattr__(self, "weights", np.array([p.jct, p.pack, p.fair]))

    @property
    def strict(self) -> bool:
        """Whether a job that does not fit holds up those behind it."""
        return not self.params.preempt and self.params.unfit == "block"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        st, p = view.state, self.params
        s = st.scratch
        placed, waiting = graphene_keys(st.J, st.N, st.C, view.now_us, p.sharing, self.weights, s.keys_placed, s.keys_waiting)
        if p.preempt:
            draft = place_by_rank(view, placed, waiting, p.kernel, sharing=p.sharing, hardest=True)
        else:
            order = np.sort(s.keys_waiting[:waiting]) & ROW_MASK
            draft = place_in_order(view, order, p.kernel, p.unfit, p.depth, p.sharing)
        draft.wake_at_us(view.now_us)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        st, p, row, now = view.state, self.params, row_of(view, job), view.now_us
        sharing = p.sharing
        keys = sorted_keys(
            view, lambda placed, waiting: graphene_keys(st.J, st.N, st.C, now, sharing, self.weights, placed, waiting)
        )
        g, u, m, each, mean, mean_unknown, largest = totals(st.J, st.N, st.C, now, sharing)
        known = st.J[c.J_ESTIMATE, row] < c.NEVER
        left = work_left(st.J, row, now, sharing)
        work, lacks = left / (mean if known else mean_unknown), lacking(st.J, row, now, sharing, each)
        asks = demand(st.J, row, sharing, g, u, m)
        size = asks / largest if largest > 0 else 0.0
        key = own_key(keys, row)
        last = not known and p.jct > 0
        score = None if key is None else (key - LATER if last else key) / STEPS - p.pack - p.fair
        part = min(each, float(need_of(st.J, row, sharing))) / c.WHOLE
        of = "work left ÷ mean work" if known else "without an estimate: its GPUs ÷ the mean of such jobs"
        rule = "the sum in steps of 0.00001: lowest first" + (", after all jobs with an estimate" if last else "")
        terms = (
            Term("work left", left / US if known else None, SERVICE, "(estimate − run time) × GPUs"),
            Term("mean work", mean / US, SERVICE, "mean work left of the ranked jobs that have an estimate"),
            Term("work", work, "", f"{of}; added to the score", p.jct, p.jct * work),
            Term("demand", asks, "", "mean of its GPUs, cpus and memory, each as a part of the cluster"),
            Term("size", size, "", "demand ÷ the largest demand of a job; added to the score", 0.0 - p.pack, 0.0 - p.pack * size),
            Term("fair part", part, "GPUs", "an equal part of the cluster's GPUs, at most what it asks for"),
            Term(
                "lacks", lacks, "", "part that it did not get of fair part × time since submission; added to the score",
                0.0 - p.fair, 0.0 - p.fair * lacks,
            ),
            Term("score", score, "", rule),
        )  # fmt: skip
        words = "the lowest score first: little work left, large demand, less than a fair share so far"
        if not p.preempt:
            waits = keys[st.J[c.J_PLACED, keys & ROW_MASK] == 0]
            return by_keys(view, waits, job, terms, f"{words}; {WAITING_ONLY}")
        return by_keys(view, keys, job, terms, words, stops=True)
