"""A controller that starts and stops: `headway up`, `headway down`. Thin, as `headway.cli`."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli_output import AsJson, connect, note, out, plural, print_json, print_json_line
from headway.core.errors import UserError

if TYPE_CHECKING:
    from headway.api.serve import Ready


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Start a controller on this machine.")(up)
    app.command(short_help="Stop the controller, not the jobs.")(down)


def up(
    config: Annotated[
        Path | None, typer.Option(help="Settings; default: headway.toml in HEADWAY_HOME, if there is one.", metavar="FILE")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option(help="Nodes on this machine and the slots of each; default: one, with all GPUs.", metavar="NODESxSLOTS"),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(min=0, help="Slots that stand for GPUs; default where there are none: one a core.", metavar="N")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option("--policy", "-p", help="NAME[:key=value,…], as `headway policies` lists; default: fifo.", metavar="P"),
    ] = None,
    shadow: Annotated[
        list[str] | None,
        typer.Option(help="A policy to simulate beside the one in force each hour; may be repeated.", metavar="P"),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="The address on which the API listens; default: 127.0.0.1.", metavar="ADDRESS")
    ] = None,
    port: Annotated[int | None, typer.Option(help="The port on which the API listens; default: a free one.")] = None,
    round_: Annotated[str | None, typer.Option("--round", help="Interval of rounds; default: 1s.", metavar="TIME")] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWAY_JOURNAL",
            help="A PostgreSQL database for the journal; default: a file in HEADWAY_HOME.",
            metavar="postgresql://…",
            show_envvar=False,
        ),
    ] = None,
    standby: Annotated[bool, typer.Option("--standby", help="Wait until no other controller lives, then take over.")] = False,
    lease: Annotated[
        str | None,
        typer.Option(help="How long a controller may be silent before a standby takes over; default: 4s.", metavar="TIME"),
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="In the background: return when it listens. `headway down` stops it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Start a controller on this machine and run jobs until Ctrl-C.

    Its state is in HEADWAY_HOME (default ~/.local/share/headway). Jobs outlive it: when it is started again, it goes on
    with them. Options stand above the settings of the file.
    """
    import asyncio

    from headway.api.serve import UpRequest, prepare, serve
    from headway.app.simulate import compiles_first
    from headway.runtime.home import find_home
    from headway.runtime.warm import warm_up

    logging.basicConfig(format="headway: %(message)s", level=logging.WARNING, stream=sys.stderr)
    home = find_home(os.environ)
    request = UpRequest(
        home=home, config=config, nodes=nodes, slots=slots, policy=policy, host=host, port=port, round=round_,
        journal=journal, standby=standby, lease=lease, shadows=tuple(shadow or ()),
    )  # fmt: skip
    prepared = prepare(request)
    if (detach or sys.stderr.isatty()) and compiles_first():
        note("compiling once, which takes a minute or two; later starts are quick")
    if detach:
        from headway.app import detach as background

        if standby:
            raise UserError("waits for as long as another controller lives: start it without --detach", key="--standby")
        given = {
            "config": config, "nodes": nodes, "slots": slots, "policy": policy, "host": host, "port": port, "round": round_,
            "lease": lease,
        }  # fmt: skip
        options = [f"--{key}={value}" for key, value in given.items() if value is not None]
        options += [f"--shadow={spec}" for spec in shadow or ()]
        # The journal's address may hold a password: it is handed over in the environment, which others can't list.
        started = background.start(options, home, note, {"HEADWAY_JOURNAL": journal or ""})
        _announce_detached(started, as_json)
        return
    warm_up(prepared.chosen.policy)
    live = asyncio.run(serve(prepared, _announce_json if as_json else _announce, note))
    if live:
        note(f"stopped; {plural(live, 'job')} left, and what runs goes on running; go on with: headway up")
    else:
        note("stopped; no jobs left")


def _announce(ready: "Ready") -> None:
    for line in ready.notes:
        note(line)
    for line in ready.engine:
        out(f"headway: {line}")
    slots = f"{plural(ready.nodes, 'node')}, {ready.slots} slots, policy {ready.policy}"
    out(f"headway: listening on {ready.url} ({slots})")
    out(f"headway: the token is in {ready.token_file}")
    if ready.live:
        out(f"headway: going on with {plural(ready.live, 'job')}")
    out("headway: Ctrl-C stops the controller, not the jobs")


def _announce_json(ready: "Ready") -> None:
    out(json.dumps(ready.to_json(), ensure_ascii=False))


def _announce_detached(started: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json_line(started)
        return
    for line in started["notes"]:
        note(line)
    slots = f"{plural(started['nodes'], 'node')}, {started['slots']} slots, policy {started['policy']}"
    out(f"headway: listening on {started['url']} ({slots})")
    out(f"headway: the token is in {started['token_file']}")
    out(f"headway: what it says goes to {started['log']}")
    if started["live_jobs"]:
        out(f"headway: going on with {plural(started['live_jobs'], 'job')}")
    out("headway: stop it with: headway down")


def down(
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it has stopped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the controller. Jobs that run go on running, those that wait are kept; `headway up` goes on with both."""
    from headway.app import live

    with connect() as client:
        jobs: dict[str, int] = live.status(client)["jobs"]
        live.stop(client)
        if wait:
            live.wait_gone(client)
    waiting = jobs.get("queued", 0)
    running = sum(jobs.values()) - waiting
    if as_json:
        print_json({"stopped": True, "url": client.url, "running": running, "queued": waiting})
        return
    parts = ([f"{plural(running, 'job')} go{'es' if running == 1 else ''} on running"] if running else []) + (
        [f"{plural(waiting, 'job')} wait{'s' if waiting == 1 else ''}"] if waiting else []
    )
    out(f"stopped: {', '.join(parts)}; go on with: headway up" if parts else "stopped: no jobs left")
