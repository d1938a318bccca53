"""What a task's standard output tells: Hugging Face's dictionaries, tqdm's and Keras' bars, Lightning's, `name=value`.

Everything is bounded: a line counts with its first `LINE_BYTES_MAX` bytes, whatever follows up to its end is thrown away; bytes
that are no UTF-8 become marks; colours and cursor movements are taken out. A carriage return ends a line as a line feed does.

**Bars.** `73/1300 [00:48<13:57, …]` is 73 steps of 1300. A bar that begins again (one an epoch) counts on from where it was;
one that names its epoch (`Epoch 2:  10%|…| 73/1300`, `Epoch: [2][73/1300]`) says so itself. Bars with another description
(`Map`, `Validation`, `Downloading`) are no steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import isnan

from headway.progress.names import MetricNames
from headway.progress.told import Source, Told

LINE_BYTES_MAX = 4096
OTHER_MAX = 64
BAR_ORDER = 100
"""A bar counts for less than a number that is called a step."""
PATTERN_BONUS = 1000
"""What the job's own pattern finds comes before all."""

_ENDS = re.compile(rb"[\r\n]+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f]")
_NUMBER = r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_PAIR = re.compile(
    rf"(?<![\w.@])['\"]?([a-z_][\w./@-]{{0,60}})['\"]?(\s{{0,4}}[=:]\s{{0,8}}|\s{{1,8}})[\[(]?\s{{0,4}}['\"]?(?:tensor\()?"
    rf"({_NUMBER})(?![\w.])(\s?%)?(?:\s{{0,4}}/\s{{0,4}}(\d{{1,15}})(?![\w.]))?",
    re.IGNORECASE,
)
_BAR = re.compile(r"(?:^|\|)\s*(\d{1,15})/(\d{1,15}) \[[\d:?]+<[\d:?, ]+")
_RATE = re.compile(r"(?:[\d.]+|\?)\s?(?:(?:it|step|steps|batch|batches|iter|epoch)s?/s|s/(?:it|step|batch|epoch))", re.IGNORECASE)
_KERAS = re.compile(r"^\s*(\d{1,15})/(\d{1,15})\s+(?:\x1b\S*)?[\[━─=]")
_EPOCH_AND_BATCH = re.compile(r"epoch:?\s{0,4}\[\s{0,4}(\d{1,9})\]\s{0,4}\[\s{0,6}(\d{1,12})/(\d{1,12})\]", re.IGNORECASE)
_BAR_EPOCH = re.compile(r"^\s*epoch\s{0,4}\[?(\d{1,9})(?:\s?/\s?(\d{1,9}))?\]?", re.IGNORECASE)
_BAR_NAMES = re.compile(r"^(?:|\d+|train(?:ing)?|epochs?|steps?|iterations?|iters?|batch(?:es)?|progress|fit)$", re.IGNORECASE)


