"""The commands about workloads: `headway workload list|show|import|generate`. Thin, as those of `headway.cli`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.core.errors import one_line

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="A .parquet, .csv or .csv.gz file to write.", metavar="OUT")]
Force = Annotated[bool, typer.Option("--force", help="Replace OUT if it is there.")]
Seed = Annotated[int, typer.Option(help="Seed of a generator.")]
BAR_WIDTH_MAX = 50
PLOT_HEIGHT = 5
GPU_BARS_MAX = 16
QUEUES_SHOWN_MAX = 8
UNIT_S = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    group = typer.Typer(help="List, look at, import and generate workloads.", no_args_is_help=True, rich_markup_mode=None)
    group.command("list")(list_)
    group.command()(show)
    group.command("import")(import_)
    group.command()(generate)
    app.add_typer(group, name="workload")


def list_(as_json: AsJson = False) -> None:
    """List the generators with their parameters, the formats, and the files in $HEADWAY_DATASETS."""
    from headway.app import workload as use_case

    found = use_case.listing(_datasets())
    if as_json:
        _print_json(found)
        return
    generators = [
        (entry["name"], entry["description"], ", ".join(f"{key}={value}".rstrip("=") for key, value in entry["params"].items()))
        for entry in found["generators"]
    ]
    _table(("generator", "what it makes", "parameters"), generators)
    _table(("format", "what it reads"), [(entry["name"], entry["description"]) for entry in found["formats"]])
    if found["datasets"] is None:
        _out("HEADWAY_DATASETS is not set: no files were looked for")
        return
    if found["files"]:
        _table(("file", "format", "kB"), [(f["file"], f["format"], f"{f['bytes'] / 1000:,.0f}") for f in found["files"]])
    else:
        _out(f"no file of a known format in {one_line(found['datasets'])}")
    if found["clusters"]:
        _table(("cluster file", "nodes", "GPUs"), [(f["file"], f"{f['nodes']:,}", f"{f['gpus']:,}") for f in found["clusters"]])


def show(
    workload: Annotated[str, typer.Argument(metavar="WORKLOAD", help="A trace file, or NAME[:key=value,…].")],
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Show a workload's figures, and its arrivals, durations and sizes as plots."""
    from headway.app import workload as use_case

    jobs = use_case.load(workload, _datasets(), seed)
    found = use_case.statistics(jobs)
    if as_json:
        _print_json(found)
        return
    for line in _figures(found):
        _out(line)
    for line in _plots(found, use_case.arrivals(jobs), use_case.duration_cdf(jobs)):
        _out(line)


