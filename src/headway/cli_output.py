"""How the commands of a live cluster speak: notes, JSON, columns as `squeue` has them, a job in a line, and exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.core.errors import UserError, one_line

if TYPE_CHECKING:
    from headway.app.live import Client

ERRORS_SHOWN = 3
SHORT = {
    "queued": "PD",
    "starting": "CF",
    "running": "R",
    "stopping": "CG",
    "completed": "CD",
    "failed": "F",
    "cancelled": "CA",
    "rejected": "RJ",
}
"""States as squeue writes them."""
ON_NODES = frozenset({"starting", "running", "stopping"})
CELL_WIDTH_MAX = 32
TIMED_OUT, CANNOT_RUN, SIGNALLED, INTERRUPTED, KILLED, TERMINATED = 124, (126, 127), 128, 130, 137, 143


# -- options and the controller --------------------------------------------------------------------------------------
def connect() -> Client:
    """The controller that the environment names."""
    from headway.app import live

    return live.connect(os.environ)


def complete_job(incomplete: str) -> list[str]:
    """Ids of live jobs, for the shell's completion; none where no controller answers."""
    return _complete(lambda client, live: (job["job"] for job in live.queue(client, states=["live"])["jobs"]), incomplete)


def complete_node(incomplete: str) -> list[str]:
    """Names of nodes, for the shell's completion."""
    return _complete(lambda client, live: (node["node"] for node in live.nodes(client)["nodes"]), incomplete)


def complete_queue(incomplete: str) -> list[str]:
    """Names of queues, for the shell's completion."""
    return _complete(lambda client, live: (queue["queue"] for queue in live.queues(client)["queues"]), incomplete)


def _complete(names: Any, incomplete: str) -> list[str]:
    from headway.app import live

    try:
        return [name for name in names(live.connect(os.environ), live) if name.startswith(incomplete)]
    except UserError:
        return []


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id, as `submit` and `queue` show it.", autocompletion=complete_job)
]


# -- lines -----------------------------------------------------------------------------------------------------------
def note(text: str) -> None:
    """Say something beside the output."""
    typer.echo(f"headway: {one_line(text)}", err=True)


def note_deciding(found: Mapping[str, Any]) -> None:
    """Say who decides in the policy's stead, if somebody does; an answer of an older controller does not tell."""
    if why := (found.get("policy") or {}).get("why"):
        note(why)


def out(text: str) -> None:
    """Print a line at once, also into a pipe."""
    typer.echo(text)
    sys.stdout.flush()


def print_json(value: Any) -> None:
    """Print JSON for programs; other letters than ASCII stand as they are where the output can hold them."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=not _is_utf8()))


def print_json_line(value: Any) -> None:
    """Print one JSON value on a line of its own, at once: of a stream."""
    out(json.dumps(value, allow_nan=False, ensure_ascii=not _is_utf8()))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def print_columns(headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Columns as wide as they need to be, as people and `awk` read them; long names are cut, the last column is not."""
    for line in columns(headers, rows, numbers=numbers):
        typer.echo(line)
    sys.stdout.flush()


def columns(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = (), header: bool = True
) -> list[str]:
    """The lines of `print_columns`."""
    table: list[tuple[str, ...]] = [tuple(headers)] if header else []
    table += [(*map(cut, row[:-1]), one_line(row[-1])) for row in rows]
    spans = [[_span(cell) for cell in row] for row in table]
    widths = [max(column) for column in zip(*spans, strict=True)]
    right = [name in numbers for name in headers]
    lines = []
    for row, taken in zip(table, spans, strict=True):
        cells = [
            " " * (width - span) + cell if to_right else cell + " " * (width - span)
            for cell, span, width, to_right in zip(row, taken, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _span(text: str) -> int:
    """How many cells of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def cut(text: str, width: int = CELL_WIDTH_MAX) -> str:
    """A text of one line, of at most so many cells."""
    text = one_line(text)
    if _span(text) <= width:
        return text
    from rich.cells import set_cell_size

    return set_cell_size(text, width - 1).rstrip() + "…"


def duration(seconds: float | None) -> str:
    """A duration as squeue writes it: [D-][H:]M:SS; a dash where it is not known."""
    if seconds is None:
        return "-"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(value: float | None) -> str:
    """A figure such as a loss, to four digits; a dash where it is not known."""
    return "-" if value is None else f"{value:.4g}"


def percent(value: float | None) -> str:
    """A share in percent; a dash where it is not known."""
    return "-" if value is None else f"{value:.1%}"


def plural(count: int, what: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


# -- jobs ------------------------------------------------------------------------------------------------------------
Job = Mapping[str, Any]


def job_line(job: Job) -> str:
    """One job in a sentence."""
    text = f"{job['job']}: {job['state']}"
    reason = _reason(job, "exit code")
    if reason and reason != job["state"]:
        text += f" ({reason})"
    if job["state"] == "completed":
        text += f" after {duration(job['run_s'])}"
    return one_line(text + (f": {job['message']}" if job["message"] else ""))


def short(job: Job) -> str:
    """A job's state as squeue writes it."""
    return SHORT.get(job["state"]) or str(job["state"])


def where(job: Job) -> str:
    """The nodes of a job that has some, or in brackets why it is where it is."""
    reason = _reason(job, "exit-code")
    return ",".join(job["nodes"]) if job["state"] in ON_NODES else f"({reason})" if reason else ""


def _reason(job: Job, word: str) -> str:
    return str(job["reason"]).replace("exit-code", f"{word} {job['exit_code']}")


def exit_code(job: Job, *, interrupted: bool = False) -> int:
    """How a command ends that has waited for a job: 0 completed; else 124 for its time limit, 128 + n for signal n, 126 or 127
    for a program that can't be run, 137 for its memory, 130 or 143 where it was cancelled (from here, or from elsewhere), and 1.
    """
    if job["state"] == "completed":
        return 0
    if job["state"] == "cancelled":
        return INTERRUPTED if interrupted else TERMINATED
    if job["reason"] == "time-limit":
        return TIMED_OUT
    if "out-of-memory" in job["message"]:
        return KILLED
    code = job["exit_code"] or 0
    return int(code) if code in CANNOT_RUN or SIGNALLED < code <= SIGNALLED + 64 else 1


def refuse_all(errors: Sequence[str]) -> None:
    """Raise what could not be done, in one line; of many, the first few."""
    if errors:
        more = f"; and {len(errors) - ERRORS_SHOWN} more" if len(errors) > ERRORS_SHOWN else ""
        raise UserError("; ".join(errors[:ERRORS_SHOWN]) + more)
