"""`headway submit --dry-run`: what would become of a job that is handed in now. Nothing is journalled and no name is given."""

from __future__ import annotations

from typing import Any

from headway.core import columns as c
from headway.core.columns import Name
from headway.core.errors import UserError, shown
from headway.core.model import JobSpec
from headway.core.units import name_fault
from headway.runtime.admit import Names, rooms_of, spec_columns, too_large
from headway.runtime.controller import Controller
from headway.runtime.rights import permit, permit_room


class _KnownNames(Names):
    """Looks names up in others; a new one gets no number."""

    def __init__(self, names: Names) -> None:
        super().__init__()
        self._names = names

    def number(self, table: Name, name: str) -> int:
        known = self._names.known(table, name)
        return 0 if known is None else known

    def known(self, table: Name, name: str) -> int | None:
        return self._names.known(table, name)


def dry_run_of(controller: Controller, spec: JobSpec, public_id: str = "") -> dict[str, Any]:
    """What would become of a valid job.

    Raises:
        UserError: whatever handing it in would raise.
    """
    intake = controller.intake
    if public_id and (fault := name_fault(public_id)):
        raise UserError(f"expected an id {fault}, got {shown(public_id)}", key="id")
    permit_room(intake.settings, intake.state)
    permit(spec, intake.settings, intake.identity, intake.state, intake.names)
    row = spec_columns(spec, _KnownNames(intake.names), fractional_gpus=intake.fractional_gpus)
    why = too_large(spec, row, rooms_of(intake.state, intake.here))
    workers = spec.parallelism.data * spec.parallelism.partitions
    milli = max((gpu.milli for gpu in spec.resources.gpu_alternatives), default=0)
    return {
        "dry_run": True,
        "state": "rejected" if why else "would-queue",
        "message": why,
        "name": spec.name,
        "user": spec.user,
        "queue": spec.queue,
        "gpus": workers * -(-milli // c.WHOLE),
        "tasks": workers + spec.parallelism.servers,
    }
