"""The time of one step of a job on a placement: compute of the slowest stage, slowed by sharing, plus communication.

Times are seconds, sizes bytes, link speeds bytes per second. The parts are pure functions with a formula each; `step_time`
puts them together for a job that names a model of the catalogue. (The simulated world has its own kernels, which tell the
truth; this is what is expected of a placement before it is tried.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from headway.core.arrays import Floats, Ints
from headway.core.errors import UserError
from headway.perf.catalogue import CatalogueModel

BUSY_FRAC = 0.9
"""Usage up to which nothing slows; from there to 1 it costs as much as is used beyond."""
LOCAL_BYTES_PER_S = 12e9
"""Between processes of one node."""
SHARED_PCIE = 1.1
"""Each worker of a node beyond the second slows all of them by this factor."""
WORKER_S, SERVER_S, LAUNCH_S = 1e-3, 0.5e-3, 5e-3
"""Per step: for each worker and server that takes part in an exchange, and for launching the compute."""


def sharing_rate(used_frac: ArrayLike) -> Floats:
    """How fast a task runs whose busiest shared resource is used to this degree: 1 up to 0.9, falling by up to a tenth until
    1, and 0.9 / u beyond, where the resource is shared out."""
    u = np.asarray(used_frac, np.float64)
    result: Floats = np.where(u <= BUSY_FRAC, 1.0, np.where(u <= 1, 1 - (u - BUSY_FRAC), BUSY_FRAC / np.maximum(u, 1)))
    return result


def ring_s(workers: int, sync_bytes: float, slowest_bytes_per_s: float) -> float:
    """A ring all-reduce: each link carries `2 (n − 1)/n` times the gradient."""
    return 2 * (workers - 1) / workers * sync_bytes / slowest_bytes_per_s if workers > 1 else 0.0


def servers_s(
    workers: ArrayLike,
    servers: ArrayLike,
    sync_bytes: float,
    bytes_per_s: ArrayLike,
    local_bytes_per_s: float = LOCAL_BYTES_PER_S,
) -> float:
    """Gradients to the parameter servers and weights back. `workers`, `servers` and `bytes_per_s` are per node.

    With w of W workers and p of P servers on a node, the other way's traffic is the same, and each way the node sends or takes
    `w·S·(1 − p/P)` for its workers and `p·S/P·(W − w)` for its servers; what stays inside, `w·S·p/P`, is a local copy.
    """
    w, p, b = (np.asarray(v, np.float64) for v in (workers, servers, bytes_per_s))
    all_workers, all_servers = w.sum(), p.sum()
    assert all_servers > 0, "parameter servers exchange the gradients"
    used = (w > 0) | (p > 0)
    share = p / all_servers
    remote = np.maximum(w * sync_bytes * (1 - share), share * sync_bytes * (all_workers - w))
    remote_s = np.divide(remote, b, out=np.zeros_like(remote), where=used & (remote > 0))
    local_s = w * sync_bytes * share / local_bytes_per_s
    return float(2 * max(remote_s.max(), local_s.max()))


def edges_s(parent_node: ArrayLike, child_node: ArrayLike, edge_bytes: ArrayLike, bytes_per_s: ArrayLike) -> float:
    """Edges of a task graph: the slowest node's larger direction; edges within a node are free. `bytes_per_s` is per node."""
    b = np.asarray(bytes_per_s, np.float64)
    source, sink = np.asarray(parent_node, np.int64), np.asarray(child_node, np.int64)
    size = np.broadcast_to(np.asarray(edge_bytes, np.float64), source.shape)
    apart = source != sink
    out = np.bincount(source[apart], size[apart], len(b))
    into = np.bincount(sink[apart], size[apart], len(b))
    most = np.maximum(out, into)
    return float(np.divide(most, b, out=np.zeros_like(b), where=most > 0).max()) if len(b) else 0.0


def shaped_compute_s(work_s: float, workers: ArrayLike, speed: ArrayLike, background_frac: ArrayLike) -> float:
    """Compute of a step whose global batch is split over all workers: `work_s` on one GPU of speed 1. Arguments are per node.

    The largest over nodes of `(work / (W · speed · (1 − background)) + 5 ms) · 1.1^max(0, w − 2)`.
    """
    w, v, load = (np.asarray(x, np.float64) for x in (workers, speed, background_frac))
    on = w > 0
    share_s = work_s / (w.sum() * v[on] * (1 - load[on])) + LAUNCH_S
    return float((share_s * SHARED_PCIE ** np.maximum(0, w[on] - 2)).max())


