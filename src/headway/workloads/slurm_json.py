"""`sacct --json` as the rows that `sacct -P` prints: each job a mapping from column to cell.

Versions differ: a number is a number or `{"set": true, "infinite": false, "number": 5}`, a state is text or a list of texts, a
member that has no meaning is missing or null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headway.core.errors import UserError, shown

NOT_SET = ("", None)


def json_rows(text: str, file: str) -> list[dict[str, str]]:
    """Return the cells of each job; `UserError` for what is no answer of `sacct --json`."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"not JSON: {error}", file=file, line=getattr(error, "lineno", 0)) from None
    jobs = root.get("jobs") if isinstance(root, dict) else None
    if not isinstance(jobs, list):
        raise UserError('expected {"jobs": […]} as `sacct --json` prints it, got another JSON', file=file)
    rows = []
    for i, job in enumerate(jobs):
        if not isinstance(job, dict):
            raise UserError(f"expected an object, got {shown(job)}", file=file, key=f"jobs[{i}]")
        rows.append(_cells(job))
    return rows


def _cells(job: Mapping[str, Any]) -> dict[str, str]:
    time, tres = _member(job, "time"), _member(job, "tres")
    state = _member(job, "state").get("current", job.get("state"))
    if isinstance(state, list):
        state = state[0] if state else ""
    limit = time.get("limit")
    return {
        "JobID": _job_id(job),
        "JobIDRaw": _number(job.get("job_id")),
        "JobName": _text(job.get("name")),
        "User": _text(job.get("user") or _member(job, "association").get("user")),
        "Account": _text(job.get("account")),
        "Cluster": _text(job.get("cluster")),
        "Partition": _text(job.get("partition")),
        "QOS": _text(job.get("qos")),
        "Submit": _number(time.get("submission")),
        "Eligible": _number(time.get("eligible")),
        "Start": _number(time.get("start")),
        "End": _number(time.get("end")),
        "ElapsedRaw": _number(time.get("elapsed")),
        "TimelimitRaw": "UNLIMITED" if isinstance(limit, dict) and limit.get("infinite") else _number(limit),
        "State": _text(state),
        "NNodes": _number(job.get("allocation_nodes")),
        "ReqTRES": _tres(tres.get("requested")),
        "AllocTRES": _tres(tres.get("allocated")),
        "NodeList": _text(job.get("nodes")),
        "Restarts": _number(job.get("restart_cnt")),
    }


def _job_id(job: Mapping[str, Any]) -> str:
    array, het = _member(job, "array"), _member(job, "het")
    parent, task, waiting = _number(array.get("job_id")), _number(array.get("task_id")), _text(array.get("task"))
    if parent not in ("", "0"):
        if waiting and not waiting.isdecimal():
            return f"{parent}_[{waiting.strip('[]')}]"
        return f"{parent}_{task}" if task else parent
    leader, offset = _number(het.get("job_id")), _number(het.get("job_offset"))
    return f"{leader}+{offset}" if leader not in ("", "0") and offset else _number(job.get("job_id"))


def _tres(listed: Any) -> str:
    items = []
    for entry in listed if isinstance(listed, list) else ():
        if isinstance(entry, dict) and (count := _number(entry.get("count"))):
            name = _text(entry.get("name"))
            items.append(f"{_text(entry.get('type'))}{'/' + name if name else ''}={count}")
    return ",".join(items)


def _member(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> str:
    """The cell of a number: empty where it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) and not value.get("infinite") else None
    return "" if value in NOT_SET or isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
