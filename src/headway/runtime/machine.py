"""The nodes that a person asks for on this machine, and the GPUs that each gets."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice

from headway.core.columns import GPUS_PER_NODE_MAX
from headway.core.errors import UserError, shown

NODES_MAX = 1024


def parse_nodes(text: str, slots: int = 0) -> dict[str, int]:
    """Names and slots of the nodes of NODESxSLOTS; of one node, without it. `UserError` for anything else."""
    if not 0 <= slots <= GPUS_PER_NODE_MAX:
        raise UserError(f"expected 1 to {GPUS_PER_NODE_MAX} slots, got {slots}", key="slots")
    if not text:
        return {"n0": slots or min(len(os.sched_getaffinity(0)), GPUS_PER_NODE_MAX)}
    match = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,6})", text)
    if match is None:
        raise UserError(f"expected NODESxSLOTS such as 2x4, got {shown(text)}", key="nodes")
    nodes, each = int(match[1]), int(match[2])
    if not 1 <= nodes <= NODES_MAX or not 1 <= each <= GPUS_PER_NODE_MAX:
        raise UserError(f"expected 1 to {NODES_MAX} nodes of 1 to {GPUS_PER_NODE_MAX} slots, got {shown(text)}", key="nodes")
    if slots not in (0, each):
        raise UserError(f"{shown(text)} has {each} slots a node, --slots says {slots}", key="nodes")
    return {f"n{i}": each for i in range(nodes)}


def share_gpus(text: str, slots: int, uuids: Sequence[str]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Slots and GPUs of each node: the machine's GPUs in order, if it has any and no slots are asked for.

    Raises:
        UserError: more are asked for than there are.
    """
    if slots or not uuids:
        return parse_nodes(text, slots), {}
    nodes = parse_nodes(text) if text else {"n0": min(len(uuids), GPUS_PER_NODE_MAX)}
    if sum(nodes.values()) > len(uuids):
        raise UserError(
            f"{shown(text)} wants {sum(nodes.values())} GPUs, this machine has {len(uuids)}; with --slots they need not be real",
            key="nodes",
        )
    rest = iter(uuids)
    return nodes, {node: tuple(islice(rest, count)) for node, count in nodes.items()}
