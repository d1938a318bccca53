"""The placement kernels against cases worked out by hand."""

from __future__ import annotations

import pytest

from .model import Job, Node
from .placement import empty_views, find_place


def counts(kernel: str, gang: Job, nodes: list[Node]) -> list[tuple[int, int]] | None:
    """(node, tasks) in the order of choice."""
    place = find_place(kernel, gang, empty_views({n.number: n for n in nodes}))
    if place is None:
        return None
    found: dict[int, int] = {}
    for _, node, _ in place:
        found[node] = found.get(node, 0) + 1
    return list(found.items())


def gang(tasks: int, gpus: int = 1) -> Job:
    return Job(1, 0, 1, tasks, gpus)


@pytest.mark.parametrize(
    ("kernel", "tasks", "expected"),
    [
        # Nodes 0, 1, 2 with 4, 2, 3 GPUs.
        # Two tasks fit on any node: node 0 is the first, node 1 the smallest.
        ("first-fit", 2, [(0, 2)]),
        ("best-fit", 2, [(1, 2)]),
        ("consolidated", 2, [(1, 2)]),
        # Three tasks: best-fit starts on the smallest node all the same; consolidated takes the smallest
        # that has room for all three.
        ("first-fit", 3, [(0, 3)]),
        ("best-fit", 3, [(1, 2), (2, 1)]),
        ("consolidated", 3, [(2, 3)]),
        # Six tasks fit on no node: consolidated starts on the largest; the two that are left fit on node 1,
        # the smallest of those with room for both.
        ("first-fit", 6, [(0, 4), (1, 2)]),
        ("best-fit", 6, [(1, 2), (2, 3), (0, 1)]),
        ("consolidated", 6, [(0, 4), (1, 2)]),
        ("consolidated", 10, None),
    ],
)
def test_kernels(kernel: str, tasks: int, expected: list[tuple[int, int]] | None) -> None:
    assert counts(kernel, gang(tasks), [Node(0, 4), Node(1, 2), Node(2, 3)]) == expected


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        # Racks 0: two nodes of 2; 1: two nodes of 3; 2: one node of 3.
        # Three tasks fit on a node: the lowest of those with 3 GPUs.
        (3, [(2, 3)]),
        # Four tasks: racks 0 (4) and 1 (6) have room, rack 0 is the tighter. Within it the lower node first.
        (4, [(0, 2), (1, 2)]),
        # Five tasks: only rack 1. Its nodes are equal, so 2 is filled and two tasks go to 3.
        (5, [(2, 3), (3, 2)]),
        # Eight tasks: no rack has room; rack 1 is the largest. The two that are left fit in rack 0 (4) and
        # 2 (3).
        (8, [(2, 3), (3, 3), (4, 2)]),
        # Ten: rack 1 takes six, and rack 0 has room for exactly four.
        (10, [(2, 3), (3, 3), (0, 2), (1, 2)]),
        (14, None),
    ],
)
def test_topology(tasks: int, expected: list[tuple[int, int]] | None) -> None:
    sizes = [(2, 0), (2, 0), (3, 1), (3, 1), (3, 2)]
    nodes = [Node(n, gpus, rack=rack) for n, (gpus, rack) in enumerate(sizes)]
    assert counts("topology", gang(tasks), nodes) == expected
    # Consolidated does not look at racks: with four tasks it fills node 2 and puts the last on the
    # smallest, node 0.
    assert counts("consolidated", gang(4), nodes) == [(2, 3), (0, 1)]


def test_tasks_do_not_straddle_nodes_and_kinds_are_not_mixed() -> None:
    # Tasks of two GPUs on nodes of three: one task each.
    assert counts("first-fit", gang(2, 2), [Node(0, 3), Node(1, 3)]) == [(0, 1), (1, 1)]
    # Three tasks of one GPU: kind a has only two GPUs, so all three go to kind b.
    kinds = [Node(0, 2, kind="a"), Node(1, 4, kind="b")]
    assert counts("first-fit", gang(3), kinds) == [(1, 3)]
    assert counts("first-fit", gang(5), kinds) is None
