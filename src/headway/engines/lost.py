"""Tasks whose supervisor is gone without a word: what they have left is ended, and their end is written down."""

from __future__ import annotations

import errno
import signal
import sys
from pathlib import Path

from . import cgroup, proc

EXIT_LOST = 128 + signal.SIGKILL
RUNNER_LOST = "runner-lost"
NEVER_STARTED = "never started"
"""Why a start failed of which there is an intent, and nothing more."""


def end_lost(attempt_dir: Path, rank: int, cookie: str) -> bool:
    """One step: kill what lives of the task; once nothing does, write the end. False if it must be done again, soon."""
    identity = proc.read_json(proc.identity_path(attempt_dir, rank))
    if identity is None or proc.exit_path(attempt_dir, rank).exists():
        return True
    group = str(identity.get("cgroup", ""))
    cgroup.kill(group)
    left = proc.orphans(identity, cookie)
    for orphan in left:
        proc.kill(orphan, signal.SIGKILL)
    if left:
        return False
    cgroup.remove(group)
    request = proc.read_json(proc.stop_path(attempt_dir)) or {}
    by = str(request.get("kind", ""))
    return write_end(attempt_dir, rank, EXIT_LOST, signal.SIGKILL, reason=RUNNER_LOST, stopped_by=by)


def write_end(
    attempt_dir: Path, rank: int, code: int, number: int | None = None, *, reason: str = "", stopped_by: str = "",
    start_error: str = "",
) -> bool:  # fmt: skip
    """Write a task's end in the stead of a supervisor that can't. False if that must be tried again."""
    record = proc.exit_record(rank, code, signal_number=number, reason=reason, stopped_by=stopped_by, start_error=start_error)
    try:
        proc.write_json(proc.exit_path(attempt_dir, rank), record, durable=True)
    except FileNotFoundError:
        return True  # The attempt has been given up.
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            (attempt_dir / f"{rank}.reserve").unlink(missing_ok=True)
        sys.stderr.write(f"attempt {attempt_dir.name}, rank {rank}: {error}\n")
        return False
    return True
