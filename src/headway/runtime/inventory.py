"""The engine's nodes as events: what the tables must be told so that they know the cluster as it is now."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core import columns as c
from headway.core.columns import EventKind, Name, NodePhase
from headway.core.errors import UserError
from headway.core.events import EventBatch, EventBuffer
from headway.core.state import State
from headway.engines.base import NodeInfo
from headway.runtime.drains import Drains
from headway.workloads.cluster import NETWORK_BYTES_PER_S

RACK = 0
"""An engine does not tell racks: all nodes are in one."""


def inventory_events(state: State, nodes: Sequence[NodeInfo], t_us: int, drains: Drains) -> EventBatch:
    """The events between the nodes of the tables and these.

    A node that is new is added, one that has gone or can't be reached is down, one that is back is up, or
    still held (`drains`). One whose number or kind
    of GPUs has changed is added anew, if no job is on it. Its cpus and memory stay what they were at first: what a machine says
    of its memory changes by a little with each boot, and jobs have been placed by the old numbers.

    Raises:
        UserError: a node that jobs are on has changed.
    """
    numbers = {name: number for number, name in state.names[Name.NODE].items()}
    kinds = {name: number for number, name in state.names[Name.KIND].items()}
    out = EventBuffer()
    added: list[tuple[int, NodeInfo]] = []
    named: list[tuple[Name, int, str]] = []
    for node in nodes:
        if node.gpus > c.GPUS_PER_NODE_MAX:
            raise UserError(f"expected at most {c.GPUS_PER_NODE_MAX} GPUs, got {node.gpus}", key=f"node {node.name}")
        if node.gpu_kind not in kinds:
            kinds[node.gpu_kind] = len(kinds)
            named.append((Name.KIND, kinds[node.gpu_kind], node.gpu_kind))
        number = numbers.get(node.name)
        if number is None:
            numbers[node.name] = number = len(numbers)
            named.append((Name.NODE, number, node.name))
            added.append((number, node))
        elif (state.N[c.N_GPUS, number], state.N[c.N_KIND, number]) != (node.gpus, kinds[node.gpu_kind]):
            if _in_use(state, number):
                raise UserError(
                    f"jobs are on it with {state.N[c.N_GPUS, number]} slots, not {node.gpus}: start with the nodes as they were, "
                    "or with another HEADWAY_HOME",
                    key=f"node {node.name}",
                )
            if state.N[c.N_PHASE, number] != NodePhase.DOWN:
                out.add(t_us, EventKind.NODE_DOWN, number)
            added.append((number, node))
        elif node.reachable and state.N[c.N_PHASE, number] == NodePhase.DOWN:
            drains.back(number, t_us, out)
    here = {node.name for node in nodes if node.reachable} | {node.name for _, node in added}
    for name, number in numbers.items():
        if name not in here and state.N[c.N_PHASE, number] != NodePhase.DOWN:
            out.add(t_us, EventKind.NODE_DOWN, number)
    if added:
        first = int(state.C[c.C_GPUS])
        gpus_max = max([int(state.C[c.C_GPUS_MAX]), *(node.gpus for _, node in added)])
        total = first + sum(node.gpus for _, node in added)
        limits = (gpus_max, int(state.C[c.C_SHARE_LIMIT]))
        out.add(t_us, EventKind.CLUSTER_SET, a=len(numbers), b=total, c=max(len(kinds), 1), payload=limits)
        for table, number, name in named:
            out.add(t_us, EventKind.NAMED, number, a=table, text=name)
        for number, node in added:
            row = (RACK, kinds[node.gpu_kind], node.gpus, first, node.cpus_milli, node.memory_bytes, NETWORK_BYTES_PER_S)
            out.add(t_us, EventKind.NODE_ADDED, number, payload=row)
            if not node.reachable:
                out.add(t_us, EventKind.NODE_DOWN, number)
            elif drains.holds(number):
                drains.back(number, t_us, out)
            first += node.gpus
    return out.take()


def reach_events(state: State, nodes: Sequence[NodeInfo], t_us: int, drains: Drains) -> EventBatch:
    """The events between what the tables say of these nodes and whether they can be reached: a report of it may be lost."""
    out = EventBuffer()
    reachable = {node.name: node.reachable for node in nodes}
    for number, name in state.names[Name.NODE].items():
        down = state.N[c.N_PHASE, number] == NodePhase.DOWN
        if name in reachable and reachable[name] == down:
            if reachable[name]:
                drains.back(number, t_us, out)
            else:
                out.add(t_us, EventKind.NODE_DOWN, number)
    return out.take()


def _in_use(state: State, node: int) -> bool:
    """Whether a job is wanted or held on the node."""
    tasks = state.T[:, : state.C[c.C_TASKS]]
    live = tasks[c.T_JOB] >= 0
    return bool((live & ((tasks[c.T_NODE] == node) | (tasks[c.T_HELD_NODE] == node))).any())
