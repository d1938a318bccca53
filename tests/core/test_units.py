"""Units: hand-worked values, what is refused, and round trips."""

import math
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.errors import UserError, did_you_mean, one_line, shown
from headway.core.units import (
    GpuDemand,
    format_duration,
    format_gpu,
    format_gpus,
    format_size,
    name_fault,
    parse_count,
    parse_cpus,
    parse_duration,
    parse_frac,
    parse_gpu,
    parse_gpus,
    parse_int,
    parse_range,
    parse_rate,
    parse_size,
)

PARSERS = (parse_size, parse_duration, parse_gpu, parse_count, parse_range, parse_cpus, parse_frac, parse_int)
NEVER = [
    *(math.nan, math.inf, -math.inf, -1, -0.5, 1e309, True, False, None, [], {}, b"1", 10**400),
    *("", " ", "NaN", "nan", "inf", "-1", "-0.5", "+1", "0,5", "1e309", "1e3", "1_000", "0x10", ".5", "5.", "1.2.3"),
    *("٣", "½", "1 2", "one", "1\n2", "--", "..", ":", "%", "GB", "9" * 400),
]


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("value", NEVER, ids=lambda value: ascii(value)[:20])
def test_what_is_no_number_is_refused_and_told(parse, value):
    with pytest.raises(ValueError, match=r"^expected .*, got ") as error:
        parse(value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4GB", 4_000_000_000),
        ("4 GB", 4_000_000_000),
        ("1kB", 1000),
        ("1KB", 1000),
        ("1KiB", 1024),
        ("1.5GiB", 1_610_612_736),
        ("2TiB", 2_199_023_255_552),
        ("512", 512),
        (512, 512),
        ("7B", 7),
        ("0", 0),
        ("0.0015kB", 2),  # 1.5 bytes: to the even neighbour
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["4Gb", "4gb", "4G", "4PB", "GB4", "4GB/s", "2000000TiB"])
def test_other_units_of_size_are_refused(text):
    with pytest.raises(ValueError, match=r"4GB or 1\.5GiB"):
        parse_size(text)


def test_rates_are_sizes_a_second():
    assert parse_rate("100MB/s") == parse_rate("100MB") == 100_000_000
    with pytest.raises(ValueError, match="not bits"):
        parse_rate("100Mb/s")


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("6h", 21_600_000_000),
        ("60s", 60_000_000),
        ("10m", 600_000_000),
        ("1h30m", 5_400_000_000),
        ("1h 30m", 5_400_000_000),
        ("2d", 172_800_000_000),
        ("1w1d1h1m1s1ms1us", 694_861_001_001),
        ("250ms", 250_000),
        ("0.5s", 500_000),
        ("1.5h", 5_400_000_000),
        (90, 90_000_000),
        ("90", 90_000_000),
        (0.1, 100_000),
        ("0", 0),
    ],
)
def test_durations(text, us):
    assert parse_duration(text) == us


@pytest.mark.parametrize("text", ["30m1h", "1h1h", "h", "1H", "1:30", "1.h", "5 m s", "36501d", 10**12])
def test_other_durations_are_refused(text):
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "kind", "milli"),
    [
        (8, "", 8000),
        ("8", "", 8000),
        (8.0, "", 8000),
        ("0.5", "", 500),
        (0.1 + 0.2, "", 300),
        ("0", "", 0),
        (0, "", 0),
        ("a100:1", "a100", 1000),
        ("A100:2", "a100", 2000),
        ("a100:0.25", "a100", 250),
        ("gpu:2", "", 2000),
        ("gpu:a100:2", "a100", 2000),
        ("gpu:titanrtx:0", "", 0),
        ("titanrtx:0", "", 0),
    ],
)
def test_gpu_demands(value, kind, milli):
    assert parse_gpu(value) == GpuDemand(kind, milli)


@pytest.mark.parametrize(
    "value", ["1.5", 1.5, "a100", "a100:", ":1", "a100:NaN", "a100:-1", "a 100:1", "a:b:1", "0.0001", 70_000, "é:1"]
)
def test_other_gpu_demands_are_refused(value):
    with pytest.raises(ValueError, match="expected"):
        parse_gpu(value)


def test_gpu_alternatives_keep_their_order():
    wanted = parse_gpus({"any_of": ["v100:2", "a100:1"]})
    assert wanted == (GpuDemand("v100", 2000), GpuDemand("a100", 1000))
    assert format_gpus(wanted) == "v100:2 or a100:1"
    assert parse_gpus("0.5") == (GpuDemand("", 500),)


@pytest.mark.parametrize("value", [{}, {"any_of": []}, {"any_of": "a100:1"}, {"any_of": ["a100:1", "A100:1"]}, {"all_of": [1]}])
def test_other_gpu_alternatives_are_refused(value):
    with pytest.raises(ValueError, match="any_of"):
        parse_gpus(value)
    with pytest.raises(ValueError, match="16"):
        parse_gpus({"any_of": [f"k{i}:1" for i in range(17)]})


