"""Clusters: `NODESxGPUS`, presets, and cluster files in YAML.

```yaml
nodes:
  - {count: 16, gpus: 8, kind: a100, cpus: 64, memory: 512GB, rack: 4, network: 100Gb}    # rack: nodes in a rack
  - {gpus: 4, kind: v100, speed: 0.55, background: 20%}                                   # of the fastest GPU; used by others
queues:
  vision: {quota: 16, limit: 32, weight: 2, parent: research}                             # GPUs; all optional
  research:
share_limit: 0.9                                                                          # of a shared GPU, at most
oversubscription: 4                                                                       # of the racks' uplinks, N:1
```
What is not given: 8 cpus and 64 GB a GPU (8 cpus and 64 GB on a node without one), 10 Gb/s, racks of 16 nodes, GPUs of one
kind called `gpu`, all equally fast, no background load, uplinks as wide as all NICs of a rack.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from headway.core import units
from headway.core.columns import GPUS_PER_NODE_MAX, WHOLE, EventKind, Name
from headway.core.errors import UserError, shown
from headway.core.events import EventBatch, EventBuffer
from headway.core.specstring import unknown_name
from headway.workloads.generators.draws import PPM, Draws, share_of
from headway.workloads.yamlmarks import Marks, compose, read_text

NODES_MAX = 1 << 17
KINDS_MAX = 63
"""GPU kinds are the bits of a job's kind mask."""
QUEUES_MAX = 10_000
QUEUE_LEVELS_MAX = 16
RACK_NODES = 16
CPUS_MILLI_PER_GPU = 8_000
MEMORY_BYTES_PER_GPU = 64 * 10**9
NETWORK_BYTES_PER_S = 1_250_000_000
ANY_KIND = "gpu"

_SIZE = re.compile(r"([0-9]{1,9})x([0-9]{1,9})")
_LOOKS_LIKE_SIZE = re.compile(r"[-+]?[0-9.]*[xX*][-+]?(?:[0-9.]*|nan|inf)", re.IGNORECASE)
_BITS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s?([GM])b(?:it)?(?:/s|ps)?")


@dataclass(frozen=True, slots=True)
class Node:
    """A machine. `kind` is an index into the cluster's `kinds`, `rack` a number. `speed_ppm` is that of its GPUs against the
    fastest; `background_ppm` is the share of its GPUs' speed and of its network that others use, as monitoring shows it.
    """

    name: str
    rack: int
    kind: int
    gpus: int
    cpus_milli: int
    memory_bytes: int
    network_bytes_per_s: int
    speed_ppm: int = PPM
    background_ppm: int = 0


@dataclass(frozen=True, slots=True)
class Queue:
    """Whose share a job uses; None: no quota, no limit."""

    name: str
    quota_gpus: int | None = None
    limit_gpus: int | None = None
    weight: int = 1
    parent: str | None = None


