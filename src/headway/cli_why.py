"""`headway why`: why a job is, or is not, running, live or in a recorded run. Thin, as `headway.cli`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from headway.core.errors import UserError, one_line


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="Why a job is, or is not, running, and when it will.")(why)


def why(
    job: Annotated[str, typer.Argument(help="The job's id; in a recorded run its number or name.", metavar="JOB")],
    journal: Annotated[
        Path | None,
        typer.Option(help="Ask about a recorded run: what `headway simulate --journal` wrote, or a journal.db.", metavar="FILE"),
    ] = None,
    at: Annotated[str | None, typer.Option(help="The time in the recorded run.", metavar="SECONDS")] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="Ask another policy than the recorded run's: NAME[:key=value,…].", metavar="P"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say of one job: its rank and every term of its priority, why it is (not) running, what would help, and when it will start.

    Without --journal the running controller is asked about now.
    """
    from headway.app import live
    from headway.app import why as use_case
    from headway.app.why_text import text

    if journal is None:
        for option, given in (("at", at), ("policy", policy)):
            if given is not None:
                raise UserError("is about a recorded run, and needs --journal FILE; without both, now is meant", key=option)
        told = live.why(live.connect(os.environ), job)
    elif at is None:
        raise UserError("a recorded run has many times: say which with --at SECONDS", key="at")
    else:
        told = use_case.why(use_case.WhyRequest(job=job, journal=journal, at=at, policy=policy))
    if as_json:
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
        return
    for note in told["notes"]:
        typer.echo(f"headway: {one_line(note)}", err=True)
    typer.echo(text(told))
