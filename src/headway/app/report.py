"""Compare policies in a report: what `headway report` does, without the command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway import __version__
from headway.app import simulate as simulation
from headway.app.simulate import Json, Prepared, Progress, SimulateRequest
from headway.core import columns as c
from headway.core.arrays import Floats, Ints
from headway.core.columns import Phase
from headway.core.errors import UserError, shown
from headway.core.units import US_PER_S
from headway.metrics.compare import HIGHER_IS_BETTER, LOWER_IS_BETTER, Paired, median, paired
from headway.metrics.fold import COLUMN_NAMES, M_PHASE, UNKNOWN, MetricsFold
from headway.metrics.series import bin_edges, series
from headway.metrics.spans import Spans, SpansFold
from headway.metrics.tables import by_name, by_size
from headway.policies.registry import Chosen
from headway.report.content import Content, PolicyRun, Seeds
from headway.report.figures import WIDE, figures
from headway.report.page import render
from headway.report.png import check_png, png
from headway.report.window import busiest_window, nodes_shown, thin
from headway.report.window import shown as segments_shown
from headway.workloads.schema import Workload
from headway.workloads.select import parse_window

SEEDS_MAX = 1000
COMPARED = sorted(LOWER_IS_BETTER | HIGHER_IS_BETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRequest:
    """What to compare and where to write it, as a person wrote it."""

    simulate: SimulateRequest
    output: Path
    seeds: str | None = None
    """`1..10` or `1,2,5`; None: the seed of `simulate` alone."""
    gantt: str | None = None
    svg: Path | None = None
    png: Path | None = None


@dataclass(frozen=True, slots=True)
class PreparedReport:
    """A request that has been read and checked. `simulate` has the first seed, which the pictures are of."""

    simulate: SimulateRequest
    prepared: Prepared
    seeds: tuple[int, ...]
    window_us: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is ready to be written."""

    content: Content
    files: dict[Path, bytes]
    json: Json


def prepare(request: ReportRequest) -> PreparedReport:
    """Read and check everything that a request names. Nothing has run and nothing is written when this raises `UserError`."""
    seeds = parse_seeds(request.seeds) if request.seeds is not None else (request.simulate.seed,)
    window = None
    if request.gantt is not None:
        try:
            window = parse_window(request.gantt)
        except UserError as error:
            raise UserError(error.message, key="gantt") from None
    _check_output(request)
    asked = replace(request.simulate, seed=seeds[0])
    prepared = simulation.prepare(asked)
    specs = [chosen.spec for chosen in prepared.policies]
    if twice := next((spec for spec in specs if specs.count(spec) > 1), None):
        raise UserError(f"{shown(twice)} is asked for twice", key="policy")
    window_us = None if window is None else (round(window[0] * US_PER_S), round(window[1] * US_PER_S))
    return PreparedReport(asked, prepared, seeds, window_us)


def make(request: ReportRequest, ready: PreparedReport, *, progress: Callable[[str], Progress | None] | None = None) -> Report:
    """Simulate, and draw the report; nothing is written yet."""
    raw = [_run_first(ready, progress)]
    for seed in ready.seeds[1:]:
        asked = replace(ready.simulate, seed=seed)
        prepared = simulation.prepare(asked)
        found = simulation.outcomes(asked, prepared, progress=progress, warm_up=False)
        raw.append([_Raw(chosen, _entry(asked, prepared, chosen, outcome), None, None) for chosen, outcome in found])
    seeds = _seeds([[run.entry for run in runs] for runs in raw], ready.seeds) if len(ready.seeds) > 1 else None
    content = _content(request, ready, raw[0], seeds, notes(ready, [[run.entry for run in runs] for runs in raw]))
    files = {request.output: render(content).encode()}
    if request.svg is not None or request.png is not None:
        for figure in figures(content):
            drawn = figure.draw(WIDE, True)
            if request.svg is not None:
                files[request.svg / f"{figure.name}.svg"] = drawn.encode()
            if request.png is not None:
                files[request.png / f"{figure.name}.png"] = png(drawn)
    return Report(content, files, _json(content, [[run.entry for run in runs] for runs in raw], files))


