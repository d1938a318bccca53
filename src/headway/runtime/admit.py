"""From a job as its owner describes it to the columns of the tables: the payload of SUBMITTED.

The tables make a job's tasks and graph from its columns (`core.expand`), as `core.model.expand` makes them from its spec.
Where equal columns would not give equal tasks (partitions of different sizes, servers with network, tasks described one by
one), the payload carries each task's numbers (`DETAILS`). Such a job has one shape; for one that may be resized, the
columns alone are used, and its partitions count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import Cut, EventKind, Name, StopRule, Sync
from headway.core.errors import UserError
from headway.core.events import EventBatch, EventBuffer
from headway.core.model import PPM, GpuDemand, JobSpec, Resources, expand, sync_bytes
from headway.core.shape import split_evenly
from headway.core.state import State
from headway.core.units import format_gpus, format_milli, format_size

K_NAMED = int(EventKind.NAMED)
_TABLES = tuple(Name)
CUTS = {"none": Cut.NONE, "chain": Cut.CHAIN, "layered": Cut.LAYERED}
SYNCS = {"none": Sync.NONE, "all-reduce": Sync.ALL_REDUCE, "parameter-server": Sync.PARAMETER_SERVER}
RULES = {"fixed": StopRule.FIXED, "optstop": StopRule.OPTSTOP, "accuracy": StopRule.ACCURACY}
ANY_KIND = -1
TASKS_MAX = 1 << 16
"""Tasks of one job; the tables would hold millions, but not for every job that somebody hands in by mistake."""


class Names:
    """Names as numbers, for users, queues, groups and models; kinds of GPU are only looked up.

    A name that is new gets the next number at once; `take_news` then says so as events, which belong before whatever uses
    the number.
    """

    def __init__(self) -> None:
        self._numbers: dict[Name, dict[str, int]] = {table: {} for table in Name}
        self._news: list[tuple[Name, int, str]] = []
        self._ids_given: dict[str, int] = {}
        self._next = dict.fromkeys(Name, 0)

    def learn(self, batch: EventBatch) -> None:
        """Take in the names of a batch that has been journalled."""
        if not batch.texts:
            return
        kinds, tables, numbers = (batch.records[:, column].tolist() for column in (c.E_KIND, c.E_A, c.E_ID))
        for index, text in batch.texts.items():
            if kinds[index] == K_NAMED:
                self.add(_TABLES[tables[index]], text, numbers[index])

    def add(self, table: Name, name: str, number: int) -> None:
        """A name that has its number already."""
        self._numbers[table][name] = number
        self._next[table] = max(self._next[table], number + 1)

    def number(self, table: Name, name: str) -> int:
        """The number of a name, given to it now if it has none."""
        known = self._numbers[table]
        if name not in known:
            self.add(table, name, self._next[table])
            self._news.append((table, known[name], name))
        return known[name]

    def restore(self, numbers: dict[Name, dict[str, int]], ids_given: dict[str, int]) -> None:
        """Become what was known once."""
        self._numbers, self._ids_given = numbers, ids_given
        self._next = {table: max(names.values(), default=-1) + 1 for table, names in numbers.items()}

    def known(self, table: Name, name: str) -> int | None:
        """The number of a name, or None."""
        return self._numbers[table].get(name)

    def listed(self, table: Name) -> dict[str, int]:
        """All names of a table, with their numbers, in the order in which they came."""
        return self._numbers[table]

    def next_id(self, name: str) -> str:
        """The first of NAME-1, NAME-2, … that no job has had as its id."""
        count = self._ids_given.get(name, 0) + 1
        while f"{name}-{count}" in self._numbers[Name.JOB]:
            count += 1
        self._ids_given[name] = count
        return f"{name}-{count}"

    def take_news(self, out: EventBuffer, t_us: int) -> None:
        """Append the events of the names given since the last call. A new queue has no quota and no limit."""
        for table, number, name in self._news:
            out.add(t_us, EventKind.NAMED, number, a=table, text=name)
            if table == Name.QUEUE:
                out.add(t_us, EventKind.QUEUE_SET, number, payload=(-1, -1, 1, -1))
        self._news.clear()


def spec_columns(spec: JobSpec, names: Names, *, submitted_us: int = 0, fractional_gpus: bool = True) -> Ints:
    """The `SPEC_COLUMNS` numbers of a valid job that is submitted at `submitted_us`. Where the engine has no
    `fractional_gpus`, nobody shares a GPU.

    Raises:
        UserError: a demand that the tables can't hold.
    """
    par, worker = spec.parallelism, spec.resources
    server = spec.server_resources or worker
    if par.servers_max and spec.server_resources is not None and any(gpu.milli for gpu in server.gpu_alternatives):
        raise UserError("expected parameter servers without GPUs", key="server_resources.gpu")
    if (tasks := par.data_max * par.partitions + par.servers_max) > TASKS_MAX:
        raise UserError(f"expected at most {TASKS_MAX} tasks, got {tasks}", key="parallelism")
    if par.servers_min != par.servers_max:
        raise UserError("expected a fixed number of parameter servers", key="parallelism.servers")
    (gpu, kinds), (other_gpu, other_kinds) = _gpu_choices(worker.gpu_alternatives, names)
    shares = spec.model.partitions or split_evenly(PPM, par.partitions)
    if spec.task_demands is not None:
        shares = tuple(demand.share_ppm for demand in spec.task_demands)
    estimate = spec.estimate_us if spec.estimate_us is not None else spec.time_limit_us
    values = {
        c.J_USER: names.number(Name.USER, spec.user),
        c.J_QUEUE: names.number(Name.QUEUE, spec.queue),
        c.J_PRIORITY: spec.priority,
        c.J_DEADLINE: c.NEVER if spec.deadline_us is None else submitted_us + spec.deadline_us,
        c.J_URGENCY: spec.urgency,
        c.J_DATA: par.data,
        c.J_PIPELINE: par.pipeline,
        c.J_TENSOR: par.tensor,
        c.J_SERVERS: par.servers,
        c.J_DATA_MIN: par.data_min,
        c.J_DATA_MAX: par.data_max,
        c.J_CUT: CUTS[par.cut],
        c.J_WIDTH: par.width,
        c.J_SYNC: SYNCS[par.sync],
        c.J_GPU_TASK: gpu,
        c.J_KIND_MASK: kinds,
        c.J_CPU_TASK: worker.cpus_milli,
        c.J_MEM_TASK: worker.memory_bytes,
        c.J_NET_TASK: worker.network_bytes_per_s,
        c.J_ALT_GPU: other_gpu,
        c.J_ALT_MASK: other_kinds,
        c.J_SHARE: int(spec.share_gpu and fractional_gpus),
        c.J_ESTIMATE: _or_never(estimate),
        c.J_UNITS_TOTAL: spec.progress.total or 0,
        c.J_STOP_RULE: RULES[spec.stop.rule],
        c.J_STOP_ALLOW: sum(1 << RULES[rule] for rule in set(spec.stop.allow)),
        c.J_ACC_REQUIRED: round((spec.goal_accuracy or 0.0) * PPM),
        c.J_TIME_LIMIT: _or_never(spec.time_limit_us),
        c.J_GRACE: max(spec.checkpoint.grace_us, spec.checkpoint.save_us or 0, 1),
        c.J_SAVE: spec.checkpoint.save_us or 0,
        c.J_RESTORE: spec.checkpoint.restore_us or 0,
        c.J_EVERY: spec.checkpoint.every_us or 0,
        c.J_RETRY_MAX: spec.retry_max,
        c.J_GROUP: names.number(Name.GROUP, spec.group) if spec.group else -1,
        c.J_MODEL: names.number(Name.MODEL, spec.model.name) if spec.model.name else -1,
        c.J_SKEW: max(shares, default=0),
        c.J_EDGE_BYTES: spec.model.edge_bytes or 0,
        c.J_SYNC_BYTES: sync_bytes(spec),
        c.J_SERVER_CPU: server.cpus_milli if par.servers else 0,
        c.J_SERVER_MEM: server.memory_bytes if par.servers else 0,
        c.J_SERVER_NET: server.network_bytes_per_s if par.servers else 0,
    }
    row = [0] * c.SPEC_COLUMNS
    for column, value in values.items():
        row[column] = value
    row[c.J_DETAILS] = len(details(spec)) // c.DETAIL
    return np.array(row, np.int64)


def details(spec: JobSpec) -> Ints:
    """`DETAIL` numbers a task, for a job whose tasks can't be told from its columns; else nothing."""
    if spec.parallelism.elastic or (spec.task_demands is None and _columns_suffice(spec)):
        return np.empty(0, np.int64)
    tasks = expand(spec)
    table = (tasks.gpu_milli, tasks.cpus_milli, tasks.memory_bytes, tasks.network_bytes_per_s, tasks.share_ppm)
    return np.array(table, np.int64).T.ravel()


