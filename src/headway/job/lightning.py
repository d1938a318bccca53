"""Lightning under Headway: one callback, and where to go on from. Needs `lightning` (or `pytorch_lightning`).

    from headway.job.lightning import HeadwayCallback, resume_path

    trainer = Trainer(..., callbacks=[HeadwayCallback(save_every=500)])
    trainer.fit(model, ckpt_path=resume_path())

The callback tells the figures that the module logs, saves every `save_every` steps and when the job is to stop, leaves then,
and says when the training is done. Checkpoints go to the job's checkpoint directory. Outside Headway it does nothing.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Sequence
from typing import Any

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError:
    from pytorch_lightning import Callback, LightningModule, Trainer

import headway.job as job

__all__ = ["HeadwayCallback", "resume_path"]

LOSSES = ("val_loss", "loss", "train_loss")
ACCURACIES = ("val_acc", "val_accuracy", "acc", "accuracy")


def resume_path() -> str | None:
    """What `Trainer.fit(ckpt_path=…)` takes: this job's newest durable checkpoint, or None for a fresh start."""
    found = job.resume_from()
    return None if found is None else str(found.path)


class HeadwayCallback(Callback):
    """Reports, stops and saves for Headway.

    `loss` and `accuracy` name what the module logs; the first that is there counts. A module that validates tells the
    validation's figures, after each validation; another one those of its steps, every `log_every_n_steps` of the Trainer.
    `save_every` is in steps of the optimizer; None: only when the job is to stop.
    """

    def __init__(
        self, *, loss: Sequence[str] = LOSSES, accuracy: Sequence[str] = ACCURACIES, save_every: int | None = None
    ) -> None:
        self.loss, self.accuracy, self.save_every = tuple(loss), tuple(accuracy), save_every
        self._stopped = False
        self._saved = 0
        job.should_stop()  # from here on SIGTERM is a wish and not an end
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._saved = trainer.global_step
        if job.in_headway and threading.current_thread() is threading.main_thread():
            # Lightning has put a handler in front, which ends the training with an exception in the middle of a step.
            signal.signal(signal.SIGTERM, self._on_sigterm)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if not trainer.enable_validation and step % max(trainer.log_every_n_steps, 1) == 0:
            self._report(trainer)
        if not self._stopped and self._any_process(trainer, job.should_stop()):
            self._stopped = True
            trainer.should_stop = True
            # Lightning goes on up to min_epochs and min_steps otherwise.
            trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, 0
        due = self.save_every is not None and step - self._saved >= self.save_every
        if job.in_headway and step > self._saved and (due or self._stopped):
            self._save(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._report(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not self._stopped:
            job.done()

    def _report(self, trainer: Trainer) -> None:
        if trainer.is_global_zero:
            figures = trainer.callback_metrics
            loss = next((figures[name] for name in self.loss if name in figures), None)
            accuracy = next((figures[name] for name in self.accuracy if name in figures), None)
            total = trainer.estimated_stepping_batches
            job.report(trainer.global_step, loss=loss, accuracy=accuracy, total=int(total) if math.isfinite(total) else None)

    def _save(self, trainer: Trainer) -> None:
        """All processes take part; the first one writes."""
        self._saved = trainer.global_step
        if trainer.is_global_zero:
            with job.saving(self._saved) as path:
                trainer.save_checkpoint(path)
        else:
            trainer.save_checkpoint("unused")  # only the first process writes

    def _any_process(self, trainer: Trainer, stop: bool) -> bool:
        """Whether any process of the training is to stop: they get the signal at different steps, and must leave at the same."""
        return bool(trainer.strategy.reduce_boolean_decision(stop, all=False)) if trainer.world_size > 1 else stop
