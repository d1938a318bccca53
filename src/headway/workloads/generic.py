"""The generic table of jobs, as CSV or Parquet: for anybody's own data, and what `headway workload import` writes.

One job a row. A time is given in one of three columns: `…_s` (seconds), `…_us` (whole microseconds) or, for points in time,
`…_time` (ISO 8601; without a zone it is UTC).

| column | meaning | where empty or missing |
|---|---|---|
| `submit_…` | when it was submitted | needed |
| `duration_…` | how long it ran | needed, or `end_…` |
| `end_…`, `start_…` | when it ended and started, instead of a duration | `start`: it started when it was submitted |
| `gpus` | GPUs of the whole job: a whole number, or a share below 1 in steps of 0.001 | needed |
| `workers` | tasks that start together and share the GPUs evenly | one a GPU |
| `job`, `name` | its id, which no other row has; what people call it | |
| `user`, `queue`, `model` | names | `user`, `default`, none |
| `kinds` | GPU kinds that it may use, such as `v100|a100` | any |
| `cpus`, `memory_bytes` | of each worker | 1, 4 GB |
| `priority` | 0 to 100 | 50 |
| `estimate_…` | what its user said that it takes | `time_limit`, else as in the Philly trace |
| `time_limit_…`, `deadline_…` | a duration; a point in time | none |
| `iterations`, `batch` | of its training | unknown |
| `spec.`, `true.`, `hint.NAME`, `details` | a column as it is in `core/columns.py`, `workloads/truth.py` | from the above |

A file that Headway wrote also carries, as JSON, the order of names, hashes, and what was dropped: in a CSV on a first line
`# headway-workload …`, in Parquet as metadata. Its clock is kept; in any other file the first submission is time 0.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Bools, Ints
from headway.core.columns import GPUS_PER_NODE_MAX, WHOLE
from headway.core.errors import UserError
from headway.core.shape import TASKS_MAX
from headway.core.units import CPUS_MAX, DURATION_MAX_US, SIZE_MAX_BYTES, US_PER_S
from headway.workloads.cluster import KINDS_MAX
from headway.workloads.rows import (
    CLOCK_EXPECTED,
    CLOCK_MAX_US,
    EXACT_MAX,
    GPUS_MAX,
    Rows,
    floats,
    read_csv,
    refuse_columns,
    to_us,
    to_workload,
)
from headway.workloads.schema import SCHEMA, Workload
from headway.workloads.sound import (
    ANY,
    PRIORITY_MAX,
    SPEC_RANGES,
    TRUE_RANGES,
    Range,
    refuse_details,
    refuse_shapes,
    refuse_truths,
)
from headway.workloads.truth import HINT_COLUMN_NAMES, HINT_COLUMNS, TRUTH_COLUMN_NAMES, TRUTH_COLUMNS

MARK = "# headway-workload "
SPEC, TRUE, HINT = "spec.", "true.", "hint."
DURATION_UNITS = {"_us": 1, "_s": US_PER_S}
POINTS = ("submit", "start", "end", "deadline")
DURATIONS = ("duration", "estimate", "time_limit")
PLAIN = ("gpus", "workers", "job", "name", "user", "queue", "model", "kinds", "cpus", "memory_bytes", "priority", "iterations",
         "batch", "details")  # fmt: skip
KNOWN = (
    *(f"{name}{suffix}" for name in POINTS for suffix in ("_us", "_s", "_time")),
    *(f"{name}{suffix}" for name in DURATIONS for suffix in DURATION_UNITS),
    *PLAIN,
    *(SPEC + name for name in c.SPEC_COLUMN_NAMES),
    *(TRUE + name for name in TRUTH_COLUMN_NAMES),
    *(HINT + name for name in HINT_COLUMN_NAMES),
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def is_generic(header: Sequence[str]) -> bool:
    """Whether a table has the columns that the generic schema needs first: submission and GPUs."""
    return bool({"submit_us", "submit_s", "submit_time"} & set(header)) and "gpus" in header


def parse_generic(text: str, *, file: str = "workload", name: str = "", estimates: str = "noisy") -> Workload:
    """Return the jobs of a generic table's text."""
    meta: dict[str, Any] | None = None
    if text.startswith(MARK):
        first, _, text = text.partition("\n")
        meta = read_meta(first.removeprefix(MARK), file)
    if not text.strip():
        raise UserError("the file has no table", file=file)
    rows = read_csv(text, (), file=file, optional=KNOWN, line=0 if meta is None else 1)
    return from_rows(rows, name or file, meta, estimates)


