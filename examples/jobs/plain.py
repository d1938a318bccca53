"""Train a small network on scikit-learn's digits; a script that knows nothing of any scheduler.

It prints a line an epoch and saves itself after each; started again with the same --save, it goes on from there. SIGTERM simply
ends it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from digits import Digits
from models import RATES, build, loss_of
from modes import Momentum, measured

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--save", type=Path, required=True, help="the file that the run is saved in")
parser.add_argument("--epochs", type=int, default=20)
options = parser.parse_args()

torch.set_num_threads(1)
digits, model, loss_function = Digits(seed=0), build("mlp", seed=0), loss_of("mlp")
optimizer = Momentum(model.named_parameters(), RATES["mlp"])
first = 0
if options.save.exists():
    saved = torch.load(options.save)
    model.load_state_dict(saved["model"])
    optimizer.buffers, first = saved["momentum"], saved["epoch"]
    print(f"goes on after epoch {first}")

for epoch in range(first, options.epochs):
    for step in range(epoch * digits.steps_per_epoch, (epoch + 1) * digits.steps_per_epoch):
        x, y = digits.batch(step)
        loss_function(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        x, y = digits.held_out
        loss, accuracy = measured(model(x), y, loss_function)
    unfinished = options.save.with_suffix(".new")
    torch.save({"epoch": epoch + 1, "model": model.state_dict(), "momentum": optimizer.buffers}, unfinished)
    os.replace(unfinished, options.save)
    print(f"step={(epoch + 1) * digits.steps_per_epoch} loss={loss:.4f} acc={accuracy:.4f}", flush=True)
