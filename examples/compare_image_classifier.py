"""Does GC help a small residual network on handwritten digits, with AdamW and random shifts?

gradcent compare examples/compare_image_classifier.py:experiment --seeds 5
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

from gradcent_lab.experiment import Experiment


class Digits(Dataset):
    """scikit-learn's 1,797 digits: the first 900 to train, shifted by up to a pixel, the rest to test."""

    def __init__(self, train: bool) -> None:
        digits = load_digits()
        half = slice(None, 900) if train else slice(900, None)
        self.images = torch.tensor(digits.images[half], dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target[half])
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.train:  # the lab seeds this per seed, epoch and image, so both arms see the same shifts
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), (1, 2))
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1, bias=False),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        Block(24),
        nn.MaxPool2d(2),
        Block(24),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


def experiment() -> Experiment:
    epochs = 10
    return Experiment(
        name="digits-adamw",
        model=network,
        train_data=Digits(train=True),
        eval_data=Digits(train=False),
        loss=nn.functional.cross_entropy,
        metric=lambda output, target: output.argmax(1) == target,
        metric_name="accuracy, %",
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3, weight_decay=1e-2),
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, epochs * steps
        ),
        epochs=epochs,
        batch_size=60,
        eval_batch_size=300,
    )
