"""A real Slurm of four emulated nodes, for tests that are marked `live`; skipped where its programs are not installed."""

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
            made.start()
            yield made
        finally:
            made.stop()
