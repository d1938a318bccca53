"""The example jobs in real processes, with the environment set by hand: every way to train makes the steps of a single process,
and a run that was stopped ends where one ends that was not."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.examples.task import run_task

torch = pytest.importorskip("torch", reason="the example jobs need torch: pip install headway[jobs]")

ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "examples/jobs"
PATIENCE_S = 120.0

pytestmark = [pytest.mark.slow, pytest.mark.live]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class Gang:
    """The processes of one attempt, and the files that they print into."""

    processes: list[multiprocessing.process.BaseProcess] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)

    def printed(self, rank: int = 0) -> str:
        return self.outputs[rank].read_text() if self.outputs[rank].exists() else ""

    def until(self, word: str) -> None:
        """Wait until the first process has printed something."""
        deadline = time.monotonic() + PATIENCE_S
        while word not in self.printed():
            assert time.monotonic() < deadline and self.processes[0].is_alive(), self.printed()
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        for process in self.processes:
            assert process.pid is not None
            os.kill(process.pid, number)

    def end(self, code: int = 0) -> list[str]:
        """Wait for all; what each has printed."""
        for process in self.processes:
            process.join(PATIENCE_S)
            if process.is_alive():
                process.kill()
        printed = [self.printed(rank) for rank in range(len(self.processes))]
        codes = [process.exitcode for process in self.processes]
        assert codes == [code] * len(codes), "\n".join(printed)
        return printed


def start(
    directory: Path, *arguments: str, workers: int = 1, servers: int = 0, attempt: int = 1, script: str = "train.py"
) -> Gang:
    """Start a job's processes as the engine does, forked off one that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch._dynamo", "numpy", "tests.examples.task"])
    port, gang = free_port(), Gang()
    directory.mkdir(exist_ok=True)
    for rank in range(workers + servers):
        environment = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(workers),
            "RANK": str(rank),
            "HEADWAY_JOB": "7",
            "HEADWAY_JOB_NAME": "example-1",
            "HEADWAY_ATTEMPT": str(attempt),
            "HEADWAY_ROLE": "worker" if rank < workers else "server",
            "HEADWAY_SERVERS": ",".join(f"127.0.0.1:{9000 + k}" for k in range(servers)),
            "HEADWAY_CHECKPOINT_DIR": str(directory),
        }
        output = directory / f"{attempt}.{rank}.log"
        process = context.Process(target=run_task, args=(str(JOBS / script), arguments, environment, str(output)))
        process.start()
        gang.processes.append(process)
        gang.outputs.append(output)
    return gang


def saved(directory: Path) -> dict[str, Any]:
    """The newest checkpoint."""
    content: dict[str, Any] = torch.load(max(directory.glob("step-*")))
    return content


def last_line(printed: str) -> str:
    return printed.strip().splitlines()[-1]


def loss_in(line: str) -> float:
    return float(line.partition("training loss ")[2].split(",")[0])


def same(one: dict[str, Any], other: dict[str, Any], **tolerance: float) -> bool:
    """Whether two checkpoints hold the same weights and momentum."""
    return one["step"] == other["step"] and all(
        torch.allclose(value, other["state"][kind][name], **tolerance)
        for kind, values in one["state"].items()
        for name, value in values.items()
    )


