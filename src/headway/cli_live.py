"""The commands of a live cluster: `up`, `submit`, `queue`, `show`, `logs`, `cancel`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headway.core.errors import UserError, one_line

if TYPE_CHECKING:
    from headway.api.serve import Ready
    from headway.app.live import Client

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `submit` and `queue` show it.")]
COMMAND = "headway.command"
"""Where a command line keeps what stood behind `--`."""
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
COLUMNS = ("JOBID", "NAME", "QUEUE", "USER", "ST", "TIME", "GPUS", "NODES(REASON)")
NUMBERS = ("TIME", "GPUS")
CELL_WIDTH_MAX = 32


class _WithCommand(TyperCommand):
    """A command that keeps what stands behind `--` apart, untouched."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND] = args[at + 1 :]
            args = args[:at]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Start a controller on this machine.")(up)
    app.command(cls=_WithCommand, short_help="Hand in a job: a job file, or a command behind --.")(submit)
    app.command(short_help="Jobs that wait and run.")(queue)
    app.command(short_help="All about one job.")(show)
    app.command(short_help="The output of a job.")(logs)
    app.command(short_help="End jobs for good.")(cancel)


# -- up -------------------------------------------------------------------------------------------------------------
def up(
    config: Annotated[
        Path | None, typer.Option(help="Settings; default: headway.toml in HEADWAY_HOME, if there is one.", metavar="FILE")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Nodes on this machine and the slots of each; default: one, with all GPUs.", metavar="NODESxSLOTS"),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=0, help="Slots that stand for GPUs; default where there are none: one a core.", metavar="N")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="NAME[:key=value,…], as `headway policies` lists; default: fifo.", metavar="P"),
    ] = None,
    port: Annotated[int | None, typer.Option(help="Where the API listens on 127.0.0.1; default: a free port.")] = None,
    round_: Annotated[str | None, typer.Option("--round", help="Interval of rounds; default: 1s.", metavar="TIME")] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWAY_JOURNAL",
            help="A PostgreSQL database for the journal; default: a file in HEADWAY_HOME.",
            metavar="postgresql://…",
            show_envvar=False,
        ),
    ] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait until no other controller lives, then take over.")] = False,
    lease: Annotated[
        str | None,
        typer.Option(help="How long a controller may be silent before a standby takes over; default: 4s.", metavar="TIME"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start a controller on this machine and run jobs until Ctrl-C.

    Its state is in HEADWAY_HOME (default ~/.local/share/headway). Jobs outlive it: when it is started again, it goes on
    with them. Options stand above the settings of the file.
    """
    import asyncio

    from headway.api.serve import UpRequest, prepare, serve
    from headway.app.simulate import compiles_first
    from headway.runtime.home import find_home
    from headway.runtime.warm import warm_up

    logging.basicConfig(format="headway: %(message)s", level=logging.WARNING, stream=sys.stderr)
    request = UpRequest(
        home=find_home(os.environ), config=config, nodes=nodes, slots=slots, policy=policy, port=port, round=round_,
        journal=journal, standby=standby, lease=lease,
    )  # fmt: skip
    prepared = prepare(request)
    if sys.stderr.isatty() and compiles_first():
        _note("compiling once, which takes a minute or two; later starts are quick")
    warm_up(prepared.chosen.policy)
    live = asyncio.run(serve(prepared, _announce_json if as_json else _announce, _note))
    if live:
        _note(f"stopped; {live} job{'s' if live != 1 else ''} left, and what runs goes on running; go on with: headway up")
    else:
        _note("stopped; no jobs left")


def _announce(ready: Ready) -> None:
    for note in ready.notes:
        _note(note)
    for line in ready.engine:
        _out(f"headway: {line}")
    slots = f"{ready.nodes} node{'s' if ready.nodes != 1 else ''}, {ready.slots} slots, policy {ready.policy}"
    _out(f"headway: listening on {ready.url} ({slots})")
    _out(f"headway: the token is in {ready.token_file}")
    if ready.live:
        _out(f"headway: going on with {ready.live} job{'s' if ready.live != 1 else ''}")
    _out("headway: Ctrl-C stops the controller, not the jobs")


def _announce_json(ready: Ready) -> None:
    _out(json.dumps(ready.to_json(), ensure_ascii=False))


# -- jobs -----------------------------------------------------------------------------------------------------------
def submit(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="JOB.yaml", help="A job file.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the job.")] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", "-G", help="GPUs (or slots) of each worker [1].", metavar="N")] = None,
    workers: Annotated[str | None, typer.Option(help="Workers, which start together [1].", metavar="N")] = None,
    cpus: Annotated[str | None, typer.Option("--cpus", "-c", help="Cores of each worker [1].", metavar="N")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of each worker, such as 4GB.", metavar="SIZE")] = None,
    time_limit: Annotated[str | None, typer.Option("--time-limit", "-t", help="The longest it may run.", metavar="TIME")] = None,
    queue_: Annotated[str | None, typer.Option("--queue", help="Where it waits.", metavar="NAME")] = None,
    priority: Annotated[str | None, typer.Option(help="0 to 100, higher first [50].", metavar="N")] = None,
    job_id: Annotated[str, typer.Option("--id", help="An id of your own: handing in the same again does no harm.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; exit code 1 if it failed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hand in a job: `headway submit job.yaml`, or `headway submit --gpus 1 -- python train.py`."""
    from headway.app import live
    from headway.app.jobfile import job_from_command, load_job

    command: list[str] | None = ctx.meta.get(COMMAND)
    given = {
        "name": name,
        "gpus": gpus,
        "workers": workers,
        "cpus": cpus,
        "memory": memory,
        "time_limit": time_limit,
        "queue": queue_,
        "priority": priority,
    }
    options = {key: value for key, value in given.items() if value is not None}
    if (command is None) == (file is None):
        raise UserError("expected a job file, or -- and a command" + (", not both" if file else ""))
    if file is not None:
        if options:
            raise UserError(
                "belongs to a command behind --; in a job file it is a key", key=f"--{next(iter(options)).replace('_', '-')}"
            )
        spec = load_job(file)
    else:
        spec = job_from_command(command or [], **options)  # type: ignore[arg-type]
    client = _connect()
    answer = live.submit(client, live.prepared(spec), job_id=job_id)
    found: dict[str, Any] = answer
    if answer["state"] == "rejected":
        if as_json:
            _print_json(answer)
        raise UserError(f"{answer['job']} is rejected: {answer['message']}")
    if answer["note"]:
        _note(f"{answer['job']}: {answer['note']}")
    if wait:
        if not as_json:
            _note(f"{answer['job']} is handed in; waiting for its end")
        found = live.wait(client, answer["job"], _connect)
    if as_json:
        _print_json({**answer, **{key: value for key, value in found.items() if key != "spec"}} if wait else answer)
    else:
        _out(_line(found) if wait else answer["job"])
    if wait and found["state"] != "completed":
        raise typer.Exit(1)


def queue(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    state: Annotated[str, typer.Option(help="Only jobs in these states, such as queued,running.", metavar="S,…")] = "",
    queue_: Annotated[str, typer.Option("--queue", help="Only jobs of this queue.", metavar="NAME")] = "",
    user: Annotated[str, typer.Option(help="Only jobs of this user.", metavar="NAME")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Show the jobs that wait and run (with --all also those that have ended)."""
    from headway.app import live

    states = [word.strip() for word in state.split(",")] if state else [] if all_ else ["live"]
    found = live.queue(_connect(), states=states, name=queue_, user=user, limit=limit)
    if as_json:
        _print_json(found)
        return
    _print_columns(COLUMNS, [_row(job) for job in found["jobs"]])
    if found["more"]:
        _note(f"{found['more']} older jobs are not shown (see --limit)")


def show(job: JobId, as_json: AsJson = False) -> None:
    """Show all about one job."""
    from headway.app import live

    found = live.show(_connect(), job)
    if as_json:
        _print_json(found)
        return
    for key, value in found.items():
        if key == "spec":
            value = value.get("run", "").strip()
            key = "command"
        if value not in (None, "", []):
            shown = ", ".join(value) if isinstance(value, list) else f"{value:.1f}" if key.endswith("_s") else str(value)
            _out(f"{key:<13}{one_line(shown)}")


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which of its tasks.")] = 0,
    attempt: Annotated[int, typer.Option(min=0, help="Which attempt; 0: the newest.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the output of one task of a job, as it was written."""
    from headway.app import live

    chunks = live.logs(_connect(), job, rank=rank, attempt=attempt, follow=follow)
    if as_json:
        _print_json({"job": job, "rank": rank, "output": b"".join(chunks).decode("utf-8", "replace")})
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()


def cancel(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB…", help="Ids of jobs.")],
    as_json: AsJson = False,
) -> None:
    """End jobs for good; nothing happens to one that has ended."""
    from headway.app import live

    client = _connect()
    ended = []
    errors = []
    for job in jobs:
        try:
            ended.append(live.cancel(client, job))
        except live.NoControllerError:
            raise
        except UserError as error:
            errors.append(str(error))
    if as_json:
        _print_json({"jobs": ended, "errors": errors})
    else:
        for found in ended:
            _out(_line(found))
    if errors:
        raise UserError("; ".join(errors))


# -- output ---------------------------------------------------------------------------------------------------------
def _connect() -> Client:
    from headway.app.live import connect

    return connect(os.environ)


def _note(text: str) -> None:
    typer.echo(f"headway: {text}", err=True)


def _out(text: str) -> None:
    typer.echo(text)
    sys.stdout.flush()


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=not _is_utf8()))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _line(job: dict[str, Any]) -> str:
    """One job in a sentence."""
    text = f"{job['job']}: {job['state']}"
    reason = job["reason"].replace("exit-code", f"exit code {job['exit_code']}")
    if reason and reason != job["state"]:
        text += f" ({reason})"
    if job["state"] == "completed":
        text += f" after {_time(job['run_s'])}"
    return one_line(text + (f": {job['message']}" if job["message"] else ""))


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    reason = job["reason"].replace("exit-code", f"exit-code {job['exit_code']}")
    where = ",".join(job["nodes"]) if job["state"] in ("starting", "running", "stopping") else f"({reason})" if reason else ""
    name, public_id = job["name"], job["job"]
    return public_id, name, job["queue"], job["user"], SHORT[job["state"]], _time(job["run_s"]), str(job["gpus"]), where


def _time(seconds: float) -> str:
    """A duration as squeue writes it: [D-][H:]M:SS."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _print_columns(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns as wide as they need to be, as people and `awk` read them; long names are cut."""
    from rich.cells import cell_len, set_cell_size

    def cut(text: str) -> str:
        text = one_line(text)
        return text if cell_len(text) <= CELL_WIDTH_MAX else set_cell_size(text, CELL_WIDTH_MAX - 1).rstrip() + "…"

    table: list[tuple[str, ...]] = [tuple(headers)]
    table += [(*map(cut, row[:-1]), one_line(row[-1])) for row in rows]
    widths = [max(cell_len(row[i]) for row in table) for i in range(len(headers))]
    for row in table:
        cells = []
        for header, cell, width in zip(headers, row, widths, strict=True):
            gap = " " * (width - cell_len(cell))
            cells.append(gap + cell if header in NUMBERS else cell + gap)
        _out("  ".join(cells).rstrip())
