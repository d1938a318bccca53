"""The command `headway train`. Thin, as those of `headway.cli`."""

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

    @app.command(short_help="Train a policy network in the simulator.")
    def train(
        kind: Annotated[str, typer.Argument(help="mlf-rl, or rl-placement.", metavar="KIND")],
        out: Annotated[Path, typer.Option("--out", "-o", help="A folder for the model and its checkpoints.", metavar="DIR")],
        workload: Annotated[
            list[str] | None, typer.Option("--workload", "-w", help="To train on, as for simulate; may be repeated.", metavar="W")
        ] = None,
        cluster: Annotated[str, typer.Option("--cluster", "-c", help="As for simulate.", metavar="C")] = "20x4",
        policy: Annotated[
            list[str] | None,
            typer.Option(
                "--policy", "-p", help="KIND[:sharing=false][+mlf-c:…]: how it is to decide; may be repeated.", metavar="P"
            ),
        ] = None,
        journal: Annotated[
            str | None,
            typer.Option("--from", help="Imitate what this journal's policy decided: a home, a file or a database.", metavar="J"),
        ] = None,
        teacher: Annotated[str, typer.Option(help="mlf-h[:key=value,…], such as mlf-h:tuned=true.", metavar="T")] = "mlf-h",
        phases: Annotated[
            str, typer.Option(help="Some of imitate, reinforce, ppo, pgpe, in turn.", metavar="P,…")
        ] = "imitate,pgpe",
        minutes: Annotated[float, typer.Option(help="A budget of time.")] = 60.0,
        iterations: Annotated[int | None, typer.Option(help="At most so many of each phase.")] = None,
        seeds: Annotated[str, typer.Option(help="Development seeds to train on, 0 to 99.", metavar="A..B")] = "0..3",
        held_out: Annotated[str, typer.Option(help="Development seeds to judge on.", metavar="A..B")] = "50..53",
        objective: Annotated[str, typer.Option(help="reward, or figure=weight,… beside the teacher's.", metavar="O")] = "reward",
        betas: Annotated[
            str | None, typer.Option(help="Five weights of the reward. [default: the paper's]", metavar="B,…")
        ] = None,
        raw: Annotated[bool, typer.Option("--raw", help="The reward's terms as the paper has them, not as rates.")] = False,
        start: Annotated[Path | None, typer.Option(help="A model to begin with.", metavar="DIR")] = None,
        scope: Annotated[str, typer.Option(help="What PGPE searches: skip, skips, last or lasts.", metavar="S")] = "skip",
        sigma: Annotated[float, typer.Option(help="PGPE: how far it looks at first.")] = 0.3,
        rate: Annotated[float, typer.Option(help="PGPE: its steps, as a share of that.")] = 0.3,
        pairs: Annotated[int, typer.Option(help="PGPE: pairs of rollouts in an iteration.")] = 6,
        rollouts: Annotated[int, typer.Option(help="REINFORCE, PPO: rollouts of the same jobs in an iteration.")] = 10,
        judge_every: Annotated[int, typer.Option(help="Iterations between two looks at held-out jobs.")] = 5,
        seed: Annotated[int, typer.Option(help="Seed of the training.")] = 0,
        search_beta: Annotated[
            bool, typer.Option("--search-beta", help="Search the reward's weights instead: 15 short trainings.")
        ] = False,
        workers: Annotated[int | None, typer.Option(help="Processes. [default: one for each core]")] = None,
        as_json: Annotated[bool, typer.Option("--json", help="Print the model's manifest as JSON.")] = False,
    ) -> None:
        """Train a policy network in the simulator (needs headway[learn]). One that was stopped goes on with the same command."""
        from headway.app import train as use_case

        datasets = os.environ.get("HEADWAY_DATASETS")
        request = use_case.TrainRequest(
            kind=kind.strip(), out=out, workloads=tuple(workload or ()), cluster=cluster, policies=tuple(policy or ()),
            teacher=teacher, phases=phases, seeds=seeds, held_out=held_out, seed=seed, minutes=minutes, iterations=iterations,
            objective=objective, betas=betas, raw=raw, start=start, journal=journal, scope=scope, sigma=sigma, rate=rate,
            pairs=pairs, rollouts=rollouts, judge_every=judge_every, workers=workers,
            datasets=Path(datasets) if datasets else None,
        )  # fmt: skip
        ready = use_case.prepare(request)
        with progress_bar() as bar:
            told = bar(kind) if bar else None
            work = use_case.search_beta if search_beta else use_case.run
            result = work(request, ready, tell=(lambda share, facts: told(share)) if told else None)
        if as_json:
            typer.echo(json.dumps(result, indent=2, allow_nan=False))
        elif search_beta:
            typer.echo(f"best of {len(result['candidates'])}: --betas {','.join(f'{beta:.3g}' for beta in result['best'])}")
            typer.echo(f"  {result['score']:.4f} by equal weights on the five terms; the paper's: {result['paper'] or 0:.4f}")
        else:
            _print(result)


def _print(result: dict[str, Any]) -> None:
    scores, switch = result["scores"], result["switch"]
    typer.echo(f"{result['kind']} in {result['out']}: {result['iterations']} iterations, {result['minutes']:.1f} min")
    typer.echo("  beside its teacher on held-out seeds (above 0: better):")
    for name, gain in scores["gains"].items():
        typer.echo(f"    {name:<16} {'–' if gain is None else f'{gain:+.1%}'}")
    passed = "passed" if switch["passed"] else "not passed"
    typer.echo(
        f"  switch test {passed}: converged {_yes(switch['converged'])}, not below the teacher {_yes(switch['beats_teacher'])}"
    )


def _yes(true: bool) -> str:
    return "yes" if true else "no"
