"""What `headway workload` does, without the command line: statistics, import, generation, and the list of what there is."""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.app.output import check_output, whole_or_nothing
from headway.app.simulate import SEED_MAX
from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import WHOLE
from headway.core.errors import UserError, shown
from headway.core.specstring import parse_part, unknown_name
from headway.core.units import US_PER_S
from headway.metrics.summary import mean_s, nearest_rank
from headway.workloads.cluster_tables import read_cluster_table
from headway.workloads.formats import FORMATS, detect, read_file
from headway.workloads.registry import GENERATORS, SUFFIXES, load_workload
from headway.workloads.save import writer_for
from headway.workloads.schema import Workload

US_PER_HOUR = 3_600 * US_PER_S
US_PER_DAY = 24 * US_PER_HOUR
PERCENTS = (50, 90, 99)
FILES_LISTED_MAX = 1000
GROUPS_SHOWN_MAX = 20
ARRIVAL_BINS_MAX = 72
CDF_AT_S = (1, 10, 60, 600, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400)

Json = dict[str, Any]


# -- show -------------------------------------------------------------------------------------------------------------
def load(text: str, datasets: Path | None, seed: int) -> Workload:
    """Return the workload that a file or a generator names."""
    if not 0 <= seed <= SEED_MAX:
        raise UserError(f"expected a whole number from 0 to {SEED_MAX}, got {shown(seed)}", key="seed")
    return load_workload(text, datasets=datasets, seed=seed)


def statistics(workload: Workload) -> Json:
    """Figures of a workload, ready for JSON. Durations are seconds; percentiles are by nearest rank."""
    milli, work = workload.gpu_milli, np.sort(workload.work_us)
    ordered = np.sort(milli)
    span = workload.span_us
    return {
        "workload": workload.name,
        "sha256": workload.sha256,
        "jobs": len(workload),
        "gpus": {
            "total": float(milli.sum()) / WHOLE,
            "mean": float(milli.mean()) / WHOLE,
            **{f"p{percent}": nearest_rank(ordered, percent) / WHOLE for percent in PERCENTS},
            "max": int(ordered[-1]) / WHOLE,
            "jobs_by_gpus": gpu_counts(milli),
        },
        "gpu_hours": workload.gpu_work_us / US_PER_HOUR,
        "durations_s": {
            "min": int(work[0]) / US_PER_S,
            "mean": mean_s(work),
            **{f"p{percent}": nearest_rank(work, percent) / US_PER_S for percent in PERCENTS},
            "max": int(work[-1]) / US_PER_S,
        },
        "span_s": span / US_PER_S,
        "jobs_per_hour": (len(workload) - 1) * US_PER_HOUR / span if span else None,
        "users": len(np.unique(workload.spec[c.J_USER])),
        "queues": len(np.unique(workload.spec[c.J_QUEUE])),
        "by_queue": groups(workload),
        "kinds": list(workload.kinds),
        "jobs_without_gpu": int(np.count_nonzero(milli == 0)),
        "jobs_sharing_a_gpu": int(np.count_nonzero(workload.spec[c.J_SHARE])),
        "jobs_of_some_kinds": int(np.count_nonzero(workload.spec[c.J_KIND_MASK] >= 0)) if workload.kinds else 0,
        **rows_told(workload),
    }


def rows_told(workload: Workload) -> Json:
    """What became of the source's rows."""
    dropped, noted = dict(sorted(workload.dropped.items())), dict(sorted(workload.noted.items()))
    count = sum(dropped.values())
    read = workload.rows_read or len(workload) + count
    told = {"rows_read": read, "rows_kept": read - count, "rows_dropped": count} if workload.rows_read or count else {}
    return {**told, "dropped": dropped, "dropped_first": workload.dropped_first, "noted": noted}


