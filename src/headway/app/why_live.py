"""`headway why` of a running controller: where a job stands, why, and when it will probably start and end.

Everything heavy is done in a thread, on copies that are taken in the controller's loop: of the state, and of what is known of its
jobs. Nothing here changes the controller. Forecasts are kept for a second, for all who ask meanwhile, and each one is remembered
until what it is about has happened, so that later ones can be set right by it (`app.calibration`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from headway.app.calibration import SCORES_MIN, Calibration, Range
from headway.app.forecast import BUDGET_S, WHOLE_MAX, Forecast, forecast
from headway.app.unblock import WORDS
from headway.app.why import look
from headway.core import columns as c
from headway.core.columns import Phase, Reason
from headway.core.events import concatenate
from headway.core.policy import Memo, remembers, teacher_memo, teacher_of
from headway.core.round import Brains
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.core.view import ClusterView
from headway.perf.estimators import JobHistory
from headway.policies.registry import Chosen
from headway.runtime.board import JobRecord
from headway.runtime.controller import Controller
from headway.runtime.guard import standing
from headway.sim.guess import Guess, Known, guess, known_of
from headway.sim.run import round_seed

Json = dict[str, Any]
KEPT_S = 1.0
"""For so long a forecast is good for whoever asks, in seconds."""
AGAIN_S = 60.0
"""So long after a forecast another one of the same job is remembered for calibration, in seconds."""
TICK_S = 300.0
"""How often forecasts are made for calibration alone, while jobs wait, in seconds."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What a controller knows at one instant, as values of its own."""

    state: State
    memo: Memo
    brains: Brains
    known: Known
    now_us: int
    seed: int
    sequence: int

    def guess(self) -> Guess:
        return guess(self.state, self.known, self.now_us)


def copied(controller: Controller) -> Copied:
    """Take the copies. To be called in the controller's loop, which it holds up for about a millisecond a hundred jobs."""
    mind, policy, state = controller.rounds.mind, controller.brains.policy, controller.state
    memo = mind.memo
    if remembers(policy) and mind.since:
        memo = policy.fold(memo, concatenate(mind.since))
    now, sequence = controller.now_us(), int(state.C[c.C_SEQUENCE])
    known = known_of(state, mind.histories)
    return Copied(state.copy(), memo, controller.brains, known, now, round_seed(controller.rounds.seed, now), sequence)


