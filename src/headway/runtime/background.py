"""A thread beside the controller's loop that is told when to end."""

from __future__ import annotations

import threading


class Background:
    """`start`, and at last `stop`. `_run` is what the thread does; it ends soon after `_end` is set."""

    def __init__(self, name: str) -> None:
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._end.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
