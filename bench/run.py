"""`make bench`: speed of the simulator and of single rounds, as ratios against a yardstick run in the same process.

Machines differ and are noisy; the yardstick (sorting and a plain Python loop) is timed beside every figure, and a figure's
ratio to it is what is compared with
`bench/reference.json`. A ratio that is 20 % worse than the committed one fails. `--write` commits the present ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
DATASETS = Path(os.environ.get("HEADWAY_DATASETS", HERE.parent.parent / "shared" / "data"))
PHILLY = DATASETS / "traces" / "philly.csv.gz"
REFERENCE = HERE / "reference.json"
WORSE_MAX = 1.20
LOADS = (0.8, 1.0, 1.2)
POLICIES = ("fifo", "fifo-backfill", "srtf", "las", "tiresias")
GROWN = ("fifo-backfill", "srtf", "las")


def yardstick_s() -> float:
    """A fixed piece of work: the median of five."""
    numbers = np.random.default_rng(0).integers(0, 1 << 60, 200_000)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(5):
            np.sort(numbers)
        total = 0
        for i in range(300_000):
            total += i & 7
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def child(code: str) -> dict[str, float]:
    """Run a snippet in a fresh process and read the JSON it prints last (so that peak memory is its own)."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parent / "src"), str(HERE.parent)])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


SIMULATE = """
import json, resource, statistics
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.workloads.cluster import parse_cluster
from headway.workloads.registry import load_workload
cluster = parse_cluster({cluster!r})
load = load_workload({workload!r})
if {load!r}: load = load.scaled_to_load({load!r}, cluster.gpus)
load = load.with_costs(0, 30, 0)
policy = make_policy({policy!r})
simulate(load_workload("poisson:jobs=700,cluster=2x4"), parse_cluster("2x4"), policy)
run = simulate(load, cluster, policy, seed=1)
out = dict(jobs=len(load), rounds=run.rounds, preemptions=run.metrics.summary(cluster.gpus).preemptions)
out["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
times = [run.cpu_s]
del run
times += [simulate(load, cluster, policy, seed=1).cpu_s for _ in range({repeats} - 1)]
print(json.dumps(out | dict(cpu_s=statistics.median(times))))
"""


def simulation(policy: str, workload: str, cluster: str, load: float, repeats: int) -> dict[str, float]:
    return child(SIMULATE.format(policy=policy, workload=workload, cluster=cluster, load=load, repeats=repeats))


def philly(repeats: int, rows: dict[str, float]) -> None:
    """jobs/s per policy on Philly."""
    print("\nPhilly, 72,294 jobs, --cluster philly, 60-s rounds")
    columns = ("load", 6), ("jobs/s", 10), ("CPU s", 8), ("rounds", 9), ("preempted", 11), ("MB", 7)
    print(f"{'policy':16}" + "".join(f"{name:>{width}}" for name, width in columns))
    for load in LOADS:
        for policy in POLICIES:
            stick = yardstick_s()
            r = simulation(policy, str(PHILLY), "philly", load, repeats)
            print(
                f"{policy:16}{load:6.1f}{r['jobs'] / r['cpu_s']:10,.0f}{r['cpu_s']:8.2f}{r['rounds']:9,.0f}"
                f"{r['preemptions']:11,.0f}{r['peak_mb']:7.0f}",
                flush=True,
            )
            rows[f"philly {policy} {load}"] = r["cpu_s"] / stick


def growth(repeats: int, rows: dict[str, float]) -> None:
    """Time per job as the workload grows tenfold."""
    print(f"\nGrowth, poisson at load 0.8 on 16x8\n{'policy':16}{'50k µs/job':>12}{'500k µs/job':>13}{'ratio':>7}")
    for policy in GROWN:
        small, large = (
            simulation(policy, f"poisson:jobs={n},load=0.8,cluster=16x8", "16x8", 0.0, repeats) for n in (50_000, 500_000)
        )
        per_job = [r["cpu_s"] / r["jobs"] * 1e6 for r in (small, large)]
        print(f"{policy:16}{per_job[0]:12.1f}{per_job[1]:13.1f}{per_job[1] / per_job[0]:7.2f}", flush=True)
        rows[f"growth {policy}"] = per_job[1] / per_job[0]


def rounds(rows: dict[str, float]) -> None:
    """One round at several sizes."""
    from bench.rounds import round_ms

    print(f"\nOne round: decide + check + diff\n{'tasks':>8}{'nodes':>8}{'steady ms':>11}{'storm ms':>10}{'cold ms':>9}")
    for tasks in (1_000, 10_000, 100_000):
        for nodes in (100, 1_000, 10_000):
            stick = yardstick_s()
            times = []
            for kind in ("steady", "storm", "cold"):
                ms, _ = round_ms(kind, tasks, nodes)
                times.append(ms)
                rows[f"round {kind} {tasks} {nodes}"] = ms / 1e3 / stick
            print(f"{tasks:8,}{nodes:8,}{times[0]:11.2f}{times[1]:10.2f}{times[2]:9.2f}", flush=True)


def fits(rows: dict[str, float]) -> None:
    """A batch of three curves, as a plan's requests mostly are."""
    from bench.fits import batch_ms

    print("\nEstimates of three jobs at once")
    for name in ("curve", "inverse", "speed"):
        stick = yardstick_s()
        ms = batch_ms(name)
        print(f"{name:16}{ms:8.3f} ms", flush=True)
        rows[f"fit {name}"] = ms / 1e3 / stick


