"""The shape of a job, and the tasks and the dependency graph that a shape expands to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from .units import GpuDemand

if TYPE_CHECKING:
    from .model import JobSpec

WORKER = 0
SERVER = 1
PPM = 1_000_000
TASKS_MAX = 2**20
EDGES_MAX = 2**22
CUTS = ("chain", "layered", "none")
SYNCS = ("all-reduce", "parameter-server", "none")
GRADIENT_BYTES_PER_PARAMETER = 4


@dataclass(frozen=True, slots=True)
class Resources:
    """What one task books: GPUs (one of the alternatives), thousandths of cores, bytes, bytes per second."""

    gpu_alternatives: tuple[GpuDemand, ...] = (GpuDemand(),)
    cpus_milli: int = 1000
    memory_bytes: int = 0
    network_bytes_per_s: int = 0


@dataclass(frozen=True, slots=True)
class TaskDemand:
    """What one task books where the tasks of a job differ, and its share of the model in ppm (servers: 0)."""

    gpu_milli: int
    cpus_milli: int
    memory_bytes: int
    network_bytes_per_s: int
    share_ppm: int


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How a job is cut into tasks, and within which bounds it may be resized.

    ``data`` replicas, each of ``pipeline * tensor`` partitions, and ``servers`` parameter servers. A bound
    left at 0 takes the value of what it bounds: without bounds a job has one shape. ``cut`` wires the
    partitions of a replica: a ``chain``; ``layered``, layers of ``width`` partitions (0: ``tensor`` of them),
    each feeding the whole next layer; or ``none``. ``sync`` says how gradients are exchanged.
    """

    data: int = 1
    data_min: int = 0
    data_max: int = 0
    pipeline: int = 1
    tensor: int = 1
    cut: str = "chain"
    width: int = 0
    sync: str = "all-reduce"
    servers: int = 0
    servers_min: int = 0
    servers_max: int = 0

    def __post_init__(self) -> None:
        for bound, value in (
            ("data_min", self.data),
            ("data_max", self.data),
            ("servers_min", self.servers),
            ("servers_max", self.servers),
            ("width", self.tensor),
        ):
            if getattr(self, bound) == 0:
                object.__setattr__(self, bound, value)

    @property
    def partitions(self) -> int:
        """Partitions of one replica."""
        return self.pipeline * self.tensor

    @property
    def elastic(self) -> bool:
        """Whether more than one shape is allowed."""
        return self.data_min != self.data_max or self.servers_min != self.servers_max


DEFAULT_RESOURCES = Resources()
DEFAULT_PARALLELISM = Parallelism()


@dataclass(frozen=True, slots=True)
class Shape:
    """How much a job runs on: replicas, partitions, servers, and the global batch size (0: the job's own)."""

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    servers: int = 0
    batch: int = 0

    @property
    def workers(self) -> int:
        """Worker tasks."""
        return self.data * self.pipeline * self.tensor

    @property
    def tasks(self) -> int:
        """All tasks: workers and servers."""
        return self.workers + self.servers


@dataclass(frozen=True, slots=True)
class Expansion:
    """The tasks of one shape as columns, and their dependency graph in CSR form.

    Order of tasks: replica 0's partitions in order, replica 1's, …, then the servers. A server has replica
    -1, its own index as partition, and share 0. The children of task ``k`` are ``edge_child[i]``, each sent
    ``edge_bytes[i]`` an iteration, for ``i`` from ``edge_start[k]`` to before ``edge_start[k + 1]``; a child
    is an index relative to the job's first task, and always above its parent's: the graph has no cycle.
    ``ring_bytes`` is the gradient, in bytes an iteration, that the replicas all-reduce (0: they don't); the
    ring is no part of the graph.
    """

    workers: int
    servers: int
    role: tuple[int, ...]
    replica: tuple[int, ...]
    partition: tuple[int, ...]
    share_ppm: tuple[int, ...]
    gpu_milli: tuple[int, ...]
    cpus_milli: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    network_bytes_per_s: tuple[int, ...]
    edge_start: tuple[int, ...]
    edge_child: tuple[int, ...]
    edge_bytes: tuple[int, ...]
    ring_bytes: int

    @property
    def tasks(self) -> int:
        """All tasks: workers and servers."""
        return self.workers + self.servers

    def children(self, task: int) -> tuple[int, ...]:
        """Return the tasks that wait for ``task``."""
        return self.edge_child[self.edge_start[task] : self.edge_start[task + 1]]


