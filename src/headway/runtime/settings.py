"""`headway.toml`: what an operator sets for a cluster (`docs/operations.md`).

Every key has an effect, and every mistake is one line that names file, line and key. Options of `headway up` stand above the
file. What `RESTART` names takes effect at the next start; all else is reloaded while the controller runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headway.core import units
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.units import US_PER_S
from headway.policies.registry import Chosen, choose
from headway.runtime.drains import Trust
from headway.runtime.journal_db import parse_where
from headway.runtime.lease import parse_lease
from headway.runtime.machine import parse_nodes
from headway.runtime.shadows import SHADOWS_MAX, Shadows
from headway.runtime.tomlmarks import Marks, Parser, kind
from headway.workloads.cluster import QUEUE_LEVELS_MAX, QUEUES_MAX, Queue
from headway.workloads.yamlmarks import read_text

FILE = "headway.toml"
DEFAULT_QUEUE = "default"
EVERYBODY = "*"
"""In [users]: whoever is not named."""
BODY_BYTES = 1_000_000
BODY_BYTES_MAX = 100_000_000
QUEUE_MAX = 100_000
REPORTS_PER_S, LOGS_PER_S = 10_000, 20
WEIGHT_MAX = 1_000_000
USERS_MAX = 100_000
POLICY = "fifo"
RESTART = ("cluster.nodes", "cluster.slots", "cluster.journal", "cluster.lease", "cluster.host", "cluster.port", "engine.silent",
           "engine.cpus", "engine.memory")  # fmt: skip
"""Keys that a running controller can't change."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """How the controller starts, as `headway up` takes it; None: not set."""

    nodes: str | None = None
    slots: int | None = None
    journal: str | None = None
    lease: str | None = None
    host: str | None = None
    """Where the API listens; None: on loopback."""
    port: int | None = None
    round: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The local engine: how long a node's agent may be silent before the node is lost, and what each node has."""

    silent_s: float = 15.0
    cpus_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSettings:
    """What one user may do. None: no limit; `queues` None: all of them."""

    account: str = ""
    """The Unix account that the jobs run under, where the controller runs as root; empty: that of the user's name."""
    admin: bool = False
    queues: tuple[str, ...] | None = None
    urgency_budget: int | None = None
    queued_max: int | None = None
    gpus_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request and a user may ask for, unless [users] says otherwise."""

    body_bytes: int = BODY_BYTES
    queued_max: int | None = None
    """Jobs of one user that wait at once."""
    gpus_max: int | None = None
    """GPUs of one job."""
    queue_max: int = QUEUE_MAX
    """Jobs of all users that wait at once."""
    reports_per_s: int = REPORTS_PER_S
    """Reports that one task may send over HTTP."""
    logs_per_s: int = LOGS_PER_S
    """Logs that one token may ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All that the file says; without a file, all defaults."""

    file: str = ""
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    policy: str = ""
    """The spec of the policy; empty: not set."""
    queues: Mapping[str, Queue] = field(default_factory=dict)
    users: Mapping[str, UserSettings] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    trust: Trust = field(default_factory=Trust)
    shadow: Shadows = field(default_factory=Shadows)

    def user(self, name: str) -> UserSettings:
        """What a user may do, with the limits of all where he has none of his own."""
        found = self.users.get(name) or self.users.get(EVERYBODY) or UserSettings()
        return replace(
            found,
            account=found.account or name,
            queued_max=self.limits.queued_max if found.queued_max is None else found.queued_max,
            gpus_max=self.limits.gpus_max if found.gpus_max is None else found.gpus_max,
        )

    def account(self, user: str) -> str:
        """The Unix account of a user's jobs."""
        found = self.users.get(user)
        return (found and found.account) or user

    def to_json(self) -> dict[str, Any]:
        """All of it by the file's own keys, without the journal's address, which may hold a password."""
        cluster = {key: getattr(self.cluster, key) for key in ("nodes", "slots", "lease", "host", "port", "round")}
        return {
            "cluster": {key: value for key, value in cluster.items() if value is not None},
            "engine": {
                "silent": units.format_duration(self.engine.silent_s),
                **_sizes(self.engine.cpus_milli, self.engine.memory_bytes),
            },
            "policy": self.policy or POLICY,
            "queues": {name: _queue_json(queue) for name, queue in self.queues.items()},
            "users": {name: _user_json(user) for name, user in self.users.items()},
            "limits": {
                "body": units.format_size(self.limits.body_bytes),
                **_counts(self.limits.queued_max, self.limits.gpus_max),
                "queue": self.limits.queue_max,
                "reports": self.limits.reports_per_s,
                "logs": self.limits.logs_per_s,
            },
            "quarantine": {
                "troubles": self.trust.troubles_max,
                "window": units.format_duration(self.trust.window_us / US_PER_S),
                "quiet": units.format_duration(self.trust.quiet_us / US_PER_S),
            },
            "shadow": self.shadow.to_json(),
        }


