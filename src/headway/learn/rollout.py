"""One episode: a workload is simulated under a network (or under the teacher), and what was decided, what it was worth, and the
run's figures come back. Episodes are plain values, so that other processes can run them; they need no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headway.core.arrays import Floats, Ints
from headway.core.codes import COMPLETED
from headway.core.columns import NEVER
from headway.core.policy import Policy
from headway.core.specstring import Part, parse_spec
from headway.learn.agreement import Agreement, Compared
from headway.metrics.compare import HIGHER_IS_BETTER, LOWER_IS_BETTER
from headway.metrics.fold import M_ACCURACY_DUE, M_DEADLINE, M_END, M_MOVED, M_PHASE, M_REQUIRED, M_SUBMITTED, MetricsFold
from headway.metrics.reward import TERMS, terms
from headway.policies.mlfs.net import Net
from headway.policies.mlfs.policy import MlfH
from headway.policies.mlfs.rl import Decision
from headway.policies.mlfs.rl_teach import mlf_rl, watch
from headway.policies.registry import BESIDE, make_policy
from headway.sim.run import StuckError, simulate
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.kinds import for_cluster
from headway.workloads.registry import load_workload
from headway.workloads.schema import Workload

US_PER_S = 1_000_000
PPM = 1e6
RESTART_S = 30.0
"""What starting again takes a job that says nothing of it, as in `headway simulate`."""
ROUND_S = 60.0
Single = NDArray[np.float32]
FIGURES = tuple(sorted(HIGHER_IS_BETTER | LOWER_IS_BETTER))


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to train on: a workload on a cluster, whether jobs share GPUs, and what stands beside the policy."""

    workload: str
    cluster: str
    sharing: bool = True
    beside: str = ""
    """`mlf-c:…`, or nothing."""
    datasets: str | None = None

    def around(self, policy: Policy) -> Policy:
        """A policy with what stands beside it."""
        for part in parse_spec(self.beside, "policy") if self.beside else ():
            module, _, function = BESIDE[part.name].partition(":")
            policy = getattr(import_module(module), function)(policy, dict(part.params))
        return policy

    def teacher(self, spec: str) -> str:
        """The teacher's spec here: its own, with this setting's sharing, unless it says itself."""
        (part,) = parse_spec(spec, "teacher")
        return str(Part(part.name, {"sharing": str(self.sharing).lower(), **part.params}))

    def __str__(self) -> str:
        beside = f"+{self.beside}" if self.beside else ""
        return f"{self.workload} on {self.cluster}, sharing={str(self.sharing).lower()}{beside}"


@dataclass(frozen=True, slots=True)
class Noise:
    """How an episode explores."""

    seed: int
    rank: float = 0.0
    """Scale of the Gumbel noise on the scores of jobs; 0: none."""
    scale: float = 0.0
    """The same of servers and moves."""
    hold_s: float = 3600.0
    """A job keeps its noise so long: noise anew in each round would only make jobs give way to each other and back."""


@dataclass(frozen=True, slots=True)
class Episode:
    """What to run. Without `arrays` the teacher decides."""

    setting: Setting
    seed: int
    teacher: str = "mlf-h"
    arrays: Mapping[str, Single] | None = None
    noise: Noise | None = None
    keep: int = 0
    """So many decisions of each head are kept, drawn from all evenly; 0: none."""
    watch: bool = False
    """The teacher decides, and its decisions come back with its utilities."""
    compare: bool = False
    """The teacher decides, and the network is asked on the same views."""
    normalize: bool = True
    """The reward's terms as rates; else the raw ones of Eq. 1."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A decision that was kept: the candidates' features, who was chosen (in order), when, and the teacher's utilities of the
    candidates, where it watched."""

    X: Single
    order: Ints
    now_us: int
    utilities: Floats | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """What an episode has brought. `goals`: (rounds, 5), the terms of the reward at each round; None: jobs waited for ever."""

    figures: dict[str, float | None] | None
    goals: Floats
    kept: dict[str, list[Kept]] = field(default_factory=dict)
    ranges: dict[str, Single] = field(default_factory=dict)
    first_round: int = 0
    """The number of the round of the first of `goals`, from time 0."""
    agreement: Agreement | None = None


