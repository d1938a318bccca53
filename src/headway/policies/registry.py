"""Every policy by name. Other packages add theirs by the entry point group `headway.policies`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from headway.core.errors import UserError
from headway.core.plan import Plan
from headway.core.policy import Memo, Policy
from headway.core.specstring import parse_spec, unknown_name
from headway.core.view import ClusterView

REGISTRY: dict[str, str] = {
    "fifo": "headway.policies.factories:fifo",
    "fifo-backfill": "headway.policies.factories:fifo_backfill",
    "srtf": "headway.policies.factories:srtf",
    "oracle-srtf": "headway.policies.factories:oracle_srtf",
    "las": "headway.policies.factories:las",
    "tiresias": "headway.policies.factories:tiresias",
    "sjf": "headway.policies.factories:sjf",
    "edf": "headway.policies.factories:edf",
    "drf": "headway.policies.factories:drf",
    "borg-fair": "headway.policies.factories:borg_fair",
    "random": "headway.policies.factories:random",
    "graphene": "headway.policies.factories:graphene",
    "slaq": "headway.policies.factories:slaq",
    "mlf-h": "headway.policies.factories:mlf_h",
    "gandiva": "headway.policies.factories:gandiva",
    "hypersched": "headway.policies.factories:hypersched",
    "mlf-rl": "headway.policies.factories:mlf_rl",
    "mlfs": "headway.policies.factories:mlfs",
    "rl-placement": "headway.policies.factories:rl_placement",
}
BESIDE: dict[str, str] = {"mlf-c": "headway.policies.factories:beside_mlf_c"}
"""What can stand beside any policy: a function of it and of the words of the parameters."""
ENTRY_POINTS = "headway.policies"


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy of the registry: what `headway policies` shows, and how to make it."""

    name: str
    doc: str
    params: list[tuple[str, Any, str]]
    """(name, default, meaning)."""
    make: Callable[[dict[str, str]], Policy]
    oracle: bool = False
    """Whether it wants the true durations as estimates: simulation only."""
    preempts: bool = False


@dataclass(frozen=True, slots=True)
class Chosen:
    """A policy as asked for: itself, and the one canonical string and parameters that say so."""

    policy: Policy
    spec: str
    params: dict[str, str]
    oracle: bool

    @property
    def name(self) -> str:
        return self.policy.name

    def decide(self, view: ClusterView, memo: Memo) -> Plan:
        return self.policy.decide(view, memo)


def names() -> list[str]:
    """Every known name."""
    return sorted({**REGISTRY, **{e.name: e.value for e in entry_points(group=ENTRY_POINTS)}})


def entry(name: str) -> Entry:
    """The registry entry of a name.

    Raises:
        UserError: no such policy, with the nearest name.
    """
    known = {**{e.name: e.value for e in entry_points(group=ENTRY_POINTS)}, **REGISTRY}
    if name not in known:
        raise unknown_name("policy", name, known)
    module, _, attribute = known[name].partition(":")
    made = getattr(import_module(module), attribute)()
    if not isinstance(made, Entry):
        raise UserError(f"policy {name}: {known[name]} does not return an Entry")
    return made


def refuse_twice(policy: Policy) -> None:
    """Refuse MLF-C beside a policy that has it already.

    Raises:
        UserError: it has.
    """
    if policy.name == "mlfs":
        raise UserError("has MLF-C of its own: say mlfs or mlfs:downgrade=false", key="policy mlfs+mlf-c")


def choose(text: str) -> Chosen:
    """The policy that a spec string names: `NAME[:key=value,…]`, and what stands beside it, `+mlf-c[:key=value,…]`.

    Raises:
        UserError: an unknown policy or parameter, or a value out of range.
    """
    part, *beside = parse_spec(text, "policy")
    found = entry(part.name)
    policy = found.make(dict(part.params))
    params = dict(part.params)
    for other in beside:
        if other.name not in BESIDE:
            raise unknown_name("component beside a policy", other.name, BESIDE)
        if sum(one.name == other.name for one in beside) > 1:
            raise UserError("given twice", key=f"policy {text.strip()}: {other.name}")
        refuse_twice(policy)
        module, _, function = BESIDE[other.name].partition(":")
        policy = getattr(import_module(module), function)(policy, dict(other.params))
        params |= {f"{other.name}.{key}": value for key, value in other.params.items()}
    return Chosen(policy, "+".join(map(str, (part, *beside))), params, found.oracle)


def make_policy(text: str) -> Policy:
    """The policy alone, as `choose`."""
    return choose(text).policy
