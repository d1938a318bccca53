"""Workloads by name: a file, whose header says which reader it needs, or `NAME:key=value,…` for a generator.

Every generator draws from a stream of its own (`generators.draws`): 32-bit draws, integer arithmetic, no libm, so that a seed
gives the same jobs and the same hash on every machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from headway.core.errors import UserError
from headway.core.specstring import Part, parse_part, unknown_name
from headway.workloads.formats import read_file
from headway.workloads.generators.params import load_reader
from headway.workloads.schema import Workload

__all__ = ["GENERATORS", "SUFFIXES", "load_reader", "load_workload"]

GENERATORS: dict[str, str] = {
    "mlfs-paper": "headway.workloads.generators.mlfs_paper:make",
    "mlfs-paper-large": "headway.workloads.generators.mlfs_paper:make",
    "philly-like": "headway.workloads.generators.philly_like:make",
    "poisson": "headway.workloads.generators.poisson:make",
    "production": "headway.workloads.generators.production:make",
    "trials": "headway.workloads.generators.trials:make",
}
"""Name -> "module:function"; the function takes the spec's part and the seed."""
SUFFIXES = (".csv", ".gz", ".parquet", ".psv", ".json", ".txt")


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
