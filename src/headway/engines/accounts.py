"""Whose account a task runs under: root starts each user's tasks as that user, anybody else all tasks as themselves."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from typing import NamedTuple

INHERITED = ("PATH", "TZ", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH")
INHERITED_PREFIXES = ("LC_", "NVIDIA_", "NCCL_")


class Account(NamedTuple):
    """A Unix account; `groups` are all of its groups."""

    name: str
    uid: int
    gid: int
    groups: list[int]
    home: str
    shell: str


class NoAccount(Exception):
    """A user has no account on this node."""


def switches() -> bool:
    """Whether tasks can run under other accounts than ours."""
    return os.geteuid() == 0


def account_of(user: str) -> Account | None:
    """The account of a job's user; None to run it as ourselves. Raises `NoAccount`."""
    if not user or not switches():
        return None
    try:
        found = pwd.getpwnam(user)
    except (KeyError, ValueError):
        raise NoAccount(f"the user {user!r} has no Unix account on this node") from None
    if found.pw_uid == os.geteuid():
        return None
    groups = sorted({found.pw_gid, *(one.gr_gid for one in grp.getgrall() if found.pw_name in one.gr_mem)})
    return Account(found.pw_name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell or "/bin/sh")


def environment_of(account: Account, ours: Mapping[str, str]) -> dict[str, str]:
    """The variables that a task of another account starts with.

    Of our own environment only what says nothing of us goes along: the rest may hold secrets.
    """
    kept = {name: text for name, text in ours.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)}
    return {**kept, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": account.shell}


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Give up root for good: groups first, for afterwards it would be too late."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
