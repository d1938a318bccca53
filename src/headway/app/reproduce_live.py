"""Real jobs under several policies, and how well the simulator foretells them: `headway reproduce mlfs --live`, without the
command line.

One run after the other, each with all the cores. A run that is done is a line of `live.jsonl`, and its journal is kept: one that
was stopped goes on. Seed 0 is for fitting alone, once under a policy that stops nobody and once under one that stops jobs often;
the judged seeds begin at 1, and each is foretold by what all the others have taught.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway import __version__
from headway.app.live_jobs import INTERVAL_S, LiveJob, check_scripts, draw_jobs, run_live
from headway.app.live_profile import Foretold, distribution, fit, foretell
from headway.app.output import whole_or_nothing
from headway.app.pool import check_folder, cores, run_log
from headway.app.replay import happened
from headway.app.replay_facts import Facts, gather
from headway.app.simulate import Json
from headway.app.why import read_journal
from headway.core.errors import UserError, shown
from headway.policies.registry import choose, names
from headway.report.live import LiveReport, markdown, page

LOG, HTML, MARKDOWN = "live.jsonl", "live.html", "live.md"
FIT_SEED = 0
FIT_POLICIES = ("fifo", "tiresias:threshold=6,queues=2")
"""Of the first, the times of work that nobody interrupts. Under the second, who has had six seconds makes way for newcomers: so
saving and going on can be measured, and nobody is stopped for ever."""
POLICIES = "mlf-h+mlf-c,tiresias,fifo"
MEDIAN_MAX, P90_MAX, JOBS_MIN = 0.10, 0.25, 50
"""What the errors are held against."""
SCRIPTS = "examples/jobs"
JOBS_MAX, SEEDS_MAX, SLOTS_MAX = 1000, 100, 64
FIGURES = (
    "finished", "avg_jct_s", "p90_jct_s", "avg_wait_s", "makespan_s", "deadline_ratio", "avg_final_accuracy", "preemptions",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRequest:
    """What to run and where to keep it, as a person wrote it."""

    out: Path
    jobs: int = 20
    policies: str = POLICIES
    seeds: int = 3
    slots: int | None = None
    """None: one for each core."""
    scripts: Path | None = None
    """Where `train.py` is; None: `examples/jobs` of the folder that Headway's source is in."""


@dataclass(frozen=True, slots=True)
class LiveRun:
    """One run: a policy and a seed."""

    policy: str
    seed: int

    @property
    def key(self) -> str:
        return f"{self.policy} {self.seed}"

    @property
    def folder(self) -> str:
        """Its home within the folder of the reproduction."""
        return "".join(letter if letter.isalnum() or letter in "-+." else "_" for letter in self.policy) + f"-{self.seed}"


@dataclass(frozen=True, slots=True)
class PreparedLive:
    """A request that has been read and checked."""

    fitting: tuple[LiveRun, ...]
    judged: tuple[LiveRun, ...]
    """The fitting run first."""
    scripts: Path
    slots: int
    jobs: int

    @property
    def runs(self) -> tuple[LiveRun, ...]:
        """All, in the order in which they are made."""
        return (*self.fitting, *self.judged)


def prepare(request: LiveRequest) -> PreparedLive:
    """Read and check what a request says. Nothing has run and nothing is written when this raises `UserError`."""
    for key, value, low, high in (
        ("jobs", request.jobs, 1, JOBS_MAX),
        ("seeds", request.seeds, 1, SEEDS_MAX),
        ("slots", cores() if request.slots is None else request.slots, 1, SLOTS_MAX),
    ):
        if not low <= value <= high:
            raise UserError(f"expected a whole number from {low} to {high}, got {value}", key=key)
    specs = [choose(word).spec for word in split_policies(request.policies)]
    for spec in specs:
        if choose(spec).oracle:
            raise UserError("knows the true durations of jobs: it is for simulation only", key=f"policy {spec}")
        if specs.count(spec) > 1:
            raise UserError(f"{shown(spec)} stands twice", key="policies")
    scripts = (request.scripts or Path(__file__).resolve().parents[3] / SCRIPTS).absolute()
    check_scripts(scripts)
    check_folder(request.out, LOG)
    slots = request.slots or cores()
    judged = [LiveRun(spec, seed) for seed in range(FIT_SEED + 1, FIT_SEED + 1 + request.seeds) for spec in specs]
    fitting = tuple(LiveRun(policy, FIT_SEED) for policy in FIT_POLICIES)
    return PreparedLive(fitting, tuple(judged), scripts, slots, request.jobs)


def split_policies(text: str) -> list[str]:
    """Policies parted by commas, each perhaps with parameters that are parted by commas too: a word `key=value` belongs to the
    policy before it."""
    found: list[str] = []
    for word in (word.strip() for word in text.split(",")):
        base = word.partition(":")[0].partition("+")[0].partition("=")[0]
        if found and "=" in word and base not in names():
            found[-1] += f",{word}"
        else:
            found.append(word)
    return found


