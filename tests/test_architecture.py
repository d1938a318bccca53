"""The tidy test: rules of the whole repository that no other tool holds.

Who may import whom is held by import-linter (`make lint`); the rules here are about what a file may contain.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src"
PACKAGE = SRC / "headway"
LINES_MAX = 500

# Where wall-clock time is part of the job. Everywhere else time is an argument.
# `job/` lives in the training script's process; two readers of `progress/` wait for files and for a process.
CLOCK_ROOMS = (
    "runtime/", "engines/", "app/", "cli.py", "sim/run.py", "job/", "progress/patterns.py", "progress/tensorboard.py",
    "api/meters.py", "api/tokens.py",
)  # fmt: skip
# Where how long our own code took may be measured: `decide_ms`, and budgets of long commands.
STOPWATCH_ROOMS = (*CLOCK_ROOMS, "api/auth.py", "core/round.py", "testing/fuzz.py", "warm.py")
PRINT_ROOMS = ("cli.py", "warm.py", "__main__.py", "testing/fuzz.py")

CLOCKS = frozenset(
    {
        *(f"time.{name}" for name in ("time", "time_ns", "monotonic", "monotonic_ns", "localtime", "gmtime")),
        *(f"datetime.{name}" for name in ("now", "utcnow", "today")),
        *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
        "date.today",
        "datetime.date.today",
    }
)
STOPWATCHES = frozenset({"time.perf_counter", "time.perf_counter_ns", "time.process_time", "time.process_time_ns"})

MODULE_NAMES_BANNED = frozenset({"util", "utils", "helper", "helpers", "manager", "managers"})

# Written in parts, so that this file does not break its own rules.
REMARK = re.compile(rf"\b({'TO' + 'DO'}|{'FIX' + 'ME'}|{'X' * 3})\b(?!\W*#\d+)")
MACHINE_PATH = re.compile(r"(?<![\w.~$})-])/(work|root)/")

CODE_SUFFIXES = frozenset({".py", ".sh", ".toml", ".js", ".css", ".html", ".yaml", ".yml"})
UNTRACKED_FOLDERS = re.compile(r"\.git|\.venv|build|dist|htmlcov|node_modules|__pycache__|\..*cache|\.hypothesis|.*\.egg-info")

HEAVY = ("numba", "torch", "ray", "fastapi", "uvicorn", "botorch", "sqlalchemy")


@cache
def sources() -> tuple[Path, ...]:
    return tuple(sorted(PACKAGE.rglob("*.py")))


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every source file, by its path inside the package."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"), filename=str(path)) for path in sources()}


@cache
def tracked() -> tuple[Path, ...]:
    """Files that belong to the project: what git has or would add; without git, all but leftovers."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout.decode()
        found = [ROOT / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, subfolders, names in os.walk(ROOT):
            subfolders[:] = [name for name in subfolders if not UNTRACKED_FOLDERS.fullmatch(name)]
            found += [Path(folder, name) for name in names]
    return tuple(sorted(path for path in found if path.is_file()))


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a text file; nothing of a binary one."""
    content = path.read_bytes()
    if b"\0" not in content:
        yield from enumerate(content.decode("utf-8", "replace").splitlines(), start=1)


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` for a chain of names, None for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            before = dotted(value)
            return None if before is None else f"{before}.{attr}"
        case _:
            return None


def uses(tree: ast.Module, names: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Each place that names one of `names`, called or not, or imports it from its module."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute() if (name := dotted(node)) in names:
                yield node.lineno, str(name)
            case ast.ImportFrom(module=str(module)):
                for alias in node.names:
                    if f"{module}.{alias.name}" in names:
                        yield node.lineno, f"{module}.{alias.name}"


def outside(rooms: tuple[str, ...]) -> Iterator[tuple[str, ast.Module]]:
    for name, tree in trees().items():
        if not any(name.startswith(room) if room.endswith("/") else name == room for room in rooms):
            yield name, tree


def test_files_hold_one_thing() -> None:
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in sources()}
    assert not [f"{path}: {lines} lines" for path, lines in lengths.items() if lines >= LINES_MAX]


def test_time_is_an_argument() -> None:
    clocks = [f"{name}:{line}: {use}" for name, tree in outside(CLOCK_ROOMS) for line, use in uses(tree, CLOCKS)]
    stopwatches = [f"{name}:{line}: {use}" for name, tree in outside(STOPWATCH_ROOMS) for line, use in uses(tree, STOPWATCHES)]
    assert not clocks + stopwatches


def test_only_commands_print() -> None:
    assert not [
        f"{name}:{node.lineno}"
        for name, tree in outside(PRINT_ROOMS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and dotted(node.func) == "print"
    ]


def test_a_remark_of_work_left_names_its_issue() -> None:
    code = [path for path in tracked() if path.suffix in CODE_SUFFIXES or path.name in {"Makefile", "run"}]
    assert not [f"{path}:{number}: {line.strip()}" for path in code for number, line in text_lines(path) if REMARK.search(line)]


def test_module_names_say_what_is_inside() -> None:
    assert not [path for path in sources() if {path.stem, path.parent.name} & MODULE_NAMES_BANNED]


def test_every_package_says_what_it_is() -> None:
    folders = {path.parent for path in sources()}
    assert not [folder for folder in sorted(folders) if not (folder / "__init__.py").is_file()]
    assert not [name for name, tree in trees().items() if name.endswith("__init__.py") and not ast.get_docstring(tree)]


def test_no_file_names_a_place_on_one_machine() -> None:
    assert not [
        f"{path}:{number}: {line.strip()}" for path in tracked() for number, line in text_lines(path) if MACHINE_PATH.search(line)
    ]


def test_constraints_are_exact_versions_without_addresses() -> None:
    pins = [line for _, line in text_lines(ROOT / "constraints.txt") if not line.startswith("#")]
    assert pins
    assert not [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", pin)]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import headway", id="import headway"),
        pytest.param(
            "import headway.cli\n"
            "sys.argv = ['headway', '--help']\n"
            "try:\n"
            "    headway.cli.main()\n"
            "except SystemExit as end:\n"
            "    assert not end.code, end.code\n",
            id="headway --help",
        ),
    ],
)
def test_the_first_answer_is_quick(program: str) -> None:
    """Heavy libraries are imported where they are used, not on the way in."""
    program = f"import sys\n{program}\nsys.stderr.write(' '.join(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("x = 1  # " + "TO" + "DO: later", True),
        ("x = 1  # " + "TO" + "DO(#12): later", False),
        ("x = 1  # " + "FIX" + "ME #3", False),
        ("mktemp -d run." + "X" * 6, False),
    ],
)
def test_remarks_are_told_apart(line: str, found: bool) -> None:
    assert bool(REMARK.search(line)) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("see /" + "root" + "/.cache", True),
        ("open('/" + "work" + "/main')", True),
        ("docs/" + "work" + "/flow.md", False),
        ("$HOME/" + "work" + "/x", False),
    ],
)
def test_machine_paths_are_told_apart(line: str, found: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\nt = time.time()", ["time.time"]),
        ("def wait(clock=time.monotonic): ...", ["time.monotonic"]),
        ("from time import monotonic_ns", ["time.monotonic_ns"]),
        ("at = datetime.datetime.now(UTC)", ["datetime.datetime.now"]),
        ("view.time.time_s", []),
        ("'''calls time.time() never'''", []),
    ],
)
def test_clocks_are_found(code: str, found: list[str]) -> None:
    assert [name for _, name in uses(ast.parse(code), CLOCKS)] == found
