"""What an operator says of the policies that are simulated beside the one in force (`[shadow]`, `docs/shadow.md`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.core import units

SHADOWS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Shadows:
    """Which policies, how often, and how far ahead. A guarded policy is compared with its teacher at the same times."""

    policies: tuple[str, ...] = ()
    every_s: float = 3600.0
    horizon_s: float = 6 * 3600.0
    budget_s: float = 30.0
    """What a comparison may take, by the clock on the wall."""

    def to_json(self) -> dict[str, Any]:
        """By the keys of the file."""
        times = {key: units.format_duration(getattr(self, f"{key}_s")) for key in ("every", "horizon", "budget")}
        return {"policies": list(self.policies), **times}
