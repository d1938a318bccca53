"""`headway why`: why a job of a simulated run is, or is not, running. Thin, as `headway.cli`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway.core.errors import one_line


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Why a job is, or is not, running.")(why)


def why(
    job: Annotated[str, typer.Argument(help="The job's number or name.", metavar="JOB")],
    journal: Annotated[Path, typer.Option(help="What `headway simulate --journal` wrote.", metavar="FILE")],
    at: Annotated[str, typer.Option(help="The time in the run.", metavar="SECONDS")],
    policy: Annotated[
        str | None, typer.Option("--policy", "-p", help="Ask another policy than the run's: NAME[:key=value,…].", metavar="P")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say of one job at one time: its rank and every term of its priority, why it is (not) running, and what would help."""
    from headway.app import why as use_case
    from headway.app.why_text import text

    told = use_case.why(use_case.WhyRequest(job=job, journal=journal, at=at, policy=policy))
    if as_json:
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
        return
    for note in told["notes"]:
        typer.echo(f"headway: {one_line(note)}", err=True)
    typer.echo(text(told))
