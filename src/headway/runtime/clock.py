"""Journal time: microseconds since the home's first start, on a clock that never goes back and that no wall clock moves.

Within one boot of the machine it goes with CLOCK_BOOTTIME, which counts on while the machine sleeps and while no controller
runs. Over a reboot it goes on from the last entry of the journal plus the time since the boot: the time for which the
machine was off does not count. Each start writes an *anchor* into the journal, which ties this boot's clock, and the wall
clock that people are shown, to journal time.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

US_PER_S = 1_000_000


class Clock(Protocol):
    """What tells the controller the journal time."""

    def now_us(self) -> int:
        """Journal time (µs); never less than before."""
        ...


@dataclass(frozen=True, slots=True)
class Anchor:
    """One instant on three clocks: journal time, the machine's CLOCK_BOOTTIME (both µs), and the wall (UTC)."""

    t_us: int
    boot_id: str
    boottime_us: int
    wall: datetime

    def to_text(self) -> str:
        """The anchor as the text of an EPOCH event, whose time is `t_us`."""
        return json.dumps({"boot_id": self.boot_id, "boottime_us": self.boottime_us, "wall": self.wall.isoformat()})

    @classmethod
    def from_text(cls, t_us: int, text: str) -> Anchor | None:
        """The anchor of an EPOCH event, or None if it has none that can be read."""
        try:
            found = json.loads(text)
            wall = datetime.fromisoformat(found["wall"])
            return cls(t_us, str(found["boot_id"]), int(found["boottime_us"]), wall if wall.tzinfo else wall.replace(tzinfo=UTC))
        except (ValueError, KeyError, TypeError):
            return None


class JournalClock:
    """The live clock. `last` is the newest anchor of the journal, `last_us` the time of its last entry (below 0: none)."""

    def __init__(self, last: Anchor | None, last_us: int, *, boot_id: str | None = None) -> None:
        self.boot_id = read_boot_id() if boot_id is None else boot_id
        now = boottime_us()
        if last is not None and last.boot_id == self.boot_id and last.boottime_us <= now:
            self._offset_us = last.t_us - last.boottime_us
        elif last_us >= 0:
            self._offset_us = last_us
        else:
            self._offset_us = -now
        self._last_us = max(last_us, 0)

    def now_us(self) -> int:
        self._last_us = max(self._last_us, boottime_us() + self._offset_us)
        return self._last_us

    def anchor(self) -> Anchor:
        """Now, on all three clocks."""
        return Anchor(self.now_us(), self.boot_id, boottime_us(), wall_now())


class Calendar:
    """Journal time as instants of the wall clock, each by the newest anchor before it."""

    def __init__(self) -> None:
        self._anchors: list[Anchor] = []

    def add(self, anchor: Anchor) -> None:
        self._anchors.append(anchor)

    @property
    def last(self) -> Anchor | None:
        return self._anchors[-1] if self._anchors else None

    def wall(self, t_us: int) -> datetime | None:
        """The wall-clock instant (UTC) of a journal time; None without any anchor."""
        if not self._anchors:
            return None
        index = max(bisect_right(self._anchors, t_us, key=lambda anchor: anchor.t_us) - 1, 0)
        anchor = self._anchors[index]
        return anchor.wall + timedelta(microseconds=t_us - anchor.t_us)


def boottime_us() -> int:
    """Microseconds since the machine's boot, sleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def wall_now() -> datetime:
    """What the wall clock says (UTC)."""
    return datetime.now(UTC)


def read_boot_id() -> str:
    """The name of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
