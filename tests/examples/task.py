"""One process of an example job, forked off a process that has imported torch: an import costs more than these runs do."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence


def run_task(script: str, arguments: Sequence[str], environment: Mapping[str, str], output: str) -> None:
    """Run a script with this environment alone of Headway's, its output in a file."""
    for name in [name for name in os.environ if name.startswith("HEADWAY_")]:
        del os.environ[name]
    os.environ.update(environment)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")
