"""Why a job is, or is not, running: what `headway why` answers, from the journal of a run at one time.

`look` needs a view, a policy with its memo, and the job's past: whoever has those, live or from a journal, asks the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.app.unblock import WORDS, having, place_words, reason, unblock
from headway.core import codec, units
from headway.core import columns as c
from headway.core.columns import Estimator, EventKind, Name, Phase, Reason
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.events import EventBatch
from headway.core.explain import Explanation
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.core.view import ClusterView, JobView
from headway.metrics.fold import (
    M_END,
    M_FINISHING,
    M_FIRST_START,
    M_PHASE,
    M_PREEMPTIONS,
    M_RUN,
    M_SUBMITTED,
    M_WAITED,
    MetricsFold,
)
from headway.perf.estimators import JobHistory, answer, reports_accuracy
from headway.perf.forecast import Z90, k_at, plateau, reach_probability
from headway.perf.histories import Histories
from headway.perf.params import C_K_LAST, C_LEVEL, C_PLATEAU_SPREAD, Status
from headway.place.gang import Kernel
from headway.policies.explain import by_arrival
from headway.policies.registry import Chosen, choose
from headway.sim.run import round_seed

Json = dict[str, Any]
SQLITE = b"SQLite format 3"
PLATEAU_FRAC = 0.99
"""A curve that has come so far of its way to its plateau counts as being on it."""
ENDED_BY = (EventKind.STOPPED, EventKind.FAILED, EventKind.REJECTED)
STATUS_WORDS = {
    Status.OK: "it improves",
    Status.FEW_POINTS: "it has reported too little for a sure forecast",
    Status.FLAT: "no progress: plateau; what it reports does not change beyond its noise",
    Status.DIVERGING: "no progress: divergence; what it reports gets worse",
    Status.NO_DATA: "it has reported nothing",
    Status.ONE_POINT: "it has reported once",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRequest:
    """What to explain, as a person wrote it."""

    job: str
    journal: Path
    at: str
    policy: str | None = None
    """Another policy than that of the run; None: the run's."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal: its events, and what its header says of the run."""

    batch: EventBatch
    run: Mapping[str, Any]

    @property
    def names(self) -> dict[int, str]:
        """The names of jobs by number: those in the header, and those that were journalled."""
        listed = self.run.get("jobs")
        found = {i: str(name) for i, name in enumerate(listed) if name} if isinstance(listed, list) else {}
        records = self.batch.records
        named = np.flatnonzero((records[:, c.E_KIND] == EventKind.NAMED) & (records[:, c.E_A] == Name.JOB))
        return found | {int(records[i, c.E_ID]): self.batch.texts.get(i, "") for i in named.tolist()}


def why(request: WhyRequest) -> Json:
    """The answer to a request, ready for JSON.

    Raises:
        UserError: a journal that cannot be read, an unknown job or policy, or a time at which there is nothing to say.
    """
    try:
        at_us = units.parse_duration(request.at)
    except ValueError as error:
        raise UserError(str(error), key="at") from None
    asked = choose(request.policy.strip()) if request.policy is not None else None
    recorded = read_journal(request.journal)
    chosen, notes = _policy(asked, recorded, request.journal)
    times = recorded.batch.records[:, c.E_T]
    first, last = int(times[0]), int(times[-1])
    if not first <= at_us <= last:
        where = f"before the first event, at {_s(first)}" if at_us < first else f"after the last event, at {_s(last)}"
        raise UserError(f"{_s(at_us)} is {where}", file=str(request.journal), key="at")
    number = job_number(recorded, request.job)
    prefix = recorded.batch.cut(0, int(np.searchsorted(times, at_us, side="right")))
    state = State()
    state.apply(prefix)
    state.names[Name.JOB] = {job: name for job, name in recorded.names.items() if name}
    told: Json = {"at_s": at_us / US_PER_S, "policy": chosen.spec, "run": _told(recorded.run), "notes": notes}
    if state.row(number) is None:
        return told | _gone(recorded, prefix, number, at_us)
    seed = recorded.run.get("seed")
    view = ClusterView(state, at_us, round_seed(seed if isinstance(seed, int) else 0, at_us))
    histories = Histories()
    histories.update(prefix)
    return told | look(view, memo_of(chosen, [prefix]), chosen, number, histories.of(state, number, at_us))