def run(
    request: LiveRequest, ready: PreparedLive, *, tell: Callable[[int, int], None] | None = None, run_one: Any = run_live
) -> tuple[LiveReport, Json, list[Path]]:
    """Run what has not been run yet, foretell each judged run, and write the report; returns it, its numbers and its files."""
    out = request.out
    out.mkdir(exist_ok=True)
    setting = {"jobs": ready.jobs, "slots": ready.slots}
    with run_log(out / LOG) as (entries, add):
        done = {line["run"] for line in entries if line.get("version") == __version__ and line.get("setting") == setting}
        for count, one in enumerate(ready.runs):
            if one.key not in done or not _journal(out, one).exists():
                jobs = draw_jobs(one.seed, ready.jobs)
                if ready.slots == 1:
                    jobs = _narrow(jobs)
                run_one(one.policy, jobs, scripts=ready.scripts, home=(out / one.folder).absolute(), slots=ready.slots)
                add({"run": one.key, "version": __version__, "setting": setting})
            if tell:
                tell(count + 1, len(ready.runs))
    report = judge(request, ready)
    files = {HTML: page(report), MARKDOWN: markdown(report)}
    for name, text in files.items():
        with whole_or_nothing(out / name) as path:
            path.write_text(text, "utf-8")
    paths = [out / name for name in (*files, LOG)]
    return report, report.to_json() | {"files": [str(path) for path in paths]}, paths


def _narrow(jobs: Sequence[LiveJob]) -> tuple[LiveJob, ...]:
    """On a single slot no job can have two workers."""
    return tuple(replace(job, workers=1) for job in jobs)


def _journal(out: Path, one: LiveRun) -> Path:
    return out / one.folder / "journal.db"


def _facts(out: Path, one: LiveRun) -> Facts:
    path = _journal(out, one)
    return gather(read_journal(path), str(path))


def judge(request: LiveRequest, ready: PreparedLive) -> LiveReport:
    """Foretell each run by what the runs of all other seeds have taught, and gather all figures."""
    calm, stopped = (_facts(request.out, one) for one in ready.fitting)
    runs = {one: _facts(request.out, one) for one in ready.judged}
    profiles = {seed: fit([calm, *(f for one, f in runs.items() if one.seed != seed)], stopped) for seed in _seeds(ready)}
    judged: list[Foretold] = []
    notes: list[str] = []
    real: dict[str, list[Json]] = {}
    for one in ready.judged:
        facts = runs[one]
        found, said = foretell(facts, profiles[one.seed], one.policy, one.seed, INTERVAL_S)
        judged += found
        notes += said
        summary = happened(facts).summary(facts.cluster.gpus).to_json()
        real.setdefault(one.policy, []).append({"seed": one.seed} | {key: summary[key] for key in FIGURES})
    errors = distribution([one.error_frac for one in judged])
    return LiveReport(
        command=command_line(request),
        version=__version__,
        jobs=ready.jobs,
        slots=ready.slots,
        seeds=_seeds(ready),
        figures=real,
        rows=[one.to_json() for one in judged],
        errors=errors,
        by_policy={policy: distribution([o.error_frac for o in judged if o.policy == policy]) for policy in real},
        profile=fit([calm, *runs.values()], stopped).to_json(),
        verdict=verdict(errors),
        notes=notes,
    )


def _seeds(ready: PreparedLive) -> list[int]:
    """The judged seeds."""
    return sorted({one.seed for one in ready.judged})


def verdict(errors: Json) -> str:
    """Whether the errors are as small as is wanted, in a sentence."""
    if not errors["jobs"]:
        return "No job can be judged."
    holds = errors["median"] <= MEDIAN_MAX and errors["p90"] <= P90_MAX and errors["jobs"] >= JOBS_MIN
    few = f" They are {errors['jobs']} jobs, and {JOBS_MIN} are wanted." if errors["jobs"] < JOBS_MIN else ""
    return (
        f"The simulator's error of a job's JCT is {errors['median']:.1%} at the median, {errors['p90']:.1%} at p90 "
        f"(at most {MEDIAN_MAX:.0%} and {P90_MAX:.0%} are wanted: {'reached' if holds else 'not reached'}).{few}"
    )


def command_line(request: LiveRequest) -> str:
    """The command that makes this again, with all options that differ from their defaults."""
    plain = LiveRequest(out=request.out)
    words = ["headway", "reproduce", "mlfs", "--live"]
    for name in ("jobs", "policies", "seeds", "slots", "scripts"):
        if getattr(request, name) != getattr(plain, name):
            words += [f"--{name}", str(getattr(request, name))]
    return shlex.join([*words, "--out", str(request.out)])
