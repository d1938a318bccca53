"""What Gandiva remembers: the shape that elastic jobs asked for, who is beside whom on which GPU, how fast jobs are alone and in
company, which trials go on, and which pairs turned out worse.

A memo is a dict of plain values:
- `asked`: replicas that each elastic job asked for.
- `jobs`: for each live job the list of `T_*` below; `on`: for each GPU (node · 64 + index) the jobs that run on it.
- `trials`: for each newcomer the speeds, before it came, of the jobs beside it (units/µs; 0: unknown).
- `worse`: newcomers that are to give their place up; `bad`: for each job those beside which it is not tried again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.core import columns as c
from headway.core.columns import EventKind, Reason
from headway.core.events import EventBatch

T_GPUS, T_ALONE, T_NOW, T_RUNS, T_PLACE, T_SINCE, T_K_SINCE, T_LAST, T_K_LAST = range(9)
"""GPUs; speed alone (units/µs; announced until it is measured; 0: unknown); speed since the company last changed (0: unknown);
whether it runs; its GPUs; the first report since then (µs, −1: none; units), and the last one."""
UNITS_MIN = 2
"""Units between two reports before a speed counts as measured."""
LIVE_KINDS = np.array(
    [EventKind.SUBMITTED, EventKind.REJECTED, EventKind.START_REQUESTED, EventKind.STARTED, EventKind.START_FAILED,
     EventKind.STOPPED, EventKind.COMPLETED, EventKind.FAILED, EventKind.FINISHED, EventKind.OBSERVED,
     EventKind.STOP_REQUESTED],
    np.int64,
)  # fmt: skip
FINAL_STOPS = (Reason.CANCELLED, Reason.EARLY_STOP, Reason.TIME_LIMIT)
BY_NODE = 64


def start() -> Any:
    """The memo before any event."""
    return {"asked": {}, "jobs": {}, "on": {}, "trials": {}, "worse": [], "bad": {}}


def fold(memo: Any, events: EventBatch, trial_us: int) -> Any:
    """The memo after the events. `trial_us`: for how long a packing is watched (0: packing is not followed)."""
    records = events.records
    which = np.flatnonzero(np.isin(records[:, c.E_KIND], LIVE_KINDS))
    if not len(which):
        return memo
    ends = np.cumsum(records[:, c.E_POOL])
    writer = _Writer(memo, trial_us)
    for i in which.tolist():
        t, kind, job, _, a, _, _, size = records[i].tolist()
        payload = events.pool[ends[i] - size : ends[i]]
        if kind == EventKind.SUBMITTED:
            writer.submitted(job, payload)
        elif kind in (EventKind.COMPLETED, EventKind.REJECTED, EventKind.FINISHED):
            writer.left(job, ended=True)
        elif kind == EventKind.STOPPED:
            writer.left(job, ended=a in FINAL_STOPS)
        elif trial_us == 0:
            continue
        elif kind == EventKind.STOP_REQUESTED:
            writer.stopping(job, a)
        elif kind == EventKind.OBSERVED:
            writer.observed(job, t, a)
        elif kind == EventKind.STARTED:
            writer.came(job)
        elif kind == EventKind.START_REQUESTED:
            writer.left(job, ended=False)
            writer.placed(job, payload)
        else:
            writer.left(job, ended=False)
    return writer.finish()


class _Writer:
    """A new memo in the making: dicts are copied at once, a job's list when it is first changed."""

    def __init__(self, memo: Any, trial_us: int) -> None:
        self.trial_us = trial_us
        self.asked, self.jobs, self.on = dict(memo["asked"]), dict(memo["jobs"]), dict(memo["on"])
        self.trials, self.bad = dict(memo["trials"]), dict(memo["bad"])
        self.own: set[int] = set()

    def job(self, number: int) -> list[Any] | None:
        """A job's list, to be changed."""
        found = self.jobs.get(number)
        if found is not None and number not in self.own:
            found = self.jobs[number] = list(found)
            self.own.add(number)
        return found

    def submitted(self, number: int, spec: Any) -> None:
        if spec[c.J_DATA_MIN] < spec[c.J_DATA_MAX]:
            self.asked[number] = int(spec[c.J_DATA])
        if self.trial_us:
            units, estimate = int(spec[c.J_UNITS_TOTAL]), int(spec[c.J_ESTIMATE])
            speed = units / estimate if units > 0 and 0 < estimate < c.NEVER else 0.0
            self.jobs[number] = [0, speed, 0.0, False, (), -1, 0, -1, 0]

    def placed(self, number: int, place: Any) -> None:
        """A start was asked for: where the job will be."""
        mine = self.job(number)
        if mine is None:
            return
        gpus = []
        for node, mask in place.reshape(-1, c.PLACE)[:, :2].tolist():
            gpus += [node * BY_NODE + local for local in range(BY_NODE) if mask >> local & 1]
        mine[T_GPUS], mine[T_PLACE] = len(gpus), tuple(dict.fromkeys(gpus))

    def beside(self, number: int) -> list[int]:
        """The jobs that share a GPU with one, by number."""
        return sorted({other for g in self.jobs[number][T_PLACE] for other in self.on.get(g, ()) if other != number})

    def came(self, number: int) -> None:
        """The job runs: it, and those beside it, are timed anew; if there are any, that is a trial."""
        mine = self.job(number)
        if mine is None or mine[T_RUNS]:
            return
        mine[T_RUNS] = True
        for g in mine[T_PLACE]:
            self.on[g] = (*self.on.get(g, ()), number)
        beside = self.beside(number)
        if beside:
            self.trials[number] = {other: self.jobs[other][T_NOW] or self.jobs[other][T_ALONE] for other in beside}
        self.time_anew([number, *beside])

    def left(self, number: int, *, ended: bool) -> None:
        """The job runs no more (or is no more)."""
        mine = self.job(number)
        if mine is not None and mine[T_RUNS]:
            beside = self.beside(number)
            for g in mine[T_PLACE]:
                others = tuple(other for other in self.on.get(g, ()) if other != number)
                if others:
                    self.on[g] = others
                else:
                    self.on.pop(g, None)
            mine[T_RUNS] = False
            self.time_anew([number, *beside])
        self.trials.pop(number, None)
        if ended:
            self.jobs.pop(number, None)
            self.asked.pop(number, None)
            if self.bad:
                self.bad = {job: rest for job, others in self.bad.items() if job != number
                            and (rest := [other for other in others if other != number])}  # fmt: skip

    def time_anew(self, numbers: list[int]) -> None:
        for number in numbers:
            one = self.job(number)
            if one is not None:
                one[T_NOW], one[T_SINCE], one[T_LAST] = 0.0, -1, -1

    def stopping(self, number: int, reason: int) -> None:
        """A trial that is undone bans the pairs."""
        if reason == Reason.TRIAL and number in self.trials:
            self.bad[number] = sorted({*self.bad.get(number, ()), *self.trials[number]})
        self.trials.pop(number, None)

    def observed(self, number: int, t: int, units: int) -> None:
        """A report: the speed since the company last changed."""
        mine = self.job(number)
        if mine is None or not mine[T_RUNS]:
            return
        if mine[T_SINCE] < 0 or units < mine[T_K_SINCE]:
            mine[T_SINCE], mine[T_K_SINCE] = t, units
        mine[T_LAST], mine[T_K_LAST] = t, units
        done, dt = units - mine[T_K_SINCE], t - mine[T_SINCE]
        if done >= UNITS_MIN and dt > 0:
            mine[T_NOW] = done / dt
            if not self.beside(number):
                mine[T_ALONE] = mine[T_NOW]

    def finish(self) -> Any:
        """Judge the trials that are ripe: worse ones are to be undone, the others are kept."""
        worse = []
        for number, before in sorted(self.trials.items()):
            ripe = [one for one in (number, *before) if one in self.jobs and self.jobs[one][T_RUNS]]
            if not all(self.ripe(one) for one in ripe):
                continue
            if self.gain(number, before) < 0:
                worse.append(number)
            else:
                del self.trials[number]
        return {
            "asked": self.asked, "jobs": self.jobs, "on": self.on, "trials": self.trials, "worse": worse, "bad": self.bad,
        }  # fmt: skip

    def ripe(self, number: int) -> bool:
        mine = self.jobs[number]
        return bool(mine[T_NOW] > 0 and mine[T_LAST] - mine[T_SINCE] >= self.trial_us)

    def gain(self, number: int, before: dict[int, float]) -> float:
        """GPUs' worth of throughput that a packing has brought: the newcomer's, less what those beside it have lost."""
        mine = self.jobs[number]
        total = mine[T_GPUS] * (mine[T_NOW] / mine[T_ALONE] if mine[T_ALONE] > 0 else 1.0)
        for other, speed in before.items():
            its = self.jobs.get(other)
            if its is not None and its[T_RUNS] and its[T_ALONE] > 0 and speed > 0:
                total -= its[T_GPUS] * max(speed - its[T_NOW], 0.0) / its[T_ALONE]
        return float(total)
