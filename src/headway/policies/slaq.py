"""SLAQ (Zhang, Stafman, Or, Freedman, SoCC 2017): GPUs go to the jobs that gain most quality with them.

What the paper says: of each running job the loss so far is fitted by `1/(a·k² + b·k + c) + d` or an exponential, with more
weight on what is recent; from it and from the measured speed follows how much the loss falls in the next epoch with any number
of cores. Losses are normalised by the largest fall so far. Cores are given one by one to whoever gains most by the next, each
epoch anew.
What we read into it: gangs are of fixed size, so a job has all its GPUs or none, and the greedy order is by the normalised fall
of the loss in the next `epoch`, per GPU; jobs with the least are paused (SLAQ leaves each job a core, which a gang cannot
have). The curve is the estimator INVERSE, `1/(b0·k + b1) + b2`, which weighs the last third of the history most
(`perf.optimus`); the fall is normalised by the whole of the curve, from k = 0 to its plateau. Curves are fitted anew when a job
has run an `epoch` since its last fit; then all are that have run half of one. A job without a fit (new, or without reports of
its loss) is taken to follow `1/(1 + 99 k/K)`, K its units. Gains rank in steps, so that jobs of about the same gain do not
preempt each other; within a step by arrival. There is no fairness: under lasting overload jobs that gain little wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.codes import RUNNING, STOPPING
from headway.core.columns import Estimator
from headway.core.explain import Explanation, Term
from headway.core.jit import inner, kernel
from headway.core.plan import Plan
from headway.core.view import ClusterView
from headway.policies.classic import US, place_by_rank
from headway.policies.explain import by_keys, own_key, row_of, sorted_keys
from headway.policies.params import Common, param
from headway.policies.ranks import pack, run_us

F0 = int(Estimator.INVERSE) * c.ESTIMATE_PARAMS_MAX
F_K_LAST, F_LEVEL, F_SLOPE, F_RATE, F_POWER, F_PLATEAU = (F0 + i for i in range(6))
"""Rows of the table of estimates with the vector of INVERSE (`headway.perf.params`)."""
PRIOR = 99.0
"""At the end of its run a job without a fit has 1 % of the loss above the plateau left."""
POINTS_MIN = 3
OCTAVES = 64


@inner
def progress(J: Table, row: int, now: int) -> tuple[float, float, float]:
    """Units done, units in all, and units per µs of running: as measured if the job has done any, else by its estimate. A job
    without units counts µs of its estimate."""
    total, run = J[c.J_UNITS_TOTAL, row], float(run_us(J, row, now))
    estimate = float(min(max(J[c.J_ESTIMATE, row], 1), 1 << 50))
    if total <= 0:
        return run, estimate, 1.0
    done = float(max(J[c.J_UNITS_DONE, row], 0))
    return done, float(total), done / run if done > 0 and run > 0 else total / estimate


@inner
def has_fit(F: Floats, row: int) -> bool:
    """Whether a curve of the job has been fitted."""
    return bool(F[F_POWER, row] == 1.0 and np.isfinite(F[F_K_LAST, row]))


@inner
def gain(J: Table, F: Floats, row: int, now: int, epoch: float) -> float:
    """The part of its whole fall by which a job's loss falls in the next `epoch` (µs) of running."""
    done, total, speed = progress(J, row, now)
    ahead = min(epoch * speed, max(total - done, 0.0))
    if not has_fit(F, row):
        if F[F_LEVEL, row] != 0.0 and np.isfinite(F[F_LEVEL, row]) and F[F_K_LAST, row] > 0:
            return 0.0
        return 1.0 / (1.0 + PRIOR * done / total) - 1.0 / (1.0 + PRIOR * (done + ahead) / total)
    slope, rate = F[F_SLOPE, row], F[F_RATE, row]
    if slope >= 0.0 or rate <= 0.0:
        return 0.0
    way = -slope / rate
    start = max(1.0 - rate * F[F_K_LAST, row], 1e-3)
    here = max(1.0 + rate * (done - F[F_K_LAST, row]), 1e-3)
    return start * (1.0 / here - 1.0 / (here + rate * ahead)) if way > 0.0 else 0.0


@inner
def gpus_of(J: Table, row: int, sharing: bool) -> float:
    """The GPUs that a job's gain is divided by; a job without any counts as a thousandth."""
    milli = J[c.J_GPU_MILLI, row] if sharing and J[c.J_SHARE, row] else J[c.J_GPUS, row] * c.WHOLE
    return max(float(milli) / c.WHOLE, 1e-3)


@inner
def step_of(value: float, steps: int) -> int:
    """The rank of a gain, best first: `steps` to a halving, counted from 1."""
    octave = 0
    while value < 1.0 and octave < OCTAVES:
        value *= 2.0
        octave += 1
    return octave * steps + int((2.0 - min(value, 2.0)) * steps)