Run = Callable[[Callable[[Episode], Played], Sequence[Episode]], Iterator[tuple[int, Played]]]
"""Runs episodes, on as many processes as it likes: (index, what came of it), in any order."""


class Sample:
    """A bounded sample, even over all that was offered (Vitter 1985, algorithm R), with the least and the largest value of each
    column of all of it."""

    def __init__(self, keep: int, seed: int) -> None:
        self.keep, self.offered = keep, dict.fromkeys(("rank", "server", "move"), 0)
        self.random = np.random.default_rng([seed, 77])
        self.kept: dict[str, list[Kept]] = {}
        self.ranges: dict[str, Single] = {}

    def offer(self, decision: Decision, utilities: Floats | None = None) -> None:
        """Keep the decision, or not."""
        head, X = decision.head, decision.X
        if not len(X):
            return
        low, high = X.min(axis=0), X.max(axis=0)
        if head in self.ranges:
            self.ranges[head] = np.stack([np.minimum(self.ranges[head][:, 0], low), np.maximum(self.ranges[head][:, 1], high)], 1)
        else:
            self.ranges[head] = np.stack([low, high], 1)
        kept = self.kept.setdefault(head, [])
        self.offered[head] += 1
        place = len(kept) if len(kept) < self.keep else int(self.random.integers(self.offered[head]))
        if place >= self.keep:
            return
        taken = Kept(
            X.copy(), np.array(decision.order, np.int64), int(decision.now_us),
            None if utilities is None else np.array(utilities, np.float64),
        )  # fmt: skip
        kept[place : place + 1] = [taken]


