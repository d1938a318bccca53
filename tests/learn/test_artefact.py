"""A model folder: what was written is read again; whatever is not as it was written is refused in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.core.errors import UserError
from headway.features.table import RANK
from headway.learn.artefact import save_model, write_together
from headway.policies.mlfs.artefact import CARD, FEATURES, MANIFEST, WEIGHTS, difference, load_model
from headway.policies.mlfs.net import Net

RANGES = {head: np.tile(np.array([[0.0, 1.0]], np.float32), (len(names), 1)) for head, names in FEATURES.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "m", Net.plain(3), "mlf-rl", RANGES, {"seeds": [1]}, "# card\n")
    return tmp_path / "m"


def manifest(folder: Path, **changed: Any) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


def refused(folder: Path, kind: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_model(folder, kind)
    told = str(caught.value)
    assert "\n" not in told
    return told


def test_what_was_written_is_read_again(folder: Path) -> None:
    model = load_model(folder, "mlf-rl")
    for name, array in Net.plain(3).to_arrays().items():
        assert np.array_equal(model.net.to_arrays()[name], array)
    assert model.manifest["seeds"] == [1] and model.kind == "mlf-rl" and (folder / CARD).read_text() == "# card\n"
    assert model.ranges["rank"].shape == (len(RANK), 2)
    assert sorted(p.name for p in folder.iterdir()) == [CARD, MANIFEST, WEIGHTS]


def test_a_model_of_other_features_is_refused_with_what_differs(folder: Path) -> None:
    features = {head: list(names) for head, names in FEATURES.items()}
    features["rank"] = ["moon", *features["rank"][1:]]
    manifest(folder, features=features, schema="0" * 64)
    told = refused(folder)
    assert f"rank without {RANK[0]} and with moon" in told and "manifest.json: schema" in told
    features["rank"] = list(reversed(RANK))
    assert difference(features) == "rank in another order"
    assert difference({}) == "rank is missing; server is missing; move is missing"


def test_a_schema_of_another_meaning_is_refused(folder: Path) -> None:
    manifest(folder, schema="1" * 64)
    assert "their meaning is not" in refused(folder)


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_weights_that_were_cut_off_are_refused(folder: Path, cut: int) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:cut])
    assert "was cut off or altered" in refused(folder)


def test_one_altered_byte_is_noticed(folder: Path) -> None:
    content = bytearray((folder / WEIGHTS).read_bytes())
    content[-3] ^= 1
    (folder / WEIGHTS).write_bytes(content)
    assert "was cut off or altered" in refused(folder)


def test_other_formats_and_kinds_are_refused(folder: Path) -> None:
    assert "expected a model of rl-placement, got" in refused(folder, "rl-placement")
    manifest(folder, kind="pony")
    assert "mlf-rl or rl-placement" in refused(folder)
    manifest(folder, format=99)
    assert "unknown format 99" in refused(folder)


def test_wrong_shapes_and_numbers_are_refused(tmp_path: Path) -> None:
    import hashlib

    from safetensors.numpy import save

    arrays = dict(Net.plain(1).to_arrays())
    for name, wrong, told in (
        ("rank.w1", arrays["rank.w1"][:3], "rank.w1: expected an array of"),
        ("move.b3", np.array([np.nan], np.float32), "expected finite"),
    ):
        folder = tmp_path / name
        save_model(folder, Net.plain(1), "mlf-rl", RANGES, {}, "")
        content = save({**arrays, name: np.ascontiguousarray(wrong)})
        (folder / WEIGHTS).write_bytes(content)
        manifest(folder, weights_sha256=hashlib.sha256(content).hexdigest())
        assert told in refused(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"format": 1}', "[" * 100_000])
def test_a_broken_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    assert refused(folder)


def test_no_folder_and_ranges_that_are_none(folder: Path, tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none")
    manifest(folder, ranges={"rank": [[0, 1]]})
    assert "ranges.rank: expected the least and the largest" in refused(folder)


def test_a_write_that_fails_leaves_the_old_files(tmp_path: Path) -> None:
    write_together(tmp_path, {"a": b"old", "b": b"old"})
    with pytest.raises(UserError):
        write_together(tmp_path, {"a": b"new", "no/such/folder": b"new"})
    assert (tmp_path / "a").read_bytes() == b"old" and sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]
