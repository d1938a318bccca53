"""A script with #SBATCH lines as jobs: the common options of sbatch, each with its line. What they become is in docs/sbatch.md.

Slurm runs a script once and `srun` makes the tasks; here each worker runs the script, and `srun` in it is the command behind it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NoReturn, TypeVar

from headway.app import sbatch_values as values
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.model import Checkpoint, JobSpec, Parallelism, Resources
from headway.core.units import US_PER_S, GpuDemand, refusal

T = TypeVar("T")

DIRECTIVE = "#SBATCH"
SHORT = {
    "A": "account", "a": "array", "C": "constraint", "c": "cpus-per-task", "D": "chdir", "d": "dependency", "e": "error",
    "G": "gpus", "H": "hold", "h": "help", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "o": "output", "p": "partition", "Q": "quiet", "q": "qos",
    "s": "oversubscribe", "t": "time", "v": "verbose", "W": "wait", "w": "nodelist", "x": "exclude",
}  # fmt: skip
TAKEN = (
    "account array chdir cpus-per-task deadline export gpus gpus-per-node gpus-per-task gres job-name mem mem-per-cpu "
    "mem-per-gpu nice nodes no-requeue ntasks ntasks-per-node partition requeue signal time"
).split()
FLAGS = frozenset(
    (
        "hold no-kill no-requeue oversubscribe parsable quiet requeue verbose wait overcommit spread-job test-only contiguous "
        "use-min-nodes reboot"
    ).split()
)
"""Options without a value."""
OPTIONAL = frozenset("nice exclusive propagate get-user-env no-kill".split())
"""Options whose value may be left out."""
IGNORED = frozenset(
    (
        "acctg-freq comment cpu-freq distribution error get-user-env gpu-bind gpu-freq hint input kill-on-invalid-dep mail-type "
        "mail-user mem-bind no-kill open-mode output overcommit oversubscribe parsable profile propagate qos quiet spread-job "
        "switches threads-per-core time-min tmp use-min-nodes verbose wait wckey"
    ).split()
)
"""Options that don't change what a job is here; they are passed over, and it is said."""
REFUSED = {
    "hold": "hand it in with: headway submit --hold",
    "dependency": "jobs can't wait for others here: hand it in when those have ended (headway submit --wait)",
    "begin": "jobs can't wait for a time here",
    "exclusive": "GPUs are never shared here unless a job file says share_gpu",
    "constraint": "ask for a kind of GPU: --gpus=a100:1",
    "nodelist": "which nodes a job gets is up to the policy",
    "exclude": "which nodes a job gets is up to the policy; operators can drain one",
    "licenses": "there are no licenses here",
    "reservation": "there are no reservations here",
    "clusters": "HEADWAY_URL says which cluster",
    "wrap": "hand the command in with: headway submit -- COMMAND",
}
"""Options that ask for what there is not, and what to do instead."""
ARRAY_MAX = 1_000
PRIORITY, NICE_PER_PRIORITY = 50, 10
SRUN = (
    'srun() { while [ $# -gt 0 ]; do case "$1" in --) shift; break;; -[ACcDdeGiJLMmNnopqtwx]) shift 2;; -*) shift;; *) break;; '
    'esac; done; "$@"; }'
)
"""What `srun` is in a script: the command behind its options, in this worker."""
_SRUN_USED = re.compile(r"^[ \t]*srun\b", re.MULTILINE)
_PLAIN_SHELL = frozenset({"/bin/sh", "/usr/bin/sh"})


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a script: its long name, its value, and where it stands."""

    name: str
    value: str
    line: int


@dataclass(slots=True)
class Script:
    """The options of a script, the last of each name; and what to tell of it."""

    file: str
    text: str
    options: dict[str, Option] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fail(self, name: str, message: str) -> NoReturn:
        raise UserError(message, file=self.file, line=self.options[name].line, key=f"--{name}")

    def get(self, name: str, parse: Callable[[str], T], default: T) -> T:
        """An option's value; `default` if it is not given."""
        option = self.options.get(name)
        if option is None:
            return default
        try:
            return parse(option.value)
        except ValueError as error:
            self.fail(name, str(error))

    def first(self, *names: str) -> str:
        """The first of these options that is given."""
        return next((name for name in names if name in self.options), "")


def is_script(text: str) -> bool:
    """Whether a file is a script rather than a job file."""
    return text.startswith("#!") or any(line.startswith(DIRECTIVE) for line in text.splitlines()[:200])


