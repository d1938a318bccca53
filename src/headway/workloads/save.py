"""Writing workloads as generic tables (`workloads.generic`), CSV or Parquet, and reading Parquet.

What the readable columns cannot say exactly is written beside them as it is: a table reads back to the same jobs and the same
hash.
"""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Ints
from headway.core.columns import GPUS_PER_NODE_MAX, WHOLE
from headway.core.errors import UserError
from headway.core.units import CPUS_MAX, DURATION_MAX_US
from headway.workloads.generic import HINT, KNOWN, MARK, SPEC, TRUE, from_rows, read_meta
from headway.workloads.rows import CLOCK_MAX_US, FILE_BYTES_MAX, GPUS_MAX, Cells, Rows, note_unknown, refuse_columns
from headway.workloads.schema import JOBS_MAX, SCHEMA, Workload
from headway.workloads.sound import PRIORITY_MAX
from headway.workloads.truth import HINT_COLUMN_NAMES, TRUTH_COLUMN_NAMES

META_KEY = b"headway-workload"
SUFFIXES = (".parquet", ".csv", ".csv.gz")
PARQUET_MAGIC = b"PAR1"


def writer_for(path: Path) -> Callable[[Workload, Path], None]:
    """Return what writes a file of this name; `UserError` where its suffix says neither CSV nor Parquet."""
    name = path.name.lower()
    if name.endswith(".parquet"):
        return write_parquet
    if name.endswith((".csv", ".csv.gz")):
        return write_csv if name.endswith(".csv") else _write_csv_gz
    raise UserError(f"expected a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}", file=str(path))


