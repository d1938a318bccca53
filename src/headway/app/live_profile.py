"""What runs of real jobs teach the simulator about jobs of the same kind, and how well it then foretells other runs.

A *kind* is a model on so many workers. Over the jobs of a fitting run, the time in which a job's attempts worked is
``warm + pace(kind) · steps + again · (attempts − 1)``, by least squares with no negative figure; starting and saving are medians.
Nothing of the run that is foretold is used but which jobs came when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from headway.app import simulate as simulation
from headway.app.replay import LIVE
from headway.app.replay_facts import Facts, Job
from headway.app.replay_truth import AS_TOLD, Needs, Timing, assemble, measure, points_of, typical, usage_of
from headway.app.simulate import Json, Prepared, SimulateRequest
from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import Name, Phase
from headway.core.errors import UserError
from headway.core.units import US_PER_S
from headway.metrics.fold import M_END, M_PHASE, M_PREEMPTIONS, M_SUBMITTED, M_WAITED
from headway.policies.registry import choose
from headway.sim.recorded import Points, RecordedWorld
from headway.workloads.schema import Workload


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of a kind of jobs: µs a step, how often one reports for each step, and its curve."""

    pace_us: float
    jobs: int
    reports_per_step: float
    points: Points | None
    usage: tuple[tuple[int, ...], ...] = ()
    """What each task uses (GPU milli, cpus, memory, network)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What the fitting run has taught; times in µs."""

    kinds: dict[str, Kind]
    start_us: int
    warm_us: int
    again_us: int
    """What an attempt after the first takes before it makes progress."""
    save_us: int

    def to_json(self) -> Json:
        """In seconds."""
        return {
            "start_s": self.start_us / US_PER_S,
            "warm_up_s": self.warm_us / US_PER_S,
            "again_s": self.again_us / US_PER_S,
            "save_s": self.save_us / US_PER_S,
            "kinds": {name: {"step_ms": kind.pace_us / 1000, "jobs": kind.jobs} for name, kind in sorted(self.kinds.items())},
        }


def kind_of(facts: Facts, job: Job) -> str:
    """The kind of a job, as `cnn-small` or `cnn-small x2`."""
    model = facts.names[Name.MODEL].get(job.spec(c.J_MODEL), "?")
    workers = job.spec(c.J_DATA)
    return model if workers == 1 else f"{model} x{workers}"


def fit(steady: Sequence[Facts], stopped: Facts) -> Profile:
    """What runs have taught: times of work are the medians over runs in which hardly anybody is stopped, those of saving and
    going on come from one in which many are. There, who is stopped while he starts has made no step, and would be taken for slow.

    Raises:
        UserError: no job of a run completed.
    """
    runs, other = [_fit_one(facts) for facts in steady], _fit_one(stopped)
    kinds = {}
    for name in sorted({name for run in runs for name in run.kinds}):
        mine = [run.kinds[name] for run in runs if name in run.kinds]
        pace = float(np.median([kind.pace_us for kind in mine]))
        kinds[name] = replace(mine[0], pace_us=pace, jobs=sum(kind.jobs for kind in mine))
    start_us, warm_us = (round(float(np.median([getattr(run, name) for run in runs]))) for name in ("start_us", "warm_us"))
    return Profile(kinds, start_us, warm_us, other.again_us, other.save_us)


def _fit_one(facts: Facts) -> Profile:
    """What one run says."""
    done = [job for job in facts.jobs.values() if job.phase == Phase.COMPLETED and job.ran and not job.why]
    if not done:
        raise UserError("no job of the fitting run has completed: nothing can be learned of it")
    kinds = sorted({kind_of(facts, job) for job in done})
    rows = np.zeros((len(done), len(kinds) + 2))
    worked = np.zeros(len(done))
    for i, job in enumerate(done):
        rows[i, kinds.index(kind_of(facts, job))] = job.spec(c.J_UNITS_TOTAL)
        rows[i, -2], rows[i, -1] = 1.0, len(job.ran) - 1
        worked[i] = sum(one.up_to_us(facts.horizon_us) - one.started_us for one in job.ran)
    found = _least_squares(rows / np.maximum(worked, 1.0)[:, None], np.ones(len(done)))  # relative errors, as they are judged
    warm = float(found[-2])
    again = float(found[-1]) if rows[:, -1].any() else warm
    plain = typical([measure(job, facts.horizon_us) for job in facts.jobs.values()])
    paces = dict(zip(kinds, found[:-2].tolist(), strict=True))
    made = {}
    for name in kinds:
        mine = [job for job in done if kind_of(facts, job) == name]
        longest = max(mine, key=lambda job: job.spec(c.J_UNITS_TOTAL))
        told = sum(len(job.reports) for job in mine) / sum(job.spec(c.J_UNITS_TOTAL) for job in mine)
        points = points_of(longest, longest.spec(c.J_UNITS_TOTAL)) if longest.reports else None
        made[name] = Kind(paces[name], len(mine), told, points, tuple(usage_of(longest)))
    return Profile(made, plain.start_us or 0, round(warm), round(again), plain.save_us or 0)


