"""Whether the job is to stop: SIGTERM as a flag, looked at between steps, since saving inside a signal handler hangs or corrupts.

Where no handler can be set (the first import came from a thread, or a library has put its own in its place), the controller is
asked over HTTP, every two seconds.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Any

from headway.job.sending import SENDER, call
from headway.job.task import TASK

POLL_S = 2.0


class _Stop:
    """What is known of it. `asked`: the script looks at it, or saves itself."""

    def __init__(self) -> None:
        self.told = False
        self.asked = False
        self.installed = False
        self.before: Any = None

    def handle(self, number: int, frame: Any) -> None:
        """On SIGTERM."""
        first, self.told = not self.told, True
        if first:
            SENDER.flush(0.5)
        if callable(self.before):
            self.before(number, frame)
        elif self.before is not signal.SIG_IGN and not self.asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


_STOP = _Stop()


def install() -> None:
    """Set the handler, inside Headway and in the main thread; else nothing happens."""
    if not TASK.in_headway or _STOP.installed or threading.current_thread() is not threading.main_thread():
        return
    try:
        before = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, _STOP.handle)
    except (ValueError, OSError):
        return  # the main thread of a subinterpreter
    _STOP.before, _STOP.installed = before, True


def cooperates() -> None:
    """The script saves itself, or looks at `should_stop`: SIGTERM alone does not end it."""
    if not _STOP.asked:
        _STOP.asked = True
        install()
        if TASK.in_headway and TASK.url and not (_STOP.installed and signal.getsignal(signal.SIGTERM) == _STOP.handle):
            threading.Thread(target=_poll, name="headway-stop", daemon=True).start()


def should_stop() -> bool:
    """Whether the job is to save itself and leave now. Cheap enough for every step."""
    if not _STOP.asked:
        cooperates()
    return _STOP.told


def _poll() -> None:
    """Ask the controller until it says stop."""
    pause = threading.Event()
    while not _STOP.told:
        answer = call(f"/v1/jobs/{TASK.job}/stop")
        try:
            if answer is not None and json.loads(answer).get("stop") is True:
                _STOP.told = True
                return
        except (ValueError, AttributeError):
            pass
        pause.wait(POLL_S)
