"""A job as its owner describes it, and the same job in the tables: they must be one job."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import columns as c
from headway.core.columns import EventKind, Name, Reason
from headway.core.errors import UserError
from headway.core.events import EventBuffer
from headway.core.model import (
    Checkpoint,
    GpuDemand,
    JobSpec,
    Model,
    Parallelism,
    Progress,
    Resources,
    StopRule,
    TaskDemand,
    expand,
    shares_ppm,
    validate,
)
from headway.core.state import State
from headway.engines.base import NodeInfo
from headway.runtime.admit import Names, details, rooms_of, spec_columns, too_large
from headway.runtime.drains import Drains
from headway.runtime.inventory import inventory_events

CLUSTER = (NodeInfo("n0", 4, "a100", 16_000, 64 * 10**9), NodeInfo("n1", 8, "v100", 32_000, 128 * 10**9))


def state_of(nodes: tuple[NodeInfo, ...] = CLUSTER) -> tuple[State, Names]:
    state, names = State(), Names()
    batch = inventory_events(state, nodes, 0, Drains())
    state.apply(batch)
    names.learn(batch)
    return state, names


def submitted(spec: JobSpec) -> State:
    """A state that has taken the job in, as the controller would."""
    state, names = state_of()
    out = EventBuffer()
    payload = np.concatenate([spec_columns(spec, names), details(spec)])
    names.take_news(out, 0)
    out.add(0, EventKind.SUBMITTED, 1, payload=payload)
    state.apply(out.take())
    return state


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    sync = draw(st.sampled_from(["all-reduce", "parameter-server", "none"]))
    servers = draw(st.integers(1, 3)) if sync == "parameter-server" else 0
    pipeline, tensor, data = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    elastic = draw(st.booleans())
    parallelism = Parallelism(
        data=data,
        data_max=data + 2 if elastic else 0,
        pipeline=pipeline,
        tensor=tensor,
        cut=draw(st.sampled_from(["chain", "layered", "none"])),
        width=draw(st.integers(0, pipeline * tensor)),
        sync=sync,
        servers=servers,
    )
    parts = pipeline * tensor
    weights = draw(st.none() | st.lists(st.integers(1, 9), min_size=parts, max_size=parts)) if not elastic else None
    demand = st.builds(
        TaskDemand,
        gpu_milli=st.sampled_from([0, 500, 1000, 2000]),
        cpus_milli=st.integers(1, 4000),
        memory_bytes=st.integers(0, 10**10),
        network_bytes_per_s=st.integers(0, 10**9),
        share_ppm=st.integers(0, 10**6),
    )
    tasks = data * parts + servers
    given_demands = draw(st.none() | st.lists(demand, min_size=tasks, max_size=tasks)) if not elastic else None
    if given_demands is not None:  # the partitions of a replica are the whole model
        shares = shares_ppm(draw(st.lists(st.integers(1, 9), min_size=parts, max_size=parts))) * data
        given_demands[: len(shares)] = [replace(one, share_ppm=share) for one, share in zip(given_demands, shares, strict=False)]
    network = draw(st.sampled_from([0, 10**8])) if not elastic else 0
    resources = Resources((GpuDemand("", draw(st.sampled_from([0, 1000, 4000]))),), draw(st.integers(1, 9000)), 10**9, network)
    server = draw(st.none() | st.just(Resources((GpuDemand(milli=0),), 500, 7, network)))
    # The gradient goes to the servers in equal parts: what is left over by the division is another test's business.
    gradient = 60 * draw(st.integers(0, 10**6))
    return JobSpec(
        name="j",
        run="true",
        resources=resources,
        server_resources=server,
        parallelism=parallelism,
        model=Model(
            partitions=shares_ppm(weights) if weights else (),
            edge_bytes=draw(st.none() | st.integers(0, 10**6)),
            sync_bytes=gradient,
        ),
        task_demands=tuple(given_demands) if given_demands is not None else None,
    )


@given(specs())
def test_the_tables_hold_the_tasks_and_edges_that_the_spec_expands_to(spec: JobSpec) -> None:
    assert validate(spec) == []
    want, state = expand(spec), submitted(spec)
    assert state.C[c.C_TASKS] == want.tasks
    T = state.T[:, : want.tasks]
    servers = np.arange(want.tasks) >= want.workers
    assert T[c.T_ROLE].tolist() == list(want.role)
    assert np.where(servers, -1, T[c.T_REPLICA]).tolist() == list(want.replica)
    for column, wanted in (
        (c.T_PARTITION, want.partition),
        (c.T_SHARE, want.share_ppm),
        (c.T_GPU, want.gpu_milli),
        (c.T_CPU, want.cpus_milli),
        (c.T_MEM, want.memory_bytes),
        (c.T_NET, want.network_bytes_per_s),
    ):
        assert T[column].tolist() == list(wanted), c.TASK_COLUMN_NAMES[column]
    for task in range(want.tasks):
        first = int(T[c.T_EDGE0, task])
        edges = state.X[:, first : first + int(T[c.T_EDGES, task])]
        assert tuple(edges[c.X_CHILD].tolist()) == want.children(task)
        assert edges[c.X_BYTES].tolist() == list(want.edge_bytes[want.edge_start[task] : want.edge_start[task + 1]])
    assert state.J[c.J_GPUS, 0] == sum(-(-milli // 1000) for milli in want.gpu_milli)


def test_every_field_has_its_column() -> None:
    spec = JobSpec(
        name="j",
        user="ann",
        queue="vision",
        priority=70,
        urgency=9,
        run="true",
        resources=Resources((GpuDemand("a100", 1000), GpuDemand("v100", 2000), GpuDemand("h100", 2000)), 2000, 4, 5),
        share_gpu=True,
        parallelism=Parallelism(data=2, data_min=1, data_max=8, pipeline=3, tensor=2, cut="layered"),
        model=Model("resnet", 25, edge_bytes=6),
        progress=Progress(total=3000),
        goal_accuracy=0.93,
        stop=StopRule("optstop", ("accuracy", "fixed")),
        deadline_s=60,
        time_limit_s=120,
        checkpoint=Checkpoint("ckpt", 60, 600, 1, 2),
        retry_max=7,
        group="sweep",
        estimate_s=90,
    )
    _, names = state_of()
    names.number(Name.USER, "bob")
    row = dict(zip(c.SPEC_COLUMN_NAMES, spec_columns(spec, names, submitted_us=1_000_000).tolist(), strict=True))
    us = 1_000_000
    assert row == {
        "user": 1, "queue": 0, "priority": 70, "deadline": 61 * us, "urgency": 9, "data": 2, "pipeline": 3, "tensor": 2,
        "servers": 0, "data_min": 1, "data_max": 8, "batch": 0, "cut": 2, "width": 2, "sync": 1, "gpu_task": 1000, "kind_mask": 1,
        "cpu_task": 2000, "mem_task": 4, "net_task": 5, "alt_gpu": 2000, "alt_mask": 2, "share": 1, "estimate": 90 * us,
        "units_total": 3000, "stop_rule": 1, "stop_allow": 0b101, "acc_required": 930_000, "time_limit": 120 * us,
        "grace": 60 * us, "save": us, "restore": 2 * us, "every": 600 * us, "retry_max": 7, "group": 0, "model": 0,
        "skew": 166_667, "edge_bytes": 6, "sync_bytes": 100, "server_cpu": 0, "server_mem": 0, "details": 0,
        "server_net": 0, "servers_max": 0,
    }  # fmt: skip
    assert spec_columns(spec, names, fractional_gpus=False)[c.J_SHARE] == 0


def test_what_is_not_given_is_never_or_nothing() -> None:
    _, names = state_of()
    row = spec_columns(JobSpec(name="j", run="true"), names)
    assert row[[c.J_DEADLINE, c.J_TIME_LIMIT, c.J_ESTIMATE]].tolist() == [c.NEVER] * 3
    assert row[[c.J_GROUP, c.J_MODEL, c.J_KIND_MASK]].tolist() == [-1, -1, -1]
    limited = spec_columns(JobSpec(name="j", run="true", time_limit_s=5), names)
    assert limited[c.J_ESTIMATE] == 5_000_000


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"resources": Resources(tuple(GpuDemand("a100", 1000 * n) for n in (1, 2, 4)))}, "resources.gpu"),
        (
            {
                "parallelism": Parallelism(servers=1, sync="parameter-server"),
                "server_resources": Resources((GpuDemand("", 1000),)),
            },
            "server_resources.gpu",
        ),
        ({"parallelism": Parallelism(servers=1, servers_max=3, sync="parameter-server")}, "parallelism.servers"),
        ({"parallelism": Parallelism(data=1 << 17)}, "parallelism"),
    ],
)
def test_what_the_tables_cannot_hold_is_refused(more: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as refused:
        spec_columns(JobSpec(name="j", run="true", **more), Names())
    assert refused.value.key == key


def job(gpu: str = "", gpus: int = 1, cpus: int = 1000, memory: int = 0, **shape: Any) -> JobSpec:
    sync = "parameter-server" if shape.get("servers") else "all-reduce"
    return JobSpec(
        name="j",
        run="true",
        resources=Resources((GpuDemand(gpu, 1000 * gpus),), cpus, memory),
        parallelism=Parallelism(**shape, sync=sync),
    )


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (job(gpus=8), ""),
        (job(gpus=9), "room for 0"),
        (job(gpus=1, data=8), ""),
        (job(gpus=1, data=9), "9 workers of 1 GPU, 1 cpus at once, and the empty cluster has room for 8"),
        (job("a100", 2, data=2), ""),
        (job("a100", 2, data=3), "larger than the cluster"),
        (job("h100"), "no node has GPUs of the kind"),
        (job(gpus=0, cpus=1000, data=48), ""),
        (job(gpus=0, cpus=1000, data=49), "room for 48"),
        (job(memory=10**12), "room for 0"),
        (job(gpus=4, cpus=16_000, servers=1), ""),
        (job("v100", 8, cpus=32_000, servers=2), "and 2 servers"),
        (replace(job("a100", 8), resources=Resources((GpuDemand("a100", 8000), GpuDemand("v100", 4000)))), ""),
    ],
)
def test_a_job_larger_than_the_empty_cluster_is_told_why(spec: JobSpec, why: str) -> None:
    state, names = state_of()
    told = too_large(spec, spec_columns(spec, names), rooms_of(state, (0, 1)))
    assert (why in told and told) if why else told == ""


def test_names_are_given_once_and_told_as_events() -> None:
    names = Names()
    assert [names.number(Name.USER, user) for user in ("ann", "bob", "ann")] == [0, 1, 0]
    names.number(Name.QUEUE, "vision")
    out = EventBuffer()
    names.take_news(out, 5)
    names.take_news(out, 5)
    batch = out.take()
    assert batch.kinds() == [EventKind.NAMED] * 3 + [EventKind.QUEUE_SET]
    other = Names()
    other.learn(batch)
    assert other.number(Name.USER, "bob") == 1 and other.known(Name.QUEUE, "vision") == 0


def test_ids_are_counted_for_each_name() -> None:
    names = Names()
    names.add(Name.JOB, "a-1", 7)
    assert [names.next_id(name) for name in ("a", "b", "a")] == ["a-2", "b-1", "a-3"]


# The nodes


def test_nodes_come_go_and_change() -> None:
    state, _ = state_of()
    assert len(inventory_events(state, CLUSTER, 0, Drains())) == 0
    state.apply(inventory_events(state, CLUSTER[:1], 1, Drains()))
    assert [int(p) for p in state.N[c.N_PHASE]] == [0, 2]
    grown = (replace(CLUSTER[0], gpus=6), CLUSTER[1], NodeInfo("n2", 1, "t4", 1000, 10**9))
    state.apply(inventory_events(state, grown, 2, Drains()))
    assert state.N[c.N_GPUS].tolist() == [6, 8, 1] and state.C[c.C_GPUS_UP] == 15 and state.C[c.C_KINDS] == 3
    assert state.N[c.N_PHASE].tolist() == [0, 0, 0]
    memory_changed = (replace(grown[0], memory_bytes=1), *grown[1:])
    assert len(inventory_events(state, memory_changed, 3, Drains())) == 0


def test_a_node_with_jobs_on_it_does_not_change() -> None:
    state = submitted(JobSpec(name="j", run="true", resources=Resources((GpuDemand("a100", 1000),))))
    out = EventBuffer()
    out.add(1, EventKind.START_REQUESTED, 1, 1, b=1, payload=(0, 1, 1000))
    state.apply(out.take())
    with pytest.raises(UserError, match="node n0: jobs are on it with 4 slots, not 5"):
        inventory_events(state, (replace(CLUSTER[0], gpus=5), CLUSTER[1]), 2, Drains())
    state.apply(inventory_events(state, CLUSTER[1:], 2, Drains()))
    assert state.J[c.J_MUST_STOP, 0] == Reason.NODE_LOST
