"""One job as its owner describes it: `JobSpec`, the checks of its values, and its JSON form.

Seconds are floats at this edge (``…_s``); each has an int64-microsecond twin (``…_us``) for core and journal.
A spec is plain frozen data and is not checked when it is made: `validate` lists what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import UserError, shown
from .plain import dump, load
from .shape import (
    CUTS,
    DEFAULT_PARALLELISM,
    DEFAULT_RESOURCES,
    EDGES_MAX,
    PPM,
    SERVER,
    SYNCS,
    TASKS_MAX,
    WORKER,
    Expansion,
    Parallelism,
    Resources,
    Shape,
    TaskDemand,
    default_shape,
    edge_count,
    expand,
    shares_ppm,
    split_evenly,
    split_whole,
    sync_bytes,
)
from .units import (
    ALTERNATIVES_MAX,
    COUNT_MAX,
    CPUS_MAX,
    DURATION_MAX_US,
    ENV_NAME,
    SIZE_MAX_BYTES,
    US_PER_S,
    GpuDemand,
    is_gpu_demand,
    is_number,
    is_text,
    name_fault,
)

__all__ = [
    "CUTS",
    "EDGES_MAX",
    "METRIC_MODES",
    "PPM",
    "PROGRESS_UNITS",
    "SCHEMA_VERSION",
    "SERVER",
    "STOP_RULES",
    "SYNCS",
    "TASKS_MAX",
    "WORKER",
    "Checkpoint",
    "Expansion",
    "GpuDemand",
    "JobSpec",
    "Model",
    "Parallelism",
    "Problem",
    "Profiling",
    "Progress",
    "Resources",
    "Shape",
    "StopRule",
    "TaskDemand",
    "default_shape",
    "edge_count",
    "expand",
    "from_json",
    "shares_ppm",
    "split_evenly",
    "split_whole",
    "sync_bytes",
    "to_json",
    "validate",
]

SCHEMA_VERSION = 1
STOP_RULES = ("fixed", "optstop", "accuracy")
METRIC_MODES = ("max", "min")
PROGRESS_UNITS = ("step", "epoch")
DEFAULT_URGENCY = 5
SECONDS_MAX = DURATION_MAX_US // US_PER_S
TEXT = "text that UTF-8 can hold, without NUL"
SUM_MAX = 2**62  # what a job's tasks book or send together must fit an int64


def _us(seconds: float) -> int:
    return round(seconds * US_PER_S)


def _us_or_none(seconds: float | None) -> int | None:
    return None if seconds is None else _us(seconds)


@dataclass(frozen=True, slots=True)
class Model:
    """The model being trained; what is None or empty is unknown and is estimated.

    ``partitions`` are the shares of one replica's partitions in ppm, summing to 1,000,000; ``edge_bytes`` go
    over each edge of the graph in an iteration; ``sync_bytes`` is the gradient of one replica.
    """

    name: str = ""
    parameters: int | None = None
    partitions: tuple[int, ...] = ()
    edge_bytes: int | None = None
    sync_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Which metrics a job reports, and how far it has to go: ``total`` units, None if unknown.

    ``mode`` says whether the accuracy is better when larger (``max``) or smaller. ``pattern`` is a regular
    expression with named groups for lines of standard output; empty: the built-in patterns alone. ``mlflow``: its tasks
    log to Headway as to an MLflow server.
    """

    loss: str = "loss"
    accuracy: str = ""
    mode: str = "max"
    total: int | None = None
    unit: str = "step"
    pattern: str = ""
    mlflow: bool = False


@dataclass(frozen=True, slots=True)
class StopRule:
    """When a job may stop before its total, and to which rules an overloaded cluster may change that."""

    rule: str = "fixed"
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a job saves itself. An empty ``dir``: it doesn't. Times are None where unknown."""

    dir: str = ""
    grace_s: float = 30.0
    every_s: float | None = None
    save_s: float | None = None
    restore_s: float | None = None

    @property
    def grace_us(self) -> int:
        """From SIGTERM to SIGKILL."""
        return _us(self.grace_s)

    @property
    def every_us(self) -> int | None:
        """From one save to the next."""
        return _us_or_none(self.every_s)

    @property
    def save_us(self) -> int | None:
        """How long a save takes."""
        return _us_or_none(self.save_s)

    @property
    def restore_us(self) -> int | None:
        """How long a restore and the warm-up take."""
        return _us_or_none(self.restore_s)


