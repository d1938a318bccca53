"""The placement kernels of section 3, over plain lists."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from .model import Cluster, Job, JobState, Node, Place, gpus_of, tasks_on


@dataclass
class View:
    """What a kernel sees of a node: the GPUs that may be used, in the order in which tasks take them."""

    node: Node
    usable: list[int]
    cpus_free: int
    memory_free: int

    @property
    def number(self) -> int:
        return self.node.number

    @property
    def avail(self) -> int:
        return len(self.usable)


Choice = list[tuple[View, int]]
Kernel = Callable[[list[View], Job, int], Choice]


def make_views(
    cluster: Cluster,
    wanted: dict[int, Place],
    held: dict[int, Place],
    pool: Collection[int] = (),
    hidden: Collection[tuple[int, int]] = (),
) -> list[View]:
    """One view for each node that is up. What the jobs in `pool` want counts as free, but is taken last."""
    wanted_gpus = {g for n, place in wanted.items() if n not in pool for g in gpus_of(place)}
    pool_gpus = {g for n, place in wanted.items() if n in pool for g in gpus_of(place)}
    held_gpus = {g for place in held.values() for g in gpus_of(place)}
    booked = {n: place for n, place in wanted.items() if n not in pool}
    views = []
    for number in sorted(cluster.up):
        node = cluster.nodes[number]
        free, still_held, of_victims = [], [], []
        for gpu in range(node.gpus):
            if (number, gpu) in wanted_gpus or (number, gpu) in hidden:
                continue
            if (number, gpu) in pool_gpus:
                of_victims.append(gpu)
            elif (number, gpu) in held_gpus:
                still_held.append(gpu)
            else:
                free.append(gpu)
        cpus, memory = booked_on(cluster.jobs, booked, number)
        usable = free + still_held + of_victims
        views.append(View(node, usable, node.cpus_milli - cpus, node.memory_bytes - memory))
    return views


def empty_views(nodes: dict[int, Node]) -> list[View]:
    ordered = [nodes[number] for number in sorted(nodes)]
    return [View(node, list(range(node.gpus)), node.cpus_milli, node.memory_bytes) for node in ordered]


def booked_on(jobs: dict[int, JobState], places: dict[int, Place], number: int) -> tuple[int, int]:
    """The cpus and the memory that `places` take on a node."""
    cpus = sum(tasks_on(place, number) * jobs[n].job.cpus_milli for n, place in places.items())
    memory = sum(tasks_on(place, number) * jobs[n].job.memory_bytes for n, place in places.items())
    return cpus, memory


def cap(view: View, job: Job) -> int:
    """How many tasks of the job the node has room for; without any demand, all of them."""
    limits = [job.tasks]
    if job.gpus_per_task > 0:
        limits.append(view.avail // job.gpus_per_task)
    if job.cpus_milli > 0:
        limits.append(view.cpus_free // job.cpus_milli)
    if job.memory_bytes > 0:
        limits.append(view.memory_free // job.memory_bytes)
    return max(0, min(limits))


def first_fit(views: list[View], job: Job, tasks: int) -> Choice:
    chosen: Choice = []
    for view in sorted(views, key=lambda v: v.number):
        count = min(cap(view, job), tasks)
        if count > 0:
            chosen.append((view, count))
            tasks -= count
    return chosen


def best_fit(views: list[View], job: Job, tasks: int) -> Choice:
    chosen: Choice = []
    rest = list(views)
    while tasks > 0:
        fitting = [v for v in rest if cap(v, job) >= 1]
        if not fitting:
            break
        view = min(fitting, key=lambda v: (v.avail, v.number))
        count = min(cap(view, job), tasks)
        chosen.append((view, count))
        rest.remove(view)
        tasks -= count
    return chosen


def consolidated(views: list[View], job: Job, tasks: int) -> Choice:
    chosen: Choice = []
    rest = list(views)
    while tasks > 0:
        fitting = [v for v in rest if cap(v, job) >= 1]
        if not fitting:
            break
        whole = [v for v in fitting if cap(v, job) >= tasks]
        if whole:
            view = min(whole, key=lambda v: (v.avail, v.number))
        else:
            view = min(fitting, key=lambda v: (-v.avail, v.number))
        count = min(cap(view, job), tasks)
        chosen.append((view, count))
        rest.remove(view)
        tasks -= count
    return chosen


def topology(views: list[View], job: Job, tasks: int) -> Choice:
    if any(cap(v, job) >= tasks for v in views):
        return consolidated(views, job, tasks)
    chosen: Choice = []
    racks: dict[int, list[View]] = {}
    for view in views:
        racks.setdefault(view.node.rack, []).append(view)
    while tasks > 0:
        sums = {rack: sum(cap(v, job) for v in members) for rack, members in racks.items()}
        sums = {rack: total for rack, total in sums.items() if total > 0}
        if not sums:
            break
        enough = [rack for rack, total in sums.items() if total >= tasks]
        tightest = min(enough, key=lambda r: (sums[r], r), default=None)
        largest = min(sums, key=lambda r: (-sums[r], r))
        rack = largest if tightest is None else tightest
        part = consolidated(racks.pop(rack), job, tasks)
        chosen.extend(part)
        tasks -= sum(count for _, count in part)
    return chosen


KERNELS: dict[str, Kernel] = {
    "first-fit": first_fit,
    "best-fit": best_fit,
    "consolidated": consolidated,
    "topology": topology,
}


def find_place(kernel: str, job: Job, views: list[View]) -> Place | None:
    """Where the kernel puts the whole gang, or None."""
    if job.gpus_per_task == 0:
        return deal(first_fit(views, job, job.tasks), job)
    for kind in kinds_for(job, views):
        same = [v for v in views if v.node.kind == kind]
        place = deal(KERNELS[kernel](same, job, job.tasks), job)
        if place is not None:
            return place
    return None


def kinds_for(job: Job, views: list[View]) -> list[str]:
    """The GPU kinds to try, one at a time. A job of no kind tries all, in order of the lowest node number."""
    if job.kind:
        return [job.kind]
    kinds: list[str] = []
    for view in sorted(views, key=lambda v: v.number):
        if view.node.gpus > 0 and view.node.kind not in kinds:
            kinds.append(view.node.kind)
    return kinds


def deal(choice: Choice, job: Job) -> Place | None:
    """Tasks in order of their index to the nodes in order of choice; None if not all are dealt."""
    if sum(count for _, count in choice) < job.tasks:
        return None
    place: list[tuple[int, int, tuple[int, ...]]] = []
    for view, count in choice:
        left = list(view.usable)
        for _ in range(count):
            taken, left = left[: job.gpus_per_task], left[job.gpus_per_task :]
            place.append((len(place), view.number, tuple(sorted(taken))))
    return tuple(place)
