"""`headway why` on the journal of a live cluster, whose older part is in archives, while a controller has it open."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.test_snapshots import lead, long_history, write

from headway.app.why import WhyRequest, read_journal, why
from headway.core.columns import EventKind
from headway.core.errors import UserError
from headway.core.events import concatenate
from headway.policies.registry import make_policy
from headway.runtime import keeper
from headway.runtime.journal import Journal


def test_a_live_journal_is_read_with_its_archives_and_left_alone(tmp_path: Path) -> None:
    where, batches = tmp_path / "journal.db", list(long_history())
    write(where, batches)
    keeper.keep(where, lead(where), make_policy("fifo"))
    whole = concatenate(batches)
    journal = Journal(where)
    epoch = journal.lead()
    assert (read_journal(where).batch.records == whole.records).all()
    submitted = whole.records[whole.records[:, 1] == EventKind.SUBMITTED]
    told = why(WhyRequest(job=str(submitted[20, 2]), journal=where, at=f"{submitted[20, 0] // 10**6 + 1}s", policy="srtf"))
    assert told["policy"] == "srtf" and ("phase" in told or "ended_s" in told)
    with pytest.raises(UserError, match="does not name its policy"):
        why(WhyRequest(job="1", journal=where, at="1"))
    for _ in journal.read():
        pass
    journal.append(batches[-1])
    assert journal.lease().epoch == epoch
    journal.close()
