"""The catalogue of models: what a job that names its model is expected to do, fitted from public measurements
(`docs/models.md`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import numpy as np

from headway.core.arrays import Floats
from headway.core.errors import UserError, did_you_mean
from headway.perf.speed import Form

VERSION = 1


@dataclass(frozen=True, slots=True)
class Fitted:
    """Where numbers come from, and how far held-out rows lie from them (relative; None: too few rows to hold any out)."""

    source: str
    licence: str
    rows: int
    held_out: int
    error_median: float | None
    error_p90: float | None


@dataclass(frozen=True, slots=True)
class StepFit:
    """Step time on one GPU kind: a SPEED vector in the POLLUX form, valid between the batches (of one GPU) that were measured."""

    params: Floats
    batch_min: float
    batch_max: float
    workers_max: int
    fitted: Fitted


@dataclass(frozen=True, slots=True)
class EpochFit:
    """Seconds per epoch on one GPU: `epoch_s + step_s / batch`."""

    epoch_s: float
    step_s: float
    batch_min: float
    batch_max: float
    fitted: Fitted


@dataclass(frozen=True, slots=True)
class CurveFit:
    """A family's curve: from `start` at k = 0 to `end` at `k_end` (see `value_at`); k is as the family's source logs it."""

    rising: bool
    start: float
    end: float
    k_end: float
    k_end_log_sd: float
    rate: float
    power: float
    fitted: Fitted

    def value_at(self, k: Floats) -> Floats:
        """The value at k; beyond `k_end` it stays at `end`."""
        share = np.clip(np.asarray(k, np.float64) / self.k_end, 0.0, 1.0)
        way = np.expm1(-self.power * np.log1p(self.rate * share)) / np.expm1(-self.power * np.log1p(self.rate))
        result: Floats = self.start + (self.end - self.start) * way
        return result


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """One model. `steps` and `epochs` by GPU kind, `curves` by family of runs, `chain_shares_ppm` by number of partitions."""

    name: str
    parameters: int | None
    gradient_bytes: int | None
    batch_unit: str
    steps: Mapping[str, StepFit]
    epochs: Mapping[str, EpochFit]
    curves: Mapping[str, CurveFit]
    chain_shares_ppm: Mapping[int, tuple[int, ...]]

    def step_fit(self, kind: str) -> StepFit:
        """The step times on a GPU kind.

        Raises:
            UserError: the model was not measured on that kind.
        """
        if kind not in self.steps:
            known = ", ".join(sorted(self.steps)) or "none"
            raise UserError(f"the model {self.name} has no step times on {kind}{did_you_mean(kind, self.steps)}; known: {known}")
        return self.steps[kind]


STEP_COEFFICIENTS = (
    "compute_s",
    "compute_s_per_sample",
    "local_s",
    "local_s_per_worker",
    "remote_s",
    "remote_s_per_worker",
    "overlap",
)


def parse_catalogue(text: str) -> Mapping[str, CatalogueModel]:
    """The models of a catalogue's JSON text."""
    content = json.loads(text)
    assert content["version"] == VERSION, "a catalogue is fitted by the same version that reads it"
    licences = {name: about["licence"] for name, about in content["sources"].items()}

    def fitted(entry: dict[str, object]) -> Fitted:
        source, error = str(entry["source"]), entry["error"]
        rows = entry.get("rows", entry.get("runs"))
        assert isinstance(error, dict) and isinstance(rows, int) and isinstance(entry["held_out"], int)
        return Fitted(source, licences[source], rows, entry["held_out"], error["median"], error["p90"])

    models = {}
    for name, entry in content["models"].items():
        steps = {
            kind: StepFit(
                np.array([float(Form.POLLUX), *(e[c] for c in STEP_COEFFICIENTS)]),
                e["batch_min"], e["batch_max"], e["workers_max"], fitted(e),
            )
            for kind, e in entry.get("steps", {}).items()
        }  # fmt: skip
        epochs = {
            kind: EpochFit(e["epoch_s"], e["step_s"], e["batch_min"], e["batch_max"], fitted(e))
            for kind, e in entry.get("epochs", {}).items()
        }
        curves = {
            family: CurveFit(e["rising"], e["start"], e["end"], e["k_end"], e["k_end_log_sd"], e["rate"], e["power"], fitted(e))
            for family, e in entry.get("curves", {}).items()
        }
        shares = {int(parts): tuple(ppm) for parts, ppm in entry.get("profile", {}).get("chain_shares_ppm", {}).items()}
        models[name] = CatalogueModel(
            name, entry["parameters"], entry["gradient_bytes"], entry.get("batch_unit", "samples"),
            MappingProxyType(steps), MappingProxyType(epochs), MappingProxyType(curves), MappingProxyType(shares),
        )  # fmt: skip
    return MappingProxyType(models)


@cache
def catalogue() -> Mapping[str, CatalogueModel]:
    """The models that the package carries, by name."""
    return parse_catalogue(files("headway.perf").joinpath("catalogue.json").read_text("utf-8"))


def find(name: str) -> CatalogueModel:
    """The model of that name.

    Raises:
        UserError: there is none.
    """
    models = catalogue()
    if name not in models:
        raise UserError(f"unknown model {name}{did_you_mean(name, models)}")
    return models[name]