class Lines:
    """Cuts bytes into lines of bounded length; what has no end yet waits for it."""

    def __init__(self) -> None:
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now, each with its first bytes only."""
        *whole, last = _ENDS.split(data)
        if not whole:
            self._open = (self._open + last[:LINE_BYTES_MAX])[:LINE_BYTES_MAX]
            return []
        whole[0] = (self._open + whole[0][:LINE_BYTES_MAX])[:LINE_BYTES_MAX]
        self._open = last[:LINE_BYTES_MAX]
        return [line[:LINE_BYTES_MAX] for line in whole if line]

    def skip(self) -> None:
        """Something was left out: what is open belongs to nothing."""
        self._open = b""

    def rest(self) -> list[bytes]:
        """The last line, which has no end."""
        line, self._open = self._open, b""
        return [line] if line else []


def text_of(line: bytes) -> str:
    """A line as text, without escapes."""
    text = line.decode("utf-8", "replace")
    return _ESCAPES.sub("", text) if any(mark in line for mark in (b"\x1b", b"\x08", b"\x00")) else text


@dataclass(slots=True)
class _Lap:
    """How far a bar that begins again and again has come."""

    done: int = 0
    before: int = 0

    def count(self, at: int, total: int) -> int:
        if at < self.before:
            self.done += total
        self.before = at
        return self.done + at


@dataclass(slots=True)
class OutputReader:
    """Reads one task's lines; remembers which bars there were."""

    names: MetricNames
    rank: int = 0
    total: int | None = None
    """What the job has said of its length: the bar of this length is the job's."""
    _laps: dict[int, _Lap] = field(default_factory=dict)
    _bar: tuple[int, int] | None = None
    """Order and length of the bar that counts."""

    def read(self, line: str) -> Told | None:
        """What a line tells; None if nothing."""
        values: dict[str, tuple[float, int]] = {}
        other: list[tuple[str, float]] = []
        text = line
        batch = _EPOCH_AND_BATCH.search(line)
        if batch is not None:
            epoch, at, each = (int(group) for group in batch.groups())
            values["epoch"], values["step"] = (float(epoch), 0), (float(epoch * each + at), BAR_ORDER)
            text = line[: batch.start()] + line[batch.end() :]
        bar = _BAR.search(line)
        if bar is not None:
            title = line[: bar.start()].rpartition("%")[0].rstrip("0123456789 ").rstrip(":").strip()
            if not self._is_ours(title, line):
                return None
            self._take_bar(title, int(bar[1]), int(bar[2]), values)
            text = line[bar.end() :]
        elif (keras := _KERAS.match(line)) is not None:
            self._take_bar("", int(keras[1]), int(keras[2]), values)
            text = line[keras.end() :]
        for match in _PAIR.finditer(text):
            self._pair(match, values, other)
        return self._told(values, other)

    def matched(self, groups: dict[str, str]) -> Told | None:
        """What the job's own pattern has found: groups named step, epoch, loss, accuracy, total; others are other metrics."""
        values: dict[str, tuple[float, int]] = {}
        other: list[tuple[str, float]] = []
        for name, text in groups.items():
            try:
                value = float(text.strip().rstrip("%").replace(",", ""))
            except ValueError:
                continue
            value = value / 100 if text.strip().endswith("%") else value
            if name in ("step", "epoch", "loss", "accuracy", "total"):
                values[name] = value, -PATTERN_BONUS
            else:
                other.append((name, value))
        return self._told(values, other)

    def _told(self, values: dict[str, tuple[float, int]], other: list[tuple[str, float]]) -> Told | None:
        if not values and not other:
            return None
        nothing = (None, 0)
        step, step_order = values.get("step", nothing)
        loss, loss_order = values.get("loss", nothing)
        accuracy, accuracy_order = values.get("accuracy", nothing)
        if step is not None and (isnan(step) or step < 0):
            step = None
        epoch = values.get("epoch", nothing)[0]
        if epoch is not None and (isnan(epoch) or epoch < 0):
            epoch = None
        return Told(
            Source.OUTPUT, self.rank, step, epoch, loss, accuracy, values.get("total", nothing)[0], step_order, loss_order,
            accuracy_order, other=tuple(other[:OTHER_MAX]),
        )  # fmt: skip

    def _pair(self, match: re.Match[str], values: dict[str, tuple[float, int]], other: list[tuple[str, float]]) -> None:
        name, between, text, percent, _ = match.groups()
        value = float(text)
        role = self.names.role(name.replace("@", ""))
        if role is None:
            if not between.isspace():
                other.append((name, value))
            return
        quantity, order = role
        if percent or (quantity == "accuracy" and "@" in name):
            value /= 100
        if quantity not in values or order < values[quantity][1]:  # of two of one name on a line, the first
            values[quantity] = value, order

    def _is_ours(self, title: str, line: str) -> bool:
        """Whether a bar counts the job's own steps."""
        named = _BAR_EPOCH.match(title) is not None or _BAR_NAMES.match(title.rstrip(":").strip()) is not None
        return named and (_RATE.search(line) is not None or "/s" not in line)

    def _take_bar(self, title: str, at: int, total: int, values: dict[str, tuple[float, int]]) -> None:
        epoch = _BAR_EPOCH.match(title)
        order = BAR_ORDER if total == self.total else BAR_ORDER + 1 if title else BAR_ORDER + 2
        if epoch is not None:
            number = int(epoch[1])
            values["epoch"] = float(number), 0
            values["step"] = float((number - (1 if epoch[2] else 0)) * total + at), order
            return
        if self._bar is None or order < self._bar[0]:
            self._bar = order, total
        if self._bar != (order, total):
            return
        values["step"] = float(self._laps.setdefault(total, _Lap()).count(at, total)), order
