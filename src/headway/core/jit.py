"""Compile a loop once: the one decorator of all kernels, with a disk cache that cannot go stale.

Numba's own cache looks at the file of the kernel only, so a kernel that calls another in a changed file would keep the old
code. Ours keeps a module's kernels in a folder named by a digest of the module and of all that it imports from here: a change
there starts a new folder, and the kernels of other modules stay compiled.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).resolve().parent.parent
IMPORT = re.compile(rb"^\s*from headway([\w.]*) import (?:\(([^)]*)\)|(.*))", re.MULTILINE)
FOLDERS_MAX = 4
"""How many digests of a module keep their compiled kernels; the oldest go first."""


def cache_dir() -> Path:
    """The folder of all compiled kernels: `$HEADWAY_CACHE`, else the user's cache folder, else a temporary one."""
    home = os.environ.get("HEADWAY_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = Path(home).expanduser() / "headway" / "kernels"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.gettempdir()) / f"headway-kernels-{os.getuid()}"
        base.mkdir(parents=True, exist_ok=True)
    return base


@cache
def imports_of(path: Path, package: Path = PACKAGE) -> frozenset[Path]:
    """The files of the package that a file of it names in `from headway… import …`."""
    found = set()
    for dotted, several, names in IMPORT.findall(path.read_bytes()):
        module = package.joinpath(*dotted.decode().strip(".").split("."))
        if (inside := module.with_suffix(".py")).is_file():
            found.add(inside)
            continue
        for name in re.findall(r"(\w+)(?: as \w+)?", (several or names).decode()):
            if (inside := module / f"{name}.py").is_file():
                found.add(inside)
    return frozenset(found)


def source_digest(path: Path, package: Path = PACKAGE) -> str:
    """A digest of a file's source, of all files of the package that it imports, directly or not, and of Numba's version."""
    seen, rest = {path}, [path]
    while rest:
        fresh = imports_of(rest.pop(), package) - seen
        seen |= fresh
        rest.extend(fresh)
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(seen):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def kernels_digest(package: Path = PACKAGE) -> str:
    """A digest of all files with kernels and of what they import."""
    sources = [path for path in sorted(package.rglob("*.py")) if b"core.jit import" in path.read_bytes()]
    return hashlib.sha256("".join(source_digest(path, package) for path in sources).encode()).hexdigest()[:16]


@cache
def kernel_dir(path: Path) -> Path:
    """The folder for the compiled kernels of a source file."""
    inside = path.is_relative_to(PACKAGE)
    name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts) if inside else path.stem
    folder = cache_dir() / name / source_digest(path)
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        old = sorted(folder.parent.iterdir(), key=lambda p: p.stat().st_mtime)
        for gone in old[:-FOLDERS_MAX]:
            shutil.rmtree(gone, ignore_errors=True)
    return folder


def kernel(function: F) -> F:
    """Compile `function` with Numba on its first call and keep the machine code on disk. Arguments are flat arrays and numbers
    only, and nothing is allocated: so no array is counted when it is handed on, which had taken four fifths of a round. While it
    runs, other threads go on: a policy that thinks in a worker does not hold the controller up."""
    return _compiled(function, inline=False)


def inner(function: F) -> F:
    """As `kernel`, for a small part of hot loops: it is inlined into its callers, since handing ten arrays over costs more than
    the work."""
    return _compiled(function, inline=True)


def _compiled(function: F, *, inline: bool) -> F:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(kernel_dir(Path(function.__code__.co_filename).resolve()))
    try:
        dispatcher = numba.njit(
            cache=True, error_model="numpy", nogil=True, no_cfunc_wrapper=True, forceinline=inline, _nrt=False
        )(function)
    finally:
        numba.config.CACHE_DIR = before
    template = dispatcher.get_call_template
    # Numba would compile a kernel anew for each constant that another kernel calls it with; one version for all numbers will do.
    dispatcher.get_call_template = lambda args, kws: template(tuple(types.unliteral(a) for a in args), kws)
    return cast(F, dispatcher)


@intrinsic
def ctz(typingctx: Any, x: Any) -> Any:
    """The index of the lowest set bit of an int64 (64 if there is none)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), codegen


@intrinsic
def popcount(typingctx: Any, x: Any) -> Any:
    """The number of set bits of an int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.int64), codegen


@intrinsic
def as_float(typingctx: Any, x: Any) -> Any:
    """The float64 with the bits of an int64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.int64), codegen
