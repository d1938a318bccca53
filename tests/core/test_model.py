"""Job specs: shapes worked out by hand, properties of every graph, the JSON form, and what is refused."""

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError
from headway.core.model import (
    CUTS,
    EDGES_MAX,
    METRIC_MODES,
    PROGRESS_UNITS,
    SCHEMA_VERSION,
    SERVER,
    STOP_RULES,
    SYNCS,
    TASKS_MAX,
    WORKER,
    Checkpoint,
    GpuDemand,
    JobSpec,
    Model,
    Parallelism,
    Profiling,
    Progress,
    Resources,
    Shape,
    StopRule,
    TaskDemand,
    default_shape,
    edge_count,
    expand,
    from_json,
    shares_ppm,
    split_evenly,
    split_whole,
    to_json,
    validate,
)


def job(model=None, **parallelism):
    return JobSpec(name="j", run="true", model=model or Model(), parallelism=Parallelism(**parallelism))


def edges(expansion):
    """The graph as {(parent, child): bytes}."""
    found = {}
    for task in range(expansion.tasks):
        for i in range(expansion.edge_start[task], expansion.edge_start[task + 1]):
            found[task, expansion.edge_child[i]] = expansion.edge_bytes[i]
    return found


# Shapes worked out by hand


def test_one_task_has_the_whole_model_and_no_edge():
    one = expand(JobSpec(name="j"))
    assert (one.workers, one.servers, one.tasks) == (1, 0, 1)
    assert one.role == (WORKER,)
    assert one.share_ppm == (1_000_000,)
    assert (one.gpu_milli, one.cpus_milli, one.memory_bytes) == ((1000,), (1000,), (0,))
    assert (one.edge_start, one.edge_child, one.ring_bytes) == ((0, 0), (), 0)


def test_a_chain_of_four():
    chain = expand(job(Model(edge_bytes=7), pipeline=4))
    assert edges(chain) == {(0, 1): 7, (1, 2): 7, (2, 3): 7}
    assert chain.edge_start == (0, 1, 2, 3, 3)
    assert chain.partition == (0, 1, 2, 3)
    assert expand(job(pipeline=4)).edge_bytes == (0, 0, 0)
    assert chain.share_ppm == (250_000,) * 4


def test_layers_of_two_three_deep():
    layers = expand(job(Model(edge_bytes=5), pipeline=3, tensor=2, cut="layered"))
    assert edges(layers) == {
        (0, 2): 5, (0, 3): 5, (1, 2): 5, (1, 3): 5,
        (2, 4): 5, (2, 5): 5, (3, 4): 5, (3, 5): 5,
    }  # fmt: skip
    assert layers.edge_start == (0, 2, 4, 6, 8, 8, 8)
    assert [layers.children(task) for task in (0, 3, 5)] == [(2, 3), (4, 5), ()]


def test_a_diamond_of_two_sources_a_sink_and_a_server():
    # 0 and 1 feed 2, the smaller last layer; 2 feeds the server.
    diamond = expand(
        job(Model(edge_bytes=5, sync_bytes=9), pipeline=3, cut="layered", width=2, servers=1, sync="parameter-server")
    )
    assert edges(diamond) == {(0, 2): 5, (1, 2): 5, (2, 3): 9}
    assert diamond.role == (WORKER, WORKER, WORKER, SERVER)
    assert (diamond.replica, diamond.partition) == ((0, 0, 0, -1), (0, 1, 2, 0))
    assert diamond.share_ppm == (333_334, 333_333, 333_333, 0)


def test_a_four_task_diamond_through_two_servers():
    # One replica of a single sink would be a fork; two replicas and two servers make every pair an edge.
    both = expand(job(Model(sync_bytes=9), data=2, servers=2, sync="parameter-server"))
    assert edges(both) == {(0, 2): 5, (0, 3): 4, (1, 2): 5, (1, 3): 4}
    assert both.ring_bytes == 0