def _least_squares(a: Floats, y: Floats) -> Floats:
    """x ≥ 0 for which a·x is near y: the most negative column is left out, until none is negative."""
    scale = np.maximum(np.abs(a).max(axis=0), 1e-300)
    kept = np.ones(a.shape[1], np.bool_)
    x = np.zeros(a.shape[1])
    while kept.any():
        x[:] = 0.0
        x[kept] = np.linalg.lstsq(a[:, kept] / scale[kept], y, rcond=None)[0]
        if (x >= 0).all():
            break
        kept[int(np.argmin(x))] = False
    solution: Floats = x / scale
    return solution


def kind_for(profile: Profile, name: str) -> Kind | None:
    """What is known of a kind; of one that the fitting run did not have on so many workers, that of one worker, divided."""
    if name in profile.kinds:
        return profile.kinds[name]
    model, _, workers = name.partition(" x")
    alone = profile.kinds.get(model)
    return replace(alone, pace_us=alone.pace_us / int(workers)) if alone and workers else None


@dataclass(frozen=True, slots=True)
class Foretold:
    """One job of a judged run: what the simulator said, and what happened. Seconds."""

    job: str
    kind: str
    policy: str
    seed: int
    real_jct_s: float
    sim_jct_s: float
    real_wait_s: float
    sim_wait_s: float
    real_preemptions: int
    sim_preemptions: int

    @property
    def error_frac(self) -> float:
        """|sim − real| / real of the JCT."""
        return abs(self.sim_jct_s - self.real_jct_s) / self.real_jct_s

    def to_json(self) -> Json:
        """All of it, and the error."""
        return {**asdict(self), "error_frac": self.error_frac}


def foretell(facts: Facts, profile: Profile, policy: str, seed: int, grid_s: float) -> tuple[list[Foretold], list[str]]:
    """Simulate a run by the profile, and hold each job that completed in both against what happened; and what was left out."""
    jobs = list(facts.jobs.values())
    kinds = [kind_for(profile, kind_of(facts, job)) for job in jobs]
    strange = sorted({kind_of(facts, job) for job, kind in zip(jobs, kinds, strict=True) if kind is None})
    guessed = sorted({name for job in jobs if (name := kind_of(facts, job)) not in profile.kinds} - set(strange))
    timings, wanted, curves, tells, usages = [], [], [], [], []
    for job, kind in zip(jobs, kinds, strict=True):
        steps = max(job.spec(c.J_UNITS_TOTAL), 1)
        pace = kind.pace_us if kind else float(np.median([one.pace_us for one in profile.kinds.values()]))
        restore = max(profile.again_us - profile.warm_us, 0)
        timings.append(Timing(profile.start_us, profile.warm_us, restore, profile.save_us, pace))
        wanted.append(Needs(max(round(steps * pace), 1), steps, AS_TOLD))
        curves.append(kind.points if kind else None)
        tells.append(round(steps * kind.reports_per_step) if kind else 0)
        usages.append(kind.usage if kind else ())
    built = assemble(replace(facts, node_faults=[]), f"live {policy} {seed}", timings, wanted, curves, tells, usages)
    prepared = Prepared(built.workload, facts.cluster, (choose(policy),), 0.0)
    asked = SimulateRequest(workload="live", cluster="live", policies=(policy,), seed=seed)

    def world(workload: Workload) -> RecordedWorld:
        return RecordedWorld(workload, facts.cluster, built.truth, seed=seed)

    found = simulation.outcomes(asked, prepared, warm_up=False, world=world, capabilities=LIVE, wake_grid_s=grid_s)
    ((_, outcome),) = found
    S, R = outcome.metrics.M, facts.metrics.M
    judged: list[Foretold] = []
    for i, job in enumerate(jobs):
        real, sim = R[job.number], S[i]
        if kinds[i] is None or real[M_PHASE] != Phase.COMPLETED or sim[M_PHASE] != Phase.COMPLETED:
            continue
        times = [int(v) / US_PER_S for row in (real, sim) for v in (row[M_END] - row[M_SUBMITTED], row[M_WAITED])]
        judged.append(
            Foretold(
                built.workload.job_names[i], kind_of(facts, job), policy, seed, times[0], times[2], times[1], times[3],
                int(real[M_PREEMPTIONS]), int(sim[M_PREEMPTIONS]),
            )
        )  # fmt: skip
    notes = [f"{policy}, seed {seed}: the fitting run had no {', '.join(strange)}"] if strange else []
    if guessed:
        notes.append(f"{policy}, seed {seed}: the pace of {', '.join(guessed)} is that of one worker, divided")
    if len(judged) < len(jobs):
        notes.append(f"{policy}, seed {seed}: {len(jobs) - len(judged)} of {len(jobs)} jobs are not judged")
    return judged, notes


def distribution(errors: Sequence[float]) -> Json:
    """Quantiles of the errors."""
    if not errors:
        return {"jobs": 0, "median": None, "p90": None, "max": None}
    values = np.array(errors)
    return {
        "jobs": len(values),
        "median": float(np.median(values)),
        "p90": float(np.quantile(values, 0.9)),
        "max": float(values.max()),
    }
