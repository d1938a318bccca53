"""What another policy would have done with a Slurm cluster's own history: `headway advise`, without the command line.

Accounting becomes a workload and a cluster (`workloads.slurm`, `workloads.slurm_cluster`), which are replayed under the policies
asked. The first replay is of what Slurm itself does (backfill by arrival), and is held against what really happened: how far its
waiting times are off says how far to trust the others. Nothing here writes anything or changes the cluster.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headway.app import advise_source as source
from headway.app.simulate import SEED_MAX, Json, Progress, compiles_first, dropped_line
from headway.core import columns as c
from headway.core import units
from headway.core.arrays import Bools, Ints
from headway.core.columns import Phase
from headway.core.errors import UserError, shown
from headway.core.units import US_PER_S
from headway.metrics import fold
from headway.metrics.summary import mean_s, nearest_rank
from headway.policies.registry import Chosen, choose
from headway.sim.run import StuckError, simulate
from headway.sim.world import World, too_large
from headway.workloads.cluster import Cluster, parse_cluster
from headway.workloads.rows import read_table
from headway.workloads.schema import Workload
from headway.workloads.slurm import SlurmHistory, parse_slurm
from headway.workloads.slurm_cluster import Rebuilt, fitted, inferred, parse_nodes, rebuild

__all__ = ["POLICIES", "AdviseRequest", "Prepared", "compiles_first", "dropped_line", "prepare", "run"]

POLICIES = ("fifo-backfill", "fifo", "srtf", "las", "tiresias")
"""Asked where nobody asks for others."""
GROUPS = ("user", "account", "queue")
SINCE = "7d"
"""How far back a live cluster is looked at where nobody says."""
GPU_HOUR_US = 3600 * US_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviseRequest:
    """What to look at, as a person wrote it. Durations are text such as `30` (s) or `7d`.

    Either `file` (what `sacct -P` or `sacct --json` printed) or the cluster of this machine. `nodes` is NODESxGPUS, a cluster
    file, or a file with what `sinfo` or `scontrol show node` printed; empty: `sinfo` of a live cluster, else the accounting
    itself.
    """

    file: Path | None = None
    nodes: str = ""
    since: str | None = None
    policies: tuple[str, ...] = POLICIES
    by: str = "user"
    queue: str = "partition"
    tz: str = "UTC"
    seed: int = 1
    round: str = "1"
    save_cost: str = "0"
    restart_cost: str = "30"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that has been read and checked: what is replayed, and what it is compared with."""

    history: SlurmHistory
    rebuilt: Rebuilt
    """The cluster, and the jobs as they are replayed."""
    measured: Bools
    """Jobs that the figures are about; the others only take their places."""
    chosen: tuple[Chosen, ...]
    scheduler: Chosen
    """The policy that comes nearest to what Slurm does."""
    round_s: float
    by: str
    seed: int
    assumptions: tuple[str, ...]
    source: str


def prepare(request: AdviseRequest) -> Prepared:
    """Read and check everything, cheap things first. `UserError` says in one line what is wrong."""
    if not request.policies:
        raise UserError("expected at least one, got none", key="policy")
    if request.by not in GROUPS:
        raise UserError(f"expected {', '.join(GROUPS[:-1])} or {GROUPS[-1]}, got {shown(request.by)}", key="by")
    if not 0 <= request.seed <= SEED_MAX:
        raise UserError(f"expected a whole number from 0 to {SEED_MAX}, got {shown(request.seed)}", key="seed")
    round_s = _seconds(request.round, "round")
    save_s, restart_s = _seconds(request.save_cost, "save-cost"), _seconds(request.restart_cost, "restart-cost")
    since = request.since if request.since is not None or request.file is not None else SINCE
    since_s = _seconds(since, "since") if since is not None else None
    if since_s == 0:
        raise UserError("expected a duration above 0, got 0", key="since")
    chosen = tuple(dict((made.spec, made) for made in (choose(text.strip()) for text in request.policies)).values())
    said: list[str] = []
    scheduler = "fifo-backfill"
    if request.file is not None:
        where = str(request.file)
        history = parse_slurm(read_table(request.file), file=where, queue=request.queue, tz=request.tz)
        until_s = history.zero_s + int(history.ended_us.max()) / US_PER_S
        nodes_text = ""
    else:
        assert since_s is not None
        where = "sacct"
        live = source.ask(since_s)
        history = parse_slurm(live.accounting, file=where, queue=request.queue)
        until_s, nodes_text, scheduler = live.asked_at_s, live.nodes, live.scheduler
        said.append(live.priorities)
        said.append("the accounting shows what your account may see; with PrivateData others' jobs are missing from the replay")
    history, measured, edge = _window(history, None if since_s is None else until_s - since_s)
    rebuilt = _cluster(request.nodes, nodes_text, history)
    workload = rebuilt.workload.with_costs(save_s, restart_s, 0.0)
    fits = too_large(workload, rebuilt.cluster) == 0
    if not (measured & fits).any():
        raise UserError("no job fits into the cluster", key="nodes")
    if large := int(np.count_nonzero(~fits)):
        said.append(f"{_count(large, 'job')} larger than the cluster left out")
    said += [edge, *rebuilt.assumptions, *_assumptions(history, workload, save_s, restart_s)]
    return Prepared(
        history, replace(rebuilt, workload=workload), measured & fits, chosen, choose(scheduler), round_s, request.by,
        request.seed, tuple(text for text in said if text), where,
    )  # fmt: skip


