"""Which task of which job this process is, as its environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One process of a job. Outside Headway: rank 0 of 1, attempt 0."""

    in_headway: bool = False
    job: str = ""
    """The job's number."""
    owner: str = ""
    """Tells this job from every other, also of other controllers; the same in all attempts."""
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    reports: str = ""
    """The file that reports go to, if any."""
    url: str = ""
    token: str = ""
    checkpoint_dir: str = ""
    resume_step: int | None = None
    """The newest durable checkpoint that the controller knows of."""
    resume_path: str = ""


def read_task(env: Mapping[str, str]) -> Task:
    """The task that an environment names."""
    job = env.get("HEADWAY_JOB", "")
    if not job:
        return Task(rank=_int(env.get("RANK"), 0), world_size=_int(env.get("WORLD_SIZE"), 1))
    resume = env.get("HEADWAY_RESUME", "")
    return Task(
        in_headway=True,
        job=job,
        owner=env.get("HEADWAY_JOB_UID") or f"{env.get('HEADWAY_JOB_NAME', '')}:{job}",
        attempt=_int(env.get("HEADWAY_ATTEMPT"), 1),
        rank=_int(env.get("RANK"), 0),
        world_size=_int(env.get("WORLD_SIZE"), 1),
        reports=env.get("HEADWAY_REPORTS", ""),
        url=env.get("HEADWAY_URL", "").rstrip("/"),
        token=env.get("HEADWAY_TOKEN", ""),
        checkpoint_dir=env.get("HEADWAY_CHECKPOINT_DIR", ""),
        resume_step=_int(resume, 0) if resume.isdecimal() else None,
        resume_path=env.get("HEADWAY_RESUME_PATH", ""),
    )


def _int(text: str | None, default: int) -> int:
    try:
        return int(text or "")
    except ValueError:
        return default


TASK = read_task(os.environ)
"""This process."""
