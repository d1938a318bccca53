"""MLF-C (Wang, Liu, Shen, CoNEXT 2020, §3.5): load control, which stops training that no longer improves accuracy.

It stands beside any policy (`tiresias+mlf-c`): that one decides who runs where; MLF-C which stop rule of those that a job's
owner allows is in force, and who has done enough. What the paper says: three stop options (the iterations asked for; *OptStop*,
close to the best accuracy that the job will reach; the required accuracy), and under overload a permitted downgrade that saves
iterations. The cluster is overloaded while jobs queue or the mean load of its servers is above h_s. What we read into it: the
queue counts after the allocation, and only jobs that have waited a tick and whose gang does not fit into what is free (A7); loads
by the RMS norm (A6); a job is never stopped before its required accuracy while that is within reach; both tests look at the
fitted curve, since single reports are noisy. A job that has been stopped for others and has done enough by now ends in the queue,
if what its curve was fitted to is safe.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Floats, Ints, Table
from headway.core.columns import Estimator, NodePhase, Op, Phase, Reason, StopRule
from headway.core.events import EventBatch
from headway.core.explain import Explanation, StopOutlook, StopPlan
from headway.core.plan import Plan, Request
from headway.core.policy import Memo, Policy, remembers, teacher_memo, teacher_of
from headway.core.state import State
from headway.core.view import ClusterView
from headway.perf import forecast
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU, C_PLATEAU_SPREAD, C_SLOPE
from headway.policies.explain import by_arrival, row_of
from headway.policies.params import param

PPM = 1_000_000
US = 1_000_000
POINTS_MIN = 5
"""Observed units before a curve is asked for."""
NEAR_REQUIRED = 0.03
"""From so little below the required accuracy on, the curve is refitted often; before that, at every tenth of the run."""
SPARSE_FRAC = 0.1
MOVES = np.array([Op.PLACE, Op.RELEASE, Op.FINISH], np.int64)
NO_PLACE = np.array([Reason.NO_ROOM, Reason.GANG_INCOMPLETE, Reason.DEADLOCK], np.int64)


@dataclass(frozen=True, slots=True)
class LoadControlParams:
    downgrade: bool = param(True, "under overload, put a stop rule into force that the owner allows and that saves iterations")
    h_s: float = param(0.9, "mean load of the servers above which the cluster is overloaded", high=2)
    norm: str = param(
        "rms", "load of a server from its four usages (A6): root mean square, or their plain L2 norm", choices=("rms", "l2")
    )
    queue: str = param(
        "fit",
        "which queued jobs mean overload (A7): whose gang does not fit, any, none; always: as if one always waited",
        choices=("fit", "any", "none", "always"),
    )
    tick: float = param(60.0, "seconds that a job has waited before it counts as queued")
    near: float = param(0.015, "OptStop: how close to the predicted best accuracy is enough", high=1)
    slack: float = param(0.002, "how far above the required accuracy the fitted curve has to be", high=1)
    confidence: float = param(0.95, "from which the required accuracy counts as out of reach", low=0.5, high=0.9999)
    refit: float = param(0.02, "share of a run after which its curve is fitted again", low=0.001, high=1)
    literal: bool = param(False, "stop a job at once whose required accuracy is out of reach, as the paper's sentence says")


@dataclass(frozen=True, slots=True)
class Standing:
    """What MLF-C makes of the jobs in a round; arrays by row of the state."""

    over: bool
    """Whether the cluster is overloaded."""
    wake_us: int
    """When a job's wait begins to count, or NEVER."""
    curve: Floats
    """The newest fitted curve, rows × 8; NaN where there is none."""
    required: Floats
    """The required accuracy; 0: none."""
    lost: Bools
    """Whose required accuracy is out of reach."""
    rule: Ints
    """The stop rule that is to be in force."""
    done: Bools
    """Who has done enough, and is to end."""