def read_meta(text: str | bytes, file: str) -> dict[str, Any]:
    """Return what a file that Headway wrote says about itself; `UserError` where it is not that."""
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError):
        raise UserError("what the file says about itself is not JSON", file=file, line=1) from None
    names = ("users", "queues", "kinds", "models")
    counts = ("dropped", "noted")
    good = (
        isinstance(meta, dict)
        and all(_is_list(meta.get(key, []), str) for key in names)
        and all(isinstance(meta.get(key, {}), dict) and _is_list(list(meta.get(key, {}).values()), int) for key in counts)
        and all(isinstance(meta.get(key, ""), str) for key in ("dropped_first", "sha256", "frozen_sha256"))
        and _is_list(meta.get("usage", [0, 0, 0]), int)
        and len(meta.get("usage", [0, 0, 0])) == 3
        and len(meta.get("kinds", [])) <= KINDS_MAX
        and isinstance(meta.get("rows_read", 0), int)
        and _is_list(meta.get("quotas_ppm", []), int)
        and len(meta.get("quotas_ppm", [])) in (0, len(meta.get("queues", [])))
    )
    if not good:
        raise UserError("what the file says about itself is not what Headway writes", file=file, line=1)
    if meta.get("schema") != SCHEMA:
        raise UserError(f"expected a workload of schema {SCHEMA}, got {meta.get('schema')!r}", file=file, line=1)
    return dict(meta)


def _is_list(value: Any, of: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, of) for item in value)


def from_rows(rows: Rows, name: str, meta: Mapping[str, Any] | None, estimates: str) -> Workload:
    """Return the jobs of generic rows; `meta` is what a file that Headway wrote says about itself."""
    header = list(rows.columns)
    for need, others in (("submit", ("_us", "_s", "_time")), ("duration", ("_us", "_s"))):
        columns = [need + suffix for suffix in others]
        if need == "duration" and any(f"end{suffix}" in header for suffix in ("_us", "_s", "_time")):
            continue
        if not set(columns) & set(header):
            refuse_columns(header, [columns[1]], rows.file)
    refuse_columns(header, ["gpus"], rows.file)
    submitted = _points(rows, "submit")
    assert submitted is not None
    work = _work(rows, submitted)
    spec = _sizes(rows)
    spec |= _wishes(rows)
    kinds, masks = _kinds(rows, tuple(meta["kinds"]) if meta and "kinds" in meta else None)
    spec[c.J_KIND_MASK] = masks
    if "job" in header:
        rows.drop_repeated(rows.texts("job", ""), "job", unless_empty=True)
    names = next((rows.texts(key, "") for key in ("name", "job") if key in header), None)
    given = {key: rows.texts(key, default) for key, default in (("user", "user"), ("queue", "default")) if key in header}
    raw = _raw(rows, SPEC, c.SPEC_COLUMN_NAMES, SPEC_RANGES, (0, 1 << 62))
    hidden = {
        "truth": (TRUTH_COLUMNS, _raw(rows, TRUE, TRUTH_COLUMN_NAMES, TRUE_RANGES)),
        "hints": (HINT_COLUMNS, _raw(rows, HINT, HINT_COLUMN_NAMES)),
    }
    details = _details(rows, raw)
    shapes = {**spec, **raw}
    refuse_shapes(rows, shapes)
    refuse_details(rows, shapes, details)
    refuse_truths(rows, hidden["truth"][1])
    if meta is None and (deadline := shapes.get(c.J_DEADLINE)) is not None:
        rows.note(np.asarray(deadline < submitted), "deadline before the submission")
    jobs = to_workload(
        rows,
        name,
        submitted_us=submitted,
        work_us=work,
        spec=spec,
        users=given.get("user"),
        queues=given.get("queue"),
        models=rows.texts("model", "") if "model" in header else None,
        job_names=names,
        kinds=kinds,
        estimates=estimates,
        zero_us=None if meta is None else 0,
    )
    order = np.flatnonzero(rows.good)
    order = order[np.argsort(submitted[order], kind="stable")]
    done = _as_written(jobs, meta or {}, order, raw, hidden, details)
    for key, column in (("users", c.J_USER), ("queues", c.J_QUEUE), ("models", c.J_MODEL)):
        if (most := int(done.spec[column].max())) >= len(getattr(done, key)) and column != c.J_MODEL:
            raise UserError(f"the file names {len(getattr(done, key))} {key}, and a job has number {most}", file=rows.file)
    return done