def _columns_suffice(spec: JobSpec) -> bool:
    """Whether the tables make from the job's columns the very tasks that `expand` makes from its spec."""
    shares, servers = spec.model.partitions, spec.server_resources or spec.resources
    even = not shares or shares == split_evenly(PPM, spec.parallelism.partitions)
    return even and not (spec.parallelism.servers and servers.network_bytes_per_s)


def _gpu_choices(alternatives: Sequence[GpuDemand], names: Names) -> tuple[tuple[int, int], tuple[int, int]]:
    """GPU milli a task and kind mask of the first alternative, and of the first that wants another number of GPUs."""
    masks: dict[int, int] = {}
    for demand in alternatives:
        masks[demand.milli] = masks.get(demand.milli, 0) | _mask(demand, names)
    if len(masks) > 2:
        raise UserError(f"expected at most two different numbers of GPUs, got {format_gpus(alternatives)}", key="resources.gpu")
    first, *others = masks.items()
    return first, others[0] if others else (0, 0)


def _mask(demand: GpuDemand, names: Names) -> int:
    if not demand.kind:
        return ANY_KIND
    number = names.known(Name.KIND, demand.kind)
    return 0 if number is None else 1 << number


def _or_never(time_us: int | None) -> int:
    return c.NEVER if time_us is None else time_us


