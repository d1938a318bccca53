"""Jobs are handed in: `headway submit`, and `headway run`, which stays with the job. Thin, as `headway.cli`."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from headway.cli_output import (
    AsJson,
    complete_queue,
    connect,
    exit_code,
    job_line,
    note,
    out,
    plural,
    print_json,
    refuse_all,
)
from headway.core.errors import UserError, one_line

if TYPE_CHECKING:
    from headway.app.live import Client
    from headway.core.model import JobSpec

COMMAND = "headway.command"
"""Where a command line keeps what stood behind `--`."""


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
    app.command(cls=_WithCommand, short_help="Hand in jobs: job files, scripts, or a command behind --.")(submit)
    app.command(cls=_WithCommand, short_help="Hand in a job and stay with it: its output, its exit code.")(run)


Name = Annotated[str | None, typer.Option(help="What to call the job.")]
Gpus = Annotated[str | None, typer.Option("--gpus", "-G", help="GPUs (or slots) of each worker [1].", metavar="N")]
Workers = Annotated[str | None, typer.Option(help="Workers, which start together [1].", metavar="N")]
Cpus = Annotated[str | None, typer.Option("--cpus", "-c", help="Cores of each worker [1].", metavar="N")]
Memory = Annotated[str | None, typer.Option(help="Memory of each worker, such as 4GB.", metavar="SIZE")]
TimeLimit = Annotated[str | None, typer.Option("--time-limit", "-t", help="The longest it may run.", metavar="TIME")]
Deadline = Annotated[str | None, typer.Option(help="When it should be done, from now.", metavar="TIME")]
Queue = Annotated[str | None, typer.Option("--queue", help="Where it waits.", metavar="NAME", autocompletion=complete_queue)]
Priority = Annotated[str | None, typer.Option(help="0 to 100, higher first [50].", metavar="N")]
OwnId = Annotated[str, typer.Option("--id", help="An id of your own: handing in the same again does no harm.")]
FILE = "A job file, or a script with #SBATCH lines."


def submit(
    ctx: typer.Context,
    files: Annotated[list[str] | None, typer.Argument(metavar="[FILE]…", help=FILE, show_default=False)] = None,
    name: Name = None,
    gpus: Gpus = None,
    workers: Workers = None,
    cpus: Cpus = None,
    memory: Memory = None,
    time_limit: TimeLimit = None,
    deadline: Deadline = None,
    queue: Queue = None,
    priority: Priority = None,
    job_id: OwnId = "",
    hold: Annotated[bool, typer.Option("--hold", help="Don't start it before `headway release`.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check it, and hand nothing in.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end; the exit code is then the job's.")] = False,
    as_json: AsJson = False,
) -> None:
    """Hand in jobs: `headway submit job.yaml`, `headway submit train.sh`, or `headway submit --gpus 1 -- python train.py`."""
    from headway.app import live

    options = _given(name, gpus, workers, cpus, memory, time_limit, deadline, queue, priority)
    specs = _specs(ctx.meta.get(COMMAND), files or [], options)
    if job_id and len(specs) > 1:
        raise UserError(f"is of one job, got {len(specs)} jobs", key="--id")
    if dry_run and (wait or hold):
        raise UserError("hands nothing in: leave out --wait and --hold", key="--dry-run")
    with connect() as client:
        user = live.submitter(client, os.environ)
        jobs = [live.prepared(spec, user) for _, spec in specs]
        if dry_run:
            answers = [live.submit(client, job, job_id=job_id, dry_run=True) for job in jobs]
        else:
            answers = _hand_in(client, jobs, job_id, hold)
        taken = [] if dry_run else [answer for answer in answers if _is_taken(answer)]
        for answer in taken:
            if answer["note"]:
                note(f"{answer['job']}: {answer['note']}")
        changed: dict[str, dict[str, Any]] = {}
        if wait and taken:
            if not as_json:
                who = taken[0]["job"] if len(taken) == 1 else plural(len(taken), "job")
                note(f"handed in: {who}; waiting for the end")
            changed = {answer["job"]: live.wait(client, answer["job"], connect) for answer in taken}
    found = [_merged(answer, changed.get(answer.get("job", ""))) for answer in answers]
    if as_json:
        print_json(found[0] if len(found) == 1 else {"jobs": found})
    else:
        for job in found:
            if dry_run:
                out(_would(job))
            elif _is_taken(job):
                out(job_line(job) if wait else job["job"])
    places = [file if len(specs) > 1 else "" for file, _ in specs]
    refuse_all([_refusal(answer, place) for answer, place in zip(answers, places, strict=True) if not _is_taken(answer)])
    if wait:
        raise typer.Exit(max(exit_code(job) for job in found))


def run(
    ctx: typer.Context,
    file: Annotated[str | None, typer.Argument(metavar="[FILE]", help=FILE, show_default=False)] = None,
    name: Name = None,
    gpus: Gpus = None,
    workers: Workers = None,
    cpus: Cpus = None,
    memory: Memory = None,
    time_limit: TimeLimit = None,
    deadline: Deadline = None,
    queue: Queue = None,
    priority: Priority = None,
    job_id: OwnId = "",
    as_json: AsJson = False,
) -> None:
    """Hand in a job, print its output as it comes, and end as it ends.

    Ctrl-C asks whether to cancel the job; without a terminal it cancels at once. The exit code is 0 if the job completed, 124
    if it reached its time limit, 128 + n if signal n ended it, 126 or 127 if its program can't be run, otherwise 1.
    """
    from headway.app import live

    options = _given(name, gpus, workers, cpus, memory, time_limit, deadline, queue, priority)
    specs = _specs(ctx.meta.get(COMMAND), [file] if file is not None else [], options)
    if len(specs) > 1:
        raise UserError(f"is an array of {len(specs)} jobs: hand it in with `headway submit`", file=file or "")
    ((_, spec),) = specs
    with connect() as client:
        answer = live.submit(client, live.prepared(spec, live.submitter(client, os.environ)), job_id=job_id)
        if not _is_taken(answer):
            raise UserError(_refusal(answer, ""))
        if answer["note"]:
            note(f"{answer['job']}: {answer['note']}")
        note(f"{answer['job']} is handed in; Ctrl-C cancels it")
        job, interrupted = _attend(client, answer["job"], quiet=as_json)
    if as_json:
        print_json(job)
    else:
        note(job_line(job))
    raise typer.Exit(exit_code(job, interrupted=interrupted))


# -- what is handed in -----------------------------------------------------------------------------------------------
def _given(*values: str | None) -> dict[str, str]:
    """The options that were given, by the name that `job_from_command` has for each."""
    names = ("name", "gpus", "workers", "cpus", "memory", "time_limit", "deadline", "queue", "priority")
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _specs(command: list[str] | None, files: Sequence[str], options: dict[str, str]) -> "list[tuple[str, JobSpec]]":
    """The jobs that a command line describes, each with its file. All are read before one is handed in."""
    from headway.app.jobfile import job_from_command, load_jobs

    if (command is None) == (not files):
        raise UserError("expected a job file, or -- and a command" + (", not both" if files else ""))
    if command is not None:
        return [("", job_from_command(command, **options))]  # type: ignore[arg-type]
    if options:
        option = next(iter(options)).replace("_", "-")
        raise UserError("belongs to a command behind --; in a job file it is a key", key=f"--{option}")
    found: list[tuple[str, JobSpec]] = []
    for file in files:
        specs, notes = load_jobs(file, os.environ)
        for text in notes:
            note(f"{file}: {text}")
        found += [(file, spec) for spec in specs]
    return found


def _hand_in(client: "Client", jobs: "Sequence[JobSpec]", job_id: str, hold: bool) -> list[dict[str, Any]]:
    from headway.app import live

    if len(jobs) == 1:
        return [live.submit(client, jobs[0], job_id=job_id, hold=hold)]
    return live.submit_many(client, [(job, "") for job in jobs], hold=hold)


def _is_taken(answer: dict[str, Any]) -> bool:
    """Whether the job of an answer was, or would be, taken in."""
    return bool(answer.get("state", "rejected") != "rejected")


def _merged(answer: dict[str, Any], job: dict[str, Any] | None) -> dict[str, Any]:
    """An answer with what has become of its job meanwhile."""
    return answer if job is None else {**answer, **{key: value for key, value in job.items() if key != "spec"}}


def _refusal(answer: dict[str, Any], file: str) -> str:
    """Why a job was not taken in."""
    place = f"{file}: " if file else ""
    if "error" in answer:
        return f"{place}{answer['error']}"
    who = f"{answer['job']} is rejected" if answer.get("job") else "it would be rejected"
    return f"{place}{who}: {answer['message']}"


def _would(answer: dict[str, Any]) -> str:
    """What would become of a job, in a line."""
    if not _is_taken(answer):
        return "would be rejected"
    told = answer.get("message") or ""
    return one_line("would be queued" + (f": {told}" if told else ""))


# -- staying with a job ----------------------------------------------------------------------------------------------
def _attend(client: "Client", job_id: str, *, quiet: bool) -> tuple[dict[str, Any], bool]:
    """Print a job's output until it has ended; the job then, and whether it was cancelled from here."""
    from headway.app import live
    from headway.app.logs import Follower

    told = ""

    def waits(job: dict[str, Any]) -> None:
        nonlocal told
        if job["reason"] and job["reason"] != told and not quiet:
            told = job["reason"]
            note(f"{job_id} waits ({told}); more: headway why {job_id}")

    def again(attempt: int) -> None:
        if not quiet:
            note(f"{job_id}: attempt {attempt}")

    follower = Follower(client, job_id, connect, waits=waits, again=again)
    cancelled = False
    while True:
        try:
            for chunk in follower.chunks():
                if not quiet:
                    sys.stdout.buffer.write(chunk)
                    sys.stdout.buffer.flush()
            return live.wait(client, job_id, connect), cancelled
        except KeyboardInterrupt:
            if cancelled:
                note(f"{job_id} is still being cancelled; not waiting for it")
                raise
            if _wants_cancel(job_id):
                live.cancel(client, job_id)
                cancelled = True
                note(f"{job_id} is being cancelled")


def _wants_cancel(job_id: str) -> bool:
    """Whether Ctrl-C is meant for the job: asks a person; a second Ctrl-C says yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    typer.echo(f"\nheadway: cancel {one_line(job_id)}? Ctrl-C again does, or [y/N]: ", nl=False, err=True)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        typer.echo("", err=True)
        return True
