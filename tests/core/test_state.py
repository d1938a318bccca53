"""The state as a whole: growth, compaction, the map of numbers, the cluster, copies, and the digest that does not know of
batches."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.dense import GB, US, Desk, audit, random_desk, spec

from headway.core import columns as c
from headway.core.columns import EventKind, Name, NodePhase, Phase, Reason
from headway.core.events import EventBatch, EventBuffer, is_sorted
from headway.core.state import State

K = EventKind


# -- growth and compaction -----------------------------------------------------------------------------------------
def test_tables_grow_and_keep_everything() -> None:
    desk = Desk((2,), jobs=1, tasks=1, edges=1, audited=False)
    for job in range(1500):
        desk.submit(job, data=1 + job % 3, pipeline=2, cut=1, priority=job % 100)
    audit(desk.state)
    assert desk.count("rows") == 1500 and desk.count("waiting") == 1500 and desk.state.R.shape == (2048,)
    for job in (0, 1, 255, 256, 1023, 1024, 1499):
        tasks = desk.tasks(job)
        assert len(tasks) == 2 * (1 + job % 3) and [t["partition"] for t in tasks] == [0, 1] * (1 + job % 3)
        assert desk.get(job, "priority") == job % 100 and desk.get(job, "id") == job


def busy_desk() -> Desk:
    """Ten jobs alive in all sorts of places, between many that have ended."""
    desk = Desk((4, 4, 4), audited=False)
    r = random.Random(3)
    for job in range(60):
        desk.submit(
            job,
            data=2 if job % 6 == 5 else 1,
            data_min=1,
            data_max=3,
            pipeline=2 if job % 4 == 0 else 1,
            cut=1,
            priority=r.randrange(100),
            retry_max=job,
        )
    desk.run(5, [(0, [0]), (0, [1])], t=US)
    desk.stop(5, Reason.RESIZED, [(1, [0])], data=1)
    desk.run(8, [(0, [2]), (0, [3])])
    desk.start(9, [(1, [1])])
    desk.want(10, [(1, [2])])
    desk.run(11, [(2, [0]), (2, [1])])
    desk.stop(11, Reason.MIGRATED, [(2, [2]), (2, [3])])
    desk.emit(K.ESTIMATED, 12, a=1, payload=np.array([2.5]).view(np.int64).tolist())
    desk.emit(K.NODE_DOWN, 1, t=2 * US)
    alive = {3, 5, 8, 9, 10, 11, 12, 40, 59}
    for job in range(60):
        if job not in alive:
            desk.emit(K.CANCEL_REQUESTED, job)
    return desk


def test_compaction_keeps_everything() -> None:
    desk = busy_desk()
    audit(desk.state)
    before, jobs = desk.state.digest(), [repr(job)[: repr(job).index(", row=")] for job in desk.view().jobs()]
    tasks = {job: [{k: v for k, v in t.items() if k not in ("job", "edge0")} for t in desk.tasks(job)] for job in (3, 5, 8, 11)}
    desk.state.compact()
    audit(desk.state)
    assert desk.state.digest() == before
    assert [repr(job)[: repr(job).index(", row=")] for job in desk.view().jobs()] == jobs
    assert {job: [{k: v for k, v in t.items() if k not in ("job", "edge0")} for t in desk.tasks(job)] for job in tasks} == tasks
    assert desk.count("rows") == 9 and desk.count("dead") == desk.count("dead_tasks") == desk.count("dead_edges") == 0
    assert desk.count("first_waiting") == 0 and desk.count("priority_min") >= 0
    assert desk.state.ended_phase(0) == Phase.CANCELLED and desk.state.ended_phase(3) is None and desk.state.row(59) == 8
    desk.audited = True
    assert set(desk.settle()) == {K.STOP_REQUESTED, K.UNWANTED}
    desk.report(K.STOPPED, 5)
    desk.report(K.STOPPED, 11)
    assert desk.settle() == [K.START_REQUESTED] and desk.phase(11) == Phase.STARTING


def test_edges_keep_to_their_tasks_through_compaction() -> None:
    desk = busy_desk()

    def graph(job: int) -> list[list[tuple[int, ...]]]:
        return [[tuple(desk.state.X[:, e].tolist()) for e in range(t["edge0"], t["edge0"] + t["edges"])] for t in desk.tasks(job)]

    before = {job: graph(job) for job in (8, 12, 40)}
    assert before[8] == [[(1, 0)], []]
    desk.state.compact()
    assert {job: graph(job) for job in before} == before


def test_an_empty_table_compacts_to_an_empty_table() -> None:
    desk = Desk((1,))
    desk.submit(0)
    desk.emit(K.CANCEL_REQUESTED, 0)
    desk.state.compact()
    audit(desk.state)
    assert desk.count("rows") == 0 and desk.count("first_waiting") == 0
    desk.submit(1)
    assert desk.view().waiting_rows().tolist() == [0]


def test_dead_rows_leave_by_themselves() -> None:
    desk = Desk((1,), audited=False)
    files = 0
    for job in range(3000):
        desk.submit(job, text=f"file {job}")
        if job % 1000:
            desk.emit(K.CANCEL_REQUESTED, job)
        files = max(files, len(desk.state.files))
    audit(desk.state)
    assert [job.id for job in desk.view().jobs()] == [0, 1000, 2000]
    assert desk.count("rows") < 600 and desk.state.J.shape[1] <= 1024 and desk.state.T.shape[1] <= 1024 and files < 600
    assert desk.state.files[1000] == "file 1000" and desk.count("finished") == 2997


def test_resizes_do_not_make_the_task_table_grow_for_ever() -> None:
    desk = Desk((2,), audited=False)
    desk.submit(0, data_max=2)
    for i in range(1500):
        desk.start(0, [(0, [k]) for k in range(1 + i % 2)], data=1 + i % 2)
        desk.report(K.STOPPED, 0)
    assert desk.state.T.shape[1] <= 1024


def test_dead_rows_leave_a_roomy_table_too() -> None:
    desk = Desk((1,), audited=False, jobs=4000, tasks=4000)
    for job in range(400):
        desk.submit(job)
        if job:
            desk.emit(K.CANCEL_REQUESTED, job)
    assert desk.count("rows") < 300 and [job.id for job in desk.view().jobs()] == [0]


def test_numbers_below_the_oldest_live_job_are_forgotten() -> None:
    desk = Desk((1,), audited=False)
    for job in range(900):
        desk.submit(job)
        desk.emit(K.CANCEL_REQUESTED, job)
    desk.submit(900)
    assert desk.state.ended_phase(0) == Phase.CANCELLED
    for job in range(901, 1030):
        desk.submit(job)
    audit(desk.state)
    assert desk.count("id_base") == 900 and desk.state.R.shape == (1024,) and desk.state.ended_phase(0) is None
    assert desk.state.row(900) is not None and desk.state.row(899) is None and desk.state.row(5000) is None
    desk.emit(K.COMPLETED, 3, 1)
    assert desk.count("stale") == 1, "a report of a forgotten job is stale"


def test_the_map_of_numbers_doubles_while_an_old_job_lives() -> None:
    desk = Desk((1,), audited=False)
    for job in range(1500):
        desk.submit(job)
        if job:
            desk.emit(K.CANCEL_REQUESTED, job)
    audit(desk.state)
    assert desk.count("id_base") == 0 and desk.state.R.shape == (2048,) and desk.state.ended_phase(1) == Phase.CANCELLED
    assert desk.state.row(0) is not None


def test_numbers_may_leave_gaps() -> None:
    desk = Desk((1,))
    for job in (5, 2000, 2001, 9000):
        desk.submit(job)
    assert [job.id for job in desk.view().jobs()] == [5, 2000, 2001, 9000]
    desk.emit(K.CANCEL_REQUESTED, 2000)
    assert desk.state.ended_phase(2000) == Phase.CANCELLED and desk.state.ended_phase(1999) is None


# -- the hint of the first waiting row -----------------------------------------------------------------------------
def test_the_first_waiting_row_under_requeues() -> None:
    desk = Desk((4,))
    for job in range(4):
        desk.submit(job, retry_max=9)
    hint = []
    for act in (
        lambda: desk.start(0, [(0, [0])]),  # 1 2 3 wait
        lambda: desk.start(2, [(0, [1])]),  # 1 3
        lambda: desk.want(1, [(0, [2])]),  # 3
        lambda: desk.emit(K.CANCEL_REQUESTED, 3),  # none
        lambda: desk.report(K.FAILED, 2),  # 2
        lambda: desk.emit(K.UNWANTED, 1),  # 1 2
        lambda: desk.report(K.STOPPED, 0),  # 0 1 2
        lambda: desk.submit(4),  # 0 1 2 4
        lambda: desk.start(0, [(0, [0])]),  # 1 2 4
        lambda: desk.emit(K.REJECTED, 1),  # 2 4
    ):
        act()
        hint.append((desk.count("first_waiting"), desk.view().waiting_rows().tolist()))
    assert hint == [
        (1, [1, 2, 3]),
        (1, [1, 3]),
        (3, [3]),
        (4, []),
        (2, [2]),
        (1, [1, 2]),
        (0, [0, 1, 2]),
        (0, [0, 1, 2, 4]),
        (1, [1, 2, 4]),
        (2, [2, 4]),
    ]


def test_jobs_without_gpus_are_counted_apart() -> None:
    desk = Desk((1,))
    desk.submit(0, gpu_task=0)
    desk.submit(1)
    assert (desk.count("waiting"), desk.count("waiting_cpu")) == (2, 1)
    desk.run(0, [(0, [])])
    assert (desk.count("waiting"), desk.count("waiting_cpu")) == (1, 0)
    desk.report(K.STOPPED, 0)
    desk.emit(K.CANCEL_REQUESTED, 0)
    assert (desk.count("waiting"), desk.count("waiting_cpu")) == (1, 0)


# -- the cluster ---------------------------------------------------------------------------------------------------
def test_a_larger_cluster_keeps_running_jobs_and_takes_new_nodes() -> None:
    desk = Desk((2,))
    desk.submit(0)
    desk.submit(1)
    desk.run(0, [(0, [1])])
    desk.emit(K.CLUSTER_SET, a=3, b=12, c=2, payload=(8, c.WHOLE))
    assert desk.node(0, "free_mask") == 0b01 and desk.gpu(1, "held") == 1000 and desk.count("gpus_up") == 2
    desk.emit(K.NODE_ADDED, 1, payload=(1, 1, 8, 2, 8000, GB, 5))
    desk.emit(K.NODE_ADDED, 2, payload=(1, 0, 2, 10, 8000, GB, 5))
    assert desk.count("gpus_up") == 12 and [desk.gpu(g, "node") for g in range(12)] == [0] * 2 + [1] * 8 + [2] * 2
    desk.emit(K.NODE_DOWN, 2)
    desk.run(1, [(1, [7])])
    desk.report(K.COMPLETED, 0)
    assert desk.node(1, "free_mask") == 0x7F and [n.free for n in desk.view().nodes()] == [2, 7, 2]
    desk.emit(K.CLUSTER_SET, a=70, b=12, c=2, payload=(8, c.WHOLE))
    assert desk.count("words") == 2 and desk.phase(1) == Phase.RUNNING
    desk.report(K.COMPLETED, 1)


def test_the_same_cluster_again_changes_nothing() -> None:
    desk = Desk((2, 2))
    desk.submit(0)
    desk.run(0, [(1, [1])])
    tables = [getattr(desk.state, name).tobytes() for name in "NGB"]
    desk.emit(K.CLUSTER_SET, a=2, b=4, c=1, payload=(2, c.WHOLE))
    assert [getattr(desk.state, name).tobytes() for name in "NGB"] == tables


def test_nodes_of_64_gpus() -> None:
    desk = Desk((64, 64))
    desk.submit(0, gpu_task=64_000)
    desk.submit(1)
    assert desk.node(0, "free_mask") == -1
    desk.run(1, [(1, [63])])
    assert desk.node(1, "free_mask") == (1 << 63) - 1 and desk.node(1, "held_mask") == -(1 << 63)
    desk.run(0, [(0, list(range(64)))])
    assert desk.node(0, "free") == 0 and desk.get(0, "held_milli") == 64_000
    desk.report(K.STOPPED, 0)
    desk.report(K.STOPPED, 1)
    assert desk.node(0, "held_mask") == 0 and desk.node(1, "free_mask") == -1


def test_queues_are_set_in_any_order_and_again() -> None:
    desk = Desk((2,))
    desk.emit(K.QUEUE_SET, 3, payload=(1000, 2000, 5, 1))
    assert desk.count("queues") == 4 and desk.state.Q[:4].T.tolist() == [
        [-1, -1, 1, -1],
        [-1, -1, 0, -1],
        [-1, -1, 0, -1],
        [1000, 2000, 5, 1],
    ]
    desk.submit(0, queue=3)
    desk.run(0, [(0, [0])])
    desk.emit(K.QUEUE_SET, 3, payload=(-1, -1, 6, 0))
    assert [desk.queue(3, x) for x in ("quota", "limit", "weight", "parent", "booked", "waiting")] == [-1, -1, 6, 0, 1000, 0]
    desk.submit(1, queue=3)
    desk.emit(K.QUEUE_SET, 1, payload=(0, 0, 1, -1))
    assert desk.queue(3, "waiting") == 1 and desk.count("queues") == 4


def test_names() -> None:
    desk = Desk((1,))
    desk.emit(K.NAMED, 0, a=Name.NODE, text="gpu-a1")
    desk.emit(K.NAMED, 7, a=Name.USER, text="Zoë\nX")
    desk.emit(K.NAMED, 7, a=Name.QUEUE, text="")
    assert (
        desk.state.name(Name.NODE, 0) == "gpu-a1"
        and desk.state.name(Name.USER, 7) == "Zoë\nX"
        and desk.state.name(Name.QUEUE, 7) == ""
    )
    assert desk.state.name(Name.NODE, 1) == "1"


def test_node_phases_carry_a_generation() -> None:
    desk = Desk((1, 1))
    before = desk.node(0, "generation"), desk.node(1, "generation")
    desk.emit(K.NODE_DOWN, 1)
    assert desk.node(0, "generation") == before[0] and desk.node(1, "generation") == desk.count("sequence") > before[1]
    assert desk.node(1, "phase") == NodePhase.DOWN


# -- files, copies, digests ----------------------------------------------------------------------------------------
def test_job_files_live_as_long_as_their_jobs() -> None:
    buffer = EventBuffer()
    for job in range(3):
        buffer.add(0, K.SUBMITTED, job, payload=spec(), text=f'{{"name": "j{job}"}}' if job else None)
        buffer.add(0, K.NAMED, job, a=Name.JOB, text=f"j{job}")
    desk = Desk((1,))
    desk.apply(buffer.take())
    assert desk.state.files == {1: '{"name": "j1"}', 2: '{"name": "j2"}'}
    desk.emit(K.CANCEL_REQUESTED, 1)
    desk.state.compact()
    assert desk.state.files == {2: '{"name": "j2"}'}


def test_a_copy_is_independent() -> None:
    desk = busy_desk()
    twin, before = desk.state.copy(), desk.state.digest()
    assert twin.digest() == before
    other = Desk((1,))
    other.state, other.t = twin, desk.t
    other.emit(K.NAMED, 0, a=Name.NODE, text="x")
    other.emit(K.SUBMITTED, 60, payload=spec(), text="file")
    other.settle()
    other.report(K.COMPLETED, 8)
    assert desk.state.digest() == before != twin.digest()
    assert desk.state.name(Name.NODE, 0) == "0" and 60 not in desk.state.files and desk.state.row(60) is None
    for name in ("O", "OT", "dG", "dN", "seen", "M"):
        assert not np.shares_memory(getattr(desk.state.scratch, name), getattr(twin.scratch, name))


def test_a_copy_has_room_for_all_queues() -> None:
    desk = Desk((1,), limits=(-1, -1, -1))
    assert desk.state.copy().scratch.queues.shape == (3,)


def test_the_digest_sees_every_table() -> None:
    desk = busy_desk()
    seen = {desk.state.digest()}
    row = int(desk.state.live_rows()[1])
    task, held = int(desk.state.J[c.J_TASK0, row]), int(desk.state.J[c.J_HELD_TASK0, row])
    assert task != held, "job 5 holds its old shape"
    for table, at in (
        ("J", (c.J_ATTAINED, row)),
        ("F", (0, row)),
        ("T", (c.T_USE_GPU, task)),
        ("T", (c.T_USE_GPU, held)),
        ("N", (c.N_NET, 2)),
        ("G", (c.G_USED, 0)),
        ("Q", (c.Q_WEIGHT, 0)),
        ("B", (0, 0)),
        ("C", (c.C_STALE,)),
        ("C", (c.C_REFUSED_IN_ROW,)),
    ):
        twin = desk.state.copy()
        getattr(twin, table)[at] += 1
        seen.add(twin.digest())
    twin = desk.state.copy()
    twin.X[c.X_CHILD, int(twin.J[c.J_EDGE0, twin.row(8)])] += 1
    seen.add(twin.digest())
    assert len(seen) == 12
    twin = desk.state.copy()
    twin.J[c.J_ATTAINED, 0] += 1
    assert twin.digest() in seen, "a dead row means nothing"


@cache
def journals() -> list[tuple[EventBatch, str]]:
    """Journals of simulations with preemption and lost nodes, and the digests of the states that they end in."""
    from tests.sim.cases import cluster_of, random_case, workload_of

    from headway.policies.registry import make_policy
    from headway.sim.run import simulate
    from headway.sim.world import World, too_large

    found = []
    for seed, policy in ((1, "las:quantum=20"), (4, "srtf"), (6, "tiresias:threshold=30"), (9, "fifo-backfill")):
        case = random_case(seed, cpus=False, saves=True, faults=True, kinds=False, priorities=True)
        cluster = cluster_of(case.nodes)
        workload = workload_of(case.jobs, cluster.kinds)
        world = World(workload, cluster, node_faults=[(t * US, node, what == "up") for t, node, what in case.faults])
        world.reject(too_large(workload, cluster))
        outcome = simulate(workload, cluster, make_policy(policy), interval_s=case.round_s, keep_journal=True, world=world)
        assert outcome.journal is not None
        found.append((outcome.journal, outcome.state.digest()))
    return found


@given(st.data())
@settings(max_examples=40)
def test_the_digest_does_not_know_how_the_journal_was_cut(data: st.DataObject) -> None:
    journal, digest = journals()[data.draw(st.integers(0, 3))]
    cuts = sorted(data.draw(st.sets(st.integers(0, len(journal)), max_size=12)))
    state = State(jobs=data.draw(st.sampled_from([1, 256])), tasks=data.draw(st.sampled_from([1, 512])))
    for first, stop in zip([0, *cuts], [*cuts, len(journal)], strict=False):
        state.apply(journal.cut(first, stop))
        if data.draw(st.booleans()):
            state.compact()
    assert state.digest() == digest
    audit(state)


def test_every_prefix_of_a_journal_passes_the_audit() -> None:
    for journal, digest in journals():
        assert is_sorted(journal)
        state = State(jobs=1, tasks=1, edges=1)
        for i in range(len(journal)):
            state.apply(journal.cut(i, i + 1))
            audit(state)
        assert state.digest() == digest and not len(state.live_rows())


def test_random_histories_pass_the_audit_and_replay() -> None:
    for seed in range(40):
        desk = random_desk(random.Random(seed), steps=40)
        audit(desk.state)
        whole = State(jobs=1, tasks=1, edges=1)
        whole.apply(desk.whole_journal())
        assert whole.digest() == desk.state.digest(), seed
