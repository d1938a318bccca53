"""The output of jobs, over the API: of one task or of all, as it is or as it comes, over attempts and over restarts of the
controller.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from headway.app.live import FINAL, Client, Json, NoControllerError, Patience, job_path, show
from headway.core.errors import UserError

RANKS_MAX = 64
"""Tasks whose output is followed at once."""
LOOK_S = 0.3
"""How often a job that has not started yet is looked at, in seconds."""
SOON_S = 0.05
"""Until a job is looked at whose output has come to an end, in seconds."""
CHUNKS_KEPT = 256
"""Pieces that are read before they are printed."""


def output(client: Client, job_id: str, *, rank: int = 0, attempt: int = 0) -> Iterator[bytes]:
    """What one task has written up to now. Attempt 0: the newest."""
    return _stream(client, job_id, rank, attempt, 0, follow=False)


def _stream(client: Client, job_id: str, rank: int, attempt: int, offset: int, *, follow: bool) -> Iterator[bytes]:
    params = {"rank": rank, "attempt": attempt, "offset": offset, "follow": follow}
    return client.stream(f"{job_path(job_id)}/logs", params)


class Follower:
    """What one task of a job writes until the job has ended; of one attempt, until that is over.

    Nothing is told twice or left out where the controller is restarted meanwhile, or where `chunks` is left and called again.
    `find` finds the new controller; `waits` is told of a job that has not started yet, again and again; `again` of the number of
    each attempt after the first one.
    """

    def __init__(
        self,
        client: Client,
        job_id: str,
        find: Callable[[], Client],
        *,
        rank: int = 0,
        attempt: int = 0,
        waits: Callable[[Json], None] = lambda _: None,
        again: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._client, self._job, self._rank, self._only = client, job_id, rank, attempt > 0
        self._patience = Patience(client, find)
        self._waits, self._again = waits, again
        self._at, self._offset = attempt, 0

    def chunks(self) -> Iterator[bytes]:
        """The output from where it was left."""
        while True:
            try:
                job = show(self._client, self._job)
                over = job["state"] in FINAL or job["attempt"] > self._at > 0
                self._at = self._at or job["attempt"]
                if self._at:
                    for chunk in _stream(self._client, self._job, self._rank, self._at, self._offset, follow=not over):
                        self._offset += len(chunk)
                        yield chunk
            except NoControllerError as error:
                self._patience.again(error)
                continue
            self._patience.found()
            if over:
                if self._only or job["attempt"] <= self._at:
                    return
                self._at, self._offset = self._at + 1, 0
                self._again(self._at)
            elif self._at:
                time.sleep(SOON_S)
            else:
                self._waits(job)
                time.sleep(LOOK_S)


def ranks_of(job: Json) -> range:
    """The ranks of a job's tasks."""
    count = int(job["tasks"])
    if count > RANKS_MAX:
        raise UserError(f"the job has {count} tasks, and at most {RANKS_MAX} are shown at once: ask for one with --rank")
    return range(count)


def merged(sources: Sequence[Iterator[bytes]]) -> Iterator[tuple[int, str]]:
    """The lines of several streams as they come, each with the number of its stream. A line comes whole."""
    lines: queue.Queue[tuple[int, str | Exception | None]] = queue.Queue(CHUNKS_KEPT)

    def read(number: int, source: Iterator[bytes]) -> None:
        end: Exception | None = None
        try:
            for line in whole_lines(source):
                lines.put((number, line))
        except Exception as error:
            end = error
        lines.put((number, end))

    for number, source in enumerate(sources):
        threading.Thread(target=read, args=(number, source), daemon=True, name=f"headway-log-{number}").start()
    left = len(sources)
    while left:
        number, line = lines.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            left -= 1
        else:
            yield number, line


def whole_lines(source: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream, without their ends; the last one also without an end."""
    rest = b""
    for chunk in source:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
