"""The registry's entries of the policies that ship with Headway."""

from __future__ import annotations

from typing import Any

from headway.core.policy import Policy
from headway.policies import classic, tiresias as tiresias_module
from headway.policies.params import Common, describe, make_params
from headway.policies.registry import Entry


def _entry(name: str, policy: Any, params: type[Any], *, oracle: bool = False, preempts: bool = False) -> Entry:
    def make(words: dict[str, str]) -> Policy:
        made: Policy = policy(make_params(params, name, words))
        return made

    doc = (policy.__doc__ or "").strip().splitlines()[0]
    return Entry(name, doc, describe(params), make, oracle, preempts)


def fifo() -> Entry:
    return _entry("fifo", classic.Fifo, classic.FifoParams)


def fifo_backfill() -> Entry:
    return _entry("fifo-backfill", classic.FifoBackfill, classic.BackfillParams)


def srtf() -> Entry:
    return _entry("srtf", classic.Srtf, Common, preempts=True)


def oracle_srtf() -> Entry:
    return _entry("oracle-srtf", classic.OracleSrtf, Common, oracle=True, preempts=True)


def las() -> Entry:
    return _entry("las", classic.Las, classic.LasParams, preempts=True)


def tiresias() -> Entry:
    return _entry("tiresias", tiresias_module.Tiresias, tiresias_module.TiresiasParams, preempts=True)
