"""The commands of operators: `nodes`, `drain`, `undrain`, `reload`, `check-config`. Thin, as `headway.cli`."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli_output import AsJson, complete_node, connect, note_deciding, out, print_columns, print_json, refuse_all
from headway.core.errors import UserError, one_line

if TYPE_CHECKING:
    from headway.app.live import Client

Nodes = Annotated[
    list[str],
    typer.Argument(metavar="NODE…", help="Names of nodes, as `headway nodes` shows them.", autocompletion=complete_node),
]
NODE_COLUMNS = ("NODE", "STATE", "KIND", "GPUS", "FREE", "REASON")
NUMBERS = ("GPUS", "FREE")


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Nodes, and why one takes no jobs.")(nodes)
    app.command(short_help="Give nodes no more jobs.")(drain)
    app.command(short_help="Give drained nodes jobs again.")(undrain)
    app.command(short_help="Have the controller read headway.toml again.")(reload)
    app.command("check-config", short_help="Check headway.toml, and show what would be in force.")(check_config)


def nodes(as_json: AsJson = False) -> None:
    """Show the nodes: up, draining (what runs there runs on, nothing is started), or down; and why."""
    from headway.app import live

    with connect() as client:
        found = live.nodes(client)
    if as_json:
        print_json(found)
    else:
        _print_nodes(found["nodes"])
        note_deciding(found)


def drain(
    names: Nodes,
    reason: Annotated[str, typer.Option(help="Why, for people.", metavar="TEXT")] = "",
    as_json: AsJson = False,
) -> None:
    """Give nodes no more jobs until `headway undrain`; what runs there runs on. It holds over restarts and losses."""
    from headway.app import live

    _each(names, lambda client, name: live.drain(client, name, reason), as_json)


def undrain(names: Nodes, as_json: AsJson = False) -> None:
    """Give drained nodes jobs again; that also ends a quarantine. A node that is sick stays so until it is well."""
    from headway.app import live

    _each(names, live.undrain, as_json)


def reload(as_json: AsJson = False) -> None:
    """Have the controller read its settings again. A file with a mistake changes nothing, and is refused with its line."""
    from headway.app import live

    with connect() as client:
        found = live.reload(client)
    if as_json:
        print_json(found)
        return
    for key in found["changed"]:
        out(f"{one_line(key)}: in force")
    for key in found["restart"]:
        out(f"{one_line(key)}: at the next start of the controller")
    if not found["changed"] and not found["restart"]:
        out("nothing has changed")


def check_config(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Settings; default: headway.toml in HEADWAY_HOME.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check settings without touching anything, and show what would be in force."""
    from headway.app.operate import flat
    from headway.runtime.home import find_home
    from headway.runtime.settings import read_settings

    path = file or find_home(os.environ).settings_file
    settings = read_settings(path)
    if as_json:
        print_json({"file": str(path), "settings": settings.to_json()})
        return
    found = flat(settings)
    if "cluster.journal" in found:
        found["cluster.journal"] = "(set)"  # it may hold a password
    width = max(map(len, found))
    for key, value in sorted(found.items()):
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        out(f"{one_line(key):<{width}}  {'' if value == {} else one_line(shown)}".rstrip())


# -- output ---------------------------------------------------------------------------------------------------------
def _each(names: Sequence[str], act: "Callable[[Client, str], Any]", as_json: bool) -> None:
    """Do it for each node, show them, and tell in the end what could not be done."""
    from headway.app.live import NoControllerError

    done, errors = [], []
    with connect() as client:
        for name in names:
            try:
                done.append(act(client, name))
            except NoControllerError:
                raise
            except UserError as error:
                errors.append(str(error))
    if as_json:
        print_json({"nodes": done, "errors": errors})
    elif done:
        _print_nodes(done)
    refuse_all(errors)


def _print_nodes(found: Sequence[dict[str, Any]]) -> None:
    rows = [
        (node["node"], node["state"], node["gpu_kind"], str(node["gpus"]), str(node["gpus_free"]), "; ".join(node["reasons"]))
        for node in found
    ]
    print_columns(NODE_COLUMNS, rows, numbers=NUMBERS)
