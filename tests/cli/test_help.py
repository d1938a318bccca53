"""Every command has help, and the shell's completion knows them all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from tests.cli.conftest import CommandLine

from headway.cli import app


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = dict(commands(typer.main.get_command(app)))


def test_the_verbs_of_a_live_cluster_are_there() -> None:
    wanted = (
        "up down submit run queue show why logs events cancel hold release requeue update nodes drain undrain top queues users "
        "reload"
    )
    assert {(verb,) for verb in wanted.split()} <= set(ALL)
    assert {("token", "create"), ("token", "list"), ("token", "revoke")} <= set(ALL)


@pytest.mark.parametrize("path", sorted(ALL), ids=" ".join)
def test_help_says_what_a_command_does_and_what_each_option_means(path: tuple[str, ...], cli: CommandLine) -> None:
    text = cli.run(*path, "--help")
    assert f"headway {' '.join(path)}" in text.splitlines()[0]
    command = ALL[path]
    assert command.help
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name
    if path != ("restore",):
        assert "--json" in text


def complete(words: str, **environment: str) -> list[str]:
    asked = {"_HEADWAY_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", "from headway.cli import main; main()"],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout.split()


def test_the_shell_completes_verbs() -> None:
    assert complete("headway re") == ["release", "requeue", "reload", "restore", "report", "replay", "reproduce"]


def test_without_a_controller_no_job_is_completed(tmp_path: Any) -> None:
    assert complete("headway show tr", HEADWAY_HOME=str(tmp_path / "none")) == []


def test_the_script_for_the_shell_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from headway.cli import main; main()", "--show-completion", "bash"],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0 and "_HEADWAY_COMPLETE=complete_bash" in done.stdout, (done.stdout, done.stderr)


def test_ids_of_jobs_and_names_of_nodes_and_queues_are_completed(cli: CommandLine) -> None:
    from headway.cli_output import complete_job, complete_node, complete_queue

    assert complete_job("") == ["train-1", "nächster-2"] and complete_job("tr") == ["train-1"]
    assert complete_node("n") == ["n0", "n1"] and complete_queue("v") == ["vision"]
