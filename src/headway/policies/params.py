"""Parameters of policies: one frozen dataclass each, made from the words of a spec string."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from math import isfinite
from typing import Any, TypeVar

from headway.core.errors import UserError, did_you_mean, shown
from headway.place.gang import Kernel

P = TypeVar("P")
PLACEMENTS = {kernel.name.lower().replace("_", "-"): int(kernel) for kernel in Kernel}


def param(
    default: Any, doc: str, *, low: float = 0, high: float = 1e12, choices: tuple[str, ...] = (), tuned: bool = True
) -> Any:  # fmt: skip
    """A field of a parameters class: its default, what it means, what is allowed, and whether `headway tune` searches it."""
    return field(default=default, metadata={"doc": doc, "low": low, "high": high, "choices": choices, "tuned": tuned})


@dataclass(frozen=True, slots=True)
class Common:
    """Parameters that every classic policy has."""

    placement: str = param("consolidated", "placement kernel", choices=tuple(PLACEMENTS))
    sharing: bool = param(False, "put jobs that allow it side by side on one GPU")

    @property
    def kernel(self) -> int:
        return PLACEMENTS[self.placement]


def make_params(cls: type[P], policy: str, words: dict[str, str]) -> P:
    """A parameters object from `key=value` words.

    Raises:
        UserError: an unknown key (with the nearest known one), a value of the wrong type or outside its range.
    """
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, word in words.items():
        name = key.replace("-", "_")
        if name not in known:
            names = ", ".join(sorted(known)) or "none"
            raise UserError(f"unknown parameter {shown(key)} of policy {policy}{did_you_mean(name, known)}; it has: {names}")
        values[name] = _value(policy, key, word, known[name].default, known[name].metadata)
    return cls(**values)


def _value(policy: str, key: str, word: str, default: Any, meta: Any) -> Any:
    if meta["choices"]:
        if word not in meta["choices"]:
            near = did_you_mean(word, meta["choices"])
            raise UserError(f"{policy}: {key}: expected one of {', '.join(meta['choices'])}, got {shown(word)}{near}")
        return word
    if isinstance(default, bool):
        if word.lower() not in ("true", "false"):
            raise UserError(f"{policy}: {key}: expected true or false, got {shown(word)}")
        return word.lower() == "true"
    if isinstance(default, str):
        return word
    kind = "a whole number" if isinstance(default, int) else "a number"
    try:
        value = int(word) if isinstance(default, int) else float(word)
    except ValueError:
        raise UserError(f"{policy}: {key}: expected {kind}, got {shown(word)}") from None
    if not isfinite(value) or not meta["low"] <= value <= meta["high"]:
        raise UserError(f"{policy}: {key}: expected {kind} from {meta['low']:g} to {meta['high']:g}, got {shown(word)}")
    return value


def describe(cls: type[Any]) -> list[tuple[str, Any, str]]:
    """(name, default, meaning) of every parameter."""
    return [
        (f.name, None if f.default is MISSING else f.default, " | ".join(f.metadata["choices"]) or f.metadata["doc"])
        for f in fields(cls)
    ]
