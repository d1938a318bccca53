"""The command `headway report`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.core.errors import UserError, one_line

ProgressBar = Callable[[], AbstractContextManager[Callable[[str], Callable[[float], None]] | None]]


def register(app: typer.Typer, progress_bar: ProgressBar) -> None:
    """Add the command to the command line; `progress_bar` shows progress on a terminal."""

    @app.command(short_help="Compare policies in one HTML file that needs no network.")
    def report(
        workload: Annotated[
            str | None, typer.Option("--workload", "-w", help="A trace file, or NAME[:key=value,…].", metavar="W")
        ] = None,
        cluster: Annotated[
            str | None, typer.Option("--cluster", "-c", help="NODESxGPUS, 'philly', or a YAML file.", metavar="C")
        ] = None,
        policy: Annotated[
            list[str] | None, typer.Option("--policy", "-p", help="NAME[:key=value,…]; may be repeated.", metavar="P")
        ] = None,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")] = None,
        shadow: Annotated[
            bool, typer.Option("--shadow", help="Instead: the policy in force beside those of `headway up --shadow`.")
        ] = False,
        journal: Annotated[
            str | None,
            typer.Option(help="With --shadow: a home or a journal; default: HEADWAY_HOME.", metavar="FILE"),
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Seed of generators, policies and faults [1].")] = None,
        seeds: Annotated[
            str | None, typer.Option(help="Several seeds, such as 1..10: paired medians and intervals.", metavar="A..B")
        ] = None,
        load: Annotated[
            str | None,
            typer.Option(help="Scale the gaps between submissions to this share of the cluster's GPU time.", metavar="X"),
        ] = None,
        round_: Annotated[
            str, typer.Option("--round", help="Interval of rounds; 0: exact, at every event.", metavar="TIME")
        ] = "60",
        window: Annotated[
            str | None, typer.Option(help="Only jobs submitted in START..END after the first, e.g. 0..7d.", metavar="A..B")
        ] = None,
        filter_: Annotated[
            str | None, typer.Option("--filter", help="Only some jobs: queue=NAME,user=NAME,gpus>=8.", metavar="F")
        ] = None,
        save_cost: Annotated[
            str | None, typer.Option(help="What stopping a job takes it. [default: the workload's, or 0]", metavar="TIME")
        ] = None,
        restart_cost: Annotated[
            str | None,
            typer.Option(help="What starting again takes a stopped job. [default: the workload's, or 30]", metavar="TIME"),
        ] = None,
        checkpoint_every: Annotated[
            str | None,
            typer.Option(help="Interval of checkpoints (0: none). [default: the workload's, or 0]", metavar="TIME"),
        ] = None,
        no_skip: Annotated[
            bool, typer.Option("--no-skip", help="Hold every round, also where nothing can have changed.")
        ] = False,
        gantt: Annotated[
            str | None, typer.Option(help="The part of the run that the Gantt charts show; else its busiest.", metavar="A..B")
        ] = None,
        svg: Annotated[Path | None, typer.Option(help="Write the figures as SVG to this folder too.", metavar="DIR")] = None,
        png: Annotated[
            Path | None, typer.Option(help="Write the figures as PNG to this folder too (needs headway[report]).", metavar="DIR")
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the numbers of the report as JSON.")] = False,
    ) -> None:
        """Replay a workload on a cluster under some policies, and write a report that compares them.

        With --shadow: what the forked futures of a live cluster say of its policy and those beside it, from its journal.
        """
        if shadow:
            if workload is not None or cluster is not None or policy or output is not None:
                raise UserError("expected no workload, cluster, policy or output beside it", key="--shadow")
            _shadow(journal, as_json)
            return
        if journal is not None:
            raise UserError("expected --shadow beside it", key="--journal")
        given = {"--workload": workload, "--cluster": cluster, "--policy": policy, "--output": output}
        for name, value in given.items():
            if not value:
                raise typer.BadParameter(f"Missing option '{name}'.")
        assert workload and cluster and policy and output
        from headway.app import report as use_case
        from headway.app.simulate import SimulateRequest, compiles_first

        if seed is not None and seeds is not None:
            raise UserError("expected --seed or --seeds, not both", key="seeds")
        datasets = os.environ.get("HEADWAY_DATASETS")
        request = use_case.ReportRequest(
            simulate=SimulateRequest(
                workload=workload,
                cluster=cluster,
                policies=tuple(policy),
                seed=1 if seed is None else seed,
                load=load,
                round=round_,
                window=window,
                filter=filter_,
                save_cost=save_cost,
                restart_cost=restart_cost,
                checkpoint_every=checkpoint_every,
                skip=not no_skip,
                datasets=Path(datasets) if datasets else None,
            ),
            output=output,
            seeds=seeds,
            gantt=gantt,
            svg=svg,
            png=png,
        )
        ready = use_case.prepare(request)
        for note in ready.prepared.notes:
            _note(note)
        if sys.stderr.isatty() and compiles_first():
            _note("compiling once; later runs start at once")
        with progress_bar() as progress:
            made = use_case.make(request, ready, progress=progress)
        use_case.write(made)
        if as_json:
            typer.echo(json.dumps(made.json, indent=2, allow_nan=False))
        else:
            for path in made.files:
                typer.echo(one_line(str(path)))


def _note(text: str) -> None:
    typer.echo(f"headway: {text}", err=True)


def _shadow(journal: str | None, as_json: bool) -> None:
    from headway import cli_output
    from headway.app.shadow_report import shadow_report
    from headway.runtime.home import find_home

    told = shadow_report(str(find_home(os.environ).root) if journal is None else journal)
    if as_json:
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
        return
    if told["message"]:
        cli_output.out(told["message"])
    for pair in told["summary"]:
        _print_pair(pair, [row for row in told["hours"] if (row["policy"]["policy"], row["other"]["policy"]) == _names(pair)])
    left_out = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in told["skipped"].items() if count)
    if left_out:
        cli_output.out(f"left out: {left_out}")
    for switch in told["guard"]:
        cli_output.out(f"{_at(switch)}  {switch['why']}")
    if told["covered_rounds"]:
        cli_output.out(f"{cli_output.plural(told['covered_rounds'], 'round')} decided by the teacher in place of the policy")


def _names(pair: dict[str, Any]) -> tuple[str, str]:
    return pair["policy"], pair["other"]


def _at(row: dict[str, Any]) -> str:
    return row["at"][:16].replace("T", " ") if row["at"] else f"{row['at_s']:,.0f} s"


def _print_pair(pair: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Two policies: an hour a line, each figure as `policy / other`; then the differences."""
    from headway import cli_output

    def both(row: dict[str, Any], key: str, form: Callable[[float], str]) -> str:
        return f"{form(row['policy'][key])} / {form(row['other'][key])}"

    count: Callable[[float], str] = "{:.4g}".format
    cli_output.out(f"{pair['policy']} / {pair['other']} ({pair['role']}), {cli_output.plural(pair['hours'], 'comparison')}")
    cli_output.print_columns(
        ("AT", "JOBS", "REWARD", "DONE", "JCT", "WAIT", "IN-TIME", "PREEMPTED"),
        [
            (
                _at(row), str(row["jobs"]), both(row, "reward", "{:.3f}".format), both(row, "completed", count),
                both(row, "avg_jct_s", cli_output.duration), both(row, "avg_wait_s", cli_output.duration),
                both(row, "deadlines_kept", count), both(row, "preemptions", count),
            )
            for row in rows
        ],
        numbers=("JOBS", "REWARD", "DONE", "JCT", "WAIT", "IN-TIME", "PREEMPTED"),
    )  # fmt: skip
    for figure, found in pair["differences"].items():
        interval = "" if found["low"] is None else f" [{found['low']:+.4g}, {found['high']:+.4g}]"
        cli_output.out(f"  {figure:<15} {found['median']:+.4g}{interval}  {found['verdict']}")
