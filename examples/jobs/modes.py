"""The ways to train one model on several processes. All make the same steps as a single process, up to rounding.

A way is an object with `step`, `held_out`, `state`, `load` and `close`, which all processes of the job call together. What it
saves is the whole model and its momentum by the names of the parameters, whoever holds them: a run may go on in another way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from models import MOMENTUM, stages
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]
State = dict[str, dict[str, Tensor]]
PATIENCE = timedelta(minutes=2)
"""How long a process waits for another one."""


class Momentum:
    """Stochastic gradient descent with momentum, the buffers by name. (`torch.optim` takes two seconds to import.)"""

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], rate: float) -> None:
        self.parameters = dict(parameters)
        self.buffers = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.rate = rate

    @torch.no_grad()
    def step(self) -> None:
        """Go down the gradients, and forget them."""
        for name, p in self.parameters.items():
            if p.grad is not None:
                p.sub_(self.buffers[name].mul_(MOMENTUM).add_(p.grad), alpha=self.rate)
                p.grad = None


def measured(output: Tensor, y: Tensor, loss: Loss) -> tuple[float, float]:
    """Loss and accuracy of a model's output."""
    return loss(output, y).item(), (output.argmax(1) == y).float().mean().item()


def join(rank: int, world: int) -> None:
    """Meet the other processes, over gloo."""
    if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=PATIENCE)


def summed(values: list[float], group: dist.ProcessGroup | None = None) -> list[float]:
    """The sums of numbers over all processes of a group."""
    total = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(total, group=group)
    return total.tolist()


