"""The command line. Commands are thin: they read options, call `headway.app`, and print. Heavy modules are imported inside
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.core.errors import UserError, one_line

app = typer.Typer(
    help="A scheduler for shared clusters of training jobs that looks at the progress each job makes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TABLE_WIDTH = 140
WIDE = 100
# What Typer raises for a wrong command line: its classes have moved between versions, this one's parents have not.
USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
COMMAND_ERROR: type[Exception] = USAGE_ERROR.__bases__[0]


def _version(asked: bool) -> None:
    if asked:
        from headway import __version__

        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def simulate(
    workload: Annotated[str, typer.Option("--workload", "-w", help="A trace file, or NAME[:key=value,…].", metavar="W")],
    cluster: Annotated[str, typer.Option("--cluster", "-c", help="NODESxGPUS, 'philly', or a YAML file.", metavar="C")],
    policy: Annotated[list[str], typer.Option("--policy", "-p", help="NAME[:key=value,…]; may be repeated.", metavar="P")],
    seed: Annotated[int, typer.Option(help="Seed of generators, policies and faults.")] = 1,
    load: Annotated[
        str | None, typer.Option(help="Scale the gaps between submissions to this share of the cluster's GPU time.", metavar="X")
    ] = None,
    round_: Annotated[str, typer.Option("--round", help="Interval of rounds; 0: exact, at every event.", metavar="TIME")] = "60",
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
        str | None, typer.Option(help="What starting again takes a stopped job. [default: the workload's, or 30]", metavar="TIME")
    ] = None,
    checkpoint_every: Annotated[
        str | None,
        typer.Option(help="Interval of checkpoints (0: none). [default: the workload's, or 0]", metavar="TIME"),
    ] = None,
    estimate_scale: Annotated[
        str | None, typer.Option(help="Multiply the users' estimates by this; oracles are not misled.", metavar="X")
    ] = None,
    liars: Annotated[
        str | None, typer.Option(help="This share of the jobs reports twice (or F times) its progress.", metavar="FRAC[:F]")
    ] = None,
    no_skip: Annotated[bool, typer.Option("--no-skip", help="Hold every round, also where nothing can have changed.")] = False,
    journal: Annotated[Path | None, typer.Option(help="Write the run's journal to this file.", metavar="FILE")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a workload on a cluster under one or more policies, and compare them."""
    from headway.app import simulate as use_case

    datasets = os.environ.get("HEADWAY_DATASETS")
    request = use_case.SimulateRequest(
        workload=workload,
        cluster=cluster,
        policies=tuple(policy),
        seed=seed,
        load=load,
        round=round_,
        window=window,
        filter=filter_,
        save_cost=save_cost,
        restart_cost=restart_cost,
        checkpoint_every=checkpoint_every,
        estimate_scale=estimate_scale,
        liars=liars,
        skip=not no_skip,
        journal=journal,
        datasets=Path(datasets) if datasets else None,
    )
    prepared = use_case.prepare(request)
    for note in prepared.notes:
        _note(note)
    if sys.stderr.isatty() and use_case.compiles_first():
        _note("compiling once; later runs start at once")
    with _progress_bar() as progress:
        entries = list(use_case.run(request, prepared, progress=progress))
    if as_json:
        _print_json({"results": entries})
    else:
        _print_results(entries)


@app.command()
def policies(as_json: AsJson = False) -> None:
    """List the policies, and their parameters with the defaults."""
    from headway.app.simulate import policy_list

    listed = policy_list()
    if as_json:
        _print_json({"policies": listed})
        return
    rows = []
    for entry in listed:
        params = ", ".join(f"{key}={_param(of['default'])}" for key, of in entry["params"].items())
        rows.append((entry["name"], entry["description"], params))
    _print_table(("policy", "what it does", "parameters"), rows, numbers=False)


# -- output ---------------------------------------------------------------------------------------------------------
def _param(value: Any) -> str:
    """A parameter's value as it is written in a spec string."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _note(text: str) -> None:
    print(f"headway: {text}", file=sys.stderr, flush=True)


def _print_json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=2, allow_nan=False))


def _print_results(entries: list[dict[str, Any]]) -> None:
    headers = (
        "policy",
        "jobs",
        "avg\nJCT",
        "p50\nJCT",
        "p99\nJCT",
        "make-\nspan",
        "avg\nwait",
        "GPU\nbusy",
        "preemp-\ntions",
        "jobs/s",
    )
    rows = [
        (
            e["policy"],
            f"{e['jobs']:,}" if e["finished"] == e["jobs"] else f"{e['finished']:,} of {e['jobs']:,}",
            *(_time(e[key]) for key in ("avg_jct_s", "p50_jct_s", "p99_jct_s", "makespan_s", "avg_wait_s")),
            "-" if e["gpu_busy_frac"] is None else f"{e['gpu_busy_frac']:.1%}",
            f"{e['preemptions']:,}",
            f"{e['jobs'] / e['cpu_s']:,.0f}" if e["cpu_s"] else "-",
        )
        for e in entries
    ]
    _print_table(headers, rows, numbers=True)


def _print_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool) -> None:
    """A table on a terminal (of numbers: ten columns fit 80 characters); in a pipe the same, as wide as it needs to be."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    gap = 0 if console.width < WIDE else 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
    for i, header in enumerate(headers):
        table.add_column(header, justify="right" if numbers and i else "left", no_wrap=numbers and i > 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console.print(table)


def _time(seconds: float | None) -> str:
    """A duration to three or four figures, as a person compares them."""
    if seconds is None:
        return "-"
    for unit, per in (("d", 86_400.0), ("h", 3_600.0), ("m", 60.0)):
        if seconds >= 2 * per:
            return f"{seconds / per:,.1f}{unit}"
    return f"{seconds:.1f}s"


@contextmanager
def _progress_bar() -> Iterator[Callable[[str], Callable[[float], None]] | None]:
    """On a terminal, a bar for each policy on standard error; in a pipe, nothing."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

        def start(name: str) -> Callable[[float], None]:
            task = bars.add_task(one_line(name), total=1.0)
            return lambda done: bars.update(task, completed=done)

        yield start


# -- the way in -----------------------------------------------------------------------------------------------------
for kind in ("up", "submit", "queue", "verbs", "top", "operate", "token"):
    import_module(f"headway.cli_{kind}").register(app)
import_module("headway.cli_journal").register(app)
import_module("headway.cli_report").register(app, _progress_bar)
import_module("headway.cli_advise").register(app)
import_module("headway.cli_workload").register(app)
import_module("headway.cli_why").register(app)
import_module("headway.cli_replay").register(app, _progress_bar)
import_module("headway.cli_reproduce").register(app, _progress_bar)
import_module("headway.cli_tune").register(app, _progress_bar)
import_module("headway.cli_train").register(app, _progress_bar)


def main() -> None:
    """Run the command line of this process and exit: 0 done, 1 the job failed, 2 bad usage or input (one line says what), 130
    interrupted.
    """
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(arguments or ["--help"], prog_name="headway", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except UserError as error:
        _note(str(error))
        return 2
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except COMMAND_ERROR as error:
        context = getattr(error, "ctx", None)
        help_hint = f" (see '{context.command_path} --help')" if context is not None else ""
        message: str = error.format_message()  # type: ignore[attr-defined]
        _note(one_line(message.strip().rstrip(".")) + help_hint)
        return int(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