WAYS: dict[str, dict[str, int]] = {
    "data-parallel": {"workers": 2},
    "pipeline": {"workers": 2, "stages": 2},
    "hybrid": {"workers": 4, "stages": 2},
    "parameter-server": {"workers": 2, "servers": 1},
    "parameter-servers": {"workers": 2, "servers": 2},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Two epochs in one process."""
    directory = tmp_path_factory.mktemp("alone")
    (printed,) = start(directory, "--model", "cnn-small", "--epochs", "2").end()
    return saved(directory), last_line(printed)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_makes_the_steps_of_a_single_process(tmp_path: Path, alone: tuple[dict[str, Any], str], way: str) -> None:
    shape = dict(WAYS[way])
    stages = str(shape.pop("stages", 1))
    printed = start(tmp_path, "--model", "cnn-small", "--epochs", "2", "--stages", stages, **shape).end()
    checkpoint, line = alone
    assert same(checkpoint, saved(tmp_path), rtol=1e-3, atol=1e-5)
    assert loss_in(last_line(printed[0])) == pytest.approx(loss_in(line), rel=1e-4)
    assert all("epoch" not in other for other in printed[1:]), "the chief alone speaks"


@pytest.mark.parametrize("model", ["cnn-small", "cnn-large", "mlp", "lstm", "svm"])
def test_every_model_learns(tmp_path: Path, model: str) -> None:
    rate = "0.3" if model in ("svm", "lstm") else "0.01"
    (printed,) = start(tmp_path, "--model", model, "--epochs", "6", "--rate", rate).end()
    accuracies = [float(line.rpartition(" ")[2]) for line in printed.splitlines() if "accuracy" in line]
    assert len(accuracies) == 6
    assert accuracies[-1] > 0.6


@pytest.mark.parametrize("way", [{}, *({"way": way} for way in ("data-parallel", "hybrid", "parameter-server"))])
def test_a_stopped_run_ends_where_one_ends_that_was_not(tmp_path: Path, way: dict[str, str]) -> None:
    shape = dict(WAYS[way["way"]]) if way else {}
    arguments = ("--model", "cnn-small", "--epochs", "12", "--stages", str(shape.pop("stages", 1)))
    whole = last_line(start(tmp_path / "whole", *arguments, **shape).end()[0])
    stopped = start(tmp_path / "parts", *arguments, **shape)
    stopped.until("epoch 2 ")
    stopped.signal(signal.SIGTERM)
    line = last_line(stopped.end()[0])
    assert line.startswith("stopped at step ")
    step = int(line.split()[3])
    assert 44 <= step < 264
    assert saved(tmp_path / "parts")["step"] == step
    printed = start(tmp_path / "parts", *arguments, **shape, attempt=2).end()[0]
    assert printed.startswith(f"goes on from step {step}\n")
    assert last_line(printed).startswith("done at step 264 of 264")
    assert loss_in(last_line(printed)) == loss_in(whole)
    assert same(saved(tmp_path / "whole"), saved(tmp_path / "parts"), rtol=0, atol=0)


def test_a_run_goes_on_in_another_way(tmp_path: Path, alone: tuple[dict[str, Any], str]) -> None:
    start(tmp_path, "--model", "cnn-small", "--epochs", "1", "--stages", "2", workers=2).end()
    printed = start(tmp_path, "--model", "cnn-small", "--epochs", "2", workers=2, attempt=2).end()[0]
    assert printed.startswith("goes on from step 22\n")
    assert loss_in(last_line(printed)) == pytest.approx(loss_in(alone[1]), rel=1e-4)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    start(tmp_path, "--model", "mlp", "--epochs", "1").end()
    (printed,) = start(tmp_path, "--model", "svm", "--epochs", "1", attempt=2).end(code=1)
    assert printed.strip().endswith("holds a mlp, not a svm")


def test_the_plain_script_prints_figures_and_goes_on_after_its_last_epoch(tmp_path: Path) -> None:
    arguments = ("--save", str(tmp_path / "last.pt"), "--epochs", "30")
    started = start(tmp_path, *arguments, script="plain.py")
    started.until("step=66 ")
    started.signal(signal.SIGTERM)
    started.end(code=-signal.SIGTERM)  # it knows no signals
    epoch = torch.load(tmp_path / "last.pt")["epoch"]
    (printed,) = start(tmp_path, *arguments, script="plain.py", attempt=2).end()
    first, *lines = printed.splitlines()
    assert first == f"goes on after epoch {epoch}"
    assert [line.split()[0] for line in lines] == [f"step={22 * k}" for k in range(epoch + 1, 31)]
    assert "headway" not in (JOBS / "plain.py").read_text().lower()