def test_replicas_repeat_the_graph_and_every_sink_feeds_every_server():
    two = expand(job(Model(edge_bytes=1, sync_bytes=10), data=2, pipeline=3, servers=2, sync="parameter-server"))
    assert edges(two) == {
        (0, 1): 1, (1, 2): 1, (2, 6): 5, (2, 7): 5,
        (3, 4): 1, (4, 5): 1, (5, 6): 5, (5, 7): 5,
    }  # fmt: skip
    assert two.replica == (0, 0, 0, 1, 1, 1, -1, -1)
    assert two.partition == (0, 1, 2, 0, 1, 2, 0, 1)
    assert two.gpu_milli == (1000,) * 6 + (0, 0)


def test_uncut_partitions_are_all_sinks():
    flat = expand(job(Model(sync_bytes=4), pipeline=3, cut="none", servers=1, sync="parameter-server"))
    assert edges(flat) == {(0, 3): 4, (1, 3): 4, (2, 3): 4}


def test_a_ring_is_a_number_and_no_edge():
    ring = expand(job(Model(sync_bytes=100), data=3))
    assert (edges(ring), ring.ring_bytes) == ({}, 100)
    assert expand(job(Model(parameters=25), data=2)).ring_bytes == 100
    assert expand(job(Model(sync_bytes=100), data=1)).ring_bytes == 0
    assert expand(job(Model(sync_bytes=100), data=2, sync="none")).ring_bytes == 0


def test_given_partitions_are_repeated_for_each_replica():
    spec = job(Model(partitions=(400_000, 600_000)), data=2, pipeline=2)
    assert expand(spec).share_ppm == (400_000, 600_000, 400_000, 600_000)
    with pytest.raises(ValueError, match="gives 1 partitions"):
        expand(replace(spec, model=Model(partitions=(1_000_000,))))


def test_resources_of_workers_and_servers():
    worker = Resources((GpuDemand("a100", 1000), GpuDemand("v100", 2000)), 4000, 24, 7)
    spec = replace(job(data=2, servers=1, sync="parameter-server"), resources=worker)
    own = replace(spec, server_resources=Resources((GpuDemand("", 0),), 1000, 8, 0))
    assert expand(spec).gpu_milli == (1000, 1000, 0)
    assert expand(spec, alternative=1).gpu_milli == (2000, 2000, 0)
    assert (expand(spec).cpus_milli, expand(spec).memory_bytes) == ((4000,) * 3, (24,) * 3)
    assert (expand(own).cpus_milli, expand(own).memory_bytes) == ((4000, 4000, 1000), (24, 24, 8))
    assert expand(own).network_bytes_per_s == (7, 7, 0)
    with pytest.raises(ValueError, match="alternative"):
        expand(spec, alternative=2)


def test_tasks_that_differ():
    demands = (TaskDemand(300, 400, 2, 1, 700_000), TaskDemand(500, 600, 3, 2, 300_000), TaskDemand(0, 1000, 4, 3, 0))
    spec = replace(job(pipeline=2, servers=1, sync="parameter-server"), task_demands=demands)
    found = expand(spec)
    assert found.gpu_milli == (300, 500, 0)
    assert found.cpus_milli == (400, 600, 1000)
    assert found.memory_bytes == (2, 3, 4)
    assert found.network_bytes_per_s == (1, 2, 3)
    assert found.share_ppm == (700_000, 300_000, 0)
    with pytest.raises(ValueError, match="demands of 2 tasks"):
        expand(replace(spec, task_demands=demands[:2]))


# Shapes that are refused, and bounds


def test_an_elastic_job_takes_shapes_within_its_bounds():
    spec = job(data=2, data_min=1, data_max=4, servers=1, servers_min=1, servers_max=3, sync="parameter-server")
    assert default_shape(spec) == Shape(data=2, servers=1)
    assert expand(spec, Shape(data=4, servers=3)).tasks == 7
    assert expand(spec, Shape(data=1, servers=1, batch=64)).tasks == 2
    for shape in (Shape(5, servers=1), Shape(0, servers=1), Shape(1), Shape(1, servers=4), Shape(1, 2, servers=1)):
        with pytest.raises(ValueError, match="allows"):
            expand(spec, shape)
    with pytest.raises(ValueError, match="negative"):
        expand(spec, Shape(data=1, servers=1, batch=-1))


