"""The cluster behind a Slurm accounting: from what `sinfo` or `scontrol show node` says, or from what ran where.

Nodes are read from `sinfo -N -h -o "%N|%P|%c|%m|%G|%T|%f"` (or any other order, with its header), `sinfo --json`, or
`scontrol show node`. Headway has no partitions: nodes of one GPU type and the same partitions are one *kind*, and a job may use
the kinds of its partition (and of the GPU type that it asked for).

What really ran fits: a node gets at least the cpus, memory and GPUs that jobs held on it at one time by the accounting, since
Slurm may be set not to count them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headway.core import columns as c
from headway.core.arrays import Ints
from headway.core.columns import GPUS_PER_NODE_MAX
from headway.core.errors import UserError, shown
from headway.workloads.cluster import ANY_KIND, KINDS_MAX, NETWORK_BYTES_PER_S, NODES_MAX, RACK_NODES, Cluster, Node
from headway.workloads.schema import Workload
from headway.workloads.slurm import SlurmHistory
from headway.workloads.slurm_cells import parse_gres, parse_hosts

SINFO_FORMAT = "%N|%P|%c|%m|%G|%T|%f"
SINFO_COLUMNS = ("NODELIST", "PARTITION", "CPUS", "MEMORY", "GRES", "STATE", "AVAIL_FEATURES")
GONE = ("down", "drain", "fail", "future", "unknown", "not_responding", "power", "maint")
"""How the states of nodes begin that cannot run anything now."""
MIB = 2**20

_WORDS = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node as Slurm describes it."""

    name: str
    partitions: tuple[str, ...]
    cpus: int
    memory_bytes: int
    gpus: int
    gpu_type: str = ""
    state: str = "idle"

    @property
    def gone(self) -> bool:
        """Whether it cannot run anything now."""
        return self.state.lower().strip("*~#!%$@^-+").startswith(GONE)


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A cluster, the jobs with the kinds of it that each may use, and what had to be assumed, in words."""

    cluster: Cluster
    workload: Workload
    assumptions: tuple[str, ...]


def rebuild(history: SlurmHistory, nodes: Sequence[SlurmNode], name: str) -> Rebuilt:
    """Return the cluster of these nodes; those that are gone now count if they ran something."""
    said: list[str] = []
    load = peaks(history)
    kept = [node for node in nodes if not node.gone or node.name in load]
    if left := len(nodes) - len(kept):
        said.append(f"{_count(left, 'node')} that cannot run anything now and ran nothing in this time are left out")
    if not kept:
        raise UserError("no node is up", file=name)
    fitted = [_at_least(node, load.get(node.name, (0, 0, 0))) for node in kept]
    raised = [was.name for was, node in zip(kept, fitted, strict=True) if was != node]
    if raised:
        said.append(
            f"{_count(len(raised), 'node')} ran more at one time than they have, so Slurm does not count it: they get what ran"
            f" ({', '.join(raised[:3])}{', …' if len(raised) > 3 else ''})"
        )
    if absent := set(load) - {node.name for node in kept}:
        said.append(f"{_count(len(absent), 'node')} on which jobs ran are no longer there, and are left out")
    of_node = {node.name: frozenset(node.partitions) for node in fitted}
    classes = {(node.gpu_type, of_node[node.name]) for node in fitted}
    partitioned = len(set(of_node.values())) > 1
    if partitioned and len(classes) > KINDS_MAX:
        said.append(f"over {KINDS_MAX} groups of nodes by GPU type and partitions: any job may run in any partition")
        partitioned = False
    kinds: dict[str, tuple[str, frozenset[str] | None]] = {}
    made = []
    for i, node in enumerate(fitted):
        kind = node.gpu_type or ANY_KIND
        where = of_node[node.name] if partitioned else None
        label = f"{kind}@{'+'.join(sorted(where))}" if where is not None else kind
        kinds.setdefault(label, (node.gpu_type, where))
        made.append(_node(node, i, list(kinds).index(label)))
    workload, more = _with_kinds(history, kinds)
    if partitioned and np.any(workload.gpus == 0):
        said.append("jobs without GPUs may run on the nodes of any partition")
    return Rebuilt(Cluster(name, tuple(made), tuple(kinds)), workload, (*said, *more))


def fitted(history: SlurmHistory, cluster: Cluster) -> Rebuilt:
    """Return a cluster of which GPUs alone are known: cpus and memory are enough for what ran, and any job may run anywhere."""
    most = [max(peak[i] for peak in load.values()) for i in (1, 2)] if (load := peaks(history)) else [0, 0]
    spec = history.workload.spec
    cpus = max(most[0], int(spec[c.J_CPU_TASK].max()))
    memory = max(most[1], int(spec[c.J_MEM_TASK].max()))
    nodes = tuple(
        replace(node, cpus_milli=max(node.cpus_milli, cpus), memory_bytes=max(node.memory_bytes, memory))
        for node in cluster.nodes
    )
    workload = _free(history.workload)
    return Rebuilt(
        replace(cluster, nodes=nodes),
        workload,
        (
            "the nodes are those given, with cpus and memory for all that ran on one node at one time; any job may run on any of"
            " them, whatever its partition or type of GPU",
        ),
    )


def inferred(history: SlurmHistory) -> Rebuilt:
    """Return the cluster that the accounting itself shows: the nodes that ran something, with the most that each ran at once."""
    load = peaks(history)
    if load:
        nodes = [SlurmNode(name, (), -(-cpus // 1000), memory, gpus) for name, (gpus, cpus, memory) in sorted(load.items())]
        how = "has one node for each that ran a job, with the most GPUs, cpus and memory that were in use there at one time"
    else:
        nodes = _nodes_without_hosts(history)
        how = f"is {len(nodes)} equal nodes of {nodes[0].gpus} GPUs: the most that was in use at one time, as no hosts are given"
    made = tuple(_node(node, i, 0) for i, node in enumerate(nodes))
    cluster = Cluster("inferred", made, (ANY_KIND,))
    return Rebuilt(cluster, _free(history.workload), (f"the cluster {how}; any job may run on any of them",))


def _nodes_without_hosts(history: SlurmHistory) -> list[SlurmNode]:
    """As many nodes as the peak of all jobs needs, each as large as the largest part of a job."""
    everywhere = peaks(replace(history, runs=tuple(replace(run, hosts="all") for run in history.runs)))["all"]
    spec = history.workload.spec
    each = [int(spec[column].max()) for column in (c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK)]
    each[0] //= c.WHOLE
    count = max([1, *(-(-most // part) for most, part in zip(everywhere, each, strict=True) if part)])
    workers = spec[c.J_DATA].max()
    count = min(max(count, int(workers)), NODES_MAX)
    return [SlurmNode(f"n{i}", (), -(-each[1] // 1000), each[2], each[0]) for i in range(count)]


def _at_least(node: SlurmNode, peak: tuple[int, int, int]) -> SlurmNode:
    gpus, cpus, memory = peak
    return replace(
        node,
        gpus=max(node.gpus, gpus),
        cpus=max(node.cpus, -(-cpus // 1000)),
        memory_bytes=max(node.memory_bytes, memory),
    )


def _node(node: SlurmNode, index: int, kind: int) -> Node:
    if node.gpus > GPUS_PER_NODE_MAX:
        raise UserError(f"expected at most {GPUS_PER_NODE_MAX} GPUs on a node, got {node.gpus}", key=f"node {node.name}")
    return Node(
        node.name, index // RACK_NODES, kind, node.gpus, node.cpus * 1000, node.memory_bytes, NETWORK_BYTES_PER_S
    )  # fmt: skip


def _free(workload: Workload) -> Workload:
    """The same jobs, which may use any kind."""
    spec = workload.spec.copy()
    spec[c.J_KIND_MASK] = -1
    return replace(workload, spec=spec, kinds=())


def _with_kinds(history: SlurmHistory, kinds: Mapping[str, tuple[str, frozenset[str] | None]]) -> tuple[Workload, list[str]]:
    """The jobs with masks over the cluster's kinds, and what had to be assumed."""
    masks: dict[tuple[str, str], int] = {}
    lost = 0
    spec = history.workload.spec.copy()
    for job, (partition, asked) in enumerate(zip(history.partitions, history.kinds_asked, strict=True)):
        key = (partition, asked)
        if key not in masks:
            # A job that still waited names several partitions; one that ran names its own.
            wanted = set(partition.split(","))
            masks[key] = sum(
                1 << i
                for i, (gpu_type, where) in enumerate(kinds.values())
                if (not asked or asked == gpu_type) and (where is None or not partition or wanted & where)
            )
        lost += masks[key] == 0 and spec[c.J_GPU_TASK, job] > 0
        spec[c.J_KIND_MASK, job] = masks[key] or -1
    spec[c.J_KIND_MASK, spec[c.J_GPU_TASK] == 0] = -1
    said = [f"{_count(lost, 'job')} of a partition or a type of GPU that is no longer there may run on any node"] if lost else []
    return replace(history.workload, spec=spec, kinds=tuple(kinds)), said