def read_journal(path: Path) -> Recorded:
    """The journal of a simulation, whole.

    Raises:
        UserError: it cannot be read, is no journal, or is damaged.
    """
    try:
        with path.open("rb") as stream:
            if stream.read(len(SQLITE)) == SQLITE:
                raise UserError("the journal of a live cluster; expected one that `headway simulate --journal` wrote")
            stream.seek(0)
            run = codec.run_of(stream)
            batch, damage = codec.read(stream)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        message = "no such file" if missing else f"cannot be read: {error.strerror or error}"
        raise UserError(message, file=str(path), key="journal") from None
    except UserError as error:
        raise UserError(error.message, file=str(path), key="journal") from None
    if damage is not None:
        raise UserError(f"the journal is damaged after {len(batch):,} events: {damage}", file=str(path), key="journal")
    if not len(batch):
        raise UserError("the journal has no events", file=str(path), key="journal")
    return Recorded(batch, run or {})


def _policy(asked: Chosen | None, recorded: Recorded, path: Path) -> tuple[Chosen, list[str]]:
    """The policy to ask, and what a person should know of that."""
    named = recorded.run.get("policy")
    ran = choose(named) if isinstance(named, str) else None
    if asked is None and ran is None:
        raise UserError("the journal does not name its policy: say which with --policy", file=str(path), key="policy")
    chosen = asked or ran
    assert chosen is not None
    if ran is None or chosen.spec == ran.spec:
        return chosen, []
    if chosen.oracle:
        raise UserError(f"true durations are known to a run of {chosen.name} only, this is one of {ran.spec}", key="policy")
    notes = [f"the run was one of {ran.spec}: {chosen.spec} is asked about the state that {ran.spec} has made"]
    if ran.oracle:
        notes.append(f"estimates are those of {ran.spec}: the true durations")
    return chosen, notes


def memo_of(chosen: Chosen, batches: Iterable[EventBatch]) -> Any:
    """The policy's memo after these events; None for a policy without."""
    policy: Any = chosen.policy
    if not hasattr(policy, "fold"):
        return None
    memo = policy.start()
    for batch in batches:
        memo = policy.fold(memo, batch)
    return memo


def job_number(recorded: Recorded, text: str) -> int:
    """The number of the job that a person means, by number or name.

    Raises:
        UserError: no such job, with the nearest name or the numbers that there are.
    """
    records = recorded.batch.records
    numbers = records[records[:, c.E_KIND] == EventKind.SUBMITTED, c.E_ID]
    word = text.strip()
    if word.isascii() and word.isdigit() and len(word) < 19 and int(word) in numbers:
        return int(word)
    names = recorded.names
    found = sorted(job for job, name in names.items() if name == word)
    if found:
        return found[0]
    known = f"; the journal has jobs {numbers.min()} to {numbers.max()}" if len(numbers) else "; the journal has none"
    raise UserError(f"unknown job {shown(word)}{did_you_mean(word, names.values()) or known}", key="job")


def look(view: ClusterView, memo: Any, chosen: Chosen, number: int, history: JobHistory) -> Json:
    """What there is to say of a live job: where it stands, why, what would help, how it gets on. Ready for JSON."""
    policy: Any = chosen.policy
    job = view.job(number)
    explains = hasattr(policy, "explain")
    explained: Explanation = policy.explain(view, memo, number) if explains else by_arrival(view, number)
    kernel = int(getattr(getattr(policy, "params", None), "kernel", Kernel.CONSOLIDATED))
    queued = job.phase == Phase.QUEUED
    return {
        "job": number,
        "name": job.name,
        "user": job.user,
        "queue": job.queue,
        "phase": job.phase.name.lower(),
        "submitted_s": job.submitted_s,
        "waiting_s": _waited(view, job),
        "run_s": job.run_s,
        "attained_gpu_s": job.attained_gpu_s,
        "attempt": job.attempt,
        "preemptions": job.preemptions,
        "gpus": job.gpus,
        "tasks": job.tasks,
        "place": place_words(view, job) or None,
        "rank": _rank(view, explained, number) | {"words": explained.words, "explains": explains},
        "terms": [asdict(term) for term in explained.terms],
        "task_scores": [asdict(score) for score in explained.tasks],
        "reason": reason(view, job) if queued else having(view, job),
        "unblock": unblock(view, job, explained, kernel) if queued else [],
        "progress": progress(history),
    }


def _rank(view: ClusterView, explained: Explanation, number: int) -> Json:
    """The rank among all ranked jobs, and among those of them that wait."""
    waits = [job for job in explained.order if view.state.J[c.J_PLACED, view.state.row(job)] == 0]
    return {
        "rank": explained.rank,
        "of": len(explained.order),
        "waiting_rank": waits.index(number) + 1 if number in waits else None,
        "waiting_of": len(waits),
    }


