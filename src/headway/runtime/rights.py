"""Who may hand in which job: queues, limits, and whose account it would run under (`docs/operations.md`)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from headway.core import columns as c
from headway.core.columns import Name, Phase
from headway.core.errors import UserError, did_you_mean, shown
from headway.core.model import JobSpec
from headway.core.state import State
from headway.engines import accounts
from headway.runtime.admit import Names
from headway.runtime.settings import DEFAULT_QUEUE, Settings


class Identity(Enum):
    """What an engine makes of a job's user."""

    NAMES = "a name and nothing more"
    ONE_DOMAIN = "all jobs run under the controller's own account"
    ACCOUNTS = "each user's jobs run under a Unix account of their own"

    @classmethod
    def here(cls) -> Identity:
        """That of the local engine in this process."""
        return cls.ACCOUNTS if accounts.switches() else cls.ONE_DOMAIN


class FullError(UserError):
    """So many jobs wait already that no other is taken in. It may be handed in again later."""


def permit_room(settings: Settings, state: State, waiting: int = 0) -> None:
    """`FullError` if as many jobs wait in the whole cluster as may. `waiting`: jobs that are taken in at this instant."""
    most = settings.limits.queue_max
    if int(state.C[c.C_QUEUED]) + waiting >= most:
        raise FullError(f"{most} jobs wait already, which is the most that may: try again later")


def permit(spec: JobSpec, settings: Settings, identity: Identity, state: State, names: Names, waiting: int = 0) -> None:
    """Refuse a job that its user may not hand in. `waiting`: jobs of the user that are taken in at this instant.

    Raises:
        UserError: why not.
    """
    user = settings.user(spec.user)
    _permit_queue(spec, settings, user.queues)
    gpus = _gpus(spec)
    if user.gpus_max is not None and gpus > user.gpus_max:
        raise UserError(f"{shown(spec.user)} may use at most {user.gpus_max} GPUs in one job, got {gpus}", key="resources.gpu")
    if user.queued_max is not None and queued(state, names, spec.user) + waiting >= user.queued_max:
        raise FullError(f"{shown(spec.user)} may have at most {user.queued_max} jobs waiting at once", key="user")
    if identity is Identity.ONE_DOMAIN:
        _permit_domain(spec, settings, names)
    elif identity is Identity.ACCOUNTS:
        _permit_account(spec, user.account)


def permit_queue(spec: JobSpec, settings: Settings) -> None:
    """Refuse a queue that there is not, or that is not for the job's user (`UserError`)."""
    _permit_queue(spec, settings, settings.user(spec.user).queues)


def _permit_queue(spec: JobSpec, settings: Settings, own: Sequence[str] | None) -> None:
    if settings.queues:
        known = {*settings.queues, DEFAULT_QUEUE}
        if spec.queue not in known:
            hint = did_you_mean(spec.queue, known) or f"; known: {', '.join(sorted(known))}"
            raise UserError(f"there is no queue {shown(spec.queue)}{hint}", key="queue")
    if own is not None and spec.queue not in own:
        allowed = f"only {', '.join(own)}" if own else "no queue at all"
        raise UserError(f"{shown(spec.user)} may use {allowed}, not {shown(spec.queue)}", key="queue")


def _permit_domain(spec: JobSpec, settings: Settings, names: Names) -> None:
    """In one trust domain there is one user beside the admins: whoever came first. All others could read and kill his jobs."""
    if not spec.user or settings.user(spec.user).admin:
        return
    first = next((name for name in names.listed(Name.USER) if name and not settings.user(name).admin), spec.user)
    if first != spec.user:
        raise UserError(
            f"all jobs run under one account here, and it is that of {shown(first)}: a second user needs a controller that "
            f"runs as root, or 'admin = true' under [users.{spec.user}]",
            key="user",
        )


def _permit_account(spec: JobSpec, account: str) -> None:
    if not spec.user:
        raise UserError("expected a user, whose Unix account the job runs under, got nothing", key="user")
    try:
        accounts.account_of(account)
    except accounts.NoAccount as error:
        raise UserError(str(error), key="user") from None


def _gpus(spec: JobSpec) -> int:
    """The GPUs that the job asks for at first; of a fraction, the whole one."""
    workers = spec.parallelism.data * spec.parallelism.partitions
    milli = max((gpu.milli for gpu in spec.resources.gpu_alternatives), default=0)
    return -(-workers * milli // c.WHOLE)


def queued(state: State, names: Names, user: str) -> int:
    """How many jobs of a user wait."""
    number = names.known(Name.USER, user)
    if number is None:
        return 0
    J = state.J[:, : state.C[c.C_ROWS]]
    return int(((J[c.J_USER] == number) & (J[c.J_PHASE] == Phase.QUEUED)).sum())