def split_whole(total: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split a whole number by weights, by the largest remainder; ties go to the earlier.

    ValueError if there is no weight, one is not a finite number of 0 or more, or all are 0.
    """
    if not weights or not all(0 <= weight < float("inf") for weight in weights) or not any(weights):
        raise ValueError("expected weights that are numbers of 0 or more, one of them above 0")
    exact_weights = [Fraction(weight) for weight in weights]
    scale = Fraction(total) / sum(exact_weights)
    exact = [weight * scale for weight in exact_weights]
    floors = [int(part) for part in exact]
    missing = total - sum(floors)
    order = sorted(range(len(exact)), key=lambda i: (floors[i] - exact[i], i))
    for i in order[:missing]:
        floors[i] += 1
    return tuple(floors)


def split_evenly(total: int, parts: int) -> tuple[int, ...]:
    """Split a whole number into equal parts; the first ones are larger by 1 where it doesn't divide."""
    each, rest = divmod(total, parts)
    return (each + 1,) * rest + (each,) * (parts - rest)


def shares_ppm(weights: Sequence[float]) -> tuple[int, ...]:
    """Return the partitions' shares in ppm; they sum to 1,000,000. ValueError as `split_whole`."""
    return split_whole(PPM, weights)


def default_shape(spec: JobSpec) -> Shape:
    """Return the shape that the job has where nobody chooses another."""
    par = spec.parallelism
    return Shape(par.data, par.pipeline, par.tensor, par.servers)


def sink_count(cut: str, width: int, partitions: int) -> int:
    """Return how many partitions of a replica feed no other partition: they hand the result on."""
    if cut == "none":
        return partitions
    return 1 if cut == "chain" else partitions % width or width


def edge_count(par: Parallelism, shape: Shape) -> int:
    """Return the number of edges of the dependency graph, without building it."""
    parts = shape.pipeline * shape.tensor
    per_replica = 0
    if par.cut == "chain":
        per_replica = parts - 1
    elif par.cut == "layered" and parts > par.width:
        full, rest = divmod(parts, par.width)
        per_replica = (full - 1) * par.width**2 + par.width * rest
    return shape.data * (per_replica + sink_count(par.cut, par.width, parts) * shape.servers)


def _refuse_shape(spec: JobSpec, shape: Shape) -> None:
    """Raise ValueError for a shape that the job doesn't allow."""
    par = spec.parallelism
    for key, value, low, high in (
        ("data", shape.data, par.data_min, par.data_max),
        ("pipeline", shape.pipeline, par.pipeline, par.pipeline),
        ("tensor", shape.tensor, par.tensor, par.tensor),
        ("servers", shape.servers, par.servers_min, par.servers_max),
    ):
        if not low <= value <= high:
            allowed = f"{low}..{high}" if low != high else f"{low}"
            raise ValueError(f"job {spec.name!r} allows {key} {allowed}, got {value}")
    if min(shape.data, shape.pipeline, shape.tensor) < 1:
        raise ValueError(f"job {spec.name!r} has no worker in shape {shape}")
    if shape.servers < 0 or shape.batch < 0:
        raise ValueError(f"job {spec.name!r} has a negative number in shape {shape}")
    if par.cut not in CUTS or par.sync not in SYNCS or (par.cut == "layered" and par.width < 1):
        raise ValueError(f"job {spec.name!r} has an unknown cut, sync or width in {par}")
    if shape.tasks > TASKS_MAX or edge_count(par, shape) > EDGES_MAX:
        limits = f"{TASKS_MAX} tasks or {EDGES_MAX} edges"
        raise ValueError(f"job {spec.name!r} has over {limits} in shape {shape}")


def _next_partitions(par: Parallelism, partition: int, partitions: int) -> range:
    """Return the partitions of the same replica that ``partition`` feeds."""
    if par.cut == "chain":
        return range(partition + 1, min(partition + 2, partitions))
    if par.cut == "layered":
        first = (partition // par.width + 1) * par.width
        return range(first, min(first + par.width, partitions)) if first < partitions else range(0)
    return range(0)


def sync_bytes(spec: JobSpec) -> int:
    """Return the gradient bytes of a replica and iteration; not given: 4 a parameter, or 0 if unknown."""
    if spec.model.sync_bytes is not None:
        return spec.model.sync_bytes
    return GRADIENT_BYTES_PER_PARAMETER * (spec.model.parameters or 0)


def expand(spec: JobSpec, shape: Shape | None = None, *, alternative: int = 0) -> Expansion:
    """Return the tasks and the dependency graph of a job in a shape (None: its default shape).

    ``alternative`` chooses among the job's GPU alternatives. ValueError for zero workers, for a shape outside
    the job's bounds, and for task demands or partitions whose number doesn't fit the shape.
    """
    shape = default_shape(spec) if shape is None else shape
    _refuse_shape(spec, shape)
    if not 0 <= alternative < len(spec.resources.gpu_alternatives):
        raise ValueError(f"job {spec.name!r} has no GPU alternative {alternative}")
    par, workers, servers = spec.parallelism, shape.workers, shape.servers
    parts = shape.pipeline * shape.tensor
    demands = _demands(spec, shape, alternative)

    # A replica's graph is built once; each replica is the same graph, moved on.
    feeds = [_next_partitions(par, partition, parts) for partition in range(parts)]
    gradients = split_evenly(sync_bytes(spec), servers) if servers and par.sync == "parameter-server" else ()
    start: list[int] = [0]
    child: list[int] = []
    sent: list[int] = []
    edge_bytes = spec.model.edge_bytes or 0
    for first in range(0, workers, parts):
        for next_parts in feeds:
            if next_parts:
                child.extend(range(first + next_parts.start, first + next_parts.stop))
                sent.extend([edge_bytes] * len(next_parts))
            elif gradients:
                child.extend(range(workers, workers + servers))
                sent.extend(gradients)
            start.append(len(child))
    start.extend([len(child)] * servers)

    return Expansion(
        workers=workers,
        servers=servers,
        role=(WORKER,) * workers + (SERVER,) * servers,
        replica=tuple(i // parts for i in range(workers)) + (-1,) * servers,
        partition=tuple(range(parts)) * shape.data + tuple(range(servers)),
        **demands,
        edge_start=tuple(start),
        edge_child=tuple(child),
        edge_bytes=tuple(sent),
        ring_bytes=sync_bytes(spec) if par.sync == "all-reduce" and shape.data > 1 else 0,
    )


def _demands(spec: JobSpec, shape: Shape, alternative: int) -> dict[str, tuple[int, ...]]:
    """Return the columns of shares and resources."""
    if spec.task_demands is not None:
        if len(spec.task_demands) != shape.tasks:
            given = len(spec.task_demands)
            raise ValueError(f"job {spec.name!r} gives demands of {given} tasks; {shape} has {shape.tasks}")
        columns = TaskDemand.__slots__
        return {name: tuple(getattr(demand, name) for demand in spec.task_demands) for name in columns}
    parts = shape.pipeline * shape.tensor
    shares = spec.model.partitions or split_evenly(PPM, parts)
    if len(shares) != parts:
        raise ValueError(f"job {spec.name!r} gives {len(shares)} partitions; {shape} has {parts}")
    worker = spec.resources
    server = spec.server_resources or replace(worker, gpu_alternatives=(GpuDemand(milli=0),))
    return {
        "share_ppm": shares * shape.data + (0,) * shape.servers,
        "gpu_milli": (worker.gpu_alternatives[alternative].milli,) * shape.workers
        + (server.gpu_alternatives[0].milli,) * shape.servers,
        "cpus_milli": (worker.cpus_milli,) * shape.workers + (server.cpus_milli,) * shape.servers,
        "memory_bytes": (worker.memory_bytes,) * shape.workers + (server.memory_bytes,) * shape.servers,
        "network_bytes_per_s": (worker.network_bytes_per_s,) * shape.workers + (server.network_bytes_per_s,) * shape.servers,
    }
