"""Search a policy's parameters on development seeds: what `headway tune` does, without the command line.

The search is Bayesian (Optuna's TPE) and goes in waves: the trials of a wave are proposed together, run side by side, and told in
order, and each wave's draws follow from the seed and the wave's number. So the result is the same on any number of cores, and the
log of the simulations is all that a search needs to go on: what it holds is not run again.
"""

from __future__ import annotations

import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.app import simulate as simulation
from headway.app.output import whole_or_nothing
from headway.app.pool import check_folder, cores, each, run_log
from headway.app.report import parse_seeds
from headway.app.simulate import Json, SimulateRequest
from headway.app.tune_space import Space, find_space
from headway.core.errors import UserError, did_you_mean, shown
from headway.metrics.compare import HIGHER_IS_BETTER, LOWER_IS_BETTER, paired

WORKLOAD, CLUSTER = "mlfs-paper:jobs=1860", "20x4"
DEVELOPMENT_MAX = 99
"""Seeds above are for judging: a parameter that has seen them proves nothing."""
TRIALS_MAX = 100_000
LOG, BEST = "trials.jsonl", "best.json"
FIGURES = HIGHER_IS_BETTER | LOWER_IS_BETTER
SHOWN = ("avg_jct_s", "avg_wait_s", "p99_jct_s", "makespan_s", "deadline_ratio", "avg_accuracy", "accuracy_ratio",
         "cross_node_bytes")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """What to tune, as a person wrote it."""

    policy: str
    out: Path
    workloads: tuple[str, ...] = (WORKLOAD,)
    cluster: str = CLUSTER
    objective: str = "avg_jct_s"
    """A figure, or `figure=weight,figure=weight`."""
    trials: int = 60
    seeds: str = "0..2"
    held_out: str = "50..54"
    space: tuple[str, ...] = ()
    seed: int = 0
    """Of the search itself."""
    wave: int = 4
    round: str = "60"
    workers: int | None = None
    datasets: Path | None = None


