"""Pictures: well-formed, where their numbers are, and never markup from a name."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.metrics.series import Series
from headway.metrics.spans import Spans
from headway.report.figures import runs_of_bits
from headway.report.scale import Tick
from headway.report.svg import DARK, LIGHT, Axis, Bar, Interval, Line, figure_css, gantt_chart, interval_chart, line_chart, text
from headway.report.window import GPUS_SHOWN_MAX, SEGMENTS_MAX, busiest_window, nodes_shown, thin

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "</text><script>alert('x')</script>&\"\0\n"
X = Axis("time", 0, 10, [Tick(0, "0"), Tick(10, "10")])
Y = Axis("level", 0, 4, [Tick(0, "0"), Tick(4, "4")])
S = 1_000_000


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def paths(svg: str) -> list[str]:
    return [path.get("d", "") for path in parsed(svg).iter(f"{SVG}path")]


def test_a_line_goes_through_its_points() -> None:
    svg = line_chart([Line("a", [0, 5, 10], [0, 4, 2], 0)], X, Y, title="t", width=400, height=100, alone=True)
    *_, path = paths(svg)
    points = [tuple(map(float, pair.split())) for pair in path.removeprefix("M").split("L")]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and y0 - y1 == 100 and y2 - y1 == 50


def test_steps_join_equal_levels() -> None:
    svg = line_chart([Line("a", [0, 2, 4, 10], [1, 1, 3], 0, steps=True)], X, Y, title="t", width=400, height=100, alone=True)
    *_, path = paths(svg)
    assert path.count("V") == 1 and path.count("H") == 2


@pytest.mark.parametrize("width", [380, 960])
def test_names_are_never_markup(width: int) -> None:
    pictures = [
        line_chart([Line(EVIL, [0], [1], 0)], X, Axis(EVIL, 0, 4, [Tick(0, EVIL)]), title=EVIL, width=width, alone=True),
        interval_chart([Interval(EVIL, 1, 0, 2, 0)], X, title=EVIL, width=width, alone=True),
        gantt_chart([Bar(0, 1, 0, 9, 3, False, EVIL, EVIL)], [(EVIL, 1)], X, title=EVIL, width=width, alone=True),
    ]
    for svg in pictures:
        assert not list(parsed(svg).iter(f"{SVG}script")) and "<script" not in svg
    assert text("a\0b") == "a\\x00b"


def test_no_lines_are_said_to_be_none() -> None:
    assert "nothing to show" in line_chart([], X, Y, title="t", width=380)


def test_many_lines_stay_apart_by_colour_or_dashes() -> None:
    lines = [Line(f"p{k}", [0, 10], [k % 4, 1], k) for k in range(24)]
    found = list(parsed(line_chart(lines, X, Y, title="t", width=380, alone=True)).iter(f"{SVG}path"))
    looks = {(path.get("class"), path.get("stroke-dasharray")) for path in found}
    assert len(looks) == 24


def test_a_gantt_bar_lies_on_its_rows() -> None:
    bars = [Bar(2, 2, 0, 5, 0, False, "7", "job 7"), Bar(0, 1, 5, 10, 1, True, "8", "job 8")]
    root = parsed(gantt_chart(bars, [("n0", 2), ("n1", 2)], X, title="t", width=500, alone=True))
    _, first, second = root.iter(f"{SVG}rect")
    assert float(first.get("y", "")) > float(second.get("y", ""))
    assert float(first.get("height", "")) == 2 * float(second.get("height", ""))
    assert float(second.get("x", "")) == pytest.approx(float(first.get("x", "")) + float(first.get("width", "")), abs=0.2)
    assert "pale" in second.get("class", "") and first[0].text == "job 7"


def test_both_lights_have_all_colours() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert all(f"var(--{name})" in figure_css() for name in LIGHT if name != "back")


@given(st.integers(-(2**63), 2**63 - 1))
def test_runs_of_bits_are_the_bits(mask: int) -> None:
    runs = runs_of_bits(mask)
    assert sum(((1 << length) - 1) << low for low, length in runs) == mask & (2**64 - 1)
    assert all(low + length < after for (low, length), (after, _) in pairwise(runs))


# -- which part is shown --------------------------------------------------------------------------------------------
def spans(count: int, length_s: int, begin_s: int = 0, node: int = 0) -> Spans:
    """Attempts one after the other on one GPU."""
    at = np.arange(count, dtype=np.int64)
    requested = (begin_s + at * length_s) * S
    ended = requested + length_s * S
    ones, zeros = np.ones(count, np.int64), np.zeros(count, np.int64)
    places = np.column_stack((zeros + node, ones, ones * 1000))
    return Spans(at, ones, requested, requested, ended, ended, ones * 1000, zeros, np.arange(count + 1), places)


def levels(width_s: int, *live: float) -> Series:
    queue = np.array(live, np.float64)
    edges = np.arange(len(live) + 1, dtype=np.int64) * width_s * S
    return Series(edges, queue, np.zeros_like(queue), np.zeros_like(queue), np.zeros_like(queue))


def test_a_short_run_is_shown_whole_and_a_long_one_where_it_is_busiest() -> None:
    few = spans(10, 60)
    assert busiest_window(levels(60, 1, 5, 1), [few], 1) == (0, 180 * S)
    day = 86_400
    assert busiest_window(levels(day // 2, 0, 1, 9, 8, 1, 0), [few], 1) == (day * S, 2 * day * S)
    # The busiest bin is the last: the window ends with the run.
    assert busiest_window(levels(day // 2, 0, 0, 0, 0, 1), [few], 1)[1] == 5 * day // 2 * S


def test_a_window_with_too_many_pieces_is_made_shorter() -> None:
    crowded = spans(SEGMENTS_MAX + 1, 30)  # 21 hours of half minutes
    start, end = busiest_window(levels(3600, *([1.0] * 24)), [crowded], 1)
    assert end - start == 6 * 3600 * S
    assert busiest_window(levels(3600, *([1.0] * 24)), [spans(9, 30)], 1) == (0, 86_400 * S)


def test_only_so_many_rows_and_pieces_are_drawn() -> None:
    assert nodes_shown([8] * 16) == 16 and nodes_shown([8] * 17) == 16 and nodes_shown([GPUS_SHOWN_MAX + 1, 4]) == 1
    assert nodes_shown([]) == 0
    rows = np.zeros((SEGMENTS_MAX + 5, 7), np.int64)
    rows[:, 5] = np.arange(len(rows)) + 1
    kept, left_out = thin(rows)
    assert (len(kept), left_out, kept[0, 5]) == (SEGMENTS_MAX, 5, 6)