def _waited(view: ClusterView, job: JobView) -> float:
    """How long a job has waited in all, s."""
    J = view.state.J[:, job.row]
    waits = J[c.J_PHASE] == Phase.QUEUED or J[c.J_STARTED_AT] < 0
    return int(J[c.J_WAITED] + (view.now_us - J[c.J_QUEUED_AT] if waits else 0)) / US_PER_S


def progress(history: JobHistory) -> Json:
    """What the job's own curve says: its last report, where it will end, and whether it gets anywhere."""
    fit = answer(Estimator.CURVE, [history])
    vector, status = fit.params[0], Status(int(fit.status[0]))
    by_accuracy = reports_accuracy(history)
    values = history.accuracy if by_accuracy else history.loss
    seen = np.flatnonzero(np.isfinite(values))
    sign = {Status.FLAT: "plateau", Status.DIVERGING: "divergence"}.get(status)
    words = STATUS_WORDS[status]
    told: Json = {"status": status.word, "sign": sign, "words": words, "reports": len(history.k), "of": None}
    if not len(seen) or not np.isfinite(vector[C_K_LAST]):
        return told
    first, level, end = float(values[seen[0]]), float(vector[C_LEVEL]), float(plateau(vector))
    way = abs(end - first)
    done = min(abs(level - first) / way, 1.0) if way > 0 else 1.0
    if status == Status.OK and done >= PLATEAU_FRAC:
        told |= {"sign": "plateau", "words": f"no progress to come: {done:.1%} of the way to its plateau is done"}
    wanted = history.accuracy_required if by_accuracy else np.nan
    best = values[seen].max() if by_accuracy and history.mode_max else values[seen].min()
    spread = float(vector[C_PLATEAU_SPREAD])
    return told | {
        "of": "accuracy" if by_accuracy else "loss",
        "units_done": history.units_done,
        "units_total": _number(history.units_total),
        "last": float(values[seen[-1]]),
        "best": float(best),
        "plateau": end,
        "plateau_spread_90": _number(spread),
        "plateau_sd": _number(spread / Z90),
        "done_frac": done,
        "required": _number(wanted),
        "required_at_units": _number(float(k_at(vector, wanted))),
        "required_probability": _number(float(reach_probability(vector, wanted))),
    }


def _gone(recorded: Recorded, prefix: EventBatch, number: int, at_us: int) -> Json:
    """How a job that is not live any more has ended.

    Raises:
        UserError: it has not been submitted yet.
    """
    records = prefix.records
    mine = records[:, c.E_ID] == number
    if not np.any(mine & (records[:, c.E_KIND] == EventKind.SUBMITTED)):
        of = recorded.batch.records
        later = of[(of[:, c.E_ID] == number) & (of[:, c.E_KIND] == EventKind.SUBMITTED), c.E_T]
        raise UserError(f"job {number} is submitted at {_s(int(later[0]))}, after {_s(at_us)}", key="at")
    metrics = MetricsFold()
    metrics.update(prefix)
    row = metrics.M[number]
    phase = Phase(int(row[M_PHASE]))
    ends = records[mine & np.isin(records[:, c.E_KIND], ENDED_BY)]
    why = Reason(int(ends[-1, c.E_A])) if len(ends) and phase != Phase.COMPLETED else Reason.DONE
    if phase == Phase.COMPLETED and row[M_FINISHING] == Reason.EARLY_STOP:
        why = Reason.EARLY_STOP
    if phase == Phase.CANCELLED:
        why = Reason.CANCELLED
    started = int(row[M_FIRST_START])
    return {
        "job": number,
        "name": recorded.names.get(number) or str(number),
        "phase": phase.name.lower(),
        "ended_s": int(row[M_END]) / US_PER_S,
        "submitted_s": int(row[M_SUBMITTED]) / US_PER_S,
        "first_start_s": started / US_PER_S if started >= 0 else None,
        "waiting_s": int(row[M_WAITED]) / US_PER_S,
        "run_s": int(row[M_RUN]) / US_PER_S,
        "preemptions": int(row[M_PREEMPTIONS]),
        "reason": {"word": why.word, "words": WORDS[why]},
    }


def _told(run: Mapping[str, Any]) -> Json:
    """What the header says of the run, without the list of names."""
    return {key: value for key, value in run.items() if key != "jobs"}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _s(us: int) -> str:
    return f"{us / US_PER_S:,.12g} s" if us < 10**15 else f"{us / US_PER_S:,.0f} s"