def _seconds(text: str, key: str) -> float:
    try:
        return units.parse_duration(text) / US_PER_S
    except ValueError as error:
        raise UserError(str(error), key=key) from None


def _cluster(text: str, sinfo: str, history: SlurmHistory) -> Rebuilt:
    """The cluster that was asked for, or that of `sinfo`, or the one that the accounting shows."""
    text = text.strip()
    path = Path(text)
    if text and "\0" not in text and path.suffix.lower() not in (".yaml", ".yml") and path.is_file():
        return rebuild(history, parse_nodes(read_table(path), text), text)
    if text:
        try:
            return fitted(history, parse_cluster(text))
        except UserError as error:
            raise UserError(
                error.message, file=error.file, line=error.line, key=error.key.replace("cluster", "nodes", 1)
            ) from None
    return rebuild(history, parse_nodes(sinfo, "sinfo"), "sinfo") if sinfo else inferred(history)


def _window(history: SlurmHistory, opens_s: float | None) -> tuple[SlurmHistory, Bools, str]:
    """The jobs as they are to be replayed, which of them are measured, and what that assumes.

    The window opens at `opens_s` (seconds since 1970; None: with the file). Jobs that ran already then are submitted when they
    really started, those that waited are submitted as it opens: they take their places, and are not measured.
    """
    submitted = history.workload.submitted_us
    opens_us = 0 if opens_s is None else round((opens_s - history.zero_s) * US_PER_S)
    measured: Bools = submitted >= opens_us
    if not measured.any():
        raise UserError("no job that ran was submitted since then", key="since")
    if measured.all():
        return history, measured, "the cluster is empty when the first of these jobs is submitted"
    moved = np.where(history.started_us < opens_us, history.started_us, np.maximum(submitted, opens_us))
    order = np.argsort(np.where(measured, submitted, moved), kind="stable")
    text = (
        f"{_count(int(np.count_nonzero(~measured)), 'job')} submitted before the window, but not over then, take their places"
        " (from their real start, or from the window's beginning if they still waited) and are in no figure"
    )
    return history.resubmitted(np.where(measured, submitted, moved), order), measured[order], text


def _assumptions(history: SlurmHistory, load: Workload, save_s: float, restart_s: float) -> Iterator[str]:
    """What a replay of such a history takes for granted, in words."""
    yield "a job runs as long as it ran, on whichever nodes and beside whichever others"
    yield "a job is submitted when it was, whatever has become of others"
    yield "the estimate of a job is its time limit"
    if count := history.noted.get("no time limit"):
        yield f"{_count(count, 'job')} without a time limit estimated at what they really ran"
    cost = f"{save_s + restart_s:g} s of its GPUs" if save_s + restart_s else "nothing"
    yield f"a job that a policy stops keeps its progress, and loses {cost} each time (--save-cost, --restart-cost)"
    yield "a job of several nodes runs in equal parts, two of which may share a node; it starts whole"
    yield "Slurm's backfill keeps a place for every waiting job, fifo-backfill for the first"
    yield "limits of users, accounts, QOS and arrays, reservations, licences and outages are not replayed"
    for kind, text in (
        (
            "eligible later than submitted",
            "had to wait for a time or another job: they count as submitted when they became eligible",
        ),
        ("requeued", "requeued: their runs are added up"),
        ("still running", "still ran: they count as over"),
        ("part of a heterogeneous job", "of heterogeneous jobs do not start together"),
    ):
        if count := history.noted.get(kind):
            yield f"{_count(count, 'job')} {text}"
    if history.missing:
        yield f"the accounting has no {', '.join(history.missing)}"
    if not load.gpu_milli.any():
        yield "no job has a GPU in this accounting (Slurm counts them with AccountingStorageTRES=gres/gpu)"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# -- replays ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Told:
    """What became of each job: times in µs, GPU time in GPU·µs."""

    waited: Ints
    jct: Ints
    gpu_us: Ints
    preemptions: Ints

    def figures(self, jobs: Bools) -> Json:
        """The figures of some jobs."""
        waited, jct = np.sort(self.waited[jobs]), np.sort(self.jct[jobs])
        return {
            "avg_wait_s": mean_s(waited),
            "p50_wait_s": nearest_rank(waited, 50) / US_PER_S,
            "p90_wait_s": nearest_rank(waited, 90) / US_PER_S,
            "avg_jct_s": mean_s(jct),
            "p50_jct_s": nearest_rank(jct, 50) / US_PER_S,
            "p90_jct_s": nearest_rank(jct, 90) / US_PER_S,
            "gpu_hours": sum(self.gpu_us[jobs].tolist()) / GPU_HOUR_US,
            "preemptions": int(self.preemptions[jobs].sum()),
        }


CHANGES = ("avg_wait_s", "avg_jct_s", "gpu_hours")


