"""The names under which Gymnasium knows our environments. Gymnasium runs `register` when it is imported (entry point
`gymnasium.envs`), so this loads nothing of ours."""

from __future__ import annotations

NAME = "Cluster-v0"
ID = f"headway/{NAME}"


def register() -> None:
    """Register `headway/Cluster-v0`, unless it is there already."""
    from gymnasium.envs import registration

    if ID not in registration.registry:
        name = NAME if registration.current_namespace == "headway" else ID
        registration.register(id=name, entry_point="headway.sim.env:ClusterEnv")