@dataclass(frozen=True, slots=True)
class LoadControl:
    """Stops jobs that have done enough, beside another policy."""

    inner: Policy
    params: LoadControlParams
    asks: bool = True

    @property
    def name(self) -> str:
        return f"{self.inner.name}+mlf-c"

    @property
    def strict(self) -> bool:
        """As the other policy."""
        return getattr(self.inner, "strict", False)

    @property
    def teacher(self) -> Policy | None:
        """The other policy's, beside the same load control."""
        teacher = teacher_of(self.inner)
        return None if teacher is None else with_load_control(teacher, self.params)

    def teacher_memo(self, memo: Memo) -> Memo:
        return teacher_memo(self.inner, memo)

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        plan = self.inner.decide(view, memo)
        st = view.state
        J = st.J[:, : int(st.C[c.C_ROWS])]
        now = standing(st, plan, view.now_us, self.params)
        wake_us = view.now_us if now.done.any() else now.wake_us  # the places of who is done are free at the next round
        changed = np.flatnonzero((J[c.J_PHASE] <= Phase.STOPPING) & (now.rule != J[c.J_RULE_IN_FORCE]))
        overrides = extended(plan.overrides, st, np.flatnonzero(now.done), changed, now.rule)
        fits = J[c.J_ID, running(J) & ~now.done & due(J, now.curve, now.required, self.params)].tolist()
        requests = (*plan.requests, *(Request(Estimator.CURVE, job) for job in fits))
        return Plan(overrides, plan.places, plan.seen, min(plan.wake_at_us, wake_us), requests)

    def explain(self, view: ClusterView, memo: Memo, job: int) -> Explanation:
        """The standing of a live job is that of the other policy."""
        inner: Any = self.inner
        if hasattr(inner, "explain"):
            explained: Explanation = inner.explain(view, memo, job)
            return explained
        return by_arrival(view, job)

    def outlook(self, view: ClusterView, memo: Memo, job: int) -> StopOutlook:
        """Whether and when a live job will have done enough."""
        row = row_of(view, job)
        now = standing(view.state, self.inner.decide(view, memo), view.now_us, self.params)
        return stop_outlook(view.state, now, row, self.params)


class RememberingLoadControl(LoadControl):
    """The same, beside a policy with a memo."""

    __slots__ = ()

    def start(self) -> Memo:
        inner: Any = self.inner
        return inner.start()

    def fold(self, memo: Memo, events: EventBatch) -> Memo:
        inner: Any = self.inner
        return inner.fold(memo, events)


def with_load_control(inner: Policy, params: LoadControlParams) -> LoadControl:
    """MLF-C beside a policy."""
    return (RememberingLoadControl if remembers(inner) else LoadControl)(inner, params)


def standing(st: State, plan: Plan, now_us: int, q: LoadControlParams) -> Standing:
    """What MLF-C makes of every job, once the other policy's plan is carried out."""
    rows = int(st.C[c.C_ROWS])
    J, curve = st.J[:, :rows], st.F[Estimator.CURVE * 8 : Estimator.CURVE * 8 + 8, :rows].T
    over, wake_us = overloaded(st, plan, now_us, q)
    fitted = (running(J) | waiting(J)) & of_now(J, curve)
    required = J[c.J_ACC_REQUIRED] / PPM
    lost = fitted & (required > 0) & (unlikely(curve, required, q.confidence) | hopeless(J, curve, required, q))
    rule = rules(J, required, lost, over and q.downgrade)
    done = fitted & enough(curve, required, lost, rule, q)
    return Standing(over, wake_us, curve, required, lost, rule, done)


def running(J: Table) -> Bools:
    """Who trains, and is not told to stop."""
    up: Bools = (J[c.J_PHASE] == Phase.RUNNING) & (J[c.J_MUST_STOP] == 0)
    return up


def waiting(J: Table) -> Bools:
    """Who has trained and waits to go on, or is about to: what it has done is safe. Jobs that their owner holds are let alone."""
    queued: Bools = (J[c.J_PHASE] == Phase.QUEUED) & (J[c.J_HOLD] == 0) & (J[c.J_UNITS_SAVED] > 0)
    return queued


def of_now(J: Table, curve: Floats) -> Bools:
    """Whose curve is one of its accuracy, and of what it has (still) done: a job that lost work since the fit has to catch up."""
    last = curve[:, C_K_LAST]
    safe = np.where(J[c.J_PHASE] == Phase.QUEUED, J[c.J_UNITS_SAVED], J[c.J_UNITS_DONE])
    with np.errstate(invalid="ignore"):
        fitted: Bools = (last > 0) & (last <= safe) & (curve[:, C_SLOPE] >= 0) & (J[c.J_ACCURACY] != c.NOTHING)
    return fitted


def overloaded(st: State, plan: Plan, now_us: int, q: LoadControlParams) -> tuple[bool, int]:
    """Whether the cluster is overloaded once the plan is carried out (§3.5), and when a job's wait begins to count (µs)."""
    if q.queue == "always" or mean_load(st, q.norm) > q.h_s:
        return True, c.NEVER
    rows = int(st.C[c.C_ROWS])
    if q.queue == "none" or st.C[c.C_WAITING] == 0:
        return False, c.NEVER
    J = st.J[:, :rows]
    waits = (J[c.J_PHASE] == Phase.QUEUED) & (J[c.J_PLACED] == 0) & (J[c.J_HOLD] == 0)
    O = plan.overrides
    placed = O[:, c.O_OP] == Op.PLACE
    waits[O[placed, c.O_ROW]] = False
    since = J[c.J_QUEUED_AT] + round(q.tick * US)
    young = waits & (since > now_us)
    wake = int(since[young].min()) if young.any() else c.NEVER
    waits &= ~young
    if not waits.any():
        return False, wake
    if q.queue == "any":
        return True, wake
    no_room = np.isin(J[c.J_WHY], NO_PLACE)
    no_room[O[(O[:, c.O_OP] == Op.WHY) & np.isin(O[:, c.O_REASON], NO_PLACE), c.O_ROW]] = True
    return bool((waits & (no_room | (needed_milli(J) > free_milli(st, plan)))).any()), wake


