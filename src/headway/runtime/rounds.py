"""When rounds are held, and how: the policy thinks in a worker, on a copy of the state, while the controller goes on.

**When.** At the next multiple of the interval after something has happened, or after the policy's `wake_at`; at once, but at
least `gap_us` after the last one began, when a job is handed in or a place has become free. One round at a time.

**How.** `begin` brings the *mind* up to date, which is all that a policy sees: a twin of the state (it has applied the same
batches), its memo, and the histories that answer its requests. The worker decides and checks the plan there. Nothing else
touches the mind meanwhile, so what it sees is one instant. `concluded` takes the plan over to the state as it is by then:
entries whose job or node has changed since, and those that have no room any more, are dropped alone. If nothing has happened
meanwhile, that is the round that would have been held in place.

**Meanwhile.** A policy that thinks for longer than `patience_us` keeps newcomers from free places. So those are started by
the *keep* order, and nobody is stopped for them. A newcomer is a job with a number above those of the last decision; jobs
which that has left waiting are passed by, if the policy's order allows it (`Meanwhile`).

**For ever.** A policy that has not decided within `think_us_max` is refused that round, and *keep* decides it and all that
follow until the policy comes back; what it says then is not heard, but it is asked again. A policy with a teacher has
`taught_us_max`; its teacher decides those rounds, in a worker of its own, and *keep* only where the teacher is late too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, Phase
from headway.core.events import EMPTY, EventBatch, EventBuffer, concatenate, of_kinds
from headway.core.plan import Capabilities, Request
from headway.core.policy import Memo, Policy, asks, remembers, teacher_of
from headway.core.round import (
    TIMED_OUT,
    Brains,
    InCharge,
    Round,
    Thought,
    Violation,
    conclude,
    in_charge,
    keep_round,
    next_round_us,
    refresh,
    spare,
    teach,
    think,
)
from headway.core.state import State
from headway.perf.histories import Histories
from headway.sim.run import round_seed

log = logging.getLogger(__name__)

US = 1_000_000
T = TypeVar("T")
_WAKES = of_kinds(
    EventKind.SUBMITTED, EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.START_FAILED,
    EventKind.CANCEL_REQUESTED, EventKind.HOLD_SET, EventKind.PRIORITY_SET, EventKind.UPDATED, EventKind.NODE_UP,
    EventKind.NODE_ADDED, EventKind.QUEUE_SET, EventKind.SETTINGS_SET,
)  # fmt: skip
"""Events after which a round is held at once: a job has come, a place may have become free, or the rules have changed."""


class Meanwhile(StrEnum):
    """Which newcomers start while the policy thinks."""

    BACKFILL = "backfill"
    """Those that fit beside what *keep* would give or reserve to the jobs that wait for longer."""
    IDLE = "idle"
    """Those that fit, if no job waits that a decision has left waiting, but for such as could not start anyway."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Pace:
    """How often things are done, and how long they may take, in µs of journal time."""

    interval_us: int = US
    gap_us: int = 20_000
    reconcile_us: int = 30 * US
    patience_us: int = 50_000
    """So long a policy may think before anything else is done."""
    think_us_max: int = 60 * US
    """After so long its plan is refused."""
    taught_us_max: int = 5 * US
    """The same for a policy with a teacher."""
    meanwhile: Meanwhile | None = None
    """None: IDLE under a policy whose order is strict, else BACKFILL."""


class Daemons(Executor):
    """Runs calls in threads that end with the process, whatever they do: no policy can keep it from ending. A thread that is idle
    is used again, since starting one takes the loop longer than a round with little to decide; one that never comes back is
    left alone, and another takes its place."""

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[Callable[[], None] | None]] = deque()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            calls = self._idle.pop()
        except IndexError:
            calls = SimpleQueue()
            Thread(target=self._serve, args=(calls,), name="headway-thinks", daemon=True).start()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                self._rest(calls)
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                self._rest(calls)
                future.set_exception(error)
            else:
                self._rest(calls)
                future.set_result(result)

        calls.put(work)
        return future

    def _serve(self, calls: SimpleQueue[Callable[[], None] | None]) -> None:
        while (call := calls.get()) is not None:
            call()
            del call  # what it has seen is not to be kept until the next one comes

    def _rest(self, calls: SimpleQueue[Callable[[], None] | None]) -> None:
        """Before whoever asked hears of the end: what he asks for next finds the thread idle."""
        self._idle.append(calls)
        if self._closed:
            self.shutdown()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the idle threads end, and the others after their call. Nothing is waited for or cancelled, whatever is asked."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().put(None)


