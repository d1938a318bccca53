"""Train a scheduling network: what `headway train` does, without the command line."""

from __future__ import annotations

import hashlib
import math
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.app.output import whole_or_nothing
from headway.app.pool import check_folder, cores, crew, run_log
from headway.app.replay import read_home
from headway.app.tune import development_seeds, parse_objective
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.specstring import Part, flag, parse_part, parse_spec, read_params, unknown_name
from headway.policies.registry import BESIDE, make_policy
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload

if TYPE_CHECKING:
    from headway.learn.rollout import Sample
    from headway.learn.spec import TrainSpec
    from headway.policies.mlfs.net import Net

Json = dict[str, Any]
KINDS = ("mlf-rl", "rl-placement")
CURVE, PICTURE = "curve.jsonl", "curve.svg"
JOURNAL_KEEP = 3000
"""Decisions of a journal that are imitated, at most."""
MINUTES = 60.0
OBJECTIVE = "reward"
REWARD_WORD = "reward"
OPTIONS = ("cluster", "teacher", "phases", "seeds", "held_out", "seed", "minutes", "iterations", "objective", "betas", "start",
           "scope", "sigma", "rate", "pairs", "rollouts", "judge_every")  # fmt: skip
"""Of the request, each one option of the command."""
SCOPES = ("skip", "skips", "last", "lasts")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRequest:
    """What to train, as a person wrote it."""

    kind: str
    out: Path
    workloads: tuple[str, ...] = ()
    cluster: str = "20x4"
    policies: tuple[str, ...] = ()
    """As what the network is to decide: `mlf-rl:sharing=false+mlf-c:downgrade=false`; none: the plain kind."""
    teacher: str = "mlf-h"
    phases: str = "imitate,pgpe"
    seeds: str = "0..3"
    held_out: str = "50..53"
    seed: int = 0
    minutes: float = MINUTES
    iterations: int | None = None
    objective: str = OBJECTIVE
    betas: str | None = None
    raw: bool = False
    start: Path | None = None
    journal: str | None = None
    """A home, a journal's file, or the address of a database, whose policy is imitated."""
    scope: str = "skip"
    sigma: float = 0.3
    rate: float = 0.3
    pairs: int = 6
    rollouts: int = 10
    judge_every: int = 5
    workers: int | None = None
    datasets: Path | None = None


@dataclass(frozen=True, slots=True)
class PreparedTrain:
    """A request that has been read and checked."""

    spec: TrainSpec
    start: Net | None
    recorded: Sample | None = None


