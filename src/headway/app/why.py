"""Why a job is, or is not, running: what `headway why` answers, from the journal of a run at one time.

`look` needs a view, a policy with its memo, and the job's past: whoever has those, live or from a journal, asks the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.app.unblock import WORDS, checkpoint, having, place_words, reason, threats, unblock
from headway.core import codec, units
from headway.core import columns as c
from headway.core.arrays import Floats
from headway.core.columns import Estimator, EventKind, Name, Phase, Reason
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.events import EMPTY, EventBatch, concatenate
from headway.core.explain import Explanation, StopOutlook
from headway.core.policy import remembers
from headway.core.state import State
from headway.core.units import US_PER_S
from headway.core.view import ClusterView, JobView
from headway.metrics.fold import (
    M_ACCURACY,
    M_ACCURACY_DUE,
    M_END,
    M_FINISHING,
    M_FIRST_START,
    M_PHASE,
    M_PREEMPTIONS,
    M_REQUIRED,
    M_RUN,
    M_SUBMITTED,
    M_WAITED,
    MetricsFold,
)
from headway.perf.estimators import JobHistory, answer, reports_accuracy
from headway.perf.forecast import Z90, k_at, plateau, reach_probability
from headway.perf.histories import Histories
from headway.perf.params import C_K_LAST, C_PLATEAU_SPREAD, Status
from headway.perf.trend import DIVERGENCE, Trend, trend
from headway.place.gang import Kernel
from headway.policies.explain import by_arrival
from headway.policies.registry import Chosen, choose
from headway.sim.run import round_seed

Json = dict[str, Any]
SQLITE = b"SQLite format 3"
ENDED_BY = (EventKind.STOPPED, EventKind.FAILED, EventKind.REJECTED)
DECIDED = (
    EventKind.WANTED, EventKind.UNWANTED, EventKind.START_REQUESTED, EventKind.STOP_REQUESTED, EventKind.FINISHED,
    EventKind.RULE_SET, EventKind.WHY,
)  # fmt: skip
"""What a round's decisions are, before the event that closes it."""


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
        return told | _gone(recorded, prefix, number, at_us) | {"stop": _stopped(recorded, prefix, chosen, number)}
    view = _view(recorded, state, at_us)
    histories = Histories()
    histories.update(prefix)
    return told | look(view, memo_of(chosen, [prefix]), chosen, number, histories.of(state, number, at_us))


def _view(recorded: Recorded, state: State, at_us: int) -> ClusterView:
    seed = recorded.run.get("seed")
    return ClusterView(state, at_us, round_seed(seed if isinstance(seed, int) else 0, at_us))


def _stopped(recorded: Recorded, prefix: EventBatch, chosen: Chosen, number: int) -> Json | None:
    """Why a job was ended early: what load control made of it in the round that did so; None if that was not so."""
    policy: Any = chosen.policy
    R = prefix.records
    mine = (R[:, c.E_ID] == number) & np.isin(R[:, c.E_KIND], (EventKind.STOP_REQUESTED, EventKind.FINISHED))
    ends = np.flatnonzero(mine & (R[:, c.E_A] == Reason.EARLY_STOP))
    if not len(ends) or not hasattr(policy, "outlook"):
        return None
    first, t = int(ends[0]), int(R[ends[0], c.E_T])
    while first and R[first - 1, c.E_T] == t and R[first - 1, c.E_KIND] in DECIDED:
        first -= 1
    before = prefix.cut(0, first)
    state = State()
    state.apply(before)
    histories = Histories()
    histories.update(before)
    found = policy.outlook(_view(recorded, state, t), memo_of(chosen, [before]), number)
    return outlook(found, histories.of(state, number, t)) | {"at_s": t / US_PER_S}


def read_journal(path: Path) -> Recorded:
    """The journal of a simulation, or of a live cluster with its archives, whole.

    Raises:
        UserError: it cannot be read, is no journal, or is damaged.
    """
    try:
        with path.open("rb") as stream:
            live = stream.read(len(SQLITE)) == SQLITE
            stream.seek(0)
            run = codec.run_of(stream) if not live else None
            batch, damage = codec.read(stream) if not live else (EMPTY, None)
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        message = "no such file" if missing else f"cannot be read: {error.strerror or error}"
        raise UserError(message, file=str(path), key="journal") from None
    except UserError as error:
        raise UserError(error.message, file=str(path), key="journal") from None
    if live:
        batch, damage = read_live(path)
    if damage is not None:
        raise UserError(f"the journal is damaged after {len(batch):,} events: {damage}", file=str(path), key="journal")
    if not len(batch):
        raise UserError("the journal has no events", file=str(path), key="journal")
    return Recorded(batch, run or {})


