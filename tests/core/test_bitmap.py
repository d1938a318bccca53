"""The two-level bitmap against sets of numbers."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core import bitmap
from headway.core.bitmap import first_bit, members, width_for, words_for


def set_bit(buckets: np.ndarray, words: int, row: int, node: int) -> None:
    bitmap.set_bit(buckets, words, row, np.int64(node))


def clear_bit(buckets: np.ndarray, words: int, row: int, node: int) -> None:
    bitmap.clear_bit(buckets, words, row, np.int64(node))


def move(buckets: np.ndarray, words: int, kind_row: int, node: int, before: int, after: int) -> None:
    bitmap.move(buckets, words, kind_row, np.int64(node), before, after)


@pytest.mark.parametrize(
    ("nodes", "words", "width"),
    [(0, 1, 2), (1, 1, 2), (64, 1, 2), (65, 2, 3), (4096, 64, 65), (4097, 65, 67), (8192, 128, 130), (70_000, 1094, 1094 + 18)],
)
def test_widths(nodes: int, words: int, width: int) -> None:
    assert words_for(nodes) == words and width_for(words) == width


def assert_summary(buckets: np.ndarray, words: int, row: int) -> None:
    """One summary bit for each word that is not zero, and no other."""
    bits = [int(w) & (2**64 - 1) for w in buckets[row, words:]]
    assert [w for w in range(64 * len(bits)) if bits[w >> 6] >> (w & 63) & 1] == [w for w in range(words) if buckets[row, w]]


@pytest.mark.parametrize("nodes", [1, 63, 64, 65, 128, 4095, 4096, 4097, 8193, 70_000])
def test_against_sets(nodes: int) -> None:
    r = random.Random(nodes)
    words = words_for(nodes)
    buckets = np.zeros((3, width_for(words)), np.int64)
    sets: list[set[int]] = [set(), set(), set()]
    corners = [n for n in (0, 1, 62, 63, 64, 127, 4095, 4096, 8191, 8192, nodes - 1) if n < nodes]
    for _ in range(400):
        row, node = r.randrange(3), r.choice([r.randrange(nodes), r.choice(corners)])
        if r.random() < 0.55:
            set_bit(buckets, words, row, node)
            sets[row].add(node)
        else:
            clear_bit(buckets, words, row, node)
            sets[row].discard(node)
        start = r.choice([0, node, min(node + 1, nodes - 1), r.randrange(nodes), r.choice(corners)])
        for i in range(3):
            assert first_bit(buckets, words, i, np.int64(start)) == min((n for n in sets[i] if n >= start), default=-1)
    for row in range(3):
        assert members(buckets, words, row) == sorted(sets[row])
        assert_summary(buckets, words, row)


def test_walking_from_bit_to_bit_finds_all() -> None:
    words = words_for(70_000)
    buckets = np.zeros((1, width_for(words)), np.int64)
    there = sorted(random.Random(1).sample(range(70_000), 500))
    for node in there:
        set_bit(buckets, words, 0, node)
    found, at = [], 0
    while (at := first_bit(buckets, words, 0, at)) >= 0:
        found.append(at)
        at += 1
    assert found == there


def test_beyond_the_last_word_there_is_nothing() -> None:
    buckets = np.zeros((1, width_for(1)), np.int64)
    set_bit(buckets, 1, 0, 63)
    assert [first_bit(buckets, 1, 0, start) for start in (0, 63, 64, 65, 128, 5000)] == [63, 63, -1, -1, -1, -1]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 4), st.integers(0, 4))))
def test_a_move_leaves_a_node_in_one_bucket(moves: list[tuple[int, int, int]]) -> None:
    words = words_for(201)
    buckets = np.zeros((10, width_for(words)), np.int64)
    at = dict.fromkeys(range(201), 0)
    for node in at:
        set_bit(buckets, words, 5, node)
    for node, after, _ in moves:
        move(buckets, words, 5, node, at[node], after)
        at[node] = after
    for free in range(5):
        assert members(buckets, words, 5 + free) == [n for n in at if at[n] == free] and members(buckets, words, free) == []
        assert_summary(buckets, words, 5 + free)
