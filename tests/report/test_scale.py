"""Numbers and ticks as people read them."""

import pytest

from headway.report.scale import (
    NBSP,
    Tick,
    duration,
    durations,
    linear_ticks,
    log_time_ticks,
    number,
    percent,
    thinned,
    time_ticks,
    time_unit,
)

DAY = 86_400


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (1234567, "1,234,567"), (-3, "−3"), (0.01234, "0.0123"), (12.345, "12.3"), (4255.4, "4,255")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0, "0.0 s"), (119.9, "119.9 s"), (120, "2.0 min"), (7200, "2.0 h"), (2 * DAY, "2.0 d")]
)
def test_durations_have_the_unit_that_suits_them(seconds: float | None, text: str) -> None:
    assert duration(seconds).replace(NBSP, " ") == text


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([9720, 6048], ["2.70 h", "1.68 h"]),
        ([440_640, 171_000, None], ["5.10 d", "1.98 d", "–"]),
        ([3600 * 30, 3600 * 2], ["30.0 h", "2.00 h"]),
        ([166_000, 34], ["46.1 h", "34.0 s"]),  # no unit suits both
        ([0, 0], ["0.0 s", "0.0 s"]),
        ([0, 300], ["0 min", "5.00 min"]),
        ([], []),
    ],
)
def test_times_beside_each_other_share_a_unit(values: list[float | None], texts: list[str]) -> None:
    assert [text.replace(NBSP, " ") for text in durations(values)] == texts


def test_a_share_that_rounds_to_nothing_has_no_sign() -> None:
    assert [percent(v).replace(NBSP, " ") for v in (0.5, -0.123, -0.0001, None)] == ["50.0 %", "−12.3 %", "0.0 %", "–"]


@pytest.mark.parametrize(
    ("high", "low", "labels"),
    [
        (198, 0, ["0", "50", "100", "150", "200"]),
        (1, 0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0, 0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (60, -20, ["−20", "0", "20", "40", "60"]),
        (0.003, -0.001, ["−0.001", "0.000", "0.001", "0.002", "0.003"]),
    ],
)
def test_linear_ticks_hold_the_range(high: float, low: float, labels: list[str]) -> None:
    assert [tick.label for tick in linear_ticks(high, 5, low)] == labels


def test_jobs_are_not_cut_in_pieces() -> None:
    assert [tick.label for tick in linear_ticks(1, step_min=1)] == ["0", "1"]
    assert [tick.label for tick in linear_ticks(0, step_min=1)] == ["0", "1"]


def test_time_ticks_are_round_in_their_unit() -> None:
    assert time_unit(92 * DAY)[0] == "days" and time_unit(3 * 3600)[0] == "hours" and time_unit(60)[0] == "seconds"
    assert [tick.label for tick in time_ticks(0, 92 * DAY)] == ["0", "14", "28", "42", "56", "70", "84"]
    assert [tick.label for tick in time_ticks(88_900, 110_500)] == ["25", "26", "27", "28", "29", "30"]
    assert len(time_ticks(0, 1e9)) <= 9 and time_ticks(5, 5)[0].value == 5


def test_a_logarithmic_axis_of_time_has_at_least_two_ticks() -> None:
    assert [tick.label for tick in log_time_ticks(60, DAY)] == ["1 min", "10 min", "1 h", "6 h", "1 d"]
    assert [tick.value for tick in log_time_ticks(700, 3000)] == [700, 3000]


def test_labels_that_would_touch_are_left_out() -> None:
    ticks = [Tick(k, "12345") for k in range(4)]
    assert [tick.value for tick in thinned(ticks, [0, 30, 60, 90], char=6)] == [0, 2]
