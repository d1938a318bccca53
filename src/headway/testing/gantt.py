"""A journal as a text Gantt chart: one row a GPU, one column a unit of time.

    n0.0 |aaAbb.
    n0.1 |aaA..x

A letter is the job (a: number 0, b: 1, …) whose processes hold the GPU at the beginning of the column. A capital letter: they
make no progress, because the job is coming up, restoring or saving. A digit: so many jobs share the GPU. `.`: nobody. `x`: the
node is down, and nobody holds the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from string import ascii_lowercase

from headway.core import columns as c
from headway.core.columns import EventKind, Name
from headway.core.events import EventBatch
from headway.core.view import gpus_of

US = 1_000_000
COLUMNS_MAX = 1000
ENDS = frozenset({EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED})


@dataclass(slots=True)
class Stay:
    """One attempt of a job on its GPUs: [begin, end), at work in [works, stops)."""

    job: int
    attempt: int
    gpus: tuple[tuple[int, int], ...]
    begin: int
    works: int = c.NEVER
    stops: int = c.NEVER
    end: int = c.NEVER


@dataclass(slots=True)
class History:
    """What a journal says about nodes and places."""

    names: dict[int, str] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    outages: list[tuple[int, int, int]] = field(default_factory=list)
    """(node, from, to)."""
    stays: list[Stay] = field(default_factory=list)
    end: int = 0


def history(journal: EventBatch) -> History:
    """Read nodes, outages and places out of a journal."""
    found = History()
    open_stays: dict[int, Stay] = {}
    down: dict[int, int] = {}
    restore: dict[int, int] = {}
    for i, (record, payload) in enumerate(zip(journal.records.tolist(), journal.payloads(), strict=True)):
        t, kind, subject, attempt, a = record[:5]
        found.end = t
        stay = open_stays.get(subject)
        current = stay is not None and stay.attempt == attempt
        if kind == EventKind.NAMED and a == Name.NODE:
            found.names[subject] = journal.texts[i]
        elif kind == EventKind.NODE_ADDED:
            found.sizes[subject] = int(payload[c.N_GPUS])
        elif kind == EventKind.NODE_DOWN:
            down.setdefault(subject, t)
        elif kind == EventKind.NODE_UP and subject in down:
            found.outages.append((subject, down.pop(subject), t))
        elif kind == EventKind.SUBMITTED:
            restore[subject] = int(payload[c.J_RESTORE])
        elif kind == EventKind.START_REQUESTED:
            tasks = payload.reshape(-1, c.PLACE).tolist()
            gpus = tuple((node, gpu) for node, mask, _ in tasks for gpu in gpus_of(mask))
            open_stays[subject] = Stay(subject, attempt, gpus, t)
            found.stays.append(open_stays[subject])
        elif stay is not None and current and kind == EventKind.STARTED:
            stay.works = t + (restore.get(subject, 0) if attempt > 1 else 0)
        elif stay is not None and current and kind == EventKind.STOP_REQUESTED:
            stay.stops = t
        elif stay is not None and current and kind in ENDS:
            stay.end = t
            del open_stays[subject]
    found.outages += [(node, since, c.NEVER) for node, since in down.items()]
    return found


def gantt(journal: EventBatch, *, unit_s: float = 1.0, until_s: float | None = None) -> str:
    """The chart of a journal, up to its last event or to `until_s`."""
    found = history(journal)
    unit = round(unit_s * US)
    columns = -(-(found.end if until_s is None else round(until_s * US)) // unit)
    assert columns <= COLUMNS_MAX, f"{columns} columns: take a larger unit"
    rows: dict[tuple[int, int], list[str]] = {
        (node, gpu): ["."] * columns for node, size in sorted(found.sizes.items()) for gpu in range(size)
    }
    for node, since, to in found.outages:
        for gpu in range(found.sizes[node]):
            for k in range(-(-since // unit), min(-(-to // unit), columns)):
                rows[node, gpu][k] = "x"
    for stay in found.stays:
        letter = ascii_lowercase[stay.job % len(ascii_lowercase)]
        for on in stay.gpus:
            row = rows[on]
            for k in range(-(-stay.begin // unit), min(-(-stay.end // unit), columns)):
                here = letter if stay.works <= k * unit < stay.stops else letter.upper()
                row[k] = here if row[k] in ".x" else str(int(row[k]) + 1) if row[k].isdigit() else "2"
    labels = {on: f"{found.names.get(on[0], f'n{on[0]}')}.{on[1]}" for on in rows}
    width = max(map(len, labels.values()), default=0)
    return "\n".join(f"{labels[on]:<{width}} |{''.join(cells)}" for on, cells in rows.items())
