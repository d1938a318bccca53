"""`headway advise`: what another policy would have done with a Slurm cluster's own history. Thin, as `headway.cli`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.core.errors import UserError, one_line

GROUPS_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="What other policies would have done with Slurm's own history.")(advise)


def advise(
    slurm: Annotated[bool, typer.Option("--slurm", help="Ask the Slurm of this machine (only reads).")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", help="What `sacct -P` or `sacct --json` printed.", metavar="FILE")
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(help="NODESxGPUS, a cluster file, or what `sinfo -N` printed; else sinfo's, or by what ran.", metavar="C"),
    ] = "",
    since: Annotated[
        str | None, typer.Option(help="Only jobs submitted so long ago; with --slurm 7d, with --file all.", metavar="TIME")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option("--policy", "-p", help="NAME[:key=value,…]; may be repeated.", metavar="P")
    ] = None,
    by: Annotated[str, typer.Option(help="Groups of the table: user, account or queue.", metavar="BY")] = "user",
    queue: Annotated[str, typer.Option(help="What a queue is: partition, account or qos.", metavar="Q")] = "partition",
    tz: Annotated[str, typer.Option(help="Zone of the file's times, if they have no offset.", metavar="ZONE")] = "UTC",
    seed: Annotated[int, typer.Option(help="Seed of the policies.")] = 1,
    round_: Annotated[str, typer.Option("--round", help="Interval of rounds; 0: at every event.", metavar="TIME")] = "1",
    save_cost: Annotated[str, typer.Option(help="What stopping a job takes it.", metavar="TIME")] = "0",
    restart_cost: Annotated[str, typer.Option(help="What starting again takes a stopped job.", metavar="TIME")] = "30",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay a Slurm cluster's own jobs under other policies: waiting, completion times, GPU hours, by group.

    Reads only: accounting (sacct) and nodes (sinfo). Its own replay of what happened is held against what happened, and
    what it had to assume is listed.
    """
    from headway import cli
    from headway.app import advise as use_case

    if slurm == (file is not None):
        raise UserError("expected either --slurm or --file FILE" + (", got both" if slurm else ", got neither"), key="advise")
    request = use_case.AdviseRequest(
        file=file,
        nodes=nodes,
        since=since,
        policies=tuple(policy) if policy else use_case.POLICIES,
        by=by,
        queue=queue,
        tz=tz,
        seed=seed,
        round=round_,
        save_cost=save_cost,
        restart_cost=restart_cost,
    )
    prepared = use_case.prepare(request)
    if note := use_case.dropped_line(prepared.rebuilt.workload):
        cli._note(note)
    if sys.stderr.isatty() and use_case.compiles_first():
        cli._note("compiling once; later runs start at once")
    with cli._progress_bar() as progress:
        found = use_case.run(prepared, progress=progress)
    if as_json:
        cli._print_json(found)
    else:
        _print_advice(found)


def _print_advice(found: dict[str, Any]) -> None:
    from headway import cli

    cluster, error, replay = found["cluster"], found["replay_error"], found["replay_policy"]
    _out(
        f"{found['jobs']:,} jobs submitted from {found['first_submitted_at']} to {found['last_submitted_at']},"
        f" on {cluster['nodes']:,} nodes with {cluster['gpus']:,} GPUs ({cluster['name']})"
    )
    headers = ("", "avg\nwait", "p50\nwait", "p90\nwait", "avg\nJCT", "GPU\nhours", "stops", "wait", "JCT", "GPU h")
    cli._print_table(headers, list(_rows(found, replay, "what happened")), numbers=True)
    ratio = error["mean_jct_ratio"]
    _out(
        f"The replay under {replay} misses a job's real waiting time by {cli._time(error['p50_abs_wait_error_s'])} (median) and"
        f" {cli._time(error['p90_abs_wait_error_s'])} (90 %)"
        + ("" if ratio is None else f"; its mean JCT is {ratio:.2f} of the real one")
        + ". The last three columns are changes against this replay."
    )
    shown = found["groups"][:GROUPS_SHOWN]
    table = [
        row
        for group in shown
        for row in _rows(group, replay, f"{found['by']} {group['name']}, {_count(group['jobs'], 'job')}: what happened")
    ]
    cli._print_table(headers, table, numbers=True)
    if left := len(found["groups"]) - len(shown):
        _out(f"… and {left:,} more with fewer GPU hours (--json has all)")
    _out("Assumed:")
    for text in found["assumptions"]:
        _out(f"- {text}")


def _rows(of: dict[str, Any], replay: str, first: str) -> Iterator[tuple[str, ...]]:
    """What happened to some jobs, the replay of it, and each policy with its changes against that."""
    yield _row(first, of["recorded"], None)
    if replay not in of["policies"]:
        yield _row(f"  {replay} (replay)", of["replay"], None)
    for name, figures in of["policies"].items():
        again = name == replay
        yield _row(f"  {name}{' (replay)' if again else ''}", figures, None if again else figures["change"])


def _row(what: str, figures: dict[str, Any], change: dict[str, float] | None) -> tuple[str, ...]:
    from headway.cli import _time

    changes = ("", "", "")
    if change is not None:
        sign = "−" if change["gpu_hours"] < 0 else "+"
        changes = (_signed(change["avg_wait_s"]), _signed(change["avg_jct_s"]), sign + _hours(abs(change["gpu_hours"])))
    times = (_time(figures[key]) for key in ("avg_wait_s", "p50_wait_s", "p90_wait_s", "avg_jct_s"))
    return (what, *times, _hours(figures["gpu_hours"]), f"{figures['preemptions']:,}", *changes)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.2f}"


def _signed(seconds: float) -> str:
    from headway.cli import _time

    return ("−" if seconds < 0 else "+") + _time(abs(seconds))


def _out(text: str) -> None:
    typer.echo(one_line(text))
