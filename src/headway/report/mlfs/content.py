"""What a reproduction has measured, before it is judged and drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.metrics.compare import HIGHER_IS_BETTER, LOWER_IS_BETTER, Paired, paired

Json = dict[str, Any]
MORE_IS_BETTER = frozenset({"jct_under_100min_frac"})
LESS_IS_BETTER = frozenset({"overloads"})
STAND_IN = {"mlfs": "mlf-h+mlf-c"}
"""The whole system has a learnt policy; until it is there, its heuristic with load control takes its place in comparisons."""
TITLES = {
    "mlfs": "MLFS",
    "mlf-rl": "MLF-RL",
    "mlf-h": "MLF-H",
    "mlf-h+mlf-c": "MLF-H + MLF-C",
    "mlf-h-tuned": "MLF-H, tuned",
    "graphene": "Graphene",
    "tiresias": "Tiresias",
    "hypersched": "HyperSched",
    "rl-placement": "RL",
    "gandiva": "Gandiva",
    "borg-fair": "TensorFlow (Borg fair)",
    "slaq": "SLAQ",
    "srtf": "SRTF",
    "srtf-area": "SRTF by time left × √GPUs",
    "edf": "EDF",
    "fifo": "FIFO",
}
"""Every method by its name here, in the order of the report."""
PAPER, EQUAL = "paper", "equal"


@dataclass(frozen=True, slots=True)
class Block:
    """One protocol at one scale."""

    scale: str
    protocol: str
    loads: tuple[int, ...]
    seeds: tuple[int, ...]
    methods: Mapping[str, Mapping[str, str]]
    """Table → method → policy."""
    missing: Mapping[str, Mapping[str, str]]
    """Table → method that was asked for → why it could not run."""
    runs: Mapping[tuple[str, int, bool], Sequence[Json | None]]
    """(policy, load, overloads are counted) → its entry for each seed; None where it did not end."""
    studies: bool = False
    split: Sequence[tuple[str, str]] = ()
    """(what is added, policy), from the starting point on."""

    def values(self, policy: str, load: int, key: str) -> list[float | None]:
        """A figure of every seed."""
        found = self.runs.get((policy, load, key == "overloads"), [None] * len(self.seeds))
        return [None if entry is None else entry.get(key) for entry in found]

    def policy(self, table: str, method: str) -> str | None:
        """The policy that a method is run as."""
        return self.methods[table].get(method)

    def gain(self, ours: str, baseline: str, load: int, key: str) -> Paired:
        """How much better one policy is than another, seed by seed."""
        return gain(key, self.values(ours, load, key), self.values(baseline, load, key))


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All that was measured."""

    command: str
    version: str
    blocks: Sequence[Block]
    notes: Sequence[str]


def higher_is_better(key: str) -> bool:
    return key in HIGHER_IS_BETTER or key in MORE_IS_BETTER


def gain(key: str, ours: Sequence[float | None], baseline: Sequence[float | None]) -> Paired:
    """`metrics.compare.paired`, also for the figures that only a reproduction has."""
    known = key if key in HIGHER_IS_BETTER | LOWER_IS_BETTER else "deadline_ratio" if key in MORE_IS_BETTER else "avg_jct_s"
    return paired(known, ours, baseline)
