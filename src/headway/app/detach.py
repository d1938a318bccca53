"""A controller in the background: `headway up --detach`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.core.errors import UserError
from headway.runtime.home import Home

LOG = "controller.log"
LINE_BYTES_MAX = 1 << 16


def start(arguments: Sequence[str], home: Home, say: Callable[[str], None], environment: Mapping[str, str]) -> dict[str, Any]:
    """Start `headway up` with these arguments in a session of its own, and wait until it listens; what it has announced, and
    its `log`. `environment` is added to this process's. What it writes goes into the log, and up to then also to `say`.

    Raises:
        UserError: it has ended instead; the message is its own.
    """
    home.prepare()
    log = home.root / LOG
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"can't be written: {error.strerror or error}", file=str(log)) from None
    with open(descriptor, "ab") as errors:
        said_from = errors.tell()
        child = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", "up", "--json", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    assert child.stdout is not None
    try:
        line = child.stdout.readline(LINE_BYTES_MAX)
    except KeyboardInterrupt:
        child.terminate()
        raise
    finally:
        child.stdout.close()
    said = _said(log, said_from)
    if not line:
        child.wait()
        raise UserError(said[-1] if said else f"the controller has ended with code {child.returncode}; see {log}")
    for text in said:
        say(text)
    found: dict[str, Any] = json.loads(line)
    child.returncode = 0  # it is not waited for: it outlives this process
    return {**found, "log": str(log)}


def _said(log: Path, offset: int) -> list[str]:
    """The lines of a log from `offset` on, without the program's name before them."""
    with log.open("rb") as file:
        file.seek(offset)
        return [line.removeprefix("headway: ") for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
