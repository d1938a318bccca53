"""Many simulations on the cores of this machine, and the log that lets them go on where they were stopped."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Any, TypeVar

from headway.core.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
Json = dict[str, Any]


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def each(work: Callable[[Item], Result], items: Sequence[Item], *, workers: int) -> Iterator[tuple[int, Result]]:
    """(index, result) of every item, as they are done. `work` is a function of a module; with one worker it runs in this process,
    and items come in order. When the iteration is left, what has not begun is given up.
    """
    if workers <= 1 or len(items) <= 1:
        for index, item in enumerate(items):
            yield index, work(item)
        return
    pool = ProcessPoolExecutor(min(workers, len(items)), mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        futures = {pool.submit(work, item): index for index, item in enumerate(items)}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def crew(workers: int) -> Iterator[Callable[[Callable[[Item], Result], Sequence[Item]], Iterator[tuple[int, Result]]]]:
    """As `each`, for many calls: the processes stay, and with them what they have loaded."""
    if workers <= 1:
        yield lambda work, items: each(work, items, workers=1)
        return
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_with_parent)

    def run(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[tuple[int, Result]]:
        futures = {pool.submit(work, item): index for index, item in enumerate(items)}
        for future in as_completed(futures):
            yield futures[future], future.result()

    try:
        yield run
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def end_with_parent() -> None:
    """From now on this process ends as soon as its parent has: a worker whose parent was killed would wait for work for ever."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


@contextmanager
def run_log(path: Path) -> Iterator[tuple[list[Json], Callable[[Json], None]]]:
    """The entries of a log of JSON lines, and a function that adds one. A last line that was cut off is dropped.

    Raises:
        UserError: the file cannot be read or written, or a line is no JSON object.
    """
    try:
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        entries = [_entry(line, path, number) for number, line in enumerate(whole.splitlines(), start=1)]
        with path.open("r+b" if path.exists() else "w+b") as stream:
            stream.truncate(len(whole))
            stream.seek(len(whole))

            def add(entry: Json) -> None:
                stream.write(json.dumps(entry, allow_nan=False, separators=(",", ":")).encode() + b"\n")
                stream.flush()

            yield entries, add
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", file=str(path), key="out") from None


def check_folder(path: Path, log: str) -> None:
    """Raise `UserError` unless `path` can become, or already is, a folder of a command that keeps `log` in it."""
    try:
        if path.exists() and not path.is_dir():
            raise UserError("is not a folder", file=str(path), key="out")
        if not path.exists() and not path.parent.is_dir():
            raise UserError("cannot be made: no such folder", file=str(path), key="out")
        if path.is_dir() and not (path / log).is_file() and any(path.iterdir()):
            raise UserError(f"holds other things: expected an empty folder, or one with {log}", file=str(path), key="out")
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", file=str(path), key="out") from None


def _entry(line: bytes, path: Path, number: int) -> Json:
    try:
        entry = json.loads(line)
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        raise UserError("expected a JSON object", file=str(path), line=number)
    return entry