def recovery(rows: dict[str, float]) -> None:
    """What a start of a live controller costs, by how much there is to replay."""
    from bench.recovery import measure

    stick = yardstick_s()
    r = measure(100_000, 20_000)
    print(f"\nRecovery of 100,000 events in {r['segments']:,} segments, CPU s: {r['replay_s']:.2f}")
    print(f"from a snapshot and the last 20,000: {r['snapshot_s']:.2f}; making the snapshot and archives: {r['keep_s']:.2f}")
    rows["recovery replay"], rows["recovery snapshot"] = r["replay_s"] / stick, r["snapshot_s"] / stick
    rows["recovery keep"] = r["keep_s"] / stick


def submit(rows: dict[str, float]) -> None:
    """What a controller does for the people who ask it, with 10,000 jobs in its queue."""
    from bench.submit import figures

    stick = yardstick_s()
    told = figures()
    print("\nHanding in and cancelling, 10,000 jobs queued; every write is on the disk")
    for name in ("batches", "one by one", "one by one from 8"):
        wall, cpu = told[f"{name}, jobs/s"], told[f"{name}, jobs/cpu s"]
        print(f"{name:20}{wall:8,.0f} jobs/s, {cpu:8,.0f} in a processor second", flush=True)
        rows[f"submit {name}"] = 1 / cpu / stick
    for name in ("select", "hold all", "cancel all"):
        print(f"{name:20}{told[f'{name}, s']:8.2f} s", flush=True)
        rows[f"submit {name}"] = told[f"{name}, cpu s"] / stick


def job(rows: dict[str, float]) -> None:
    """What a training script pays for each report, and for each look at whether to stop."""
    from bench.job import figures

    stick = yardstick_s()
    told = figures()
    report_us, looks = told["report_us"], told["should_stop_per_s"]
    print(f"\nheadway.job: a report {report_us:.2f} us, should_stop {looks / 1e6:.1f} million times a second")
    rows["job report x 1000"], rows["job should_stop x 1000"] = report_us / 1e3 / stick, 1e3 / looks / stick


def mlfs(rows: dict[str, float]) -> None:
    """One decision of MLF-H at several sizes."""
    from bench.mlfs import decide_ms

    print(f"\nOne decision of mlf-h\n{'':8}{'cluster':18}{'tasks':>9}{'starts':>8}{'decide ms':>11}{'round ms':>10}")
    for jobs, nodes in ((1860, "20x4"), (1860, "mlfs-paper-large"), (9500, "10000x8")):
        for kind in ("steady", "cold"):
            stick = yardstick_s()
            deciding, whole, tasks, starts = decide_ms(kind, jobs, nodes)
            print(f"{kind:8}{nodes:18}{tasks:9,}{starts:8,}{deciding:11.2f}{whole:10.2f}", flush=True)
            rows[f"mlf-h {kind} {jobs} {nodes}"] = deciding / 1e3 / stick


def imports(rows: dict[str, float]) -> None:
    """How much longer `headway --help` takes than an empty Typer program."""
    empty = "import typer\napp = typer.Typer()\n@app.command()\ndef main() -> None: ...\napp(['--help'], standalone_mode=False)"
    ours = "from headway.cli import run_command\nrun_command(['--help'])"
    env = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}

    def median_s(code: str) -> float:
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, check=True)
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    first, second = median_s(empty), median_s(ours)
    print(f"\nheadway --help: {second:.2f} s, an empty Typer program: {first:.2f} s, difference {second - first:+.2f} s")
    rows["help"] = second / first


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known_parts = ["philly", "growth", "rounds", "fits", "mlfs", "recovery", "submit", "job", "imports"]
    parser.add_argument("parts", nargs="*", choices=[*known_parts, []], help="default: all")
    parser.add_argument("--write", action="store_true", help="write the ratios to bench/reference.json")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    parts = asked.parts or known_parts
    rows: dict[str, float] = {}
    if "philly" in parts:
        if PHILLY.exists():
            philly(asked.repeats, rows)
        else:
            print(f"no Philly trace at {PHILLY} ($HEADWAY_DATASETS): left out")
    if "growth" in parts:
        growth(asked.repeats + 2, rows)
    if "rounds" in parts:
        rounds(rows)
    if "fits" in parts:
        fits(rows)
    if "mlfs" in parts:
        mlfs(rows)
    if "recovery" in parts:
        recovery(rows)
    if "submit" in parts:
        submit(rows)
    if "job" in parts:
        job(rows)
    if "imports" in parts:
        imports(rows)
    known: dict[str, float] = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    worse = {k: v / known[k] for k, v in rows.items() if k in known and v / known[k] > WORSE_MAX}
    ratios = [v / known[k] for k, v in rows.items() if k in known] or [1.0]
    print(f"\n{len(rows)} ratios; against the committed reference: median {statistics.median(ratios):.2f}")
    for name, factor in sorted(worse.items(), key=lambda item: -item[1]):
        print(f"WORSE {name}: {factor:.2f} times the committed ratio")
    if asked.write:
        REFERENCE.write_text(json.dumps({**known, **{k: round(v, 4) for k, v in rows.items()}}, indent=1, sort_keys=True) + "\n")
        return 0
    return 1 if worse else 0


if __name__ == "__main__":
    raise SystemExit(main())