def test_bounds_that_are_not_given_leave_one_shape():
    par = Parallelism(data=3, tensor=2, servers=1)
    assert (par.data_min, par.data_max, par.servers_min, par.servers_max, par.width) == (3, 3, 1, 1, 2)
    assert not par.elastic
    assert Parallelism(data=1, data_max=2).elastic
    assert Parallelism(servers=1, servers_max=2).elastic


@pytest.mark.parametrize(
    "bad",
    [
        {"data": 0},
        {"pipeline": 0},
        {"tensor": -1},
        {"cut": "star"},
        {"sync": "gossip"},
        {"servers": -1},
        {"cut": "layered", "width": -1},
    ],
)
def test_no_worker_or_an_unknown_wiring_is_refused(bad):
    with pytest.raises(ValueError):
        expand(job(**bad))


def test_a_graph_or_a_job_too_big_is_refused_before_it_is_built():
    with pytest.raises(ValueError, match="tasks or"):
        expand(job(data=TASKS_MAX + 1))
    with pytest.raises(ValueError, match="edges"):
        expand(job(pipeline=2, tensor=2**18, cut="layered"))


# Properties of every shape

shapes = st.builds(
    Parallelism,
    data=st.integers(1, 4),
    pipeline=st.integers(1, 5),
    tensor=st.integers(1, 3),
    cut=st.sampled_from(CUTS),
    width=st.integers(0, 4),
).flatmap(
    lambda par: st.integers(0, 3).map(
        lambda servers: replace(
            par,
            servers=servers,
            servers_min=servers,
            servers_max=servers,
            sync="parameter-server" if servers else "all-reduce",
        )
    )
)


@given(shapes)
def test_the_graph_is_acyclic_and_ends_at_the_servers(par):
    found = expand(replace(job(Model(edge_bytes=3, sync_bytes=10)), parallelism=par))
    graph = edges(found)
    shape = Shape(par.data, par.pipeline, par.tensor, par.servers)
    assert len(graph) == len(found.edge_child) == edge_count(par, shape)
    assert all(parent < child < found.tasks for parent, child in graph)
    parents = {parent for parent, _ in graph}
    workers, servers = range(found.workers), range(found.workers, found.tasks)
    for task in workers:
        children = set(found.children(task))
        # A worker feeds its own replica, or all the servers and nothing else.
        if children & set(servers):
            assert children == set(servers)
            assert sum(graph[task, child] for child in children) == 10
        else:
            assert all(found.replica[child] == found.replica[task] for child in children)
            assert all(graph[task, child] == 3 for child in children)
            assert children or not par.servers
    assert not parents & set(servers)


@given(shapes)
def test_columns_have_a_row_for_each_task_and_shares_sum_to_one_for_each_replica(par):
    found = expand(replace(job(), parallelism=par))
    assert found.workers == par.data * par.pipeline * par.tensor
    assert found.role == (WORKER,) * found.workers + (SERVER,) * par.servers
    columns = (found.replica, found.partition, found.share_ppm, found.gpu_milli, found.cpus_milli)
    assert {len(column) for column in columns} == {found.tasks}
    assert len(found.edge_start) == found.tasks + 1
    for replica in range(par.data):
        shares = [s for s, r in zip(found.share_ppm, found.replica, strict=False) if r == replica]
        assert sum(shares) == 1_000_000
        assert max(shares) - min(shares) <= 1


def test_shares_by_largest_remainder():
    assert shares_ppm([0.4, 0.6]) == (400_000, 600_000)
    assert shares_ppm([1, 1, 1]) == (333_334, 333_333, 333_333)
    assert split_whole(10, [1, 1, 2.5]) == (2, 2, 6)  # 2.22, 2.22, 5.56
    assert split_whole(7, [1, 0, 1]) == (4, 0, 3)
    assert split_evenly(7, 3) == (3, 2, 2)
    for weights in ([], [0, 0], [1, -1], [math.nan], [math.inf]):
        with pytest.raises(ValueError, match="weights"):
            shares_ppm(weights)


