"""A small model of the protocol between journal, controllers and engine, searched to its end: every interleaving.

Two controllers, two jobs, one node with one GPU. A controller reads the journal, takes the lease (a new epoch in the
journal), fences the engine, takes in what really runs, and then schedules; it may die or stand still between any two steps, for
good or for a while, since every other step may come in between. A job that is told to stop has a grace: it ends by itself, saved,
or is killed. The engine's reports may come late, again, or never; the controllers then find out by looking.

Unlike the seeds (`headway.testing.live_run`), this is no run of the code but of what it is meant to do, in the fewest words.

State (all tuples, so that states can be compared):

* journal: what its entries come to: the newest epoch, and where each job is;
* engine: its epoch; per job the newest attempt and what it is doing; ends are kept until acknowledged;
* controllers: what each does next, what it has read, and what it believes of each job.

What must hold in every state (`wrongs`): the GPU is never given twice; a job never runs in two attempts; no attempt of a job is
launched after one of it has completed; whatever the journal says has completed has completed; and from every state from which the
model's limits leave one there is a way to the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

JOBS = (0, 1)
ATTEMPTS_MAX = 2
"""No job gets more attempts than this in the model, so that it is finite."""
STARTS_MAX = (1, 2)
"""So often each controller may be started. One that stands still for ever is as good as dead, so only one that may be started
anew need die."""
STOPS_MAX = 1
"""So often a job may be stopped to wait again: for another (preempted), or because its owner asks for it (requeued)."""


class Belief(NamedTuple):
    """What a controller (or the journal) says of one job."""

    phase: str = "queued"  # queued, running, stopping, done
    attempt: int = 0
    stops: int = 0


class Seen(NamedTuple):
    """What the engine has of one job: its newest attempt."""

    attempt: int = 0
    doing: str = "nothing"  # nothing, runs, stopping, completed, stopped; acknowledged: nothing again


class Brain(NamedTuple):
    """One controller. `at`: what it does next."""

    at: str = "off"  # off, lease, fence, look, ready, carry, carry-look; owes, without journal_first
    current: bool = False  # it knows the whole journal: the number of its next entry is free
    epoch: int = 0
    jobs: tuple[Belief, Belief] = (Belief(), Belief())
    call: tuple[str, int, int] = ("", 0, 0)  # what it has journalled and not yet told the engine: (launch|stop|ack, job, attempt)
    starts: int = 0


class Journal(NamedTuple):
    """What all entries come to."""

    epoch: int = 0
    jobs: tuple[Belief, Belief] = (Belief(), Belief())


class World(NamedTuple):
    journal: Journal = Journal()
    fence: int = 0
    engine: tuple[Seen, Seen] = (Seen(), Seen())
    brains: tuple[Brain, Brain] = (Brain(), Brain())
    copy: tuple[int, int, int] = (0, 0, 0)  # a launch that is delivered once more: epoch, job, attempt; attempt 0: none
    completed: tuple[bool, bool] = (False, False)
    wrong: str = ""


@dataclass(frozen=True)
class Rules:
    """The guards; a model without one of them must find a counterexample."""

    numbers: bool = True
    """An entry of the journal has a number, and each number is given once (the lease)."""
    fenced: bool = True
    """The engine refuses calls of an older epoch."""
    attempts: bool = True
    """The engine launches no attempt that is not newer than all that it knows of the job."""
    journal_first: bool = True
    """An end is acknowledged after it has been journalled."""
    fenced_ack: bool = True
    """An acknowledgement carries the epoch too."""
    looks: bool = True
    """A new controller asks the engine what runs before it schedules."""
    ends_free: bool = True
    """A place is free when what ran there has ended; else when it has been told to stop (no grace)."""


def after(beliefs: tuple[Belief, Belief], entry: tuple[str, int, int]) -> tuple[Belief, Belief]:
    """The tables after one more entry."""
    kind, job, attempt = entry
    if kind == "epoch":
        return beliefs
    belief = beliefs[job]
    if kind == "start":
        belief = Belief("running", attempt, belief.stops)
    elif attempt == belief.attempt and belief.phase in ("running", "stopping"):
        if kind == "stop":
            belief = Belief("stopping", attempt, belief.stops + 1)
        elif kind == "completed":
            belief = Belief("done", attempt, belief.stops)
        elif kind == "stopped":
            belief = Belief("queued", attempt, belief.stops)
    return (belief, beliefs[1]) if job == 0 else (beliefs[0], belief)


def put(pair: tuple, index: int, value: object) -> tuple:  # type: ignore[type-arg]
    return (value, pair[1]) if index == 0 else (pair[0], value)


@dataclass
class Search:
    """All states that can be reached from the first, by breadth: the first counterexample is a shortest one."""

    rules: Rules = field(default_factory=Rules)

    def steps(self, w: World) -> Iterator[tuple[str, World]]:
        """Everything that can happen next."""
        for job in JOBS:
            yield from self.engine_steps(w, job)
        epoch, job, attempt = w.copy
        if attempt:
            stale = self.rules.fenced and epoch < w.fence
            arrived = w._replace(copy=(0, 0, 0))
            yield f"the launch {job, attempt} comes a second time", arrived if stale else self._launch(arrived, job, attempt)
        for who in (0, 1):
            brain = w.brains[who]
            if brain.at != "off" and brain.starts < STARTS_MAX[who]:
                yield f"controller {who} dies", w._replace(brains=put(w.brains, who, Brain(starts=brain.starts)))
            if brain.at == "off" and not brain.starts and who == 1 and not w.brains[0].starts:
                continue  # Which of the two comes first makes no difference.
            for what, changed in self.brain_steps(w, who, brain):
                yield f"controller {who} {what}", changed

    def engine_steps(self, w: World, job: int) -> Iterator[tuple[str, World]]:
        seen = w.engine[job]
        if seen.doing in ("runs", "stopping"):
            ended = Seen(seen.attempt, "completed")
            yield (
                f"job {job} completes",
                w._replace(engine=put(w.engine, job, ended), completed=put(w.completed, job, True)),
            )
        if seen.doing == "stopping":
            yield (
                f"job {job} has saved itself, or is killed",
                w._replace(engine=put(w.engine, job, Seen(seen.attempt, "stopped"))),
            )

    def brain_steps(self, w: World, who: int, brain: Brain) -> Iterator[tuple[str, World]]:
        def with_brain(world: World, **change: object) -> World:
            return world._replace(brains=put(world.brains, who, world.brains[who]._replace(**change)))

        if brain.at == "off":
            if brain.starts < STARTS_MAX[who]:
                yield (
                    "starts",
                    with_brain(
                        w, at="lease", current=True, jobs=w.journal.jobs, epoch=w.journal.epoch + 1, starts=brain.starts + 1
                    ),
                )
        elif brain.at == "lease":
            yield from self._write(w, who, ("epoch", 0, brain.epoch), at="fence")
        elif brain.at == "fence":
            if w.fence > brain.epoch:
                yield "gives up", w._replace(brains=put(w.brains, who, Brain(starts=brain.starts)))
            else:
                yield "fences", with_brain(w._replace(fence=brain.epoch), at="look" if self.rules.looks else "ready")
        elif brain.at == "look":
            yield from self._look(w, who, brain)
        elif brain.at == "ready":
            yield from self._schedule(w, who, brain)
        elif brain.at == "owes":
            yield from self._write(w, who, brain.call, at="ready", call=("", 0, 0))
        elif brain.at in ("carry", "carry-look"):
            yield from self._carry(w, who, brain)

    def _write(self, w: World, who: int, entry: tuple[str, int, int], **change: object) -> Iterator[tuple[str, World]]:
        """One entry: the controller that is not at the journal's end has been replaced, and gives up."""
        brain = w.brains[who]
        if self.rules.numbers and not brain.current:
            yield (
                "finds its place in the journal taken, and gives up",
                w._replace(brains=put(w.brains, who, Brain(starts=brain.starts))),
            )
            return
        kind, _, attempt = entry
        changed = brain._replace(jobs=after(brain.jobs, entry))._replace(**change)
        other = w.brains[1 - who]
        brains = put(put(w.brains, who, changed), 1 - who, other._replace(current=False) if self.rules.numbers else other)
        journal = Journal(attempt if kind == "epoch" else w.journal.epoch, after(w.journal.jobs, entry))
        yield f"writes {entry}", w._replace(journal=journal, brains=brains)

    def _look(self, w: World, who: int, brain: Brain) -> Iterator[tuple[str, World]]:
        """Bring the journal to what the engine has, one entry a step."""
        for job in JOBS:
            belief, seen = brain.jobs[job], w.engine[job]
            if belief.phase in ("running", "stopping"):
                if seen.attempt != belief.attempt or seen.doing == "nothing":
                    yield from self._write(w, who, ("stopped", job, belief.attempt))
                    return
                if seen.doing in ("completed", "stopped"):
                    yield from self._write(
                        w, who, (seen.doing, job, belief.attempt), call=("ack", job, belief.attempt), at="carry-look"
                    )
                    return
                if belief.phase == "stopping" and seen.doing == "runs":
                    call = ("stop", job, belief.attempt)
                    yield "tells again", w._replace(brains=put(w.brains, who, brain._replace(call=call, at="carry-look")))
                    return
            elif seen.doing in ("completed", "stopped"):
                call = ("ack", job, seen.attempt)
                yield "owes an answer", w._replace(brains=put(w.brains, who, brain._replace(call=call, at="carry-look")))
                return
        yield "has looked", w._replace(brains=put(w.brains, who, brain._replace(at="ready")))

    def _schedule(self, w: World, who: int, brain: Brain) -> Iterator[tuple[str, World]]:
        """A report that has come, a look, a start on the free place, a preemption, or a requeue."""
        for job in JOBS:
            belief, seen = brain.jobs[job], w.engine[job]
            if seen.doing in ("completed", "stopped"):
                call = ("ack", job, seen.attempt)
                if belief.attempt == seen.attempt and belief.phase in ("running", "stopping"):
                    entry = (seen.doing, job, seen.attempt)
                    if self.rules.journal_first:
                        yield from self._write(w, who, entry, call=call, at="carry")
                    else:
                        early = self._acknowledge(w, brain, job, seen.attempt)
                        yield (
                            "acknowledges first",
                            early._replace(
                                brains=put(early.brains, who, brain._replace(at="owes", call=(seen.doing, job, seen.attempt)))
                            ),
                        )
                else:
                    yield (
                        f"is told of an end of job {job} that it does not know",
                        w._replace(brains=put(w.brains, who, brain._replace(call=call, at="carry"))),
                    )
        held = [job for job in JOBS if brain.jobs[job].phase == "running" or (
            brain.jobs[job].phase == "stopping" and self.rules.ends_free)]  # fmt: skip
        for job in JOBS:
            belief = brain.jobs[job]
            if belief.phase == "queued" and not held and belief.attempt < ATTEMPTS_MAX:
                attempt = belief.attempt + 1
                yield from self._write(w, who, ("start", job, attempt), call=("launch", job, attempt), at="carry")
            if belief.phase == "running" and belief.stops < STOPS_MAX:
                yield from self._write(w, who, ("stop", job, belief.attempt), call=("stop", job, belief.attempt), at="carry")
        if any(belief.phase in ("running", "stopping") for belief in brain.jobs):
            looked = dict(self._look(w, who, brain))
            if "has looked" not in looked and self.rules.looks:
                yield "looks", w._replace(brains=put(w.brains, who, brain._replace(at="look")))

    def _carry(self, w: World, who: int, brain: Brain) -> Iterator[tuple[str, World]]:
        """Tell the engine what the journal says already."""
        kind, job, attempt = brain.call
        idle = brain._replace(at="look" if brain.at == "carry-look" else "ready", call=("", 0, 0))
        stale = w.fence > brain.epoch
        if stale and self.rules.fenced and (kind != "ack" or self.rules.fenced_ack):
            yield "is refused, and gives up", w._replace(brains=put(w.brains, who, Brain(starts=brain.starts)))
            return
        done = w._replace(brains=put(w.brains, who, idle), fence=max(w.fence, brain.epoch))
        if kind == "ack":
            yield f"acknowledges {brain.call}", self._acknowledge(done, brain, job, attempt)
        elif kind == "stop":
            seen = w.engine[job]
            told = Seen(attempt, "stopping") if seen == Seen(attempt, "runs") else seen
            yield f"tells {brain.call}", done._replace(engine=put(w.engine, job, told))
        else:
            yield f"tells {brain.call}", self._launch(done, job, attempt)
            if not w.copy[2] and not any(came.attempt for came in w.engine):
                again = done._replace(copy=(brain.epoch, job, attempt))
                yield f"tells {brain.call}, and a copy is on its way", self._launch(again, job, attempt)

    def _acknowledge(self, w: World, brain: Brain, job: int, attempt: int) -> World:
        seen = w.engine[job]
        if seen.attempt == attempt and seen.doing in ("completed", "stopped"):
            return w._replace(engine=put(w.engine, job, Seen(attempt, "nothing")))
        return w

    def _launch(self, w: World, job: int, attempt: int) -> World:
        seen = w.engine[job]
        if self.rules.attempts and attempt <= seen.attempt:
            return w
        wrong = w.wrong
        if seen.doing in ("runs", "stopping"):
            wrong = f"job {job} runs twice: attempts {seen.attempt} and {attempt}"
        elif w.engine[1 - job].doing in ("runs", "stopping"):
            wrong = "the GPU is given twice"
        elif w.completed[job]:
            wrong = f"job {job} has completed, and runs again"
        return w._replace(engine=put(w.engine, job, Seen(attempt, "runs")), wrong=wrong)

    # -- the search -----------------------------------------------------------------------------------------------
    def run(self, states_max: int = 3_000_000) -> tuple[int, list[str], str]:
        """(number of states, the way to the first wrong one, what is wrong there); no way: nothing is."""
        first = World()
        came: dict[World, tuple[World, str] | None] = {first: None}
        todo = deque([first])
        back: dict[World, list[World]] = {}
        ends: list[World] = []
        while todo:
            w = todo.popleft()
            if wrong := w.wrong or self.judge(w):
                return len(came), way_to(came, w), wrong
            following = list(self.steps(w))
            if self.is_end(w):
                ends.append(w)
            for what, after_it in following:
                back.setdefault(after_it, []).append(w)
                if after_it not in came:
                    came[after_it] = (w, what)
                    todo.append(after_it)
            assert len(came) <= states_max, "the model is too large to be searched"
        good = set(ends)
        todo = deque(ends)
        while todo:
            for w in back.get(todo.popleft(), ()):
                if w not in good:
                    good.add(w)
                    todo.append(w)
        for w in came:
            if w not in good and self.may_go_on(w):
                return len(came), way_to(came, w), "from here there is no way to the end"
        return len(came), [], ""

    def judge(self, w: World) -> str:
        """What the journal says must be so."""
        jobs = w.journal.jobs
        for job in JOBS:
            if jobs[job].phase == "done" and not w.completed[job]:
                return f"the journal says that job {job} has completed, and it has not"
            if jobs[job].phase == "done" and w.engine[job].doing in ("runs", "stopping"):
                return f"the journal says that job {job} has completed, and it runs"
        return ""

    def is_end(self, w: World) -> bool:
        """Both jobs have completed, the journal says so, and the engine owes nothing."""
        jobs = w.journal.jobs
        return all(belief.phase == "done" for belief in jobs) and all(seen.doing == "nothing" for seen in w.engine)

    def may_go_on(self, w: World) -> bool:
        """Whether the model's limits leave a way: a controller that can still be started, and attempts for the jobs."""
        spare = any(brain.starts < most for brain, most in zip(w.brains, STARTS_MAX, strict=True))
        return spare and all(seen.attempt < ATTEMPTS_MAX for seen in w.engine) and not self._spent(w)

    def _spent(self, w: World) -> bool:
        jobs = w.journal.jobs
        return any(belief.attempt >= ATTEMPTS_MAX and belief.phase != "done" for belief in jobs)


def way_to(came: dict[World, tuple[World, str] | None], w: World) -> list[str]:
    """The steps from the first state to this one."""
    steps: list[str] = []
    while (step := came[w]) is not None:
        w, what = step
        steps.append(what)
    return steps[::-1]