def parse_script(
    text: str, *, file: str, name: str, environment: Mapping[str, str], now: datetime
) -> tuple[list[JobSpec], dict[str, int], list[str]]:
    """The jobs of a script (several where it is an array), the line that each key comes from, and what to tell of it.

    `name`: of a job whose script gives none. `environment`: where `--export=NAME` looks; `now`: what `--deadline` counts from.

    Raises:
        UserError: the first option that is not known, not possible here, or has a wrong value, with its line.
    """
    script = _read(text, file)
    passed_over = sorted(f"--{name}" for name in script.options.keys() & IGNORED)
    if passed_over:
        script.notes.append(f"passed over: {', '.join(passed_over)}" + _where_output_goes(script))
    workers, least, most, per_node = _workers(script)
    gpu = _gpus(script, workers, per_node)
    cpus_milli = 1000 * script.get("cpus-per-task", values.whole, 1)
    spec = JobSpec(
        name=script.get("job-name", str, name),
        queue=script.get("partition", values.one_word, script.get("account", values.one_word, "default")),
        priority=PRIORITY - script.get("nice", _nice, 0),
        run=_command(script),
        workdir=script.get("chdir", str, "."),
        env=script.get("export", lambda value: _exported(script, value, environment), ()),
        resources=Resources(
            gpu_alternatives=(gpu,), cpus_milli=cpus_milli, memory_bytes=_memory(script, gpu, cpus_milli, per_node)
        ),
        parallelism=Parallelism(data=workers, data_min=least, data_max=most),
        time_limit_s=_seconds(script.get("time", values.time_limit_us, None)),
        deadline_s=_seconds(script.get("deadline", lambda value: values.deadline_us(value, now), None)),
        checkpoint=_checkpoint(script),
        retry_max=0 if "no-requeue" in script.options else 3,
    )
    keys = {key: script.options[option].line for key, option in _KEYS if option in script.options}
    return _array(script, spec), keys, script.notes


_KEYS = (
    ("name", "job-name"), ("queue", "account"), ("queue", "partition"), ("priority", "nice"), ("workdir", "chdir"),
    ("env", "export"), ("resources.gpu", "gres"), ("resources.gpu", "gpus"), ("resources.cpus", "cpus-per-task"),
    ("resources.memory", "mem"), ("time_limit", "time"), ("deadline", "deadline"), ("checkpoint.grace", "signal"),
    ("parallelism.data", "nodes"), ("parallelism.data", "ntasks"),
)  # fmt: skip


# -- lines -----------------------------------------------------------------------------------------------------------
def _read(text: str, file: str) -> Script:
    """The options that stand before the first command, as Slurm reads them."""
    script = Script(file, text)
    if not text.startswith("#!"):
        raise UserError("expected a script that begins with #! and an interpreter, such as #!/bin/bash", file=file, line=1)
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if line.startswith(DIRECTIVE):
            _read_line(script, line.removeprefix(DIRECTIVE), number)
    return script


def _read_line(script: Script, text: str, number: int) -> None:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UserError(f"{DIRECTIVE}: {str(error).lower()}", file=script.file, line=number) from None
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
        elif len(word) > 1 and word.startswith("-") and word[1] in SHORT:
            name, value = SHORT[word[1]], word[2:]
            equals = value and "="
        else:
            raise UserError(f"expected an option of sbatch, got {shown(word)}", file=script.file, line=number)
        _known(script, name, number)
        takes = name not in FLAGS and name not in OPTIONAL
        if takes and not equals:
            if not words:
                raise UserError("expected a value, got nothing", file=script.file, line=number, key=f"--{name}")
            value = words.pop(0)
        script.options[name] = Option(name, value, number)


def _known(script: Script, name: str, number: int) -> None:
    """Refuse an option that means nothing here."""
    if name in REFUSED:
        raise UserError(f"not possible here: {REFUSED[name]}", file=script.file, line=number, key=f"--{name}")
    if name not in TAKEN and name not in IGNORED:
        hint = did_you_mean(name, [*TAKEN, *IGNORED, *REFUSED]) or "; docs/sbatch.md lists those that are taken"
        raise UserError(f"unknown option of sbatch{hint}", file=script.file, line=number, key=f"--{name}")


def _where_output_goes(script: Script) -> str:
    return "; what it prints: headway logs JOB" if script.first("output", "error") else ""