def _sizes(cpus_milli: int | None, memory_bytes: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if cpus_milli is not None:
        found["cpus"] = units.format_milli(cpus_milli)
    if memory_bytes is not None:
        found["memory"] = units.format_size(memory_bytes)
    return found


def _counts(queued_max: int | None, gpus_max: int | None) -> dict[str, Any]:
    return {key: value for key, value in (("queued", queued_max), ("gpus", gpus_max)) if value is not None}


def _queue_json(queue: Queue) -> dict[str, Any]:
    given = {
        "quota": queue.quota_gpus,
        "limit": queue.limit_gpus,
        "weight": queue.weight if queue.weight != 1 else None,
        "parent": queue.parent,
    }
    return {key: value for key, value in given.items() if value is not None}


def _user_json(user: UserSettings) -> dict[str, Any]:
    given: dict[str, Any] = {"account": user.account or None, "admin": user.admin or None, "urgency_budget": user.urgency_budget}
    if user.queues is not None:
        given["queues"] = list(user.queues)
    return {key: value for key, value in given.items() if value is not None} | _counts(user.queued_max, user.gpus_max)


# -- reading --------------------------------------------------------------------------------------------------------
def read_settings(path: Path) -> Settings:
    """The settings of a file. `UserError` with file, line and key for anything unknown or impossible."""
    return parse_settings(read_text(path, str(path)), str(path))


def parse_settings(text: str, file: str = FILE) -> Settings:
    """The settings of a text."""
    marks = Marks(text, file)
    readers: dict[str, Callable[[Marks], Any]] = {
        "cluster": _cluster, "engine": _engine, "policy": _policy, "queues": _queues, "users": _users, "limits": _limits,
        "quarantine": _trust, "shadow": _shadow,
    }  # fmt: skip
    for name, value in marks.root.items():
        if name not in readers:
            listed = ", ".join(f"[{known}]" for known in readers)
            hint = did_you_mean(name, readers) or f"; known: {listed}"
            marks.fail(f"unknown {'table' if isinstance(value, dict) else 'key'}{hint}", (name,))
    found = {name: read(marks) for name, read in readers.items()}
    found["trust"] = found.pop("quarantine")
    settings = Settings(file=file, **found)
    _check_queue_names(marks, settings)
    return settings


def _cluster(marks: Marks) -> ClusterSettings:
    values = marks.section(
        ("cluster",),
        {
            "nodes": _checked(parse_nodes),
            "slots": _whole(1, 64),
            "journal": _checked(parse_where),
            "lease": _time_text(_checked(parse_lease)),
            "host": _checked(parse_host),
            "port": _whole(0, 65_535),
            "round": _time_text(_checked(parse_round_us)),
        },
    )
    if "nodes" in values and "slots" in values:
        _ = marks.read(("cluster", "slots"), values["slots"], lambda slots: parse_nodes(values["nodes"], slots))
    return ClusterSettings(**values)


def _engine(marks: Marks) -> EngineSettings:
    values = marks.section(
        ("engine",),
        {
            "silent": _duration(1 * US_PER_S, 3600 * US_PER_S),
            "cpus": _above_zero(units.parse_cpus, "a number of cores above 0"),
            "memory": _above_zero(units.parse_size, "a size above 0"),
        },
    )
    return EngineSettings(
        silent_s=values.get("silent", 15 * US_PER_S) / US_PER_S,
        cpus_milli=values.get("cpus"),
        memory_bytes=values.get("memory"),
    )


def _policy(marks: Marks) -> str:
    """The spec string: the name, and the other keys as its parameters."""
    here = ("policy",)
    table = marks.table(here)
    if not table:
        return ""
    if "name" not in table:
        marks.fail("expected the name of a policy, got nothing", (*here, "name"))
    name = str(marks.read((*here, "name"), table["name"], _text)).strip()
    choose_live = _checked(choose_policy)
    marks.read((*here, "name"), name, choose_live)
    words = {key: marks.read((*here, key), value, _word) for key, value in table.items() if key != "name"}
    if not words:
        return name
    if ":" in name or "+" in name:
        marks.fail(f"expected a bare name beside other keys, got {shown(name)}", (*here, "name"))
    for key, word in words.items():
        marks.read((*here, key), f"{name}:{key}={word}", choose_live)
    spec = f"{name}:{','.join(f'{key}={word}' for key, word in words.items())}"
    marks.read(here, spec, choose_live)
    return spec


def choose_policy(text: str) -> Chosen:
    """A policy for real jobs. `UserError` for one that there is not, or that is for simulation only."""
    chosen = choose(text.strip())
    if chosen.oracle:
        raise UserError("knows the true durations of jobs: it is for simulation only", key=f"policy {chosen.spec}")
    return chosen


def parse_round_us(text: str) -> int:
    """The interval of rounds (µs)."""
    try:
        interval_us = units.parse_duration(text)
    except ValueError as error:
        raise UserError(str(error), key="round") from None
    if not 10_000 <= interval_us <= 3600 * US_PER_S:
        raise UserError(f"expected an interval from 10ms to 1h, got {shown(text)}", key="round")
    return interval_us


def parse_host(text: str) -> str:
    """The address, or the name of one, where the API listens."""
    host = text.strip()
    if not 1 <= len(host) <= 253 or any(not (ch.isascii() and (ch.isalnum() or ch in ".:-_%")) for ch in host):
        raise UserError(f"expected an address such as 127.0.0.1 or 0.0.0.0, or a name, got {shown(text)}", key="host")
    return host


def _named(marks: Marks, what: str, most: int) -> Iterator[tuple[str, tuple[str, str]]]:
    """The sections `[what.NAME]`: each name, and where it stands."""
    names = list(marks.table((what,)))
    if len(names) > most:
        marks.fail(f"over {most} {what}", (what,))
    for name in names:
        _check_name(marks, name, (what, name))
        yield name, (what, name)


def _queues(marks: Marks) -> dict[str, Queue]:
    found = {}
    for name, path in _named(marks, "queues", QUEUES_MAX):
        gpus = _whole(0)
        values = marks.section(path, {"quota": gpus, "limit": gpus, "weight": _whole(1, WEIGHT_MAX), "parent": _text})
        quota, limit = values.get("quota"), values.get("limit")
        if quota is not None and limit is not None and limit < quota:
            marks.fail(f"expected a limit of at least the quota {quota}, got {limit}", (*path, "limit"))
        found[name] = Queue(name, quota, limit, values.get("weight", 1), values.get("parent"))
    for name, queue in found.items():
        _check_parents(marks, name, queue, found)
    return found


def _check_parents(marks: Marks, name: str, queue: Queue, queues: Mapping[str, Queue]) -> None:
    path = ("queues", name, "parent")
    above, levels = queue.parent, 0
    if above is not None and above not in queues:
        marks.fail(f"expected a queue of this file, got {shown(above)}{did_you_mean(above, queues)}", path)
    while above is not None and above in queues:
        above, levels = queues[above].parent, levels + 1
        if levels > QUEUE_LEVELS_MAX:
            marks.fail(f"expected at most {QUEUE_LEVELS_MAX} levels of queues, and none above itself", path)


def _users(marks: Marks) -> dict[str, UserSettings]:
    found = {}
    for name, path in _named(marks, "users", USERS_MAX):
        values = marks.section(
            path,
            {
                "account": _text, "admin": _flag, "queues": _texts, "urgency_budget": _whole(0), "queued": _whole(0),
                "gpus": _whole(0),
            },
        )  # fmt: skip
        if name == EVERYBODY and ("account" in values or values.get("admin")):
            key = "account" if "account" in values else "admin"
            marks.fail("not for everybody: expected under the name of one user", (*path, key))
        found[name] = UserSettings(queued_max=values.pop("queued", None), gpus_max=values.pop("gpus", None), **values)
    return found


def _check_queue_names(marks: Marks, settings: Settings) -> None:
    """Users may be given only queues that there are."""
    if not settings.queues:
        return
    known = {*settings.queues, DEFAULT_QUEUE}
    for name, user in settings.users.items():
        for queue in user.queues or ():
            if queue not in known:
                marks.fail(
                    f"expected queues of this file, got {shown(queue)}{did_you_mean(queue, known)}", ("users", name, "queues")
                )


def _limits(marks: Marks) -> Limits:
    body = _between(units.parse_size, 1000, BODY_BYTES_MAX, "a size from 1KB to 100MB")
    rate = _whole(1, 1_000_000)
    values = marks.section(
        ("limits",),
        {"body": body, "queued": _whole(0), "gpus": _whole(0), "queue": _whole(0), "reports": rate, "logs": rate},
    )
    return Limits(
        body_bytes=values.get("body", BODY_BYTES),
        queued_max=values.get("queued"),
        gpus_max=values.get("gpus"),
        queue_max=values.get("queue", QUEUE_MAX),
        reports_per_s=values.get("reports", REPORTS_PER_S),
        logs_per_s=values.get("logs", LOGS_PER_S),
    )


def _trust(marks: Marks) -> Trust:
    day_us = 86_400 * US_PER_S
    values = marks.section(
        ("quarantine",),
        {"troubles": _whole(1, 1000), "window": _duration(US_PER_S, 30 * day_us), "quiet": _duration(US_PER_S, 30 * day_us)},
    )
    default = Trust()
    return Trust(
        values.get("troubles", default.troubles_max),
        values.get("window", default.window_us),
        values.get("quiet", default.quiet_us),
    )


def _shadow(marks: Marks) -> Shadows:
    times = _duration(US_PER_S, 30 * 86_400 * US_PER_S)
    values = marks.section(("shadow",), {"policies": parse_shadows, "every": times, "horizon": times, "budget": times})
    policies = values.pop("policies", ())
    return Shadows(policies=policies, **{f"{key}_s": value / US_PER_S for key, value in values.items()})


def parse_shadows(value: Any) -> tuple[str, ...]:
    """The specs of policies to simulate beside the one in force."""
    specs = tuple(dict.fromkeys(choose_policy(text).spec for text in _texts(value)))
    if len(specs) > SHADOWS_MAX:
        raise ValueError(f"expected at most {SHADOWS_MAX} policies, got {len(specs)}")
    return specs


def _check_name(marks: Marks, name: str, path: tuple[str, ...]) -> None:
    if fault := units.name_fault(name):
        marks.fail(f"expected a name {fault}, got {shown(name)}", path)
    if not isinstance(marks.table(path[:-1])[name], dict):
        marks.fail(f"expected a table [{path[0]}.NAME], got {kind(marks.table(path[:-1])[name])}", path)


# -- parsers --------------------------------------------------------------------------------------------------------
def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {kind(value)}")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"expected a list of texts, got {kind(value)}")
    return tuple(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, got {kind(value)}")
    return value


def _word(value: Any) -> str:
    """A parameter as a spec string has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        return str(value)
    raise ValueError(f"expected a number, a text, true or false, got {kind(value)}")


def _scalar(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        raise ValueError(f"expected one value, got {kind(value)}")
    return value


def _whole(low: int, high: int = units.COUNT_MAX) -> Parser:
    return lambda value: units.parse_int(_scalar(value), low, high)


def _time_text(check: Callable[[str], str]) -> Parser:
    """A time as it is written; a plain number is seconds."""
    return lambda value: check(_text(value) if isinstance(value, str) else str(_number(value)))


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"expected a time such as 1h30m or a number of seconds, got {kind(value)}")
    return value


def _checked(parse: Callable[[str], Any]) -> Callable[[Any], str]:
    """A parser of text that is kept as it is written, once `parse` takes it."""

    def read(value: Any) -> str:
        text = _text(value)
        parse(text)
        return text

    return read


def _between(parse: Callable[[object], int], low: int, high: int, expected: str) -> Parser:
    def read(value: Any) -> int:
        number = parse(_scalar(value))
        if not low <= number <= high:
            raise units.refusal(expected, value)
        return number

    return read


def _above_zero(parse: Callable[[object], int], expected: str) -> Parser:
    return _between(parse, 1, 1 << 62, expected)


def _duration(low_us: int, high_us: int) -> Parser:
    low, high = (units.format_duration(us / US_PER_S) for us in (low_us, high_us))
    return _between(units.parse_duration, low_us, high_us, f"a time from {low} to {high}")
