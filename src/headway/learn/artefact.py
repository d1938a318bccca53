"""A model folder, written: whole or not at all. `headway.policies.mlfs.artefact` reads it and says what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from headway.core.errors import UserError
from headway.features.table import SCHEMA
from headway.policies.mlfs.artefact import CARD, FEATURES, FORMAT, MANIFEST, WEIGHTS, Json
from headway.policies.mlfs.net import Net

FILES = (WEIGHTS, CARD, MANIFEST)
"""In the order in which they take their names: the manifest, which vouches for the weights, last."""


def save_model(
    folder: Path, net: Net, kind: str, ranges: Mapping[str, NDArray[Any]], about: Mapping[str, Any], card: str
) -> Json:
    """Write a model into a folder, over the one that is there, and return its manifest. `about` is what else the manifest says.

    Raises:
        UserError: it cannot be written.
    """
    weights = save({name: np.ascontiguousarray(array, np.float32) for name, array in net.to_arrays().items()})
    manifest: Json = {
        "format": FORMAT,
        "kind": kind,
        "schema": SCHEMA,
        "features": {head: list(names) for head, names in FEATURES.items()},
        "ranges": {head: np.asarray(ranges[head], np.float64).tolist() for head in FEATURES},
        **about,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
    }
    told = json.dumps(manifest, indent=2, allow_nan=False) + "\n"
    write_together(folder, {WEIGHTS: weights, CARD: card.encode(), MANIFEST: told.encode()})
    return manifest


def write_together(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write some files of a folder so that a stop at any moment leaves the old ones, or new ones: all are written under other
    names and synced first, then they take their names in the order given.

    Raises:
        UserError: they cannot be written.
    """
    partial = folder / ".partial"
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, content in files.items():
            with (partial / name).open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        for name in files:
            (partial / name).replace(folder / name)
        partial.rmdir()
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", file=str(folder), key="out") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
