"""Five small models after the types of the MLFS paper (CNNs small and large, MLP, LSTM, SVM), and their losses.

Each is a plain sequence of layers, so that it can be cut into pipeline stages anywhere. None has batch statistics: the
replicas of a data-parallel run make the same steps as a single process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class LastHidden(nn.Module):
    """An LSTM over the rows of a picture; what it has in mind after the last one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.lstm(x.squeeze(1))
        return rows[:, -1]


class RandomFeatures(nn.Module):
    """Random Fourier features of a Gaussian kernel (Rahimi, Recht, 2007): a linear SVM on them is nearly one with the kernel."""

    def __init__(self, features: int, width: float) -> None:
        super().__init__()
        self.register_buffer("directions", torch.randn(64, features) / width)
        self.register_buffer("phases", torch.rand(features) * 2 * torch.pi)

    def forward(self, x: Tensor) -> Tensor:
        angles = x.flatten(1) @ self.get_buffer("directions") + self.get_buffer("phases")
        return torch.cos(angles) * (2 / angles.shape[1]) ** 0.5


def _cnn(channels: int, hidden: int) -> list[nn.Module]:
    def convolution(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]

    twice = 2 * channels
    return [
        *convolution(1, channels), *convolution(channels, channels), nn.MaxPool2d(2),
        *convolution(channels, twice), *convolution(twice, twice), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(4 * twice, hidden), nn.ReLU(), nn.Linear(hidden, 10),
    ]  # fmt: skip


def _mlp() -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "cnn-small": lambda: _cnn(8, 32),
    "cnn-large": lambda: _cnn(24, 128),
    "mlp": _mlp,
    "lstm": lambda: [LastHidden(64), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)],
    "svm": lambda: [RandomFeatures(512, 4.0), nn.Linear(512, 10)],
}
RATES = {"cnn-small": 0.0015, "cnn-large": 0.0007, "mlp": 0.0007, "lstm": 0.015, "svm": 0.05}
"""Learning rates, for SGD with momentum: small, so that the accuracy rises over most of a run."""
MOMENTUM = 0.9


def build(name: str, seed: int) -> nn.Sequential:
    """A model with the start weights of a seed, the same in every process."""
    torch.manual_seed(seed)
    model = nn.Sequential(*LAYERS[name]())
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return model


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy, or for the SVM the hinge loss of several classes; the mean over the batch."""
    return functional.multi_margin_loss if name == "svm" else functional.cross_entropy


def stages(model: nn.Sequential, count: int) -> list[nn.Sequential]:
    """The model in `count` runs of layers of about equal numbers of parameters. The layers keep their names."""
    cut = [nn.Sequential() for _ in range(count)]
    total, done, stage = sum(p.numel() for p in model.parameters()), 0, 0
    for name, layer in model.named_children():
        if size := sum(p.numel() for p in layer.parameters()):
            stage = count * (2 * done + size) // (2 * total)  # where its middle lies; one without parameters follows the last
        cut[stage].add_module(name, layer)
        done += size
    if any(not any(True for _ in part.parameters()) for part in cut):
        raise SystemExit(f"this model cannot be cut into {count} stages that all have parameters")
    return cut
