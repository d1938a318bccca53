"""`Workload`: jobs as columns, with the truth about them that no policy sees."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Ints, Table
from headway.core.errors import UserError, shown
from headway.core.units import US_PER_S
from headway.workloads.select import filter_mask
from headway.workloads.truth import HINT_COLUMN_NAMES, HINT_COLUMNS, TRUTH_COLUMN_NAMES, TRUTH_COLUMNS, Y_BOAST, Y_SPEED, Speed

JOBS_MAX = 5_000_000
LOAD_MIN, LOAD_MAX = Fraction(1, 1000), Fraction(1000)
SCALE_MIN, SCALE_MAX = 0.01, 100.0
LIARS = 9
"""Tells the draw of who lies from all others with the same seed."""
SCHEMA = "headway-workload/1"


def _no_details() -> Ints:
    return np.empty(0, np.int64)


def _no_truth() -> Table:
    return np.empty((TRUTH_COLUMNS, 0), np.int64)


def _no_hints() -> Table:
    return np.empty((HINT_COLUMNS, 0), np.int64)


@dataclass(frozen=True)
class Workload:
    """Jobs in order of submission; a job's number is its index. Arrays are not to be written to: a change makes another workload.

    `spec` holds the columns J_USER … J_DETAILS of `core.columns`, one row a column; `work_us` is the true run time at rate 1.
    `details[detail_at[i] : detail_at[i + 1]]` are `DETAIL` numbers a task of job `i`, nothing for a job whose tasks are equal.
    Users, queues, GPU kinds and models are numbers in `spec`, and names here.
    """

    name: str
    submitted_us: Ints
    spec: Table
    work_us: Ints
    users: tuple[str, ...] = ("user",)
    queues: tuple[str, ...] = ("default",)
    kinds: tuple[str, ...] = ()
    job_names: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    quotas_ppm: tuple[int, ...] = ()
    """What each queue is guaranteed of a cluster that has no settings for it; empty: nothing."""
    details: Ints = field(default_factory=_no_details)
    detail_at: Ints = field(default_factory=_no_details)
    usage_jitter_ppm: int = 0
    usage_hold_us: int = 0
    usage_seed: int = 0
    truth: Table = field(default_factory=_no_truth)
    """Hidden from policies (`workloads.truth`); no columns at all where nothing but `work_us` is true of any job."""
    hints: Table = field(default_factory=_no_hints)
    """What policies may know beforehand of curves and speeds (`workloads.truth`); no columns at all where that is nothing."""
    frozen_sha256: str = ""
    """The hash of a frozen generator's workload: over what was drawn, not over what is derived from it."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """How many rows of the source were left out, by what was wrong with them."""
    dropped_first: str = ""
    """Where the first of them stands."""
    noted: Mapping[str, int] = field(default_factory=dict)
    """What else is odd about the source's rows and left none of the jobs out: how many rows, by what it is."""
    rows_read: int = 0
    """How many rows of jobs the source has; 0: nobody counted them, or there is no source."""

    def __post_init__(self) -> None:
        count = len(self.submitted_us)
        if len(self.detail_at) == 0:
            object.__setattr__(self, "detail_at", np.zeros(count + 1, np.int64))
        assert self.spec.shape == (c.SPEC_COLUMNS, count) and len(self.work_us) == count and len(self.detail_at) == count + 1
        assert self.truth.shape in ((TRUTH_COLUMNS, 0), (TRUTH_COLUMNS, count))
        assert self.hints.shape in ((HINT_COLUMNS, 0), (HINT_COLUMNS, count))
        assert len(self.quotas_ppm) in (0, len(self.queues))
        assert np.all(self.submitted_us[1:] >= self.submitted_us[:-1]), "submissions are not in order"

    def __len__(self) -> int:
        return len(self.submitted_us)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the jobs, whatever file they came from: a header that names the columns, then each as int64, little-endian.

        Columns of zeros alone are left out, so that a schema with more columns gives the same jobs the same hash. A frozen
        generator's workload has the hash of what was drawn, as long as it is whole and unchanged.
        """
        if self.frozen_sha256:
            return self.frozen_sha256
        columns = {"submitted": self.submitted_us, "work": self.work_us, "detail_at": self.detail_at, "details": self.details}
        columns["usage"] = np.array([self.usage_jitter_ppm, self.usage_hold_us, self.usage_seed], np.int64)
        columns |= zip(c.SPEC_COLUMN_NAMES, self.spec, strict=True)
        columns |= {f"true_{name}": column for name, column in zip(TRUTH_COLUMN_NAMES, self.truth, strict=True)}
        columns |= {f"hint_{name}": column for name, column in zip(HINT_COLUMN_NAMES, self.hints, strict=True)}
        kept = {name: column for name, column in columns.items() if column.any()}
        header = " ".join(f"{name}={len(column)}" for name, column in kept.items())
        digest = hashlib.sha256(f"{SCHEMA} jobs={len(self)} {header}\n".encode())
        for column in kept.values():
            digest.update(np.ascontiguousarray(column, "<i8").data)
        return digest.hexdigest()

    @cached_property
    def gpu_milli(self) -> Ints:
        """Thousandths of GPUs that each job asks for."""
        return self._gpus_by_task(lambda milli: milli)

    @cached_property
    def gpus(self) -> Ints:
        """GPUs that each job takes where nobody shares one: those of its tasks, each rounded up."""
        return self._gpus_by_task(lambda milli: (milli + c.WHOLE - 1) // c.WHOLE)

    def _gpus_by_task(self, count: Callable[[Ints], Ints]) -> Ints:
        """The sum over each job's tasks of what `count` makes of a task's milli-GPUs."""
        spec = self.spec
        total: Ints = spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR] * count(spec[c.J_GPU_TASK])
        differ = np.flatnonzero(np.diff(self.detail_at))
        if len(differ):
            total[differ] = np.add.reduceat(count(self.details[:: c.DETAIL]), self.detail_at[differ] // c.DETAIL)
        return total

    @cached_property
    def gpu_work_us(self) -> int:
        """What all jobs together need, in GPU·µs. A task on a share of a GPU counts as far as it asks for it; a job whose speed
        hangs on how many workers it has (SHAPED, SCALED) counts as on one.
        """
        milli = self.gpu_milli
        if self.truth.size:
            milli = np.where(self.truth[Y_SPEED] >= Speed.SHAPED, c.WHOLE, milli)
        total: int = sum(work * each for work, each in zip(self.work_us.tolist(), milli.tolist(), strict=True))
        return total // c.WHOLE

    @property
    def span_us(self) -> int:
        """From the first submission to the last."""
        return int(self.submitted_us[-1] - self.submitted_us[0]) if len(self) else 0

    # -- other workloads made from this one -----------------------------------------------------------------------
    def with_estimates(self, estimate_us: Ints) -> Workload:
        """The same jobs with other estimates; the true durations make an oracle of a policy that ranks by them."""
        return self._with_columns({c.J_ESTIMATE: estimate_us})

    def with_estimates_scaled(self, scale: float) -> Workload:
        """The same jobs whose users' estimates are wrong by one factor more: what policies are told, not what is so.

        Raises:
            UserError: the factor is not from 0.01 to 100.
        """
        if not SCALE_MIN <= scale <= SCALE_MAX:
            raise UserError(f"expected a number from {SCALE_MIN:g} to {SCALE_MAX:g}, got {shown(scale)}", key="estimate-scale")
        estimate, factor = self.spec[c.J_ESTIMATE], Fraction(str(scale))
        if factor == 1:
            return self
        scaled = [_estimate_us(us, factor) for us in estimate.tolist()]
        return self.with_estimates(np.array(scaled, np.int64))

    def with_liars(self, frac: float, factor: float = 2.0, seed: int = 0) -> Workload:
        """The same jobs, of which a seeded share reports more than is so: units done and accuracy `factor` times the true ones,
        up to all their units and to 1. What they report of their losses stays true. Which jobs lie hangs on the seed and the
        job's number alone: with a larger share those of a smaller one lie too.

        Raises:
            UserError: the share is not from 0 to 1, or the factor not from 1 to 100.
        """
        if not 0 <= frac <= 1:
            raise UserError(f"expected a share from 0 to 1, got {shown(frac)}", key="liars")
        if not 1 <= factor <= SCALE_MAX:
            raise UserError(f"expected a factor from 1 to {SCALE_MAX:g}, got {shown(factor)}", key="liars")
        lies = np.random.Generator(np.random.PCG64([seed, LIARS])).random(len(self)) < frac
        if not lies.any() or factor == 1:
            return self
        truth = self.truth.copy() if self.truth.size else np.zeros((TRUTH_COLUMNS, len(self)), np.int64)
        truth[Y_BOAST] = np.where(lies, round((factor - 1) * 1e6), 0)
        return replace(self, truth=truth, frozen_sha256="")

    def with_costs(self, save_s: float | None = None, restore_s: float | None = None, every_s: float | None = None) -> Workload:
        """The same jobs with another price of a preemption: to save, to restore, and the interval of checkpoints (0: none).

        None leaves what the jobs have. They keep their hash: a price is a setting of the run, not another workload.
        """
        times = {c.J_SAVE: save_s, c.J_RESTORE: restore_s, c.J_EVERY: every_s}
        costs = {column: _us(seconds) for column, seconds in times.items() if seconds is not None}
        return replace(self._with_columns(costs), frozen_sha256=self.sha256) if costs else self

    @property
    def has_costs(self) -> bool:
        """Whether the jobs come with a price of a preemption."""
        return bool(self.spec[[c.J_SAVE, c.J_RESTORE, c.J_EVERY]].any())

    def scaled_to_load(self, load: float | Fraction, gpus: int) -> Workload:
        """The same jobs, submitted faster or slower: their GPU time is `load` of what `gpus` GPUs give from the first
        submission to the last.
        """
        wanted = Fraction(str(load))
        if not LOAD_MIN <= wanted <= LOAD_MAX:
            raise UserError(f"expected a number from {float(LOAD_MIN)} to {float(LOAD_MAX):.0f}, got {shown(load)}", key="load")
        if gpus < 1:
            raise UserError("a cluster without GPUs cannot be loaded", key="load")
        if self.span_us == 0:
            raise UserError("cannot be scaled: all jobs are submitted at one instant", key="load")
        first, old = int(self.submitted_us[0]), self.span_us
        span = Fraction(self.gpu_work_us) / (wanted * gpus)
        above, below = span.numerator, span.denominator * old
        scaled = np.array([first + (t - first) * above // below for t in self.submitted_us.tolist()], np.int64)
        return self._with_times(scaled)

    def window(self, start_s: float, end_s: float) -> Workload:
        """The jobs submitted from `start_s` to before `end_s` after the first one; the first that is left is submitted at 0."""
        start, end = _us(start_s), _us(end_s)
        since = self.submitted_us - (self.submitted_us[0] if len(self) else 0)
        otherwise = f"no job is submitted between {start_s:g} s and {end_s:g} s"
        return self._chosen((since >= start) & (since < end), otherwise, "window")

    def filtered(self, text: str) -> Workload:
        """The jobs that pass tests such as `queue=NAME,gpus>=8`; the first that is left is submitted at 0."""
        mask = filter_mask(text, self.spec[c.J_QUEUE], self.queues, self.spec[c.J_USER], self.users, self.gpus)
        return self._chosen(mask, f"no job passes {shown(text)}", "filter")

    def _with_columns(self, changed: Mapping[int, Ints | int]) -> Workload:
        spec = self.spec.copy()
        for column, values in changed.items():
            spec[column] = values
        return replace(self, spec=spec, frozen_sha256="")

    def _with_times(self, submitted_us: Ints) -> Workload:
        """The same jobs at other times; a deadline keeps its distance."""
        spec = self.spec
        if np.any(spec[c.J_DEADLINE] != c.NEVER):
            spec = spec.copy()
            moved = spec[c.J_DEADLINE] + submitted_us - self.submitted_us
            spec[c.J_DEADLINE] = np.where(spec[c.J_DEADLINE] == c.NEVER, c.NEVER, moved)
        return replace(self, spec=spec, submitted_us=submitted_us, frozen_sha256="")

    def _chosen(self, mask: Bools, otherwise: str, key: str) -> Workload:
        """The jobs of a mask, numbered anew from 0, with the names that they use."""
        if not mask.any():
            raise UserError(otherwise, key=key)
        kept = np.flatnonzero(mask)
        spec = np.ascontiguousarray(self.spec[:, kept])
        users, spec[c.J_USER] = _used(self.users, spec[c.J_USER])
        quotas = dict(zip(self.queues, self.quotas_ppm, strict=False))
        queues, spec[c.J_QUEUE] = _used(self.queues, spec[c.J_QUEUE])
        sizes = np.diff(self.detail_at)
        chosen = replace(
            self,
            submitted_us=self.submitted_us[kept],
            spec=spec,
            work_us=self.work_us[kept],
            truth=self.truth[:, kept] if self.truth.size else self.truth,
            hints=self.hints[:, kept] if self.hints.size else self.hints,
            users=users,
            queues=queues,
            quotas_ppm=tuple(quotas[queue] for queue in queues) if quotas else (),
            job_names=tuple(self.job_names[i] for i in kept) if self.job_names else (),
            details=self.details[np.repeat(mask, sizes)],
            detail_at=np.concatenate(([0], np.cumsum(sizes[kept]))),
        )
        return chosen._with_times(chosen.submitted_us - chosen.submitted_us[0])


def _estimate_us(estimate_us: int, factor: Fraction) -> int:
    """An estimate times a factor, at least 1 µs; none stays none."""
    return max(min(round(estimate_us * factor), c.NEVER - 1), 1) if 0 < estimate_us < c.NEVER else estimate_us


def _us(seconds: float) -> int:
    return round(Fraction(seconds) * US_PER_S)


def _used(names: tuple[str, ...], column: Ints) -> tuple[tuple[str, ...], Ints]:
    """The names that a column uses, and the column with their new numbers."""
    used, numbers = np.unique(column, return_inverse=True)
    return tuple(names[i] for i in used), numbers.astype(np.int64)


def plain_spec(count: int) -> Table:
    """Spec columns of `count` jobs with one worker on one GPU of any kind, and nothing else wanted or known."""
    spec = np.zeros((c.SPEC_COLUMNS, count), np.int64)
    for column, value in {
        c.J_PRIORITY: 50,
        c.J_URGENCY: 5,
        c.J_DEADLINE: c.NEVER,
        c.J_TIME_LIMIT: c.NEVER,
        c.J_DATA: 1,
        c.J_DATA_MIN: 1,
        c.J_DATA_MAX: 1,
        c.J_PIPELINE: 1,
        c.J_TENSOR: 1,
        c.J_WIDTH: 1,
        c.J_GPU_TASK: c.WHOLE,
        c.J_KIND_MASK: -1,
        c.J_CPU_TASK: 1000,
        c.J_MEM_TASK: 4 * 10**9,
        c.J_RETRY_MAX: 3,
        c.J_GROUP: -1,
        c.J_MODEL: -1,
    }.items():
        spec[column] = value
    return spec


def set_workers(spec: Table, workers: Ints) -> None:
    """Make the jobs of `spec` data parallel with so many workers, and not elastic."""
    spec[c.J_DATA] = spec[c.J_DATA_MIN] = spec[c.J_DATA_MAX] = workers