class Explorer:
    """Explores as `Noise` says, and offers the decisions to a sample. See `policies.mlfs.rl.Explore`."""

    def __init__(self, noise: Noise, sample: Sample | None) -> None:
        self.of, self.scale, self.sample = noise, noise.scale, sample
        self._window, self._held = -1, np.zeros(0)

    def noise(self, jobs: Ints, now_us: int) -> Floats:
        """Gumbel noise of jobs by number, the same for a job for a while."""
        if not self.of.rank:
            return np.zeros(len(jobs))
        window = int(now_us // max(round(self.of.hold_s * US_PER_S), 1))
        most = int(jobs.max(initial=-1)) + 1
        if window != self._window or most > len(self._held):
            self._window = window
            drawn = np.random.default_rng([self.of.seed, window]).gumbel(size=1 << max(most, 1023).bit_length())
            self._held = self.of.rank * drawn
        return self._held[jobs]

    def took(self, decision: Decision) -> None:
        """A decision was taken."""
        if self.sample is not None:
            self.sample.offer(decision)


class Explores(Protocol):
    """As `Explorer`."""

    scale: float

    def noise(self, jobs: Ints, now_us: int) -> Floats: ...
    def took(self, decision: Decision) -> None: ...


def play(episode: Episode) -> Played:
    """Run an episode."""
    setting = episode.setting
    workload, cluster = world_of(setting, episode.seed)
    sample = Sample(episode.keep, episode.seed) if episode.keep else None
    compared: Compared | None = None
    net = Net.from_arrays(episode.arrays) if episode.arrays is not None else None
    if episode.watch or episode.compare or net is None:
        policy = teacher = make_policy(setting.teacher(episode.teacher))
        assert isinstance(teacher, MlfH), "a teacher is MLF-H"
        if episode.watch:
            assert sample is not None, "what is watched is kept"
            policy = watch(teacher, sample.offer)
        elif episode.compare:
            assert net is not None, "a network is compared"
            policy = compared = Compared(teacher, net, sharing=setting.sharing)
    else:
        explore = Explorer(episode.noise or Noise(episode.seed), sample) if episode.noise or sample else None
        policy = mlf_rl(net, sharing=setting.sharing, explore=explore)
    try:
        outcome = simulate(workload, cluster, setting.around(policy), seed=episode.seed, interval_s=ROUND_S)
    except StuckError:
        return Played(None, np.zeros((0, TERMS)))
    summary = outcome.metrics.summary(cluster.gpus).to_json()
    return Played(
        {name: summary.get(name) for name in FIGURES},
        goals_of(outcome.metrics, normalize=episode.normalize),
        sample.kept if sample else {},
        sample.ranges if sample else {},
        first_round(outcome.metrics),
        compared.agreement if compared else None,
    )


@lru_cache(maxsize=4)
def world_of(setting: Setting, seed: int) -> tuple[Workload, Cluster]:
    """The workload and the cluster of a setting, as `headway simulate` reads them."""
    cluster = parse_cluster(setting.cluster, seed=seed)
    workload = load_workload(setting.workload, datasets=Path(setting.datasets) if setting.datasets else None, seed=seed)
    if not workload.has_costs:
        workload = workload.with_costs(restore_s=RESTART_S)
    cluster = cluster.with_quotas(workload.queues, workload.quotas_ppm)
    return for_cluster(workload, cluster), cluster


def first_round(metrics: MetricsFold, round_s: float = ROUND_S) -> int:
    """The round in which the first job was submitted."""
    submitted = metrics.column(M_SUBMITTED)
    return int(submitted.min()) // round(round_s * US_PER_S) if len(submitted) else 0


def goals_of(metrics: MetricsFold, round_s: float = ROUND_S, *, normalize: bool = True) -> Floats:
    """The five goals (`metrics.reward`) of each round, (rounds, 5), of the jobs that lived in it.

    A job counts from the round of its submission to that of its end. What becomes of one that still lives is what became of it in
    the end: in a simulation that is the best prediction. Bytes count where the job has told them, at its end.
    """
    M = metrics.M[metrics.M[:, M_PHASE] >= 0]
    M = M[M[:, M_END] >= 0]
    if not len(M):
        return np.zeros((0, TERMS))
    unit = round(round_s * US_PER_S)
    first, last = M[:, M_SUBMITTED] // unit, M[:, M_END] // unit
    begin = int(first.min())
    rounds = int(last.max()) - begin + 1
    first, last = first - begin, last - begin
    done = M[:, M_PHASE] == COMPLETED
    jct = (M[:, M_END] - M[:, M_SUBMITTED]) / US_PER_S
    due, judged = M[:, M_DEADLINE] < NEVER, M[:, M_ACCURACY_DUE] >= 0
    wants = judged & (M[:, M_REQUIRED] > 0)
    on_time = done & (M[:, M_END] <= M[:, M_DEADLINE])
    good = M[:, M_ACCURACY_DUE] >= M[:, M_REQUIRED]

    def over(values: Any, of: Any) -> tuple[Floats, Floats]:
        """The mean of some jobs in each round (NaN: of none), and how many there are."""
        change = np.zeros((2, rounds + 1))
        for row, what in enumerate((np.asarray(values, np.float64), np.ones(len(M)))):
            np.add.at(change[row], first[of], what[of])
            np.add.at(change[row], last[of] + 1, -what[of])
        total, count = np.cumsum(change, axis=1)[:, :rounds]
        return np.divide(total, count, out=np.full(rounds, np.nan), where=count > 0.5), count

    moved = np.zeros(rounds)
    np.add.at(moved, last, M[:, M_MOVED].astype(np.float64))
    timely, timed = over(on_time, due)
    reached, wanting = over(good, wants)
    mean_jct, quality = over(jct, np.ones(len(M), bool))[0], over(M[:, M_ACCURACY_DUE] / PPM, judged)[0]
    goals = terms(
        mean_jct[:, None], timely[:, None], reached[:, None], quality[:, None], moved, normalize=normalize, window_s=round_s
    )
    if not normalize:
        goals[:, 1] *= timed
        goals[:, 3] *= wanting
    return goals