@dataclass(frozen=True, slots=True)
class Profiling:
    """What a search for the best shape may cost: trials, and their share of the job's run time."""

    trials: int = 15
    budget_frac: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job as it was handed in; the fields are the keys of the job file. See `validate` for their ranges.

    ``resources`` are one worker's; ``server_resources`` a parameter server's (None: a worker's without its
    GPU). ``task_demands``, where tasks differ, stand for both in the order of `Expansion`, and fix the shape.
    """

    name: str
    user: str = ""
    queue: str = "default"
    priority: int = 50
    urgency: int = DEFAULT_URGENCY
    setup: str = ""
    run: str = ""
    workdir: str = "."
    env: tuple[tuple[str, str], ...] = ()
    resources: Resources = DEFAULT_RESOURCES
    server_resources: Resources | None = None
    share_gpu: bool = False
    parallelism: Parallelism = DEFAULT_PARALLELISM
    model: Model = Model()
    progress: Progress = Progress()
    goal_accuracy: float | None = None
    stop: StopRule = StopRule()
    deadline_s: float | None = None
    time_limit_s: float | None = None
    checkpoint: Checkpoint = Checkpoint()
    retry_max: int = 3
    profiling: Profiling | None = None
    group: str = ""
    estimate_s: float | None = None
    task_demands: tuple[TaskDemand, ...] | None = None

    @property
    def deadline_us(self) -> int | None:
        """From submission to when the job should be done."""
        return _us_or_none(self.deadline_s)

    @property
    def time_limit_us(self) -> int | None:
        """The longest that the job may run."""
        return _us_or_none(self.time_limit_s)

    @property
    def estimate_us(self) -> int | None:
        """How long the owner thinks that the job runs."""
        return _us_or_none(self.estimate_s)


def to_json(spec: JobSpec, *, compact: bool = False) -> dict[str, Any]:
    """Return a spec as JSON values, under ``schema``; ``compact`` leaves out what equals its default."""
    return {"schema": SCHEMA_VERSION, **dump(spec, compact)}


def from_json(data: Mapping[str, Any]) -> JobSpec:
    """Return the spec of `to_json`; UserError with the key for an unknown key, a wrong type or version.

    The values are not checked beyond their types: see `validate`.
    """
    if not isinstance(data, Mapping):
        raise UserError(f"expected a job, an object, got {shown(data)}")
    version = data.get("schema")
    if isinstance(version, bool) or version != SCHEMA_VERSION:
        raise UserError(f"expected {SCHEMA_VERSION}, got {shown(version)}", key="schema")
    return load(JobSpec, {key: value for key, value in data.items() if key != "schema"}, "")


def _is_pattern(pattern: str) -> bool:
    """Whether a pattern is empty, or a regular expression with a named group."""
    try:
        return not pattern or (len(pattern) <= 1000 and bool(re.compile(pattern).groupindex))
    except (re.error, RecursionError, OverflowError):
        return False


@dataclass(frozen=True, slots=True)
class Problem:
    """One value of a spec that is wrong: its key in the job file, what was expected, and what was given."""

    key: str
    expected: str
    got: str

    def __str__(self) -> str:
        return f"{self.key}: expected {self.expected}, got {self.got}"


def validate(spec: JobSpec, *, runnable: bool = True) -> list[Problem]:
    """Return what is wrong with a spec, or an empty list; ``runnable=False`` permits an empty ``run``."""
    problems: list[Problem] = []

    def check(good: bool, key: str, expected: str, got: object) -> bool:
        if not good:
            problems.append(Problem(key, expected, shown(got)))
        return good

    def whole(key: str, value: object, low: int, high: int) -> bool:
        good = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return good or check(False, key, f"a whole number from {low} to {high}", value)

    def seconds(key: str, value: float | None, *, above_zero: bool = True) -> None:
        good = value is None or (is_number(value) and 0 <= value <= SECONDS_MAX)
        good = good and (value != 0 or not above_zero)
        check(good, key, "a duration above 0, of at most 100 years" if above_zero else "a duration", value)

    def choice(key: str, value: object, known: tuple[str, ...]) -> None:
        if value not in known:
            check(False, key, f"one of {', '.join(known)}", value)

    def resources(key: str, books: Resources) -> None:
        kinds = books.gpu_alternatives
        good = 1 <= len(kinds) <= ALTERNATIVES_MAX and all(map(is_gpu_demand, kinds))
        check(good, f"{key}.gpu", "a positive number or KIND:N", kinds)
        cores = books.cpus_milli
        good = type(cores) is int and 1 <= cores <= CPUS_MAX * 1000
        check(good, f"{key}.cpus", f"a number of cores above 0, of at most {CPUS_MAX}", cores / 1000)
        whole(f"{key}.memory", books.memory_bytes, 0, SIZE_MAX_BYTES)
        whole(f"{key}.network", books.network_bytes_per_s, 0, SIZE_MAX_BYTES)

    for key, name, required in (
        ("name", spec.name, True),
        ("user", spec.user, False),
        ("queue", spec.queue, True),
        ("group", spec.group, False),
        ("model.name", spec.model.name, False),
        ("progress.loss", spec.progress.loss, False),
        ("progress.accuracy", spec.progress.accuracy, False),
    ):
        # A metric or a model may be called `val/loss` or `org/model`.
        reason = name_fault(name, slash="." in key) if name or required else None
        check(reason is None, key, f"a name {reason}", name)
    texts = {"setup": spec.setup, "workdir": spec.workdir, "checkpoint.dir": spec.checkpoint.dir}
    for key, text in texts.items():
        check(is_text(text), key, TEXT, text)
    check(is_text(spec.run) and (bool(spec.run.strip()) or not runnable), "run", "a command", spec.run)
    for name, value in spec.env:
        check(ENV_NAME.fullmatch(name) is not None, "env", "names of letters, digits and _", name)
        check(is_text(value), f"env.{name}", TEXT, value)

    whole("priority", spec.priority, 0, 100)
    whole("urgency", spec.urgency, 1, 10)
    whole("retry.max", spec.retry_max, 0, 1_000_000)
    resources("resources", spec.resources)
    if spec.server_resources is not None:
        resources("server_resources", spec.server_resources)

    seconds("deadline", spec.deadline_s)
    seconds("time_limit", spec.time_limit_s)
    seconds("estimate", spec.estimate_s)
    seconds("checkpoint.grace", spec.checkpoint.grace_s, above_zero=False)
    seconds("checkpoint.every", spec.checkpoint.every_s)
    seconds("checkpoint.save", spec.checkpoint.save_s, above_zero=False)
    seconds("checkpoint.restore", spec.checkpoint.restore_s, above_zero=False)

    goal = spec.goal_accuracy
    check(goal is None or (is_number(goal) and 0 <= goal <= 1), "goal.accuracy", "a number from 0 to 1", goal)
    choice("progress.mode", spec.progress.mode, METRIC_MODES)
    choice("progress.unit", spec.progress.unit, PROGRESS_UNITS)
    if spec.progress.total is not None:
        whole("progress.total", spec.progress.total, 1, COUNT_MAX)
    pattern = spec.progress.pattern
    check(_is_pattern(pattern), "progress.pattern", "a regular expression with named groups", pattern)
    choice("stop.rule", spec.stop.rule, STOP_RULES)
    for rule in spec.stop.allow:
        choice("stop.allow", rule, STOP_RULES)
    if spec.profiling is not None:
        whole("profiling.trials", spec.profiling.trials, 0, 10_000)
        share = spec.profiling.budget_frac
        check(is_number(share) and 0 <= share <= 1, "profiling.budget", "a share from 0 to 1", share)

    for key, count, most in (
        ("model.parameters", spec.model.parameters, COUNT_MAX),
        ("model.edge_bytes", spec.model.edge_bytes, SIZE_MAX_BYTES),
        ("model.sync_bytes", spec.model.sync_bytes, SIZE_MAX_BYTES),
    ):
        if count is not None:
            whole(key, count, 0, most)
    choice("parallelism.cut", spec.parallelism.cut, CUTS)
    choice("parallelism.sync", spec.parallelism.sync, SYNCS)
    _validate_shapes(spec, check, whole)
    return problems


_Check = Callable[[bool, str, str, object], bool]
_Whole = Callable[[str, object, int, int], bool]


def _validate_shapes(spec: JobSpec, check: _Check, whole: _Whole) -> None:
    """Check what follows from the job's shapes: the largest one decides whether the job is too big."""
    par = spec.parallelism
    least_servers = 1 if par.sync == "parameter-server" else 0
    most_servers = TASKS_MAX if least_servers else 0
    sane = [
        whole("parallelism.data", par.data_min, 1, TASKS_MAX)
        and whole("parallelism.data", par.data_max, par.data_min, TASKS_MAX)
        and whole("parallelism.data", par.data, par.data_min, par.data_max),
        whole("parallelism.pipeline", par.pipeline, 1, TASKS_MAX),
        whole("parallelism.tensor", par.tensor, 1, TASKS_MAX),
        par.cut != "layered" or whole("parallelism.width", par.width, 1, TASKS_MAX),
        whole("parallelism.servers", par.servers_min, least_servers, most_servers)
        and whole("parallelism.servers", par.servers_max, par.servers_min, most_servers)
        and whole("parallelism.servers", par.servers, par.servers_min, par.servers_max),
    ]
    if not all(sane):
        return
    largest = Shape(par.data_max, par.pipeline, par.tensor, par.servers_max)
    if not check(largest.tasks <= TASKS_MAX, "parallelism", f"at most {TASKS_MAX} tasks", largest.tasks):
        return
    edges = edge_count(par, largest)
    check(edges <= EDGES_MAX, "parallelism", f"a graph of at most {EDGES_MAX} edges", edges)

    tasks_max = largest.tasks
    for key, total in (
        ("resources.memory", spec.resources.memory_bytes * tasks_max),
        ("resources.network", spec.resources.network_bytes_per_s * tasks_max),
        ("model.edge_bytes", (spec.model.edge_bytes or 0) * edges),
        ("model.sync_bytes", sync_bytes(spec) * tasks_max),
    ):
        if total > SUM_MAX:
            check(False, key, f"at most 2^62 for all {tasks_max} tasks together", total)

    shares = spec.model.partitions
    if shares:
        counts = par.partitions
        check(len(shares) == counts, "model.partitions", f"pipeline * tensor = {counts} shares", len(shares))
        good = all(type(share) is int and share >= 0 for share in shares) and sum(shares) == PPM
        check(good, "model.partitions", "shares of 0 or more that add up to 1", shares)
    if spec.task_demands is not None:
        check(not par.elastic, "task_demands", "a job of one shape", f"data {par.data_min}..{par.data_max}")
        tasks, given = default_shape(spec).tasks, len(spec.task_demands)
        check(tasks == given, "task_demands", f"the demands of {tasks} tasks", given)
        sound_all = tasks == given and not par.elastic
        for i, demand in enumerate(spec.task_demands):
            key = f"task_demands[{i}]"
            sound = is_gpu_demand(GpuDemand("", demand.gpu_milli))
            sound = check(sound, f"{key}.gpu_milli", "thousandths of whole GPUs, or below 1000", demand.gpu_milli)
            sound &= whole(f"{key}.cpus_milli", demand.cpus_milli, 1, CPUS_MAX * 1000)
            sound &= whole(f"{key}.memory_bytes", demand.memory_bytes, 0, SIZE_MAX_BYTES)
            sound &= whole(f"{key}.network_bytes_per_s", demand.network_bytes_per_s, 0, SIZE_MAX_BYTES)
            sound_all &= whole(f"{key}.share_ppm", demand.share_ppm, 0, PPM) and sound
        if sound_all:
            each = par.partitions
            sums = [sum(d.share_ppm for d in spec.task_demands[i * each : (i + 1) * each]) for i in range(par.data)]
            check(set(sums) == {PPM}, "task_demands", f"shares that add up to {PPM} in each replica", sums)
