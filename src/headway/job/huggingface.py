"""The Hugging Face Trainer under Headway: one callback, and where to go on from. Needs `transformers`.

    from headway.job.huggingface import HeadwayCallback, resume_path

    trainer = Trainer(..., callbacks=[HeadwayCallback()])
    trainer.train(resume_from_checkpoint=resume_path())

The callback tells the loss at each log and the evaluation's figures, has the Trainer save itself and leave when the job is to
stop, tells of each checkpoint that the Trainer has written, and says when the training is done. Outside Headway it does nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import headway.job as job
from headway.job.checkpoints import fsync_all

__all__ = ["HeadwayCallback", "resume_path"]

LOSSES = ("eval_loss", "loss")
ACCURACIES = ("eval_accuracy", "accuracy")


def resume_path() -> str | None:
    """What `Trainer.train(resume_from_checkpoint=…)` takes: this job's newest durable checkpoint, or None for a fresh start."""
    found = job.resume_from()
    return None if found is None else str(found.path)


class HeadwayCallback(TrainerCallback):
    """Reports, stops and saves for Headway.

    `loss` and `accuracy` name the figures of a log or an evaluation, the first that is there counts. A run that evaluates tells
    the evaluation's loss and not the training's, for they are two curves.
    """

    def __init__(self, *, loss: Sequence[str] = LOSSES, accuracy: Sequence[str] = ACCURACIES) -> None:
        self.loss, self.accuracy = tuple(loss), tuple(accuracy)
        self._stopping = False
        self._evaluates = False
        self._saved = -1

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        job.should_stop()  # from here on SIGTERM is a wish and not an end
        self._evaluates = str(getattr(args.eval_strategy, "value", args.eval_strategy)) != "no"

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl,
        logs: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        evaluated = any(name.startswith("eval_") for name in logs or ())
        if logs is not None and "train_runtime" not in logs and evaluated == self._evaluates:
            self._report(state, logs)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if not self._stopping and _any_process(job.should_stop()):
            self._stopping = True
        if self._stopping:
            control.should_save = self._saved < state.global_step
            control.should_training_stop = True
        return control

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved = state.global_step
        path = Path(args.output_dir or "", f"checkpoint-{state.global_step}")
        if job.in_headway and state.is_world_process_zero and path.is_dir():
            fsync_all(os.fspath(path))
            job.checkpoint_saved(state.global_step, path)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.is_world_process_zero and not self._stopping:
            job.done()

    def _report(self, state: TrainerState, figures: Mapping[str, Any]) -> None:
        if state.is_world_process_zero:
            loss = next((figures[name] for name in self.loss if name in figures), None)
            accuracy = next((figures[name] for name in self.accuracy if name in figures), None)
            job.report(state.global_step, loss=loss, accuracy=accuracy, total=state.max_steps)


def _any_process(stop: bool) -> bool:
    """Whether any process of the training is to stop: they get the signal at different steps, and must leave at the same."""
    import torch
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE", "1")) < 2 or not (dist.is_available() and dist.is_initialized()):
        return stop
    device = torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")
    said = torch.tensor([stop], dtype=torch.int32, device=device)
    dist.all_reduce(said, op=dist.ReduceOp.MAX)
    return bool(said.item())
