"""A model of MLF-RL in a folder, read: `manifest.json`, `weights.safetensors`, `card.md`. `headway.learn.artefact` writes it.

Nothing of it is ever executed: the manifest is JSON, the weights are plain arrays. Whatever is not as it was written, or was
made for other features than this version has, is refused in one line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import UserError, shown
from headway.features.table import MOVE, RANK, SCHEMA, SERVER
from headway.policies.mlfs.net import Net

FORMAT = 1
"""Of the folder. A reader takes its own only."""
KINDS = ("mlf-rl", "rl-placement")
MANIFEST, WEIGHTS, CARD = "manifest.json", "weights.safetensors", "card.md"
FEATURES: Mapping[str, tuple[str, ...]] = {"rank": RANK, "server": SERVER, "move": MOVE}
BYTES_MAX = 64 << 20
"""No model of ours comes near; a file beyond is no model."""
NAMES_SHOWN = 4

Json = dict[str, Any]
Ranges = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Model:
    """A trained policy network and what is known of it. `ranges`: for each head (features, 2), the least and the largest value
    that it was trained on."""

    net: Net
    kind: str
    ranges: Ranges
    manifest: Json
    sha256: str
    """Of the weights."""


def load_model(folder: Path, kind: str | None = None) -> Model:
    """The model in a folder; `kind`: the one that is wanted, where only one will do.

    Raises:
        UserError: there is none; it is of another format, kind or feature table; its weights are cut off or were altered; an
            array has another shape than the network's.
    """
    manifest_path, weights_path = folder / MANIFEST, folder / WEIGHTS
    manifest = _manifest(manifest_path)
    _check_manifest(manifest, str(manifest_path), kind)
    content = _read(weights_path)
    sha = hashlib.sha256(content).hexdigest()
    if sha != manifest.get("weights_sha256"):
        told = "was cut off or altered: its SHA-256 is not the one that the manifest names"
        raise UserError(told, file=str(weights_path))
    arrays = _arrays(content, str(weights_path))
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise UserError("expected finite weights", file=str(weights_path))
    try:
        net = Net.from_arrays(arrays)
    except UserError as error:
        raise UserError(error.message, file=str(weights_path), key=error.key) from None
    return Model(net, str(manifest["kind"]), _ranges(manifest, str(manifest_path)), manifest, sha)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > BYTES_MAX:
            raise UserError(f"expected at most {BYTES_MAX >> 20} MiB", file=str(path))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=str(path), key="model") from None


def _manifest(path: Path) -> Json:
    try:
        manifest = json.loads(_read(path))
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict):
        raise UserError("is no manifest of a model: expected a JSON object", file=str(path))
    return manifest


def _check_manifest(manifest: Json, file: str, kind: str | None) -> None:
    if manifest.get("format") != FORMAT:
        told = f"unknown format {shown(manifest.get('format'))}: this version of Headway reads format {FORMAT}"
        raise UserError(told, file=file, key="format")
    made = manifest.get("kind")
    if made not in KINDS or (kind is not None and made != kind):
        raise UserError(f"expected a model of {kind or ' or '.join(KINDS)}, got {shown(made)}", file=file, key="kind")
    features = manifest.get("features")
    if manifest.get("schema") != SCHEMA or features != {head: list(names) for head, names in FEATURES.items()}:
        differ = difference(features)
        told = f"was made for another feature table: {differ or 'the names are the same, their meaning is not'}"
        raise UserError(told, file=file, key="schema")


def difference(features: object) -> str:
    """How a model's feature names differ from this version's, in words; "" if they do not."""
    if not isinstance(features, dict):
        return "it names no features"
    told = []
    for head, names in FEATURES.items():
        theirs = features.get(head)
        if not isinstance(theirs, list):
            told.append(f"{head} is missing")
            continue
        theirs = [str(name) for name in theirs]
        lacks, has = [n for n in names if n not in theirs], [n for n in theirs if n not in names]
        words = [f"without {_some(lacks)}"] * bool(lacks) + [f"with {_some(has)}"] * bool(has)
        if not words and theirs != list(names):
            words = ["in another order"]
        told += [f"{head} {' and '.join(words)}"] * bool(words)
    return "; ".join(told)


def _some(names: list[str]) -> str:
    rest = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _arrays(content: bytes, file: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found: dict[str, NDArray[Any]] = load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"holds no weights: {error}", file=file) from None
    return found


def _ranges(manifest: Json, file: str) -> Ranges:
    given, found = manifest.get("ranges"), {}
    for head, names in FEATURES.items():
        try:
            values = np.asarray(given[head], np.float32)  # type: ignore[index]
        except (KeyError, TypeError, ValueError, OverflowError):
            values = np.zeros(0, np.float32)
        if values.shape != (len(names), 2) or not np.isfinite(values).all():
            told = f"expected the least and the largest value of each of {len(names)} features"
            raise UserError(told, file=file, key=f"ranges.{head}")
        found[head] = values
    return found
