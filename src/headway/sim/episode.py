"""A simulation in which somebody else ranks the jobs: round by round, who is next to hold places, and what it was worth.

What an environment for reinforcement learning needs, without its library (`sim.env` has that). Between two decisions the episode
holds still *before* a round: the tables say how things are, and the caller hands in an order of jobs, which the preemptive pass
(`place.ranked`, as under `srtf`) carries out. Rounds in which nobody waits decide nothing, and are passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Phase
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch
from headway.core.plan import Plan
from headway.core.policy import Policy
from headway.core.round import Brains
from headway.core.specstring import parse_spec, unknown_name
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.features.table import RANK, Singles
from headway.metrics.fold import (
    M_ACCURACY_DUE,
    M_DEADLINE,
    M_END,
    M_MOVED,
    M_PHASE,
    M_REQUIRED,
    M_SUBMITTED,
    MetricsFold,
)
from headway.metrics.reward import terms
from headway.place.gang import Kernel
from headway.policies.classic import SRTF_UNIT_US, place_by_rank
from headway.policies.mlfs.observe import rank_features
from headway.policies.ranks import KEY_BITS, PRIORITY_TOP, remaining_keys
from headway.policies.registry import BESIDE
from headway.sim.run import Simulation, round_seed
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.kinds import for_cluster
from headway.workloads.registry import load_workload
from headway.workloads.schema import Workload

WORKLOAD, CLUSTER = "mlfs-paper:jobs=155,protocol=stress", "20x4"
RESTART_S = 30.0
"""What starting again takes a job that says nothing of it, as in `headway simulate`."""
UNKNOWN_LEFT_US = 600 * US_PER_S
"""A job without an estimate is taken to last as long again as it has run, and at least so long."""
PPM = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is simulated, and how its rounds go."""

    workload: str | Workload = WORKLOAD
    """A spec string, drawn anew for each episode's seed, or jobs that are there already."""
    cluster: str | Cluster = CLUSTER
    round_s: float = 60.0
    sharing: bool = False
    """Put jobs that allow it side by side on one GPU."""
    beside: str = ""
    """What stands beside the decisions: `mlf-c[:key=value,…]`, or nothing."""
    datasets: Path | None = None

    def read(self, seed: int) -> tuple[Workload, Cluster]:
        """The jobs and the cluster of an episode, as `headway simulate` reads them.

        Raises:
            UserError: a spec string is wrong, or the time between rounds.
        """
        if not 1.0 <= self.round_s <= 1e6:
            raise UserError(f"expected 1 to 1,000,000 seconds, got {shown(self.round_s)}", key="round")
        cluster = parse_cluster(self.cluster, seed=seed) if isinstance(self.cluster, str) else self.cluster
        workload = self.workload
        if isinstance(workload, str):
            workload = load_workload(workload, datasets=self.datasets, seed=seed)
        if not workload.has_costs:
            workload = workload.with_costs(restore_s=RESTART_S)
        cluster = cluster.with_quotas(workload.queues, workload.quotas_ppm)
        return for_cluster(workload, cluster), cluster

    def around(self, policy: Policy) -> Policy:
        """A policy with what stands beside it.

        Raises:
            UserError: nothing of that name can stand beside a policy.
        """
        for part in parse_spec(self.beside, "component beside a policy") if self.beside else ():
            if part.name not in BESIDE:
                raise unknown_name("component beside a policy", part.name, BESIDE)
            module, _, function = BESIDE[part.name].partition(":")
            policy = getattr(import_module(module), function)(policy, dict(part.params))
        return policy


