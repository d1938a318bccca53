"""The league: every policy on the frozen workloads of `league.toml`, five judging seeds each, paired.

`python bench/league/run.py` runs what `results.json` does not hold yet (a new policy adds its rows; `--again POLICY` runs one
anew) and writes the tables to `docs/league.md`. A workload whose hash is not the frozen one is refused. Results are kept as
they come, so that an interrupted league goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from headway.app.simulate import SimulateRequest, prepare, run
from headway.core.errors import UserError
from headway.metrics.compare import median, paired

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEAGUE, HASHES, RESULTS = HERE / "league.toml", HERE / "hashes.json", HERE / "results.json"
PAGE = ROOT / "docs" / "league.md"
KEPT = """avg_jct_s p99_jct_s avg_wait_s makespan_s deadline_ratio avg_accuracy accuracy_ratio finish_time_fairness
cross_node_bytes gpu_busy_frac preemptions migrations finished rejected avg_jct_bound_s decide_ms_p50""".split()
Json = dict[str, Any]


def key(policy: str, workload: str, seed: int) -> str:
    return f"{policy} | {workload} | {seed}"


def play(policy: str, spec: str, cluster: str, seed: int) -> tuple[str, str, Json]:
    """One run: the workload's hash, its policy as spelled canonically, and the figures."""
    request = SimulateRequest(workload=spec, cluster=cluster, policies=(policy,), seed=seed)
    entry = next(iter(run(request, prepare(request))))
    return entry["workload_sha256"], entry["policy"], {name: entry[name] for name in KEPT}


def missing(league: Json, results: Json) -> Iterator[tuple[str, Json, int]]:
    """What has not been run yet."""
    for workload in league["workload"]:
        for policy in league["policies"]:
            for seed in league["seeds"]:
                if key(policy, workload["name"], seed) not in results:
                    yield policy, workload, seed


def freeze(league: Json) -> None:
    """Write the hashes of all workloads."""
    hashes = {}
    for workload in league["workload"]:
        for seed in league["seeds"]:
            request = SimulateRequest(workload=workload["spec"], cluster=workload["cluster"], policies=("fifo",), seed=seed)
            hashes[f"{workload['name']} | {seed}"] = prepare(request).workload.sha256
    HASHES.write_text(json.dumps(hashes, indent=0, sort_keys=True) + "\n")


def shown(value: float | None, scale: float = 1.0, digits: int = 1) -> str:
    return "" if value is None else f"{value / scale:,.{digits}f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def table(league: Json, workload: Json, results: Json) -> list[str]:
    """The standings on one workload, best mean JCT first."""
    rows = []
    baseline = [results[key(league["baseline"], workload["name"], seed)]["avg_jct_s"] for seed in league["seeds"]]
    for policy in league["policies"]:
        runs = [results[key(policy, workload["name"], seed)] for seed in league["seeds"]]

        def of(name: str, runs: list[Json] = runs) -> float | None:
            return median([one[name] for one in runs])

        gain = paired("avg_jct_s", [one["avg_jct_s"] for one in runs], baseline)
        interval = "" if gain.low_frac is None else f" [{100 * -gain.high_frac:+.1f}, {100 * -gain.low_frac:+.1f}]"
        against = "" if policy == league["baseline"] or gain.median_frac is None else f"{100 * -gain.median_frac:+.1f}{interval}"
        jct, bound = of("avg_jct_s"), of("avg_jct_bound_s")
        cells = [
            f"`{policy}`",
            shown(jct, 60),
            against,
            shown(jct / bound, 1, 2) if jct and bound else "",
            shown(of("p99_jct_s"), 60, 0),
            shown(of("avg_wait_s"), 60),
            *(share(of(name)) for name in ("deadline_ratio", "avg_accuracy", "accuracy_ratio")),
            shown(of("cross_node_bytes"), 1e12),
            shown(of("preemptions"), 1, 0),
        ]
        rows.append((jct if jct is not None else float("inf"), "| " + " | ".join(cells) + " |"))
    head = [
        f"## {workload['name']}", "", f"`{workload['spec']}` on `{workload['cluster']}`.", "",
        "| policy | mean JCT, min | against baseline, % [interval] | × bound | p99 JCT, min | mean wait, min | deadlines met, % "
        "| accuracy, % | accuracy wanted, % | TB between nodes | preemptions |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    return [*head, *(line for _, line in sorted(rows)), ""]


def page(league: Json, results: Json) -> str:
    """The standings as Markdown."""
    seeds = league["seeds"]
    lines = [
        "# The league",
        "",
        "Written by `python bench/league/run.py`; do not edit. Every policy with its default parameters on the frozen workloads",
        f"of `bench/league/league.toml`, seeds {seeds[0]} to {seeds[-1]} (development uses 0 to 99). Figures are medians over",
        "the seeds; the change of the mean JCT is paired, run by run, with a bootstrap interval of 95 %, against",
        f"`{league['baseline']}`: one that holds 0 says nothing. × bound is the mean JCT over a lower bound that no",
        "schedule can beat",
        "([metrics](metrics.md)); `oracle-srtf` knows the true durations. To enter, add a policy to `league.toml` and run it.",
        "",
    ]
    for workload in league["workload"]:
        lines += table(league, workload, results)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--freeze", action="store_true", help="write the hashes of the workloads")
    parser.add_argument("--again", action="append", default=[], metavar="POLICY", help="run a policy anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time")
    asked = parser.parse_args()
    league = tomllib.loads(LEAGUE.read_text())
    if asked.freeze:
        freeze(league)
    hashes = json.loads(HASHES.read_text())
    results: Json = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = {name: row for name, row in results.items() if name.partition(" | ")[0] not in asked.again}
    todo = list(missing(league, results))
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        going = {pool.submit(play, p, w["spec"], w["cluster"], seed): (p, w, seed) for p, w, seed in todo}
        for count, future in enumerate(as_completed(going), 1):
            policy, workload, seed = going[future]
            try:
                sha, _, figures = future.result()
            except UserError as error:
                pool.shutdown(cancel_futures=True)
                print(f"{policy} on {workload['name']}: {error}", file=sys.stderr)
                return 2
            if sha != hashes[f"{workload['name']} | {seed}"]:
                pool.shutdown(cancel_futures=True)
                print(f"{workload['name']}, seed {seed}: not the frozen workload", file=sys.stderr)
                return 1
            results[key(policy, workload["name"], seed)] = figures
            if count % 20 == 0 or count == len(todo):
                RESULTS.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n")
                print(f"{count} of {len(todo)}", flush=True)
    PAGE.write_text(page(league, results))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
