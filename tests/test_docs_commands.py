"""The commands that the docs show work: all are understood by the command line, and those that can be are run, in the docs'
order, in a folder that has what they name, against one controller.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.live.conftest import Cluster

from headway.app.jobfile import load_jobs
from headway.cli import app, run_command

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = {
    "train.yaml": "run: echo hello from $RANK\n",
    "eval.yaml": "run: echo hello\nresources: {gpu: 0}\n",
    "job.yaml": "run: 'true'\n",
    "train.sh": "#!/bin/bash\n#SBATCH --job-name=resnet --gpus=1\necho hello\n",
    "train.py": "import time\n\ntime.sleep(600)\n",
    "prepare.py": "print('ready')\n",
}
PARSED_ONLY = {
    "up": "stays in the foreground, or starts a second controller on the home",
    "down": "would stop the controller that the other commands need",
    "check-config": "is shown with a mistake in a file of another machine",
    "backup": "is told with its own tests, as it replaces files",
    "restore": "wants an empty home",
    "simulate": "takes minutes to compile and data that is not in the source tree; tests of its own run it",
    "report": "as simulate",
    "advise": "as simulate",
    "tune": "as simulate",
    "replay": "as simulate",
    "reproduce": "takes hours",
    "why": "asks for a round of a policy in a worker; tests of its own run it",
    "workload": "as simulate",
    "drain": "the nodes of an example are not those of the test; tests of its own run it",
    "undrain": "as drain",
}
"""Commands that are not run here, and why."""
ENDLESS = frozenset({"--watch", "-w", "events -f"})


@dataclass(frozen=True)
class Shown:
    """A command that a page shows."""

    page: str
    line: int
    words: tuple[str, ...]

    @property
    def is_run(self) -> bool:
        text = " ".join(self.words)
        return self.words[0] not in PARSED_ONLY and not any(word in self.words or text.startswith(word) for word in ENDLESS)


def shown() -> Iterator[Shown]:
    for page in PAGES:
        text = page.read_text("utf-8")
        for fence in FENCE.finditer(text):
            prompt = {"console": "$ headway ", "bash": "headway ", "sh": "headway "}.get(fence[1])
            for i, line in enumerate(fence[2].splitlines() if prompt else ()):
                if line.startswith(str(prompt)):
                    number = text.count("\n", 0, fence.start()) + 2 + i
                    words = line.removeprefix(str(prompt)).partition("  #")[0].rstrip(" &")
                    for command in words.split(" | headway "):
                        yield Shown(page.name, number, tuple(shlex.split(command)))


ALL = list(shown())


def parse(words: tuple[str, ...]) -> None:
    """Have the command line read a command, without running it."""
    command: Any = typer.main.get_command(app)
    with command.make_context("headway", list(words)) as context:
        while hasattr(command, "commands"):
            name, command, rest = command.resolve_command(context, context._protected_args + context.args)
            context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("command", ALL, ids=lambda one: f"{one.page}:{one.line}")
def test_the_command_line_understands(command: Shown) -> None:
    parse(command.words)


def test_there_are_commands_to_look_at_and_a_wrong_one_is_found() -> None:
    assert len(ALL) > 30 and sum(one.is_run for one in ALL) > 15
    with pytest.raises(Exception, match="No such"):
        parse(("queue", "--no-such-option"))
    assert {one.words[0] for one in ALL} & set(PARSED_ONLY), "reasons that nothing needs"


@pytest.mark.live
def test_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(tmp_path)
    for name, text in FILES.items():
        (cluster.scratch / name).write_text(text, "utf-8")
    (cluster.scratch / "examples").symlink_to(ROOT / "examples")
    try:
        cluster.up("--nodes", "2x2")
        for key, value in cluster.environment.items():
            monkeypatch.setenv(key, value)
        for key in ("HEADWAY_URL", "HEADWAY_TOKEN", "HEADWAY_JOURNAL"):
            monkeypatch.delenv(key, raising=False)
        monkeypatch.chdir(cluster.scratch)
        failed = []
        printed = ""
        for command in ALL:
            if command.is_run:
                monkeypatch.setattr(sys, "stdin", io.StringIO(printed))  # of a pipe: what the command before has printed
                code = run_command([*command.words])
                said = capsys.readouterr()
                printed = said.out
                if code not in (0, 1):
                    failed.append((command, code, said.err))
        assert not failed
    finally:
        cluster.end_all()


def test_the_example_of_a_script_is_what_the_page_says(tmp_path: Path) -> None:
    blocks = FENCE.finditer((ROOT / "docs" / "sbatch.md").read_text("utf-8"))
    (tmp_path / "train.sh").write_text(next(block[2] for block in blocks if block[1] == "bash"))
    ((spec,), notes) = load_jobs(tmp_path / "train.sh", {})
    (gpu,) = spec.resources.gpu_alternatives
    assert (spec.parallelism.data, gpu.kind, gpu.milli, spec.resources.cpus_milli) == (8, "a100", 1_000, 8_000)
    assert spec.resources.memory_bytes == 16 * 2**30 and spec.queue == "vision" and spec.time_limit_s == 36 * 3_600
    assert spec.checkpoint.grace_s == 120 and not notes