def mean_load(st: State, norm: str) -> float:
    """O_c: the mean over the nodes that are up of the norm of their usages of GPUs, cpus, memory and network (§3.5, A6)."""
    N = st.N
    up = N[c.N_PHASE] == NodePhase.UP
    if not up.any():
        return 0.0
    used = np.zeros(N.shape[1])
    np.add.at(used, st.G[c.G_NODE], st.G[c.G_USED])
    shares = [used / np.maximum(N[c.N_GPUS] * c.WHOLE, 1)]
    for use, most in ((c.N_USE_CPU, c.N_CPU_MAX), (c.N_USE_MEM, c.N_MEM_MAX), (c.N_USE_NET, c.N_NET_MAX)):
        shares.append(N[use] / np.maximum(N[most], 1))
    square = np.sum(np.square(np.stack(shares)), axis=0)
    return float(np.mean(np.sqrt(square / (4 if norm == "rms" else 1))[up]))


def needed_milli(J: Table) -> Ints:
    """Thousandths of GPUs that each job takes at least."""
    need: Ints = np.where(J[c.J_SHARE] == 1, J[c.J_GPU_MILLI], J[c.J_GPUS] * c.WHOLE)
    return need


def free_milli(st: State, plan: Plan) -> int:
    """Thousandths of GPUs that nobody wants once the plan is carried out: whole ones, and what is left on shared ones."""
    booked = st.G[c.G_BOOKED]
    limit = np.where((booked > 0) & (booked < c.WHOLE), st.C[c.C_SHARE_LIMIT], c.WHOLE)
    up = st.N[c.N_PHASE, st.G[c.G_NODE]] == NodePhase.UP
    free = int(np.maximum(limit - booked, 0)[up].sum())
    O = plan.overrides
    moved = O[np.isin(O[:, c.O_OP], MOVES), c.O_ROW]
    back = int(st.J[c.J_GPU_MILLI, moved[st.J[c.J_PLACED, moved] == 1]].sum())
    bits: int = sum(bin(mask).count("1") * book for _, mask, book in plan.places.tolist())
    return free + back - bits


def rules(J: Table, required: Floats, lost: Bools, over: bool) -> Ints:
    """The stop rule of each job: the owner's choice, or under overload the permitted one that saves most iterations. Downgrades
    go from fixed to OptStop to accuracy, never back up; one to an accuracy that is out of reach saves nothing."""
    rule: Ints = J[c.J_STOP_RULE].copy()
    if over:
        allowed = J[c.J_STOP_ALLOW]
        to_best = (rule == StopRule.FIXED) & ((allowed >> StopRule.OPTSTOP) & 1 == 1)
        to_accuracy = (rule != StopRule.ACCURACY) & ((allowed >> StopRule.ACCURACY) & 1 == 1) & (required > 0) & ~lost
        rule = np.where(to_accuracy, StopRule.ACCURACY, np.where(to_best, StopRule.OPTSTOP, rule))
    return rule


def unlikely(curve: Floats, required: Floats, confidence: float) -> Bools:
    """Whose `forecast.reach_probability` is below 1 − confidence, told without a probability."""
    deviations = forecast.NORMAL.inv_cdf(confidence)
    short: Bools = required - curve[:, C_PLATEAU] > deviations * curve[:, C_PLATEAU_SPREAD] / forecast.Z90
    return short


def hopeless(J: Table, curve: Floats, required: Floats, q: LoadControlParams) -> Bools:
    """Which jobs are past half of their run and near the best they will reach, which is further below what is required."""
    late = 2 * J[c.J_UNITS_DONE] >= J[c.J_UNITS_TOTAL]
    short: Bools = late & (curve[:, C_PLATEAU] - curve[:, C_LEVEL] < q.near) & (required - curve[:, C_PLATEAU] > q.near)
    return short


