"""Forecast models that are not in the calibration, then train them with and without GC, and record both.

    python tools/forecast_outside.py

The protocol is that of the calibration (tuned arms, fresh seeds), with 4 fresh seeds. A line of
results/forecast_outside.jsonl is one model; finished ones are kept. GRADCENT_DATA names the folder with CIFAR-100.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradcent_lab.forecasting.calibration import datasets
from gradcent_lab.forecasting.calibration.datasets import Split
from gradcent_lab.forecasting.calibration.outcomes import outcome
from gradcent_lab.forecasting.calibration.study import run_task
from gradcent_lab.forecasting.calibration.tasks import Part, Task

TARGET = Path(__file__).resolve().parent.parent / "results" / "forecast_outside.jsonl"
SEEDS = range(4)
RECORD = 3074  # bytes of one CIFAR-100 record: coarse label, fine label, 3 × 32 × 32 pixels


@dataclass(frozen=True)
class Model(Task):
    """A task whose network and data are functions of this file."""

    build: Callable[[], nn.Module] = nn.Identity
    load: Callable[[], Split] = datasets.digits

    def build_model(self) -> nn.Module:
        """Build the network; seed first."""
        return self.build()

    def load_data(self) -> Split:
        """Load the data."""
        return self.load()


def cifar() -> Split:
    """3,000 images of CIFAR-100 at 16 × 16 pixels; the label is the coarse class."""
    raw = (Path(os.environ["GRADCENT_DATA"]) / "cifar-100-binary" / "train.bin").read_bytes()[: 3600 * RECORD]
    records = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, RECORD)
    images = nn.functional.avg_pool2d(records[:, 2:].view(-1, 3, 32, 32).float() / 255, 2)
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    return Split(images[:3000], records[:3000, 0].long(), images[3000:], records[3000:, 0].long(), 20)


def signals(target: str) -> Split:
    """Noisy waves of 48 samples on a random level: classify the wave, or regress its level."""
    generator = torch.Generator().manual_seed(7)
    count = 1600
    labels = torch.randint(4, (count,), generator=generator)
    time = torch.arange(48) / 48
    phase = torch.rand(count, 1, generator=generator)
    wave = torch.sin(6.28 * ((labels + 1).unsqueeze(1) * time + phase))
    level = torch.randn(count, 1, generator=generator)
    inputs = (wave + level + 0.5 * torch.randn(count, 48, generator=generator)).unsqueeze(1)
    if target == "level":
        return Split(inputs[:1200], level[:1200], inputs[1200:], level[1200:], 0)
    return Split(inputs[:1200], labels[:1200], inputs[1200:], labels[1200:], 4)


def points() -> Split:
    """Digits as sets of 64 points: position and grey value."""
    split = datasets.digits()
    line = torch.linspace(-1, 1, 8)
    place = torch.cartesian_prod(line, line)

    def as_points(images: Tensor) -> Tensor:
        return torch.cat([place.expand(len(images), 64, 2), images.flatten(1).unsqueeze(2)], 2)

    return Split(
        as_points(split.train_inputs),
        split.train_targets,
        as_points(split.test_inputs),
        split.test_targets,
        10,
    )


def images_to_themselves() -> Split:
    """Digits, to be reconstructed."""
    split = datasets.digits()
    return Split(split.train_inputs, split.train_inputs, split.test_inputs, split.test_inputs, 0)


def separable() -> nn.Module:
    """Depthwise and pointwise convolutions with BatchNorm and Hardswish."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish()]
    for channels, out in ((16, 24), (24, 32)):
        layers += [
            nn.Conv2d(channels, channels, 3, 1, 1, groups=channels),
            nn.BatchNorm2d(channels),
            nn.Hardswish(),
        ]
        layers += [nn.Conv2d(channels, out, 1), nn.BatchNorm2d(out), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 20))


class Dense(nn.Module):
    """Layers that see the outputs of all earlier ones, with GroupNorm and ReLU before each convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, 2, 1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(4, size), nn.ReLU(), nn.Conv2d(size, 12, 3, 1, 1))
            for size in (12, 24, 36)
        )
        self.out = nn.Linear(48, 20)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes."""
        x = self.stem(x)
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        output: Tensor = self.out(x.relu().mean((2, 3)))
        return output


