"""The protocol's model, searched to its end; and without one of its guards, where a shortest counterexample must be found."""

from __future__ import annotations

import pytest

from .model import Rules, Search


@pytest.mark.slow
def test_every_interleaving_holds() -> None:
    states, way, wrong = Search().run()
    assert wrong == "", (wrong, way)
    assert states > 100_000, "the model has lost most of its steps"


@pytest.mark.parametrize(
    ("guard", "wrong", "last"),
    [
        ("numbers", "the GPU is given twice", "controller 1 tells ('launch', 1, 1)"),
        ("fenced", "job 0 runs twice: attempts 1 and 2", "controller 1 tells ('launch', 0, 2)"),
        ("attempts", "job 0 runs twice: attempts 1 and 1", "the launch (0, 1) comes a second time"),
        ("journal_first", "job 0 has completed, and runs again", "controller 1 tells ('launch', 0, 2)"),
        ("fenced_ack", "job 0 has completed, and runs again", "controller 1 tells ('launch', 0, 2)"),
        ("looks", "from here there is no way to the end", "controller 1 dies"),
        ("ends_free", "the GPU is given twice", "controller 0 tells ('launch', 1, 1)"),
    ],
)
def test_without_a_guard_there_is_a_counterexample(guard: str, wrong: str, last: str) -> None:
    _, way, found = Search(Rules(**{guard: False})).run()
    assert (found, way[-1]) == (wrong, last)
    assert len(way) <= 20, "breadth first: the shortest way is found"
