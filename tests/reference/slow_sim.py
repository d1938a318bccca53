"""The slow simulator: one second at a time, everything looked at again each second.

It is written from docs/semantics.md alone. The engine has no latency, every job runs at rate 1, and a round
takes place at every multiple of the round interval while a job is live.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .model import Cluster, Job, JobState, Node, Place, Queue, by_number, gpus_of, nodes_of, tasks_on
from .placement import booked_on, empty_views, find_place
from .policies import Params, decide

__all__ = ["Entry", "Fault", "Job", "Node", "SlowSimulator", "simulate"]

# (t_s, kind, job or node, attempt, placement), and for 'stop-requested' the reason as a sixth element.
Entry = tuple[Any, ...]
Fault = tuple[int, int, str]  # (t_s, node, 'down' or 'up')
Event = tuple[int, int, str]  # (rank, job or node, kind)

LONGEST_S = 2_000_000


def simulate(
    jobs: Iterable[Job],
    nodes: Iterable[Node],
    policy: str,
    params: Params | None = None,
    kernel: str = "first-fit",
    round_s: int = 1,
    faults: Iterable[Fault] = (),
    until_s: int | None = None,
    queues: Iterable[Queue] = (Queue(),),
) -> list[Entry]:
    """The journal up to the last event, or up to and including `until_s`."""
    simulator = SlowSimulator(jobs, nodes, policy, params or {}, kernel, round_s, faults)
    simulator.cluster.queues = list(queues)
    return simulator.run(until_s)


class SlowSimulator:
    def __init__(
        self,
        jobs: Iterable[Job],
        nodes: Iterable[Node],
        policy: str,
        params: Params,
        kernel: str,
        round_s: int,
        faults: Iterable[Fault],
    ) -> None:
        if round_s < 1:
            raise ValueError("the slow simulator needs a round interval of at least a second")
        node_of = {node.number: node for node in nodes}
        self.cluster = Cluster(node_of, set(node_of), {job.number: JobState(job) for job in jobs})
        self.policy, self.params, self.kernel = policy, params, kernel
        self.round_s = round_s
        self.faults = list(faults)
        self.just_lost: set[int] = set()
        self.journal: list[Entry] = []

    @property
    def now(self) -> int:
        return self.cluster.now

    def states(self) -> list[JobState]:
        return by_number(self.cluster.jobs.values())

    def run(self, until_s: int | None = None) -> list[Entry]:
        while until_s is None or self.now <= until_s:
            self.instant()
            if self.finished():
                break
            if self.now > LONGEST_S:
                raise RuntimeError("no end in sight")
            self.advance()
        return self.journal

    def finished(self) -> bool:
        return not self.faults and all(s.state == "done" for s in self.states())

    # Time passes.

    def advance(self) -> None:
        """One second goes by for every process on the cluster."""
        self.cluster.now += 1
        for state in self.states():
            if state.state in ("running", "stopping"):
                state.run_s += 1
                state.attained += state.job.gpus
            if state.state == "stopping":
                state.save_left_s -= 1
            elif state.state == "running" and state.restore_left_s > 0:
                state.restore_left_s -= 1
            elif state.state == "running":
                state.progress_s += 1

    # One instant.

    def instant(self) -> None:
        self.react()
        if self.now % self.round_s == 0 and self.cluster.live_jobs():
            self.round()
            self.react()
        self.check()

    def react(self) -> None:
        """Report, apply and settle until nothing moves."""
        while True:
            events = self.take_events()
            if not events:
                return
            for _, number, kind in sorted(events):
                self.apply(number, kind)
            self.settle()

    def take_events(self) -> list[Event]:
        """What has happened by now and has not been applied yet."""
        events: list[Event] = []
        for t, node, what in [f for f in self.faults if f[0] <= self.now]:
            self.faults.remove((t, node, what))
            events.append((0 if what == "down" else 1, node, f"node-{what}"))
            if what == "down":
                self.cut_saves_short(node)
        for state in self.states():
            if state.state == "running" and state.progress_s >= state.job.work_s:
                events.append((2, state.number, "completed"))
            elif state.state == "stopping" and state.save_left_s <= 0:
                events.append((3, state.number, "stopped"))
            elif state.state == "starting":
                events.append((4, state.number, "started"))
            elif state.state == "future" and state.job.submit_s <= self.now:
                events.append((6, state.number, "submitted"))
        return events

    def cut_saves_short(self, node: int) -> None:
        """A job that is saving on a lost node has stopped, and what it was saving is lost."""
        for state in self.states():
            if state.state == "stopping" and state.save_left_s > 0 and node in nodes_of(state.held or ()):
                state.save_left_s = 0
                state.lost = True

    def apply(self, number: int, kind: str) -> None:
        if kind == "node-down":
            self.write(kind, number, 0)
            self.cluster.up.discard(number)
            self.just_lost.add(number)
            return
        if kind == "node-up":
            self.write(kind, number, 0)
            self.cluster.up.add(number)
            return
        state = self.cluster.jobs[number]
        self.write(kind, number, state.attempt)
        if kind == "submitted":
            self.on_submitted(state)
        elif kind == "started":
            self.on_started(state)
        elif kind == "stopped":
            self.on_stopped(state)
        elif kind == "completed":
            state.state = "done"
            state.held = state.wanted = None

    def on_submitted(self, state: JobState) -> None:
        state.state = "queued"
        if find_place("first-fit", state.job, empty_views(self.cluster.nodes)) is None:
            state.state = "done"
            self.write("rejected", state.number, 0)

    def on_started(self, state: JobState) -> None:
        state.state = "running"
        state.started_s = self.now
        state.restore_left_s = state.job.restore_s if state.attempt >= 2 else 0

    def on_stopped(self, state: JobState) -> None:
        if state.lost:
            every = state.job.every_s
            checkpoint = state.progress_s // every * every if every > 0 else 0
            state.progress_s = max(checkpoint, state.saved_s)
        else:
            state.saved_s = state.progress_s
        state.state = "queued"
        state.lost = False
        state.held = None
        state.started_s = None
        state.promoted_at = None
        state.earlier_run_s = state.run_s
        state.last_stop_s = self.now

    def settle(self) -> None:
        """First the jobs of lost nodes stop, then every job that can start on its wanted place does."""
        lost, self.just_lost = self.just_lost, set()
        for state in self.states():
            if state.wanted is not None and nodes_of(state.wanted) & lost:
                self.lose(state)
        for state in self.states():
            if state.state == "queued" and state.wanted is not None and self.can_start(state, state.wanted):
                self.request_start(state, state.wanted)

    def lose(self, state: JobState) -> None:
        if state.state == "queued":
            self.give_up_place(state)
        else:
            self.request_stop(state, "node-lost")
            state.lost = True
            state.save_left_s = 0

    # A round and its actions.

    def round(self) -> None:
        plan = decide(self.cluster, self.policy, self.params, self.kernel)
        for number in sorted(plan.releases):
            state = self.cluster.jobs[number]
            if state.state == "queued":
                self.give_up_place(state)
            else:
                self.request_stop(state, "preempted")
        for number in sorted(plan.places):
            state = self.cluster.jobs[number]
            state.wanted = plan.places[number]
            state.placed_s = self.now
            if number in plan.promoted:
                state.promoted_at = state.attained
            if self.can_start(state, state.wanted):
                self.request_start(state, state.wanted)
            else:
                self.write("wanted", number, state.attempt, state.wanted)

    def give_up_place(self, state: JobState) -> None:
        state.wanted = None
        state.promoted_at = None
        self.write("unwanted", state.number, state.attempt)

    def request_stop(self, state: JobState, reason: str) -> None:
        state.state = "stopping"
        state.wanted = None
        state.save_left_s = state.job.save_s
        self.journal.append((self.now, "stop-requested", state.number, state.attempt, (), reason))

    def can_start(self, state: JobState, place: Place) -> bool:
        """Whether nobody holds a GPU of the place and the cpus and memory held leave room for it."""
        held = self.cluster.held()
        if any(gpus_of(place) & gpus_of(other) for other in held.values()):
            return False
        for number in nodes_of(place):
            node = self.cluster.nodes[number]
            cpus, memory = booked_on(self.cluster.jobs, held, number)
            count = tasks_on(place, number)
            if cpus + count * state.job.cpus_milli > node.cpus_milli:
                return False
            if memory + count * state.job.memory_bytes > node.memory_bytes:
                return False
        return True

    def request_start(self, state: JobState, place: Place) -> None:
        state.state = "starting"
        state.attempt += 1
        state.held = place
        self.write("start-requested", state.number, state.attempt, place)

    def write(self, kind: str, number: int, attempt: int, place: Place = ()) -> None:
        self.journal.append((self.now, kind, number, attempt, place))

    def check(self) -> None:
        """What must hold after every instant, whatever the policy."""
        for places in (self.cluster.wanted(), self.cluster.held()):
            gpus = [gpu for place in places.values() for gpu in gpus_of(place)]
            assert len(gpus) == len(set(gpus)), f"a GPU is booked twice at {self.now}"
            for place in places.values():
                assert nodes_of(place) <= self.cluster.up, f"a place on a lost node at {self.now}"
            for number, node in self.cluster.nodes.items():
                cpus, memory = booked_on(self.cluster.jobs, places, number)
                assert cpus <= node.cpus_milli and memory <= node.memory_bytes, f"over-booked at {self.now}"