def prepare(request: TrainRequest) -> PreparedTrain:
    """Read and check everything that a request names. Nothing has run and nothing is written when this raises `UserError`."""
    if request.kind not in KINDS:
        raise UserError(
            f"expected {' or '.join(KINDS)}, got {shown(request.kind)}{did_you_mean(request.kind, KINDS)}", key="train"
        )
    check_torch()
    from headway.learn.recorded import decisions_of
    from headway.learn.rollout import Setting
    from headway.learn.spec import PHASES, TrainSpec
    from headway.metrics.reward import BETAS
    from headway.policies.mlfs.artefact import load_model

    _check_numbers(request)
    seeds, held_out = development_seeds(request.seeds, "seeds"), development_seeds(request.held_out, "held-out")
    if both := sorted(set(seeds) & set(held_out)):
        raise UserError(f"seed {both[0]} is trained on as well", key="held-out")
    phases = tuple(word.strip() for word in request.phases.split(","))
    for phase in phases:
        if phase not in PHASES:
            raise UserError(
                f"expected some of {', '.join(PHASES)}, got {shown(phase)}{did_you_mean(phase, PHASES)}", key="phases"
            )
    teacher = parse_part(request.teacher, "teacher")
    if teacher.name != "mlf-h":
        raise UserError(f"expected mlf-h[:key=value,…], got {shown(request.teacher)}", key="teacher")
    make_policy(str(teacher))
    parse_cluster(request.cluster, seed=seeds[0])
    if not request.workloads:
        raise UserError("expected at least one", key="workload")
    ways = [way_of(text, request.kind) for text in request.policies or (request.kind,)]
    settings = []
    for workload in request.workloads:
        load_workload(workload, datasets=request.datasets, seed=seeds[0])
        for sharing, beside in ways:
            datasets = str(request.datasets) if request.datasets else None
            settings.append(Setting(workload.strip(), request.cluster, sharing, beside, datasets))
    if len(set(settings)) < len(settings):
        raise UserError("the same is given twice", key="workload")
    start = load_model(request.start, request.kind).net if request.start is not None else None
    check_folder(request.out, CURVE)
    recorded, sha = None, ""
    if request.journal is not None:
        batch = read_home(request.journal)[0].batch
        sha = hashlib.sha256(batch.records.tobytes() + batch.pool.tobytes()).hexdigest()
        recorded = decisions_of(batch, keep=JOURNAL_KEEP, sharing=settings[0].sharing, seed=request.seed)
        if not recorded.kept:
            raise UserError("no decision to imitate is in it", file=request.journal, key="from")
    spec = TrainSpec(
        journal_sha256=sha,
        settings=tuple(settings), kind=request.kind, teacher=str(teacher), phases=phases, seeds=seeds, held_out=held_out,
        seed=request.seed, objective=objective_of(request), betas=betas_of(request.betas) if request.betas else BETAS,
        normalize=not request.raw, judge_every=request.judge_every, pairs=request.pairs, scope=request.scope, sigma=request.sigma,
        rate=request.rate, rollouts=request.rollouts,
    )  # fmt: skip
    return PreparedTrain(spec, start, recorded)