@dataclass(frozen=True)
class Cluster:
    """Nodes, GPU kinds and the queues that have settings."""

    name: str
    nodes: tuple[Node, ...]
    kinds: tuple[str, ...] = (ANY_KIND,)
    queues: tuple[Queue, ...] = ()
    share_limit_milli: int = WHOLE
    oversubscription: int = 1
    """The nodes of a job that spans racks have their network divided by this."""

    @cached_property
    def gpus(self) -> int:
        """All GPUs."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def gpus_max(self) -> int:
        """GPUs of the largest node."""
        return max((node.gpus for node in self.nodes), default=0)

    def with_quotas(self, queues: Sequence[str], quotas_ppm: Sequence[int]) -> Cluster:
        """This cluster with quotas for those of the queues that it has no settings for: shares of its GPUs, rounded down."""
        known = {queue.name for queue in self.queues}
        quotas = zip(queues, quotas_ppm, strict=False)
        more = [Queue(name, quota_gpus=self.gpus * share // PPM) for name, share in quotas if name not in known]
        return replace(self, queues=(*self.queues, *more)) if more else self

    def events(self, t_us: int = 0, users: Sequence[str] = (), queues: Sequence[str] = ()) -> EventBatch:
        """The events that tell a new state this cluster, and the names of users and queues by their numbers.

        `queues` are the workload's, in the order of its numbers; the cluster's other queues follow. A queue without settings
        has no quota and no limit.
        """
        out = EventBuffer(4 * len(self.nodes) + 64, 8 * len(self.nodes) + 64)
        limits = (self.gpus_max, self.share_limit_milli)
        out.add(t_us, EventKind.CLUSTER_SET, a=len(self.nodes), b=self.gpus, c=len(self.kinds), payload=limits)
        known = {queue.name: queue for queue in self.queues}
        listed = [*queues, *(name for name in known if name not in set(queues))]
        for table, names in (
            (Name.KIND, self.kinds),
            (Name.NODE, [node.name for node in self.nodes]),
            (Name.USER, users),
            (Name.QUEUE, listed),
        ):
            for index, name in enumerate(names):
                out.add(t_us, EventKind.NAMED, index, a=table, text=name)
        first = 0
        for index, node in enumerate(self.nodes):
            row = (node.rack, node.kind, node.gpus, first, node.cpus_milli, node.memory_bytes, node.network_bytes_per_s)
            out.add(t_us, EventKind.NODE_ADDED, index, payload=row)
            first += node.gpus
        for index, name in enumerate(listed):
            queue = known.get(name, Queue(name))
            parent = -1 if queue.parent is None else listed.index(queue.parent)
            settings = (_milli(queue.quota_gpus), _milli(queue.limit_gpus), queue.weight, parent)
            out.add(t_us, EventKind.QUEUE_SET, index, payload=settings)
        return out.take()


def _milli(gpus: int | None) -> int:
    return -1 if gpus is None else gpus * WHOLE


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal nodes, as a cluster file describes them."""

    count: int
    gpus: int
    kind: str = ANY_KIND
    cpus_milli: int = 0
    memory_bytes: int = 0
    network_bytes_per_s: int = NETWORK_BYTES_PER_S
    rack_nodes: int = RACK_NODES
    speed_ppm: int = PPM
    background_ppm: int = 0


@dataclass(frozen=True, slots=True)
class _Preset:
    """A cluster by name. With `background`, each node's background load is drawn: one of BACKGROUNDS_PPM, by equal odds."""

    groups: tuple[_Group, ...]
    share_limit_milli: int = WHOLE
    oversubscription: int = 1
    background: bool = False

    def build(self, name: str, seed: int) -> Cluster:
        cluster = replace(_build(name, self.groups, (), self.share_limit_milli), oversubscription=self.oversubscription)
        if not self.background:
            return cluster
        chosen = share_of(Draws(name, seed).draw(len(cluster.nodes)), len(BACKGROUNDS_PPM)).tolist()
        nodes = (replace(node, background_ppm=BACKGROUNDS_PPM[i]) for node, i in zip(cluster.nodes, chosen, strict=True))
        return replace(cluster, nodes=tuple(nodes))


