"""What people hand in by mistake or in malice: one line, exit code 2, and nothing is asked of the controller."""

from __future__ import annotations

import pytest
from tests.cli.conftest import CommandLine

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)
)
RTL = "\u202efdp.exe"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("../x", "expected a name without '..' and path separators"),
        ("..", "expected a name without '..'"),
        ("a\0b", "expected a name without control characters"),
        ("a\x1b[2Jb", "expected a name without control characters"),
        ("x" * 4_096, "expected a name of 1 to 128 characters"),
        (RTL, "expected a name without control characters"),
        ("", "expected a name of 1 to 128 characters"),
        ("--x", "expected a name that doesn't start with '-'"),
        ("\ud800", "expected a name without control characters"),
    ],
)
def test_names_that_none_can_be(name: str, text: str, cli: CommandLine) -> None:
    said = cli.refusal("submit", f"--name={name}", "--", "true")
    assert text in said and said.isprintable() and len(said) < 200
    assert not cli.controller.asked


@pytest.mark.parametrize("name", ["训练", "שלום", "🚀 launch", "é" * 128, "a b", "x*y"])
def test_names_in_any_script_are_taken(name: str, cli: CommandLine) -> None:
    assert cli.run("submit", f"--name={name}", "--", "true") == f"{name}-1\n"
    assert cli.last()[2]["name"] == name


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (BOMB, "job.yaml:1: not valid YAML: anchors (&) and aliases (*) are not allowed"),
        ("run: x\nresurces: {gpu: 1}\n", "job.yaml:2: resurces: unknown key (did you mean 'resources'?)"),
        ("run: x\nresources: {gpu: NaN}\n", "job.yaml:2: resources.gpu: expected a positive number"),
        ("run: x\nrun: y\n", "job.yaml:2: run: "),
        ("[" * 1_000, "job.yaml:1: "),
        ("!!python/object/apply:os.system [true]\n", "job.yaml:1: "),
        ('run: x\nname: "a\\0b"\n', "job.yaml:2: name: expected a name without control characters"),
        ("", "job.yaml: "),
        ("- run\n", "job.yaml:1: "),
    ],
)
def test_job_files_that_are_none(content: str, text: str, cli: CommandLine) -> None:
    cli.write("job.yaml", content)
    assert cli.refusal("submit", "job.yaml").startswith(text)
    assert not cli.controller.asked


def test_a_file_of_a_hundred_megabytes_is_not_read(cli: CommandLine) -> None:
    with (cli.folder / "job.yaml").open("wb") as file:
        file.truncate(100_000_000)
    assert "job.yaml: expected" in cli.refusal("submit", "job.yaml")
    assert not cli.controller.asked


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["quue"], "No such command 'quue'"),
        (["queue", "--al"], "No such option: --al"),
        (["queue", "--limit", "0"], "Invalid value for '--limit'"),
        (["show"], "Missing argument 'JOB'"),
        (["top", "--interval", "x"], "Invalid value for '--interval'"),
        (["token", "create"], "Missing argument 'NAME'"),
        (["up", "--detach", "--standby"], "--standby: waits for as long as another controller lives"),
    ],
)
def test_a_wrong_command_line_names_the_help(arguments: list[str], text: str, cli: CommandLine) -> None:
    assert text in cli.refusal(*arguments)


def test_standard_input_that_is_no_text(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8"))
    assert cli.refusal("cancel", "-") == "-: expected ids of jobs in UTF-8"
