"""Spec strings: what is read, and what is refused in one line."""

from collections.abc import Callable
from typing import Any

import pytest

from headway.core.errors import UserError
from headway.core.specstring import Part, flag, one_of, parse_part, parse_spec, read_params, unknown_name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("fifo", (Part("fifo"),)),
        (" fifo ", (Part("fifo"),)),
        ("tiresias:queues=3,factor=10", (Part("tiresias", {"queues": "3", "factor": "10"}),)),
        ("slaq+mlf-c:downgrade=false", (Part("slaq"), Part("mlf-c", {"downgrade": "false"}))),
        ("a:x=/tmp/b:c", (Part("a", {"x": "/tmp/b:c"}),)),
    ],
)
def test_a_spec_is_names_with_parameters(text: str, parts: tuple[Part, ...]) -> None:
    assert parse_spec(text) == parts
    assert parse_spec("+".join(map(str, parts))) == parts


@pytest.mark.parametrize(
    "text",
    ["", " ", ":", "a:", "a:x", "a:x=", "a:=1", "a:x=1,", "a:x=1,x=2", "a:x==1", "a:x=1 2", "a b", "+a", "a+", "-a", "é",
     "a:x=\x00", "a" * 5000],
)  # fmt: skip
def test_anything_else_is_one_line(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse_spec(text, "policy")
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_a_part_stands_alone() -> None:
    assert parse_part("poisson:jobs=3", "workload") == Part("poisson", {"jobs": "3"})
    with pytest.raises(UserError, match="a workload has one part"):
        parse_part("a+b", "workload")


def test_parameters_are_read_by_their_readers() -> None:
    readers: dict[str, Callable[[str], Any]] = {"queues": int, "skip": flag, "mode": one_of("fast", "slow")}
    part = Part("p", {"queues": "3", "skip": "false", "mode": "slow"})
    assert read_params(part, readers, "policy") == {"queues": 3, "skip": False, "mode": "slow"}


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"queue": "3"}, "policy p: queue: unknown parameter (did you mean 'queues'?)"),
        ({"zzz": "3"}, "policy p: zzz: unknown parameter; known: mode, queues, skip"),
        ({"skip": "maybe"}, 'policy p: skip: expected true or false, got "maybe"'),
        ({"mode": "slaw"}, "policy p: mode: expected fast or slow, got \"slaw\" (did you mean 'slow'?)"),
    ],
)
def test_wrong_parameters_name_themselves(params: dict[str, str], message: str) -> None:
    with pytest.raises(UserError) as error:
        read_params(Part("p", params), {"queues": int, "skip": flag, "mode": one_of("fast", "slow")}, "policy")
    assert str(error.value) == message


def test_a_part_without_parameters_says_so() -> None:
    with pytest.raises(UserError, match="unknown parameter; it has none"):
        read_params(Part("p", {"x": "1"}), {})


def test_an_unknown_name_gets_the_nearest_or_all() -> None:
    assert str(unknown_name("policy", "fifa", ["fifo", "las"])) == "unknown policy 'fifa' (did you mean 'fifo'?)"
    assert str(unknown_name("policy", "zzz", ["fifo", "las"], "or more")) == "unknown policy 'zzz'; known: fifo, las, or more"
