"""HyperSched (Liaw et al., SoCC 2019): the highest accuracy by a deadline on limited resources.

What the paper says: of the trials of a model search those that no longer improve are paused, and as the deadline comes nearer the
resources go to the ones that still gain most by then; paused trials go on when there is room. MLFS (§4.1) compares with this on
jobs with a deadline each: jobs whose accuracy does not rise significantly any more are paused, and resources go to the jobs that
gain most before their deadline.
What we read into it: the gain of a job is what its curve (CURVE, refitted as reports come in) gives it for the units that it can
still do by its deadline, at the speed so far (before that the announced one); a job ranks by its gain per GPU and second of that
run, in steps of a factor, so that jobs of about the same gain do not stop each other. A job without a curve yet is taken to rise
as `a·x·(1+h)/(x+h)` with its progress x, h = 0.1, up to the accuracy a that it requires (else 1). A job whose gain is below
`significant`, be it flat or without time before its deadline, is paused: all others rank before it, and it runs on what they
leave, shortest remaining time first (a paused job has to end too; the paper's trials need not). A loss counts as a part of
the fall that is to be had. With `sharing=true` the ranked pass shares GPUs (`place/shared_ranked.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints, Table
from headway.core.columns import Estimator, Phase
from headway.core.explain import Explanation, Term
from headway.core.plan import Plan
from headway.core.state import State
from headway.core.view import ClusterView
from headway.perf.forecast import value_at
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU
from headway.policies.classic import SRTF_UNIT_US, US, place_by_rank
from headway.policies.explain import by_keys, own_key, row_of, seconds
from headway.policies.params import Common, param
from headway.policies.ranks import KEY_BITS, PRIORITY_TOP

PAUSED = 1 << (KEY_BITS - 1)
"""Keys from here on are those of paused jobs."""
STEPS_MIDDLE = 1 << 20
PRIOR_HALF = 0.1
"""Of its iterations, when a job without a curve has got half of its way."""
UNITS_MIN = 5
"""Reports before a curve is asked for."""
REFITS = 5
"""A curve is asked for again when so great a part of the job's units has been done since: one in so many."""
ALONG = 0.5
"""When a curve is asked for, so are those of jobs with at least so much of the news that one needs: many at once cost little."""
PPM, NANO = 1_000_000, 1e9
TINY = 1e-12


@dataclass(frozen=True, slots=True)
class HyperSchedParams(Common):
    significant: float = param(0.1, "gain in accuracy before the deadline below which a job is paused", high=1)
    step: float = param(
        2.0, "jobs whose gains per GPU and second differ by less than this factor rank as equal", low=1.001, high=1e6
    )
    horizon: float = param(1.0, "part of the units before the deadline over which the gain is looked at", low=0.01, high=1)
    review: float = param(300.0, "seconds after which the time left is looked at anew", low=1)
    stick: float = param(10.0, "by so many steps jobs that have a place rank higher", high=1000)