def write(report: Report) -> None:
    """Write all files of a report: each beside its name first, then all take their names."""
    partial = {path: path.with_name(f".{path.name}.partial") for path in report.files}
    with _told_in_one_line(), _removed_after(list(partial.values())):
        for path, content in report.files.items():
            path.parent.mkdir(exist_ok=True)
            partial[path].write_bytes(content)
        for path, other in partial.items():
            other.replace(path)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of `1..10` or `1,2,5`."""
    expected = f"expected seeds such as 1..10 or 1,2,5, at most {SEEDS_MAX}, got {shown(text)}"
    seeds: list[int] = []
    for part in text.split(","):
        low, dots, high = (word.strip() for word in part.partition(".."))
        ends = [low, high] if dots else [low]
        if not all(word.isascii() and word.isdecimal() and len(word) <= 19 for word in ends):
            raise UserError(expected, key="seeds")
        first, last = int(ends[0]), int(ends[-1])
        if not first <= last <= simulation.SEED_MAX or last - first >= SEEDS_MAX:
            raise UserError(expected, key="seeds")
        seeds += range(first, last + 1)
    if len(seeds) > SEEDS_MAX:
        raise UserError(expected, key="seeds")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed stands twice in {shown(text)}", key="seeds")
    return tuple(seeds)


def command_line(request: ReportRequest) -> str:
    """The command that makes this report, with all options that differ from their defaults."""
    asked = request.simulate
    plain = SimulateRequest(workload="", cluster="", policies=())
    words = ["headway", "report", "--workload", asked.workload, "--cluster", asked.cluster]
    for policy in asked.policies:
        words += ["--policy", policy]
    if request.seeds is not None:
        words += ["--seeds", request.seeds]
    elif asked.seed != plain.seed:
        words += ["--seed", str(asked.seed)]
    for name in ("load", "round", "window", "filter", "save_cost", "restart_cost", "checkpoint_every"):
        if (value := getattr(asked, name)) != getattr(plain, name):
            words += [f"--{name.replace('_', '-')}", value]
    if not asked.skip:
        words.append("--no-skip")
    if request.gantt is not None:
        words += ["--gantt", request.gantt]
    return shlex.join([*words, "-o", str(request.output)])


# -- running --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Raw:
    """One policy's run: its entry, and for the first seed what the pictures are made of."""

    chosen: Chosen
    entry: Json
    metrics: MetricsFold | None
    spans: Spans | None


def _entry(asked: SimulateRequest, prepared: Prepared, chosen: Chosen, outcome: Any) -> Json:
    return simulation.result(chosen, prepared.workload, prepared.cluster, asked.seed, prepared.round_s, outcome)


def _run_first(ready: PreparedReport, progress: Callable[[str], Progress | None] | None) -> list[_Raw]:
    folds: dict[str, SpansFold] = {}

    def sinks(chosen: Chosen) -> tuple[Callable[[Any], None], ...]:
        folds[chosen.spec] = SpansFold()
        return (folds[chosen.spec].update,)

    runs = []
    for chosen, outcome in simulation.outcomes(ready.simulate, ready.prepared, progress=progress, sinks=sinks):
        entry = _entry(ready.simulate, ready.prepared, chosen, outcome)
        runs.append(_Raw(chosen, entry, outcome.metrics, folds.pop(chosen.spec).spans()))
    return runs


def _columns(metrics: MetricsFold) -> dict[str, Ints]:
    """The columns of all jobs submitted, by name."""
    table = metrics.M[metrics.M[:, M_PHASE] != UNKNOWN]
    return {name: np.ascontiguousarray(table[:, i]) for i, name in enumerate(COLUMN_NAMES)}


