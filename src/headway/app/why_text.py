"""What `headway why` tells a person: a short text out of the answer of `headway.app.why`, with the same numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.core.errors import one_line

Json = dict[str, Any]
TASKS_SHOWN = 12


def text(told: Json) -> str:
    """The whole text; its lines are safe for a terminal."""
    lines = _ended(told) if "ended_s" in told else _live(told)
    return "\n".join(one_line(line).rstrip() for line in lines)


def _ended(told: Json) -> Iterator[str]:
    yield f"job {_who(told)} {told['phase']} {_when(told, told['ended_s'])}: {told['reason']['words']}."
    if message := told["reason"].get("message"):
        yield f"told: {message}"
    first = told["first_start_s"]
    started = "it never started" if first is None else f"first started {_when(told, first)}"
    times = f"waited {_long(told, told['waiting_s'])}, ran {_long(told, told['run_s'])}"
    yield f"submitted {_when(told, told['submitted_s'])}, {started}, {times}"
    if told["accuracy"] is not None:
        wanted = "" if told["required"] is None else f", {_n(told['required'])} was required"
        yield f"accuracy {_n(told['accuracy'])}, {_n(told['accuracy_by_deadline'])} by its deadline{wanted}"
    if told["stop"] is not None:
        yield from _stop(told["stop"])


def _live(told: Json) -> Iterator[str]:
    why, rank = told["reason"], told["rank"]
    where = f"of {told['user']}, queue {told['queue']}"
    at = "" if _is_live(told) else f" at {_n(told['at_s'])} s"
    yield f"job {_who(told)} {where}: {told['phase']}{at}, under {told['policy']}"
    place = f" on {told['place']}" if told["place"] else ""
    yield (
        f"asks for {told['gpus']:,} GPUs in {told['tasks']:,} task{'s' if told['tasks'] != 1 else ''}{place}; "
        f"submitted {_when(told, told['submitted_s'])}, waited {_long(told, told['waiting_s'])}, "
        f"ran {_long(told, told['run_s'])}"
    )
    if told.get("forecast") is not None:
        yield ""
        yield from forecast_lines(told)
    yield ""
    if rank["rank"] is None:
        yield f"rank    none: it is not among the {rank['of']:,} that are ranked"
    else:
        waiting = f", {rank['waiting_rank']:,} of {rank['waiting_of']:,} waiting" if rank["waiting_rank"] else ""
        yield f"rank    {rank['rank']:,} of {rank['of']:,}{waiting}"
    yield f"        {rank['words']}"
    yield ""
    yield from _terms(told["terms"])
    yield from _tasks(told["task_scores"])
    yield ""
    yield f"why     {why['word']}: {why['words']}"
    yield from _room(told, why)
    for i, entry in enumerate(told["unblock"]):
        yield f"{'helps' if not i else '':8}{_words(told, entry)}{_named(told, entry)}"
    for i, entry in enumerate(told.get("threats", ())):
        yield f"{'loses' if not i else '':8}{'its place to ' if not i else ''}{_words(told, entry)}{_named(told, entry)}"
    yield from _saved(told)
    yield f"curve   {told['progress']['words']}"
    yield from _curve(told["progress"])
    if told["stop"] is not None:
        yield from _stop(told["stop"])


def _room(told: Json, why: Json) -> Iterator[str]:
    """The numbers of the reason."""
    if "ends_s" in why:
        if why["ends_s"] is not None:
            yield f"        by its estimate it ends {_when(told, why['ends_s'])}"
        return
    free = f"free are {why['free_gpus']:,} of {why['gpus_up']:,}, at most {why['free_on_a_node_max']:,} on a node"
    yield f"        needs {why['needs_gpus']:,} GPUs; {free}"
    if "then_needed_gpus" in why:
        then = f"needed {why['then_needed_gpus']:,} GPUs, at most {why['then_free_on_a_node_max']:,} free on a node"
        yield f"        when it was said: {then}"
    if "queue_booked_gpus" in why:
        bounds = [
            f"{name} {_n(why[f'queue_{name}_gpus'])}" for name in ("quota", "limit") if why[f"queue_{name}_gpus"] is not None
        ]
        yield f"        queue {told['queue']} has {_n(why['queue_booked_gpus'])} GPUs; {', '.join(bounds)}"


def _words(told: Json, entry: Json) -> str:
    """An entry's words; live, its time is one from now."""
    at = entry.get("at_s")
    if not _is_live(told) or at is None:
        return str(entry["words"])
    return str(entry["words"]).replace(f"by {at:,.0f} s", _when(told, at)).replace(f"at {at:,.0f} s", _when(told, at))


