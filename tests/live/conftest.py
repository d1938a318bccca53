"""Real controllers on a home of their own, as `headway up` starts them, and nothing left running at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headway.engines import proc

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0


def until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Wait for a condition; its value."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"in vain: {what}")


class Cluster:
    """One home: controllers that come and go, and the command line."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "home"
        self.scratch = root / "scratch"
        self.scratch.mkdir()
        self.controllers: list[subprocess.Popen[str]] = []
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_") or key == "HEADWAY_CACHE"}
        self.environment = {**clean, "HEADWAY_HOME": str(self.home), "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"}

    def up(self, *options: str) -> subprocess.Popen[str]:
        """Start a controller and wait until it listens."""
        started = self.start_up("--round", "0.2", *options)
        assert started.stdout is not None
        line = started.stdout.readline()
        if not line:
            started.wait(10)
            raise AssertionError(f"headway up: {(self.root / 'up.err').read_text()}")
        self.ready: dict[str, Any] = json.loads(line)
        return started

    def start_up(self, *options: str) -> subprocess.Popen[str]:
        with (self.root / "up.err").open("ab") as errors:
            started = subprocess.Popen(
                [sys.executable, "-m", "headway.cli", "up", "--json", *options],
                env=self.environment,
                cwd=self.scratch,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.controllers.append(started)
        return started

    def errors(self) -> str:
        return (self.root / "up.err").read_text()

    def run(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """One command; checks its exit code, and that an error is one line."""
        done = subprocess.run(
            [sys.executable, "-m", "headway.cli", *arguments],
            env=self.environment,
            cwd=self.scratch,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, done.stderr
        if done.returncode == 2:
            assert done.stderr.startswith("headway: ") and done.stderr.count("\n") == 1, done.stderr
        return done

    def json(self, verb: str, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(verb, "--json", *arguments, code=code).stdout)

    def ask(self, path: str) -> Any:
        """The controller's answer, without a command."""
        token = Path(self.ready["token_file"]).read_text().strip()
        answer = httpx.get(self.ready["url"] + path, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def job(self, job: str) -> Any:
        return self.ask(f"/v1/jobs/{job}")

    def end(self, controller: subprocess.Popen[str], number: int = signal.SIGTERM) -> int:
        """Signal a controller, and wait for its end."""
        controller.send_signal(number)
        code = controller.wait(PATIENCE_S)
        if controller.stdout is not None:
            controller.stdout.close()
        return code

    def end_all(self) -> None:
        """End what this test has started: controllers, and what they have left, found by the identities on the disk."""
        for controller in self.controllers:
            if controller.poll() is None:
                controller.kill()
                controller.wait()
            if controller.stdout is not None:
                controller.stdout.close()
        for path in self.home.glob("engine/attempts/*/*.json"):
            if path.stem.isdigit():
                identity = json.loads(path.read_text())
                for pid, ticks in (("pid", "start_ticks"), ("task_pid", "task_start_ticks")):
                    found = proc.process(identity[pid]) if identity[pid] else None
                    if found is not None and found.start_ticks == identity[ticks]:
                        for one in [*proc.descendants(found.pid), found]:
                            proc.kill(one, signal.SIGKILL)
        for path in self.home.glob("engine/nodes/*/agent.json"):
            card = json.loads(path.read_text())
            if (agent := proc.lives(card["pid"], card["start_ticks"])) is not None:
                proc.kill(agent, signal.SIGTERM)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            made.end_all()
