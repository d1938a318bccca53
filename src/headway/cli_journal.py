"""`headway backup` and `headway restore`. Thin, as `headway.cli`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Address = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_JOURNAL",
        show_envvar=False,
        help="The PostgreSQL database of the journal; default: the file in HEADWAY_HOME.",
        metavar="postgresql://…",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Write the journal into one file, while the controller runs.")(backup)
    app.command(short_help="Make a journal from such a file, in an empty home.")(restore)


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")], journal: Address = "", as_json: AsJson = False
) -> None:
    """Write everything that the journal holds into one file, and read it back; a controller may run meanwhile."""
    from headway.app import backup as use_case
    from headway.runtime.home import find_home

    told = use_case.backup(use_case.journal_of(find_home(os.environ), journal), file)
    _tell(told, f"{told['events']:,} events in {told['segments']:,} segments, {told['bytes']:,} bytes", as_json)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `headway backup` has written.")],
    journal: Address = "",
    as_json: AsJson = False,
) -> None:
    """Make the journal from a backup, in a home (or a database) that has none. `headway up` then goes on from there."""
    from headway.app import backup as use_case
    from headway.runtime.home import find_home

    home = find_home(os.environ)
    told = use_case.restore(file, home, use_case.journal_of(home, journal))
    _tell(told, f"{told['journal']}: {told['events']:,} events in {told['segments']:,} segments; go on with: headway up", as_json)


def _tell(told: dict[str, Any], text: str, as_json: bool) -> None:
    typer.echo(json.dumps(told, indent=2) if as_json else text)