@given(st.lists(st.floats(0, 1e300, allow_subnormal=False), min_size=1, max_size=50).filter(any), st.integers(0, 10**9))
def test_a_split_sums_to_the_whole_and_is_near_each_weight(weights, total):
    parts = split_whole(total, weights)
    assert sum(parts) == total
    mean = math.fsum(weight / 50 for weight in weights)
    for part, weight in zip(parts, weights, strict=False):
        assert part == pytest.approx(total * (weight / 50 / mean), rel=1e-9, abs=1.000001)


# Time, and the JSON form

FULL = JobSpec(
    name="dédé 你好 🦙",
    user="ann",
    queue="vision",
    priority=70,
    urgency=9,
    setup="pip install x",
    run="python train.py",
    workdir="src",
    env=(("SEED", "1"), ("A", "")),
    resources=Resources((GpuDemand("a100", 1000), GpuDemand("", 500)), 2500, 4 * 10**9, 10**8),
    server_resources=Resources((GpuDemand("", 0),), 1000, 1, 2),
    share_gpu=True,
    parallelism=Parallelism(2, 1, 8, 2, 1, "layered", 2, "parameter-server", 1, 1, 4),
    model=Model("resnet50", 25_600_000, (400_000, 600_000), 10**6, 10**7),
    progress=Progress("loss", "val_acc", "min", 3000, "epoch", r"l=(?P<loss>\S+)"),
    goal_accuracy=0.93,
    stop=StopRule("optstop", ("accuracy",)),
    deadline_s=21_600.5,
    time_limit_s=43_200.0,
    checkpoint=Checkpoint("ckpt", 60.0, 600.0, 1.5, 0.000001),
    retry_max=1,
    profiling=Profiling(7, 0.2),
    group="sweep",
    estimate_s=0.1,
)


def test_seconds_have_microsecond_twins():
    assert FULL.deadline_us == 21_600_500_000
    assert FULL.time_limit_us == 43_200_000_000
    assert FULL.estimate_us == 100_000
    saved = FULL.checkpoint
    assert (saved.grace_us, saved.every_us, saved.save_us, saved.restore_us) == (60_000_000, 600_000_000, 1_500_000, 1)
    assert (JobSpec(name="j").deadline_us, Checkpoint().save_us, Checkpoint().grace_us) == (None, None, 30_000_000)


def test_a_spec_round_trips_through_json_text():
    demands = (TaskDemand(300, 400, 2, 0, 1_000_000),)
    for spec in (JobSpec(name="j"), FULL, JobSpec(name="k", task_demands=demands, profiling=Profiling())):
        for compact in (False, True):
            text = json.dumps(to_json(spec, compact=compact), allow_nan=False)
            assert from_json(json.loads(text)) == spec
    assert hash(FULL) == hash(from_json(to_json(FULL)))


def test_every_field_is_in_the_full_json_and_differs_in_the_full_example():
    whole, plain = to_json(FULL), to_json(JobSpec(name="j"))
    assert set(whole) == set(plain) == {"schema", *JobSpec.__slots__}
    same = {key for key in plain if whole[key] == plain[key]}
    assert same == {"schema", "task_demands"}
    assert plain["schema"] == SCHEMA_VERSION == 1
    assert whole["env"] == {"SEED": "1", "A": ""}