class Gated(nn.Module):
    """A transformer block with RMSNorm and a gated MLP (SwiGLU) over the rows of a digit."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(0.1 * torch.randn(8, 32))
        self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(3))
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes."""
        x = self.embed(x) + self.places
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        y = self.norms[1](x)
        x = x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))
        output: Tensor = self.out(self.norms[2](x).mean(1))
        return output


class DeepSet(nn.Module):
    """Every point through the same layers, mean over points, two more layers."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10))

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes."""
        output: Tensor = self.all(self.each(x).mean(1))
        return output


def autoencoder() -> nn.Module:
    """Convolutions down to 8 numbers and transposed convolutions back."""
    return nn.Sequential(
        *(
            nn.Conv2d(1, 12, 3, 2, 1),
            nn.LeakyReLU(),
            nn.Conv2d(12, 16, 3, 2, 1),
            nn.LeakyReLU(),
            nn.Flatten(),
        ),
        *(nn.Linear(64, 8), nn.Linear(8, 64), nn.LeakyReLU(), nn.Unflatten(1, (16, 2, 2))),
        *(nn.ConvTranspose2d(16, 12, 2, 2), nn.LeakyReLU(), nn.ConvTranspose2d(12, 1, 2, 2)),
    )


def selu() -> nn.Module:
    """A self-normalizing network."""
    layers: list[nn.Module] = [nn.Flatten()]
    for size in (64, 48, 48):
        layers += [nn.Linear(size, 48), nn.SELU()]
    return nn.Sequential(*layers, nn.Linear(48, 10))


def temporal(outputs: int) -> Callable[[], nn.Module]:
    """Dilated convolutions over time with ReLU."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for channels, dilation in ((1, 1), (16, 2), (16, 4)):
            layers += [nn.Conv1d(channels, 16, 5, padding=2 * dilation, dilation=dilation), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, outputs))

    return build


def model(name: str, optimizer: Any, build: Callable[[], nn.Module], load: Callable[[], Split]) -> Model:
    """Return the model as a task of 100 steps."""
    empty = Part("")
    return Model(name, "outside", optimizer, empty, empty, steps=100, narrow=True, build=build, load=load)


MODELS = (
    model("separable convolutions with BN, CIFAR-100, SGD", "SGD", separable, cifar),
    model("densely connected with GN, CIFAR-100, SGD", "SGD", Dense, cifar),
    model("attention and gated MLP with RMSNorm, digits, AdamW", "AdamW", Gated, datasets.rows_of_digits),
    model("autoencoder, digits, AdamW", "AdamW", autoencoder, images_to_themselves),
    model("set of points, digits, AdamW", "AdamW", DeepSet, points),
    model("self-normalizing MLP, digits, SGD", "SGD", selu, datasets.digits),
    model("temporal convolutions, kind of wave, AdamW", "AdamW", temporal(4), lambda: signals("kind")),
    model("temporal convolutions, level of wave, AdamW", "AdamW", temporal(1), lambda: signals("level")),
)


def main() -> None:
    """Append a line for every model that has none yet."""
    lines = [json.loads(line) for line in TARGET.read_text().splitlines()] if TARGET.exists() else []
    known = {line["name"] for line in lines}
    for task in MODELS:
        if task.name in known:
            continue
        found = outcome(task, run_task(task, SEEDS))
        changes = {
            f"{loss}_{arm}": [round(value, 4) for value in (change.mean, change.low, change.high)]
            for loss, by_arm in (("train", found.train), ("test", found.test))
            for arm, change in by_arm.items()
        }
        line = {
            "name": task.name,
            "removed": round(found.removed, 4),
            "explained": None if found.explained is None else round(found.explained, 4),
            "harmed": found.harmed,
            "harmed_hidden": found.harmed_hidden,
            "faster": found.train["all"].faster,
            **changes,
        }
        with TARGET.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main()