def _as_written(
    jobs: Workload,
    meta: Mapping[str, Any],
    order: Ints,
    raw: Mapping[int, Ints],
    hidden: Mapping[str, tuple[int, Mapping[int, Ints]]],
    details: Sequence[Sequence[int]],
) -> Workload:
    """The jobs with the raw columns, and with the names' order and the hash of a file that Headway wrote."""
    spec = jobs.spec
    changed: dict[str, Any] = {}
    for key, column in (("users", c.J_USER), ("queues", c.J_QUEUE), ("models", c.J_MODEL)):
        names = getattr(jobs, key)
        if (listed := meta.get(key)) is not None:
            known = {name: number for number, name in reversed(list(enumerate(listed)))}
            added = [name for name in names if name not in known]
            known |= {name: len(listed) + i for i, name in enumerate(added)}
            used = spec[column] >= 0
            numbers = np.array([known[name] for name in names], np.int64)
            if len(names):
                spec[column] = np.where(used, numbers[np.maximum(spec[column], 0)], spec[column])
            changed[key] = (*listed, *added)
    for column, values in raw.items():
        spec[column] = values[order]
    for key, (columns, found) in hidden.items():
        if found:
            changed[key] = np.zeros((columns, len(jobs)), np.int64)
            for column, values in found.items():
                changed[key][column] = values[order]
    if details:
        chosen = [details[row] for row in order.tolist()]
        changed["detail_at"] = np.concatenate(([0], np.cumsum([len(numbers) for numbers in chosen]))).astype(np.int64)
        changed["details"] = np.array([number for numbers in chosen for number in numbers], np.int64)
    if meta:
        jitter, hold, seed = meta.get("usage", (0, 0, 0))
        changed |= {"usage_jitter_ppm": jitter, "usage_hold_us": hold, "usage_seed": seed}
        changed["dropped"] = dict(Counter(meta.get("dropped", {})) + Counter(jobs.dropped))
        changed["dropped_first"] = jobs.dropped_first or meta.get("dropped_first", "")
        changed["rows_read"] = meta.get("rows_read", jobs.rows_read)
        changed["quotas_ppm"] = tuple(meta.get("quotas_ppm", ()))
        changed["noted"] = dict(Counter(meta.get("noted", {})) + Counter(jobs.noted))
    done = replace(jobs, spec=spec, **changed)
    if meta.get("frozen_sha256") and done.sha256 == meta.get("sha256"):  # unchanged since it was written
        return replace(done, frozen_sha256=meta["frozen_sha256"])
    return done


# -- columns ----------------------------------------------------------------------------------------------------------
def _one_of(rows: Rows, name: str, suffixes: Sequence[str]) -> str | None:
    """The column in which a time is given; `UserError` for two of them."""
    found = [name + suffix for suffix in suffixes if name + suffix in rows.columns]
    if len(found) > 1:
        raise UserError(f"expected one of the columns {' and '.join(found)}", file=rows.file, line=1)
    return found[0] if found else None


def _points(rows: Rows, name: str, missing: Ints | None = None) -> Ints | None:
    """Points in time (µs) of a column; an empty cell is an error, or takes the value of `missing`; `missing` without a column."""
    key = _one_of(rows, name, ("_us", "_s", "_time"))
    if key is None:
        return missing
    empty = _empty(rows, key)
    if missing is None:
        rows.drop(empty, f"missing {key}", key, "a point in time")
    if key.endswith("_time"):
        times = _iso_times(rows, key, empty)
    else:
        unit = DURATION_UNITS[key[len(name) :]]
        values = floats(rows.columns[key])
        bad = ~empty & ~((values >= 0) & (values <= CLOCK_MAX_US / unit))
        rows.drop(bad, f"bad {key}", key, CLOCK_EXPECTED)
        times = to_us(np.where(bad | empty, 0.0, values), unit)
    if missing is not None:
        times[empty] = missing[empty]
    return times


def _iso_times(rows: Rows, key: str, empty: Bools) -> Ints:
    """ISO 8601 to µs since 1970 in UTC; where some have a zone, those without are taken as UTC and noted."""
    times = np.full(len(rows), -1, np.int64)
    naive = np.zeros(len(rows), np.bool_)
    for row, text in enumerate(rows.words(key)):
        try:
            when = datetime.datetime.fromisoformat(text.strip()) if text[4:5] == "-" else None
        except ValueError:
            when = None
        if when is not None:
            naive[row] = when.tzinfo is None
            times[row] = ((when.replace(tzinfo=datetime.UTC) if when.tzinfo is None else when) - EPOCH) // _MICROSECOND
    bad = ~empty & ~((times >= 0) & (times <= CLOCK_MAX_US))
    rows.drop(bad, f"bad {key}", key, "a time such as 2026-01-31T12:00:00Z, from 1970 to 2255")
    zoned = rows.good & ~empty & ~naive
    if zoned.any():
        rows.note(naive, f"{key} without a time zone among others with one")
    return np.maximum(times, 0)