class Plain:
    """One process."""

    chief = True
    """Whether this process reports and saves."""

    def __init__(self, model: nn.Sequential, loss: Loss, rate: float) -> None:
        self.model, self.loss = model, loss
        self.optimizer = Momentum(model.named_parameters(), rate)

    def step(self, x: Tensor, y: Tensor, stop: bool) -> tuple[float, bool]:
        """One step on a whole batch: its loss, and whether any process is to stop. All get the same answer."""
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item(), stop

    @torch.no_grad()
    def held_out(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Loss and accuracy on other pictures; what counts is the chief's answer."""
        return measured(self.model(x), y, self.loss) if self.chief else (0.0, 0.0)

    def state(self) -> State:
        """All that a later run needs; what counts is the chief's answer."""
        return {"model": self.model.state_dict(), "momentum": self.optimizer.buffers}

    def load(self, state: State) -> None:
        """Go on from what `state` has told."""
        self.model.load_state_dict({name: state["model"][name] for name in self.model.state_dict()})
        for name, buffer in self.optimizer.buffers.items():
            buffer.copy_(state["momentum"][name])

    def close(self) -> None:
        """Tell whoever waits that nothing more comes."""


class DataParallel(Plain):
    """Replicas, each with its part of every batch; `DistributedDataParallel` averages the gradients."""

    def __init__(self, model: nn.Sequential, loss: Loss, rate: float, rank: int, world: int) -> None:
        super().__init__(model, loss, rate)
        join(rank, world)
        self.rank, self.world, self.chief = rank, world, rank == 0
        self.replica = nn.parallel.DistributedDataParallel(model)

    def step(self, x: Tensor, y: Tensor, stop: bool) -> tuple[float, bool]:
        loss = self.loss(self.replica(x[self.rank :: self.world]), y[self.rank :: self.world])
        loss.backward()
        self.optimizer.step()
        total, stops = summed([loss.item(), stop])
        return total / self.world, stops > 0


class Pipeline(Plain):
    """Stages that hand small batches on to each other: all forwards, then all backwards (GPipe); and replicas of the whole chain.

    Ranks count through the stages of the first replica, then through those of the next, as Headway numbers its workers. Stages
    of the same place average their gradients over the replicas.
    """

    def __init__(
        self, model: nn.Sequential, loss: Loss, rate: float, rank: int, world: int, count: int, micro_batches: int
    ) -> None:
        join(rank, world)
        self.replica, self.stage = divmod(rank, count)
        self.rank, self.replicas, self.count, self.micro_batches = rank, world // count, count, micro_batches
        self.last = self.stage == count - 1
        parts = stages(model, count)
        with torch.no_grad():
            shown = torch.zeros(1, 1, 8, 8)
            for part in parts[: self.stage]:
                shown = part(shown)
        self.shape = shown.shape[1:]
        groups = [dist.new_group([stage + count * k for k in range(self.replicas)]) for stage in range(count)]
        self.group = groups[self.stage]
        super().__init__(parts[self.stage], loss, rate)
        self.chief = rank == 0

    def step(self, x: Tensor, y: Tensor, stop: bool) -> tuple[float, bool]:
        xs = x[self.replica :: self.replicas].chunk(self.micro_batches)
        ys = y[self.replica :: self.replicas].chunk(self.micro_batches)
        taken = [self._take(part) for part in xs]
        loss, outputs = 0.0, []
        for here, labels in zip(taken, ys, strict=True):
            output = self.model(here)
            if self.last:
                output = self.loss(output, labels) * (len(labels) / sum(map(len, ys)))
                loss += output.item()
            else:
                dist.send(output.detach(), self.rank + 1)
            outputs.append(output)
        for here, output in zip(taken, outputs, strict=True):
            if self.last:
                output.backward()
            else:
                gradient = torch.empty_like(output)
                dist.recv(gradient, self.rank + 1)
                output.backward(gradient)
            if self.stage > 0:
                assert here.grad is not None
                dist.send(here.grad, self.rank - 1)
        if self.replicas > 1:
            self._average()
        self.optimizer.step()
        total, stops = summed([loss, stop])
        return total / self.replicas, stops > 0

    def _take(self, x: Tensor) -> Tensor:
        """What the stage before makes of a small batch; of the first stage, the pictures themselves."""
        if self.stage == 0:
            return x
        received = torch.empty(len(x), *self.shape)
        dist.recv(received, self.rank - 1)
        return received.requires_grad_(torch.is_grad_enabled())

    def _average(self) -> None:
        """Gradients, over the replicas."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients]) / self.replicas
        dist.all_reduce(flat, group=self.group)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    @torch.no_grad()
    def held_out(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        found = [0.0, 0.0]
        if self.replica == 0:
            output = self.model(self._take(x))
            if self.last:
                found = list(measured(output, y, self.loss))
            else:
                dist.send(output, self.rank + 1)
        loss, accuracy = summed(found)
        return loss, accuracy

    def state(self) -> State:
        mine = super().state()
        parts: list[Any] | None = [None] * dist.get_world_size() if self.chief else None
        dist.gather_object(mine if self.replica == 0 else None, parts, dst=0)
        whole: State = {"model": {}, "momentum": {}}
        for part in parts or ():
            for kind, values in (part or {}).items():
                whole[kind].update(values)
        return whole


STEP, TELL, TAKE, END = range(4)
"""What the first worker asks of the servers: gradients come; tell your momentum; take another state; leave."""


def shared_out(model: nn.Module, servers: int) -> list[list[str]]:
    """The names of the tensors that each server keeps: from the largest down, each to the server with least so far."""
    names: list[list[str]] = [[] for _ in range(servers)]
    sizes = [0] * servers
    for name, p in sorted(model.named_parameters(), key=lambda item: (-item[1].numel(), item[0])):
        least = sizes.index(min(sizes))
        names[least].append(name)
        sizes[least] += p.numel()
    if not all(names):
        raise SystemExit(f"{servers} servers are more than the model has parameters for")
    return names


class Worker(Plain):
    """A worker of a parameter-server run: sends gradients, gets parameters. The servers' ranks follow the workers'."""

    def __init__(self, model: nn.Sequential, loss: Loss, rate: float, rank: int, workers: int, servers: int) -> None:
        join(rank, workers + servers)
        self.group = dist.new_group(range(workers))
        super().__init__(model, loss, rate)
        self.rank, self.workers, self.chief = rank, workers, rank == 0
        self.kept = {workers + s: names for s, names in enumerate(shared_out(model, servers))}

    def step(self, x: Tensor, y: Tensor, stop: bool) -> tuple[float, bool]:
        loss = self.loss(self.model(x[self.rank :: self.workers]), y[self.rank :: self.workers])
        loss.backward()
        self._ask(STEP)
        parameters = self.optimizer.parameters
        sent = []
        for server, names in self.kept.items():
            flat = torch.cat([torch.as_tensor(parameters[name].grad).flatten() for name in names])
            sent.append((dist.isend(flat, server), flat))  # a tensor must live until it has been sent
        for work, _ in sent:
            work.wait()
        self._receive({name: p.data for name, p in parameters.items()})
        self.model.zero_grad()
        total, stops = summed([loss.item(), stop], self.group)
        return total / self.workers, stops > 0

    def state(self) -> State:
        self._ask(TELL)
        if self.chief:
            self._receive(self.optimizer.buffers)
        return super().state()

    def load(self, state: State) -> None:
        super().load(state)
        self._ask(TAKE)
        if self.chief:
            for values in (self.optimizer.parameters, self.optimizer.buffers):
                for server, names in self.kept.items():
                    dist.send(torch.cat([values[name].detach().flatten() for name in names]), server)

    def close(self) -> None:
        self._ask(END)

    def _ask(self, what: int) -> None:
        if self.chief:
            for server in self.kept:
                dist.send(torch.tensor([what]), server)

    def _receive(self, into: dict[str, Tensor]) -> None:
        """The servers' parts of something, by name."""
        for server, names in self.kept.items():
            flat = torch.empty(sum(into[name].numel() for name in names))
            dist.recv(flat, server)
            for name, part in zip(names, flat.split([into[name].numel() for name in names]), strict=True):
                into[name].copy_(part.view_as(into[name]))


def serve(model: nn.Sequential, rate: float, rank: int, workers: int, servers: int) -> None:
    """Be a parameter server until the first worker says that it is over: average gradients, go a step, send the parameters."""
    join(rank, workers + servers)
    dist.new_group(range(workers))
    values = dict(model.named_parameters())
    kept = [values[name].detach().flatten() for name in shared_out(model, servers)[rank - workers]]
    parameters = torch.cat(kept)
    momentum = torch.zeros_like(parameters)
    what, gradient = torch.empty(1, dtype=torch.int64), torch.empty_like(parameters)
    while dist.recv(what, 0) is not None and int(what) != END:
        if int(what) == STEP:
            total = torch.zeros_like(parameters)
            for worker in range(workers):
                dist.recv(gradient, worker)
                total += gradient
            parameters -= rate * momentum.mul_(MOMENTUM).add_(total / workers)
            for worker in range(workers):
                dist.send(parameters, worker)
        elif int(what) == TELL:
            dist.send(momentum, 0)
        else:
            dist.recv(parameters, 0)
            dist.recv(momentum, 0)