def run(prepared: Prepared, *, progress: Callable[[str], Progress | None] | None = None) -> Json:
    """Replay under each policy, and return everything that there is to say, ready for JSON."""
    history, measured = prepared.history, prepared.measured
    load = prepared.rebuilt.workload
    recorded = _Told(
        history.waited_us,
        history.ended_us - load.submitted_us,
        load.work_us // 1000 * load.gpu_milli,
        np.zeros(len(load), np.int64),
    )
    told = {chosen.spec: _replay(prepared, chosen, progress) for chosen in _with(prepared.scheduler, prepared.chosen)}
    base = told[prepared.scheduler.spec]

    def compared(jobs: Bools) -> Json:
        was = base.figures(jobs)
        policies = {}
        for chosen in prepared.chosen:
            figures = told[chosen.spec].figures(jobs)
            policies[chosen.spec] = {**figures, "change": {key: figures[key] - was[key] for key in CHANGES}}
        return {"jobs": int(np.count_nonzero(jobs)), "recorded": recorded.figures(jobs), "replay": was, "policies": policies}

    overall = compared(measured)
    groups = [{"name": name, **compared(jobs)} for name, jobs in _groups(prepared)]
    groups.sort(key=lambda group: (-group["recorded"]["gpu_hours"], group["name"]))
    cluster = prepared.rebuilt.cluster
    times = load.submitted_us[measured]
    return {
        "source": prepared.source,
        "cluster": {"name": cluster.name, "nodes": len(cluster.nodes), "gpus": cluster.gpus},
        "first_submitted_at": _iso(history.zero_s + int(times.min()) // US_PER_S),
        "last_submitted_at": _iso(history.zero_s + int(times.max()) // US_PER_S),
        "rows": history.rows,
        "ignored": history.ignored,
        "merged": history.merged,
        "dropped": dict(load.dropped),
        "dropped_first": load.dropped_first,
        "noted": history.noted,
        "jobs_replayed": len(load),
        "round_s": prepared.round_s,
        "replay_policy": prepared.scheduler.spec,
        "replay_error": _error(base, recorded, measured),
        **overall,
        "by": prepared.by,
        "groups": groups,
        "assumptions": list(prepared.assumptions),
    }


def _with(first: Chosen, others: Sequence[Chosen]) -> tuple[Chosen, ...]:
    return (first, *(chosen for chosen in others if chosen.spec != first.spec))


def _replay(prepared: Prepared, chosen: Chosen, progress: Callable[[str], Progress | None] | None) -> _Told:
    load, cluster = prepared.rebuilt.workload, prepared.rebuilt.cluster
    jobs = load.with_estimates(load.work_us) if chosen.oracle else load
    tell = progress(chosen.spec) if progress is not None else None
    try:
        outcome = simulate(
            jobs, cluster, chosen.policy, seed=prepared.seed, interval_s=prepared.round_s, progress=tell,
            world=_world(jobs, cluster, prepared.seed),
        )  # fmt: skip
    except StuckError as error:
        raise UserError(str(error), key=f"policy {chosen.spec}") from None
    column = outcome.metrics.column
    over = column(fold.M_PHASE) == Phase.COMPLETED
    assert over[prepared.measured].all(), "a job that fits has not been completed"
    return _Told(
        column(fold.M_WAITED),
        column(fold.M_END) - load.submitted_us,
        column(fold.M_HELD),
        column(fold.M_PREEMPTIONS),
    )


def _world(jobs: Workload, cluster: Cluster, seed: int) -> World:
    """A world in which no job slows another: what the accounting says they ran holds all that already."""
    roomy = replace(cluster, nodes=tuple(replace(node, cpus_milli=2 * node.cpus_milli) for node in cluster.nodes))
    world = World(jobs, roomy, seed=seed)
    world.reject(too_large(jobs, cluster))
    return world


def _error(replay: _Told, recorded: _Told, jobs: Bools) -> Json:
    """How far the replay of what Slurm does is from what really happened."""
    gap = replay.waited[jobs] - recorded.waited[jobs]
    off = np.sort(np.abs(gap))
    jct = mean_s(recorded.jct[jobs]) or 0.0
    return {
        "p50_abs_wait_error_s": nearest_rank(off, 50) / US_PER_S,
        "p90_abs_wait_error_s": nearest_rank(off, 90) / US_PER_S,
        "mean_wait_error_s": mean_s(gap),
        "mean_jct_ratio": (mean_s(replay.jct[jobs]) or 0.0) / jct if jct else None,
    }


def _groups(prepared: Prepared) -> Iterator[tuple[str, Bools]]:
    """The measured jobs of each user, account or queue."""
    load = prepared.rebuilt.workload
    if prepared.by == "account":
        names = np.array([name or "none" for name in prepared.history.accounts], dtype=object)
    elif prepared.by == "user":
        names = np.array(load.users, dtype=object)[load.spec[c.J_USER]]
    else:
        names = np.array(load.queues, dtype=object)[load.spec[c.J_QUEUE]]
    for name in sorted(set(names[prepared.measured])):
        yield str(name), prepared.measured & (names == name)


def _iso(seconds: int) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat()
