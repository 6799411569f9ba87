"""The demo's two experiments on scikit-learn's digits: one where GC learns faster, one where it must lose.

The tasks were chosen to show these cases, on other seeds and on another split than the demo uses. `digits` reads
handwritten digits from 200 images with a GroupNorm network. `brightness` asks whether an image is brighter than the
median: Theorem 4.1 says that GC keeps a layer's response to a constant offset of its input, so a first layer with GC
cannot learn to measure brightness.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.data.random_streams import generator
from gradcent_lab.experiment.spec import Experiment

EPOCHS = 40
SEEDS = 8
FIRST_SEED = 100  # the tasks were chosen on seeds from 900 on and on another split
TEST = 500
DIGITS_TRAIN, DIGITS_BATCH, DIGITS_LR = 200, 25, 0.03
BRIGHTNESS_TRAIN, BRIGHTNESS_BATCH, BRIGHTNESS_LR = 400, 50, 0.03

PASTE = """\
import gradcent                     # + this line

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)   # yours, as it is
gradcent.attach(optimizer, model)   # + and this one"""


class Batches(TensorDataset):
    """Tensors that are indexed a batch at a time, which is all that images this small need."""

    def take(self, index: torch.Tensor, draws: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        """Return the samples at `index`; there is no augmentation to draw for."""
        return tuple(tensor[index] for tensor in self.tensors)


@cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images with pixels in [0, 1] and their digits, in the order of the demo's own split."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    order = torch.randperm(len(pixels), generator=generator("demo split"))
    return pixels[order], torch.tensor(digits.target)[order]


def early_epoch(epochs: int = EPOCHS) -> int:
    """Return the epoch at which the digits are judged first: a quarter of the training."""
    return max(1, epochs // 4)


def brightness_epochs(epochs: int = EPOCHS) -> int:
    """Return how long the brightness runs are: half of the digits'."""
    return max(1, epochs // 2)


def network() -> nn.Module:
    """Return four convolutions with group normalization and a linear layer."""

    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(4, outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(1, 16),
        *conv(16, 32),
        nn.MaxPool2d(2),
        *conv(32, 32),
        *conv(32, 64),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def plain_network() -> nn.Module:
    """Return two linear layers without normalization, which would remove the brightness."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2))


def digits(epochs: int = EPOCHS) -> Experiment:
    """Return the experiment that reads digits from 200 images."""
    pixels, labels = images()
    return _experiment("digits", network, pixels, labels, DIGITS_TRAIN, DIGITS_LR, DIGITS_BATCH, epochs)


def brightness(epochs: int = EPOCHS // 2) -> Experiment:
    """Return the experiment that asks whether an image is brighter than the median of the training images.

    Every image has a random exposure: a grey level between 0 and 0.3 is added to all its pixels.
    """
    pixels, _ = images()
    exposure = torch.rand(len(pixels), 1, 1, 1, generator=generator("demo exposure"))
    pixels = 0.7 * pixels + 0.3 * exposure
    means = pixels.mean((1, 2, 3))
    labels = (means > means[:BRIGHTNESS_TRAIN].median()).long()
    size = (BRIGHTNESS_TRAIN, BRIGHTNESS_LR, BRIGHTNESS_BATCH)
    return _experiment("brightness", plain_network, pixels, labels, *size, epochs)


def _experiment(
    name: str,
    model: Any,
    pixels: torch.Tensor,
    labels: torch.Tensor,
    train: int,
    lr: float,
    batch: int,
    epochs: int,
) -> Experiment:
    # nothing this small gains from threads, and with one the result does not depend on how many there are
    torch.set_num_threads(1)
    return Experiment(
        name=name,
        model=model,
        train_data=Batches(pixels[:train], labels[:train]),
        eval_data=Batches(pixels[-TEST:], labels[-TEST:]),
        loss=nn.functional.cross_entropy,
        metric=lambda output, target: output.argmax(1) == target,
        metric_name="accuracy, %",
        optimizer=lambda params: torch.optim.SGD(params, lr=lr, momentum=0.9),
        epochs=epochs,
        batch_size=batch,
        eval_batch_size=TEST,
    )
