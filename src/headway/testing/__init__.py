"""Shipped for tests of ours and of others: builders, strategies, conformance checks and fault scenarios.

The names below are looked up when they are used: importing this package imports neither Numba nor a test library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.testing.builders import cluster, job, state, view, workload
    from headway.testing.engine_checks import check_engine, run_engine_check
    from headway.testing.invariants import verify
    from headway.testing.live_run import replay_live_seed, run_live
    from headway.testing.live_scenarios import live_scenario
    from headway.testing.policy_checks import check_policy
    from headway.testing.scenarios import run_scenario, scenario

__all__ = [
    "check_engine", "check_policy", "cluster", "job", "live_scenario", "replay_live_seed", "run_engine_check", "run_live",
    "run_scenario", "scenario", "state", "verify", "view", "workload",
]  # fmt: skip

_HOMES = {
    "builders": ("cluster", "job", "state", "view", "workload"),
    "engine_checks": ("check_engine", "run_engine_check"),
    "invariants": ("verify",),
    "live_run": ("replay_live_seed", "run_live"),
    "live_scenarios": ("live_scenario",),
    "policy_checks": ("check_policy",),
    "scenarios": ("run_scenario", "scenario"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
