"""What of a policy can be tuned: its parameters with finite ranges, and those that a person gives a range."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any

from headway.core.errors import UserError, did_you_mean, shown
from headway.core.specstring import Part, parse_spec
from headway.policies.registry import choose

SENSIBLE_MAX = 1000.0
"""A parameter whose highest value is above this has no range worth searching unless a person says which."""
DIGITS = 4
"""Figures to which values are tried, so that a spec string says exactly what ran."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter's values: `choices` as they are written in a spec, or numbers from `low` to `high`."""

    name: str
    default: str
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    whole: bool = False
    log: bool = False

    def written(self, value: Any) -> str:
        """A value as a spec string has it."""
        if self.choices or self.whole:
            return str(value)
        return _number(float(value))

    @property
    def holds_default(self) -> bool:
        return self.default in self.choices if self.choices else self.low <= float(self.default) <= self.high


@dataclass(frozen=True, slots=True)
class Space:
    """The policy as given, what is searched, and the parameters left out: those that a person has to give a range."""

    parts: tuple[Part, ...]
    dimensions: tuple[Dimension, ...]
    left_out: tuple[str, ...]

    def spec(self, values: Mapping[str, Any]) -> str:
        """The policy with these values, those that are the default left out."""
        named = {d.name: d.written(values[d.name]) for d in self.dimensions if d.name in values}
        changed = {d.name: named[d.name] for d in self.dimensions if d.name in named and named[d.name] != d.default}
        first = Part(self.parts[0].name, {**self.parts[0].params, **changed})
        return "+".join(map(str, (first, *self.parts[1:])))


def find_space(policy: str, asked: Iterable[str]) -> Space:
    """The space of a policy: what its spec sets stays as it is; `asked` are `key=low..high[:log]` or `key=a|b|c`.

    Raises:
        UserError: an unknown policy or parameter, a range that is none, or nothing to tune.
    """
    choose(policy)
    parts = parse_spec(policy, "policy")
    params = getattr(choose(str(parts[0])).policy, "params", None)
    if not is_dataclass(params):
        raise UserError(f"{shown(parts[0].name)} has no parameters to tune", key="policy")
    fixed = {key.replace("-", "_") for key in parts[0].params}
    known = {f.name: f for f in fields(params) if f.name not in fixed}
    given = dict(_given(text, known, fixed) for text in asked)
    dimensions, left_out = [], []
    for name, field in known.items():
        default, meta = field.default, field.metadata
        text = _text(default)
        if name in given:
            dimensions.append(_from_text(name, given[name], default, meta))
        elif not meta["tuned"]:
            left_out.append(name)
        elif meta["choices"]:
            dimensions.append(Dimension(name, text, choices=tuple(meta["choices"])))
        elif isinstance(default, bool):
            dimensions.append(Dimension(name, text, choices=("false", "true")))
        elif meta["high"] <= SENSIBLE_MAX:
            whole = isinstance(default, int)
            dimensions.append(Dimension(name, text, low=meta["low"], high=meta["high"], whole=whole))
        else:
            left_out.append(name)
    if not dimensions:
        hint = f"; give a range with --space: {', '.join(left_out)}" if left_out else ""
        raise UserError(f"{shown(policy)} has nothing to tune{hint}", key="policy")
    space = Space(parts, tuple(dimensions), tuple(left_out))
    for d in dimensions:
        for value in d.choices or ((int(d.low), int(d.high)) if d.whole else (d.low, d.high)):
            choose(space.spec({d.name: value}))
    return space


def _given(text: str, known: Mapping[str, Any], fixed: set[str]) -> tuple[str, str]:
    key, equals, values = text.strip().partition("=")
    name = key.strip().replace("-", "_")
    if not equals or not name or not values.strip():
        raise UserError(f"expected key=low..high[:log] or key=a|b|c, got {shown(text)}", key="space")
    if name in fixed:
        raise UserError(f"{name} is set by the policy itself", key="space")
    if name not in known:
        listed = ", ".join(known)
        raise UserError(f"unknown parameter {shown(key)}{did_you_mean(name, known)}; it has: {listed}", key="space")
    return name, values.strip()


def _from_text(name: str, text: str, default: Any, meta: Mapping[str, Any]) -> Dimension:
    low, dots, rest = text.partition("..")
    if not dots:
        return Dimension(name, _text(default), choices=tuple(word.strip() for word in text.split("|")))
    high, _, scale = rest.partition(":")
    expected = f"{name}: expected low..high[:log], got {shown(text)}"
    if meta["choices"] or isinstance(default, bool) or scale not in ("", "log"):
        raise UserError(expected, key="space")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise UserError(expected, key="space") from None
    if not all(map(math.isfinite, ends)) or ends[0] >= ends[1] or (scale and ends[0] <= 0):
        raise UserError(f"{expected}: low below high{', above 0 for :log' if scale else ''}", key="space")
    whole = isinstance(default, int)
    if whole and not all(end.is_integer() for end in ends):
        raise UserError(f"{name}: expected whole numbers, got {shown(text)}", key="space")
    return Dimension(name, _text(default), low=ends[0], high=ends[1], whole=whole, log=bool(scale))


def _text(value: Any) -> str:
    """A default as a spec string has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    """A number to `DIGITS` figures without an exponent, whose sign a spec string would take for a second part."""
    return f"{Decimal(f'{value:.{DIGITS}g}'):f}"
