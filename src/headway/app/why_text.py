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
    yield f"job {_who(told)} {told['phase']} at {_n(told['ended_s'])} s: {told['reason']['words']}."
    started = "it never started" if told["first_start_s"] is None else f"first started at {_n(told['first_start_s'])} s"
    yield f"submitted at {_n(told['submitted_s'])} s, {started}, waited {_n(told['waiting_s'])} s, ran {_n(told['run_s'])} s"
    if told["accuracy"] is not None:
        wanted = "" if told["required"] is None else f", {_n(told['required'])} was required"
        yield f"accuracy {_n(told['accuracy'])}, {_n(told['accuracy_by_deadline'])} by its deadline{wanted}"
    if told["stop"] is not None:
        yield from _stop(told["stop"])


def _live(told: Json) -> Iterator[str]:
    why, rank = told["reason"], told["rank"]
    where = f"of {told['user']}, queue {told['queue']}"
    yield f"job {_who(told)} {where}: {told['phase']} at {_n(told['at_s'])} s, under {told['policy']}"
    place = f" on {told['place']}" if told["place"] else ""
    yield (
        f"asks for {told['gpus']:,} GPUs in {told['tasks']:,} task{'s' if told['tasks'] != 1 else ''}{place}; "
        f"submitted at {_n(told['submitted_s'])} s, waited {_n(told['waiting_s'])} s, ran {_n(told['run_s'])} s"
    )
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
        yield f"{'helps' if not i else '':8}{entry['words']}{_named(entry)}"
    yield f"curve   {told['progress']['words']}"
    yield from _curve(told["progress"])
    if told["stop"] is not None:
        yield from _stop(told["stop"])


def _room(told: Json, why: Json) -> Iterator[str]:
    """The numbers of the reason."""
    if "ends_s" in why:
        if why["ends_s"] is not None:
            yield f"        by its estimate it ends at {_n(why['ends_s'])} s"
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


def _who(told: Json) -> str:
    named = told["name"] != str(told["job"])
    return f"{told['job']} ({told['name']})" if named else str(told["job"])


def _named(entry: Json) -> str:
    """The jobs that an entry names, in brackets."""
    jobs = [f"{job['job']} at {_n(job['end_s'])} s" if isinstance(job, dict) else str(job) for job in entry.get("jobs", ())]
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
