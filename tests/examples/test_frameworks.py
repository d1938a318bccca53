"""The callbacks with the real frameworks: figures arrive, SIGTERM makes a checkpoint, the next attempt goes on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.examples.frameworks import STEPS, STOP_AT

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 200.0

pytestmark = [pytest.mark.slow, pytest.mark.live]


def attempts(name: str, directory: Path) -> list[list[dict[str, Any]]]:
    """What the two attempts have told."""
    package = {"huggingface": "transformers", "lightning": "lightning"}[name]
    if find_spec(package) is None or find_spec("torch") is None:
        pytest.skip(f"{package} is not installed: pip install headway[dev-jobs]")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/examples/frameworks.py"), name, str(directory)],
        env={**environment, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    files = [directory / f"reports.{number}" for number in (1, 2)]
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def steps(lines: list[dict[str, Any]]) -> list[int]:
    return [line["step"] for line in lines if "loss" in line]


@pytest.mark.parametrize("name", ["huggingface", "lightning"])
def test_a_training_tells_saves_stops_and_goes_on(tmp_path: Path, name: str) -> None:
    first, second = attempts(name, tmp_path)
    told = [line for line in first + second if "loss" in line]
    assert all(line["total"] == STEPS and 0 < line["loss"] < 2 and 0 <= line["accuracy"] <= 1 for line in told)
    saved = [line for line in first if "saved" in line]
    stopped_at = saved[-1]["step"]
    assert STOP_AT <= stopped_at < STEPS
    assert not any("done" in line for line in first), "a training that was stopped is not done"
    assert steps(second)[0] > stopped_at, "the second attempt goes on where the first one was stopped"
    assert steps(second)[-1] >= STEPS - 10
    assert second[-1].get("done") is True
    assert told[-1]["loss"] < told[0]["loss"]
    assert Path(saved[-1]["saved"]).parent.parent == tmp_path


def test_they_are_harmless_outside_headway(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("lightning", reason="lightning is not installed: pip install headway[dev-jobs]")
    code = """
import signal, sys
from pathlib import Path
sys.path.insert(0, "tests/examples")
import frameworks
frameworks.STEPS = 8
from headway.job.lightning import HeadwayCallback, resume_path
assert resume_path() is None
frameworks.lightning(Path(sys.argv[1]), None, HeadwayCallback(save_every=2))
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**environment, "PYTHONPATH": str(ROOT / "src")}, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ended at 8" in done.stdout
    assert list(tmp_path.iterdir()) == []
