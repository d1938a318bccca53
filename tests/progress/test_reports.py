"""Lines of report files."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.progress.reports import read_report
from headway.progress.told import Source, Told


def test_what_the_sdk_writes() -> None:
    line = b'{"step":3,"loss":NaN,"accuracy":0.5,"total":10,"other":{"lr":0.1,"bad":"x"},"t":1.5}'
    told = read_report(line, 2)
    assert told is not None and told.loss != told.loss
    assert told._replace(loss=None) == Told(Source.SDK, 2, 3.0, accuracy=0.5, total=10.0, other=(("lr", 0.1),))
    assert read_report(b'{"saved":"/x","step":4,"t":1}', 0) == Told(Source.SDK, 0, 4.0, saved="/x")
    assert read_report(b'{"done":true,"t":1}', 0) == Told(Source.SDK, 0, done=True)


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[]", b"1", b'{"loss":1}', b'{"step":true}', b'{"step":"3"}', b"\xff\xfe", b"[" * 5000, b'{"saved":"x"}']
)
def test_what_is_none(line: bytes) -> None:
    assert read_report(line, 0) is None


KEYS = st.sampled_from(["step", "loss", "saved", "done", "other", "x"])
PLAIN = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@given(st.recursive(PLAIN, lambda each: st.lists(each) | st.dictionaries(KEYS, each)))
def test_any_json(value: object) -> None:
    read_report(json.dumps(value).encode(), 0)