def _seeds(entries: list[list[Json]], seeds: tuple[int, ...]) -> Seeds:
    """Medians over seeds, and every policy against the first. A pair of runs whose journals are those of an earlier pair is the
    same observation again, and does not count: a trace under policies that draw nothing is one pair, whatever the seeds.
    """
    by_policy = {entry["policy"]: [runs[k] for runs in entries] for k, entry in enumerate(entries[0])}
    baseline = entries[0][0]["policy"]
    values = {spec: {key: [run.get(key) for run in runs] for key in COMPARED} for spec, runs in by_policy.items()}

    def gains(spec: str) -> dict[str, Paired]:
        hashes = [
            (run["journal_sha256"], base["journal_sha256"])
            for run, base in zip(by_policy[spec], by_policy[baseline], strict=True)
        ]
        kept = [i for i, pair in enumerate(hashes) if pair not in hashes[:i]]
        of = values[spec], values[baseline]
        return {key: paired(key, *([side[key][i] for i in kept] for side in of)) for key in COMPARED}

    return Seeds(
        seeds=seeds,
        baseline=baseline,
        medians={spec: {key: median(of[key]) for key in COMPARED} for spec, of in values.items()},
        gains={spec: gains(spec) for spec in values if spec != baseline},
    )


def _content(request: ReportRequest, ready: PreparedReport, raw: list[_Raw], seeds: Seeds | None, said: list[str]) -> Content:
    workload, cluster = ready.prepared.workload, ready.prepared.cluster
    jobs = [_columns(run.metrics) for run in raw if run.metrics is not None]
    spans = [run.spans for run in raw if run.spans is not None]
    begin = min((int(of["submitted"].min(initial=0)) for of in jobs), default=0)
    end = max((int(max(of["end"].max(initial=0), of["submitted"].max(initial=0))) for of in jobs), default=0)
    edges = bin_edges(begin, max(end, begin + US_PER_S))
    levels = [series(of, on, edges) for of, on in zip(jobs, spans, strict=True)]
    count = nodes_shown([node.gpus for node in cluster.nodes])
    window = ready.window_us or busiest_window(levels[0], spans, count)
    if window[0] >= edges[-1]:
        raise UserError(f"nothing is left to show: the last job ends after {int(edges[-1]) / US_PER_S:,.0f} s", key="gantt")
    window = (window[0], min(window[1], int(edges[-1])))
    runs = []
    for run, of, on, level in zip(raw, jobs, spans, levels, strict=True):
        done = of["phase"] == Phase.COMPLETED
        rows, left_out = thin(segments_shown(on, window, count))
        runs.append(
            PolicyRun(
                spec=run.chosen.spec,
                entry=run.entry,
                jct_us=np.sort(of["end"][done] - of["submitted"][done]),
                series=level,
                segments=rows,
                segments_left_out=left_out,
                tables={
                    "size": by_size(of),
                    "user": by_name(of, "user", workload.users),
                    "queue": by_name(of, "queue", workload.queues),
                },
            )
        )
    offered = workload.span_us * cluster.gpus
    return Content(
        command=command_line(request),
        version=__version__,
        workload=workload.name,
        workload_sha256=workload.sha256,
        jobs=len(workload),
        gpu_hours=workload.gpu_work_us / US_PER_S / 3600,
        span_s=workload.span_us / US_PER_S,
        load=workload.gpu_work_us / offered if offered else None,
        cluster=cluster.name,
        nodes=[(node.name, node.gpus) for node in cluster.nodes],
        gpus=cluster.gpus,
        seed=ready.seeds[0],
        runs=runs,
        window_us=window,
        nodes_shown=count,
        job_names=workload.job_names,
        notes=said,
        seeds=seeds,
    )


def prices(workload: Workload) -> str:
    """What a preemption costs the jobs, in a sentence."""
    save, restore, every = (workload.spec[column] / US_PER_S for column in (c.J_SAVE, c.J_RESTORE, c.J_EVERY))

    def spread(seconds: Floats) -> str:
        low, high = float(seconds.min()), float(seconds.max())
        return f"{low:g} s" if low == high else f"{low:g} to {high:g} s"

    kept = f"it saves every {spread(every)} besides" if every.any() else "it saves at no other time"
    return f"Stopping a job costs it {spread(save)} to save, and starting again {spread(restore)} to restore; {kept}."