@dataclass(slots=True)
class Ordered:
    """A policy that ranks jobs as it was told: those in `order`, then all others that have places, by remaining time. Who waits
    and isn't named goes on waiting."""

    sharing: bool = False
    order: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """Rows of placed and waiting jobs, who is to hold places first of all first; for the next round alone."""
    name: str = "order"

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        st, order = view.state, self.order
        waits = st.J[c.J_PLACED, order] == 0
        if not waits.any():
            return view.draft().plan()
        kept = by_remaining(view)
        kept = kept[(st.J[c.J_PLACED, kept] == 1) & ~np.isin(kept, order)]
        ranked = np.concatenate((order, kept))
        classes = (PRIORITY_TOP - st.J[c.J_PRIORITY, ranked]) << (c.ROW_BITS + KEY_BITS)
        keys = classes | np.arange(len(ranked)) << c.ROW_BITS | ranked
        here = np.concatenate((keys[: len(order)][~waits], keys[len(order) :]))
        there = keys[: len(order)][waits]
        st.scratch.keys_placed[: len(here)], st.scratch.keys_waiting[: len(there)] = here, there
        return place_by_rank(view, len(here), len(there), int(Kernel.CONSOLIDATED), sharing=self.sharing).plan()


def by_remaining(view: ClusterView) -> Ints:
    """The rows of all placed and waiting jobs: class, least remaining time by the users' estimates, arrival, as `srtf` ranks."""
    st = view.state
    placed, waiting = np.zeros((2, st.J.shape[1]), np.int64)
    here, there = remaining_keys(st.J, st.C, view.now_us, SRTF_UNIT_US, placed, waiting)
    rows: Ints = np.sort(np.concatenate((placed[:here], waiting[:there]))) & c.ROW_MASK
    return rows


class _Told(Simulation):
    """A simulation that tells its events as they happen, not chunk by chunk."""

    def __init__(self, metrics: MetricsFold, *args: Any, **options: Any) -> None:
        self.metrics = metrics
        super().__init__(*args, **options)

    def _record(self, batch: EventBatch) -> None:
        self.metrics.update(batch)
        super()._record(batch)