# -- what the options come to ----------------------------------------------------------------------------------------
def _workers(script: Script) -> tuple[int, int, int, int]:
    """How many workers there are: to start with, at least, at most; and on each node."""
    least_nodes, most_nodes = script.get("nodes", values.nodes, (1, 1))
    per_node = script.get("ntasks-per-node", values.whole, 0)
    tasks = script.get("ntasks", values.whole, 0)
    if least_nodes != most_nodes and (tasks or per_node > 1):
        script.fail("nodes", "expected one number of nodes beside a number of tasks, got a range")
    if tasks:
        if not per_node:
            per_node = -(-tasks // least_nodes)
        return tasks, tasks, tasks, per_node
    per_node = per_node or 1
    return least_nodes * per_node, least_nodes * per_node, most_nodes * per_node, per_node


def _gpus(script: Script, workers: int, per_node: int) -> GpuDemand:
    """The GPUs of each worker; none where the script asks for none, as in Slurm."""
    name = script.first("gpus-per-task", "gpus-per-node", "gres", "gpus")
    if not name:
        return GpuDemand(milli=0)
    kind, count = script.get(name, values.gres if name == "gres" else values.gpus, ("", 0))
    shared_by = {"gpus-per-task": 1, "gpus": workers}.get(name, per_node)
    if count % shared_by:
        script.fail(name, f"expected GPUs that {shared_by} workers can share evenly, got {count}")
    return GpuDemand(kind, 1000 * count // shared_by)


def _memory(script: Script, gpu: GpuDemand, cpus_milli: int, per_node: int) -> int:
    """The memory of each worker in bytes; 0: none is booked."""
    name = script.first("mem-per-cpu", "mem-per-gpu", "mem")
    size_bytes = script.get(name, values.memory_bytes, 0) if name else 0
    each = {"mem-per-cpu": cpus_milli / 1000, "mem-per-gpu": gpu.milli / 1000, "mem": 1 / per_node}
    return round(size_bytes * each[name]) if name else 0


def _checkpoint(script: Script) -> Checkpoint:
    if "signal" not in script.options:
        return Checkpoint()
    signal, seconds = script.get("signal", values.signal, ("TERM", 30.0))
    if signal not in ("TERM", "15"):
        script.notes.append(f"--signal: SIGTERM is sent {seconds:g} s before the end, in place of {signal}")
    return Checkpoint(grace_s=seconds)


def _nice(value: str) -> int:
    """By how much a priority is lower: 10 of Slurm's points are one of ours."""
    return max(-PRIORITY, min(PRIORITY, round(values.signed(value or "100") / NICE_PER_PRIORITY)))


def _seconds(us: int | None) -> float | None:
    return None if us is None else us / US_PER_S


def _exported(script: Script, value: str, environment: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The variables that `--export` names. Those of the shell that hands the job in are not taken along."""
    found: dict[str, str] = {}
    for word in values.split_commas(value):
        name, equals, text = word.partition("=")
        if word.upper() in ("ALL", "NIL", "NONE"):
            if word.upper() == "ALL":
                script.notes.append("--export=ALL: the environment is not taken along; name what the job needs: --export=NAME,…")
        elif equals:
            found[name] = text
        elif name in environment:
            found[name] = environment[name]
        else:
            raise refusal("variables that are set here", name)
    return tuple(found.items())


def _command(script: Script) -> str:
    """The script as a command for the shell, run by the interpreter that it names."""
    first, _, body = script.text.partition("\n")
    interpreter = first.removeprefix("#!").strip()
    if not interpreter:
        raise UserError("expected an interpreter behind #!, such as #!/bin/bash", file=script.file, line=1)
    if not any(line.strip() and not line.strip().startswith("#") for line in body.splitlines()):
        raise UserError("expected commands, got none", file=script.file)
    shell = interpreter.split()[0].rpartition("/")[2] in ("sh", "bash", "dash", "ksh", "zsh")
    if shell and _SRUN_USED.search(body):
        body = f"{SRUN}\n{body}"
    return body if interpreter in _PLAIN_SHELL else f"exec {interpreter} -c {shlex.quote(body)}"


def _array(script: Script, spec: JobSpec) -> list[JobSpec]:
    """One job for each index of an array, in one group; the job alone where there is no array."""
    indices = script.get("array", lambda value: values.indices(value, ARRAY_MAX), None)
    if indices is None:
        return [spec]
    low, high = min(indices), max(indices)
    shared = {
        "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
        "SLURM_ARRAY_TASK_MIN": str(low),
        "SLURM_ARRAY_TASK_MAX": str(high),
    }
    own = dict(spec.env)
    return [
        replace(
            spec,
            name=f"{spec.name}_{index}",
            group=spec.name,
            env=tuple({**own, **shared, "SLURM_ARRAY_TASK_ID": str(index)}.items()),
        )
        for index in indices
    ]
