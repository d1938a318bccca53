"""Two attempts of a tiny training with a framework: the first is sent SIGTERM on its way, the second goes on to the end.

The framework is imported once and each attempt forked off: `python frameworks.py NAME DIRECTORY`.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch

STEPS = 60
STOP_AT = 20


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """64 points in a plane, and on which side of a line they lie."""
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))
    return x, (x.sum(1) > 0).long()


def huggingface(directory: Path, path: str | None, callback: object) -> None:
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.layer(x)
            time.sleep(0.01)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    torch.manual_seed(0)
    x, y = data()
    rows = [{"x": x[k], "labels": y[k]} for k in range(64)]
    arguments = TrainingArguments(
        output_dir=str(directory / "out"), max_steps=STEPS, per_device_train_batch_size=8, learning_rate=0.05, logging_steps=5,
        eval_strategy="steps", eval_steps=10, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip

    def accuracy(found: object) -> dict[str, float]:
        return {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}  # type: ignore[attr-defined]

    trainer = Trainer(
        model=Model(), args=arguments, train_dataset=rows, eval_dataset=rows, compute_metrics=accuracy, callbacks=[callback]
    )
    trainer.train(resume_from_checkpoint=path)
    print("ended at", trainer.state.global_step)


def lightning(directory: Path, path: str | None, callback: object) -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            time.sleep(0.01)
            return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
            logits = self.layer(batch[0])
            self.log("val_loss", torch.nn.functional.cross_entropy(logits, batch[1]))
            self.log("val_acc", (logits.argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=8)
    trainer = Trainer(
        max_steps=STEPS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], default_root_dir=directory,
    )  # fmt: skip
    trainer.fit(Model(), loader, loader, ckpt_path=path)
    print("ended at", trainer.global_step)


def attempt(name: str, directory: Path, number: int) -> int:
    """Fork an attempt off, with the environment that a task of one worker has; its process."""
    if pid := os.fork():
        return pid
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1",
        GROUP_RANK="0", ROLE_NAME="worker", ROLE_RANK="0", TORCHELASTIC_RUN_ID="headway-3", TORCHELASTIC_RESTART_COUNT="0",
        GLOO_SOCKET_IFNAME="lo", HEADWAY_JOB="3", HEADWAY_JOB_NAME="tiny-1", HEADWAY_ATTEMPT=str(number),
        HEADWAY_CHECKPOINT_DIR=str(directory / "checkpoints"), HEADWAY_REPORTS=str(directory / f"reports.{number}"),
    )  # fmt: skip
    code = 1
    try:
        bridge = importlib.import_module(f"headway.job.{name}")
        options = {} if name == "huggingface" else {"save_every": 15}
        {"huggingface": huggingface, "lightning": lightning}[name](
            directory, bridge.resume_path(), bridge.HeadwayCallback(**options)
        )
        code = 0
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def step_told(reports: Path) -> int:
    """The newest step that has been reported."""
    lines = reports.read_text().splitlines() if reports.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines), default=0)


def main() -> None:
    name, directory = sys.argv[1], Path(sys.argv[2])
    importlib.import_module({"huggingface": "transformers.trainer", "lightning": "lightning.pytorch"}[name])
    first = attempt(name, directory, 1)
    while step_told(directory / "reports.1") < STOP_AT:
        if os.waitpid(first, os.WNOHANG)[0]:
            sys.exit("the first attempt ended before it was stopped")
        time.sleep(0.005)
    os.kill(first, signal.SIGTERM)
    codes = [os.waitpid(first, 0)[1]]
    codes.append(os.waitpid(attempt(name, directory, 2), 0)[1])
    sys.exit(0 if codes == [0, 0] else f"statuses {codes}")


if __name__ == "__main__":
    main()
