"""What a running Slurm says of itself, by commands that only read: `sacct`, `sinfo`, `scontrol show config`."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.errors import UserError
from headway.workloads.slurm_cluster import SINFO_FORMAT

PATIENCE_S = 120.0
COLUMNS = (
    "JobID", "Cluster", "User", "Account", "Partition", "QOS", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw",
    "State", "NNodes", "NCPUS", "ReqMem", "ReqTRES", "AllocTRES", "NodeList", "JobName",
)  # fmt: skip

_SETTING = re.compile(r"^(\w+)\s*= (.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Live:
    """The answers of a running Slurm. `scheduler` is the policy nearest to what it is set to do, `priorities` says in words
    what that leaves out."""

    accounting: str
    nodes: str
    asked_at_s: float
    scheduler: str
    priorities: str


def ask(since_s: float) -> Live:
    """Ask the Slurm of this machine for its nodes, and for all jobs of the last `since_s` seconds.

    Raises:
        UserError: a command is missing, fails, or does not answer within two minutes; accounting is off.
    """
    nodes = _output("sinfo", "-N", "-h", "-o", SINFO_FORMAT)
    asked_at_s = time.time()
    accounting = _output(
        "sacct", "--allusers", "--allocations", "--duplicates", "--parsable2", f"--starttime=now-{max(int(since_s), 1)}",
        "--endtime=now", f"--format={','.join(COLUMNS)}",
    )  # fmt: skip
    if accounting.count("\n") < 2:
        raise UserError(
            "the accounting shows no job in this time that you may see (--since 30d looks further back)", file="sacct"
        )
    settings = _settings()
    scheduler = "fifo" if settings.get("SchedulerType") == "sched/builtin" else "fifo-backfill"
    return Live(accounting, nodes, asked_at_s, scheduler, _priorities(settings))


def _settings() -> dict[str, str]:
    """Slurm's settings; empty where they are not shown."""
    try:
        return dict(_SETTING.findall(_output("scontrol", "show", "config")))
    except UserError:
        return {}


def _priorities(settings: dict[str, str]) -> str:
    found = [settings.get(key, "") for key in ("SchedulerType", "PriorityType", "PreemptType")]
    if not any(found):
        return "Slurm is taken to backfill in order of arrival"
    given = ", ".join(text for text in found if text and not text.endswith("/none"))
    return f"Slurm ({given}) is replayed in order of arrival: its own priorities and preemption are not"


def _output(*command: str) -> str:
    """What a command prints. Times as seconds since 1970, and no formats of the user's own."""
    own = ("SACCT_FORMAT", "SINFO_FORMAT", "SLURM_TIME_FORMAT", "SLURM_UNITS")
    environment = {key: value for key, value in os.environ.items() if key not in own}
    try:
        done = subprocess.run(
            command,
            env={**environment, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    except FileNotFoundError:
        raise UserError(
            f"no command '{command[0]}' here: run this where Slurm's commands are, or give --file with what `sacct -P` printed"
        ) from None
    except subprocess.TimeoutExpired:
        raise UserError(f"no answer within {PATIENCE_S:.0f} s", file=command[0]) from None
    except OSError as error:
        raise UserError(f"cannot be run: {error.strerror or error}", file=command[0]) from None
    if done.returncode:
        raise UserError(_complaint(done.stderr.decode("utf-8", "replace"), done.returncode), file=command[0])
    return done.stdout.decode("utf-8", "replace").replace("\0", "")


def _complaint(text: str, code: int) -> str:
    """The line of an error output that says most."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return f"failed with exit code {code}"
    line = lines[-1]
    hint = " (advice needs accounting: slurmdbd)" if "accounting" in line.lower() else ""
    return line + hint