def shaped_step_s(
    work_s: float,
    sync_bytes: float,
    workers: ArrayLike,
    servers: ArrayLike,
    speed: ArrayLike,
    background_frac: ArrayLike,
    bytes_per_s: ArrayLike,
) -> float:
    """A step of a data-parallel job, everything per node: through parameter servers if there are any, else by a ring.

    `bytes_per_s` is what the background load and the rack's uplink leave of a node's link. These are the formulas of the frozen
    workload `production`.
    """
    w, p, b = (np.asarray(x, np.float64) for x in (workers, servers, bytes_per_s))
    compute = shaped_compute_s(work_s, w, speed, background_frac)
    count = int(w.sum())
    if p.sum() > 0:
        return compute + servers_s(w, p, sync_bytes, b) + WORKER_S * count + SERVER_S * float(p.sum())
    if count <= 1:
        return compute
    on = w > 0
    slowest = float(b[on].min()) if np.count_nonzero(on) > 1 else LOCAL_BYTES_PER_S
    return compute + ring_s(count, sync_bytes, slowest) + WORKER_S * count


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a job's tasks run. Nodes are numbered from 0 in `kinds`; a task is named by its row.

    node, stage, replica: of each worker. used_frac: usage of its busiest shared resource (0: alone).
    servers: the node of each parameter server. bytes_per_s: of each node's link; None: the exchange that was measured for the
    model.
    """

    kinds: tuple[str, ...]
    node: Ints
    stage: Ints
    replica: Ints
    used_frac: Floats
    servers: Ints
    bytes_per_s: Floats | None = None

    @staticmethod
    def data_parallel(kinds: Sequence[str], workers: Sequence[int], bytes_per_s: ArrayLike | None = None) -> Placement:
        """Whole replicas only: `workers` counts them on each node."""
        node = np.repeat(np.arange(len(workers)), workers)
        links = None if bytes_per_s is None else np.broadcast_to(np.asarray(bytes_per_s, np.float64), len(kinds))
        none = np.zeros(len(node), np.int64)
        return Placement(tuple(kinds), node, none, np.arange(len(node)), np.zeros(len(node)), none[:0], links)


@dataclass(frozen=True, slots=True)
class StepTime:
    """The parts of a step, in seconds; `total_s` is less than their sum where exchange hides behind compute."""

    compute_s: float
    edges_s: float
    sync_s: float
    total_s: float


def step_time(model: CatalogueModel, placement: Placement, batch: float, edge_bytes: float = 0.0) -> StepTime:
    """The expected step of a catalogue model on a placement, with `batch` samples for each replica.

    Compute: the slowest task of any stage on its GPU kind, a stage being an equal share of the model's time, divided by the
    rate that sharing leaves. Edges: `edge_bytes` between the stages of a replica that lie on different nodes. Exchange: where
    links are given, by ring or servers for each stage's share of the gradient, else as it was measured on the slowest kind.
    Exchange hides behind compute as it did where the model was measured.

    Raises:
        UserError: the model was not measured on a kind, or its gradient is not known and links are given.
    """
    p, stages = placement, int(placement.stage.max()) + 1
    fits = {kind: model.step_fit(kind) for kind in sorted({p.kinds[n] for n in p.node})}
    alone_s = {kind: float(f.params[1] + f.params[2] * batch) / stages for kind, f in fits.items()}
    task_s = np.array([alone_s[p.kinds[n]] for n in p.node]) / sharing_rate(p.used_frac)
    compute = float(task_s.max())
    slowest = max(fits, key=lambda kind: (alone_s[kind], kind))
    fit = fits[slowest].params
    return _combined(compute, _edges(p, stages, edge_bytes), _exchange(model, p, stages, fit), float(fit[7]))


def _combined(compute: float, edges: float, sync: float, overlap: float) -> StepTime:
    path = compute + edges
    longer, shorter = max(path, sync), min(path, sync)
    total = longer * (1 + (shorter / longer) ** overlap) ** (1 / overlap) if longer > 0 else 0.0
    return StepTime(compute, edges, sync, total)


def _edges(p: Placement, stages: int, edge_bytes: float) -> float:
    if stages == 1 or edge_bytes <= 0 or p.bytes_per_s is None:
        return 0.0
    at = {(int(r), int(s)): int(n) for r, s, n in zip(p.replica, p.stage, p.node, strict=True)}
    pairs = [(n, at[r, s + 1]) for (r, s), n in sorted(at.items()) if (r, s + 1) in at]
    return edges_s([a for a, _ in pairs], [b for _, b in pairs], edge_bytes, p.bytes_per_s)


def _exchange(model: CatalogueModel, p: Placement, stages: int, fit: Floats) -> float:
    replicas = len(np.unique(p.replica))
    if p.bytes_per_s is None:
        if replicas <= 1:
            return 0.0
        at = 5 if len(np.unique(p.node)) > 1 else 3
        return float(fit[at] + fit[at + 1] * max(replicas - 2, 0))
    if model.gradient_bytes is None:
        raise UserError(f"the gradient of the model {model.name} is not known: say model.sync_bytes or leave the links out")
    shares = model.chain_shares_ppm.get(stages, (1_000_000 // stages,) * stages)
    nodes, times = len(p.kinds), []
    for stage, share in enumerate(shares):
        size = model.gradient_bytes * share / 1e6
        workers = np.bincount(p.node[p.stage == stage], minlength=nodes)
        if len(p.servers):
            times.append(servers_s(workers, np.bincount(p.servers, minlength=nodes), size, p.bytes_per_s))
        else:
            on = workers > 0
            link = float(p.bytes_per_s[on].min()) if np.count_nonzero(on) > 1 else LOCAL_BYTES_PER_S
            times.append(ring_s(int(workers.sum()), size, link))
    return max(times)
