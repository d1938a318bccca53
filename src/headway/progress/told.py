"""What one source tells at once of one attempt, and how the sources of an attempt become one row of reports.

**Who is believed.** For each quantity (step, loss, accuracy) the most trusted of those who have ever told it in this attempt: the
SDK before MLflow, MLflow before patterns on standard output, those before TensorBoard; of equals rank 0, or the lowest rank that
tells it; of one source's metrics the one whose name comes first (`progress.names`). A more trusted one that begins to speak takes
over for good. So two metrics of one name, or eight ranks that print the same, are not mixed into one curve.

**Which step.** A loss or an accuracy belongs to the step that it was told with; without one, or where steps are another
source's, to the step that the job has reached. Before any step is known, nothing is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple


class Source(IntEnum):
    """In the order of trust."""

    SDK = 0
    MLFLOW = 1
    OUTPUT = 2
    TENSORBOARD = 3


class Told(NamedTuple):
    """What a source has told at once. Orders are places in the list of names: the lower, the better."""

    source: Source
    rank: int = 0
    step: float | None = None
    epoch: float | None = None
    loss: float | None = None
    accuracy: float | None = None
    total: float | None = None
    step_order: int = 0
    loss_order: int = 0
    accuracy_order: int = 0
    writer: str = ""
    """Where metrics of one name come from several places: which."""
    saved: str | None = None
    done: bool = False
    other: tuple[tuple[str, float], ...] = ()


class Point(NamedTuple):
    """One report of an attempt, merged."""

    step: float
    loss: float | None
    accuracy: float | None
    total: float | None = None


Key = tuple[int, int, int, str]
NOBODY: Key = (len(Source), 0, 0, "")


@dataclass(slots=True)
class Merge:
    """The fold over what the sources of one attempt tell."""

    by_epoch: bool = False
    """The job counts in epochs."""
    step: float | None = None
    owners: dict[str, Key] = field(default_factory=dict)

    def take(self, told: Told) -> Point | None:
        """The report that follows, if any."""
        step = told.epoch if self.by_epoch and told.epoch is not None else told.step
        order = told.step_order
        if step is None and told.epoch is not None:
            step, order = told.epoch, 1000  # better than nothing: a job that only ever names its epochs
        moved = step is not None and self._owns("step", told, order)
        if moved and step is not None:
            self.step = float(int(step)) if abs(step) < 1e300 else step
        loss = told.loss if told.loss is not None and self._owns("loss", told, told.loss_order) else None
        accuracy = told.accuracy if told.accuracy is not None and self._owns("accuracy", told, told.accuracy_order) else None
        if self.step is None or not (moved or loss is not None or accuracy is not None):
            return None
        return Point(self.step, loss, accuracy, told.total if told.source == Source.SDK and moved else None)

    def _owns(self, quantity: str, told: Told, order: int) -> bool:
        """Whether this one counts for a quantity; from now on, if it is the most trusted so far."""
        key = int(told.source), told.rank, order, told.writer
        owner = self.owners.get(quantity, NOBODY)
        if key[:3] < owner[:3]:
            self.owners[quantity] = key
            return True
        return key == owner