def test_counts_ranges_shares_and_cores():
    assert parse_count("25.6M") == 25_600_000
    assert parse_count("7B") == parse_count("7G") == 7_000_000_000
    assert parse_count("3k") == parse_count(3000) == 3000
    assert parse_range("1..8") == (1, 8)
    assert parse_range("8") == parse_range(8) == parse_range("8..8") == (8, 8)
    assert parse_frac("10%") == parse_frac(0.1) == parse_frac("0.1") == 0.1
    assert parse_cpus("0.5") == 500
    assert parse_cpus(2) == 2000
    for parse, value in ((parse_count, "1.5"), (parse_count, "0.0001k"), (parse_range, "8..1"), (parse_range, "1..2..3")):
        with pytest.raises(ValueError, match="expected"):
            parse(value)
    for parse, value in ((parse_frac, "101%"), (parse_frac, 1.1), (parse_cpus, "0.0001"), (parse_range, "1...8")):
        with pytest.raises(ValueError, match="expected"):
            parse(value)
    with pytest.raises(ValueError, match="at most 4"):
        parse_range("1..8", high=4)
    with pytest.raises(ValueError, match="from 1 to 3"):
        parse_int(4, 1, 3)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0B"), (4 * 10**9, "4GB"), (2**32, "4GiB"), (1_500_000, "1.5MB"), (1_234_567, "1234567B"), (999, "999B")],
)
def test_sizes_are_written_in_the_shortest_unit(size_bytes, text):
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [(0, "0s"), (5400, "1h30m"), (86_461, "1d1m1s"), (0.25, "0.25s"), (59.999999, "59.999999s"), (3600, "1h")],
)
def test_durations_are_written_from_the_largest_unit(duration_s, text):
    assert format_duration(duration_s) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True])
def test_what_is_no_number_is_not_written(value):
    for write in (format_duration, format_size):
        with pytest.raises(ValueError, match="expected"):
            write(value)


@given(st.integers(0, 2**60))
def test_sizes_round_trip(size_bytes):
    assert parse_size(format_size(size_bytes)) == size_bytes


@given(st.integers(0, 100 * 365 * 86_400 * 10**6))
def test_durations_round_trip(us):
    assert parse_duration(format_duration(us / 1e6)) == us
    assert parse_duration(us / 1e6) == us


@given(st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True).filter(lambda kind: kind != "gpu"), st.integers(1, 999))
def test_gpu_demands_round_trip(kind, number):
    for demand in (GpuDemand(kind, number), GpuDemand("", number), GpuDemand(kind, number * 1000)):
        assert parse_gpu(format_gpu(demand)) == demand


@given(st.integers(0, 10**15), st.integers(0, 10**15))
def test_counts_and_ranges_round_trip(a, b):
    assert parse_count(str(a)) == a
    assert parse_range(f"{min(a, b)}..{max(a, b)}") == (min(a, b), max(a, b))


@given(st.one_of(st.text(max_size=30), st.floats(), st.integers(), st.booleans(), st.none()))
def test_anything_is_parsed_or_refused_with_a_value_error(value):
    for parse in (*PARSERS, parse_gpus, parse_rate):
        try:
            parse(value)
        except ValueError as error:
            assert str(error).startswith("expected ")


@pytest.mark.parametrize("name", ["train-42", "dédé 你好 🦙", "שלום", "a..b", "x" * 128, "👩‍💻", 'a,"b"', "_-"])
def test_names_of_any_script_are_good(name):
    assert name_fault(name) is None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "characters"),
        ("x" * 129, "characters"),
        ("a\0b", "control"),
        ("a\nb", "control"),
        ("a\x1b[31m", "control"),
        ("a\x85", "control"),
        ("a\u2028b", "control"),
        ("a\u202eb", "control"),
        ("\ud800", "control"),
        ("-rf", "start"),
        ("../x", r"\.\."),
        ("a/b", "separators"),
        ("a\\b", "separators"),
        ("..", r"\.\."),
        (".", r"\.\."),
        (" a", "space"),
        ("\u00a0", "space"),
    ],
)
def test_names_that_would_break_a_list_or_a_path_are_refused(name, reason):
    assert name_fault(name) is not None
    assert re.search(reason, name_fault(name))


def test_names_with_slashes_only_where_asked_for():
    assert name_fault("val/loss", slash=True) is None
    assert name_fault("a/../b", slash=True) is not None


def test_a_user_error_is_one_line():
    error = UserError('expected a number, got "NaN"', file="job.yaml", line=7, key="resources.gpu")
    assert str(error) == 'job.yaml:7: resources.gpu: expected a number, got "NaN"'
    assert str(UserError("broken", file="job.yaml")) == "job.yaml: broken"
    assert str(UserError("broken", line=3)) == "line 3: broken"
    assert str(UserError("a\nb", file="x\ny")) == r"x\ny: a\nb"


def test_a_user_error_keeps_its_place_when_pickled():
    error = pickle.loads(pickle.dumps(UserError("broken", file="job.yaml", line=7, key="run")))
    assert (str(error), error.line, error.key) == ("job.yaml:7: run: broken", 7, "run")


def test_did_you_mean_finds_the_nearest_word_alone():
    known = ["priority", "profiling", "name"]
    assert did_you_mean("prioritty", known) == " (did you mean 'priority'?)"
    assert did_you_mean("NAME", known) == " (did you mean 'name'?)"
    assert did_you_mean("xyz", known) == ""
    assert did_you_mean("x" * 10**6, known) == ""


@given(st.text())
def test_shown_is_one_short_line(text):
    assert len(shown(text)) <= 60
    assert shown(text).isprintable()
    assert one_line(text).isprintable() or not text
    shown(text).encode()
