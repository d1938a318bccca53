"""The command `headway tune`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

ProgressBar = Callable[[], AbstractContextManager[Callable[[str], Callable[[float], None]] | None]]


def register(app: typer.Typer, progress_bar: ProgressBar) -> None:
    """Add the command to the command line; `progress_bar` shows progress on a terminal."""

    @app.command(short_help="Search a policy's parameters on development seeds.")
    def tune(
        policy: Annotated[str, typer.Argument(help="NAME[:key=value,…]; what is set here stays as it is.", metavar="POLICY")],
        out: Annotated[Path, typer.Option("--out", "-o", help="A folder for the log and the result.", metavar="DIR")],
        workload: Annotated[
            list[str] | None, typer.Option("--workload", "-w", help="May be repeated. [mlfs-paper:jobs=1860]", metavar="W")
        ] = None,
        cluster: Annotated[str, typer.Option("--cluster", "-c", help="As for simulate.", metavar="C")] = "20x4",
        objective: Annotated[
            str, typer.Option(help="A figure, or figure=weight,… (see the metrics).", metavar="O")
        ] = "avg_jct_s",
        trials: Annotated[int, typer.Option(help="Points to try, the defaults first.")] = 60,
        seeds: Annotated[str, typer.Option(help="Development seeds to tune on, 0 to 99.", metavar="A..B")] = "0..2",
        held_out: Annotated[str, typer.Option(help="Development seeds to check the best on.", metavar="A..B")] = "50..54",
        space: Annotated[
            list[str] | None, typer.Option(help="KEY=LOW..HIGH[:log] or KEY=a|b|c; may be repeated.", metavar="S")
        ] = None,
        seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
        wave: Annotated[int, typer.Option(help="Points that are proposed together.")] = 4,
        round_: Annotated[str, typer.Option("--round", help="Interval of rounds.", metavar="TIME")] = "60",
        workers: Annotated[int | None, typer.Option(help="Processes. [default: one for each core]")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    ) -> None:
        """Search a policy's parameters (Bayesian; needs headway[tune]). One that was stopped goes on with the same command."""
        from headway.app import tune as use_case

        datasets = os.environ.get("HEADWAY_DATASETS")
        request = use_case.TuneRequest(
            policy=policy.strip(),
            out=out,
            workloads=tuple(workload) if workload else (use_case.WORKLOAD,),
            cluster=cluster,
            objective=objective,
            trials=trials,
            seeds=seeds,
            held_out=held_out,
            space=tuple(space or ()),
            seed=seed,
            wave=wave,
            round=round_,
            workers=workers,
            datasets=Path(datasets) if datasets else None,
        )
        ready = use_case.prepare(request)
        if ready.space.left_out and not as_json:
            typer.echo(f"headway: not tuned, for want of a range (--space): {', '.join(ready.space.left_out)}", err=True)
        with progress_bar() as bar:
            told = bar(policy) if bar else None
            result = use_case.run(request, ready, tell=(lambda done, of, best: told(done / of)) if told else None)
        if as_json:
            typer.echo(json.dumps(result, indent=2, allow_nan=False))
        else:
            _print(result)


def _print(result: dict[str, Any]) -> None:
    typer.echo(f"best of {result['trials']}: {result['best']}")
    typer.echo(f"  {_better(result['score'])} {result['defaults']} on seeds {_listed(result['seeds'])}")
    if result["held_out_score"] is not None:
        typer.echo(f"  {_better(result['held_out_score'])} them on held-out seeds {_listed(result['held_out'])}:")
    for name, gain in result["checked_on"].items():
        low, high = gain["low_frac"], gain["high_frac"]
        interval = f" [{low:+.1%}, {high:+.1%}]" if low is not None else ""
        change = f"{gain['median_frac']:+.1%}{interval} {gain['verdict']}" if gain["median_frac"] is not None else ""
        typer.echo(f"    {name:<18} {gain['mean']:>12,.4g}  defaults {gain['defaults_mean']:>12,.4g}  {change}")


def _better(score: float) -> str:
    """A score in words."""
    return f"{abs(1 - score):.1%} {'better' if score <= 1 else 'worse'} than"


def _listed(seeds: list[int]) -> str:
    whole = seeds == list(range(seeds[0], seeds[-1] + 1)) and len(seeds) > 2
    return f"{seeds[0]}..{seeds[-1]}" if whole else ",".join(map(str, seeds))
