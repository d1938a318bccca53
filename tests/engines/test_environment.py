"""The variables that each process gets are torchrun's, and a job can't step out of its place by one."""

from __future__ import annotations

from headway.engines.base import Launch, TaskLaunch
from headway.engines.environment import task_environment

# Three workers on two nodes and two servers, of which one has a node of its own.
TASKS = (
    TaskLaunch(0, "worker", "n1", (0,), "x"),
    TaskLaunch(1, "worker", "n1", (2, 3), "x", env={"SEED": "7", "RANK": "9", "PYTHONUNBUFFERED": ""}),
    TaskLaunch(2, "worker", "n0", (0,), "x"),
    TaskLaunch(3, "server", "n1", (), "x"),
    TaskLaunch(4, "server", "n2", (), "x"),
)
LAUNCH = Launch(epoch=1, job=42, name="train", attempt=3, tasks=TASKS, checkpoint_dir="/ckpt", restarts_max=2)


def environment(rank: int, real_gpus: bool = False) -> dict[str, str]:
    return task_environment(
        LAUNCH,
        TASKS[rank],
        master_addr="10.0.0.1",
        master_port=29500,
        servers=["10.0.0.1:5000", "10.0.0.2:5001"],
        real_gpus=real_gpus,
        home="/home/headway",
    )


def test_a_worker_gets_what_torchrun_sets() -> None:
    assert environment(1) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "3",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "worker",
        "ROLE_RANK": "1",
        "ROLE_WORLD_SIZE": "3",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "2",
        "TORCHELASTIC_RUN_ID": "headway-42",
        "CUDA_VISIBLE_DEVICES": "",
        "HEADWAY_SLOTS": "2,3",
        "HEADWAY_JOB": "42",
        "HEADWAY_JOB_NAME": "train",
        "HEADWAY_ATTEMPT": "3",
        "HEADWAY_ROLE": "worker",
        "HEADWAY_NODE": "n1",
        "HEADWAY_SERVERS": "10.0.0.1:5000,10.0.0.2:5001",
        "HEADWAY_CHECKPOINT_DIR": "/ckpt",
        "HEADWAY_HOME": "/home/headway",
        "HEADWAY_REPORTS": "",
        "NNODES": "2",
        "NODE_RANK": "0",
        "NPROC_PER_NODE": "2",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_ENDPOINT": "10.0.0.1:29500",
        "PYTHONUNBUFFERED": "",
        "SEED": "7",
    }


def test_servers_have_ranks_after_the_workers_and_are_no_part_of_their_world() -> None:
    names = ("RANK", "WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    first, second = environment(3), environment(4)
    assert [first[name] for name in names] == ["3", "3", "server", "0", "2", "0", "1", "0"]
    assert [second[name] for name in names] == ["4", "3", "server", "1", "2", "0", "1", "2"]


def test_nodes_are_numbered_as_the_ranks_reach_them() -> None:
    assert [environment(rank)["GROUP_RANK"] for rank in range(3)] == ["0", "0", "1"]


def test_output_is_unbuffered_unless_the_job_says_otherwise() -> None:
    assert environment(0)["PYTHONUNBUFFERED"] == "1"


def test_real_gpus_are_visible_devices() -> None:
    assert environment(1, real_gpus=True)["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "HEADWAY_SLOTS" not in environment(1, real_gpus=True)


def test_a_task_without_gpus_sees_none() -> None:
    assert environment(3, real_gpus=True)["CUDA_VISIBLE_DEVICES"] == ""
