"""Step times that a person can work out."""

from __future__ import annotations

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.perf.catalogue import CatalogueModel, Fitted, StepFit, find
from headway.perf.speed import Form
from headway.perf.steptime import (
    Placement,
    edges_s,
    ring_s,
    servers_s,
    shaped_compute_s,
    shaped_step_s,
    sharing_rate,
    step_time,
)

MB = 1e6
FITTED = Fitted("test", "none", 1, 0, None, None)


def model(gamma: float = 1.0, gradient_bytes: int | None = 100_000_000) -> CatalogueModel:
    """Compute 10 ms + 1 ms a sample (v100), 4 times that on k80; exchange 20 ms on a node, 50 ms + 1 ms a worker from 3 on."""
    fit = [0.010, 0.001, 0.020, 0.0, 0.050, 0.001, gamma]
    slow = [0.040, 0.004, 0.020, 0.0, 0.050, 0.001, gamma]
    steps = {
        kind: StepFit(np.array([float(Form.POLLUX), *coefficients]), 1, 64, 8, FITTED)
        for kind, coefficients in (("v100", fit), ("k80", slow))
    }
    return CatalogueModel("test", 25_000_000, gradient_bytes, "samples", steps, {}, {}, {2: (250_000, 750_000)})


def test_sharing_slows_only_beyond_nine_tenths() -> None:
    assert sharing_rate([0.0, 0.9, 0.95, 1.0, 1.8]) == pytest.approx([1.0, 1.0, 0.95, 0.9, 0.5])


def test_a_ring_carries_the_gradient_almost_twice() -> None:
    # 2 · 3/4 · 100 MB / 1 GB/s
    assert ring_s(4, 100 * MB, 1e9) == pytest.approx(0.150)
    assert ring_s(2, 100 * MB, 1e9) == pytest.approx(0.100)
    assert ring_s(1, 100 * MB, 1e9) == 0


def test_parameter_servers_on_nodes_of_their_own() -> None:
    # Two nodes with 2 workers each, one with the only server: the server's node takes 4 · 100 MB each way at 1 GB/s.
    assert servers_s([2, 2, 0], [0, 0, 1], 100 * MB, [1e9, 1e9, 1e9]) == pytest.approx(2 * 0.4)
    # Four servers, one a node with one worker each: w·S·(1 − 1/4) = 75 MB, (1/4)·S·(4 − 1) = 75 MB.
    assert servers_s([1] * 4, [1] * 4, 100 * MB, [1e9] * 4) == pytest.approx(2 * 0.075)


def test_servers_beside_all_workers_cost_a_local_copy() -> None:
    # 4 workers · 120 MB / 12 GB/s, there and back.
    assert servers_s([4], [2], 120 * MB, [1e9]) == pytest.approx(2 * 0.040)


def test_an_empty_node_with_a_dead_link_does_not_matter() -> None:
    assert servers_s([2, 0], [1, 0], 120 * MB, [1e9, 0.0]) == pytest.approx(2 * 0.020)


def test_edges_within_a_node_are_free_and_directions_do_not_add() -> None:
    assert edges_s([0, 0], [0, 0], 50 * MB, [1e9]) == 0
    # Node 0 sends two edges and takes one; node 1 takes two and sends one: 100 MB is the larger direction of both.
    assert edges_s([0, 0, 1], [1, 1, 0], 50 * MB, [1e9, 2e9]) == pytest.approx(0.1)
    assert edges_s([], [], 50 * MB, [1e9]) == 0


def test_compute_of_the_slowest_node() -> None:
    # c = 0.8 s over 4 workers: v100 0.2 + 5 ms; p100 (0.55, a fifth busy) 0.2/0.44 + 5 ms.
    assert shaped_compute_s(0.8, [4], [1.0], [0.0]) == pytest.approx(0.205 * 1.1**2)
    assert shaped_compute_s(0.8, [2, 2], [1.0, 0.55], [0.0, 0.2]) == pytest.approx(0.2 / 0.44 + 0.005)


