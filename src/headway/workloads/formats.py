"""The formats of files that jobs are read from: how each is known by its header, and who reads it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.core.errors import UserError, shown
from headway.core.specstring import Part, one_of, parse_part, read_params, unknown_name
from headway.workloads.generic import MARK, is_generic, parse_generic
from headway.workloads.itp import COLUMNS as ITP
from headway.workloads.itp import parse_itp
from headway.workloads.muri import COLUMNS as MURI
from headway.workloads.muri import parse_muri
from headway.workloads.openb import COLUMNS as OPENB
from headway.workloads.openb import parse_openb
from headway.workloads.philly import COLUMNS as PHILLY
from headway.workloads.philly import parse_philly
from headway.workloads.rows import ESTIMATES, header_of, read_table, refuse_columns
from headway.workloads.save import is_parquet, parquet_header, read_parquet
from headway.workloads.schema import Workload
from headway.workloads.slurm import QUEUES, read_slurm
from headway.workloads.tiresias import COLUMNS as TIRESIAS
from headway.workloads.tiresias import parse_tiresias

HEAD_BYTES = 1 << 16
GENERIC = ("submit_s", "submit_us", "submit_time", "duration_s", "duration_us", "end_s", "end_us", "end_time", "gpus")
"""Three of these make a generic table."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format of job tables. `columns` are those that its header must have."""

    doc: str
    columns: tuple[str, ...] = ()
    parse: Callable[..., Workload] | None = None
    """Takes the text, and `file`, `name`, `estimates`; None: the format has a reader of files."""


FORMATS: dict[str, Format] = {
    "philly": Format("Microsoft's Philly trace of 2017", PHILLY, parse_philly),
    "itp": Format("Microsoft's ITP trace of 2021: several clusters", ITP, parse_itp),
    "openb": Format("Alibaba's openb trace of 2023: pods with cpus, memory, shares of GPUs, GPU kinds", OPENB, parse_openb),
    "muri": Format("the traces of Muri: models, iterations, batch sizes", MURI, parse_muri),
    "tiresias": Format("job lists of Tiresias: models and iterations", TIRESIAS, parse_tiresias),
    "generic": Format("the generic table, CSV or Parquet: submit_s, duration_s, gpus, …", (), parse_generic),
    "slurm": Format("accounting of Slurm: sacct -P, or --json"),
}


def format_of(header: Sequence[str]) -> str:
    """The format whose columns a table has; nothing where it is none's."""
    names = set(header)
    full = [name for name, of in FORMATS.items() if of.columns and names >= set(of.columns)]
    # Tiresias' columns are part of Muri's.
    return max(full, key=lambda name: len(FORMATS[name].columns), default="generic" if is_generic(header) else "")


def nearest_format(header: Sequence[str]) -> str:
    """The format that most of its columns speak for; nothing where no column does."""
    names = set(header)
    found = {name: len(names & set(of.columns)) / len(of.columns) for name, of in FORMATS.items() if of.columns}
    found["generic"] = len(names & set(GENERIC)) / 3
    best = max(found, key=lambda name: found[name])
    return best if found[best] > 0 else ""


def is_slurm(first_line: str) -> bool:
    """Whether a file begins as `sacct -P` or `sacct --json` do."""
    line = first_line.strip("\ufeff \t\r\n")
    return line.startswith("{") or bool({"JobID", "JobIDRaw"} & set(re.split(r"[|,;^\t]", line)))


def detect(path: Path) -> str:
    """The format of a file by its first bytes; nothing where it is none."""
    if is_parquet(path):
        return "generic" if is_generic(parquet_header(path)) else ""
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
        if head.startswith(b"\x1f\x8b"):
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except (OSError, zlib.error):
        return ""
    text = head.decode("utf-8-sig", "replace")
    if text.startswith(MARK):
        return "generic"
    return "slurm" if is_slurm(text.partition("\n")[0]) else format_of(header_of(text))


def read_file(path: Path, options: str = "", *, name: str = "", form: str = "") -> Workload:
    """Return the jobs of a file in a format, or in the one that its header says. `options` are the reader's: `estimates=exact`.

    Raises:
        UserError: in one line, what is wrong with it.
    """
    if form and form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    part = parse_part(f"trace:{options}" if options else "trace", "workload")
    if is_parquet(path):
        if form not in ("", "generic"):
            raise UserError(f"expected a table of text, got Parquet, which is read as generic, not {form}", file=str(path))
        return read_parquet(path, name=name, **read_params(part, {"estimates": one_of(*ESTIMATES)}, "workload"))
    # A file of Slurm's is looked at first: JSON is no table.
    if form == "slurm" or (not form and detect(path) == "slurm"):
        return _read_slurm(path, name, part)
    params = read_params(part, {"estimates": one_of(*ESTIMATES)}, "workload")
    table = read_table(path)
    header = header_of(table)
    found = form or ("generic" if table.startswith(MARK) else format_of(header))
    if not found:
        _refuse(header, str(path))
    parse = FORMATS[found].parse
    assert parse is not None
    return parse(table, file=str(path), name=name, **params)


def _read_slurm(path: Path, name: str, part: Part) -> Workload:
    return read_slurm(path, name=name, **read_params(part, {"queue": one_of(*QUEUES), "tz": str}, "workload"))


def _refuse(header: Sequence[str], file: str) -> None:
    """Say what a table lacks to be of the format that it is nearest to."""
    near = nearest_format(header)
    if not near:
        shape = ", ".join(header[:8]) + (", …" if len(header) > 8 else "")
        missing = "no column 'submit_s', nor the columns of another format (see 'headway workload list')"
        raise UserError(f"{missing}; found {shown(shape)}", file=file, line=1)
    if near == "generic":
        parse_generic(",".join(header) + "\n", file=file)
    refuse_columns(header, FORMATS[near].columns, file)
