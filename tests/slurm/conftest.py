"""A real Slurm of four emulated nodes, for tests that are marked `live`; skipped, with the reason, where its programs
are not installed or its daemons do not come up."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .emulated import EmulatedSlurm, missing


@pytest.fixture(scope="session")
def slurm() -> Iterator[EmulatedSlurm]:
    if why := missing():
        pytest.skip(f"no Slurm here: {why}")
    # Not pytest's own folder: jobs run as other users, who may not enter that.
    with tempfile.TemporaryDirectory(prefix="headway-slurm-", ignore_cleanup_errors=True) as folder:
        made = EmulatedSlurm(Path(folder))
        try:
            try:
                made.start()
            except AssertionError as error:  # a machine that forbids what the daemons need; the message says what they said
                pytest.skip(f"Slurm does not come up here: {error}")
            yield made
        finally:
            made.stop()