class Inline(Executor):
    """Runs each call at once, in place (for tests in a time of their own)."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


@dataclass(slots=True)
class Mind:
    """What a policy sees, as of one instant; it follows the journal batch by batch, when it is told to."""

    state: State
    memo: Memo
    histories: Histories | None
    since: list[EventBatch] = field(default_factory=list)
    """Batches that it has not taken in yet."""

    def catch_up(self, policy: Policy) -> None:
        """Take in what has happened since."""
        for batch in self.since:
            self.state.apply(batch)
        self.learn(policy, self.since)
        self.since.clear()

    def learn(self, policy: Policy, batches: Sequence[EventBatch]) -> None:
        """Take batches in but for the state."""
        if self.histories is not None:
            for batch in batches:
                self.histories.update(batch)
        if batches and remembers(policy):
            self.memo = policy.fold(self.memo, concatenate(batches))


@dataclass(slots=True)
class _Thinking:
    """The worker decides a round."""

    answer: asyncio.Future[Thought]
    began_us: int
    newest: int
    """The newest job that the policy knows of."""
    until_us: int
    """When its time is over."""
    instead: bool = False
    """The teacher thinks, not the policy."""
    violation: Violation | None = None
    """Why the policy has no plan, where that is still to be told."""


@dataclass(slots=True)
class _Estimating:
    """The worker answers a plan's requests."""

    answer: asyncio.Future[EventBatch]
    began_us: int