@dataclass(frozen=True, slots=True)
class HyperSched:
    """Most accuracy per GPU and second before the deadline first; jobs that gain no more are paused."""

    params: HyperSchedParams
    name: str = "hypersched"
    asks: bool = True

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        if view.waiting == 0:
            return view.draft().plan()
        st, s = view.state, view.state.scratch
        rows = view.ranked_rows()
        keys = self.keys(view, rows)
        placed = st.J[c.J_PLACED, rows] == 1
        p, w = int(np.count_nonzero(placed)), int(np.count_nonzero(~placed))
        s.keys_placed[:p], s.keys_waiting[:w] = keys[placed], keys[~placed]
        draft = place_by_rank(view, p, w, self.params.kernel, sharing=self.params.sharing)
        if p:  # gains change with time alone
            review_us = round(self.params.review * US)
            draft.wake_at_us((view.now_us // review_us + 1) * review_us)
        for number in stale_curves(st, rows).tolist():
            draft.request(Estimator.CURVE, number)
        return draft.plan()

    def explain(self, view: ClusterView, memo: Any, job: int) -> Explanation:
        st, q, row = view.state, self.params, row_of(view, job)
        rows, at_us = np.array([row], np.int64), self.reviewed_us(view)
        J = st.J[:, rows]
        run = run_us(J, at_us)
        keys = np.sort(self.keys(view, view.ranked_rows()))
        done, total, speed = (float(column[0]) for column in speeds(J, run))
        gain, per_gpu_s = (float(column[0]) for column in gains(st, rows, at_us, run, q.horizon))
        params = curves(st, rows)
        due, estimate, key = seconds(int(J[c.J_DEADLINE, 0])), seconds(int(J[c.J_ESTIMATE, 0])), own_key(keys, row)
        units = ahead(J, done, total, speed, at_us)
        until = "its end" if due is None or units[0] >= total - done else "its deadline"
        fitted = bool(np.isfinite(params[0, C_K_LAST]))
        of = "accuracy" if not fitted or J[c.J_ACCURACY, 0] != c.NOTHING else "part of the fall of its loss"
        curve = "by its curve" if fitted else "without a curve, as of one that rises to what it requires"
        seen = "as measured" if J[c.J_UNITS_TOTAL, 0] > 0 and done >= UNITS_MIN and run[0] > 0 else "by its estimate"
        told = "what it has done" if J[c.J_UNITS_TOTAL, 0] > 0 else "it tells none: thousandths of its estimate"
        paused = gain < q.significant
        step = None if key is None or key >= PAUSED else float(key - STEPS_MIDDLE)
        left = None if estimate is None else max(estimate - run[0] / US, 0.0)
        terms = (
            Term("looked at", at_us / US, "s", f"its gain is looked at anew every {q.review:g} s"),
            Term("deadline", due, "s", "due at; without one the gain is that to its end"),
            Term("done", done, "units", told),
            Term("in all", total, "units", "what it has to do"),
            Term("speed", speed * US, "units/s", seen),
            Term("ahead", float(units[0]), "units", f"what it can do by {until}"),
            Term("gain", gain, "", f"{of} meanwhile, {curve}; below {q.significant:g} it is paused"),
            Term("gain rate", per_gpu_s, "1/(GPU·s)", "gain ÷ (GPUs × seconds that it takes)"),
            Term("stick", q.stick if J[c.J_PLACED, 0] else 0.0, "steps", "by so many it ranks higher since it has a place"),
            Term("step", step, "steps", f"−log(gain rate) to base {q.step:g}, rounded down, − stick: lowest first; none: paused"),
            Term("remaining", left, "s", "estimate − run time: least first among the paused"),
        )  # fmt: skip
        words = "the most gain per GPU and second before the deadline first, then the paused"
        return by_keys(view, keys, job, terms, words + ("; this one is paused" if paused else ""), stops=True)

    def reviewed_us(self, view: ClusterView) -> int:
        """The time for which gains are looked at: that of the last review."""
        review_us = round(self.params.review * US)
        return view.now_us // review_us * review_us

    def keys(self, view: ClusterView, rows: Ints) -> Ints:
        """Sortable rank keys: priority; not paused, by steps of the gain per GPU·s; paused, by remaining time; arrival."""
        J, q = view.state.J[:, rows], self.params
        at_us = self.reviewed_us(view)
        run = run_us(J, at_us)
        gain, per_gpu_s = gains(view.state, rows, at_us, run, q.horizon)
        with np.errstate(divide="ignore"):
            steps = np.floor(-np.log2(np.maximum(per_gpu_s, TINY)) / np.log2(q.step))
        steps = steps - q.stick * (J[c.J_PLACED] == 1)
        rank = np.clip(steps + STEPS_MIDDLE, 0, PAUSED - 1).astype(np.int64)
        left = np.clip((J[c.J_ESTIMATE] - run) // SRTF_UNIT_US, 0, PAUSED - 1)
        key = np.where(gain < q.significant, PAUSED + left, rank)
        keys: Ints = ((PRIORITY_TOP - J[c.J_PRIORITY]) << (c.ROW_BITS + KEY_BITS)) | (key << c.ROW_BITS) | rows
        return keys


def curves(state: State, rows: Ints) -> Floats:
    """The newest CURVE vectors of jobs (jobs × 8); NaN where there is none yet."""
    first = int(Estimator.CURVE) * c.ESTIMATE_PARAMS_MAX
    found: Floats = state.F[first : first + c.ESTIMATE_PARAMS_MAX, rows].T.copy()
    found[found[:, C_K_LAST] <= 0, C_K_LAST] = np.nan
    return found


def stale_curves(state: State, rows: Ints) -> Ints:
    """Numbers of the running jobs whose curve is to be asked for: none yet, or many units done since."""
    J = state.J[:, rows]
    last = np.nan_to_num(curves(state, rows)[:, C_K_LAST], nan=0.0)
    due = np.maximum(J[c.J_UNITS_TOTAL] / REFITS, UNITS_MIN)
    news = np.where(J[c.J_PHASE] == Phase.RUNNING, (J[c.J_UNITS_DONE] - last) / due, 0.0)
    numbers: Ints = J[c.J_ID, news >= (ALONG if news.max(initial=0.0) >= 1 else 1.0)]
    return numbers


def speeds(J: Table, run_us: Ints) -> tuple[Floats, Floats, Floats]:
    """Units done and in all, and units per µs: as measured, before that as announced. Without units the announced time is one of
    a thousand units, of which the run time is a part."""
    total, done = J[c.J_UNITS_TOTAL].astype(np.float64), np.maximum(J[c.J_UNITS_DONE], 0).astype(np.float64)
    estimate = np.maximum(np.minimum(J[c.J_ESTIMATE], 1 << 50), 1).astype(np.float64)
    by_time = total <= 0
    total = np.where(by_time, 1000.0, total)
    done = np.where(by_time, np.minimum(run_us / estimate, 1.0) * 1000.0, done)
    announced = total / estimate
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = np.where((done >= UNITS_MIN) & (run_us > 0) & ~by_time, done / run_us, announced)
    return done, total, np.maximum(speed, 1e-15)


def run_us(J: Table, at_us: int) -> Ints:
    """Run time of jobs up to an instant that may lie before their last start, µs."""
    started = J[c.J_STARTED_AT]
    run: Ints = J[c.J_RUN] + np.where(started >= 0, np.maximum(at_us - started, 0), 0)
    return run


def ahead(J: Table, done: Any, total: Any, speed: Any, at_us: int) -> Floats:
    """The units that jobs can do before their deadline and their end (`speeds` tells the first three)."""
    start_us = np.where(J[c.J_STARTED_AT] >= 0, 0, np.where(J[c.J_ATTEMPT] > 0, J[c.J_RESTORE], 0))
    time_us = np.maximum(np.minimum(J[c.J_DEADLINE] - at_us, 1 << 50) - start_us, 0)
    units: Floats = np.minimum(np.maximum(total - done, 0), time_us * speed)
    return units


def gains(state: State, rows: Ints, at_us: int, run: Ints, horizon: float) -> tuple[Floats, Floats]:
    """What jobs gain in accuracy (1 = all) from `at_us` to their deadline, and that per GPU and second over the first `horizon`
    of the units. `run`: their run times (µs)."""
    J = state.J[:, rows]
    done, total, speed = speeds(J, run)
    units = ahead(J, done, total, speed, at_us)
    params = curves(state, rows)
    gain = _gain(J, params, done, total, units)
    if horizon < 1:
        units = units * horizon
    near = gain if horizon == 1 else _gain(J, params, done, total, units)
    gpu_s = np.maximum(J[c.J_GPUS], 1) * np.maximum(units / speed / US, 1.0)
    return gain, near / gpu_s


def _gain(J: Table, params: Floats, done: Floats, total: Floats, units: Floats) -> Floats:
    """The gain of doing `units` more."""
    after = value_at(params, done + units)
    now = value_at(params, np.maximum(done, np.nan_to_num(params[:, C_K_LAST])))
    accuracy = J[c.J_ACCURACY] != c.NOTHING
    fall = np.maximum(J[c.J_LOSS_DROPS] / NANO + params[:, C_LEVEL] - params[:, C_PLATEAU], TINY)
    known = np.where(accuracy, after - now, (now - after) / fall)
    wanted = np.where(J[c.J_ACC_REQUIRED] > 0, J[c.J_ACC_REQUIRED] / PPM, 1.0)
    x0, x1 = done / total, np.minimum((done + units) / total, 1.0)
    prior = wanted * (1 + PRIOR_HALF) * (x1 / (x1 + PRIOR_HALF) - x0 / (x0 + PRIOR_HALF))
    gain: Floats = np.maximum(np.where(np.isnan(known), prior, known), 0.0)
    return gain