def peaks(history: SlurmHistory) -> dict[str, tuple[int, int, int]]:
    """The most (GPUs, thousandths of cpus, bytes of memory) that jobs held on each host at one time.

    A job's resources are equal on its hosts, as far as they can be divided; what is left over is on the first of them.
    """
    spec = history.workload.spec
    totals = np.stack([spec[column] * spec[c.J_DATA] for column in (c.J_GPU_TASK, c.J_CPU_TASK, c.J_MEM_TASK)])
    totals[0] //= c.WHOLE
    names: dict[str, int] = {}
    hosts_of: dict[str, list[int]] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    for run in history.runs:
        if run.hosts not in hosts_of:
            try:
                found = parse_hosts(run.hosts)
            except ValueError:
                found = []
            hosts_of[run.hosts] = [names.setdefault(name, len(names)) for name in found]
        hosts = hosts_of[run.hosts]
        for i, host in enumerate(hosts):
            gpus, cpus, memory = (int(total) // len(hosts) + (i < int(total) % len(hosts)) for total in totals[:, run.job])
            rows.append((host, run.start_us, 1, gpus, cpus, memory))
            rows.append((host, run.end_us, 0, -gpus, -cpus, -memory))
    if not rows:
        return {}
    table = np.array(rows, np.int64)
    # What ends at an instant makes room for what starts then.
    table = table[np.lexsort((table[:, 2], table[:, 1], table[:, 0]))]
    first = np.flatnonzero(np.diff(table[:, 0], prepend=-1))
    # Every host's sum comes back to 0, so one running sum serves them all.
    most: list[Ints] = [np.maximum.reduceat(np.cumsum(table[:, column]), first) for column in (3, 4, 5)]
    by_number = list(names)
    return {
        by_number[host]: (int(gpus), int(cpus), int(memory))
        for host, gpus, cpus, memory in zip(table[first, 0].tolist(), *most, strict=True)
    }


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


# -- reading ------------------------------------------------------------------------------------------------------
def parse_nodes(text: str, file: str) -> list[SlurmNode]:
    """Return the nodes of `sinfo -N -o …`, `sinfo --json` or `scontrol show node`; `UserError` for anything else."""
    start = text.lstrip()
    if start.startswith("{"):
        found = _from_json(text, file)
    elif start.startswith("NodeName="):
        found = _from_scontrol(text, file)
    else:
        found = _from_table(text, file)
    merged: dict[str, SlurmNode] = {}
    for node in found:
        seen = merged.get(node.name)
        both = tuple(dict.fromkeys((*(seen.partitions if seen else ()), *node.partitions)))
        merged[node.name] = replace(seen or node, partitions=both)
    if not merged:
        raise UserError("no node", file=file)
    if len(merged) > NODES_MAX:
        raise UserError(f"over {NODES_MAX} nodes", file=file)
    return list(merged.values())


def _from_table(text: str, file: str) -> list[SlurmNode]:
    lines = [(i, line.strip()) for i, line in enumerate(text.split("\n"), start=1) if line.strip()]
    columns = list(SINFO_COLUMNS)
    if lines and {"NODELIST", "GRES"} <= (header := {cell.strip().upper() for cell in lines[0][1].split("|")}):
        columns = [cell.strip().upper() for cell in lines[0][1].split("|")]
        lines = lines[1:]
        if missing := [column for column in ("CPUS", "MEMORY") if column not in header]:
            raise UserError(f"no column {', '.join(missing)}", file=file, line=1)
    found: list[SlurmNode] = []
    for number, line in lines:
        cells = dict(zip(columns, (cell.strip() for cell in line.split("|")), strict=False))
        if len(line.split("|")) < 5:
            raise UserError(
                f'expected nodes as `sinfo -N -o "{SINFO_FORMAT}"` prints them, got {shown(line)}', file=file, line=number
            )
        try:
            for name in parse_hosts(cells["NODELIST"]):
                partition = cells.get("PARTITION", "").rstrip("*")
                found.append(
                    _slurm_node(
                        name,
                        (partition,) if partition else (),
                        cells["CPUS"],
                        cells["MEMORY"],
                        cells["GRES"],
                        cells.get("STATE", "idle"),
                    )
                )
        except ValueError as error:
            raise UserError(str(error), file=file, line=number) from None
    return found


def _from_scontrol(text: str, file: str) -> list[SlurmNode]:
    found = []
    for block in re.split(r"(?m)^(?=NodeName=)", text):
        if not block.strip():
            continue
        words = dict(_WORDS.findall(block))
        partitions = tuple(name for name in words.get("Partitions", "").split(",") if name)
        try:
            found.append(
                _slurm_node(
                    words["NodeName"],
                    partitions,
                    words["CPUTot"],
                    words["RealMemory"],
                    words.get("Gres", ""),
                    words.get("State", "IDLE"),
                )
            )
        except KeyError as error:
            raise UserError(f"no {error.args[0]} of node {shown(words.get('NodeName'))}", file=file) from None
        except ValueError as error:
            raise UserError(str(error), file=file, key=f"node {words['NodeName']}") from None
    return found


def _from_json(text: str, file: str) -> list[SlurmNode]:
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", file=file) from None
    listed = root.get("nodes", root.get("sinfo")) if isinstance(root, dict) else None
    if isinstance(listed, dict):
        listed = listed.get("nodes")
    found = []
    for i, node in enumerate(listed if isinstance(listed, list) else ()):
        key = f"nodes[{i}]"
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            raise UserError("expected a node with a name as `sinfo --json` prints it", file=file, key=key)
        state = node.get("state", "idle")
        words = [state] if isinstance(state, str) else [str(word) for word in state]
        flags = [str(flag) for flag in node.get("state_flags") or ()]
        gone = [word for word in (*words, *flags) if word.lower().startswith(GONE)]
        partitions = tuple(str(name) for name in node.get("partitions") or ())
        try:
            found.append(
                _slurm_node(
                    node["name"], partitions, str(node["cpus"]), str(node["real_memory"]), str(node.get("gres") or ""),
                    (gone or words or ["idle"])[0],
                )
            )  # fmt: skip
        except KeyError as error:
            raise UserError(f"no {error.args[0]}", file=file, key=key) from None
        except ValueError as error:
            raise UserError(str(error), file=file, key=key) from None
    return found


def _slurm_node(name: str, partitions: tuple[str, ...], cpus: str, memory_mib: str, gres: str, state: str) -> SlurmNode:
    """A node from its cells. Of several types of GPU on one node the one with most GPUs gives the name; all are counted."""
    gpus = parse_gres(gres)
    kind = max(gpus, key=lambda k: (gpus[k], k)) if gpus else ""
    number = _whole(cpus, "cpus")
    return SlurmNode(name, partitions, number, _whole(memory_mib, "MiB of memory") * MIB, sum(gpus.values()), kind, state)


def _whole(text: str, what: str) -> int:
    digits = text.rstrip("+")
    if not digits.isdecimal() or len(digits) > 12:
        raise ValueError(f"expected {what}, a whole number, got {shown(text)}")
    return int(digits)
