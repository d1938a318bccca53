"""The tables that SUBMITTED fills against `model.expand`, for random shapes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.dense import Desk

from headway.core import columns as c
from headway.core.columns import Cut, EventKind, Sync
from headway.core.model import JobSpec, Model, Parallelism, Resources, Shape, TaskDemand, expand, sync_bytes
from headway.core.units import GpuDemand

CUTS = {"chain": Cut.CHAIN, "layered": Cut.LAYERED, "none": Cut.NONE}
SYNCS = {"all-reduce": Sync.ALL_REDUCE, "parameter-server": Sync.PARAMETER_SERVER, "none": Sync.NONE}


def submit(desk: Desk, job: int, spec: JobSpec) -> None:
    """The job as its event."""
    par, worker = spec.parallelism, spec.resources
    server = spec.server_resources or replace(worker, gpu_alternatives=(GpuDemand(milli=0),))
    details: list[int] = []
    for d in spec.task_demands or ():
        details += [d.gpu_milli, d.cpus_milli, d.memory_bytes, d.network_bytes_per_s, d.share_ppm]
    desk.submit(
        job,
        tasks=details,
        data=par.data,
        data_min=par.data_min,
        data_max=par.data_max,
        pipeline=par.pipeline,
        tensor=par.tensor,
        servers=par.servers,
        cut=CUTS[par.cut],
        width=par.width,
        sync=SYNCS[par.sync],
        gpu_task=worker.gpu_alternatives[0].milli,
        cpu_task=worker.cpus_milli,
        mem_task=worker.memory_bytes,
        net_task=worker.network_bytes_per_s,
        server_cpu=server.cpus_milli,
        server_mem=server.memory_bytes,
        server_net=server.network_bytes_per_s,
        edge_bytes=spec.model.edge_bytes or 0,
        sync_bytes=sync_bytes(spec),
        details=int(bool(details)),
    )


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    sync = draw(st.sampled_from(sorted(SYNCS)))
    servers = draw(st.integers(1, 3)) if sync == "parameter-server" else 0
    data = draw(st.integers(1, 3))
    par = Parallelism(
        data=data,
        data_min=1,
        data_max=4,
        pipeline=draw(st.integers(1, 4)),
        tensor=draw(st.integers(1, 3)),
        cut=draw(st.sampled_from(sorted(CUTS))),
        width=draw(st.integers(0, 4)),
        sync=sync,
        servers=servers,
    )
    worker = Resources(
        (GpuDemand(milli=draw(st.sampled_from([0, 250, 1000, 3000]))),), draw(st.integers(1, 9000)), draw(st.integers(0, 99)), 0
    )
    server = draw(
        st.none() | st.builds(Resources, st.just((GpuDemand(milli=0),)), st.integers(1, 9000), st.integers(0, 99), st.just(0))
    )
    return JobSpec(
        name="j",
        run="true",
        resources=worker,
        server_resources=server,
        parallelism=par,
        model=Model(edge_bytes=draw(st.none() | st.integers(0, 10**9)), sync_bytes=draw(st.integers(0, 10**6)) * 6),
    )


def assert_equal(desk: Desk, job: int, spec: JobSpec, shape: Shape | None = None) -> None:
    """Roles, partitions, shares, demands, and the graph with its bytes. (The servers' replica and the odd bytes are below.)"""
    expected, tasks = expand(spec, shape), desk.tasks(job)
    workers = expected.workers
    for column, values in (
        ("role", expected.role),
        ("partition", expected.partition),
        ("share", expected.share_ppm),
        ("gpu", expected.gpu_milli),
        ("cpu", expected.cpus_milli),
        ("mem", expected.memory_bytes),
    ):
        assert tuple(t[column] for t in tasks) == values, column
    assert tuple(t["replica"] for t in tasks[:workers]) == expected.replica[:workers]
    X, graph = desk.state.X, []
    for k, t in enumerate(tasks):
        edges = range(t["edge0"], t["edge0"] + t["edges"])
        graph.append([int(X[c.X_CHILD, e]) for e in edges])
        assert graph[-1] == list(expected.children(k)), f"children of task {k}"
        assert [int(X[c.X_BYTES, e]) for e in edges] == list(
            expected.edge_bytes[expected.edge_start[k] : expected.edge_start[k + 1]]
        )
    assert (desk.get(job, "tasks"), desk.get(job, "workers"), desk.get(job, "edges")) == (
        expected.tasks,
        workers,
        len(expected.edge_child),
    )
    assert desk.get(job, "gpu_milli") == sum(expected.gpu_milli) and desk.get(job, "gpus") == sum(
        -(-m // 1000) for m in expected.gpu_milli
    )


@given(st.lists(specs(), min_size=1, max_size=4))
@settings(max_examples=60)
def test_submitted_jobs_expand_as_the_model_says(jobs: list[JobSpec]) -> None:
    desk = Desk((4,), tasks=2, edges=1, jobs=1)
    for job, spec in enumerate(jobs):
        submit(desk, job, spec)
    for job, spec in enumerate(jobs):
        assert_equal(desk, job, spec)
    desk.state.compact()
    for job, spec in enumerate(jobs):
        assert_equal(desk, job, spec)


@given(specs(), st.integers(1, 4))
@settings(max_examples=40)
def test_another_shape_expands_as_the_model_says(spec: JobSpec, data: int) -> None:
    desk = Desk((1,), cpus=10**6, mem=10**6, tasks=1000, edges=1000)
    spec = replace(spec, resources=replace(spec.resources, gpu_alternatives=(GpuDemand(milli=0),)))
    submit(desk, 0, spec)
    submit(desk, 1, spec)
    par = spec.parallelism
    shape = Shape(data, par.pipeline, par.tensor, par.servers)
    desk.want(0, [(0, [])] * shape.tasks, data=data)
    assert_equal(desk, 0, spec, shape)
    assert_equal(desk, 1, spec)


def test_tasks_that_differ() -> None:
    demands = (
        TaskDemand(2000, 500, 7, 1, 600_000),
        TaskDemand(0, 700, 5, 2, 400_000),
        TaskDemand(1000, 1, 9, 3, 600_000),
        TaskDemand(0, 100, 1, 0, 400_000),
    )
    spec = JobSpec(name="j", run="true", parallelism=Parallelism(data=2, pipeline=2), task_demands=demands)
    desk = Desk((4,))
    submit(desk, 0, spec)
    assert_equal(desk, 0, spec)
    assert [t["net"] for t in desk.tasks(0)] == [1, 2, 3, 0] and desk.get(0, "uniform") == 0
    assert [desk.get(0, x) for x in ("gpu_task", "cpu_task", "mem_task", "gpus")] == [2000, 700, 9, 3], (
        "the largest demands of its workers"
    )


def test_the_demands_of_servers_among_tasks_that_differ() -> None:
    demands = (TaskDemand(1000, 500, 7, 0, 1_000_000), TaskDemand(0, 5000, 99, 0, 0))
    spec = JobSpec(name="j", run="true", parallelism=Parallelism(sync="parameter-server", servers=1), task_demands=demands)
    desk = Desk((4,))
    submit(desk, 0, spec)
    assert_equal(desk, 0, spec)
    assert [desk.get(0, x) for x in ("gpu_task", "cpu_task", "mem_task")] == [1000, 500, 7]


def test_a_graph_by_hand() -> None:
    """Two replicas of five partitions in layers of two, 0 1 | 2 3 | 4; the last sends half of the gradient to each server."""
    desk = Desk((4,))
    desk.submit(
        0, data=2, pipeline=5, cut=Cut.LAYERED, width=2, sync=Sync.PARAMETER_SERVER, servers=2, edge_bytes=7, sync_bytes=100
    )
    children = [[int(desk.state.X[c.X_CHILD, e]) for e in range(t["edge0"], t["edge0"] + t["edges"])] for t in desk.tasks(0)]
    assert children == [[2, 3], [2, 3], [4], [4], [10, 11], [7, 8], [7, 8], [9], [9], [10, 11], [], []]
    sent = [[int(desk.state.X[c.X_BYTES, e]) for e in range(t["edge0"], t["edge0"] + t["edges"])] for t in desk.tasks(0)]
    assert sent == [[7, 7], [7, 7], [7], [7], [50, 50], [7, 7], [7, 7], [7], [7], [50, 50], [], []]


def test_shares_are_even_and_whole() -> None:
    desk = Desk((4,))
    desk.submit(0, pipeline=3, cut=Cut.CHAIN)
    desk.submit(1, pipeline=7, tensor=2)
    assert [t["share"] for t in desk.tasks(0)] == [333_334, 333_333, 333_333]
    assert sum(t["share"] for t in desk.tasks(1)) == 1_000_000


# -- where the tables and the model differ ---------------------------------------------------------------------------
def ps(**more: int) -> JobSpec:
    return JobSpec(name="j", run="true", parallelism=Parallelism(sync="parameter-server", servers=2), model=Model(**more))


def test_the_replica_of_a_server() -> None:
    desk = Desk((4,))
    submit(desk, 0, ps())
    assert tuple(t["replica"] for t in desk.tasks(0)) == expand(ps()).replica


def test_a_gradient_that_does_not_divide_by_the_servers() -> None:
    desk = Desk((4,))
    submit(desk, 0, ps(sync_bytes=101))
    assert desk.state.X[c.X_BYTES, :2].tolist() == list(expand(ps(sync_bytes=101)).edge_bytes) == [51, 50]


def test_the_network_of_a_server() -> None:
    spec = replace(ps(), resources=Resources(network_bytes_per_s=9))
    desk = Desk((4,))
    submit(desk, 0, spec)
    assert tuple(t["net"] for t in desk.tasks(0)) == expand(spec).network_bytes_per_s


def test_a_job_of_servers_counts_their_cpus_when_it_is_placed() -> None:
    desk = Desk((4,))
    submit(desk, 0, replace(ps(), server_resources=Resources((GpuDemand(milli=0),), 300, 5, 0)))
    desk.run(0, [(0, [0]), (0, []), (0, [])])
    assert desk.node(0, "held_cpu") == 1000 + 600 and desk.gpu(0, "held") == 1000
    desk.emit(EventKind.COMPLETED, 0, 1)
    assert desk.node(0, "held_cpu") == 0
