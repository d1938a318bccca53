"""The cluster at a glance: `headway top`. Thin, as `headway.cli`."""

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headway.cli_output import AsJson, connect, cut, duration, number, out, percent, plural, print_json, short
from headway.core.errors import one_line

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from headway.app.live import Client

INTERVAL_S = 1.0
HEAD = 5
"""Jobs of the queue's head that are shown."""
RUNNING_SHOWN = 40
NODES_SHOWN = 64
PIPE_WIDTH = 110
BAR_CELLS = 12
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green", "bright_yellow")
FREE, TAKEN, DOWN = "·", "■", "×"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command(short_help="The cluster at a glance, live.")(top)


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once, as it is.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds from one look to the next.", metavar="SECONDS")] = INTERVAL_S,
    as_json: AsJson = False,
) -> None:
    """Show the nodes with what runs on each of their slots, the jobs that run with how far they are, and the head of the queue.

    It is drawn again and again until Ctrl-C; once with --once, --json, or in a pipe.
    """
    with connect() as client:
        if as_json:
            print_json(look(client))
        elif once or not sys.stdout.isatty():
            _print(frame(look(client)))
        else:
            _live(client, interval)


def look(client: "Client") -> dict[str, Any]:
    """What there is to see: the controller in figures, its nodes, jobs that hold nodes, and the head of the queue."""
    from headway.app import live

    status = live.status(client)
    waiting = int(status["jobs"].get("queued", 0))
    return {
        "status": status,
        "nodes": live.nodes(client)["nodes"],
        "running": live.queue(client, states=live.RUNNING, limit=live.PAGE)["jobs"],
        "queued": live.queue(client, states=["queued"], limit=HEAD, oldest=True)["jobs"] if waiting else [],
        "waiting": waiting,
    }


def _live(client: "Client", interval_s: float) -> None:
    from rich.live import Live

    try:
        with Live(screen=True, auto_refresh=False) as display:
            while True:
                display.update(frame(look(client)), refresh=True)
                time.sleep(interval_s)
    except KeyboardInterrupt:
        return


def _print(found: "Group") -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as printed:
        console.print(found)
    for line in printed.get().splitlines():
        out(line.rstrip())


def frame(found: Mapping[str, Any]) -> "Group":
    """One picture of the cluster."""
    from rich.console import Group
    from rich.text import Text

    running: Sequence[Mapping[str, Any]] = found["running"]
    colours = {job["job"]: COLOURS[job["number"] % len(COLOURS)] for job in running}
    parts: list[RenderableType] = [_summary(found), Text(), _slots(found["nodes"], running, colours)]
    if running:
        parts += [Text(), _running(running[-RUNNING_SHOWN:], colours)]
        if len(running) > RUNNING_SHOWN:
            parts.append(Text(f"and {len(running) - RUNNING_SHOWN} more that run", style="dim"))
    if found["queued"]:
        parts += [Text(), _head(found["queued"])]
    if (more := found["waiting"] - len(found["queued"])) > 0:
        parts.append(Text(f"and {more} more that wait" if found["queued"] else f"{more} that wait", style="dim"))
    return Group(*parts)


def _summary(found: Mapping[str, Any]) -> "Text":
    from rich.text import Text

    status = found["status"]
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("headway", style="bold")
    when = (status["now"] or "")[11:19]
    text.append(one_line(f"  {status['policy']}  {status['url']}  {when}  "))
    text.append(f"{status['gpus_used']}/{status['gpus']} slots", style="bold")
    text.append(f"  {plural(len(found['running']), 'job')} on nodes, {found['waiting']} waiting")
    if status["nodes_up"] < status["nodes"]:
        text.append(f"  {status['nodes'] - status['nodes_up']} of {status['nodes']} nodes not up", style="bold red")
    return text


def _slots(nodes: Sequence[Mapping[str, Any]], running: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> "Table":
    """Each node as a row of slots, each in the colour of the job that has it."""
    from rich.table import Table
    from rich.text import Text

    holders: dict[tuple[str, int], str] = {}
    on_node: dict[str, list[str]] = {}
    for job in running:
        for place in job.get("node_places") or ():
            on_node.setdefault(place["node"], []).append(job["job"])
            for gpu in place["gpus"]:
                holders[place["node"], gpu] = job["job"]
    table = Table.grid(padding=(0, 2, 0, 0))
    for node in nodes[:NODES_SHOWN]:
        cells = Text()
        for slot in range(node["gpus"]):
            holder = holders.get((node["node"], slot))
            if holder is not None:
                cells.append(TAKEN, style=colours[holder])
            else:
                cells.append(DOWN if node["state"] == "down" else FREE, style="dim")
        jobs = Text(no_wrap=True, overflow="ellipsis")
        for name in on_node.get(node["node"], ()):
            jobs.append(cut(name, 24) + " ", style=colours[name])
        state = "" if node["state"] == "up" else "; ".join([node["state"], *node["reasons"]])
        jobs.append(one_line(state), style="red")
        table.add_row(Text(cut(node["node"], 20)), cells, jobs)
    if len(nodes) > NODES_SHOWN:
        table.add_row(Text(f"and {len(nodes) - NODES_SHOWN} more", style="dim"))
    return table


def _running(jobs: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> "Table":
    from rich.text import Text

    table = _table(("JOB", False), ("ST", False), ("TIME", True), ("SLOTS", True), ("STEP", True), ("", False), ("LOSS", True),
                   ("ACC", True), ("ETA", True))  # fmt: skip
    for job in jobs:
        total, steps = job.get("total"), job["steps"] or 0
        step = f"{steps}/{total}" if total else "-" if job["steps"] is None else str(steps)
        table.add_row(
            Text(cut(job["job"]), style=colours[job["job"]]), short(job), duration(job["run_s"]),
            str(job["gpus"]), step, Text(_bar(steps / total) if total else "", style=colours[job["job"]]), number(job["loss"]),
            percent(job["accuracy"]), duration(job.get("eta_s")),
        )  # fmt: skip
    return table


def _bar(share: float) -> str:
    full = round(max(0.0, min(share, 1.0)) * BAR_CELLS)
    return "━" * full + "╌" * (BAR_CELLS - full)


def _head(jobs: Sequence[Mapping[str, Any]]) -> "Table":
    from rich.text import Text

    table = _table(
        ("WAITING", False), ("QUEUE", False), ("USER", False), ("PRI", True), ("SLOTS", True), ("WAIT", True), ("WHY", False)
    )
    for job in jobs:
        table.add_row(
            Text(cut(job["job"])), Text(cut(job["queue"])), Text(cut(job["user"])), str(job.get("priority", "")),
            str(job["gpus"]), duration(job["wait_s"]), Text(one_line(job["reason"])),
        )  # fmt: skip
    return table


def _table(*columns: tuple[str, bool]) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for header, right in columns:
        table.add_column(header, justify="right" if right else "left", no_wrap=True)
    return table
