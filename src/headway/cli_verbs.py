"""What is done to jobs: `headway cancel`, `hold`, `release`, `requeue`, `update`. Thin, as `headway.cli`."""

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from headway.cli_output import (
    AsJson,
    JobId,
    complete_job,
    complete_queue,
    connect,
    job_line,
    out,
    plural,
    print_json,
    refuse_all,
)
from headway.core.errors import UserError

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]…",
        help="Ids of jobs; with *, ? and [a-z] patterns of ids, quoted; - reads them from standard input.",
        autocompletion=complete_job,
        show_default=False,
    ),
]
All = Annotated[bool, typer.Option("--all", help="All jobs that wait or run, as far as you may.")]
User = Annotated[str, typer.Option("--user", help="All of this user.", metavar="NAME")]
Queue = Annotated[str, typer.Option("--queue", help="All in this queue.", metavar="NAME", autocompletion=complete_queue)]
State = Annotated[str, typer.Option("--state", help="All in these states, such as queued,running.", metavar="S,…")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask where several are meant.")]
NONE = ("none", "-")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="End jobs for good.")(cancel)
    app.command(short_help="Keep jobs from starting.")(hold)
    app.command(short_help="Let held jobs start.")(release)
    app.command(short_help="Send running jobs back to the queue.")(requeue)
    app.command(short_help="Change what a job asks for.")(update)


def cancel(
    jobs: Jobs = None, all_: All = False, user: User = "", queue: Queue = "", state: State = "", yes: Yes = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """End jobs for good; nothing happens to one that has ended."""
    _act("cancel", jobs, all_, user, queue, state, yes, as_json)


def hold(
    jobs: Jobs = None, all_: All = False, user: User = "", queue: Queue = "", state: State = "", yes: Yes = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Keep jobs from starting. One that runs goes on; if it is stopped, it does not start again before `headway release`."""
    _act("hold", jobs, all_, user, queue, state, yes, as_json)


def release(
    jobs: Jobs = None, all_: All = False, user: User = "", queue: Queue = "", state: State = "", yes: Yes = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Let held jobs start."""
    _act("release", jobs, all_, user, queue, state, yes, as_json)


def requeue(
    jobs: Jobs = None, all_: All = False, user: User = "", queue: Queue = "", state: State = "", yes: Yes = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Stop running jobs (they may save themselves) and have them wait again. That is no failure: no retry is spent."""
    _act("requeue", jobs, all_, user, queue, state, yes, as_json)


def _act(verb: str, jobs: list[str] | None, all_: bool, user: str, queue: str, state: str, yes: bool, as_json: bool) -> None:
    from headway.app import live

    by_rule = all_ or bool(user or queue or state)
    if by_rule and jobs:
        raise UserError("expected ids of jobs, or --all, --user, --queue and --state, not both")
    from_pipe = jobs == ["-"]
    named = _piped() if from_pipe else list(jobs or [])
    selection = live.Selection(jobs=tuple(named), all=all_, user=user, queue=queue, state=state)
    if not selection.by_rule and not named and not from_pipe:
        raise UserError(f"expected ids of jobs, or --all, --user, --queue or --state (see 'headway {verb} --help')")
    with connect() as client:
        ids = [] if selection.by_rule else live.expanded(client, selection)
        if (selection.by_rule or selection.patterns) and not yes and sys.stdin.isatty() and sys.stderr.isatty():
            several = live.count(client, selection) if selection.by_rule else len(ids)
            typer.confirm(f"headway: {verb} {plural(several, 'job')}?", abort=True, err=True)
        done = live.act_by_rule(client, verb, selection) if selection.by_rule else live.act(client, verb, ids)
    errors = [error["error"] for error in done["errors"]]
    if as_json:
        print_json({"jobs": done["jobs"], "errors": errors})
    else:
        for job in done["jobs"]:
            out(job_line(job))
        if not done["jobs"] and not errors:
            out("no jobs")
    refuse_all(errors)


def _piped() -> list[str]:
    """The ids in standard input, parted by blanks and ends of lines."""
    try:
        return sys.stdin.read().split()
    except UnicodeDecodeError:
        raise UserError("expected ids of jobs in UTF-8", key="-") from None


def update(
    job: JobId,
    priority: Annotated[str | None, typer.Option(help="0 to 100, higher first.", metavar="N")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When it should be done, from when it was handed in; or none.", metavar="TIME")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option("--time-limit", "-t", help="The longest it may run, over all attempts; or none.", metavar="TIME")
    ] = None,
    urgency: Annotated[str | None, typer.Option(help="1 to 10, as far as the user's budget goes.", metavar="N")] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", help="Where it waits.", metavar="NAME", autocompletion=complete_queue)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change what a job that waits or runs asks for."""
    from headway.app import live
    from headway.core.units import parse_duration, parse_int

    changes: dict[str, Any] = {}

    def take(key: str, value: str | None, parse: Callable[[str], Any], *, may_be_none: bool = False) -> None:
        if value is None:
            return
        if may_be_none and value.lower() in NONE:
            changes[key] = None
            return
        try:
            changes[key] = parse(value)
        except ValueError as error:
            raise UserError(str(error), key=f"--{key.replace('_', '-')}") from None

    def time(value: str) -> str:
        parse_duration(value)
        return value

    take("priority", priority, lambda value: parse_int(value, 0, 100))
    take("deadline", deadline, time, may_be_none=True)
    take("time_limit", time_limit, time, may_be_none=True)
    take("urgency", urgency, lambda value: parse_int(value, 1, 10))
    take("queue", queue, str)
    if not changes:
        raise UserError("expected something to change: --priority, --deadline, --time-limit, --urgency or --queue")
    with connect() as client:
        found = live.update(client, job, changes)
    if as_json:
        print_json(found)
        return
    shown = (f"{key.replace('_', ' ')} {'none' if value is None else value}" for key, value in changes.items())
    out(f"{job_line(found)}; {', '.join(shown)}")
