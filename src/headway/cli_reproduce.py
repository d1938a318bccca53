"""The command `headway reproduce`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated

import typer

from headway.core.errors import one_line

ProgressBar = Callable[[], AbstractContextManager[Callable[[str], Callable[[float], None]] | None]]


def register(app: typer.Typer, progress_bar: ProgressBar) -> None:
    """Add the command to the command line; `progress_bar` shows progress on a terminal."""
    group = typer.Typer(help="Run a paper's evaluation, and hold it against what the paper says.", no_args_is_help=True)
    app.add_typer(group, name="reproduce", short_help="Run a paper's evaluation, and hold it against what the paper says.")

    @group.callback()
    def papers() -> None:
        pass

    @group.command(short_help="MLFS (CoNEXT 2020).")
    def mlfs(
        out: Annotated[Path, typer.Option("--out", "-o", help="A folder for the runs and the report.", metavar="DIR")],
        protocol: Annotated[
            str, typer.Option(help="stress, literal, overload, several parted by commas, or all.", metavar="P")
        ] = "stress",
        loads: Annotated[str, typer.Option(help="Numbers of jobs.", metavar="N,N")] = "155,310,620,1240,1860",
        methods: Annotated[str, typer.Option(help="Methods parted by commas, or all.", metavar="M")] = "all",
        seeds: Annotated[
            int | None,
            typer.Option(help="How many judging seeds, from 100 on [10]; with --live, from 1 on [3].", show_default=False),
        ] = None,
        parts: Annotated[str, typer.Option(help="Of paper, equal, studies, split; or all.", metavar="PARTS")] = "all",
        large: Annotated[bool, typer.Option("--large", help="Also 58,663 and 117,325 jobs on 2,474 GPUs. Hours.")] = False,
        workers: Annotated[int | None, typer.Option(help="Processes. [default: one for each core]")] = None,
        live: Annotated[
            bool, typer.Option("--live", help="Real jobs on this machine, and how well the simulator foretells them.")
        ] = False,
        jobs: Annotated[int, typer.Option(help="With --live: jobs of each run.")] = 20,
        policies: Annotated[str, typer.Option(help="With --live: policies parted by commas.")] = "mlf-h+mlf-c,tiresias,fifo",
        slots: Annotated[int | None, typer.Option(help="With --live: slots. [default: one for each core]")] = None,
        scripts: Annotated[
            Path | None,
            typer.Option(help="With --live: where train.py is. [default: examples/jobs of the checkout]", metavar="DIR"),
        ] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the numbers of the report as JSON.")] = False,
    ) -> None:
        """Run MLFS' evaluation, and write a report that holds it against the paper. One that was stopped goes on."""
        if live:
            _live(out, jobs, policies, 3 if seeds is None else seeds, slots, scripts, as_json, progress_bar)
            return
        from headway.app import reproduce as use_case

        def listed(text: str, names: tuple[str, ...]) -> str:
            return ",".join(names) if text.strip() == "all" else text

        request = use_case.ReproduceRequest(
            out=out,
            protocols=listed(protocol, use_case.PROTOCOLS),
            loads=loads,
            methods=listed(methods, use_case.METHODS),
            parts=listed(parts, use_case.PARTS),
            seeds=10 if seeds is None else seeds,
            large=large,
            workers=workers,
        )
        ready = use_case.prepare(request)
        for note in ready.notes:
            typer.echo(f"headway: {one_line(note)}", err=True)
        with progress_bar() as bar:
            told = bar("runs") if bar else None
            _, numbers, files = use_case.run(request, ready, tell=(lambda done, of: told(done / of)) if told else None)
        if as_json:
            typer.echo(json.dumps(numbers, indent=2, allow_nan=False))
        else:
            for path in files:
                typer.echo(one_line(str(path)))


def _live(
    out: Path, jobs: int, policies: str, seeds: int, slots: int | None, scripts: Path | None, as_json: bool,
    progress_bar: ProgressBar,
) -> None:  # fmt: skip
    from headway.app import reproduce_live as use_case

    request = use_case.LiveRequest(out=out, jobs=jobs, policies=policies, seeds=seeds, slots=slots, scripts=scripts)
    ready = use_case.prepare(request)
    with progress_bar() as bar:
        told = bar("runs") if bar else None
        report, numbers, files = use_case.run(request, ready, tell=(lambda done, of: told(done / of)) if told else None)
    if as_json:
        typer.echo(json.dumps(numbers, indent=2, allow_nan=False))
        return
    typer.echo(report.verdict)
    for path in files:
        typer.echo(one_line(str(path)))