def test_the_defaults_belong_to_the_schema_version():
    # Compact JSON leaves them out: whoever changes one must raise SCHEMA_VERSION and migrate what was written.
    assert to_json(JobSpec(name="j")) == {
        "schema": 1,
        "name": "j",
        "user": "",
        "queue": "default",
        "priority": 50,
        "urgency": 5,
        "setup": "",
        "run": "",
        "workdir": ".",
        "env": {},
        "resources": {
            "gpu_alternatives": [{"kind": "", "milli": 1000}],
            "cpus_milli": 1000,
            "memory_bytes": 0,
            "network_bytes_per_s": 0,
        },
        "server_resources": None,
        "share_gpu": False,
        "parallelism": {
            "data": 1,
            "data_min": 1,
            "data_max": 1,
            "pipeline": 1,
            "tensor": 1,
            "cut": "chain",
            "width": 1,
            "sync": "all-reduce",
            "servers": 0,
            "servers_min": 0,
            "servers_max": 0,
        },
        "model": {"name": "", "parameters": None, "partitions": [], "edge_bytes": None, "sync_bytes": None},
        "progress": {
            "loss": "loss",
            "accuracy": "",
            "mode": "max",
            "total": None,
            "unit": "step",
            "pattern": "",
            "mlflow": False,
        },
        "goal_accuracy": None,
        "stop": {"rule": "fixed", "allow": []},
        "deadline_s": None,
        "time_limit_s": None,
        "checkpoint": {"dir": "", "grace_s": 30.0, "every_s": None, "save_s": None, "restore_s": None},
        "retry_max": 3,
        "profiling": None,
        "group": "",
        "estimate_s": None,
        "task_demands": None,
    }
    assert to_json(JobSpec(name="j"), compact=True) == {"schema": 1, "name": "j"}


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"name": "j"}, "schema: expected 1, got nothing"),
        ({"schema": 2, "name": "j"}, "schema: expected 1, got 2"),
        ({"schema": True, "name": "j"}, "schema: expected 1, got true"),
        ({"schema": 1}, "name: expected a value, got nothing"),
        ({"schema": 1, "name": "j", "prioritty": 1}, "prioritty: unknown key (did you mean 'priority'?)"),
        ({"schema": 1, "name": 3}, "name: expected text, got 3"),
        ({"schema": 1, "name": "j", "priority": "1"}, 'priority: expected a whole number, got "1"'),
        ({"schema": 1, "name": "j", "priority": True}, "priority: expected a whole number, got true"),
        ({"schema": 1, "name": "j", "priority": 1.0}, "priority: expected a whole number, got 1.0"),
        ({"schema": 1, "name": "j", "priority": 2**64}, f"priority: expected a whole number, got {2**64}"),
        ({"schema": 1, "name": "j", "deadline_s": math.nan}, "deadline_s: expected a number, got nan"),
        ({"schema": 1, "name": "j", "deadline_s": "6h"}, 'deadline_s: expected a number, got "6h"'),
        ({"schema": 1, "name": "j", "share_gpu": 0}, "share_gpu: expected true or false, got 0"),
        ({"schema": 1, "name": "j", "env": []}, "env: expected names and values, got []"),
        ({"schema": 1, "name": "j", "env": {"A": 1}}, "env.A: expected text, got 1"),
        ({"schema": 1, "name": "j", "stop": []}, "stop: expected an object, got []"),
        ({"schema": 1, "name": "j", "stop": {"allow": "x"}}, 'stop.allow: expected a list, got "x"'),
        ({"schema": 1, "name": "j", "stop": {"allow": [1]}}, "stop.allow[0]: expected text, got 1"),
        ({"schema": 1, "name": "j", "task_demands": [{}]}, "task_demands[0].gpu_milli: expected a value, got nothing"),
    ],
)
def test_json_of_another_form_is_refused_with_its_key(data, line):
    with pytest.raises(UserError) as error:
        from_json(data)
    assert str(error.value) == line
    with pytest.raises(UserError, match="an object"):
        from_json([])


def test_whole_seconds_in_json_are_seconds():
    assert from_json({"schema": 1, "name": "j", "deadline_s": 60}).deadline_us == 60_000_000


# What is refused


def keys(spec, **options):
    return {problem.key for problem in validate(spec, **options)}