def write_parquet(workload: Workload, path: Path) -> None:
    """Write a workload as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = {}
    for key, (cells, empty) in table_of(workload).items():
        if isinstance(cells, np.ndarray):
            arrays[key] = pa.array(cells, mask=empty if empty.any() else None)
        else:
            arrays[key] = pa.array(cells, pa.string(), mask=empty if empty.any() else None).dictionary_encode()
    table = pa.table(arrays).replace_schema_metadata({META_KEY: json.dumps(meta_of(workload)).encode()})
    pq.write_table(table, path, compression="zstd")


def write_csv(workload: Workload, path: Path) -> None:
    """Write a workload as CSV."""
    path.write_text(csv_of(workload), encoding="utf-8")


def _write_csv_gz(workload: Workload, path: Path) -> None:
    path.write_bytes(gzip.compress(csv_of(workload).encode(), mtime=0))


def csv_of(workload: Workload) -> str:
    """A workload as the text of a CSV file."""
    out = io.StringIO(newline="")
    out.write(MARK + json.dumps(meta_of(workload)) + "\n")
    table = table_of(workload)
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    columns = []
    for cells, empty in table.values():
        text = _numbers(cells) if isinstance(cells, np.ndarray) else list(cells)
        for row in np.flatnonzero(empty).tolist():
            text[row] = ""
        columns.append(text)
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def _numbers(cells: Cells) -> list[str]:
    assert isinstance(cells, np.ndarray)
    return [repr(value).removesuffix(".0") for value in cells.tolist()]


def meta_of(workload: Workload) -> dict[str, Any]:
    """What a file says about itself."""
    return {
        "schema": SCHEMA,
        "source": workload.name,
        "sha256": replace(workload, frozen_sha256="").sha256,
        "frozen_sha256": workload.frozen_sha256,
        "users": list(workload.users),
        "queues": list(workload.queues),
        "kinds": list(workload.kinds),
        "models": list(workload.models),
        "usage": [workload.usage_jitter_ppm, workload.usage_hold_us, workload.usage_seed],
        "dropped": dict(workload.dropped),
        "dropped_first": workload.dropped_first,
        "noted": dict(workload.noted),
        "rows_read": workload.rows_read,
        "quotas_ppm": list(workload.quotas_ppm),
    }


def table_of(workload: Workload) -> dict[str, tuple[Cells, Bools]]:
    """The columns of a workload's generic table, each with a mask of the cells that stay empty.

    Raises:
        UserError: a submission or a duration is longer than such a table can hold.
    """
    if len(workload) and int(workload.submitted_us[-1]) > CLOCK_MAX_US:
        raise UserError("submissions over more than 285 years cannot be written", key=f"workload {workload.name}")
    if len(workload) and not 1 <= int(workload.work_us.min()) <= int(workload.work_us.max()) <= DURATION_MAX_US:
        raise UserError("durations of nothing or over 100 years cannot be written", key=f"workload {workload.name}")
    table = _readable(workload)
    table |= _differing(workload, table)
    for prefix, names, columns in (
        (TRUE, TRUTH_COLUMN_NAMES, workload.truth),
        (HINT, HINT_COLUMN_NAMES, workload.hints),
    ):
        for name, column in zip(names, columns, strict=True):
            if column.any():
                table[prefix + name] = column, _none(workload)
    if len(workload.details):
        bounds = workload.detail_at.tolist()
        numbers = workload.details.tolist()
        texts = [" ".join(map(str, numbers[a:b])) for a, b in pairwise(bounds)]
        table["details"] = texts, np.array([not text for text in texts], np.bool_)
    return table


def _none(workload: Workload) -> Bools:
    return np.zeros(len(workload), np.bool_)


def _readable(workload: Workload) -> dict[str, tuple[Cells, Bools]]:
    """The columns that people read, without those that say nothing."""
    spec, full = workload.spec, _none(workload)
    workers, each = spec[c.J_DATA] * spec[c.J_PIPELINE] * spec[c.J_TENSOR], spec[c.J_GPU_TASK]
    whole_each = (each % WHOLE == 0) & (each <= GPUS_PER_NODE_MAX * WHOLE)
    fits = ((each < WHOLE) | whole_each) & (workers * each <= GPUS_MAX * WHOLE)  # what else there is stands in spec columns
    workers, each = np.where(fits, workers, 1), np.where(fits, each, 0)
    gpus = workers * each / WHOLE
    whole: Cells = gpus.astype(np.int64) if np.all(gpus == np.floor(gpus)) else gpus
    table: dict[str, tuple[Cells, Bools]] = {}
    if workload.job_names:
        table["name"] = workload.job_names, full
    table |= {"submit_us": (workload.submitted_us, full), "duration_us": (workload.work_us, full), "gpus": (whole, full)}
    if np.any(each != WHOLE):
        table["workers"] = workers, full
    for key, names, plain_names, column in (
        ("user", workload.users, ("user",), spec[c.J_USER]),
        ("queue", workload.queues, ("default",), spec[c.J_QUEUE]),
        ("model", workload.models, (), spec[c.J_MODEL]),
    ):
        known = (column >= 0) & (column < len(names))
        if known.any() and names != plain_names:
            table[key] = [names[i] if i in range(len(names)) else "" for i in column.tolist()], ~known
    masks = spec[c.J_KIND_MASK]
    known = (masks > 0) & (masks < 1 << len(workload.kinds))
    if known.any():
        words = {
            mask: "|".join(kind for bit, kind in enumerate(workload.kinds) if mask >> bit & 1) for mask in set(masks.tolist())
        }
        table["kinds"] = [words[mask] for mask in masks.tolist()], ~known
    for key, column, plain, low, high in (
        ("priority", c.J_PRIORITY, 50, 0, PRIORITY_MAX),
        ("estimate_us", c.J_ESTIMATE, 0, 1, DURATION_MAX_US),
        ("time_limit_us", c.J_TIME_LIMIT, c.NEVER, 1, DURATION_MAX_US),
        ("deadline_us", c.J_DEADLINE, c.NEVER, 0, CLOCK_MAX_US),
        ("iterations", c.J_UNITS_TOTAL, 0, 1, CLOCK_MAX_US),
        ("batch", c.J_BATCH, 0, 1, 2**31),
        ("memory_bytes", c.J_MEM_TASK, 4 * 10**9, 0, CLOCK_MAX_US),
    ):
        said = (spec[column] != plain) & (spec[column] >= low) & (spec[column] <= high)
        if said.any():
            table[key] = spec[column], ~said
    cpus = spec[c.J_CPU_TASK]
    said = (cpus != WHOLE) & (cpus <= CPUS_MAX * WHOLE)
    if said.any():
        table["cpus"] = cpus / WHOLE, ~said
    return table


def _differing(workload: Workload, table: Mapping[str, tuple[Cells, Bools]]) -> dict[str, tuple[Cells, Bools]]:
    """The spec columns that the readable ones would give other values, as they are."""
    cells = {key: _with_empty(*column) for key, column in table.items()}
    read = from_rows(Rows("", cells, np.arange(len(workload))), "", {**meta_of(workload), "frozen_sha256": ""}, "noisy")
    assert len(read) == len(workload) and np.array_equal(read.submitted_us, workload.submitted_us), "a job's row was dropped"
    differing = np.flatnonzero(np.any(read.spec != workload.spec, axis=1)).tolist()
    return {SPEC + c.SPEC_COLUMN_NAMES[column]: (workload.spec[column], _none(workload)) for column in differing}


def _with_empty(cells: Cells, empty: Bools) -> Cells:
    """A column as a reader sees it: as text where cells are empty."""
    if not empty.any():
        return cells
    text = _numbers(cells) if isinstance(cells, np.ndarray) else list(cells)
    return ["" if none else cell for cell, none in zip(text, empty.tolist(), strict=True)]


# -- Parquet ----------------------------------------------------------------------------------------------------------
def is_parquet(path: Path) -> bool:
    """Whether a file begins as Parquet files do."""
    try:
        with path.open("rb") as stream:
            return stream.read(4) == PARQUET_MAGIC
    except OSError:
        return False


def parquet_header(path: Path) -> list[str]:
    """The names of a Parquet file's columns; nothing where it is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return []