def _saved(told: Json) -> Iterator[str]:
    """What is safe of the job's progress."""
    safe = told.get("checkpoint")
    if safe is None or not (safe["units"] or safe["units_done"]):
        return
    age = "" if safe["age_s"] is None else f", {span(safe['age_s'])} ago"
    units = f"{_n(safe['units'])} units" if safe["units"] else "nothing"
    yield f"saved   {units} of {_n(safe['units_done'])} done{age}"


def forecast_lines(told: Json) -> Iterator[str]:
    """When the job will probably start and end, by the simulations that were made of it."""
    found = told["forecast"]
    count = f"{found['samples']} simulation{'s' if found['samples'] != 1 else ''}"
    if told["phase"] == "queued":
        start = found["start_s"]
        if start is None or start["p50"] is None:
            yield f"starts  not as far as can be seen ({count})"
        else:
            yield f"starts  probably in {span(start['p50'])} ({_between(start)}{count})"
    end = found["finish_s"]
    if end is not None and end["p50"] is not None:
        more = count if told["phase"] != "queued" else ""
        inner = f"{_between(end)}{more}".removesuffix(", ")
        yield f"ends    probably in {span(end['p50'])}{f' ({inner})' if inner else ''}"
    if found["stop_probability"]:
        yield f"        it loses its place before in {found['stop_probability']:.0%} of them, in about {span(found['stop_s'])}"
    if found["deadline_probability"] is not None:
        yield f"        its deadline is met in {found['deadline_probability']:.0%} of them"
    for note in found["notes"]:
        yield f"        {note}"


def _between(said: Json) -> str:
    """The interval of a forecast, with what parts it from the next thing."""
    if said["p10"] is None:
        return ""
    if said["p90"] is None:
        return f"{span(said['p10'])} or more, "
    (low, unit), (high, other) = (span(said[key]).split(" ", 1) for key in ("p10", "p90"))
    return f"{low}–{high} {unit}, " if unit == other else f"{low} {unit} – {high} {other}, "


def span(seconds: float) -> str:
    """A length of time as a person says it: two figures or so."""
    for unit, size, most in (("s", 1, 90), ("min", 60, 90 * 60), ("h", 3600, 48 * 3600)):
        if seconds < most:
            return _figure(seconds / size, unit)
    return _figure(seconds / 86_400, "days")


def _figure(value: float, unit: str) -> str:
    return f"{value:.1f} {unit}" if value < 10 and unit in ("h", "days") else f"{value:.0f} {unit}"


def _is_live(told: Json) -> bool:
    return bool(told.get("live"))


def _when(told: Json, at_s: float) -> str:
    """A point in time: of a recorded run as it is, live from now on."""
    if not _is_live(told):
        return f"at {_n(at_s)} s"
    after = at_s - told["at_s"]
    return f"{span(-after)} ago" if after < 0 else f"in {span(after)}"


def _long(told: Json, seconds: float) -> str:
    return span(seconds) if _is_live(told) else f"{_n(seconds)} s"


def _who(told: Json) -> str:
    named = told["name"] != str(told["job"])
    return f"{told['job']} ({told['name']})" if named else str(told["job"])


def _named(told: Json, entry: Json) -> str:
    """The jobs that an entry names, in brackets."""
    jobs = [f"{job['job']} {_when(told, job['end_s'])}" if isinstance(job, dict) else str(job) for job in entry.get("jobs", ())]
    if not jobs:
        return ""
    more = f" and {entry['count'] - len(jobs):,} more" if entry.get("count", 0) > len(jobs) else ""
    return f" (job{'s' if len(jobs) > 1 else ''} {', '.join(jobs)}{more})"


def _terms(terms: list[Json]) -> Iterator[str]:
    weighted = any(term["weight"] is not None for term in terms)
    rows = [("terms", "value", "weight", "gives", "")] if weighted else [("terms", "value", "", "", "")]
    for term in terms:
        value = "none" if term["value"] is None else f"{_n(term['value'])} {term['unit']}".rstrip()
        rows.append((term["name"], value, _n(term["weight"], ""), _n(term["contribution"], ""), term["meaning"]))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [f"{row[0]:<{widths[0]}}", *(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3) if widths[i])]
        yield "  ".join((*cells, row[4]))