def notes(ready: PreparedReport, entries: list[list[Json]]) -> list[str]:
    """What the figures rest on, in sentences: prices, changes to the workload, rows dropped, jobs that did not complete."""
    asked = ready.simulate
    round_s = ready.prepared.round_s
    said = [
        f"Rounds are held every {round_s:g} s." if round_s else "A round is held at every event.",
        prices(ready.prepared.workload),
        "Run times are those of the workload, whatever the placement, unless the workload says how fast its jobs run where.",
    ]
    if asked.window is not None:
        said.append(f"Only jobs submitted in {asked.window} after the first are replayed.")
    if asked.filter is not None:
        said.append(f"Only jobs with {asked.filter} are replayed.")
    if asked.load is not None:
        said.append(f"Submissions are moved closer or further apart, to a load of {asked.load}.")
    oracles = [chosen.spec for chosen in ready.prepared.policies if chosen.oracle]
    if oracles:
        said.append(f"{', '.join(oracles)} is told the true run times, which no scheduler knows.")
    said += [f"{note[0].upper()}{note[1:]}." for note in ready.prepared.notes]
    for entry in entries[0]:
        missing = {key: entry[key] for key in ("rejected", "failed", "cancelled", "unfinished") if entry[key]}
        if missing:
            told = ", ".join(f"{count:,} {word}" for word, count in missing.items())
            said.append(f"{entry['policy']}: {told}; their times are in no mean.")
        if entry["avg_jct_bound_s"] is None and entry["finished"]:
            said.append(f"{entry['policy']}: no lower bound, since jobs ended early or may run faster than the workload says.")
    if len(entries) > 1 and len({runs[0]["workload_sha256"] for runs in entries}) == 1:
        said.append(
            "The workload is the same for every seed, so the seeds differ only in what a policy draws; equal runs count as one."
        )
    return said


def _json(content: Content, entries: list[list[Json]], files: dict[Path, bytes]) -> Json:
    """The numbers of the report."""
    seeds = content.seeds
    return {
        "command": content.command,
        "version": content.version,
        "workload": content.workload,
        "workload_sha256": content.workload_sha256,
        "cluster": content.cluster,
        "seed": content.seed,
        "files": [str(path) for path in files],
        "results": [run.entry for run in content.runs],
        "tables": {
            run.spec: {name: [row.to_json() for row in rows] for name, rows in run.tables.items()} for run in content.runs
        },
        "series": {run.spec: run.series.to_json() for run in content.runs},
        "gantt_window_s": [t / US_PER_S for t in content.window_us],
        "seeds": None
        if seeds is None
        else {
            "seeds": list(seeds.seeds),
            "baseline": seeds.baseline,
            "medians": {spec: dict(of) for spec, of in seeds.medians.items()},
            "gains": {spec: {key: gain.to_json() for key, gain in of.items()} for spec, of in seeds.gains.items()},
            "results": [entry for runs in entries for entry in runs],
        },
        "notes": list(content.notes),
    }


# -- files ----------------------------------------------------------------------------------------------------------
def _check_output(request: ReportRequest) -> None:
    path = request.output
    if path.is_dir():
        raise UserError("is a folder", file=str(path), key="output")
    if not path.parent.is_dir():
        raise UserError("cannot be written: no such folder", file=str(path), key="output")
    for key, folder in (("svg", request.svg), ("png", request.png)):
        if folder is None:
            continue
        if folder.exists() and not folder.is_dir():
            raise UserError("is not a folder", file=str(folder), key=key)
        if not folder.parent.is_dir():
            raise UserError("cannot be made: no such folder to put it in", file=str(folder), key=key)
    if request.png is not None:
        check_png()


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = str(error.filename or "")
        raise UserError(f"cannot be written: {error.strerror or error}", file=name, key="output") from None


@contextmanager
def _removed_after(paths: list[Path]) -> Iterator[None]:
    try:
        yield
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