Room = Sequence[int]
"""What an empty node has: its kind of GPU, GPUs, cpus and memory."""


def rooms_of(state: State, nodes: Sequence[int]) -> list[Room]:
    """What these nodes would have if they were empty."""
    found: list[Room] = state.N[[c.N_KIND, c.N_GPUS, c.N_CPU_MAX, c.N_MEM_MAX]][:, nodes].T.tolist()
    return found


def too_large(spec: JobSpec, row: Ints, rooms: Sequence[Room]) -> str:
    """Why a job can never start on these nodes, even if they were empty; nothing if it can.

    On one kind of GPU, as the placement kernels do it: workers one by one on the nodes in order, then the servers wherever
    there is room.
    """
    workers, servers = spec.parallelism.data * spec.parallelism.partitions, spec.parallelism.servers
    choices = [(int(row[c.J_GPU_TASK]), int(row[c.J_KIND_MASK]))]
    if row[c.J_ALT_MASK]:
        choices.append((int(row[c.J_ALT_GPU]), int(row[c.J_ALT_MASK])))
    if spec.task_demands is not None:
        # A gang of tasks that differ is placed as if each were as large as the largest.
        cpus, memory = (max(getattr(d, name) for d in spec.task_demands[:workers]) for name in ("cpus_milli", "memory_bytes"))
        choices = [(max(d.gpu_milli for d in spec.task_demands[:workers]), choices[0][1])]
    else:
        cpus, memory = spec.resources.cpus_milli, spec.resources.memory_bytes
    most = 0
    for milli, mask in choices:
        gpus = -(-milli // c.WHOLE)
        for kind in sorted({room[0] for room in rooms}) if gpus else [None]:
            if kind is not None and not mask >> kind & 1:
                continue
            fit = [_fit(room, gpus, cpus, memory) if kind is None or room[0] == kind else 0 for room in rooms]
            most = max(most, sum(fit))
            if sum(fit) >= workers and _servers_fit(row, rooms, fit, workers, servers, cpus, memory):
                return ""
    if choices[0][0] and not any(mask >> room[0] & 1 for _, mask in choices for room in rooms):
        return f"no node has GPUs of the kind that it asks for ({format_gpus(spec.resources.gpu_alternatives)})"
    needs = f"{workers} worker{'s' if workers != 1 else ''} of {_demand(spec.resources)}"
    if servers:
        needs += f" and {servers} server{'s' if servers != 1 else ''}"
    return f"larger than the cluster: it needs {needs} at once, and the empty cluster has room for {min(most, workers)}"


def _fit(room: Room, gpus: int, cpus: int, memory: int) -> int:
    _, has_gpus, has_cpus, has_memory = room
    limits = [has // each for has, each in ((has_gpus, gpus), (has_cpus, cpus), (has_memory, memory)) if each]
    return min(limits, default=1 << 30)


def _servers_fit(row: Ints, rooms: Sequence[Room], fit: list[int], workers: int, servers: int, cpus: int, memory: int) -> bool:
    """Whether the servers find room beside the workers, which fill the nodes in order."""
    left = workers
    for (_, _, has_cpus, has_memory), most in zip(rooms, fit, strict=True):
        here = min(most, left)
        left -= here
        free_cpus, free_memory = has_cpus - here * cpus, has_memory - here * memory
        while servers and free_cpus >= row[c.J_SERVER_CPU] and free_memory >= row[c.J_SERVER_MEM]:
            free_cpus, free_memory = free_cpus - int(row[c.J_SERVER_CPU]), free_memory - int(row[c.J_SERVER_MEM])
            servers -= 1
    return servers == 0


def _demand(resources: Resources) -> str:
    """What one worker asks for, as a person writes it."""
    parts = [f"{format_gpus(resources.gpu_alternatives)} GPU", f"{format_milli(resources.cpus_milli)} cpus"]
    if resources.memory_bytes:
        parts.append(format_size(resources.memory_bytes))
    return ", ".join(parts)