def check_torch() -> None:
    """Raise `UserError`, in one line, where PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise UserError("needs PyTorch: pip install 'headway[learn]'", key="train") from None


def way_of(text: str, kind: str) -> tuple[bool, str]:
    """Whether jobs share, and what stands beside, of `KIND[:sharing=true|false][+mlf-c:…]`."""
    first, *beside = parse_spec(text, "policy")
    if first.name != kind:
        raise UserError(f"expected {kind}[:sharing=true|false][+mlf-c:…], got {shown(text)}", key="policy")
    sharing = bool(read_params(first, {"sharing": flag}, "policy").get("sharing", True))
    for part in beside:
        if part.name not in BESIDE:
            raise unknown_name("component beside a policy", part.name, BESIDE)
    told = "+".join(map(str, beside))
    make_policy(str(Part("mlf-h")) + (f"+{told}" if told else ""))
    return sharing, told


def objective_of(request: TrainRequest) -> tuple[tuple[str, float], ...]:
    """`reward`, or figures with weights; of `rl-placement` the JCT alone unless something else is asked for."""
    text = request.objective.strip()
    if text == REWARD_WORD:
        return (("avg_jct_s", 1.0),) if request.kind == "rl-placement" else ((REWARD_WORD, 1.0),)
    figures, reward = [], 0.0
    for word in text.split(","):
        if word.partition("=")[0].strip() == REWARD_WORD:
            reward += next(iter(parse_objective("avg_jct_s" + word.strip()[len(REWARD_WORD) :]).values()))
        else:
            figures.append(word)
    weights = parse_objective(",".join(figures)) if figures else {}
    return (*(((REWARD_WORD, reward),) if reward else ()), *weights.items())


def betas_of(text: str) -> tuple[float, ...]:
    """Five weights that are not negative, at least one of them above 0."""
    try:
        betas = tuple(float(word) for word in text.split(","))
    except ValueError:
        betas = ()
    if len(betas) != 5 or not all(math.isfinite(beta) and beta >= 0 for beta in betas) or not any(betas):
        raise UserError(f"expected five numbers that are not negative, with commas between, got {shown(text)}", key="betas")
    return betas


def _check_numbers(request: TrainRequest) -> None:
    whole = {
        "pairs": (request.pairs, 1, 1000), "rollouts": (request.rollouts, 2, 1000),
        "judge-every": (request.judge_every, 1, 1000), "seed": (request.seed, 0, 2**31),
    }  # fmt: skip
    if request.iterations is not None:
        whole["iterations"] = (request.iterations, 1, 1_000_000)
    if request.workers is not None:
        whole["workers"] = (request.workers, 1, 1024)
    for key, (value, low, high) in whole.items():
        if not low <= value <= high:
            raise UserError(f"expected a whole number from {low} to {high}, got {value}", key=key)
    for key, number in (("minutes", request.minutes), ("sigma", request.sigma), ("rate", request.rate)):
        if not (math.isfinite(number) and number > 0):
            raise UserError(f"expected a number above 0, got {number}", key=key)
    if request.scope not in SCOPES:
        raise UserError(
            f"expected {' or '.join(SCOPES)}, got {shown(request.scope)}{did_you_mean(request.scope, SCOPES)}", key="scope"
        )


Tell = Callable[[float, Json], None]
"""Is told the share of the time that is over, and what an iteration brought."""


def run(request: TrainRequest, ready: PreparedTrain, *, tell: Tell | None = None) -> Json:
    """Train, and return the manifest of the model that is kept."""
    from headway.learn.train import Training

    request.out.mkdir(exist_ok=True)
    begun = time.monotonic()
    budget_s = 60 * request.minutes

    def left_s() -> float:
        return budget_s - (time.monotonic() - begun)

    def told(facts: Json) -> None:
        if tell is not None:
            tell(min(1 - left_s() / budget_s, 1.0), facts)

    with crew(request.workers or cores()) as many:
        training = Training(ready.spec, request.out, many, ready.start, ready.recorded)
        training.go(left_s, iterations=request.iterations, tell=told)
        manifest = training.finish({"commit": commit(), "command": command_line(request)}, lambda about: card(request, about))
    with whole_or_nothing(request.out / PICTURE) as path:
        path.write_text(picture(training.curve))
    return {"out": str(request.out), "minutes": (time.monotonic() - begun) / 60, **manifest}


def search_beta(request: TrainRequest, ready: PreparedTrain, *, tell: Tell | None = None) -> Json:
    """Search β: a short training for each candidate, in a folder of its own; candidates that the log holds are not trained again.

    The time of the request is that of all candidates together. Trained so, they differ by their β alone; which is best is told by
    equal weights on the five terms (`learn.beta`).
    """
    from headway.learn.beta import ROUNDS, VARIATIONS, Betas, Candidate, best_of, equal_score, search_betas
    from headway.learn.rollout import Episode
    from headway.learn.train import Training

    request.out.mkdir(exist_ok=True)
    total = ROUNDS + VARIATIONS
    each_s = 60 * request.minutes / total
    with run_log(request.out / CURVE) as (entries, add), crew(request.workers or cores()) as many:
        done: dict[Betas, float | None] = {tuple(entry["betas"]): entry["score"] for entry in entries}

        def worth(betas: Betas) -> float | None:
            if betas in done:
                return done[betas]
            spec = replace(ready.spec, betas=betas)
            training = Training(spec, request.out / f"beta-{len(done)}", many, ready.start, ready.recorded)
            begun = time.monotonic()
            training.go(lambda: each_s - (time.monotonic() - begun), iterations=request.iterations)
            arrays = training.best.to_arrays()
            cases = [(setting, seed) for setting in spec.settings for seed in spec.held_out]
            asked = [Episode(setting, seed, teacher=spec.teacher, arrays=arrays) for setting, seed in cases]
            done[betas] = equal_score(training.play(asked))
            add({"betas": list(betas), "score": done[betas]})
            return done[betas]

        def told(candidate: Candidate) -> None:
            if tell is not None:
                tell(len(done) / total, {"betas": list(candidate.betas), "score": candidate.score})

        found = search_betas(worth, seed=request.seed, tell=told)
    best = best_of(found)
    if best is None:
        raise UserError("no candidate could be judged: jobs waited for ever", key="search-beta")
    return {
        "best": list(best.betas), "score": best.score, "paper": found[0].score,
        "candidates": [{"betas": list(one.betas), "score": one.score, "how": one.how} for one in found],
    }  # fmt: skip


def commit() -> str:
    """The commit of the source tree that this package is in; empty where it is in none."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def command_line(request: TrainRequest) -> str:
    """The command that trains so, with all options that differ from their defaults."""
    plain = TrainRequest(kind="", out=Path())
    words = ["headway", "train", request.kind]
    for workload in request.workloads:
        words += ["--workload", workload]
    for policy in request.policies:
        words += ["--policy", policy]
    for key in OPTIONS:
        value = getattr(request, key)
        if value != getattr(plain, key):
            words += [f"--{key.replace('_', '-')}", str(value)]
    if request.journal is not None:
        words += ["--from", Path(request.journal).name if "://" not in request.journal else "postgresql://…"]
    return " ".join([*words, *(["--raw"] if request.raw else []), "--out", request.out.name or "."])