def test_a_full_spec_has_no_problem():
    assert validate(FULL) == []
    assert validate(job()) == []
    assert keys(JobSpec(name="j")) == {"run"}
    assert keys(JobSpec(name="j"), runnable=False) == set()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "-rf"}, "name"),
        ({"name": "../x"}, "name"),
        ({"user": "a\0"}, "user"),
        ({"queue": ""}, "queue"),
        ({"group": "a/b"}, "group"),
        ({"run": " \n"}, "run"),
        ({"run": "a\0b"}, "run"),
        ({"setup": "\ud800"}, "setup"),
        ({"workdir": "\0"}, "workdir"),
        ({"env": (("A-B", "1"),)}, "env"),
        ({"env": (("A", "\0"),)}, "env.A"),
        ({"priority": -1}, "priority"),
        ({"priority": 101}, "priority"),
        ({"priority": math.nan}, "priority"),
        ({"priority": True}, "priority"),
        ({"urgency": 0}, "urgency"),
        ({"urgency": 11}, "urgency"),
        ({"retry_max": -1}, "retry.max"),
        ({"deadline_s": 0.0}, "deadline"),
        ({"deadline_s": -1.0}, "deadline"),
        ({"deadline_s": math.nan}, "deadline"),
        ({"deadline_s": 1e300}, "deadline"),
        ({"time_limit_s": math.inf}, "time_limit"),
        ({"estimate_s": 0}, "estimate"),
        ({"checkpoint": Checkpoint(grace_s=-1)}, "checkpoint.grace"),
        ({"checkpoint": Checkpoint(every_s=0)}, "checkpoint.every"),
        ({"checkpoint": Checkpoint(save_s=math.nan)}, "checkpoint.save"),
        ({"checkpoint": Checkpoint(restore_s=math.inf)}, "checkpoint.restore"),
        ({"checkpoint": Checkpoint(dir="\0")}, "checkpoint.dir"),
        ({"goal_accuracy": 1.01}, "goal.accuracy"),
        ({"goal_accuracy": -0.01}, "goal.accuracy"),
        ({"goal_accuracy": math.nan}, "goal.accuracy"),
        ({"progress": Progress(mode="up")}, "progress.mode"),
        ({"progress": Progress(unit="mile")}, "progress.unit"),
        ({"progress": Progress(total=0)}, "progress.total"),
        ({"progress": Progress(loss="a\nb")}, "progress.loss"),
        ({"progress": Progress(pattern="(")}, "progress.pattern"),
        ({"progress": Progress(pattern="loss")}, "progress.pattern"),
        ({"stop": StopRule("soon")}, "stop.rule"),
        ({"stop": StopRule("fixed", ("soon",))}, "stop.allow"),
        ({"profiling": Profiling(-1)}, "profiling.trials"),
        ({"profiling": Profiling(1, math.nan)}, "profiling.budget"),
        ({"resources": Resources(())}, "resources.gpu"),
        ({"resources": Resources((GpuDemand("", 1500),))}, "resources.gpu"),
        ({"resources": Resources((GpuDemand("", -1),))}, "resources.gpu"),
        ({"resources": Resources((GpuDemand("A 1", 1000),))}, "resources.gpu"),
        ({"resources": Resources(cpus_milli=0)}, "resources.cpus"),
        ({"resources": Resources(memory_bytes=-1)}, "resources.memory"),
        ({"resources": Resources(memory_bytes=2**61)}, "resources.memory"),
        ({"resources": Resources(network_bytes_per_s=-1)}, "resources.network"),
        ({"server_resources": Resources(cpus_milli=-5)}, "server_resources.cpus"),
        ({"model": Model(parameters=-1)}, "model.parameters"),
        ({"model": Model(edge_bytes=-1)}, "model.edge_bytes"),
        ({"model": Model(sync_bytes=-1)}, "model.sync_bytes"),
        ({"model": Model(name="a\0")}, "model.name"),
        ({"model": Model(partitions=(999_999,))}, "model.partitions"),
        ({"model": Model(partitions=(500_000, 500_000))}, "model.partitions"),
        ({"model": Model(partitions=(1_500_000, -500_000)), "parallelism": Parallelism(pipeline=2)}, "model.partitions"),
        ({"parallelism": Parallelism(data=0)}, "parallelism.data"),
        ({"parallelism": Parallelism(data=-1)}, "parallelism.data"),
        ({"parallelism": Parallelism(data=5, data_max=4, data_min=1)}, "parallelism.data"),
        ({"parallelism": Parallelism(data=4, data_min=4, data_max=2)}, "parallelism.data"),
        ({"parallelism": Parallelism(pipeline=0)}, "parallelism.pipeline"),
        ({"parallelism": Parallelism(tensor=0)}, "parallelism.tensor"),
        ({"parallelism": Parallelism(width=-1, cut="layered")}, "parallelism.width"),
        ({"parallelism": Parallelism(cut="star")}, "parallelism.cut"),
        ({"parallelism": Parallelism(sync="gossip")}, "parallelism.sync"),
        ({"parallelism": Parallelism(servers=1)}, "parallelism.servers"),
        ({"parallelism": Parallelism(sync="parameter-server")}, "parallelism.servers"),
        ({"parallelism": Parallelism(servers=-1, sync="parameter-server")}, "parallelism.servers"),
        ({"parallelism": Parallelism(data=2**20, pipeline=2)}, "parallelism"),
        ({"parallelism": Parallelism(pipeline=2, tensor=2**18, cut="layered")}, "parallelism"),
        ({"task_demands": ()}, "task_demands"),
        ({"task_demands": (TaskDemand(1000, 0, 0, 0, 0),)}, "task_demands[0].cpus_milli"),
        ({"task_demands": (TaskDemand(1500, 1, 0, 0, 0),)}, "task_demands[0].gpu_milli"),
        ({"task_demands": (TaskDemand(1000, 1, 0, 0, 1_000_001),)}, "task_demands[0].share_ppm"),
        (
            {"task_demands": (TaskDemand(1, 1, 0, 0, 0),), "parallelism": Parallelism(data=1, data_max=2)},
            "task_demands",
        ),
    ],
)
def test_a_wrong_value_is_told_alone_with_its_key(change, key):
    problems = validate(replace(job(), **change))
    assert {problem.key for problem in problems} == {key}
    assert str(problems[0]).startswith(f"{key}: expected ")
    assert "\n" not in str(problems[0])