class Rounds:
    """The rounds of one controller. `wake` is called when the worker has come to an end."""

    def __init__(
        self, brains: Brains, pace: Pace, capabilities: Capabilities, seed: int, wake: Callable[[], None],
        worker: Executor | None = None,
    ) -> None:  # fmt: skip
        self.brains, self.pace, self.capabilities, self.seed = brains, pace, capabilities, seed
        self.meanwhile = _meanwhile(brains, pace)
        self.held = self.refused = self.dropped = self.spared = 0
        """Rounds, refused plans, entries that went stale, and jobs that were started while the policy thought."""
        self.decided, self.decided_us = 0, 0
        """How often the policy has been asked, and how long it has thought in all."""
        self.mind: Mind
        self._wake, self._worker = wake, worker or Daemons()
        self._asked: _Thinking | _Estimating | None = None
        self._lost: asyncio.Future[Any] | None = None  # a decision that did not come in time
        self._stuck: asyncio.Future[Any] | None = None  # the same of the policy's teacher
        self._last_us, self._wake_us, self._event_us, self._trigger_us = -1, c.NEVER, c.NEVER, c.NEVER
        self._considered = -1  # the newest job that a decision knew of
        self._newcomers, self._looked_us = False, -1

    def start(self, state: State, memo: Memo, histories: Histories | None) -> None:
        """Begin with what replay has given. All jobs of before count as considered."""
        self.mind = Mind(state.copy(), memo, histories)
        self._considered = int(state.C[c.C_LAST_ID])

    def adopt(self, brains: Brains, state: State, memo: Memo, histories: Histories | None, now_us: int) -> None:
        """Decide by another policy from the next round on; its memo and histories are those of the whole journal (None: the
        histories that are there go on). What the one before is still thinking is not heard: it keeps its mind."""
        for answer in (self._lost, self._stuck, self._asked.answer if self._asked is not None else None):
            if answer is not None:
                answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._asked = self._lost = self._stuck = None
        if histories is None and self.mind.histories is not None:
            histories = deepcopy(self.mind.histories)
            for batch in self.mind.since:
                histories.update(batch)
        self.brains, self.mind = brains, Mind(state.copy(), memo, histories)
        self.meanwhile = _meanwhile(brains, self.pace)
        self._event_us = self._trigger_us = min(self._trigger_us, now_us)

    def note(self, batch: EventBatch, *, own: bool) -> None:
        """The state has applied a batch. What a round itself asks for (`own`) makes no other round due."""
        self.mind.since.append(batch)
        if own:
            return
        now = int(batch.records[-1, c.E_T])
        self._event_us = min(self._event_us, now)
        if _WAKES[batch.records[:, c.E_KIND]].any():
            self._trigger_us = min(self._trigger_us, now)
            self._newcomers = True

    # -- when -----------------------------------------------------------------------------------------------------
    @property
    def busy(self) -> bool:
        """Whether the worker has been asked something that has not been taken back from it."""
        return self._asked is not None

    def due_us(self) -> int:
        """When there is something to do next: a round to begin, newcomers to look at, or a policy's time is over."""
        if self._asked is not None:
            if self._asked.answer.done():
                return 0
            over = self._asked.until_us if isinstance(self._asked, _Thinking) else c.NEVER
            return min(over, self._look_us())
        due = next_round_us(self.pace.interval_us, self._last_us, self._event_us, self._wake_us)
        if self._trigger_us < c.NEVER:
            due = min(due, max(self._trigger_us, self._last_us + self.pace.gap_us))
        return due

    def _look_us(self) -> int:
        """When newcomers are to be looked at."""
        if not self._newcomers or self._asked is None or self.meanwhile == Meanwhile.NEVER:
            return c.NEVER
        return max(self._asked.began_us + self.pace.patience_us, self._looked_us + self.pace.gap_us)

    # -- a round --------------------------------------------------------------------------------------------------
    async def begin(self, state: State, now_us: int) -> Round | None:
        """Begin a round, and wait for a little while for its end. Returns the round at once if the policy can't be asked, because
        it has not come back from an earlier one."""
        self._last_us = now_us
        self._event_us = self._trigger_us = self._wake_us = c.NEVER
        seed = round_seed(self.seed, now_us)
        lost, stuck = _away(self._lost), _away(self._stuck)
        taught = self._teacher is not None and (lost or in_charge(state, self.brains, now_us) is InCharge.TEACHER)
        if stuck if taught else lost:
            self.held += 1
            self._considered = int(state.C[c.C_LAST_ID])
            kept = keep_round(state, self.brains, now_us, seed=seed, capabilities=self.capabilities)
            self._wake_us = kept.wake_at_us
            return kept
        mind = self.mind
        mind.catch_up(self.brains.policy)
        newest = int(state.C[c.C_LAST_ID])
        self._newcomers = newest > self._considered

        if lost:
            await self._ask(self._instead(None, now_us, newest))
            return None
        self._lost = None
        until_us = now_us + self.pace.think_us_max
        if self._teacher is not None and not taught:
            until_us = min(until_us, now_us + self.pace.taught_us_max)

        def decide() -> Thought:
            return think(mind.state, self.brains, mind.memo, now_us, seed=seed, capabilities=self.capabilities)

        await self._ask(_Thinking(self._do(decide), now_us, newest, until_us, taught))
        return None

    @property
    def _teacher(self) -> Policy | None:
        return teacher_of(self.brains.policy)

    def _instead(self, violation: Violation | None, now_us: int, newest: int) -> _Thinking:
        """The teacher thinks about a round, with the present mind, in a worker of its own."""
        mind, brains, seed = self.mind, self.brains, round_seed(self.seed, now_us)

        def decide() -> Thought:
            return teach(mind.state, brains, mind.memo, violation, now_us, seed=seed, capabilities=self.capabilities)

        return _Thinking(self._do(decide), now_us, newest, now_us + self.pace.think_us_max, True, violation)

    def concluded(self, state: State, now_us: int) -> Round | None:
        """The round whose decision has come, or has not come in time, on the state as it is now; None if it is not that far."""
        asked = self._asked
        if not isinstance(asked, _Thinking):
            return None
        if asked.answer.done():
            thought = asked.answer.result()
        elif now_us >= asked.until_us:
            thought = self._give_up(state, asked)
            if self._teacher is not None and not asked.instead:
                self.mind.catch_up(self.brains.policy)
                newest = int(state.C[c.C_LAST_ID])
                self._asked = self._instead(thought.violation, now_us, newest)
                self._asked.answer.add_done_callback(lambda _: self._wake())
                return None
        else:
            return None
        self._asked = None
        self.held += 1
        self.decided, self.decided_us = self.decided + 1, self.decided_us + now_us - asked.began_us
        self._considered = asked.newest
        dropped = 0
        if thought.plan is not None and (thought.violation is None or thought.covered):
            dropped = refresh(state, thought.plan, self.capabilities)
        else:
            self._considered = int(state.C[c.C_LAST_ID])
        seed = round_seed(self.seed, asked.began_us)
        result = conclude(state, self.brains, thought, now_us, seed=seed, capabilities=self.capabilities)
        self._wake_us = result.wake_at_us
        if dropped:
            self.dropped += dropped
            self._event_us = min(self._event_us, now_us)
        if result.violation:
            self.refused += 1
            log.warning("the plan of %s was refused: %s", self.brains.policy.name, result.violation.sentence)
        return result

    def _give_up(self, state: State, asked: _Thinking) -> Thought:
        """The policy has had its time: go on with another mind, and leave it the one that it thinks with."""
        if asked.instead:
            self._stuck = asked.answer
        else:
            self._lost = asked.answer
        asked.answer.add_done_callback(self._back)
        since = self.mind.since
        self.mind = Mind(state.copy(), self.mind.memo, self.mind.histories)
        self.mind.learn(self.brains.policy, since)
        if asked.violation is not None:
            return Thought(None, asked.violation, False)
        decides = self._teacher if asked.instead and self._teacher is not None else self.brains.policy
        after = f"within {(asked.until_us - asked.began_us) / US:g} s"
        return Thought(None, Violation(TIMED_OUT, -1, f"{decides.name} has not decided {after}"), True)

    def _back(self, answer: asyncio.Future[Any]) -> None:
        """A policy that was given up has come back: whatever it says, it is asked again."""
        if not answer.cancelled():
            answer.exception()
            self._event_us = min(self._event_us, max(self._last_us, 0))

    def spare(self, state: State, now_us: int) -> EventBatch:
        """The starts of newcomers that need not wait for the policy, which thinks."""
        if now_us < self._look_us():
            return EMPTY
        self._newcomers, self._looked_us = False, now_us
        rows = _waiting(state, now_us)
        known = state.J[c.J_ID, rows] <= self._considered
        if known.all() or (self.meanwhile == Meanwhile.IDLE and known.any()):
            return EMPTY
        seed = round_seed(self.seed, now_us)
        batch = spare(state, self.brains, self._considered, now_us, seed=seed, capabilities=self.capabilities)
        self.spared += int((batch.records[:, c.E_KIND] == EventKind.START_REQUESTED).sum())
        return batch

    # -- requests -------------------------------------------------------------------------------------------------
    async def ask(self, requests: tuple[Request, ...], now_us: int) -> None:
        """Have a plan's requests answered, and wait for a little while."""
        if not requests:
            return
        mind = self.mind
        histories = mind.histories
        if histories is None or not asks(self.brains.policy):
            log.warning("%s requests estimates and does not say so (asks = True): no answer", self.brains.policy.name)
            return
        mind.catch_up(self.brains.policy)
        await self._ask(_Estimating(self._do(lambda: histories.answer(mind.state, requests, now_us)), now_us))

    def answers(self, state: State, now_us: int) -> EventBatch:
        """The estimates that have come, of jobs that are still there; at once empty if there are none."""
        asked = self._asked
        if not isinstance(asked, _Estimating) or not asked.answer.done():
            return EMPTY
        self._asked = None
        batch = asked.answer.result()
        out = EventBuffer(len(batch) + 1, len(batch.pool) + 1)
        for (_, kind, job, attempt, a, b, d, _), payload in zip(batch.records.tolist(), batch.payloads(), strict=True):
            if state.row(job) is not None:
                out.add(now_us, kind, job, attempt, a, b, d, payload)
        return out.take()

    # -- the worker -----------------------------------------------------------------------------------------------
    def _do(self, what: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._worker, what)

    async def _ask(self, asked: _Thinking | _Estimating) -> None:
        self._asked = asked
        asked.answer.add_done_callback(lambda _: self._wake())
        await asyncio.wait([asked.answer], timeout=self.pace.patience_us / US)

    def close(self) -> None:
        """Wait for nothing more."""
        if self._asked is not None:
            self._asked.answer.cancel()
        for answer in (self._lost, self._stuck):
            if answer is not None:
                answer.cancel()
        self._asked = None
        self._worker.shutdown(wait=False)


def _away(answer: asyncio.Future[Any] | None) -> bool:
    """Whether somebody who was given up has not come back yet."""
    return answer is not None and not answer.done()


def _meanwhile(brains: Brains, pace: Pace) -> Meanwhile:
    strict = getattr(brains.policy, "strict", False)
    return pace.meanwhile or (Meanwhile.IDLE if strict else Meanwhile.BACKFILL)


def _waiting(state: State, now_us: int) -> Any:
    """Rows of the jobs that wait for a place and for nothing else: not held, not to be tried again later only, and with room in
    the limit of their queue."""
    first, last = int(state.C[c.C_FIRST_WAITING]), int(state.C[c.C_ROWS])
    J, Q = state.J[:, first:last], state.Q
    queue = J[c.J_QUEUE]
    room = (Q[c.Q_LIMIT, queue] < 0) | (Q[c.Q_BOOKED, queue] + J[c.J_GPUS] * c.WHOLE <= Q[c.Q_LIMIT, queue])
    waits = (J[c.J_PHASE] == Phase.QUEUED) & (J[c.J_PLACED] == 0) & (J[c.J_HOLD] == 0) & (J[c.J_NOT_BEFORE] <= now_us)
    return np.flatnonzero(waits & room) + first
