"""Which metric is the loss, which the accuracy, which the step: by the job file's names, or by what people usually call them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

LOSSES = (
    "loss", "train_loss", "training_loss", "loss_train", "train_loss_step", "batch_loss", "loss_step", "train_loss_epoch",
    "loss_epoch", "epoch_loss", "total_loss", "nll", "nll_loss", "objective",
)  # fmt: skip
ACCURACIES = (
    "val_accuracy", "val_acc", "eval_accuracy", "validation_accuracy", "accuracy_val", "acc_val", "val_acc_epoch",
    "test_accuracy", "test_acc", "accuracy_test", "acc_test", "accuracy", "acc", "acc1", "top1", "epoch_accuracy",
    "train_accuracy", "train_acc", "training_accuracy", "accuracy_train",
)  # fmt: skip
STEPS = ("step", "steps", "global_step", "trainer_global_step", "iter", "iteration", "iterations", "iters", "update", "it")
EPOCHS = ("epoch", "epochs")
TOTALS = ("total", "total_steps", "max_steps")
_PLAIN = re.compile(r"[^a-z0-9]+")


def plain(name: str) -> str:
    """A name without what people write differently: `Train/Loss`, `train-loss` and `train_loss` are one."""
    return _PLAIN.sub("_", name.lower()).strip("_")


@dataclass(slots=True)
class MetricNames:
    """The names that one job's metrics go by; `loss` and `accuracy` as in its job file."""

    loss: str = "loss"
    accuracy: str = ""
    _known: dict[str, tuple[str, int] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        losses = LOSSES if plain(self.loss) in ("", "loss") else (plain(self.loss),)
        accuracies = (plain(self.accuracy),) if plain(self.accuracy) else ACCURACIES
        self._fill("total", TOTALS)
        self._fill("epoch", EPOCHS)
        self._fill("step", STEPS)
        self._fill("accuracy", accuracies)
        self._fill("loss", losses)

    def _fill(self, quantity: str, names: Sequence[str]) -> None:
        self._known.update({name: (quantity, order) for order, name in enumerate(names)})

    def role(self, name: str) -> tuple[str, int] | None:
        """The quantity that a name stands for, and its place in the list; None for any other metric."""
        return self._known.get(plain(name))
