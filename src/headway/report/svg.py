"""A small SVG writer: line charts, intervals and Gantt charts. Colours are classes, so that a page can change them with the
reader's light or dark setting; a picture of its own carries the light ones.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from headway.core.errors import one_line
from headway.report.scale import NBSP, Tick, thinned

FONT = 12
CHAR = 6.6
"""Width of a letter of the labels, on average."""
LEGEND_LENGTH_MAX = 44
SLOTS = 8
DASHES = ("", "7 4", "2 3")
"""Lines beyond the colours are dashed."""
HUES = 12

LIGHT = {
    "paper": "#ffffff", "ink": "#1c2430", "soft": "#5a6675", "grid": "#e4e8ee", "axis": "#aab3bf",
    "c0": "#2563c9", "c1": "#d4581c", "c2": "#14875a", "c3": "#9a3fb5", "c4": "#a87b00", "c5": "#0b87a0", "c6": "#c22d61",
    "c7": "#5f6b7a",
}  # fmt: skip
DARK = {
    "paper": "#161b22", "ink": "#e8ecf1", "soft": "#a3aebb", "grid": "#2b333d", "axis": "#56616e",
    "c0": "#7fb0ff", "c1": "#ff9d69", "c2": "#58d39e", "c3": "#d997ec", "c4": "#e6c04e", "c5": "#5fcde3", "c6": "#ff8fb0",
    "c7": "#aab4c0",
}  # fmt: skip


def _hue(k: int, lightness: float, saturation: float) -> str:
    """One of `HUES` colours, neighbours far apart on the wheel."""
    red, green, blue = colorsys.hls_to_rgb((k * 5 % HUES) / HUES, lightness, saturation)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


LIGHT |= {f"j{k}": _hue(k, 0.62, 0.52) for k in range(HUES)}
DARK |= {f"j{k}": _hue(k, 0.50, 0.42) for k in range(HUES)}


def figure_css(colour: dict[str, str] | None = None) -> str:
    """The rules of all figures; without colours they refer to the page's variables."""
    of = {name: f"var(--{name})" for name in LIGHT} if colour is None else colour
    rules = [
        f".hw text{{font:{FONT}px system-ui,'Segoe UI',Roboto,'DejaVu Sans',Arial,sans-serif;fill:{of['soft']}}}",
        f".hw .name{{fill:{of['ink']}}}",
        f".hw .title{{fill:{of['ink']};font-size:15px;font-weight:600}}",
        ".hw .end{text-anchor:end}.hw .mid{text-anchor:middle}",
        f".hw .paper{{fill:{of['paper']}}}",
        f".hw .grid{{stroke:{of['grid']};stroke-width:1}}",
        f".hw .axis{{stroke:{of['axis']};stroke-width:1}}",
        ".hw .line{fill:none;stroke-width:1.8;stroke-linejoin:round}",
        f".hw .bar{{stroke:{of['paper']};stroke-width:.6}}.hw .pale{{fill-opacity:.4}}",
        ".hw .on{fill:#0d1218;font-size:10px;font-weight:600}",
    ]
    rules += [f".hw .s{k}{{stroke:{of[f'c{k}']}}}.hw .f{k}{{fill:{of[f'c{k}']}}}" for k in range(SLOTS)]
    rules += [f".hw .j{k}{{fill:{of[f'j{k}']}}}" for k in range(HUES)]
    return "\n".join(rules)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high` with its ticks; `log` spaces ratios evenly."""

    label: str
    low: float
    high: float
    ticks: Sequence[Tick]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        if self.log:
            value, low, high = (math.log(max(v, 1e-12)) for v in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low or 1.0), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points (x ascending); with `steps`, `x` holds one more number: the edges of bins of height `y`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    slot: int
    steps: bool = False


@dataclass(frozen=True, slots=True)
class Interval:
    """A named value with the ends of its interval, if it has one."""

    name: str
    middle: float
    low: float | None
    high: float | None
    slot: int


@dataclass(frozen=True, slots=True)
class Bar:
    """A piece of a Gantt chart: a job on rows `row … row + rows − 1` from `start` to `end`."""

    row: int
    rows: int
    start: float
    end: float
    hue: int
    pale: bool
    label: str
    tip: str


def text(value: str) -> str:
    """Text as SVG and HTML carry it: one line, nothing of it is markup."""
    return escape(one_line(value.replace(NBSP, " ")), quote=True)


def n(value: float) -> str:
    """A coordinate, to a tenth of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """Elements of one picture, and its frame around them."""

    def __init__(self, width: int, title: str, *, alone: bool) -> None:
        self.width, self.title, self.alone = width, title, alone
        self.parts: list[str] = []
        self.y = 0.0
        if alone:
            self.y = 26.0
            self.label(8, 20, title, "title")

    def label(self, x: float, y: float, value: str, classes: str = "") -> None:
        """Text at a point."""
        mark = f' class="{classes}"' if classes else ""
        self.parts.append(f'<text{mark} x="{n(x)}" y="{n(y)}">{text(value)}</text>')

    def rule(self, x1: float, y1: float, x2: float, y2: float, classes: str) -> None:
        """A straight line."""
        self.parts.append(f'<line class="{classes}" x1="{n(x1)}" y1="{n(y1)}" x2="{n(x2)}" y2="{n(y2)}"/>')

    def lower_axis(self, x: Axis, left: float, right: float, top: float, bottom: float) -> None:
        """Upright lines at the ticks of the lower axis, and below them the labels and the axis' own."""
        at = [left + x.share(tick.value) * (right - left) for tick in x.ticks]
        kept = thinned(x.ticks, at, CHAR)
        for tick, here in zip(x.ticks, at, strict=True):
            if tick in kept:
                half = len(tick.label) * CHAR / 2
                self.rule(here, top, here, bottom, "axis" if tick.value == 0 and x.low < 0 else "grid")
                self.label(max(min(here, self.width - 4 - half), 4 + half), bottom + 17, tick.label, "mid")
        self.label((left + right) / 2, bottom + 36, x.label, "mid")

    def legend(self, entries: Sequence[tuple[str, str, str]]) -> None:
        """(name, classes, dashes) as short lines with their names, in as many rows as they need."""
        x, row = 8.0, self.y + 16
        for name, classes, dashes in entries:
            shown = name if len(name) <= LEGEND_LENGTH_MAX else name[: LEGEND_LENGTH_MAX - 1] + "…"
            size = 26 + len(shown) * CHAR + 14
            if x > 8 and x + size > self.width - 4:
                x, row = 8.0, row + 18
            dash = f' stroke-dasharray="{dashes}"' if dashes else ""
            self.parts.append(
                f'<path class="line {classes}"{dash} d="M{n(x)} {n(row - 4)}h20"/>'
                f'<text class="name" x="{n(x + 26)}" y="{n(row)}">{text(shown)}</text>'
            )
            x += size
        self.y = row + 8

    def svg(self, height: float) -> str:
        """The whole picture."""
        box = f'viewBox="0 0 {self.width} {n(height)}"'
        if not self.alone:
            return f'<svg class="hw" {box} role="img" aria-label="{text(self.title)}">{"".join(self.parts)}</svg>'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="hw" {box} width="{self.width}" height="{n(height)}">'
            f"<title>{text(self.title)}</title><style>{figure_css(LIGHT)}</style>"
            f'<rect class="paper" width="100%" height="100%"/>{"".join(self.parts)}</svg>\n'
        )


def look(line_slot: int) -> tuple[str, str]:
    """(class, dashes) of the n-th line."""
    return f"s{line_slot % SLOTS}", DASHES[line_slot // SLOTS % len(DASHES)]


def line_chart(lines: Sequence[Line], x: Axis, y: Axis, *, title: str, width: int, height: int = 260, alone: bool = False) -> str:
    """Lines over two axes, with a legend above. `height` is that of the plot alone."""
    picture = Picture(width, title, alone=alone)
    picture.legend([(line.name, *look(line.slot)) for line in lines])
    left = 14 + max((len(tick.label) for tick in y.ticks), default=1) * CHAR
    right, top = width - 14.0, picture.y + 22
    bottom = top + height
    picture.label(4, picture.y + 10, y.label)

    def at_x(value: float) -> float:
        return left + x.share(value) * (right - left)

    def at_y(value: float) -> float:
        return bottom - y.share(value) * height

    for tick in y.ticks:
        level = at_y(tick.value)
        picture.rule(left, level, right, level, "axis" if tick.value == y.low else "grid")
        picture.label(left - 6, level + 4, tick.label, "end")
    picture.lower_axis(x, left, right, top, bottom)
    if not lines:
        picture.label((left + right) / 2, (top + bottom) / 2, "nothing to show", "mid")
    for line in lines:
        classes, dashes = look(line.slot)
        dash = f' stroke-dasharray="{dashes}"' if dashes else ""
        path = _steps(line, at_x, at_y) if line.steps else _through(line, at_x, at_y)
        if path:
            picture.parts.append(f'<path class="line {classes}"{dash} d="{path}"/>')
    return picture.svg(bottom + 44)


def _through(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    points = [f"{n(at_x(a))} {n(at_y(b))}" for a, b in zip(line.x, line.y, strict=True)]
    return "M" + "L".join(points) if points else ""


def _steps(line: Line, at_x: Callable[[float], float], at_y: Callable[[float], float]) -> str:
    """A level for each bin, joined by upright lines; equal levels in a row make one."""
    path, last = "", ""
    for k, value in enumerate(line.y):
        level = n(at_y(value))
        if not path:
            path = f"M{n(at_x(line.x[0]))} {level}"
        elif level != last:
            path += f"H{n(at_x(line.x[k]))}V{level}"
        last = level
    return path + f"H{n(at_x(line.x[-1]))}" if path else ""


def interval_chart(rows: Sequence[Interval], x: Axis, *, title: str, width: int, alone: bool = False) -> str:
    """A dot and its interval for each row, over an axis with a line at 0."""
    picture = Picture(width, title, alone=alone)
    names_above = width < 600
    left = 16.0 if names_above else 24 + min(max(len(row.name) for row in rows), 34) * CHAR
    right, top = width - 16.0, picture.y + 10
    step = 40 if names_above else 28
    bottom = top + step * len(rows)

    def at(value: float) -> float:
        return left + x.share(value) * (right - left)

    picture.lower_axis(x, left, right, top, bottom)
    for k, row in enumerate(rows):
        level = top + step * (k + 0.5) + (6 if names_above else 0)
        shown = row.name if len(row.name) <= 34 else row.name[:33] + "…"
        if names_above:
            picture.label(left, level - 10, shown, "name")
        else:
            picture.label(left - 12, level + 4, shown, "name end")
        colour = row.slot % SLOTS
        if row.low is not None and row.high is not None:
            picture.parts.append(f'<path class="line s{colour}" d="M{n(at(row.low))} {n(level)}H{n(at(row.high))}"/>')
        picture.parts.append(f'<circle class="f{colour}" cx="{n(at(row.middle))}" cy="{n(level)}" r="4.5"/>')
    return picture.svg(bottom + 44)


def gantt_chart(
    bars: Sequence[Bar], nodes: Sequence[tuple[str, int]], x: Axis, *, title: str, width: int, alone: bool = False
) -> str:
    """Who held which GPU when: a row for each GPU, `nodes` are (name, GPUs) from the top."""
    picture = Picture(width, title, alone=alone)
    rows = sum(gpus for _, gpus in nodes)
    row = 14.0 if rows <= 16 else 9.0 if rows <= 48 else 6.0
    shown = [name if len(name) <= 14 else name[:13] + "…" for name, _ in nodes]
    left = 14 + max(map(len, shown), default=1) * CHAR
    right, top = width - 14.0, picture.y + 8
    tops: list[float] = []
    y = top
    for name, (_, gpus) in zip(shown, nodes, strict=True):
        tops += [y + k * row for k in range(gpus)]
        if gpus * row >= FONT or not tops:
            picture.label(left - 6, y + gpus * row / 2 + 4, name, "end")
        picture.rule(left, y - 1, right, y - 1, "grid")
        y += gpus * row + 2
    bottom = y - 1
    picture.rule(left, bottom, right, bottom, "axis")

    def at(value: float) -> float:
        return left + x.share(value) * (right - left)

    picture.lower_axis(x, left, right, top, bottom)
    for bar in bars:
        x1, x2 = at(bar.start), at(bar.end)
        high, size = tops[bar.row], bar.rows * row
        pale = " pale" if bar.pale else ""
        picture.parts.append(
            f'<rect class="bar j{bar.hue % HUES}{pale}" x="{n(x1)}" y="{n(high)}" width="{n(max(x2 - x1, 0.3))}" '
            f'height="{n(size)}"><title>{text(bar.tip)}</title></rect>'
        )
        if not bar.pale and size >= FONT and x2 - x1 > len(bar.label) * 6 + 6:
            picture.label((x1 + x2) / 2, high + size / 2 + 3.5, bar.label, "on mid")
    return picture.svg(bottom + 44)
