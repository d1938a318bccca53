"""What a training script imports to talk to Headway: `import headway.job as job`. The standard library only.

    checkpoint = job.resume_from()
    for step in range(checkpoint.step if checkpoint else 0, steps):
        loss = train(step)
        job.report(step + 1, loss=loss, total=steps)
        if job.should_stop():
            with job.saving(step + 1) as path:
                torch.save(model.state_dict(), path)
            sys.exit(0)
    job.done()

Outside Headway every call is harmless: nothing is reported, nothing is to be stopped, nothing is there to resume from, and what
is saved without a directory is thrown away.

**Reports.** `report` never waits and never raises for a number that is none. At most ten lines a second leave the process: of
what comes faster, the newest counts, with what only an older one told (a loss is the last one, no average). The last is out
when the process exits. Every process may report; the controller counts rank 0's, unless only others speak.

**Stopping.** A preemption is SIGTERM, then the grace, then SIGKILL. A handler is set when this module is imported (in the main
thread; one that is there already is called after it). A script that has called `should_stop`, `saving`, `checkpoint_saved` or
`resume_from` is expected to look at `should_stop` and leave; any other is ended by the signal as if nobody had caught it.
"""

from __future__ import annotations

from typing import Any

from headway.job.checkpoints import Checkpoint, StepRegression, checkpoint_saved, resume_from, saving
from headway.job.sending import SENDER, whole
from headway.job.stopping import install, should_stop
from headway.job.task import TASK

__all__ = [
    "Checkpoint",
    "StepRegression",
    "attempt",
    "checkpoint_saved",
    "done",
    "in_headway",
    "rank",
    "report",
    "resume_from",
    "saving",
    "should_stop",
    "world_size",
]

in_headway: bool = TASK.in_headway
"""Whether this process is a task of a Headway job."""
rank: int = TASK.rank
"""This task's rank in the job; 0 outside."""
world_size: int = TASK.world_size
"""How many workers the job has; 1 outside."""
attempt: int = TASK.attempt
"""The how manieth start of the job this is, from 1; 0 outside."""


def report(step: Any, *, loss: Any = None, accuracy: Any = None, total: Any = None, **other: Any) -> None:
    """Tell how far the job is: `step` units of work are done, out of `total`.

    `accuracy` lies in 0…1. `other` metrics are kept beside, for people. Numbers may be anything that `float` takes (NumPy and
    PyTorch scalars); what is no number counts as not told, and a report without a step is none. Steps may go back after a resume.
    """
    if TASK.in_headway and (steps := whole(step)) is not None:
        SENDER.report(steps, loss, accuracy, total, other)


def done() -> None:
    """Tell that the job is finished: exit code 0 then counts as completed, even after a stop request."""
    if TASK.in_headway:
        SENDER.tell({"done": True})


install()