def _build(name: str, groups: Sequence[_Group], queues: Sequence[Queue] = (), share_limit_milli: int = WHOLE) -> Cluster:
    """Number nodes and racks in the order of the groups; a group begins a rack of its own."""
    kinds = tuple(dict.fromkeys(group.kind for group in groups))
    nodes: list[Node] = []
    rack = 0
    for group in groups:
        kind, share = kinds.index(group.kind), max(group.gpus, 1)
        cpus, memory = group.cpus_milli or share * CPUS_MILLI_PER_GPU, group.memory_bytes or share * MEMORY_BYTES_PER_GPU
        for i in range(group.count):
            place = rack + i // group.rack_nodes
            speed = group.network_bytes_per_s, group.speed_ppm, group.background_ppm
            nodes.append(Node(f"n{len(nodes)}", place, kind, group.gpus, cpus, memory, *speed))
        rack += -(-group.count // group.rack_nodes)
    return Cluster(name, tuple(nodes), kinds, tuple(queues), share_limit_milli)


BACKGROUNDS_PPM = (0, 100_000, 200_000, 300_000, 400_000)
_FAST_NETWORK = 3_125_000_000


def _machines(
    count: int, gpus: int, kind: str = ANY_KIND, speed: int = PPM, net: int = NETWORK_BYTES_PER_S, rack: int = RACK_NODES
) -> _Group:
    """Machines of the frozen exam: 32 cpus and 244 GB whatever their GPUs."""
    return _Group(count, gpus, kind, 32_000, 244 * 10**9, net, rack, speed)


PRESETS: dict[str, _Preset] = {
    # Microsoft's Philly in 2017, by the published list of its machines; 13 without a GPU are left out. Racks are not published.
    "philly": _Preset((_Group(271, 4), _Group(264, 8), _Group(3, 2), _Group(1, 3))),
    # The machines of MLFS' evaluation. The small one is named by its size, so that it is what 20x4 means everywhere.
    "20x4": _Preset((_machines(20, 4),), share_limit_milli=900),
    "mlfs-paper-large": _Preset((_machines(321, 2), _machines(229, 8)), share_limit_milli=900),
    "production-mixed": _Preset(
        (
            _machines(24, 4, "v100", PPM, _FAST_NETWORK, rack=8),
            _machines(24, 4, "p100", 550_000, NETWORK_BYTES_PER_S, rack=8),
            _machines(16, 4, "k80", 250_000, NETWORK_BYTES_PER_S, rack=8),
        ),
        oversubscription=4,
        background=True,
    ),
}


def parse_cluster(text: str, *, seed: int = 1) -> Cluster:
    """Return the cluster that `NODESxGPUS`, a preset's name or the path of a cluster file describes. `seed` is for presets that
    draw the background load of their nodes.

    Raises:
        UserError: in one line, what is wrong with it.
    """
    text = text.strip()
    if text in PRESETS:
        return PRESETS[text].build(text, seed)
    if match := _SIZE.fullmatch(text):
        nodes, gpus = int(match[1]), int(match[2])
        if not 1 <= nodes <= NODES_MAX:
            raise UserError(f"expected 1 to {NODES_MAX} nodes, got {nodes}", key=f"cluster {text}")
        if not 1 <= gpus <= GPUS_PER_NODE_MAX:
            raise UserError(f"expected 1 to {GPUS_PER_NODE_MAX} GPUs a node, got {gpus}", key=f"cluster {text}")
        return _build(text, [_Group(nodes, gpus)])
    path = Path(text)
    if path.suffix.lower() == ".csv" and "\0" not in text:
        from headway.workloads.cluster_tables import read_cluster_table  # which needs this module

        return read_cluster_table(path)
    if text and "\0" not in text and (path.is_file() or path.suffix.lower() in (".yaml", ".yml") or "/" in text):
        return read_cluster(path)
    if _LOOKS_LIKE_SIZE.fullmatch(text):
        raise UserError(f"expected NODESxGPUS such as 16x8, got {shown(text)}", key="cluster")
    raise unknown_name("cluster", text, PRESETS, "NODESxGPUS such as 16x8, or a YAML file")


def read_cluster(path: Path) -> Cluster:
    """Return the cluster of a YAML file; `UserError` with file, line and key for anything unknown or impossible."""
    return cluster_from_yaml(read_text(path, str(path)), file=str(path))


def cluster_from_yaml(text: str, *, file: str = "cluster", name: str = "") -> Cluster:
    """Return the cluster that a YAML text describes."""
    marks = Marks(file)
    root = compose(text, file, "a cluster")

    def groups(node: yaml.Node, key: str) -> list[_Group]:
        return [_group(marks, item, f"{key}[{i}]") for i, item in enumerate(marks.sequence(node, key))]

    def queues(node: yaml.Node, key: str) -> list[Queue]:
        found = [_queue(marks, name, value, path) for name, _, value, path in marks.items(node, key)]
        if len(found) > QUEUES_MAX:
            marks.fail(f"over {QUEUES_MAX} queues", node, key)
        parents = {queue.name: queue.parent for queue in found}
        for (_, _, value, path), queue in zip(marks.items(node, key), found, strict=True):
            if queue.parent is not None and queue.parent not in parents:
                marks.fail(f"expected a queue of this file, got {shown(queue.parent)}", value, f"{path}.parent")
            above, levels = queue.parent, 0
            while above is not None and above in parents:
                above, levels = parents[above], levels + 1
                if levels > QUEUE_LEVELS_MAX:
                    marks.fail(
                        f"expected at most {QUEUE_LEVELS_MAX} levels of queues, and none above itself", value, f"{path}.parent"
                    )
        return found

    def share(value: str) -> int:
        milli = Fraction(units.parse_frac(value)).limit_denominator(10**6) * WHOLE
        if milli < 1 or milli.denominator != 1:
            raise units.refusal("a share above 0 and at most 1, in steps of 0.001", value)
        return int(milli)

    parsers = {
        "name": marks.scalar,
        "nodes": groups,
        "queues": queues,
        "share_limit": marks.text_as(share),
        "oversubscription": marks.text_as(_whole(1, 1000)),
    }
    values = marks.section(root, "", parsers)
    nodes: list[_Group] = values.get("nodes", [])
    if sum(group.count for group in nodes) == 0:
        marks.fail("expected at least one node, got none", root, "nodes")
    if sum(group.count for group in nodes) > NODES_MAX:
        marks.fail(f"over {NODES_MAX} nodes", root, "nodes")
    if len({group.kind for group in nodes}) > KINDS_MAX:
        marks.fail(f"over {KINDS_MAX} GPU kinds", root, "nodes")
    cluster = _build(name or values.get("name", file), nodes, values.get("queues", ()), values.get("share_limit", WHOLE))
    return replace(cluster, oversubscription=values.get("oversubscription", 1))


def _whole(low: int, high: int = units.COUNT_MAX) -> Any:
    return lambda value: units.parse_int(value, low, high)


def _group(marks: Marks, node: yaml.Node, key: str) -> _Group:
    values = marks.section(
        node,
        key,
        {
            "count": marks.text_as(_whole(1, NODES_MAX)),
            "gpus": marks.text_as(_whole(0, GPUS_PER_NODE_MAX)),
            "kind": marks.text_as(_gpu_kind),
            "cpus": marks.text_as(_cpus),
            "memory": marks.text_as(_memory),
            "rack": marks.text_as(_whole(1, NODES_MAX)),
            "network": marks.text_as(_network),
            "speed": marks.text_as(_speed),
            "background": marks.text_as(_background),
        },
    )
    if "gpus" not in values:
        marks.fail("expected the GPUs of a node, got nothing", node, f"{key}.gpus")
    return _Group(
        values.get("count", 1),
        values["gpus"],
        values.get("kind", ANY_KIND),
        values.get("cpus", 0),
        values.get("memory", 0),
        values.get("network", NETWORK_BYTES_PER_S),
        values.get("rack", RACK_NODES),
        values.get("speed", PPM),
        values.get("background", 0),
    )


def _queue(marks: Marks, name: str, node: yaml.Node, key: str) -> Queue:
    if fault := units.name_fault(name):
        marks.fail(f"expected a name {fault}, got {shown(name)}", node, key)
    if isinstance(node, yaml.ScalarNode) and not node.value:
        return Queue(name)
    gpus = marks.text_as(_whole(0))
    weight = marks.text_as(_whole(1, 1_000_000))
    values = marks.section(node, key, {"quota": gpus, "limit": gpus, "weight": weight, "parent": marks.scalar})
    quota, limit = values.get("quota"), values.get("limit")
    if quota is not None and limit is not None and limit < quota:
        marks.fail(f"expected a limit of at least the quota {quota}, got {limit}", node, f"{key}.limit")
    return Queue(name, quota, limit, values.get("weight", 1), values.get("parent"))


def _gpu_kind(value: str) -> str:
    if not units.GPU_KIND.fullmatch(value.lower()):
        raise units.refusal("a GPU kind such as a100", value)
    return value.lower()


def _cpus(value: str) -> int:
    return _above_zero(units.parse_cpus(value), "a number of cores above 0", value)


def _memory(value: str) -> int:
    return _above_zero(units.parse_size(value), "a size above 0", value)


def _network(value: str) -> int:
    """Bytes per second, from bits (`100Gb`, `25Gb/s`) as cards are sold, or from bytes (`1.25GB/s`)."""
    if match := _BITS.fullmatch(value.strip()):
        return int(Fraction(match[1]) * {"G": 10**9, "M": 10**6}[match[2]] / 8)
    try:
        return units.parse_rate(value)
    except ValueError:
        raise units.refusal("a speed such as 100Gb or 12.5GB/s", value) from None


def _speed(value: str) -> int:
    """Speed of a GPU in ppm of the fastest kind."""
    speed = _ppm(value)
    return _above_zero(speed, "a share of the fastest GPU's speed, above 0 and at most 1", value)


def _background(value: str) -> int:
    """Background load in ppm; something must be left."""
    load = _ppm(value)
    if load >= PPM:
        raise units.refusal("a share of at least 0 and below 1", value)
    return load


def _ppm(value: str) -> int:
    return int(Fraction(units.parse_frac(value)).limit_denominator(PPM) * PPM)


def _above_zero(number: int, expected: str, value: str) -> int:
    if number == 0:
        raise units.refusal(expected, value)
    return number