def test_resnet50_of_the_production_workload_by_hand() -> None:
    # 2 workers on each of two v100 nodes, ring over 3,125 MB/s: 0.8/4 + 5 ms, 2·¾·102 MB / 3,125 MB/s, 4 ms.
    seconds = shaped_step_s(0.8, 102 * MB, [2, 2], [0, 0], [1, 1], [0, 0], [3125 * MB] * 2)
    assert seconds == pytest.approx(0.205 + 1.5 * 102 / 3125 + 0.004)
    # All on one node: 12 GB/s within it, and the shared PCIe of four workers.
    assert shaped_step_s(0.8, 102 * MB, [4], [0], [1], [0], [3125 * MB]) == pytest.approx(
        0.205 * 1.21 + 1.5 * 102 / 12000 + 0.004
    )
    assert shaped_step_s(0.8, 102 * MB, [1], [0], [1], [0], [1.0]) == pytest.approx(0.805)


def test_vgg16_of_the_production_workload_by_hand() -> None:
    # 2 workers + 2 servers on each of two nodes: per node w·S·(1 − ½) = 528 MB and ½·S·2 = 528 MB at 3,125 MB/s, twice.
    seconds = shaped_step_s(0.68, 528 * MB, [2, 2], [2, 2], [1, 1], [0, 0], [3125 * MB] * 2)
    assert seconds == pytest.approx(0.68 / 4 + 0.005 + 2 * 528 / 3125 + 0.004 + 0.002)


def test_the_slowest_kind_counts() -> None:
    alone = step_time(model(), Placement.data_parallel(["v100"], [1]), batch=10)
    assert (alone.compute_s, alone.sync_s, alone.total_s) == pytest.approx((0.020, 0.0, 0.020))
    mixed = step_time(model(), Placement.data_parallel(["v100", "k80"], [1, 1]), batch=10)
    assert (mixed.compute_s, mixed.sync_s) == pytest.approx((0.080, 0.050))
    assert mixed.total_s == pytest.approx(0.130)


def test_exchange_hides_behind_compute_as_measured() -> None:
    # γ = 2: √(0.02² + 0.02²)
    local = step_time(model(gamma=2.0), Placement.data_parallel(["v100"], [2]), batch=10)
    assert local.total_s == pytest.approx(0.02 * np.sqrt(2))


def test_links_that_are_given_replace_the_measured_exchange() -> None:
    apart = step_time(model(), Placement.data_parallel(["v100", "v100"], [2, 2], 1e9), batch=10)
    assert apart.sync_s == pytest.approx(0.150)


def test_a_pipeline_of_two_stages() -> None:
    zeros, ones = np.zeros(2), np.array([1.0, 1.0])
    place = Placement(
        ("v100", "v100"), np.array([0, 1]), np.array([0, 1]), np.array([0, 0]), zeros, np.empty(0, np.int64), ones * 1e9
    )
    step = step_time(model(), place, batch=10, edge_bytes=50 * MB)
    assert (step.compute_s, step.edges_s, step.sync_s) == pytest.approx((0.010, 0.050, 0.0))
    # Two replicas across the nodes: each stage's ring carries its share of 100 MB, 25 % and 75 %.
    place = Placement(
        ("v100", "v100"), np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]), np.array([0, 1.8, 0, 0]),
        np.empty(0, np.int64), ones * 1e9,
    )  # fmt: skip
    step = step_time(model(), place, batch=10, edge_bytes=50 * MB)
    assert (step.compute_s, step.edges_s) == pytest.approx((0.020, 0.0))
    assert step.sync_s == pytest.approx(2 * 0.5 * 0.075)


def test_servers_of_a_placement() -> None:
    none = np.zeros(2)
    place = Placement(
        ("v100", "v100"), np.array([0, 0]), np.array([0, 0]), np.array([0, 1]), none, np.array([1]), np.full(2, 1e9)
    )
    assert step_time(model(), place, batch=10).sync_s == pytest.approx(2 * 0.2)


def test_what_is_not_known_is_said() -> None:
    with pytest.raises(UserError, match="no step times on v10 \\(did you mean 'v100'\\?\\); known: k80, v100"):
        step_time(model(), Placement.data_parallel(["v10"], [1]), batch=10)
    with pytest.raises(UserError, match="gradient of the model test is not known"):
        step_time(model(gradient_bytes=None), Placement.data_parallel(["v100"], [2], 1e9), batch=10)
    with pytest.raises(UserError, match="unknown model resnet50-imagenat \\(did you mean 'resnet50-imagenet'\\?\\)"):
        find("resnet50-imagenat")
