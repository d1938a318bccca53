"""Shares of GPUs under a ranking policy: the pass against a plain twin, and small cases by hand (`docs/semantics.md` §4)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from headway.core import columns as c
from headway.core.columns import NodePhase, Op, Phase
from headway.core.view import ClusterView, gpus_of
from headway.policies.registry import make_policy
from headway.sim.run import simulate
from headway.testing.builders import JobSketch, cluster, job, state, workload
from headway.testing.gantt import gantt
from headway.testing.views import random_case

Place = list[tuple[int, tuple[int, ...], int]]
"""(node, local GPUs, milli on each) of every task of a job, servers last."""


# -- a twin of the pass, over dicts and lists ---------------------------------------------------------------------
@dataclass
class Task:
    milli: int
    cpu: int
    mem: int


@dataclass
class Job:
    row: int
    tasks: list[Task]
    shares: bool
    kinds: set[int]
    placed: Place | None


@dataclass
class Room:
    """Who has what: bookings by (node, GPU), and what is left of cpus and memory."""

    view: ClusterView
    booked: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    cpu: dict[int, int] = field(default_factory=dict)
    mem: dict[int, int] = field(default_factory=dict)

    @classmethod
    def empty(cls, view: ClusterView) -> Room:
        N, room = view.state.N, cls(view)
        for node in range(int(view.state.C[c.C_NODES])):
            room.cpu[node], room.mem[node] = int(N[c.N_CPU_MAX, node]), int(N[c.N_MEM_MAX, node])
            room.booked |= {(node, gpu): [] for gpu in range(int(N[c.N_GPUS, node]))}
        return room

    def copy(self) -> Room:
        return Room(self.view, {on: list(has) for on, has in self.booked.items()}, dict(self.cpu), dict(self.mem))

    def book(self, job: Job, place: Place) -> None:
        for task, (node, gpus, milli) in zip(job.tasks, place, strict=True):
            self.take(task, node, gpus, milli)

    def take(self, task: Task, node: int, gpus: tuple[int, ...], milli: int) -> None:
        self.cpu[node] -= task.cpu
        self.mem[node] -= task.mem
        for gpu in gpus:
            self.booked[node, gpu].append(milli)

    def up(self) -> list[int]:
        N = self.view.state.N
        return [node for node in sorted(self.cpu) if N[c.N_PHASE, node] == NodePhase.UP]

    def hot(self, on: tuple[int, int]) -> bool:
        """Overloaded now: in company, and used above the limit."""
        st = self.view.state
        g = int(st.N[c.N_GPU0, on[0]]) + on[1]
        return bool(st.G[c.G_HELD_TASKS, g] > 1 and st.G[c.G_USED, g] > st.C[c.C_SHARE_LIMIT])


def share_for(room: Room, job: Job, task: Task) -> tuple[int, int] | None:
    """The fullest GPU in company that stays within the limit, else the lowest empty one of the node with the fewest."""
    st = room.view.state
    limit = int(st.C[c.C_SHARE_LIMIT])
    nodes = [n for n in room.up() if room.cpu[n] >= task.cpu and room.mem[n] >= task.mem and int(st.N[c.N_KIND, n]) in job.kinds]
    on = [(node, gpu) for node, gpu in room.booked if node in nodes]
    joined = [g for g in on if room.booked[g] and not room.hot(g) and sum(room.booked[g]) + task.milli <= limit]
    joined = [g for g in joined if sum(room.booked[g]) < c.WHOLE]
    if joined:
        return min(joined, key=lambda g: (-sum(room.booked[g]), g))
    free = {n: [gpu for node, gpu in on if node == n and not room.booked[node, gpu]] for n in nodes}
    free = {n: gpus for n, gpus in free.items() if gpus}
    if not free:
        return None
    node = min(free, key=lambda n: (len(free[n]), n))
    return node, min(free[node])


def place_whole(room: Room, job: Job) -> Place | None:
    """A place for every task, each after the other; None if one finds none."""
    room, place, here = room.copy(), [], []
    for task in job.tasks:
        if task.milli == 0:
            fits = [n for n in room.up() if room.cpu[n] >= task.cpu and room.mem[n] >= task.mem]
            if not fits:
                return None
            where: tuple[int, tuple[int, ...], int] = (min(fits, key=lambda n: (-here.count(n), n)), (), 0)
        elif task.milli < c.WHOLE:
            found = share_for(room, job, task)
            if found is None:
                return None
            where = (found[0], (found[1],), task.milli)
        else:
            count, options = -(-task.milli // c.WHOLE), {}
            for n in room.up():
                free = [gpu for node, gpu in room.booked if node == n and not room.booked[node, gpu]]
                if len(free) >= count and room.cpu[n] >= task.cpu and room.mem[n] >= task.mem:
                    if int(room.view.state.N[c.N_KIND, n]) in job.kinds:
                        options[n] = sorted(free)
            if not options:
                return None
            node = min(options, key=lambda n: (len(options[n]), n))
            where = (node, tuple(options[node][:count]), c.WHOLE)
        room.take(task, *where)
        here.append(where[0])
        place.append(where)
    return place


def jobs_of(view: ClusterView) -> dict[int, Job]:
    st, found = view.state, {}
    for row in view.ranked_rows().tolist():
        block = slice(int(st.J[c.J_TASK0, row]), int(st.J[c.J_TASK0, row] + st.J[c.J_TASKS, row]))
        tasks = [Task(*numbers) for numbers in st.T[[c.T_GPU, c.T_CPU, c.T_MEM], block].T.tolist()]
        placed: Place | None = None
        if st.J[c.J_PLACED, row]:
            placed = [(n, gpus_of(mask), milli) for n, mask, milli in st.T[[c.T_NODE, c.T_MASK, c.T_BOOK], block].T.tolist()]
        kinds = {k for k in range(int(st.C[c.C_KINDS])) if int(st.J[c.J_KIND_MASK, row]) >> k & 1}
        found[row] = Job(row, tasks, bool(st.J[c.J_SHARE, row]), kinds, placed)
    return found


def movable(view: ClusterView, job: Job) -> bool:
    J, N = view.state.J[:, job.row], view.state.N
    up = all(N[c.N_PHASE, node] == NodePhase.UP for node, _, _ in job.placed or ())
    return bool(up and not J[c.J_MUST_STOP] and not J[c.J_FINISHING])


def pass_by_rank(view: ClusterView, order: list[int]) -> tuple[dict[int, Place], list[int]]:
    """New places by row, and the rows that are released, in the order of the plan. Only for jobs that allow company."""
    jobs, J = jobs_of(view), view.state.J
    wanted = {row: job.placed for row, job in jobs.items() if job.placed is not None}
    new: dict[int, Place] = {}
    released: list[int] = []

    def room_without(gone: list[int]) -> Room:
        room = Room.empty(view)
        for row, place in wanted.items():
            if row not in gone:
                room.book(jobs[row], place)
        return room

    for at, row in enumerate(order):
        start = J[c.J_PHASE, row] == Phase.QUEUED and not J[c.J_PLACED, row] and not J[c.J_HOLD, row]
        if not start or J[c.J_NOT_BEFORE, row] > view.now_us:
            continue
        place = place_whole(room_without([]), jobs[row])
        below = [r for r in reversed(order[at + 1 :]) if r in wanted and r not in new and movable(view, jobs[r])]
        if place is None and below and J[c.J_GPUS, row]:
            if place_whole(room_without(below), jobs[row]) is None:
                continue
            fails, fits = 0, 1
            while place_whole(room_without(below[:fits]), jobs[row]) is None:
                fails, fits = fits, 2 * fits
            fits = min(fits, len(below))
            while fits - fails > 1:
                middle = (fits + fails) // 2
                if place_whole(room_without(below[:middle]), jobs[row]) is None:
                    fails = middle
                else:
                    fits = middle
            place = place_whole(room_without(below[:fits]), jobs[row])
            assert place is not None
            wanted[row] = place
            for victim in below[:fits]:
                if in_the_way(room_without([]), wanted[victim], place):
                    del wanted[victim]
                    released.append(victim)
        if place is not None:
            wanted[row] = new[row] = place
    return new, released


def in_the_way(room: Room, victim: Place, place: Place) -> bool:
    """Whether a victim has something that is over-booked now, beside the new place."""
    limit = int(room.view.state.C[c.C_SHARE_LIMIT])
    taken = {(node, gpu) for node, gpus, _ in place for gpu in gpus}
    for node, gpus, _ in victim:
        if room.cpu[node] < 0 or room.mem[node] < 0:
            return True
        on = [(node, gpu) for gpu in gpus if (node, gpu) in taken]
        if any(sum(room.booked[g]) > limit or room.hot(g) for g in on):
            return True
    return False


def srtf_order(view: ClusterView) -> list[int]:
    J, rows = view.state.J, view.ranked_rows()
    left = (J[c.J_ESTIMATE, rows] - view.run_us(rows)).clip(0) // 10_000
    return [row for _, _, row in sorted(zip((-J[c.J_PRIORITY, rows]).tolist(), left.tolist(), rows.tolist(), strict=True))]


def test_the_pass_is_that_of_the_twin() -> None:
    """On random views in which every waiting job with a GPU may share."""
    looked, placed, stopped = 0, 0, 0
    for seed in range(1500):
        view = random_case(seed).view()
        J = view.state.J
        waiting = view.waiting_rows()
        if not len(waiting) or not J[c.J_SHARE].any():
            continue
        J[c.J_SHARE, waiting] = 1
        new, released = pass_by_rank(view, srtf_order(view))
        plan = make_policy("srtf:sharing=true").decide(view, None)
        found: dict[int, Place] = {}
        gone: list[int] = []
        for entry in plan.overrides.tolist():
            if entry[c.O_OP] == Op.PLACE:
                block = plan.places[entry[c.O_TASK0] : entry[c.O_TASK0] + entry[c.O_TASKS]].tolist()
                found[entry[c.O_ROW]] = [(n, gpus_of(mask), milli) for n, mask, milli in block]
            elif entry[c.O_OP] == Op.RELEASE:
                gone.append(entry[c.O_ROW])
        assert (found, gone) == (new, released), seed
        looked, placed, stopped = looked + 1, placed + len(new), stopped + len(released)
    assert looked > 200 and placed > 100 and stopped > 40, (looked, placed, stopped)


# -- by hand ------------------------------------------------------------------------------------------------------
def drawn(policy: str, jobs: list[JobSketch], gpus: list[int], limit: float = 1.0) -> str:
    run = simulate(workload(jobs), cluster(gpus, share_limit=limit), make_policy(policy), interval_s=1, keep_journal=True)
    assert run.journal is not None
    return gantt(run.journal)


def test_a_shorter_job_joins_instead_of_stopping_one() -> None:
    """a has half of a GPU and 9 s; b (2 s) comes at 1 and takes the other half. At 0.8 of a GPU nobody is slowed."""
    jobs = [job("a", 0.4, 9, share=True), job("b", 0.4, 2, 1, share=True)]
    assert drawn("srtf:sharing=true", jobs, [1]) == "n0.0 |a22aaaaaa"
    assert drawn("srtf", jobs, [1]) == "n0.0 |abbaaaaaaaa"


def test_only_as_many_are_stopped_as_stand_in_the_way() -> None:
    """a (0.3, 20 s left) and b (0.3, 10 s left) share; c asks for 0.6 and is the shortest: of 0.9 only 0.3 may stay, so the
    longest, a, stops, and b stays."""
    jobs = [job("a", 0.3, 20, share=True), job("b", 0.3, 10, share=True), job("c", 0.6, 5, share=True)]
    made = state(cluster([1], share_limit=0.9), jobs, running={"a": [(0, [0])], "b": [(0, [0])]}, at_s=0)
    plan = make_policy("srtf:sharing=true").decide(ClusterView(made, 1_000_000, 0), None)
    ops = [(entry[c.O_OP], entry[c.O_ROW]) for entry in plan.overrides.tolist() if entry[c.O_OP] in (Op.PLACE, Op.RELEASE)]
    assert sorted(ops) == [(Op.PLACE, 2), (Op.RELEASE, 0)]


def test_nobody_is_stopped_for_a_job_that_does_not_fit_then() -> None:
    """c (short) wants a whole GPU, d two halves on any; b, which ranks before c, keeps the only GPU: a, the longest, goes on."""
    jobs = [job("b", 0.5, 2, share=True), job("a", 0.4, 50, share=True), job("c", 1, 5, 1)]
    made = state(cluster([1], share_limit=0.9), jobs, running={"b": [(0, [0])], "a": [(0, [0])]}, at_s=1)
    plan = make_policy("srtf:sharing=true").decide(ClusterView(made, 1_000_000, 0), None)
    assert [op for op in plan.overrides[:, c.O_OP].tolist() if op != Op.WHY] == []


def test_a_gang_takes_over_two_gpus_from_the_lowest_ranked() -> None:
    """Three GPUs of one long job each, 60, 50 and 40 s: a gang of two halves of 0.8 takes those of the 60 and the 50."""
    jobs = [job("a", 1, 40), job("b", 0.7, 60, share=True), job("d", 1, 50), job("g", 1.6, 5, workers=2, share=True)]
    where = {"a": [(0, [0])], "b": [(1, [0])], "d": [(2, [0])]}
    made = state(cluster([1, 1, 1], share_limit=0.9), jobs, running=where, at_s=0)
    plan = make_policy("srtf:sharing=true").decide(ClusterView(made, 0, 0), None)
    rows = {op: plan.overrides[plan.overrides[:, c.O_OP] == op, c.O_ROW].tolist() for op in (Op.PLACE, Op.RELEASE)}
    assert rows == {Op.PLACE: [3], Op.RELEASE: [1, 2]}
    assert plan.places[:2].tolist() == [[1, 1, 800], [2, 1, 800]]


def test_an_overloaded_gpu_takes_nobody() -> None:
    """Two tasks of 0.3 that use 0.5 each: 1.0 is above 0.9, so the third waits although 0.9 could be booked; one alone may."""
    jobs = [job("a", 0.3, 90, share=True), job("b", 0.3, 80, share=True), job("c", 0.3, 99, 1, share=True)]
    for running, used, joins in (({"a": 0, "b": 0}, 1000, False), ({"a": 0, "b": 0}, 900, True), ({"a": 0}, 1000, True)):
        made = state(cluster([1], share_limit=0.9), jobs, running={name: [(0, [0])] for name in running}, at_s=1)
        made.J[c.J_HOLD, 1] = int("b" not in running)
        made.G[c.G_USED, 0] = used
        plan = make_policy("srtf:sharing=true").decide(ClusterView(made, 1_000_000, 0), None)
        assert (Op.PLACE in plan.overrides[:, c.O_OP].tolist()) == joins, (running, used)


def test_backfill_beside_a_reservation() -> None:
    """a (0.6) runs until 10, the head b wants 0.6 of the one GPU: its place is at 10. c (0.3, 5 s) is gone by then and starts at
    once; d (0.3, 50 s) is not: it starts at 10 beside b."""
    jobs = [job(name, gpus, work_s, share=True) for name, gpus, work_s in (("a", 0.6, 10), ("b", 0.6, 4), ("c", 0.3, 5))]
    jobs.append(job("d", 0.3, 50, share=True))
    chart = drawn("fifo-backfill:sharing=true", jobs, [1], 0.9)
    assert chart == "n0.0 |22222aaaaa2222" + "d" * 46


@pytest.mark.parametrize("spec", ["srtf", "las:quantum=20", "sjf", "random", "edf"])
def test_sharing_changes_nothing_for_jobs_that_do_not_share(spec: str) -> None:
    """Alone on whole GPUs, under policies that place one job after the other: the same completions on one GPU."""
    jobs = [job(f"j{i}", 1, 3 + 5 * (i % 3), i, deadline_s=40 - i) for i in range(6)]
    more = f"{spec}{',' if ':' in spec else ':'}sharing=true"
    assert drawn(spec, jobs, [1]) == drawn(more, jobs, [1])
