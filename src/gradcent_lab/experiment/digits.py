"""The demo's experiment: a small convolutional network reads handwritten digits, with GC and without.

Chosen once, before any result was seen: scikit-learn's digits with the split of scikit-learn's own example
(first half to train, second half to test), and the paper's CIFAR-100 settings (SGDM, lr 0.1, weight
decay 5e-4, lr ÷10 after 30, 60 and 90 % of the epochs). The verdict is whatever comes out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.experiment.spec import Experiment

EPOCHS = 20
BATCH = 64
SEEDS = 10
LEARNING_RATE = 0.1
MILESTONES = (0.3, 0.6, 0.9)  # the paper's 60, 120 and 180 of 200 epochs

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
def data() -> tuple[Batches, Batches]:
    """Return the training and the test half of the digits, pixels scaled to [0, 1]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    half = len(labels) // 2
    return Batches(images[:half], labels[:half]), Batches(images[half:], labels[half:])


def network(width: int = 16) -> nn.Module:
    """Return four convolutions with batch normalization and a linear layer."""

    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        *conv(1, width),
        *conv(width, 2 * width),
        nn.MaxPool2d(2),
        *conv(2 * width, 2 * width),
        *conv(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def optimizer(params: Any) -> torch.optim.Optimizer:
    """Return the paper's SGDM."""
    return torch.optim.SGD(params, lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4)


def experiment(epochs: int = EPOCHS) -> Experiment:
    """Return the demo's experiment; `gradcent compare gradcent_lab.demo:experiment` runs it, too."""
    # Nothing this small gains from threads, and with one the result does not depend on how many there are.
    torch.set_num_threads(1)
    train, test = data()

    def schedule(made: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        at = [round(share * epochs) * steps for share in MILESTONES]
        return torch.optim.lr_scheduler.MultiStepLR(made, at, gamma=0.1)

    return Experiment(
        name="digits",
        model=network,
        train_data=train,
        eval_data=test,
        loss=nn.functional.cross_entropy,
        metric=lambda output, target: output.argmax(1) == target,
        metric_name="accuracy, %",
        optimizer=optimizer,
        schedule=schedule,
        epochs=epochs,
        batch_size=BATCH,
        eval_batch_size=1000,
    )