def test_what_all_tasks_book_together_fits_an_int64():
    big = replace(job(data=8), resources=Resources(memory_bytes=2**60))
    assert keys(big) == {"resources.memory"}
    assert keys(replace(job(data=4), resources=Resources(memory_bytes=2**60))) == set()
    assert keys(job(Model(edge_bytes=2**60), pipeline=6)) == {"model.edge_bytes"}


def test_the_largest_job_is_allowed_and_one_task_more_is_not():
    assert keys(job(data=TASKS_MAX)) == set()
    assert keys(job(data=TASKS_MAX - 1, servers=2, sync="parameter-server")) == {"parallelism"}
    assert edge_count(Parallelism(pipeline=2, tensor=2**11, cut="layered"), Shape(1, 2, 2**11)) == EDGES_MAX
    assert keys(job(pipeline=2, tensor=2**11, cut="layered")) == set()


def test_nothing_is_worked_out_from_sizes_that_are_no_numbers():
    assert keys(job(data=math.nan)) == {"parallelism.data"}
    assert keys(job(tensor=0, cut="layered")) == {"parallelism.tensor", "parallelism.width"}


def test_several_problems_are_all_listed():
    wrong = replace(job(data=0), priority=-1, deadline_s=math.nan)
    assert keys(wrong) == {"parallelism.data", "priority", "deadline"}


def test_the_known_words():
    assert (CUTS, SYNCS) == (("chain", "layered", "none"), ("all-reduce", "parameter-server", "none"))
    assert (STOP_RULES, METRIC_MODES) == (("fixed", "optstop", "accuracy"), ("max", "min"))
    assert PROGRESS_UNITS == ("step", "epoch")


def test_servers_get_nothing_unless_gradients_go_through_them():
    assert edges(expand(job(Model(sync_bytes=4), servers=1, sync="none"))) == {}
