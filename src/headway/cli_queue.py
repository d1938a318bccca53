"""Looking at jobs: `headway queue`, `show`, `logs`, `events`. Thin, as `headway.cli`."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli_output import (
    AsJson,
    JobId,
    columns,
    complete_job,
    complete_queue,
    connect,
    cut,
    duration,
    note,
    note_deciding,
    number,
    out,
    percent,
    plural,
    print_json,
    print_json_line,
    short,
    where,
)
from headway.core.errors import UserError, did_you_mean, one_line, shown

if TYPE_CHECKING:
    from headway.app.live import Client

INTERVAL_S = 2.0
LAST = 1_000


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Jobs that wait and run.")(queue)
    app.command(short_help="All about one job.")(show)
    app.command(short_help="The output of a job.")(logs)
    app.command(short_help="What happens in the cluster, as it is written into the journal.")(events)


# -- queue -----------------------------------------------------------------------------------------------------------
Job = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of the queue: what stands above it, what it shows of a job, and whether it is aligned as numbers are."""

    header: str
    show: Callable[[Job], str]
    right: bool = False


def _text(key: str) -> Callable[[Job], str]:
    return lambda job: "" if job.get(key) is None else str(job[key])


def _time(key: str) -> Callable[[Job], str]:
    return lambda job: duration(job.get(key))


def _step(job: Job) -> str:
    if job.get("total"):
        return f"{job['steps'] or 0}/{job['total']}"
    return "-" if job["steps"] is None else str(job["steps"])


def _done(job: Job) -> str:
    return percent(min((job["steps"] or 0) / job["total"], 1.0) if job.get("total") else None)


FIELDS = {
    "job": _Column("JOBID", _text("job")),
    "number": _Column("NUMBER", _text("number"), True),
    "name": _Column("NAME", _text("name")),
    "group": _Column("GROUP", _text("group")),
    "queue": _Column("QUEUE", _text("queue")),
    "user": _Column("USER", _text("user")),
    "st": _Column("ST", short),
    "state": _Column("STATE", _text("state")),
    "reason": _Column("REASON", _text("reason")),
    "held": _Column("HELD", lambda job: "yes" if job.get("held") else "no"),
    "priority": _Column("PRI", _text("priority"), True),
    "urgency": _Column("URG", _text("urgency"), True),
    "attempt": _Column("ATT", _text("attempt"), True),
    "preemptions": _Column("PRE", _text("preemptions"), True),
    "time": _Column("TIME", _time("run_s"), True),
    "limit": _Column("LIMIT", _time("time_limit_s"), True),
    "wait": _Column("WAIT", _time("wait_s"), True),
    "gpus": _Column("GPUS", _text("gpus"), True),
    "tasks": _Column("TASKS", _text("tasks"), True),
    "step": _Column("STEP", _step, True),
    "done": _Column("DONE", _done, True),
    "saved": _Column("SAVED", _text("saved_step"), True),
    "loss": _Column("LOSS", lambda job: number(job["loss"]), True),
    "accuracy": _Column("ACC", lambda job: percent(job["accuracy"]), True),
    "goal": _Column("GOAL", lambda job: percent(job.get("goal_accuracy")), True),
    "eta": _Column("ETA", _time("eta_s"), True),
    "submitted": _Column("SUBMITTED", _text("submitted_at")),
    "started": _Column("STARTED", _text("started_at")),
    "ended": _Column("ENDED", _text("ended_at")),
    "deadline": _Column("DEADLINE", _text("deadline_at")),
    "exit": _Column("EXIT", _text("exit_code"), True),
    "nodes": _Column("NODES", lambda job: ",".join(job["nodes"])),
    "where": _Column("NODES(REASON)", where),
}
"""What `--format` may ask for."""
USUAL = ("job", "name", "queue", "user", "st", "time", "gpus", "where")
LONG = ("job", "name", "queue", "user", "st", "priority", "time", "wait", "gpus", "step", "loss", "accuracy", "eta", "where")