def read_parquet(path: Path, *, name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a generic table in Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = str(path)
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"over {FILE_BYTES_MAX} bytes", file=file)
        with pq.ParquetFile(path) as source:
            if source.metadata.num_rows > JOBS_MAX:
                raise UserError(f"over {JOBS_MAX} rows", file=file)
            names = source.schema_arrow.names
            wanted = [column for column in dict.fromkeys(names) if column in KNOWN]
            refuse_columns(names, wanted, file, 0)
            table = source.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"not a Parquet file that can be read: {str(error).splitlines()[0]}", file=file) from None
    written = (table.schema.metadata or {}).get(META_KEY)
    meta = read_meta(written, file) if written is not None else None
    columns = {column: _cells(table.column(column), column, file) for column in wanted}
    index: Ints = np.arange(table.num_rows)
    rows = Rows(file, columns, index)
    note_unknown(rows, [column for column in names if column not in KNOWN])
    return from_rows(rows, name or file, meta, estimates)


def _cells(column: Any, key: str, file: str) -> Sequence[str] | Ints | Any:
    """A column as numbers where none is missing, else as text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_timestamp(kind):  # without a zone as with UTC
        micros = column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
        stamps = micros.to_pylist()
        return ["" if t is None else _iso(t) for t in stamps]
    if (pa.types.is_integer(kind) or pa.types.is_floating(kind)) and column.null_count == 0 and kind != pa.uint64():
        return column.cast(pa.int64() if pa.types.is_integer(kind) else pa.float64()).to_numpy()
    try:
        return [cell or "" for cell in pc.cast(column, pa.string()).to_pylist()]
    except pa.ArrowException:
        raise UserError(f"expected numbers or text, got {kind}", file=file, key=key) from None


def _iso(micros: int) -> str:
    try:
        return (datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return "out of range"