@dataclass(frozen=True, slots=True)
class PreparedTune:
    """A request that has been read and checked."""

    space: Space
    weights: Mapping[str, float]
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation: all that makes it what it is."""

    policy: str
    workload: str
    cluster: str
    round: str
    seed: int
    datasets: str | None = None

    @property
    def key(self) -> str:
        return json.dumps([self.policy, self.workload, self.cluster, self.round, self.seed])


Values = dict[str, Any]
Tell = Callable[[int, int, float | None], None]
"""Is told (trials done, trials in all, the best score)."""


def prepare(request: TuneRequest) -> PreparedTune:
    """Read and check everything that a request names. Nothing has run and nothing is written when this raises `UserError`."""
    _optuna()
    weights = parse_objective(request.objective)
    for key, value, most in (("trials", request.trials, TRIALS_MAX), ("wave", request.wave, 1000)):
        if not 1 <= value <= most:
            raise UserError(f"expected a whole number from 1 to {most}, got {value}", key=key)
    if request.workers is not None and request.workers < 1:
        raise UserError(f"expected at least 1, got {request.workers}", key="workers")
    seeds, held_out = development_seeds(request.seeds, "seeds"), development_seeds(request.held_out, "held-out")
    if both := sorted(set(seeds) & set(held_out)):
        raise UserError(f"seed {both[0]} is tuned on as well", key="held-out")
    if not request.workloads or len(set(request.workloads)) < len(request.workloads):
        raise UserError("expected at least one, none of them twice", key="workload")
    space = find_space(request.policy, request.space)
    for workload in request.workloads:
        simulation.prepare(_asked(Run(request.policy, workload, request.cluster, request.round, seeds[0], _text(request))))
    check_folder(request.out, LOG)
    return PreparedTune(space, weights, seeds, held_out)


def parse_objective(text: str) -> dict[str, float]:
    """The weights of `figure` or of `figure=weight,figure=weight`.

    Raises:
        UserError: an unknown figure, or a weight that is none.
    """
    weights: dict[str, float] = {}
    for word in text.split(","):
        name, equals, weight = (piece.strip() for piece in word.partition("="))
        if name not in FIGURES:
            raise UserError(f"unknown figure {shown(name)}{did_you_mean(name, FIGURES)}", key="objective")
        try:
            value = float(weight) if equals else 1.0
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value > 0) or name in weights:
            raise UserError(f"expected figure=weight,… with weights above 0, got {shown(text)}", key="objective")
        weights[name] = value
    return weights


def run(request: TuneRequest, ready: PreparedTune, *, tell: Tell | None = None) -> Json:
    """Search, check the best on held-out seeds, and return all of it; `best.json` is written at the end."""
    workers = request.workers or cores()
    request.out.mkdir(exist_ok=True)
    with run_log(request.out / LOG) as (entries, add):
        done = {entry["key"]: entry["figures"] for entry in entries if "key" in entry}

        def figures(specs: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Json | None]]:
            runs = {spec: _runs(request, spec, seeds) for spec in specs}
            missing = {run.key: run for of in runs.values() for run in of if run.key not in done}
            todo = list(missing.values())
            for index, found in each(simulate_one, todo, workers=workers):
                done[todo[index].key] = found
                add({"key": todo[index].key, "figures": found})
            return {spec: [done[run.key] for run in of] for spec, of in runs.items()}

        plain = ready.space.spec({})
        base = figures([plain], ready.seeds)[plain]
        trials: list[Json] = []

        def judge(waves: Sequence[Values]) -> list[float | None]:
            specs = [ready.space.spec(values) for values in waves]
            found = figures(list(dict.fromkeys(specs)), ready.seeds)
            scores = [score(ready.weights, found[spec], base) for spec in specs]
            for spec, mark in zip(specs, scores, strict=True):
                trials.append({"trial": len(trials), "policy": spec, "score": mark})
            if tell:
                known = [t["score"] for t in trials if t["score"] is not None]
                tell(len(trials), request.trials, min(known, default=None))
            return scores

        search(ready.space, judge, trials=request.trials, wave=request.wave, seed=request.seed)
        known = [trial for trial in trials if trial["score"] is not None]
        if not known:
            raise UserError("no trial could be scored: the objective has no value for this workload", key="objective")
        best = min(known, key=lambda trial: (trial["score"], trial["trial"]))
        held = figures(list(dict.fromkeys((best["policy"], plain))), ready.held_out)
    result = _result(request, ready, plain, best, trials, base, done, held)
    with whole_or_nothing(request.out / BEST) as path:
        path.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    return result


def score(weights: Mapping[str, float], ours: Sequence[Json | None], base: Sequence[Json | None]) -> float | None:
    """How a policy compares with the defaults, run by run: 1 as good, 0.9 ten per cent better; the mean over figures, by weight,
    and runs. None if a run did not end or a figure has no value.
    """
    total = 0.0
    for mine, default in zip(ours, base, strict=True):
        for figure, weight in weights.items():
            y, z = (side.get(figure) if side is not None else None for side in (mine, default))
            if y is None or not z:
                return None
            sign = 1.0 if figure in HIGHER_IS_BETTER else -1.0
            total += weight * (1.0 - sign * (y - z) / abs(z))
    return total / (sum(weights.values()) * len(ours))


def search(space: Space, judge: Callable[[Sequence[Values]], list[float | None]], *, trials: int, wave: int, seed: int) -> None:
    """Propose `trials` points in waves and have them judged (lower is better; None: no value). The first is the defaults."""
    optuna = _optuna()
    with _quiet(optuna):
        study = optuna.create_study(direction="minimize", sampler=_sampler(optuna, seed, 0))
        ranges = _distributions(optuna, space)
        if all(d.holds_default for d in space.dimensions):
            study.enqueue_trial({d.name: _default(d) for d in space.dimensions})
        number = 0
        while number < trials:
            study.sampler = _sampler(optuna, seed, number)
            asked = [study.ask(ranges) for _ in range(min(wave, trials - number))]
            for trial, value in zip(asked, judge([dict(trial.params) for trial in asked]), strict=True):
                if value is None:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, value)
            number += len(asked)


def simulate_one(run: Run) -> Json | None:
    """The figures of one simulation; None if jobs waited for ever. For worker processes."""
    asked = _asked(run)
    prepared = simulation.prepare(asked)
    try:
        for chosen, outcome in simulation.outcomes(asked, prepared, warm_up=False):
            entry = simulation.result(chosen, prepared.workload, prepared.cluster, asked.seed, prepared.round_s, outcome)
            return {name: entry.get(name) for name in sorted(FIGURES)}
    except UserError:
        return None
    raise AssertionError("one policy, one outcome")


def _asked(run: Run) -> SimulateRequest:
    datasets = Path(run.datasets) if run.datasets else None
    return SimulateRequest(
        workload=run.workload, cluster=run.cluster, policies=(run.policy,), seed=run.seed, round=run.round, datasets=datasets
    )


def _runs(request: TuneRequest, spec: str, seeds: Sequence[int]) -> list[Run]:
    return [
        Run(spec, workload, request.cluster, request.round, seed, _text(request))
        for workload in request.workloads
        for seed in seeds
    ]


def _text(request: TuneRequest) -> str | None:
    return str(request.datasets) if request.datasets else None


def development_seeds(text: str, key: str) -> tuple[int, ...]:
    """Seeds to tune or train on, as `0..3` or `0,5`.

    Raises:
        UserError: one is for judging, or the text is no list of seeds.
    """
    try:
        seeds = parse_seeds(text)
    except UserError as error:
        raise UserError(error.message, key=key) from None
    if max(seeds) > DEVELOPMENT_MAX:
        told = f"expected development seeds, 0 to {DEVELOPMENT_MAX}; those above are for judging, got {max(seeds)}"
        raise UserError(told, key=key)
    return seeds


def _result(
    request: TuneRequest, ready: PreparedTune, plain: str, best: Json, trials: Sequence[Json], base: Sequence[Json | None],
    done: Mapping[str, Json | None], held: Mapping[str, Sequence[Json | None]],
) -> Json:  # fmt: skip
    names = list(dict.fromkeys((*ready.weights, *SHOWN)))
    tuned = [done[run.key] for run in _runs(request, best["policy"], ready.seeds)]
    order = sorted((t for t in trials if t["score"] is not None), key=lambda trial: (trial["score"], trial["trial"]))
    return {
        "policy": request.policy,
        "defaults": plain,
        "best": best["policy"],
        "score": best["score"],
        "trial": best["trial"],
        "trials": len(trials),
        "failed": sum(trial["score"] is None for trial in trials),
        "objective": dict(ready.weights),
        "workloads": list(request.workloads),
        "cluster": request.cluster,
        "seeds": list(ready.seeds),
        "held_out": list(ready.held_out),
        "held_out_score": score(ready.weights, held[best["policy"]], held[plain]),
        "tuned_on": _gains(names, tuned, base),
        "checked_on": _gains(names, held[best["policy"]], held[plain]),
        "left_out": list(ready.space.left_out),
        "first": order[:10],
    }


def _gains(names: Sequence[str], ours: Sequence[Json | None], base: Sequence[Json | None]) -> Json:
    """For each figure its medians, and the paired gain over the defaults."""
    gains: Json = {}
    for name in names:
        mine, default = ([run.get(name) if run else None for run in side] for side in (ours, base))
        known = [[v for v in side if v is not None] for side in (mine, default)]
        if all(known):
            means = [math.fsum(side) / len(side) for side in known]
            gains[name] = {"mean": means[0], "defaults_mean": means[1], **paired(name, mine, default).to_json()}
    return gains


# -- Optuna ---------------------------------------------------------------------------------------------------------
def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise UserError("needs Optuna: pip install 'headway[tune]'", key="tune") from None
    return optuna


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Optuna without its log and without its remarks that a sampler's option may still change."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _sampler(optuna: Any, seed: int, first: int) -> Any:
    """The sampler of the wave that begins with trial `first`."""
    drawn = zlib.crc32(f"{seed}:{first}".encode())
    return optuna.samplers.TPESampler(seed=drawn, multivariate=True, constant_liar=True, n_startup_trials=12)


def _distributions(optuna: Any, space: Space) -> dict[str, Any]:
    of = optuna.distributions
    found: dict[str, Any] = {}
    for d in space.dimensions:
        if d.choices:
            found[d.name] = of.CategoricalDistribution(d.choices)
        elif d.whole:
            found[d.name] = of.IntDistribution(int(d.low), int(d.high), log=d.log)
        else:
            found[d.name] = of.FloatDistribution(d.low, d.high, log=d.log)
    return found


def _default(dimension: Any) -> Any:
    if dimension.choices:
        return dimension.default
    return int(dimension.default) if dimension.whole else float(dimension.default)
