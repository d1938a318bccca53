"""How reports leave the process: as lines of a file that the controller reads, or else over HTTP, or else not at all.

The file is opened for appending and gets whole lines, each write at once, so that a line is there or not, whoever else writes.
Nothing here raises to the training script, and nothing waits for a network except `flush`, for as long as it is told.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from math import isfinite
from typing import Any

from headway.job.task import TASK, Task

EACH_S = 0.1
"""At most one progress line in so long a time."""
BATCH_S = 1.0
"""From one request to the next."""
RETRY_S_MAX = 30.0
TIMEOUT_S = 5.0
WAITING_MAX = 1000
"""So many lines wait for a controller that can't be reached; then the oldest reports of progress go."""
OTHER_MAX = 32
"""So many other metrics a report may have."""
NAME_LENGTH_MAX = 100
EXIT_FLUSH_S = 3.0


def number(value: Any) -> float | None:
    """A float, also of NumPy's and PyTorch's scalars; None for what is none. NaN and infinities are floats."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        return float(value)
    except Exception:
        return None


def whole(value: Any) -> int | None:
    """A count of steps from anything that is one; None otherwise."""
    if type(value) is int:
        return value if value >= 0 else None
    if isinstance(value, bool) or (real := number(value)) is None:
        return None
    return int(real) if isfinite(real) and real >= 0 else None


def call(path: str, body: bytes | None = None, task: Task = TASK, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Ask the controller: the answer; None if there was none, or it was a refusal that another try may change.

    A request that is refused for good is answered with nothing. Proxies of the environment are passed by.
    """
    headers = {"Authorization": f"Bearer {task.token}", "Content-Type": "application/json"}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(task.url + path, body, headers), timeout=timeout_s) as answer:
            return bytes(answer.read(1 << 20))
    except urllib.error.HTTPError as error:
        error.close()
        return None if error.code in (408, 429) or error.code >= 500 else b""
    except Exception:
        return None


class Sender:
    """The one way out of the process. `report` is thinned, `tell` is not."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._lock = threading.Lock()
        self._net = threading.Lock()
        """Held while a batch is taken out and sent."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._file: int | None = None
        self._pending: dict[str, Any] | None = None
        self._waiting: list[dict[str, Any]] = []
        """For HTTP: lines that have not been sent yet."""
        self._written_at = -EACH_S
        self._to_file = bool(task.reports)

    # -- from the training script -----------------------------------------------------------------------------------
    def report(self, step: int, loss: Any, accuracy: Any, total: Any, other: Mapping[str, Any]) -> None:
        """One report of progress."""
        line: dict[str, Any] = {"step": step}
        if (value := number(loss)) is not None:
            line["loss"] = value
        if (value := number(accuracy)) is not None:
            line["accuracy"] = value
        if (count := whole(total)) is not None:
            line["total"] = count
        for name in list(other)[:OTHER_MAX]:
            if (value := number(other[name])) is not None:
                line.setdefault("other", {})[name[:NAME_LENGTH_MAX]] = value
        line["t"] = time.time()
        with self._lock:
            if self._pending is not None:
                line = _newer(self._pending, line)
            if self._to_file and time.monotonic() >= self._written_at + EACH_S:
                self._pending = None
                self._out([line])
                return
            first, self._pending = self._pending is None, line
        if first:
            self._start()
            self._wake.set()

    def tell(self, line: dict[str, Any]) -> None:
        """Something that must not be thinned: what is pending, and then this."""
        with self._lock:
            self._out_pending()
            self._out([line | {"t": time.time()}])
        if not self._to_file:
            self._start()
            self._wake.set()

    def flush(self, timeout_s: float) -> None:
        """Have everything out, but wait no longer than this. Safe in a signal handler: it waits for no lock without end."""
        until = time.monotonic() + timeout_s
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._out_pending()
            finally:
                self._lock.release()
        if self._to_file or not self._net.acquire(timeout=max(until - time.monotonic(), 0.0)):
            return
        try:
            if self._waiting and (left_s := until - time.monotonic()) > 0:
                waiting, self._waiting = self._waiting, []
                self._post(waiting, max(left_s, 0.1))
        finally:
            self._net.release()

    # -- the ways out -----------------------------------------------------------------------------------------------
    def _out_pending(self) -> None:
        """Let out what was held back. Under the lock."""
        if self._pending is not None:
            line, self._pending = self._pending, None
            self._out([line])

    def _out(self, lines: list[dict[str, Any]]) -> None:
        """Write lines to the file, or queue them for HTTP. Under the lock."""
        self._written_at = time.monotonic()
        if self._to_file:
            try:
                if self._file is None:
                    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                    self._file = os.open(self._task.reports, flags, 0o600)
                data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
                if os.write(self._file, data) < len(data):
                    os.write(self._file, b"\n")  # the disk is full: what was torn off must not join the next line
                return
            except (OSError, ValueError):
                if not self._task.url:
                    return
                self._to_file = False
        if self._task.url:
            self._waiting.extend(lines)
            self._shorten()

    def _shorten(self) -> None:
        """Let the oldest reports of progress go, if too many wait."""
        while len(self._waiting) > WAITING_MAX:
            plain = (at for at, line in enumerate(self._waiting) if "saved" not in line and "done" not in line)
            del self._waiting[next(plain, 0)]

    def _start(self) -> None:
        """The thread that sends what waits; a forked process needs one of its own."""
        if self._thread is None and (self._to_file or self._task.url):
            self._thread = threading.Thread(target=self._run, name="headway-reports", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the interpreter is ending
                self._thread = None

    def _run(self) -> None:
        """Each pending report goes out when its time has come; for HTTP, in batches."""
        retry_s = BATCH_S
        while True:
            self._wake.wait()
            self._wake.clear()
            time.sleep(EACH_S if self._to_file else retry_s)
            with self._net:
                with self._lock:
                    self._out_pending()
                    waiting, self._waiting = self._waiting, []
                if not waiting:
                    continue
                if self._post(waiting, TIMEOUT_S):
                    retry_s = BATCH_S
                    continue
                with self._lock:
                    self._waiting = waiting + self._waiting
                    self._shorten()
            retry_s = min(2 * retry_s, RETRY_S_MAX)
            self._wake.set()

    def _post(self, lines: list[dict[str, Any]], timeout_s: float) -> bool:
        """Send lines; whether there was an answer."""
        reports = [_valid(line) for line in lines]
        body = {"attempt": self._task.attempt, "rank": self._task.rank, "reports": reports}
        data = json.dumps(body, allow_nan=False).encode()
        return call(f"/v1/jobs/{self._task.job}/reports", data, self._task, timeout_s) is not None

    def forked(self) -> None:
        """In a forked child: another thread may have held the lock, none is alive, and what waits is the parent's to send."""
        self._lock, self._net, self._wake, self._thread = threading.Lock(), threading.Lock(), threading.Event(), None
        self._pending, self._waiting = None, []


def _newer(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """Two reports as one: the newer, with what only the older told."""
    both = older | newer
    if "other" in older and "other" in newer:
        both["other"] = older["other"] | newer["other"]
    return both


def _valid(line: dict[str, Any]) -> dict[str, Any]:
    """A line as valid JSON: numbers that are not finite are null."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return None if isinstance(value, float) and not isfinite(value) else value

    return {key: plain(value) for key, value in line.items()}


SENDER = Sender(TASK)
if TASK.in_headway:
    atexit.register(SENDER.flush, EXIT_FLUSH_S)
    os.register_at_fork(after_in_child=SENDER.forked)