def queue(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also jobs that have ended.")] = False,
    state: Annotated[str, typer.Option(help="Only jobs in these states, such as queued,running.", metavar="S,…")] = "",
    queue_: Annotated[
        str, typer.Option("--queue", help="Only jobs of this queue.", metavar="NAME", autocompletion=complete_queue)
    ] = "",
    user: Annotated[str, typer.Option(help="Only jobs of this user.", metavar="NAME")] = "",
    group: Annotated[str, typer.Option(help="Only jobs of this group.", metavar="NAME")] = "",
    long: Annotated[bool, typer.Option("--long", "-l", help="Also priority, steps, loss, accuracy, and time left.")] = False,
    format_: Annotated[
        str, typer.Option("--format", "-o", help="These columns, such as job,state,step,eta.", metavar="COLUMN,…")
    ] = "",
    header: Annotated[bool, typer.Option("--header/--no-header", help="Whether columns have their names above them.")] = True,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the newest, and all that run.")] = 1000,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.", metavar="SECONDS")] = INTERVAL_S,
    as_json: AsJson = False,
) -> None:
    """Show the jobs that wait and run (with --all also those that have ended)."""
    from headway.app import live

    fields = _fields(format_) if format_ else LONG if long else USUAL
    states = [word.strip() for word in state.split(",")] if state else [] if all_ else ["live"]

    with connect() as client:

        def look() -> dict[str, Any]:
            return live.queue_with_running(client, states=states, name=queue_, user=user, group=group, limit=limit)

        if not watch:
            found = look()
            if as_json:
                print_json(found)
                return
            for line in _table(found["jobs"], fields, header):
                typer.echo(line)
            sys.stdout.flush()
            note_deciding(found)
            if found["more"]:
                note(f"{found['more']} older jobs are not shown (see --limit)")
        elif as_json:
            for found in _again(look, interval):
                print_json_line(found)
        else:
            _watch(lambda found: _table(found["jobs"], fields, header), look, interval)


def _fields(text: str) -> list[str]:
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in FIELDS:
            hint = did_you_mean(word, FIELDS) or f"; known: {', '.join(FIELDS)}"
            raise UserError(f"unknown column {shown(word)}{hint}", key="--format")
    return words


def _table(jobs: Sequence[Job], fields: Sequence[str], header: bool) -> list[str]:
    wanted = [FIELDS[name] for name in fields]
    rows = [[column.show(job) for column in wanted] for job in jobs]
    if not rows and not header:
        return []
    headers = [column.header for column in wanted]
    return columns(headers, rows, numbers=[column.header for column in wanted if column.right], header=header)


def _again(look: Callable[[], dict[str, Any]], interval_s: float) -> Iterator[dict[str, Any]]:
    """What there is to see, again and again until Ctrl-C."""
    try:
        while True:
            yield look()
            _pause(interval_s)
    except KeyboardInterrupt:
        return


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def _watch(lines: Callable[[dict[str, Any]], list[str]], look: Callable[[], dict[str, Any]], interval_s: float) -> None:
    """Show lines that change: on a terminal in place, in a pipe one below the other."""
    if not sys.stdout.isatty():
        for found in _again(look, interval_s):
            out("\n".join([*lines(found), ""]))
        return
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as display:
        for found in _again(look, interval_s):
            table = lines(found)
            live_jobs = f"{plural(len(table) - 1, 'job')}; every {interval_s:g} s, Ctrl-C ends"
            display.update(Text("\n".join([live_jobs, "", *table]), no_wrap=True, overflow="ellipsis"), refresh=True)


# -- one job ---------------------------------------------------------------------------------------------------------
def show(job: JobId, as_json: AsJson = False) -> None:
    """Show all about one job."""
    from headway.app import live

    with connect() as client:
        found = live.show(client, job)
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        if key == "spec":
            key, value = "command", value.get("run", "").strip()
        if value not in (None, "", [], {}):
            out(f"{key:<14}{one_line(_shown(key, value))}")
    if found["state"] == "queued":
        note(f"why it waits: headway why {found['job']}")