def card(request: TrainRequest, about: Json) -> str:
    """The card of a model: what it is, how it came to be, what it is worth, for people."""
    scores, switch = about["scores"], about["switch"]
    settings = "\n".join(
        f"- `{s['workload']}` on `{s['cluster']}`, sharing {'on' if s['sharing'] else 'off'}"
        + (f", beside `{s['beside']}`" if s["beside"] else "")
        for s in about["settings"]
    )
    gains = "\n".join(f"| {name} | {'–' if gain is None else f'{gain:+.1%}'} |" for name, gain in scores["gains"].items())
    passed = "passed" if switch["passed"] else "not passed"
    return f"""# {request.kind}

A policy network of Headway: it ranks jobs, chooses nodes and says which tasks move. It was trained by

```
{about["command"]}
```

on seeds {", ".join(map(str, about["seeds"]))} of

{settings}

with `{about["teacher"]}` as the teacher. The best network on held-out seeds {", ".join(map(str, about["held_out"]))} is kept.
Beside its teacher there (mean gain, above 0: better):

| figure | gain |
|---|--:|
{gains}

The switch test ({switch["evaluations"]} evaluations): {passed}. Converged: {"yes" if switch["converged"] else "no"}; not below
the teacher's reward: {"yes" if switch["beats_teacher"] else "no"}.

It is meant for clusters and workloads like these; beyond the ranges in `manifest.json` its teacher decides.
"""


def picture(curve: list[Json]) -> str:
    """The learning curve: held-out score, and agreement where there was a phase of imitation."""
    from headway.report.scale import Tick, linear_ticks
    from headway.report.svg import Axis, Line, line_chart

    lines: list[Line] = []
    for name, key in (("better than the teacher, held-out", "score"), ("better than the teacher, training", "fitness"),
                      ("agreement with the teacher", "agreement")):  # fmt: skip
        points = [(float(at), 100 * float(entry[key])) for at, entry in enumerate(curve) if entry.get(key) is not None]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(name, x, y, len(lines)))
    values = [0.0, *(value for line in lines for value in line.y)]
    ticks = [Tick(t.value, f"{t.label} %") for t in linear_ticks(max(*values, 1.0), 6, min(values))]
    along = linear_ticks(max(len(curve) - 1, 1), 8, 0)
    axes = Axis("iteration", 0, max(len(curve) - 1, 1), along), Axis("", ticks[0].value, ticks[-1].value, ticks)
    return line_chart(lines, *axes, title="Learning curve", width=960, alone=True)