def enough(curve: Floats, required: Floats, lost: Bools, rule: Ints, q: LoadControlParams) -> Bools:
    """Which jobs have done enough under their rule, by their fitted curves."""
    level, best = curve[:, C_LEVEL], curve[:, C_PLATEAU]
    reached = level >= required + q.slack
    near = (best - level < q.near) & (reached | lost | (required <= 0))
    accuracy = np.where(lost, q.literal | near, reached & (required > 0))
    stops: Bools = np.where(rule == StopRule.OPTSTOP, near, (rule == StopRule.ACCURACY) & accuracy)
    return stops


def targets(curve: Floats, required: Floats, lost: Bools, rule: Ints, q: LoadControlParams) -> Floats:
    """The fitted accuracy from which `enough` holds, by rule; infinite for a fixed number of iterations."""
    near, at_least = curve[:, C_PLATEAU] - q.near, required + q.slack
    best = np.where(lost | (required <= 0), near, np.maximum(near, at_least))
    accuracy = np.where(lost, -np.inf if q.literal else near, np.where(required > 0, at_least, np.inf))
    found: Floats = np.where(rule == StopRule.OPTSTOP, best, np.where(rule == StopRule.ACCURACY, accuracy, np.inf))
    return found


def due(J: Table, curve: Floats, required: Floats, q: LoadControlParams) -> Bools:
    """Whose curve is to be fitted (again): often near the required accuracy, seldom before."""
    done, total = J[c.J_UNITS_DONE], J[c.J_UNITS_TOTAL]
    near = (J[c.J_ACCURACY] / PPM >= required - NEAR_REQUIRED) | (required <= 0)
    step = np.maximum(np.ceil(np.where(near, q.refit, SPARSE_FRAC) * total), 1)
    last = np.where(np.isfinite(curve[:, C_K_LAST]), curve[:, C_K_LAST], 0)
    known = (J[c.J_ACCURACY] != c.NOTHING) & (total > 0) & ((J[c.J_STOP_RULE] != StopRule.FIXED) | (J[c.J_STOP_ALLOW] > 0))
    wanted: Bools = known & (done >= POINTS_MIN) & (done - last >= step)
    return wanted


def extended(overrides: Table, st: State, done: Ints, ruled: Ints, rule: Ints) -> Table:
    """The plan's overrides without moves of jobs that have done enough, with the changes of rules, and then with their end."""
    if len(done) == 0 and len(ruled) == 0:
        return overrides
    kept = overrides[~(np.isin(overrides[:, c.O_ROW], done) & np.isin(overrides[:, c.O_OP], MOVES))]
    more = np.zeros((len(ruled) + len(done), c.OVERRIDE), np.int64)
    more[:, c.O_ROW] = np.concatenate([ruled, done])
    more[:, c.O_JOB] = st.J[c.J_ID, more[:, c.O_ROW]]
    more[: len(ruled), c.O_OP], more[: len(ruled), c.O_A] = Op.RULE, rule[ruled]
    more[len(ruled) :, c.O_OP], more[len(ruled) :, c.O_REASON] = Op.FINISH, Reason.EARLY_STOP
    return np.concatenate([kept, more])


def stop_outlook(st: State, now: Standing, row: int, q: LoadControlParams) -> StopOutlook:
    """The standing of one job in words and numbers."""
    J, curve = st.J[:, : len(now.rule)], now.curve
    known = bool(of_now(J, curve)[row])
    one = slice(row, row + 1)
    spread, required = float(curve[row, C_PLATEAU_SPREAD]), float(now.required[row])

    def plan(over: bool) -> StopPlan:
        rule = rules(J[:, one], now.required[one], now.lost[one], over and q.downgrade)
        at = float(targets(curve[one], now.required[one], now.lost[one], rule, q)[0]) if known else np.inf
        units = float(forecast.k_at(curve[row], at)) if np.isfinite(at) else np.inf
        in_run = units <= J[c.J_UNITS_TOTAL, row]
        return StopPlan(StopRule(int(rule[0])).name.lower(), at if np.isfinite(at) else None, units if in_run else None)

    allowed = tuple(rule.name.lower() for rule in StopRule if J[c.J_STOP_ALLOW, row] >> rule & 1)
    return StopOutlook(
        chosen=StopRule(int(J[c.J_STOP_RULE, row])).name.lower(),
        allowed=allowed,
        overloaded=now.over,
        load_frac=mean_load(st, q.norm),
        load_max_frac=q.h_s,
        accuracy=float(curve[row, C_LEVEL]) if known else None,
        final=float(curve[row, C_PLATEAU]) if known else None,
        final_spread_90=spread if known else None,
        required=required or None,
        required_probability=float(forecast.reach_probability(curve[row], required)) if known and required else None,
        out_of_reach=bool(now.lost[row]),
        now=plan(now.over),
        overload=plan(True),
        done=bool(now.done[row]),
    )