def read_live(path: Path) -> tuple[EventBatch, str | None]:
    """All events of a live cluster's journal, archives included, and what is wrong with the rest (None: nothing)."""
    from headway.runtime.journal import Journal

    try:
        journal = Journal(path, writes=False)
        try:
            with journal.still():
                batch = concatenate(list(journal.read()))
            return batch, journal.damage.reason if journal.damage else None
        finally:
            journal.close()
    except UserError as error:
        raise UserError(error.message, file=str(path), key="journal") from None


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
    policy = chosen.policy
    if not remembers(policy):
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
    places = getattr(policy, "inner", policy)
    kernel = int(getattr(getattr(places, "params", None), "kernel", Kernel.CONSOLIDATED))
    queued = job.phase == Phase.QUEUED
    stop = policy.outlook(view, memo, number) if hasattr(policy, "outlook") else None
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
        "threats": threats(view, job, explained) if job.place else [],
        "checkpoint": checkpoint(view, job),
        "progress": progress(history),
        "stop": None if stop is None else outlook(stop, history),
    }


def outlook(found: StopOutlook, history: JobHistory) -> Json:
    """What load control makes of a job, with the time until it would end it, at the speed of the present attempt."""
    told: Json = asdict(found) | {"allowed": list(found.allowed)}
    for plan in (told["now"], told["overload"]):
        left = None if plan["units"] is None else max(plan["units"] - history.units_done, 0.0)
        plan["in_s"] = None if left is None else _number(left / history.units_per_s) if left else 0.0
    return told


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
    """What the job's own reports say: the last one, where their curve will end, and whether it gets anywhere. The curve is that
    of the accuracy, of the loss if there is none. A sign of no progress may come from either; divergence goes before a plateau.
    """
    by_accuracy = reports_accuracy(history)
    of = "accuracy" if by_accuracy else "loss"
    fits = {name: answer(Estimator.CURVE, [history], of_accuracy=name == "accuracy") for name in ("loss", "accuracy")}
    trends = {name: _trend(history, name, fit.params[0], Status(int(fit.status[0]))) for name, fit in fits.items()}
    vector, status, main = fits[of].params[0], Status(int(fits[of].status[0])), trends[of]
    told: Json = {"status": status.word, "sign": None, "words": _nothing(history), "reports": len(history.k), "of": None}
    told |= {name: asdict(found) if found else None for name, found in trends.items()}
    signs = {name: found for name, found in trends.items() if found and found.sign}
    worst = next((name for name, found in signs.items() if found.sign == DIVERGENCE), of if of in signs else None)
    if worst is not None:
        told |= {"sign": signs[worst].sign, "words": f"{signs[worst].words} ({worst})"}
    elif main is not None:
        told["words"] = main.words
    if main is None or not np.isfinite(vector[C_K_LAST]):
        return told
    wanted = history.accuracy_required if by_accuracy else np.nan
    spread = float(vector[C_PLATEAU_SPREAD])
    return told | {
        "of": of,
        "units_done": history.units_done,
        "units_total": _number(history.units_total),
        "last": main.last,
        "best": main.best,
        "plateau": float(plateau(vector)),
        "plateau_spread_90": _number(spread),
        "plateau_sd": _number(spread / Z90),
        "done_frac": main.done_frac,
        "required": _number(wanted),
        "required_at_units": _number(float(k_at(vector, wanted))),
        "required_probability": _number(float(reach_probability(vector, wanted))),
    }


def _trend(history: JobHistory, name: str, fit: Floats, status: Status) -> Trend | None:
    rising = name == "accuracy" and history.mode_max
    return trend(history.k, getattr(history, name), rising=rising, fit=fit, status=status)


def _nothing(history: JobHistory) -> str:
    """The words for a job without a number to go by."""
    count = len(history.k)
    return f"it has reported {count:,} times, never a finite loss or accuracy" if count else "it has reported nothing"


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
    finished = records[mine & (records[:, c.E_KIND] == EventKind.FINISHED), c.E_A]
    if phase == Phase.COMPLETED and (row[M_FINISHING] == Reason.EARLY_STOP or Reason.EARLY_STOP in finished):
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
        "accuracy": _ppm(row[M_ACCURACY]),
        "accuracy_by_deadline": _ppm(row[M_ACCURACY_DUE]),
        "required": _ppm(row[M_REQUIRED]) or None,
    }


def _ppm(value: int) -> float | None:
    return int(value) / 1e6 if value >= 0 else None


def _told(run: Mapping[str, Any]) -> Json:
    """What the header says of the run, without the list of names."""
    return {key: value for key, value in run.items() if key != "jobs"}


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _s(us: int) -> str:
    return f"{us / US_PER_S:,.12g} s" if us < 10**15 else f"{us / US_PER_S:,.0f} s"
