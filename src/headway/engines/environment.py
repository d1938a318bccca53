"""The environment that each process of a job gets: torchrun's variables, and Headway's own.

Workers and servers are two roles. Workers have `RANK` 0..W-1 and `WORLD_SIZE` W, so that
`torch.distributed.init_process_group("env://")` among them works unchanged. Parameter servers don't belong to
that world: their `RANK` follows the workers' (W, W+1, …: unique in the job, and refused at once by a process
group of W), and they find their place by `HEADWAY_ROLE=server`, `ROLE_RANK` and `ROLE_WORLD_SIZE`.
`LOCAL_RANK` and `LOCAL_WORLD_SIZE` count the tasks of the same role on the same node; `GROUP_RANK` numbers
the nodes in the order in which the ranks reach them.

`NODE_RANK`, `NNODES`, `NPROC_PER_NODE` and the `PET_*` forms that torchrun takes as defaults are set too, for scripts that
read them, and so that a job of one task a node may call a bare `torchrun train.py`.

Not set: `TORCHELASTIC_USE_AGENT_STORE` (there is no torchrun agent: rank 0 opens the store at `MASTER_PORT`
itself) and nothing that begins with `SLURM_` (Lightning would believe that it is on Slurm).
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.engines.base import Launch, TaskLaunch

__all__ = ["task_environment"]


def task_environment(
    launch: Launch,
    task: TaskLaunch,
    *,
    master_addr: str,
    master_port: int,
    servers: Sequence[str] = (),
    real_gpus: bool,
    home: str,
    devices: Sequence[str] = (),
) -> dict[str, str]:
    """The variables for one task of a launch, the job's own `env` included.

    What places the process (ranks, devices, addresses, identity) wins over the job's `env`: a job can't step
    out of its allocation by a variable. `PYTHONUNBUFFERED` is only a default. `servers` are the parameter
    servers' addresses (`host:port`), in the order of their `ROLE_RANK`. `devices` are the UUIDs of the task's GPUs, which mean
    the same after a reboot; without them CUDA gets indices. Where the node has no real GPUs, the
    indices are CPU slots: `HEADWAY_SLOTS` names them and no CUDA device is visible.
    """
    peers = [other for other in launch.tasks if other.role == task.role]
    local_peers = [other.rank for other in peers if other.node == task.node]
    workers = [other for other in launch.tasks if other.role == "worker"]
    # A dict keeps the order of first mention, so it numbers the nodes; nodes with servers only come last.
    nodes = list(dict.fromkeys(other.node for other in sorted(launch.tasks, key=lambda other: other.rank)))
    indices = ",".join(str(index) for index in task.gpus)
    placed = {
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "WORLD_SIZE": str(len(workers)),
        "RANK": str(task.rank),
        "LOCAL_RANK": str(sorted(local_peers).index(task.rank)),
        "LOCAL_WORLD_SIZE": str(len(local_peers)),
        "GROUP_RANK": str(nodes.index(task.node)),
        "GROUP_WORLD_SIZE": str(len({other.node for other in workers})),
        "ROLE_NAME": task.role,
        "ROLE_RANK": str(sorted(other.rank for other in peers).index(task.rank)),
        "ROLE_WORLD_SIZE": str(len(peers)),
        "TORCHELASTIC_RESTART_COUNT": str(launch.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.restarts_max),
        "TORCHELASTIC_RUN_ID": f"headway-{launch.job}",
        "CUDA_VISIBLE_DEVICES": (",".join(devices) or indices) if real_gpus else "",
        "HEADWAY_JOB": str(launch.job),
        "HEADWAY_JOB_NAME": launch.name,
        "HEADWAY_ATTEMPT": str(launch.attempt),
        "HEADWAY_ROLE": task.role,
        "HEADWAY_NODE": task.node,
        "HEADWAY_SERVERS": ",".join(servers),
        "HEADWAY_CHECKPOINT_DIR": launch.checkpoint_dir,
        "HEADWAY_HOME": home,
        "HEADWAY_REPORTS": f"{launch.reports_dir}/{launch.attempt}-{task.rank}.jsonl" if launch.reports_dir else "",
        **launch.told,
        **_for_torchrun(
            len({other.node for other in workers}), nodes.index(task.node), len(local_peers), master_addr, master_port
        ),
    }
    if not real_gpus:
        placed["HEADWAY_SLOTS"] = indices
    return {"PYTHONUNBUFFERED": "1", **task.env, **placed}


def _for_torchrun(nodes: int, node: int, here: int, master_addr: str, master_port: int) -> dict[str, str]:
    """What torchrun takes as defaults: `here` processes on this node, the `node`th of `nodes`."""
    counts = {"NNODES": str(nodes), "NODE_RANK": str(node), "NPROC_PER_NODE": str(here)}
    master = {"PET_MASTER_ADDR": master_addr, "PET_MASTER_PORT": str(master_port)}
    endpoint = {"PET_RDZV_ENDPOINT": f"{master_addr}:{master_port}"}
    return counts | {f"PET_{name}": value for name, value in counts.items()} | master | endpoint