def import_(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="philly, itp, openb, muri, tiresias, generic or slurm.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="What to read; also FILE:estimates=exact.")],
    output: Output,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Read a file of jobs, say what became of its rows, and write the jobs as a table that --workload takes."""
    from headway.app import workload as use_case

    name, colon, options = file.rpartition(":")
    if not colon or "=" not in options or Path(file).exists():
        name, options = file, ""
    found = use_case.import_file(form, Path(name), output, options=options, replace=force)
    if as_json:
        _print_json(found)
        return
    _out(f"{found['rows_read']:,} rows read, {found['rows_kept']:,} kept, {found['rows_dropped']:,} dropped")
    for line in _rows(found):
        _out(line)
    _out(f"{one_line(found['output'])}: {found['jobs']:,} jobs, sha256 {found['sha256']}")


def generate(
    spec: Annotated[str, typer.Argument(metavar="NAME[:key=value,…]", help="A generator and its parameters.")],
    output: Output,
    seed: Seed = 1,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a generator's jobs as a table that --workload takes."""
    from headway.app import workload as use_case

    found = use_case.generate(spec, output, seed=seed, replace=force)
    if as_json:
        _print_json(found)
    else:
        _out(
            f"{one_line(found['output'])}: {found['jobs']:,} jobs, {found['gpu_hours']:,.0f} GPU hours, sha256 {found['sha256']}"
        )


# -- output ---------------------------------------------------------------------------------------------------------
def _datasets() -> Path | None:
    folder = os.environ.get("HEADWAY_DATASETS")
    return Path(folder) if folder else None


def _out(text: str) -> None:
    typer.echo(text)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=not _is_utf8()))


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i, header in enumerate(headers):
        number = header in ("kB", "nodes", "GPUs")
        table.add_column(header, justify="right" if number else "left", no_wrap=number or not i, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console.print(table)


def _figures(found: dict[str, Any]) -> Iterator[str]:
    gpus, durations = found["gpus"], found["durations_s"]
    yield one_line(found["workload"])
    rate = f", {found['jobs_per_hour']:,.1f} an hour" if found["jobs_per_hour"] is not None else ""
    yield f"  jobs       {found['jobs']:,} in {_time(found['span_s'])}{rate}"
    yield f"  GPUs       {gpus['total']:,.6g} asked for; a job {gpus['mean']:,.2f} on average, {gpus['max']:,g} at most"
    yield f"  GPU hours  {found['gpu_hours']:,.0f}"
    named = ", ".join(f"{key} {_time(durations[key])}" for key in ("min", "p50", "p90", "p99", "max", "mean"))
    yield f"  durations  {named}"
    yield f"  users      {found['users']:,}; queues {found['queues']:,}"
    special = [
        f"{found[key]:,} {words}"
        for key, words in (
            ("jobs_without_gpu", "without a GPU"),
            ("jobs_sharing_a_gpu", "share a GPU"),
            ("jobs_of_some_kinds", f"only on some of {', '.join(found['kinds'])}"),
        )
        if found[key]
    ]
    if special:
        yield f"  of them    {'; '.join(special)}"
    yield f"  sha256     {found['sha256']}"
    yield from _rows(found)


def _rows(found: dict[str, Any]) -> Iterator[str]:
    for kind, count in found["dropped"].items():
        yield one_line(f"  dropped    {count:,}: {kind}")
    if found["dropped_first"]:
        yield one_line(f"  the first  {found['dropped_first']}")
    for kind, count in found["noted"].items():
        yield one_line(f"  noted      {count:,}: {kind}")


def _plots(found: dict[str, Any], arrivals: Any, cdf: Sequence[tuple[int, float]]) -> Iterator[str]:
    from headway.app.plot import bar, columns

    plain = not _is_utf8()
    width = max(min(shutil.get_terminal_size().columns - 30, BAR_WIDTH_MAX), 10)
    jobs = found["jobs"]
    if len(arrivals.bins) > 1:
        most = f"{max(arrivals.bins):,}"
        yield ""
        yield f"submissions each {arrivals.per}, from the first to the last"
        for i, line in enumerate(columns(arrivals.bins, PLOT_HEIGHT, ascii_only=plain)):
            yield f"  {most if not i else '':>10}  {line}".rstrip()
    yield ""
    yield "jobs that take at most"
    for at, share in cdf:
        yield f"  {_round_time(at):>10}  {bar(share, width, ascii_only=plain):<{width}} {share:6.1%}"
    yield ""
    yield "jobs by GPUs asked for"
    counts = list(found["gpus"]["jobs_by_gpus"].items())
    if len(counts) > GPU_BARS_MAX:
        rest = sum(count for _, count in counts[GPU_BARS_MAX - 1 :])
        counts = [*counts[: GPU_BARS_MAX - 1], ("more", rest)]
    most_jobs = max(count for _, count in counts)
    for gpus, count in counts:
        yield f"  {gpus:>10}  {bar(count / most_jobs, width, ascii_only=plain):<{width}} {count / jobs:6.1%}  {count:,}"
    if found["queues"] > 1:
        yield ""
        yield "queues by GPU hours"
        shown = found["by_queue"][:QUEUES_SHOWN_MAX]
        total = found["gpu_hours"] or 1.0
        for entry in shown:
            share = entry["gpu_hours"] / total
            text = f"{bar(share, width, ascii_only=plain):<{width}} {share:6.1%}  {entry['jobs']:,} jobs"
            yield f"  {one_line(entry['queue'])[:10]:>10}  {text}"


def _time(seconds: float) -> str:
    """A duration to three or four figures."""
    for unit, per in UNIT_S:
        if seconds >= 2 * per or unit == "s":
            return f"{seconds / per:,.1f}{unit}"
    return ""


def _round_time(seconds: int) -> str:
    """A round duration in the largest unit that it is a whole number of."""
    return next(f"{seconds // per}{unit}" for unit, per in UNIT_S if seconds % per == 0)
