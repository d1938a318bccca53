"""The policy network in PyTorch: the same arithmetic as `policies.mlfs.net`, for gradients.

`score(x) = skip·x + w3·relu(W2ᵀ·relu(W1ᵀ·x + b1) + b2) + b3`. PyTorch computes on one thread: the processes of the rollouts have
the cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from headway.core.errors import UserError
from headway.policies.mlfs.net import HEADS, Net

try:
    import torch
    from torch import Tensor, nn
except ImportError:
    raise UserError("needs PyTorch: pip install 'headway[learn]'", key="train") from None

torch.set_num_threads(1)
PARTS = ("w1", "b1", "w2", "b2", "w3", "b3", "skip")
Vector = NDArray[np.float64]
Masks = Mapping[str, NDArray[np.float32]]
"""For each head 1 for each feature that may be seen, and 0 for one that may not."""


class TwinHead(nn.Module):  # type: ignore[misc]
    """One head."""

    def __init__(self, arrays: Mapping[str, NDArray[np.float32]], mask: NDArray[np.float32] | None) -> None:
        super().__init__()
        for part in PARTS:
            self.register_parameter(part, nn.Parameter(torch.tensor(np.asarray(arrays[part], np.float32))))
        seen = np.ones(len(arrays["skip"]), np.float32) if mask is None else mask
        self.register_buffer("mask", torch.tensor(seen))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (…) of rows (…, features)."""
        x = x * self.mask
        hidden = torch.relu(x @ self.w1 + self.b1)
        hidden = torch.relu(hidden @ self.w2 + self.b2)
        scores: Tensor = x @ self.skip + hidden @ self.w3 + self.b3[0]
        return scores


class Twin(nn.Module):  # type: ignore[misc]
    """The heads of a `Net`."""

    def __init__(self, net: Net, masks: Masks | None = None) -> None:
        super().__init__()
        arrays = net.to_arrays()
        for head in HEADS:
            own = {part: arrays[f"{head}.{part}"] for part in PARTS}
            self.add_module(head, TwinHead(own, None if masks is None else masks[head]))

    def scores(self, head: str, x: Tensor) -> Tensor:
        """Scores (…) of rows (…, features) by one head."""
        scores: Tensor = self.get_submodule(head)(x)
        return scores

    def net(self) -> Net:
        """The network for inference. What a mask hides has weight 0 there, so that nobody needs the mask."""
        arrays: dict[str, NDArray[np.float32]] = {}
        for head in HEADS:
            module = self.get_submodule(head)
            mask = module.get_buffer("mask").numpy()
            for part in PARTS:
                value = module.get_parameter(part).detach().numpy().copy()
                hidden = mask if part == "skip" else mask[:, None] if part == "w1" else None
                arrays[f"{head}.{part}"] = value if hidden is None else value * hidden
        return Net.from_arrays(arrays)

    def flat(self) -> Vector:
        """All parameters as one vector, in the order of `parameters()`."""
        return np.concatenate([p.detach().numpy().ravel() for p in self.parameters()]).astype(np.float64)

    def take(self, flat: Vector) -> None:
        """Set all parameters from one vector."""
        at = 0
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.tensor(flat[at : at + p.numel()].reshape(p.shape), dtype=p.dtype))
                at += p.numel()

    def gradient(self, loss: Tensor) -> Vector:
        """The gradient of a loss as one vector; a parameter that it does not depend on has 0."""
        found: Iterable[Tensor | None] = torch.autograd.grad(loss, list(self.parameters()), allow_unused=True)
        parts = [np.zeros(p.numel()) if g is None else g.numpy().ravel() for g, p in zip(found, self.parameters(), strict=True)]
        return np.concatenate(parts).astype(np.float64)


def masked(net: Net, masks: Masks | None) -> Net:
    """A net that does not see what the masks hide."""
    return net if masks is None else Twin(net, masks).net()
