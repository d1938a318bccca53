"""The users' own patterns, matched in a process of its own: an expression that goes on for ever must hold up nobody else.

The process is started when the first pattern is needed. It gets lines of JSON (pattern, texts) and answers with the named groups
of each text. An answer that takes more than `ANSWER_S` of processor time costs the process its life (the kernel sees to it: a
timer whose signal nobody handles); a pattern with which that has happened `FAILURES_MAX` times is not used any more.
"""

from __future__ import annotations

import json
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

ANSWER_S = 0.5
WAIT_S = 10.0
"""How long an answer may take by the clock, on a machine that has much to do."""
TEXT_LENGTH_MAX = 2000
FAILURES_MAX = 3
Groups = list[dict[str, str]]


class PatternProcess:
    """The process, for all patterns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def match(self, pattern: str, texts: Sequence[str]) -> Groups | None:
        """The groups of the texts that match; None if there was no answer in time."""
        with self._lock:
            try:
                return self._ask(json.dumps([pattern, [text[:TEXT_LENGTH_MAX] for text in texts]]).encode() + b"\n")
            except (OSError, ValueError, TimeoutError):
                self._end()
                return None

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, question: bytes) -> Groups:
        if self._child is None or self._child.poll() is not None:
            self._end()
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        child = self._child
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(question)
        found: Groups = json.loads(self._read(child, time.monotonic() + WAIT_S))
        return found

    def _read(self, child: subprocess.Popen[bytes], until: float) -> bytes:
        assert child.stdout is not None
        answer = b""
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([child.stdout], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            part = child.stdout.read(1 << 16)
            if not part:
                raise OSError("it has ended")
            answer += part
        return answer

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    stream.close()
            self._child = None


class Matcher:
    """One job's pattern; given up when it takes too long."""

    def __init__(self, process: PatternProcess, pattern: str, given_up: Callable[[], None]) -> None:
        self._process, self._pattern, self._given_up = process, pattern, given_up
        self._failures = 0

    def match(self, texts: Sequence[str]) -> Groups:
        """The named groups of the texts that match."""
        if self._failures >= FAILURES_MAX:
            return []
        found = self._process.match(self._pattern, texts)
        if found is None:
            self._failures += 1
            if self._failures == FAILURES_MAX:
                self._given_up()
        return found or []


def main() -> None:
    """What the process does."""
    known: dict[str, re.Pattern[str]] = {}
    for line in sys.stdin.buffer:
        pattern, texts = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, ANSWER_S)
        try:
            compiled = known.setdefault(pattern, re.compile(pattern))
            found = [match.groupdict() for text in texts if (match := compiled.search(text)) is not None]
        except (re.error, RecursionError, OverflowError):
            found = []
        answer = [{name: text for name, text in groups.items() if text is not None} for groups in found]
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
