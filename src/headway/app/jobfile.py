"""The job file: YAML in, a checked `JobSpec` out, or one `UserError` that names file, line and key."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any, TypeVar

import yaml

from headway.app.sbatch import is_script, parse_script
from headway.core import units
from headway.core.errors import UserError
from headway.core.model import (
    TASKS_MAX,
    Checkpoint,
    JobSpec,
    Model,
    Parallelism,
    Profiling,
    Progress,
    Resources,
    StopRule,
    shares_ppm,
    validate,
)
from headway.workloads.yamlmarks import FILE_BYTES_MAX, Marks, Parser, compose

PARTITION_SUM_ERROR_MAX = 1e-6

T = TypeVar("T")


class _Reader(Marks):
    """Reads the nodes of one job file."""

    def env(self, node: yaml.Node, key: str) -> tuple[tuple[str, str], ...]:
        return tuple((name, self.scalar(value, path)) for name, _, value, path in self.items(node, key))

    def gpu(self, node: yaml.Node, key: str) -> tuple[units.GpuDemand, ...]:
        if not isinstance(node, yaml.MappingNode):
            return self.text_as(units.parse_gpus)(node, key)
        lists = self.section(node, key, {"any_of": self.sequence})
        path = f"{key}.any_of"
        wanted = [self.scalar(item, path) for item in lists.get("any_of", [])]
        for item, text in zip(lists.get("any_of", []), wanted, strict=True):
            try:
                units.parse_gpu(text)
            except ValueError as error:
                self.fail(str(error), item, path)
        try:
            return units.parse_gpus({"any_of": wanted})
        except ValueError as error:
            self.fail(str(error), node, path)

    def resources(self, node: yaml.Node, key: str) -> dict[str, Any]:
        return self.section(
            node,
            key,
            {
                "gpu": self.gpu,
                "cpus": self.text_as(units.parse_cpus),
                "memory": self.text_as(units.parse_size),
                "network": self.text_as(units.parse_rate),
            },
        )

    def bounds(self, node: yaml.Node, key: str) -> tuple[int, int, int]:
        """Return (start, least, most) of ``4``, ``1..8`` (starts with 1) or ``{range: 1..8, start: 4}``."""
        within = self.text_as(lambda value: units.parse_range(value, TASKS_MAX))
        if not isinstance(node, yaml.MappingNode):
            low, high = within(node, key)
            return low, low, high
        start = self.text_as(lambda value: units.parse_int(value, 0, TASKS_MAX))
        values = self.section(node, key, {"range": within, "start": start})
        if "range" not in values:
            self.fail("expected a range LOW..HIGH, got nothing", node, f"{key}.range")
        low, high = values["range"]
        return values.get("start", low), low, high

    def parallelism(self, node: yaml.Node, key: str) -> Parallelism:
        number = self.text_as(lambda value: units.parse_int(value, 1, TASKS_MAX))
        values = self.section(
            node,
            key,
            {
                "data": self.bounds,
                "pipeline": number,
                "tensor": number,
                "cut": self.scalar,
                "width": number,
                "sync": self.scalar,
                "servers": self.bounds,
            },
        )
        for name, least in (("data", 1), ("servers", 0)):
            if name in values:
                start, low, high = values[name]
                if low < least:
                    message = f"expected a whole number of {least} or more, got {low}"
                    raise UserError(message, file=self.file, line=self.lines[f"{key}.{name}"], key=f"{key}.{name}")
                values |= {name: start, f"{name}_min": low, f"{name}_max": high}
        if values.get("servers_max"):
            values.setdefault("sync", "parameter-server")
        elif values.get("sync") == "parameter-server" and "servers" not in values:
            values["servers"] = 1
        return Parallelism(**values)

    def partitions(self, node: yaml.Node, key: str) -> tuple[int, ...]:
        shares = [self.text_as(units.parse_frac)(item, key) for item in self.sequence(node, key)]
        if abs(sum(shares) - 1) > PARTITION_SUM_ERROR_MAX:
            self.fail(f"expected shares that add up to 1, got a sum of {sum(shares):.9g}", node, key)
        return shares_ppm(shares)

    def model(self, node: yaml.Node, key: str) -> Model:
        values = self.section(
            node,
            key,
            {
                "name": self.scalar,
                "parameters": self.text_as(units.parse_count),
                "partitions": self.partitions,
                "edge_bytes": self.text_as(units.parse_size),
                "sync_bytes": self.text_as(units.parse_size),
            },
        )
        return Model(**values)

    def progress(self, node: yaml.Node, key: str) -> Progress:
        values = self.section(
            node,
            key,
            {
                "loss": self.scalar,
                "accuracy": self.scalar,
                "mode": self.scalar,
                "total": self.text_as(units.parse_count),
                "unit": self.scalar,
                "pattern": self.scalar,
                "mlflow": self.text_as(_parse_bool),
            },
        )
        return Progress(**values)

    def stop(self, node: yaml.Node, key: str) -> StopRule:
        def rules(value: yaml.Node, path: str) -> tuple[str, ...]:
            return tuple(self.scalar(item, path) for item in self.sequence(value, path))

        return StopRule(**self.section(node, key, {"rule": self.scalar, "allow": rules}))

    def checkpoint(self, node: yaml.Node, key: str) -> Checkpoint:
        duration = self.text_as(_parse_seconds)
        times = {name: duration for name in ("grace", "every", "save", "restore")}
        values = self.section(node, key, {"dir": self.scalar, **times})
        return Checkpoint(**{name if name == "dir" else f"{name}_s": value for name, value in values.items()})

    def profiling(self, node: yaml.Node, key: str) -> Profiling:
        trials = self.text_as(lambda value: units.parse_int(value, 0, 10_000))
        values = self.section(node, key, {"trials": trials, "budget": self.text_as(units.parse_frac)})
        return Profiling(**{"budget_frac" if name == "budget" else name: v for name, v in values.items()})

    def job(self, root: yaml.Node) -> dict[str, Any]:
        """Return the fields of `JobSpec` that the file gives."""
        text, duration, whole = self.scalar, self.text_as(_parse_seconds), self.text_as(units.parse_int)
        fraction = self.text_as(units.parse_frac)
        parsers: dict[str, Parser] = {
            "name": text,
            "queue": text,
            "priority": whole,
            "urgency": whole,
            "setup": text,
            "run": text,
            "workdir": text,
            "env": self.env,
            "resources": lambda node, key: _resources(self.resources(node, key), Resources()),
            "server_resources": self.resources,
            "share_gpu": self.text_as(_parse_bool),
            "parallelism": self.parallelism,
            "model": self.model,
            "progress": self.progress,
            "goal": lambda node, key: self.section(node, key, {"accuracy": fraction}),
            "stop": self.stop,
            "deadline": duration,
            "time_limit": duration,
            "estimate": duration,
            "checkpoint": self.checkpoint,
            "retry": lambda node, key: self.section(node, key, {"max": whole}),
            "profiling": self.profiling,
            "group": text,
        }
        values = self.section(root, "", parsers)
        for name in ("deadline", "time_limit", "estimate"):
            if name in values:
                values[f"{name}_s"] = values.pop(name)
        for section, key, field in (("goal", "accuracy", "goal_accuracy"), ("retry", "max", "retry_max")):
            if key in (given := values.pop(section, {})):
                values[field] = given[key]
        if "server_resources" in values:
            # A server takes no GPU unless it asks for one, and what else isn't given is as for a worker.
            worker: Resources = values.get("resources", Resources())
            none = {"gpu": (units.GpuDemand(milli=0),)}
            values["server_resources"] = _resources(none | values["server_resources"], worker)
        return values


def _resources(values: Mapping[str, Any], default: Resources) -> Resources:
    return Resources(
        gpu_alternatives=values.get("gpu", default.gpu_alternatives),
        cpus_milli=values.get("cpus", default.cpus_milli),
        memory_bytes=values.get("memory", default.memory_bytes),
        network_bytes_per_s=values.get("network", default.network_bytes_per_s),
    )


def _parse_seconds(value: object) -> float:
    return units.parse_duration(value) / units.US_PER_S


def _parse_bool(value: object) -> bool:
    choices = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    word = str(value).lower()
    if word not in choices:
        raise units.refusal("true or false", value)
    return choices[word]


def parse_job(text: str, *, file: str = "job", name: str = "job") -> JobSpec:
    """Return the checked spec of a job file's text.

    ``file`` is what errors call it; ``name`` the job's name where the file gives none. UserError with file,
    line and key for the first thing that is wrong: over 1 MB, no YAML, aliases, tags, unknown or repeated
    keys, values.
    """
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise UserError(f"expected a job file of at most {FILE_BYTES_MAX} bytes", file=file)
    root = compose(text, file, "a job")
    reader = _Reader(file)
    spec = JobSpec(**{"name": name} | reader.job(root))
    refuse_problems(spec, file, reader.lines)
    return spec


def refuse_problems(spec: JobSpec, file: str, lines: Mapping[str, int]) -> None:
    """Raise UserError for the first problem, in the order of the file."""

    def line(key: str) -> int:
        while key and key not in lines:
            key = key.rpartition(".")[0]
        return lines.get(key, 1 if lines else 0)

    if problems := validate(spec):
        first = min(problems, key=lambda problem: line(problem.key))
        message = f"expected {first.expected}, got {first.got}"
        raise UserError(message, file=file, line=line(first.key), key=first.key)


def load_job(path: str | os.PathLike[str]) -> JobSpec:
    """Return the checked spec of a job file; the job is named after the file where it gives no name.

    UserError as `parse_job`, and for a file that is missing, unreadable, a directory, empty or not UTF-8.
    """
    return parse_job(_text(path), file=os.fspath(path), name=Path(path).stem)


def load_jobs(path: str | os.PathLike[str], environment: Mapping[str, str]) -> tuple[list[JobSpec], list[str]]:
    """Return the checked specs of a job file, or of a script with #SBATCH lines (several where it is an array), and what to tell
    of them. `environment`: where a script's `--export` finds variables. UserError as `load_job`, with the line of the option.
    """
    text, file = _text(path), os.fspath(path)
    if not is_script(text):
        return [parse_job(text, file=file, name=Path(path).stem)], []
    now = datetime.now().astimezone()
    specs, lines, notes = parse_script(text, file=file, name=Path(path).stem, environment=environment, now=now)
    for spec in specs:
        refuse_problems(spec, file, {"": 1, **lines})
    return specs, notes


def _text(path: str | os.PathLike[str]) -> str:
    """Return the text of a job file or a script."""
    file = os.fspath(path)
    try:
        with open(path, "rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(f"can't read the job file: {reason or error}", file=file) from None
    if b"\0" in content:
        raise UserError("expected a job file in YAML, got a binary file", file=file)
    if len(content) > FILE_BYTES_MAX:
        raise UserError(f"expected a job file of at most {FILE_BYTES_MAX} bytes", file=file)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError("expected UTF-8 text", file=file, line=line) from None


def job_from_command(
    argv: Sequence[str],
    *,
    name: str | None = None,
    queue: str = "default",
    priority: int | str = 50,
    gpus: int | float | str = 1,
    cpus: int | float | str = 1,
    memory: int | str = 0,
    workers: int | str = 1,
    workdir: str = ".",
    env: Mapping[str, str] | None = None,
    deadline: float | str | None = None,
    time_limit: float | str | None = None,
) -> JobSpec:
    """Return the checked spec of ``headway submit -- COMMAND``.

    ``gpus`` (one whole GPU unless told otherwise), ``cpus`` and ``memory`` are for each of ``workers`` tasks,
    as in a job file; ``workers`` may be a range. The job is named after the program. A command that is one word
    with blanks in it is a line for the shell. UserError with the key of what is wrong.
    """
    if not argv or not argv[0].strip():
        raise UserError("expected a command, got nothing", key="run")

    def read(key: str, parse: Callable[[object], T], value: object) -> T:
        try:
            return parse(value)
        except ValueError as error:
            raise UserError(str(error), key=key) from None

    line = argv[0] if len(argv) == 1 and any(map(str.isspace, argv[0])) else shlex.join(argv)
    program = PurePath(line.split()[0]).name
    low, high = read("parallelism.data", lambda value: units.parse_range(value, TASKS_MAX), workers)
    spec = JobSpec(
        name=name if name is not None else program if units.name_fault(program) is None else "job",
        queue=queue,
        priority=read("priority", units.parse_int, priority),
        run=line,
        workdir=workdir,
        env=tuple((env or {}).items()),
        resources=Resources(
            gpu_alternatives=(read("resources.gpu", units.parse_gpu, gpus),),
            cpus_milli=read("resources.cpus", units.parse_cpus, cpus),
            memory_bytes=read("resources.memory", units.parse_size, memory),
        ),
        parallelism=Parallelism(data=low, data_min=low, data_max=high),
        deadline_s=None if deadline is None else read("deadline", _parse_seconds, deadline),
        time_limit_s=None if time_limit is None else read("time_limit", _parse_seconds, time_limit),
    )
    refuse_problems(spec, "", {})
    return spec
