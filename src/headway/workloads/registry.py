"""Workloads by name: a file, whose header says which reader it needs, or `NAME:key=value,…` for a generator.

Every generator draws from a stream of its own, `PCG64(SeedSequence([seed, crc32(name)]))`: 32-bit draws, integer arithmetic,
no libm, so that a seed gives the same jobs and the same hash on every machine.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core import columns as c
from headway.core import units
from headway.core.arrays import Ints
from headway.core.errors import UserError
from headway.core.specstring import Part, parse_part, read_params, unknown_name
from headway.workloads.cluster import parse_cluster
from headway.workloads.formats import read_file
from headway.workloads.rows import ESTIMATE_TWENTIETHS
from headway.workloads.schema import JOBS_MAX, LOAD_MAX, LOAD_MIN, Workload, plain_spec, set_workers

GENERATORS: dict[str, str] = {
    "poisson": "headway.workloads.registry:poisson",
}
"""Name -> "module:function"; the function takes the spec's part and the seed."""
SUFFIXES = (".csv", ".gz", ".parquet", ".psv", ".json", ".txt")

POISSON_GPUS = ((1, 80), (2, 8), (4, 7), (8, 5))
"""GPUs and their weights."""
POISSON_MS = (60_000, 88_253, 129_809, 190_934, 280_842, 413_085, 607_599, 893_705, 1_314_534,
              1_933_523, 2_843_983, 4_183_161, 6_152_933, 9_050_233, 13_311_817, 19_580_100, 28_800_000)  # fmt: skip
"""Durations at 0, 1/16 … 1 of a draw: equal ratios from a minute to eight hours."""


def load_workload(text: str, *, datasets: Path | None = None, seed: int = 1) -> Workload:
    """Return the workload that a file or a spec string names. `seed` is the generators'; a trace does not use it.

    A file that is not found as given is looked for in `datasets` and `datasets/traces`. Options of a reader follow the file:
    `FILE:estimates=exact`.

    Raises:
        UserError: in one line, what is wrong with it.
    """
    text = text.strip()
    if (found := _find(text, datasets)) is not None:
        path, options = found
        return read_file(path, options, name=text)
    name = text.partition(":")[0]
    if name not in GENERATORS and ("/" in name or Path(name).suffix.lower() in SUFFIXES):
        raise UserError("no such file", file=name)
    part = parse_part(text, "workload")
    if part.name not in GENERATORS:
        raise unknown_name("workload", part.name, GENERATORS, "or the path of a trace")
    module, _, function = GENERATORS[part.name].partition(":")
    make: Callable[[Part, int], Workload] = getattr(importlib.import_module(module), function)
    return make(part, seed)


def _find(text: str, datasets: Path | None) -> tuple[Path, str] | None:
    """The file that a workload's text names, and the options behind it."""
    folders = [Path(), *([datasets, datasets / "traces"] if datasets is not None else [])]
    name, colon, options = text.rpartition(":")
    for candidate, rest in ((text, ""), *([(name, options)] if colon else [])):
        if not candidate or "\0" in candidate:
            continue
        for folder in folders:
            try:
                if (folder / candidate).exists():
                    return folder / candidate, rest
            except OSError:  # a name too long for a file
                break
    return None


# -- generators ---------------------------------------------------------------------------------------------------
class Draws:
    """The stream of one generator and seed. A draw is a 32-bit integer in an int64."""

    def __init__(self, name: str, seed: int) -> None:
        self.bits = np.random.PCG64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def draw(self, count: int) -> Ints:
        """The next `count` draws."""
        raw: NDArray[np.uint64] = self.bits.random_raw(count)
        draws: Ints = (raw >> np.uint64(32)).astype(np.int64)
        return draws


def choices(draws: Ints, weights: tuple[int, ...]) -> Ints:
    """The index that each draw chooses, by integer weights."""
    steps = np.cumsum(np.array(weights, np.int64))
    index: Ints = np.searchsorted(steps, draws * steps[-1] >> 32, side="right").astype(np.int64)
    return index


def equal_steps(draws: Ints, values: tuple[int, ...]) -> Ints:
    """Each draw's value on the piecewise-linear curve through `values` at equal distances."""
    table = np.array(values, np.int64)
    x = draws * (len(values) - 1)
    low, rest = x >> 32, x & 0xFFFFFFFF
    value: Ints = table[low] + ((table[low + 1] - table[low]) * rest >> 32)
    return value


def load_reader(text: str) -> Fraction:
    """A reader of an offered load."""
    try:
        load = Fraction(text) if text.replace(".", "", 1).isdecimal() else Fraction(-1)
    except ValueError:
        load = Fraction(-1)
    if not LOAD_MIN <= load <= LOAD_MAX:
        raise units.refusal(f"a number from {float(LOAD_MIN)} to {float(LOAD_MAX):.0f}", text)
    return load


def poisson(part: Part, seed: int) -> Workload:
    """`poisson:jobs=1000,load=0.8,cluster=16x8`: a small mixed cluster's jobs, for demonstrations, tests and benches.

    Job by job three draws: GPUs (1, 2, 4, 8 with weights 80, 8, 7, 5), duration (log-uniform from a minute to eight hours),
    factor of the estimate; then the arrivals: as many sorted uniform draws over the span (so gaps are those of a Poisson
    process), which is as long as `load` asks for on `cluster`.
    """
    readers: dict[str, Callable[[str], Any]] = {
        "jobs": lambda text: units.parse_int(text, 1, JOBS_MAX),
        "load": load_reader,
        "cluster": parse_cluster,
    }
    params = {"jobs": 1000, "load": Fraction(4, 5), **read_params(part, readers, "workload")}
    cluster = params.get("cluster") or parse_cluster("16x8")
    jobs, gpus = int(params["jobs"]), cluster.gpus
    if gpus < 1:
        raise UserError("a cluster without GPUs cannot be loaded", key="workload poisson: cluster")
    stream = Draws(part.name, seed)
    draws = stream.draw(3 * jobs).reshape(jobs, 3)
    workers = np.array([gpus for gpus, _ in POISSON_GPUS], np.int64)[choices(draws[:, 0], tuple(w for _, w in POISSON_GPUS))]
    work = equal_steps(draws[:, 1], POISSON_MS) * 1000
    factor = np.array(ESTIMATE_TWENTIETHS, np.int64)[choices(draws[:, 2], (1,) * len(ESTIMATE_TWENTIETHS))]
    spec = plain_spec(jobs)
    set_workers(spec, workers)
    spec[c.J_ESTIMATE] = work * factor // 20
    span_us = int(sum((work * workers).tolist()) / (params["load"] * gpus))
    arrivals = np.array([draw * span_us >> 32 for draw in np.sort(stream.draw(jobs)).tolist()], np.int64)
    return Workload(str(part), arrivals, spec, work)
