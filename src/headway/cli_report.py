"""The command `headway report`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from headway.core.errors import UserError, one_line

ProgressBar = Callable[[], AbstractContextManager[Callable[[str], Callable[[float], None]] | None]]


def register(app: typer.Typer, progress_bar: ProgressBar) -> None:
    """Add the command to the command line; `progress_bar` shows progress on a terminal."""

    @app.command(short_help="Compare policies in one HTML file that needs no network.")
    def report(
        workload: Annotated[str, typer.Option("--workload", "-w", help="A trace file, or NAME[:key=value,…].", metavar="W")],
        cluster: Annotated[str, typer.Option("--cluster", "-c", help="NODESxGPUS, 'philly', or a YAML file.", metavar="C")],
        policy: Annotated[list[str], typer.Option("--policy", "-p", help="NAME[:key=value,…]; may be repeated.", metavar="P")],
        output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.", metavar="FILE")],
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
        """Replay a workload on a cluster under some policies, and write a report that compares them."""
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
