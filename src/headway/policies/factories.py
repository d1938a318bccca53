"""The registry's entries of the policies that ship with Headway."""

from __future__ import annotations

from typing import Any

from headway.core.policy import Policy
from headway.policies import classic, fair, simple
from headway.policies.gandiva import Gandiva, GandivaParams
from headway.policies.graphene import Graphene, GrapheneParams
from headway.policies.hypersched import HyperSched, HyperSchedParams
from headway.policies.mlfs.load_control import LoadControlParams, with_load_control
from headway.policies.mlfs.mlfs import MlfsParams, RlPlacementParams, WholeMlfs, make_mlf_rl, make_mlfs, make_rl_placement
from headway.policies.mlfs.policy import MlfH, MlfHParams, mlf_h_params
from headway.policies.mlfs.rl import MlfRl, MlfRlParams
from headway.policies.mlfs.taskwise import TaskwiseMlfH
from headway.policies.params import Common, describe, make_params
from headway.policies.registry import Entry
from headway.policies.slaq import Slaq, SlaqParams
from headway.policies.tiresias import Tiresias, TiresiasGittins, TiresiasParams


def _entry(name: str, policy: Any, params: type[Any], *, oracle: bool = False, preempts: bool = False) -> Entry:
    def make(words: dict[str, str]) -> Policy:
        made: Policy = policy(make_params(params, name, words))
        return made

    doc = (policy.__doc__ or "").strip().splitlines()[0]
    return Entry(name, doc, describe(params), make, oracle, preempts)


def fifo() -> Entry:
    return _entry("fifo", classic.Fifo, Common)


def fifo_backfill() -> Entry:
    return _entry("fifo-backfill", classic.FifoBackfill, classic.BackfillParams)


def srtf() -> Entry:
    return _entry("srtf", classic.Srtf, classic.SrtfParams, preempts=True)


def oracle_srtf() -> Entry:
    return _entry("oracle-srtf", classic.OracleSrtf, classic.SrtfParams, oracle=True, preempts=True)


def las() -> Entry:
    return _entry("las", classic.Las, classic.LasParams, preempts=True)


def tiresias() -> Entry:
    def make(params: TiresiasParams) -> Tiresias:
        return TiresiasGittins(params) if params.variant == "gittins" else Tiresias(params)

    make.__doc__ = Tiresias.__doc__
    return _entry("tiresias", make, TiresiasParams, preempts=True)


def sjf() -> Entry:
    return _entry("sjf", simple.Sjf, simple.SjfParams)


def edf() -> Entry:
    return _entry("edf", simple.Edf, simple.EdfParams, preempts=True)


def random() -> Entry:
    return _entry("random", simple.Random, simple.RandomParams)


def drf() -> Entry:
    return _entry("drf", fair.Drf, fair.FairParams, preempts=True)


def borg_fair() -> Entry:
    return _entry("borg-fair", fair.BorgFair, fair.BorgFairParams, preempts=True)


def mlf_h() -> Entry:
    doc = (MlfH.__doc__ or "").strip().splitlines()[0]

    def make(words: dict[str, str]) -> Policy:
        params = mlf_h_params(words)
        return TaskwiseMlfH(params) if params.placement == "task" else MlfH(params)

    return Entry("mlf-h", doc, describe(MlfHParams), make, preempts=True)


def beside_mlf_c(inner: Policy, words: dict[str, str]) -> Policy:
    """MLF-C beside a policy."""
    return with_load_control(inner, make_params(LoadControlParams, "mlf-c", words))


def gandiva() -> Entry:
    return _entry("gandiva", Gandiva, GandivaParams, preempts=True)


def hypersched() -> Entry:
    return _entry("hypersched", HyperSched, HyperSchedParams, preempts=True)


def graphene() -> Entry:
    return _entry("graphene", Graphene, GrapheneParams, preempts=True)


def slaq() -> Entry:
    return _entry("slaq", Slaq, SlaqParams, preempts=True)


def mlf_rl() -> Entry:
    return Entry("mlf-rl", _first(MlfRl), describe(MlfRlParams), make_mlf_rl, preempts=True)


def mlfs() -> Entry:
    return Entry("mlfs", _first(WholeMlfs), describe(MlfsParams), make_mlfs, preempts=True)


def rl_placement() -> Entry:
    doc = "Reinforcement learning for the job completion time alone, blind to machine learning (after Mirhoseini et al. 2017)."
    return Entry("rl-placement", doc, describe(RlPlacementParams), make_rl_placement, preempts=True)


def _first(policy: type) -> str:
    """The first line of a policy's docstring."""
    return (policy.__doc__ or "").strip().splitlines()[0]