def _shown(key: str, value: Any) -> str:
    if key == "node_places":
        return ", ".join(f"{place['node']}: {' '.join(map(str, place['gpus']))}" for place in value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if key.endswith("_s") else str(value)


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="Which of its tasks.")] = 0,
    all_ranks: Annotated[bool, typer.Option("--all-ranks", help="All its tasks, each line with its rank before it.")] = False,
    attempt: Annotated[int, typer.Option(min=0, help="Which attempt; 0: the newest.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the output of one task of a job, as it was written; or of all tasks."""
    from headway.app import logs as use_case

    if all_ranks and rank:
        raise UserError("is one of all ranks: leave one of the two out", key="--rank")
    with connect() as client:

        def source(number: int, of: "Client") -> Iterator[bytes]:
            if follow:
                return use_case.Follower(of, job, connect, rank=number, attempt=attempt).chunks()
            return use_case.output(of, job, rank=number, attempt=attempt)

        if all_ranks:
            _all_ranks(client, job, source, as_json)
        elif as_json:
            print_json({"job": job, "rank": rank, "output": b"".join(source(rank, client)).decode("utf-8", "replace")})
        else:
            for chunk in source(rank, client):
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()


def _all_ranks(client: "Client", job: str, source: "Callable[[int, Client], Iterator[bytes]]", as_json: bool) -> None:
    from contextlib import ExitStack

    from headway.app import live
    from headway.app import logs as use_case

    ranks = use_case.ranks_of(live.show(client, job))
    with ExitStack() as stack:
        # One connection for each: while one of them finds a controller that has been restarted, the others go on.
        lines = use_case.merged([source(rank, stack.enter_context(connect())) for rank in ranks])
        width = len(str(len(ranks) - 1))
        outputs: dict[int, list[str]] = {rank: [] for rank in ranks}
        for rank, line in lines:
            if as_json:
                outputs[rank].append(line + "\n")
            else:
                out(f"{rank:>{width}}: {line}")
    if as_json:
        print_json({"job": job, "ranks": [{"rank": rank, "output": "".join(found)} for rank, found in outputs.items()]})


# -- events ----------------------------------------------------------------------------------------------------------
def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    since: Annotated[int | None, typer.Option(min=0, help="What came after this number; 0: all.", metavar="SEQ")] = None,
    last: Annotated[int, typer.Option(min=0, help="Of the newest so many entries of the journal.", metavar="N")] = LAST,
    job: Annotated[str, typer.Option(help="Only of this job.", metavar="JOB", autocompletion=complete_job)] = "",
    kinds: Annotated[str, typer.Option(help="Only these kinds, such as started,failed; all: all.", metavar="KIND,…")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, an object on each line.")] = False,
) -> None:
    """Show what has happened to jobs and nodes, as the journal says it, and with -f what happens."""
    from headway.app import live

    with connect() as client:
        if since is None:
            since = max(live.status(client)["events"] - last, 0)
        try:
            for event in live.events(client, since=since, follow=follow, kinds=kinds):
                if job and event["job"] != job:
                    continue
                if as_json:
                    print_json_line(event)
                else:
                    out(_event_line(event))
        except KeyboardInterrupt:
            if not follow:
                raise


def _event_line(event: Mapping[str, Any]) -> str:
    """One event: its number, time, kind, whom it is about, and what there is to say."""
    when = (event["t"] or "-")[:19].replace("T", " ")
    attempt = f"attempt {event['attempt']}" if event["job"] and event["attempt"] else ""
    figures = [f"{key} {event[key]:.6g}" for key in ("step", "loss", "accuracy") if event.get(key) is not None]
    rest = "  ".join(part for part in (attempt, event["reason"], *figures, event["message"]) if part)
    who = event["job"] or event["node"] or "-"
    return one_line(f"{event['seq']:>7}  {when}  {event['kind']:<16}  {cut(who):<16}  {rest}".rstrip())
