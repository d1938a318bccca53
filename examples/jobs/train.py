"""Train one of five small models on scikit-learn's digits: in one process, or as one of several.

How the processes work together follows from the environment, which is torchrun's and Headway's: WORLD_SIZE processes are
data-parallel replicas; with --stages N, replicas of a pipeline of N stages; with HEADWAY_SERVERS, workers of parameter servers.

The run goes on from the job's newest checkpoint, exactly: it ends with the same loss as one that was never stopped.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import time
from pathlib import Path

import torch
from digits import Digits
from models import LAYERS, RATES, build, loss_of
from modes import DataParallel, Pipeline, Plain, Worker, serve

import headway.job as job


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(LAYERS), default="mlp")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--stages", type=int, default=1, help="pipeline stages; WORLD_SIZE is a multiple of it")
    parser.add_argument("--micro-batches", type=int, default=4, help="small batches that go through a pipeline in one step")
    parser.add_argument("--batch", type=int, default=64, help="pictures a step, over all replicas")
    parser.add_argument("--rate", type=float, help="learning rate; each model has its own default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=200, help="steps from one checkpoint to the next; 0: only when stopped")
    options = parser.parse_args()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    replicas, rest = divmod(world, options.stages)
    if rest or options.batch % (replicas * options.micro_batches if options.stages > 1 else replicas):
        parser.error(f"{world} processes cannot share {options.stages} stages and batches of {options.batch} evenly")
    return options


def way_of(options: argparse.Namespace) -> Plain | None:
    """How this process trains; None for a parameter server, which has served when this returns."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    servers = len([address for address in os.environ.get("HEADWAY_SERVERS", "").split(",") if address])
    model, loss, rate = build(options.model, options.seed), loss_of(options.model), options.rate or RATES[options.model]
    if os.environ.get("HEADWAY_ROLE") == "server":
        serve(model, rate, rank, world, servers)
        return None
    if servers:
        return Worker(model, loss, rate, rank, world, servers)
    if options.stages > 1:
        return Pipeline(model, loss, rate, rank, world, options.stages, options.micro_batches)
    return DataParallel(model, loss, rate, rank, world) if world > 1 else Plain(model, loss, rate)


def main() -> None:
    options = parse()
    torch.set_num_threads(max(1, len(os.environ.get("HEADWAY_SLOTS", "0").split(","))))
    job.should_stop()  # says that this script looks at it: no process is ended by SIGTERM, a server neither
    way = way_of(options)
    if way is not None:
        train(way, options)
    # Without tearing gloo's connections down, which may hang when all processes do it at the same time.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def train(way: Plain, options: argparse.Namespace) -> None:
    """Train to the end, or until any process is to stop."""
    digits = Digits(options.seed, options.batch)
    total = options.epochs * digits.steps_per_epoch
    start = resume(way, options)
    loss, stop, saved, begun = 0.0, False, start, time.monotonic()
    for step in range(start, total):
        x, y = digits.batch(step)
        loss, stop = way.step(x, y, job.should_stop())
        done = step + 1
        if done % digits.steps_per_epoch == 0:
            held_out, accuracy = way.held_out(*digits.held_out)
            if way.chief:
                job.report(done, loss=held_out, accuracy=accuracy, total=total)
                epoch = done // digits.steps_per_epoch
                print(f"epoch {epoch} of {options.epochs}: held-out loss {held_out:.4f}, accuracy {accuracy:.4f}")
        if stop or (options.save_every and done - saved >= options.save_every) or done == total:
            save(way, done, options)
            saved = done
        if stop:
            break
    if way.chief:
        if saved == total:
            job.done()
        print(
            f"{'done' if saved == total else 'stopped'} at step {saved} of {total}, training loss {loss!r}, "
            f"{time.monotonic() - begun:.1f} s since step {start}"
        )
    way.close()


def resume(way: Plain, options: argparse.Namespace) -> int:
    """Go on from the newest checkpoint, if there is one; the step that it was made at."""
    found = job.resume_from()
    if found is None:
        return 0
    content = torch.load(Path(found.path))
    if content["model"] != options.model:
        raise SystemExit(f"{found.path} holds a {content['model']}, not a {options.model}")
    way.load(content["state"])
    if way.chief:
        print(f"goes on from step {content['step']}")
    return int(content["step"])


def save(way: Plain, step: int, options: argparse.Namespace) -> None:
    """Save the run as it is after a step; all processes take part, the chief writes."""
    state = way.state()
    if way.chief:
        with job.saving(step) as path:
            torch.save({"step": step, "model": options.model, "state": state}, path)


if __name__ == "__main__":
    main()