def _work(rows: Rows, submitted: Ints) -> Ints:
    """How long each job ran (µs), from its duration or from its start and end."""
    key = _one_of(rows, "duration", tuple(DURATION_UNITS))
    if key is not None:
        return rows.durations_us(key, DURATION_UNITS[key.removeprefix("duration")])
    start, end = _points(rows, "start", submitted), _points(rows, "end")
    assert start is not None and end is not None
    end_key = _one_of(rows, "end", ("_us", "_s", "_time")) or ""
    rows.drop(start < submitted, "start before submission", end_key.replace("end", "start"), "a start after the submission")
    length: Ints = end - start
    rows.drop_lengths(length, end_key, "an end after the start, by at most 100 years", "end before start")
    return np.maximum(length, 1)


def _sizes(rows: Rows) -> dict[int, Ints | int]:
    """Workers and what each of them asks for."""
    gpus = rows.numbers("gpus", 0, GPUS_MAX, f"GPUs from 0 to {GPUS_MAX}, whole or in thousandths below 1")
    milli = np.rint(gpus * WHOLE).astype(np.int64)
    uneven = (np.abs(gpus * WHOLE - milli) > 1e-6) | ((gpus > 0) & (milli == 0))
    if "workers" in rows.columns:
        empty = _empty(rows, "workers")
        workers, plain = _optional_counts(rows, "workers", 1, TASKS_MAX, 1), empty
    else:
        workers, plain = np.ones(len(rows), np.int64), np.ones(len(rows), np.bool_)
    workers = np.where(plain & (milli >= WHOLE), milli // WHOLE, workers)
    each = milli // workers
    uneven |= (each * workers != milli) | ((each > WHOLE) & (each % WHOLE != 0)) | (each > GPUS_PER_NODE_MAX * WHOLE)
    rows.drop(uneven, "bad gpus", "gpus", f"whole GPUs, at most {GPUS_PER_NODE_MAX} a worker, or thousandths of one")
    spec: dict[int, Ints | int] = {c.J_DATA: workers, c.J_DATA_MIN: workers, c.J_DATA_MAX: workers}
    spec |= {c.J_GPU_TASK: each, c.J_SHARE: ((each > 0) & (each < WHOLE)).astype(np.int64)}
    if "cpus" in rows.columns:
        empty = _empty(rows, "cpus")
        cpus = floats(rows.columns["cpus"])
        rows.drop(~empty & ~((cpus >= 0) & (cpus <= CPUS_MAX)), "bad cpus", "cpus", f"cores from 0 to {CPUS_MAX}")
        spec[c.J_CPU_TASK] = to_us(np.where(empty | ~rows.good, 1.0, cpus), WHOLE)
    if "memory_bytes" in rows.columns:
        spec[c.J_MEM_TASK] = _optional_counts(rows, "memory_bytes", 0, SIZE_MAX_BYTES, 4 * 10**9)
    return spec


def _wishes(rows: Rows) -> dict[int, Ints | int]:
    """What else is said of a job."""
    spec: dict[int, Ints | int] = {}
    for key, column, low, high, default in (
        ("priority", c.J_PRIORITY, 0, PRIORITY_MAX, 50),
        ("iterations", c.J_UNITS_TOTAL, 1, EXACT_MAX, 0),
        ("batch", c.J_BATCH, 1, 2**31, 0),
    ):
        if key in rows.columns:
            spec[column] = _optional_counts(rows, key, low, high, default)
    estimate, limit = (_lengths(rows, name) for name in ("estimate", "time_limit"))
    if limit is not None:
        spec[c.J_TIME_LIMIT] = np.where(limit > 0, limit, c.NEVER)
    if estimate is not None or limit is not None:
        zero = np.zeros(len(rows), np.int64)
        first, then = estimate if estimate is not None else zero, limit if limit is not None else zero
        spec[c.J_ESTIMATE] = np.where(first > 0, first, then)
    if (deadline := _points(rows, "deadline", np.full(len(rows), c.NEVER, np.int64))) is not None:
        spec[c.J_DEADLINE] = deadline
    return spec


def _lengths(rows: Rows, name: str) -> Ints | None:
    """Durations (µs) of an optional column, 0 where there is none."""
    key = _one_of(rows, name, tuple(DURATION_UNITS))
    if key is None:
        return None
    unit, empty = DURATION_UNITS[key[len(name) :]], _empty(rows, key)
    values = floats(rows.columns[key])
    bad = ~empty & ~((values > 0) & (values <= DURATION_MAX_US / unit))
    rows.drop(bad, f"bad {key}", key, "a duration above 0, at most 100 years")
    return to_us(np.where(empty | bad, 0.0, values), unit)


def _kinds(rows: Rows, listed: tuple[str, ...] | None) -> tuple[tuple[str, ...], Ints]:
    """GPU kinds and masks; in the order of a file that Headway wrote."""
    kinds, masks = rows.gpu_kinds("kinds") if "kinds" in rows.columns else ((), np.full(len(rows), -1, np.int64))
    if listed is None:
        return kinds, masks
    order = (*listed, *(kind for kind in kinds if kind not in listed))
    moved = np.zeros(len(rows), np.int64)
    for bit, kind in enumerate(kinds):
        moved |= (masks >> bit & 1) << order.index(kind)
    return order, np.where(masks < 0, masks, moved)


def _empty(rows: Rows, key: str) -> Bools:
    cells = rows.columns[key]
    if isinstance(cells, np.ndarray):
        return np.zeros(len(cells), np.bool_)
    return np.array([not cell.strip() for cell in cells], np.bool_)


def _optional_counts(rows: Rows, key: str, low: int, high: int, default: int) -> Ints:
    """Whole numbers, and `default` where a cell is empty."""
    cells = rows.columns[key]
    values, empty = floats(cells), _empty(rows, key)
    bad = ~empty & ~((values >= low) & (values <= high) & (values == np.floor(values)))
    rows.drop(bad, f"bad {key}", key, f"a whole number from {low} to {high}")
    whole: Ints = np.where(empty | bad, default, values).astype(np.int64)
    return whole


# -- columns of the workload as they are --------------------------------------------------------------------------
def _raw(
    rows: Rows, prefix: str, names: Sequence[str], ranges: Mapping[int, Range] = {}, otherwise: Range = ANY
) -> dict[int, Ints]:
    """The raw columns that a table has, by number; rows with a cell outside its column's range are dropped."""
    found: dict[int, Ints] = {}
    for column, name in enumerate(names):
        if (key := prefix + name) in rows.columns:
            low, high = ranges.get(column, otherwise)
            values, good = _wholes(rows, key)
            rows.drop(~good | (values < low) | (values > high), f"bad {key}", key, f"a whole number from {low} to {high}")
            found[column] = np.where(rows.good, values, max(low, 0))
    return found


def _wholes(rows: Rows, key: str) -> tuple[Ints, Bools]:
    """A column's whole numbers, exactly, and which cells are such."""
    cells = rows.columns[key]
    if isinstance(cells, np.ndarray):
        exact: Ints = cells.astype(np.int64)
        return exact, exact == cells
    values, good = np.zeros(len(cells), np.int64), np.zeros(len(cells), np.bool_)
    for row, cell in enumerate(cells):
        text = cell.strip()
        digits = text.removeprefix("-")
        if digits.isdecimal() and len(digits) <= 19 and int(digits) <= c.NEVER:
            values[row], good[row] = int(text), True
    return values, good


def _details(rows: Rows, raw: Mapping[int, Ints]) -> list[list[int]]:
    """The numbers of jobs whose tasks differ, `DETAIL` a task; nothing at all where no job's do."""
    if "details" not in rows.columns:
        return []
    found: list[list[int]] = []
    bad = np.zeros(len(rows), np.bool_)
    for row, cell in enumerate(rows.words("details")):
        numbers = cell.split()
        bad[row] = len(numbers) % c.DETAIL != 0 or not all(len(n) <= 18 and n.isdecimal() for n in numbers)
        found.append([] if bad[row] else [int(n) for n in numbers])
    given = raw.get(c.J_DETAILS, np.zeros(len(rows), np.int64))
    bad |= np.array([len(numbers) for numbers in found], np.int64) != given * c.DETAIL
    rows.drop(bad, "bad details", "details", f"{c.DETAIL} whole numbers a task, as many as spec.details says")
    return found