def _tasks(scores: list[Json]) -> Iterator[str]:
    if len(scores) < 2:
        return
    yield ""
    yield f"{'task':>5}  {'role':<6}  {'replica':>7}  {'partition':>9}  {'share':>8}  {'PML':>10}  {'PC':>10}  {'P':>10}"
    for score in sorted(scores, key=lambda one: (-one["priority"], one["task"]))[:TASKS_SHOWN]:
        numbers = "  ".join(f"{score[key]:>10.5g}" for key in ("ml", "computation", "priority"))
        which = f"{score['task']:>5}  {score['role']:<6}  {score['replica']:>7}  {score['partition']:>9}"
        yield f"{which}  {score['share']:>8.4f}  {numbers}"
    if len(scores) > TASKS_SHOWN:
        yield f"      and {len(scores) - TASKS_SHOWN:,} tasks of lower priority"


def _curve(told: Json) -> Iterator[str]:
    if told["of"] is None:
        return
    total = "" if told["units_total"] is None else f" of {_n(told['units_total'])}"
    seen = f"{told['of']} {_n(told['last'])} at {_n(told['units_done'])}{total} units, best {_n(told['best'])}"
    yield f"        {seen}; {told['done_frac']:.1%} of its way to the plateau"
    for name in ("loss", "accuracy"):
        series = told[name]
        if series is not None and (name == told["of"] or series["sign"] is not None) and series["change"] is not None:
            change = f"{series['change']:+.4g} in the last {_n(series['change_units'])} units"
            yield f"        {name} {change} (noise {series['noise']:.2g}), worse than its best by {series['worse_by']:.4g}"
    spread = "" if told["plateau_spread_90"] is None else f" ± {_n(told['plateau_spread_90'])} (90 %)"
    yield f"        plateau {_n(told['plateau'])}{spread}"
    if told["required"] is not None:
        at = "not reached" if told["required_at_units"] is None else f"reached at {_n(told['required_at_units'])} units"
        yield f"        required {_n(told['required'])}: {at}, with probability {told['required_probability']:.2f}"


RULE_WORDS = {
    "fixed": "fixed: all iterations are run",
    "optstop": "optstop: close to the best accuracy it will reach",
    "accuracy": "accuracy: the accuracy it requires",
}


def _stop(told: Json) -> Iterator[str]:
    """What load control makes of the job; of one that it has ended, what it made of it then."""
    then = "at_s" in told
    now, other = told["now"], told["overload"]
    allowed = f", {', '.join(told['allowed'])} allowed under overload" if told["allowed"] else ""
    yield f"stop    rule in force {RULE_WORDS[now['rule']]} (the owner's: {told['chosen']}{allowed})"
    state = "overloaded: jobs queue, or the load is too high" if told["overloaded"] else "not overloaded"
    when = f"at {_n(told['at_s'])} s the" if then else "the"
    load = f"mean load {told['load_frac']:.2f} of {_n(told['load_max_frac'])}"
    yield f"        {when} cluster {'was' if then else 'is'} {state}; {load}"
    if told["accuracy"] is None:
        yield "        no fitted curve of what it has done: nothing is decided yet"
        return
    spread = "" if told["final_spread_90"] is None else f" ± {told['final_spread_90']:.4f} (90 %)"
    yield f"        fitted accuracy {told['accuracy']:.4f}, predicted at the end {told['final']:.4f}{spread}"
    if told["required"] is not None:
        reach = "out of reach" if told["out_of_reach"] else f"probability {told['required_probability']:.2f}"
        yield f"        required {told['required']:.4f}: {reach}"
    if told["done"]:
        yield f"        it {'had' if then else 'has'} done enough: {_enough(now)}"
        return
    yield f"        it ends at {_enough(now)}"
    if other != now:
        yield f"        under overload at {_enough(other)}, by the rule {other['rule']}"


def _enough(plan: Json) -> str:
    """When a rule is satisfied."""
    if plan["accuracy"] is None:
        return "the end of all iterations" if plan["rule"] == "fixed" else "once"
    units = (
        "not before the end of all iterations" if plan["units"] is None else f"after about {_n(round(plan['units'], 1))} units"
    )
    time = "" if not plan["in_s"] else f", in about {_n(round(plan['in_s']))} s"
    return f"accuracy {plan['accuracy']:.4f}, {units}{time}"


def _n(value: float | None, none: str = "none") -> str:
    """A number as a person reads it: whole ones whole, others to five figures."""
    if value is None:
        return none
    if value == int(value) or abs(value) >= 1e5:
        return f"{value:,.0f}"
    return f"{value:,.5g}" if abs(value) < 1e4 else f"{value:,.1f}"
