"""The users' own patterns, in a process that may be killed."""

import time
from collections.abc import Iterator

import pytest

from headway.progress.patterns import FAILURES_MAX, Matcher, PatternProcess


@pytest.fixture
def process() -> Iterator[PatternProcess]:
    made = PatternProcess()
    yield made
    made.close()


def test_groups_of_the_lines_that_match(process: PatternProcess) -> None:
    matcher = Matcher(process, r"it (?P<step>\d+)(?: err (?P<loss>\S+))?", lambda: None)
    assert matcher.match(["it 3 err 0.5", "nothing", "it 4"]) == [{"step": "3", "loss": "0.5"}, {"step": "4"}]


def test_one_that_goes_on_for_ever_is_given_up_and_others_work(process: PatternProcess) -> None:
    given_up: list[int] = []
    bad, good = (
        Matcher(process, r"(?P<step>(a+)+)$", lambda: given_up.append(1)),
        Matcher(process, r"(?P<step>\d+)", lambda: None),
    )
    began = time.monotonic()
    for _ in range(FAILURES_MAX + 3):
        assert bad.match(["a" * 40 + "!"]) == []
        assert good.match(["7"]) == [{"step": "7"}]
    assert given_up == [1] and time.monotonic() - began < 30