class Forecaster:
    """The forecasts of one controller."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, budget_s: float = BUDGET_S) -> None:
        self.starts, self.ends = Calibration(), Calibration()
        self._clock, self._budget_s = clock, budget_s
        self._lock = asyncio.Lock()
        self._newest: tuple[float, int | None, Forecast, Copied] | None = None

    async def of(self, controller: Controller, job: int | None) -> tuple[Forecast, Copied]:
        """A forecast that tells of a live job (None: of whom there is room for), and the copies that it was made from."""
        async with self._lock:
            if (found := self._kept(job)) is not None:
                return found
            taken = copied(controller)
            live = len(taken.known.jobs)
            watch = job if live > WHOLE_MAX else None
            made = await asyncio.to_thread(self._make, taken, watch)
            self._newest = self._clock(), watch, made, taken
            self.learn(controller)
            self._remember(made, taken.state)
            return made, taken

    def _kept(self, job: int | None) -> tuple[Forecast, Copied] | None:
        if self._newest is None or self._clock() - self._newest[0] > KEPT_S:
            return None
        _, watch, made, taken = self._newest
        good = job is None or (watch in (None, job) and made.column(job) is not None)
        return (made, taken) if good else None

    def _make(self, taken: Copied, watch: int | None) -> Forecast:
        return forecast(
            taken.state, taken.memo, taken.brains, taken.guess(), now_us=taken.now_us, watch=watch, seed=taken.seed,
            budget_s=self._budget_s, clock=self._clock,
        )  # fmt: skip

    def _remember(self, made: Forecast, state: State) -> None:
        """Keep what was forecast of jobs that wait, and of those that run, until it is known."""
        now_s = made.now_us / US_PER_S
        for at, job in enumerate(made.jobs.tolist()):
            row = state.row(job)
            if row is None or state.J[c.J_HOLD, row]:
                continue
            waits = state.J[c.J_PHASE, row] == Phase.QUEUED
            if waits and self._due(self.starts, job, now_s):
                self.starts.expect(job, now_s, made.start(at))
            if self._due(self.ends, job, now_s):
                self.ends.expect(job, now_s, made.end(at))

    @staticmethod
    def _due(of: Calibration, job: int, now_s: float) -> bool:
        return job not in of.open or now_s - of.open[job][-1].at_s >= AGAIN_S

    def learn(self, controller: Controller) -> None:
        """Hold what was forecast against what has happened since."""
        for job in list(self.starts.open):
            record, made_us = controller.board.by_number(job), self.starts.open[job][-1].at_s * US_PER_S
            if record is None:
                self.starts.happened(job, None)
                continue
            came = [us for us in (record.started_us, record.first_started_us) if us is not None and us >= made_us]
            if came:
                self.starts.happened(job, min(came) / US_PER_S)
            elif record.ended:
                self.starts.happened(job, None)
        for job in list(self.ends.open):
            record = controller.board.by_number(job)
            if record is None or record.ended_us is not None:
                counts = record is not None and record.phase == Phase.COMPLETED
                self.ends.happened(job, record.ended_us / US_PER_S if counts and record and record.ended_us is not None else None)


_OF: WeakKeyDictionary[Controller, Forecaster] = WeakKeyDictionary()


def forecaster_of(controller: Controller) -> Forecaster:
    """The forecaster of a controller: the same one for as long as the controller lives."""
    if controller not in _OF:
        _OF[controller] = Forecaster()
    return _OF[controller]


async def keep_calibrated(controller: Controller, every_s: float = TICK_S) -> None:
    """Make a forecast now and then while jobs wait, for calibration alone, until it is cancelled."""
    while not controller.stopping:
        await asyncio.sleep(every_s)
        if controller.state.C.item(c.C_WAITING):
            await forecaster_of(controller).of(controller, None)


async def why_live(controller: Controller, job: JobRecord) -> Json:
    """What there is to say of a job now, ready for JSON: as `app.why`, with a forecast."""
    if job.ended or controller.state.row(job.number) is None:
        return _told(controller, job) | _ended(job)
    mine = forecaster_of(controller)
    made, taken = await mine.of(controller, job.number)
    if controller.state.row(job.number) is None:
        return _told(controller, job) | _ended(job)
    histories = controller.rounds.mind.histories
    known = histories is not None and job.number in histories.live
    history = histories.of(controller.state, job.number, controller.now_us()) if known and histories else JobHistory()
    chosen = controller_policy(controller)
    looked = await asyncio.to_thread(_look, taken, chosen, job.number, history)
    told = _told(controller, job)
    return told | looked | {"forecast": _forecast(mine, made, taken, job.number, round(told["at_s"] * US_PER_S))}


def controller_policy(controller: Controller) -> Chosen:
    """The policy that decides, as `look` takes it."""
    policy, now = controller.brains.policy, standing(controller.state, controller.brains, controller.now_us())
    if now.decides is not policy:
        return Chosen(now.decides, now.decides.name, {}, False)
    return Chosen(policy, controller.intake.settings.policy or policy.name, {}, False)


def _told(controller: Controller, job: JobRecord) -> Json:
    """What every answer begins with."""
    return {
        "at_s": controller.now_us() / US_PER_S,
        "policy": controller_policy(controller).spec,
        "job": job.id,
        "number": job.number,
        "run": {},
        "notes": [why] if (why := standing(controller.state, controller.brains, controller.now_us()).why) else [],
        "live": True,
    }


def _look(taken: Copied, chosen: Chosen, number: int, history: JobHistory) -> Json:
    view, policy = ClusterView(taken.state, taken.now_us, taken.seed), taken.brains.policy
    memo = taken.memo
    if chosen.policy is not policy:
        memo = teacher_memo(policy, memo) if chosen.policy == teacher_of(policy) else None
    told = look(view, memo, chosen, number, history)
    del told["job"]  # the number: here that is another key
    return told


def _forecast(mine: Forecaster, made: Forecast, taken: Copied, number: int, at_us: int) -> Json:
    """When it starts and ends, by the forks; ends moved by what past forecasts were off."""
    state, row = taken.state, taken.state.row(number)
    assert row is not None
    J = state.J[:, row]
    notes = ["nobody else is taken to come, nothing to fail, and no node to be lost"]
    told: Json = {"start_s": None, "finish_s": None, "samples": 0, "deadline_probability": None, "stop_probability": None,
                  "stop_s": None, "calibrated": False, "notes": notes}  # fmt: skip
    at = made.column(number)
    assert at is not None
    if J[c.J_HOLD] and J[c.J_PHASE] == Phase.QUEUED:
        notes.append("its owner holds it: it does not start before it is released")
    start, end = made.start(at), made.end(at)
    now_s = made.now_us / US_PER_S
    waits = J[c.J_PHASE] == Phase.QUEUED
    told["samples"] = made.samples
    told["finish_s"] = _from(mine.ends.widened(end, now_s), made, at_us)
    if waits:
        told["start_s"] = _from(mine.starts.widened(start, now_s), made, at_us)
    scored = (mine.starts if waits else mine.ends).count
    told["calibrated"] = scored >= SCORES_MIN
    if told["calibrated"]:
        notes.append(f"the interval is set by how far the last {scored} forecasts here were off")
    if J[c.J_DEADLINE] < c.NEVER:
        met = made.end_us[:, at] <= int(J[c.J_DEADLINE])
        told["deadline_probability"] = float(met.mean())
    if not waits and J[c.J_PLACED]:
        stops = made.stop_us[:, at] < c.NEVER
        told["stop_probability"] = float(stops.mean())
        if stops.any():
            told["stop_s"] = max(float(np.median(made.stop_us[stops, at]) - at_us) / US_PER_S, 0.0)
    if made.cut:
        notes.append(f"many jobs: the time was enough for {made.samples} simulation{'s' if made.samples != 1 else ''}")
    if waits and start.p50 is None:
        until = (made.until_us - made.now_us) / US_PER_S
        notes.append("it does not start in most simulations" + (f", which go {until:,.0f} s ahead" if made.cut else ""))
    return told


def _from(said: Range, made: Forecast, at_us: int) -> Json:
    """A range that was told a moment ago, from `at_us` on."""
    elapsed_s = (at_us - made.now_us) / US_PER_S
    ends = (None if value is None else max(value - elapsed_s, 0.0) for value in (said.p10, said.p50, said.p90))
    return Range(*ends).to_json()


def _ended(job: JobRecord) -> Json:
    """How a job has ended."""
    assert job.ended_us is not None or job.phase > Phase.STOPPING
    ended = job.ended_us if job.ended_us is not None else job.submitted_us
    waited = job.first_started_us if job.first_started_us is not None else ended
    words = WORDS.get(job.reason, job.reason.word)
    if job.reason == Reason.EXIT_CODE and job.exit_code is not None:
        words += f" with exit code {job.exit_code}"
    return {
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "phase": job.phase.name.lower(),
        "submitted_s": job.submitted_us / US_PER_S,
        "first_start_s": None if job.first_started_us is None else job.first_started_us / US_PER_S,
        "ended_s": ended / US_PER_S,
        "waiting_s": max(waited - job.submitted_us, 0) / US_PER_S,
        "run_s": job.run_us / US_PER_S,
        "attempt": job.attempt,
        "preemptions": job.preemptions,
        "reason": {"word": job.reason.word, "words": words, "message": job.message, "exit_code": job.exit_code},
        "accuracy": None,
        "accuracy_by_deadline": None,
        "required": None,
        "stop": None,
    }