@kernel
def slaq_keys(
    J: Table, F: Floats, C: Ints, now: int, epoch: float, steps: int, sharing: bool, placed: Ints, waiting: Ints, ask: Ints
) -> tuple[int, int, int]:  # fmt: skip
    """Keys by gain per GPU. Fills `placed`, `waiting` and `ask` (the rows whose curve is to be fitted); returns how many each."""
    p, w, asked, due = 0, 0, 0, False
    for row in range(C[c.C_ROWS]):
        phase = J[c.J_PHASE, row]
        if phase > STOPPING or (phase == STOPPING and J[c.J_PLACED, row] == 0):
            continue
        if phase == RUNNING and J[c.J_UNITS_DONE, row] >= POINTS_MIN and J[c.J_LOSS, row] != c.NOTHING:
            done, _, speed = progress(J, row, now)
            since = done - (F[F_K_LAST, row] if np.isfinite(F[F_K_LAST, row]) else 0.0)
            due = due or since >= epoch * speed
            if since >= max(epoch * speed / 2, 1.0):
                ask[asked] = row
                asked += 1
        each = gain(J, F, row, now, epoch) / gpus_of(J, row, sharing)
        key = pack(J[c.J_PRIORITY, row], step_of(each, steps), row)
        if J[c.J_PLACED, row]:
            placed[p] = key
            p += 1
        else:
            waiting[w] = key
            w += 1
    return p, w, asked if due else 0


@dataclass(frozen=True, slots=True)
class SlaqParams(Common):
    epoch: float = param(300.0, "seconds over which the gain is predicted", low=1.0, high=1e7)
    steps: int = param(1, "ranks to a halving of the gain", low=1, high=1000)


@dataclass(frozen=True, slots=True)
class Slaq:
    """GPUs go to the jobs whose loss falls most with them; those that gain least are paused."""

    params: SlaqParams
    name: str = "slaq"
    asks: bool = True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        st, p = view.state, self.params
        s = st.scratch
        if view.waiting == 0:
            return view.draft().plan()
        ask: Ints = np.empty(st.J.shape[1], np.int64)
        placed, waiting, asked = slaq_keys(
            st.J, st.F, st.C, view.now_us, p.epoch * US, p.steps, p.sharing, s.keys_placed, s.keys_waiting, ask
        )  # fmt: skip
        draft = place_by_rank(view, placed, waiting, p.kernel, sharing=p.sharing)
        for row in ask[:asked].tolist():
            draft.request(Estimator.INVERSE, int(st.J[c.J_ID, row]))
        draft.wake_at_us(view.now_us)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        st, p, row, now = view.state, self.params, row_of(view, job), view.now_us
        J, F, epoch = st.J, st.F, self.params.epoch * US
        ask: Ints = np.empty(J.shape[1], np.int64)
        keys = sorted_keys(
            view, lambda placed, waiting: slaq_keys(J, F, st.C, now, epoch, p.steps, p.sharing, placed, waiting, ask)
        )
        done, total, speed = progress(J, row, now)
        by_time = J[c.J_UNITS_TOTAL, row] <= 0
        units, of = ("s", US) if by_time else ("units", 1)
        seen = "it tells no units: seconds of its estimate" if by_time else "as measured" if done > 0 else "by its estimate"
        ahead = min(epoch * speed, max(total - done, 0.0))
        fall, gpus = gain(J, F, row, now, epoch), gpus_of(J, row, p.sharing)
        step = own_key(keys, row)
        fitted, k_last = has_fit(F, row), float(F[F_K_LAST, row])
        way = "by its curve" if fitted else f"without a curve it is taken to fall as 1/(1 + {PRIOR:g} k/K)"
        if fitted and F[F_SLOPE, row] >= 0:
            way = "its loss does not fall any more"
        terms = (
            Term("done", done / of, units, "what it has done, k"),
            Term("in all", total / of, units, "what it has to do, K"),
            Term("speed", speed * US / of, f"{units}/s", seen),
            Term("ahead", ahead / of, units, f"what it would do in the next {p.epoch:g} s"),
            Term("fitted at", k_last if fitted else None, units, "where the curve was fitted last"),
            Term("fall", fall, "", f"of its loss meanwhile, as a part of the whole fall: {way}"),
            Term("GPUs", gpus, "", "which the fall is divided by"),
            Term("gain", fall / gpus, "1/GPU", "fall ÷ GPUs"),
            Term("step", None if step is None else float(step), "", f"of the gain, {p.steps} to a halving: lowest first"),
        )
        return by_keys(view, keys, job, terms, "the largest fall of the loss per GPU first, in steps", stops=True)
