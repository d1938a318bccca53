"""`headway replay`: what another policy would have done with what really happened. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.core.errors import one_line

ProgressBar = Callable[[], AbstractContextManager[Callable[[str], Callable[[float], None]] | None]]


def register(app: typer.Typer, progress_bar: ProgressBar) -> None:
    """Add the command to the command line; `progress_bar` shows progress on a terminal."""

    @app.command(short_help="What another policy would have done with what really happened.")
    def replay(
        policy: Annotated[list[str], typer.Option("--policy", "-p", help="NAME[:key=value,…]; may be repeated.", metavar="P")],
        home: Annotated[
            str | None,
            typer.Argument(
                help="A home of `headway up`, a journal's file, or postgresql://USER@HOST/DATABASE; default: HEADWAY_HOME.",
                metavar="HOME",
                show_default=False,
            ),
        ] = None,
        cluster: Annotated[
            str | None,
            typer.Option("--cluster", "-c", help="Another cluster: NODESxGPUS or a YAML file. [default: as it was]", metavar="C"),
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of policies.")] = 1,
        report: Annotated[Path | None, typer.Option(help="Write a page to this file.", metavar="FILE.html")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    ) -> None:
        """Replay what happened on a cluster under other policies, from its journal, also while its controller runs.

        Jobs come when they came and take as long as they took, with the curves that they told of. The policy that decided is
        replayed too, and how far that is from what happened is shown.
        """
        from headway.app import replay as use_case
        from headway.app.output import check_output, whole_or_nothing
        from headway.report.replay import page
        from headway.runtime.home import find_home

        if report is not None:
            check_output(report, replace=True, key="report")
        place = str(find_home(os.environ).root) if home is None else home
        request = use_case.ReplayRequest(home=place, policies=tuple(policy), cluster=cluster, seed=seed)
        ready = use_case.prepare(request)
        for note in ready.notes:
            typer.echo(f"headway: {one_line(note)}", err=True)
        with progress_bar() as bar:
            told = use_case.run(request, ready, progress=bar)
        if report is not None:
            with whole_or_nothing(report, "report") as path:
                path.write_text(page(told), "utf-8")
        if as_json:
            typer.echo(json.dumps(told, indent=2, allow_nan=False))
            return
        _print(told)
        if report is not None:
            typer.echo(one_line(str(report)))


def _print(told: dict[str, Any]) -> None:
    from headway import cli
    from headway.report.replay import COLUMNS, check_line, figures
    from headway.report.scale import NBSP

    found = [("as it happened", told["happened"]), *((entry["policy"], entry) for entry in told["policies"])]
    rows = [(name, *(cell.replace(NBSP, " ") for cell in figures(entry))) for name, entry in found]
    cli._print_table(("", *(head for head, _, _ in COLUMNS)), rows, numbers=True)
    typer.echo(one_line(check_line(told)))