class Episode:
    """One run from its first job to its last. See the module; `play` until `over` or `stuck`."""

    def __init__(
        self, workload: Workload, cluster: Cluster, setting: Setting, *, seed: int, rows_max: int, queue_max: int
    ) -> None:  # fmt: skip
        """`rows_max`: so many candidates are shown; `queue_max`: so many of them may be waiting ones, if others have places."""
        assert 0 < queue_max < rows_max
        self.cluster, self.seed, self.rows_max, self.queue_max = cluster, seed, rows_max, queue_max
        self.sharing, self.metrics = setting.sharing, MetricsFold(max(len(workload), 1))
        self.policy = Ordered(setting.sharing)
        whole = setting.around(self.policy)
        self.sim = _Told(
            self.metrics, workload, cluster, Brains(whole, whole, whole), seed=seed,
            interval_us=round(setting.round_s * US_PER_S), skip=True, faults=None, sinks=(),
        )  # fmt: skip
        self.counted = np.zeros(len(workload), np.bool_)
        """Jobs that have ended in a window before this one."""
        self.moved_bytes = 0
        self.journal_sha256 = ""
        """Of all events, once it is over."""
        self.decisions = 0
        self.over, self.now_us = False, 0
        self.rows: Ints = np.zeros(0, np.int64)
        """The candidates of this round."""
        self._dues = self.sim.each_due()
        self._go_on()

    @property
    def view(self) -> ClusterView:
        """How things are."""
        return ClusterView(self.sim.state, self.now_us, round_seed(self.seed, self.now_us))

    @property
    def jobs(self) -> Ints:
        """The candidates' numbers."""
        numbers: Ints = self.sim.state.J[c.J_ID, self.rows].copy()
        return numbers

    @property
    def placed(self) -> Any:
        """Whether each candidate has places."""
        return self.sim.state.J[c.J_PLACED, self.rows] == 1

    def features(self) -> Singles:
        """(candidates × RANK) what MLF-RL weighs."""
        if not len(self.rows):
            return np.zeros((0, len(RANK)), np.float32)
        return rank_features(self.view, self.rows, self.sharing)

    def play(self, order: Ints) -> tuple[Floats, float]:
        """Hold the round with these rows ranked first, and go on to the next that has something to decide, or to the end. The
        five goals (`metrics.reward.terms`) of the time between, and how long that was, s."""
        assert not self.over, "the episode is over"
        begin_us = self.now_us
        self.policy.order = order
        self.sim.round(begin_us)
        self.policy.order = order[:0]
        self.decisions += 1
        self._go_on()
        window_s = max(self.now_us - begin_us, 1) / US_PER_S
        return self._goals(window_s), window_s

    def summary(self) -> dict[str, float]:
        """The figures so far that have a value (`docs/metrics.md`)."""
        figures = self.metrics.summary(self.cluster.gpus).to_json()
        return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}

    def _go_on(self) -> None:
        """To before the next round in which somebody waits. Where nothing would ever happen again and jobs wait, because they
        were not named, that is the next one."""
        sim = self.sim
        while True:
            due = next(self._dues, None)
            if due is None:
                if not sim.state.C.item(c.C_WAITING):
                    self.over, self.rows, self.now_us = True, self.rows[:0], max(int(sim.state.C[c.C_NOW]), self.now_us)
                    self.journal_sha256 = sim.writer.close()
                    return
                sim.wake_us = sim.last_us + 1
                self._dues = sim.each_due()
                continue
            self.now_us = due
            if sim.state.C.item(c.C_WAITING):
                self.rows = self._candidates()
                return
            sim.round(due)

    def _candidates(self) -> Ints:
        """The waiting jobs that come first, at most `queue_max`, and those with places that come last, in one order: by remaining
        time."""
        order = by_remaining(self.view)
        holds = self.sim.state.J[c.J_PLACED, order] == 1
        here = np.flatnonzero(holds)
        there = np.flatnonzero(~holds)[: max(self.queue_max, self.rows_max - len(here))]
        here = here[max(len(here) - (self.rows_max - len(there)), 0) :]
        chosen: Ints = order[np.sort(np.concatenate((here, there)))]
        return chosen

    def _goals(self, window_s: float) -> Floats:
        """The goals of the jobs that have completed or failed since the last decision, and of those that live by what is known of
        them now: their estimates, and the accuracy that they have told. Those that failed have no completion time, and are late.
        """
        M, st = self.metrics.M[: len(self.counted)], self.sim.state
        new = np.flatnonzero((M[:, M_PHASE] > Phase.STOPPING) & ~self.counted)
        self.counted[new] = True
        E = M[new[M[new, M_PHASE] <= Phase.FAILED]]
        done = E[:, M_PHASE] == Phase.COMPLETED
        rows = st.live_rows()
        J = st.J[:, rows]
        left_us = remaining_us(self.view, rows)
        end_us = np.concatenate((np.where(done, E[:, M_END], c.NEVER), self.now_us + left_us))
        submitted_us = np.concatenate((E[:, M_SUBMITTED], J[c.J_SUBMITTED]))
        due_us = np.concatenate((E[:, M_DEADLINE], J[c.J_DEADLINE]))
        told = np.concatenate((E[:, M_ACCURACY_DUE], np.where(J[c.J_ACCURACY] == c.NOTHING, -1, J[c.J_ACCURACY])))
        required = np.concatenate((E[:, M_REQUIRED], J[c.J_ACC_REQUIRED]))
        jct_s = np.where(end_us < c.NEVER, (end_us - submitted_us) / US_PER_S, np.nan)
        on_time = np.where((due_us > 0) & (due_us < c.NEVER), end_us <= due_us, np.nan)
        accuracy = np.where(told >= 0, told / PPM, np.nan)
        good = np.where((required > 0) & (told >= 0), told >= required, np.nan)
        moved = int(M[:, M_MOVED].sum())
        since, self.moved_bytes = moved - self.moved_bytes, moved
        goals: Floats = terms(jct_s, on_time, good, accuracy, float(since), window_s=window_s)
        return goals


def remaining_us(view: ClusterView, rows: Ints) -> Ints:
    """What live jobs have left by their users' estimates, µs; without one as long again as they have run."""
    estimate, ran = view.state.J[c.J_ESTIMATE, rows], view.run_us(rows)
    known = (estimate > 0) & (estimate < c.NEVER)
    left: Ints = np.where(known, np.maximum(estimate - ran, 0), np.maximum(ran, UNKNOWN_LEFT_US))
    return left
