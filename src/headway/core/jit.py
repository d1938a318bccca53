"""Compile a loop once: the one decorator of all kernels, with a disk cache that cannot go stale.

Numba's own cache looks at the file of the kernel only, so a kernel that calls another in a changed file would keep the old
code. Ours lives in a
folder named by a digest of all sources that hold kernels or the constants frozen into them: a change there starts a new folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

CONSTANTS = ("columns.py", "codes.py")
CACHE_FOLDERS_MAX = 4
"""How many digests keep their compiled kernels; the oldest go first."""


def cache_dir() -> Path:
    """The folder of the compiled kernels of this very source: `$HEADWAY_CACHE`, else the user's cache folder, else a temporary
    one."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(numba.__version__.encode())
    for path in sorted(package.rglob("*.py")):
        source = path.read_bytes()
        if b"core.jit" in source or path.name in CONSTANTS:
            digest.update(source)
    home = os.environ.get("HEADWAY_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    base = Path(home).expanduser() / "headway" / "kernels"
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.gettempdir()) / f"headway-kernels-{os.getuid()}"
        base.mkdir(parents=True, exist_ok=True)
    folder = base / digest.hexdigest()[:16]
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        old = sorted((p for p in base.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for path in old[:-CACHE_FOLDERS_MAX]:
            shutil.rmtree(path, ignore_errors=True)
    return folder


_CACHE_DIR = str(cache_dir())


def kernel(function: F) -> F:
    """Compile `function` with Numba on its first call and keep the machine code on disk. Arguments are flat arrays and numbers
    only, and nothing is allocated: so no array is counted when it is handed on, which had taken four fifths of a round."""
    return _compiled(function, inline=False)


def inner(function: F) -> F:
    """As `kernel`, for a small part of hot loops: it is inlined into its callers, since handing ten arrays over costs more than
    the work."""
    return _compiled(function, inline=True)


def _compiled(function: F, *, inline: bool) -> F:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = _CACHE_DIR
    try:
        dispatcher = numba.njit(cache=True, error_model="numpy", no_cfunc_wrapper=True, forceinline=inline, _nrt=False)(function)
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
