"""The paper's numbers (`paper.toml`), which are data: orders, improvements, studies and the points of its figures."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

TESTBED, LARGE = "testbed", "large"


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """One of the paper's figures 4 and 5: a metric of every method over five loads, in our units."""

    name: str
    key: str
    title: str
    scale: str
    loads: tuple[int, ...]
    methods: Mapping[str, tuple[float, ...]]

    def at(self, method: str, load: int) -> float | None:
        """The value of a method at one of the figure's loads."""
        if method not in self.methods or load not in self.loads:
            return None
        return self.methods[method][self.loads.index(load)]


@dataclass(frozen=True, slots=True)
class Order:
    """Methods from the best to the worst; those of a tier are about equal."""

    key: str
    figures: str
    tiers: tuple[tuple[str, ...], ...]
    lowest: bool
    """Whether it is said of the lowest load instead of the highest."""
    note: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """Improvements of methods over others: (of, versus, testbed, simulation), as shares."""

    key: str
    title: str
    figures: str
    lowest: bool
    pairs: tuple[tuple[str, str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Stated:
    """Values that the text states without a figure, in our units."""

    key: str
    title: str
    loads: str
    methods: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Study:
    """What one part of the system is worth: the claimed gain over the loads (a price is negative), and the figure's two lines."""

    name: str
    figure: str
    key: str
    title: str
    claim: tuple[float, float]
    base: str
    without: str
    with_values: tuple[float, ...]
    without_values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Paper:
    """All of them."""

    orders: tuple[Order, ...]
    ratios: tuple[Ratio, ...]
    stated: tuple[Stated, ...]
    studies: tuple[Study, ...]
    figures: tuple[PaperFigure, ...]

    def figure(self, key: str, scale: str = TESTBED) -> PaperFigure | None:
        """The figure of a metric."""
        return next((figure for figure in self.figures if (figure.key, figure.scale) == (key, scale)), None)


@cache
def paper() -> Paper:
    """Read `paper.toml`."""
    read = tomllib.loads(files("headway.report.mlfs").joinpath("paper.toml").read_text("utf-8"))
    return Paper(
        orders=tuple(
            Order(o["key"], o["figures"], tuple(map(tuple, o["tiers"])), o.get("load") == "lowest", o.get("note", ""))
            for o in read["order"]
        ),
        ratios=tuple(
            Ratio(
                r["key"], r["title"], r["figures"], r.get("load") == "lowest",
                tuple((of, versus, test / 100, sim / 100) for of, versus, test, sim in r["pairs"]),
            )
            for r in read["ratio"]
        ),
        stated=tuple(Stated(s["key"], s["title"], s["loads"], _scaled(s["methods"], s["unit"])) for s in read["stated"]),
        studies=tuple(
            Study(
                s["name"], s["figure"], s["key"], s["title"], (s["claim"][0] / 100, s["claim"][1] / 100), s["base"], s["without"],
                _times(s["with_values"], s["unit"]), _times(s["without_values"], s["unit"]),
            )
            for s in read["study"]
        ),
        figures=tuple(
            PaperFigure(f["name"], f["key"], f["title"], f["scale"], tuple(f["loads"]), _scaled(f["methods"], f["unit"]))
            for f in read["figure"]
        ),
    )  # fmt: skip


def _scaled(methods: Mapping[str, Sequence[float]], unit: float) -> dict[str, tuple[float, ...]]:
    return {name: _times(values, unit) for name, values in methods.items()}


def _times(values: Sequence[Any], unit: float) -> tuple[float, ...]:
    return tuple(value * unit for value in values)
