"""Journal time goes on over restarts, sleeps, reboots and wall clocks that step, and never goes back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from headway.runtime import clock
from headway.runtime.clock import Anchor, Calendar, JournalClock

WALL = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def boottime(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [5_000_000]
    monkeypatch.setattr(clock, "boottime_us", lambda: now[0])
    return now


def test_a_new_home_begins_at_zero(boottime: list[int]) -> None:
    fresh = JournalClock(None, -1, boot_id="a")
    assert fresh.now_us() == 0
    boottime[0] += 7
    assert fresh.now_us() == 7


def test_within_a_boot_the_time_without_a_controller_counts(boottime: list[int]) -> None:
    again = JournalClock(Anchor(100, "a", 4_000_000, WALL), 600, boot_id="a")
    assert again.now_us() == 1_000_100


def test_after_a_reboot_it_goes_on_from_the_last_entry(boottime: list[int]) -> None:
    again = JournalClock(Anchor(100, "a", 90_000_000, WALL), 8_000_000, boot_id="b")
    assert again.now_us() == 13_000_000


def test_it_never_goes_back(boottime: list[int]) -> None:
    again = JournalClock(Anchor(100, "a", 4_999_999, WALL), 9_000_000, boot_id="a")
    assert again.now_us() == 9_000_000
    boottime[0] -= 1_000_000
    assert again.now_us() == 9_000_000
    assert JournalClock(Anchor(0, "a", 99_000_000, WALL), 50, boot_id="a").now_us() >= 50


def test_an_anchor_survives_the_journal() -> None:
    anchor = Anchor(5, "boot", 77, WALL)
    assert Anchor.from_text(5, anchor.to_text()) == anchor
    assert [Anchor.from_text(0, text) for text in ("", "{}", "[]", '{"wall": 3}', "x")] == [None] * 5


def test_people_see_the_wall_clock_of_the_start_before(boottime: list[int]) -> None:
    calendar = Calendar()
    assert calendar.wall(0) is None and calendar.last is None
    calendar.add(Anchor(1_000_000, "a", 0, WALL))
    calendar.add(Anchor(9_000_000, "b", 0, WALL + timedelta(days=400)))
    assert calendar.wall(3_000_000) == WALL + timedelta(seconds=2)
    assert calendar.wall(9_000_001) == WALL + timedelta(days=400, microseconds=1)
    assert calendar.wall(0) == WALL - timedelta(seconds=1)


def test_the_machine_has_these_clocks() -> None:
    assert clock.boottime_us() > 0 and clock.read_boot_id()
    real = JournalClock(None, -1)
    assert real.anchor().wall.tzinfo is not None and real.now_us() >= 0