def gpu_counts(milli: Ints) -> dict[str, int]:
    """How many jobs ask for how many GPUs, by the number as text."""
    values, counts = np.unique(milli, return_counts=True)
    whole = {f"{value / WHOLE:g}": count for value, count in zip(values.tolist(), counts.tolist(), strict=True)}
    shares = {key: count for key, count in whole.items() if 0 < float(key) < 1}
    if len(shares) > 10:  # shares of a GPU in tenths
        below = values[(values > 0) & (values < WHOLE)]
        tenths = np.bincount((below - 1) // 100, weights=counts[(values > 0) & (values < WHOLE)], minlength=10).astype(int)
        named = {f"{i / 10:g}-{(i + 1) / 10:g}": int(count) for i, count in enumerate(tenths) if count}
        zero = {"0": whole["0"]} if "0" in whole else {}
        return {**zero, **named, **{key: count for key, count in whole.items() if float(key) >= 1}}
    return whole


def groups(workload: Workload) -> list[Json]:
    """Jobs and GPU hours of the queues with the most GPU hours."""
    queue = workload.spec[c.J_QUEUE]
    work = workload.work_us.astype(np.float64) * workload.gpu_milli / WHOLE / US_PER_HOUR
    jobs, hours = np.bincount(queue), np.bincount(queue, weights=work)
    order = sorted(np.flatnonzero(jobs).tolist(), key=lambda q: (-hours[q], q))[:GROUPS_SHOWN_MAX]
    return [{"queue": workload.queues[q], "jobs": int(jobs[q]), "gpu_hours": float(hours[q])} for q in order]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Submissions in bins of equal width."""

    per: str
    bins: tuple[int, ...]


def arrivals(workload: Workload) -> Arrivals:
    """Submissions in at most `ARRIVAL_BINS_MAX` bins of some whole minutes, hours or days."""
    since = workload.submitted_us - workload.submitted_us[0]
    minute = US_PER_HOUR // 60
    steps = [(n * unit, f"{n} {word}s" if n > 1 else word) for unit, word, counts in _STEPS(minute) for n in counts]
    width, per = next((step for step in steps if workload.span_us // step[0] < ARRIVAL_BINS_MAX), steps[-1])
    counts = np.bincount(np.minimum(since // width, 10_000), minlength=1)
    return Arrivals(per, tuple(counts.tolist()))


def _STEPS(minute_us: int) -> tuple[tuple[int, str, tuple[int, ...]], ...]:
    hours, days = (1, 2, 3, 6, 12), (1, 2, 3, 7, 14, 28, 91, 182, 364)
    return (minute_us, "minute", (1, 2, 5, 10, 20, 30)), (60 * minute_us, "hour", hours), (1440 * minute_us, "day", days)


def duration_cdf(workload: Workload) -> list[tuple[int, float]]:
    """(seconds, share of the jobs that take at most so long) at round durations, from the last that holds none to the first that
    holds all."""
    work = np.sort(workload.work_us)
    points = [(at, int(np.searchsorted(work, at * US_PER_S, side="right")) / len(work)) for at in CDF_AT_S]
    none = max((i for i, (_, share) in enumerate(points) if share == 0), default=0)
    every = min((i for i, (_, share) in enumerate(points) if share == 1), default=len(points))
    return points[none : every + 1]


# -- import, generate -------------------------------------------------------------------------------------------------
def import_file(form: str, file: Path, output: Path, *, options: str = "", replace: bool = False) -> Json:
    """Read a file in a format and write its jobs as a generic table; the report says what became of its rows. Nothing is written
    when this raises `UserError`.
    """
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    write = writer_for(output)
    check_output(output, replace=replace, key="output")
    if _same(file, output):
        raise UserError("the output is the input", file=str(output), key="output")
    workload = read_file(file, options, name=file.name, form=form)
    with whole_or_nothing(output, "output") as partial:
        write(workload, partial)
    return {
        "format": form,
        "file": str(file),
        "output": str(output),
        **({"rows_read": len(workload), "rows_kept": len(workload), "rows_dropped": 0} | rows_told(workload)),
        "jobs": len(workload),
        "sha256": workload.sha256,
    }


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def generate(text: str, output: Path, *, seed: int, replace: bool = False) -> Json:
    """Write a generator's workload as a generic table. Nothing is written when this raises `UserError`."""
    part = parse_part(text.strip(), "generator")
    if part.name not in GENERATORS:
        hint = "; a file is read by 'headway workload import'" if "." in part.name else ""
        raise UserError(unknown_name("generator", part.name, GENERATORS).message + hint)
    write = writer_for(output)
    check_output(output, replace=replace, key="output")
    workload = load(text.strip(), None, seed)
    with whole_or_nothing(output, "output") as partial:
        write(workload, partial)
    return {
        "generator": str(part),
        "seed": seed,
        "output": str(output),
        "jobs": len(workload),
        "gpu_hours": workload.gpu_work_us / US_PER_HOUR,
        "sha256": workload.sha256,
    }


# -- list -------------------------------------------------------------------------------------------------------------
def listing(datasets: Path | None) -> Json:
    """Generators with their parameters, formats, and the files of `datasets` that some format knows."""
    return {
        "generators": [_generator(name, target) for name, target in sorted(GENERATORS.items())],
        "formats": [{"name": name, "description": of.doc, "columns": list(of.columns)} for name, of in FORMATS.items()],
        "datasets": None if datasets is None else str(datasets),
        "files": _found(datasets) if datasets is not None else [],
        "clusters": _clusters(datasets) if datasets is not None else [],
    }


def _generator(name: str, target: str) -> Json:
    """What a generator's docstrings say: that of its module what it makes, that of its function `` `NAME:key=default,…` ``."""
    module, _, function = target.partition(":")
    home = importlib.import_module(module)
    doc = " ".join((inspect.getdoc(home) or "").partition("\n\n")[0].split())
    doc = re.sub(r"^(`[^`]*`(, | and )?)+: ", "", doc).partition(". ")[0].rstrip(".")
    spec = re.match(r"`([^`]+)`", inspect.getdoc(getattr(home, function)) or "")
    params = dict(item.partition("=")[::2] for item in (spec[1] if spec else "").partition(":")[2].split(",") if item)
    return {"name": name, "description": doc, "params": params}


def _found(datasets: Path) -> list[Json]:
    found = []
    for folder in (datasets, datasets / "traces"):
        for path in _files(folder):
            if path.suffix.lower() in SUFFIXES and (form := detect(path)):
                found.append({"file": path.name, "format": form, "bytes": path.stat().st_size})
    return found


def _clusters(datasets: Path) -> list[Json]:
    found = []
    for path in (path for path in _files(datasets / "clusters") if path.suffix.lower() == ".csv"):
        try:
            cluster = read_cluster_table(path)
        except UserError:  # a table of something else
            continue
        found.append({"file": str(path), "nodes": len(cluster.nodes), "gpus": cluster.gpus})
    return found


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())[:FILES_LISTED_MAX]
    except OSError:
        return []
