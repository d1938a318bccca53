"""`mlf-rl`, `mlfs` and `rl-placement` from their parameters: a model is read, checked, and stands beside its teacher.

`mlfs` is the system as the paper means it (§3.1): MLF-H until the model is well trained, MLF-RL from then on, and MLF-C beside
either. Whether a model is well trained is in its manifest, where training has written what its test of the switch has shown
(§4.3: its moving reward has converged, and it is no worse than MLF-H on workloads held out). `rl-placement` is the RL of the
paper's comparison (Mirhoseini et al., ICML 2017, as MLFS §4.1 uses it): reinforcement learning whose reward is the job
completion time alone, and which sees nothing of machine learning. Strong form: the same network, passes and training as MLF-RL.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from headway.core.plan import Plan
from headway.core.policy import Policy
from headway.core.view import ClusterView
from headway.features.table import ML_COLUMNS
from headway.policies.mlfs.artefact import Model, load_model
from headway.policies.mlfs.load_control import LoadControl, LoadControlParams
from headway.policies.mlfs.policy import MlfH, mlf_h_params
from headway.policies.mlfs.rl import MlfRl, MlfRlParams
from headway.policies.params import make_params, param

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class MlfsParams(MlfRlParams):
    downgrade: bool = param(
        True, "MLF-C: under overload, put a stop rule into force that the owner allows and that saves iterations"
    )
    switch: str = param(
        "trained", "who decides: the model if its test of the switch was passed, MLF-H, or the model",
        choices=("trained", "mlf-h", "mlf-rl"), tuned=False,
    )  # fmt: skip


def folder_of(model: str, kind: str) -> Path:
    """The folder of a model: the one that is shipped, or the path given."""
    if model != SHIPPED:
        return Path(model).expanduser()
    return Path(str(files("headway") / "models" / kind))


def teacher_of(params: MlfRlParams) -> MlfH:
    """MLF-H beside a model, with the same parameters where both have them."""
    words = {"sharing": str(params.sharing).lower(), "migration": str(params.migration).lower()}
    if params.teacher == "mlf-h-tuned":
        words["tuned"] = "true"
    return MlfH(mlf_h_params(words))


def with_model(params: MlfRlParams, kind: str, masked: tuple[str, ...] = ()) -> tuple[MlfRl, Model]:
    """The policy with the model that its parameters name.

    Raises:
        UserError: as `load_model`.
    """
    model = load_model(folder_of(params.model, kind), kind)
    return MlfRl(params, model.net, teacher_of(params), model.ranges, name=kind, masked=masked), model


def make_mlf_rl(words: dict[str, str]) -> Policy:
    """`mlf-rl` from its words."""
    return with_model(make_params(MlfRlParams, "mlf-rl", words), "mlf-rl")[0]


def make_rl_placement(words: dict[str, str]) -> Policy:
    """`rl-placement` from its words."""
    params = make_params(RlPlacementParams, "rl-placement", words)
    return with_model(params, "rl-placement", ML_COLUMNS)[0]


@dataclass(frozen=True, slots=True)
class RlPlacementParams(MlfRlParams):
    sharing: bool = param(False, "put jobs that allow it side by side on one GPU (A21)")


@dataclass(frozen=True, slots=True)
class Mlfs:
    """The first two of MLFS' parts: MLF-RL where it is well trained, else MLF-H."""

    chosen: Policy
    name: str = "mlfs"

    @property
    def teacher(self) -> Policy | None:
        """MLF-H where the model decides; nobody where MLF-H decides itself."""
        found: Policy | None = getattr(self.chosen, "teacher", None)
        return found

    def decide(self, view: ClusterView, memo: Any) -> Plan:
        return self.chosen.decide(view, memo)

    def explain(self, view: ClusterView, memo: Any, job: int) -> Any:
        chosen: Any = self.chosen
        return chosen.explain(view, memo, job)


class WholeMlfs(LoadControl):
    """MLFS: MLF-RL or, until it is well trained, MLF-H; and MLF-C."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return "mlfs"


def is_trained(model: Model) -> bool:
    """Whether training's test of the switch was passed (MLFS §3.4; §4.3 of our reading)."""
    switch = model.manifest.get("switch") or {}
    return bool(switch.get("converged") and switch.get("beats_teacher"))


def make_mlfs(words: dict[str, str]) -> Policy:
    """`mlfs` from its words."""
    params = make_params(MlfsParams, "mlfs", words)
    chosen: Policy = teacher_of(params)
    if params.switch != "mlf-h":
        policy, model = with_model(params, "mlf-rl")
        if params.switch == "mlf-rl" or is_trained(model):
            chosen = policy
    return WholeMlfs(Mlfs(chosen), LoadControlParams(downgrade=params.downgrade))
