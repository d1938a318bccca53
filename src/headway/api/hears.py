"""Where the reports of jobs go that come in over HTTP."""

from __future__ import annotations

from typing import Any

from headway.api.schemas import ReportIn
from headway.core.errors import UserError
from headway.runtime.board import JobRecord
from headway.runtime.progress import Finding


class Hears:
    """Where reports go, and what is known of a job's progress."""

    async def report(self, job: JobRecord, attempt: int, rank: int, reports: list[ReportIn]) -> list[Finding]:
        """Take reports in; what was wrong with any."""
        raise UserError("this controller takes no reports")

    async def progress(self, job: JobRecord) -> dict[str, Any]:
        """The fields of `ProgressOut`."""
        return {"points": [], "saved": None, "findings": []}
