"""The tokens of tasks: each opens its own job alone, and only while its attempt is the job's present one.

A token is `hwjob_JOB_ATTEMPT_MAC`: nothing is stored for it but one key a home, in HOME/job.key (mode 0600). With the same key
goes the job's *uid*, by which checkpoints of a job are told from those of other jobs, also of other homes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from pathlib import Path

from headway.core import columns as c
from headway.core.columns import Phase
from headway.core.errors import UserError
from headway.core.state import State

KEY_BYTES = 32
MAC_LENGTH = 32
_TOKEN = re.compile(r"hwjob_(\d{1,18})_(\d{1,18})_([0-9a-f]{32})", re.ASCII)


class JobTokens:
    """Makes and reads the tokens of one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def make(self, job: int, attempt: int) -> str:
        """The token of an attempt; all of its tasks have the same."""
        return f"hwjob_{job}_{attempt}_{self._mac(f'token:{job}:{attempt}')}"

    def read(self, token: str) -> tuple[int, int] | None:
        """The job and the attempt that a token was made for; None for one that is not ours."""
        found = _TOKEN.fullmatch(token)
        if found is None:
            return None
        job, attempt = int(found[1]), int(found[2])
        return (job, attempt) if hmac.compare_digest(self._mac(f"token:{job}:{attempt}"), found[3]) else None

    def live(self, token: str, state: State) -> tuple[int, int] | None:
        """As `read`, if the attempt is the job's present one and has not ended."""
        found = self.read(token)
        return found if found is not None and is_present(state, *found) else None

    def uid(self, job: int) -> str:
        """What tells this job from all others; no secret."""
        return self._mac(f"uid:{job}")[:16]

    def _mac(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()[:MAC_LENGTH]


def is_present(state: State, job: int, attempt: int) -> bool:
    """Whether an attempt is the job's present one, and has not ended."""
    row = state.row(job)
    return row is not None and bool(state.J[c.J_ATTEMPT, row] == attempt and state.J[c.J_PHASE, row] != Phase.QUEUED)


def load_key(path: Path) -> bytes:
    """The key in a file that only its owner may read; made at random the first time. `UserError` if that can't be."""
    for _ in range(2):
        try:
            found = bytes.fromhex(path.read_text("ascii").strip())
            if len(found) >= KEY_BYTES:
                return found
            raise UserError(f"expected {KEY_BYTES} bytes in hexadecimal: remove it, and a new one is made", file=str(path))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise UserError(f"can't be read: {error}", file=str(path)) from None
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
                file.flush()
                os.fsync(descriptor)
            try:
                os.link(partial, path)  # the first of two that make one
            except FileExistsError:
                pass
            finally:
                partial.unlink()
        except OSError as error:
            raise UserError(f"can't be written: {error.strerror or error}", file=str(path)) from None
    raise UserError("can't be made", file=str(path))
