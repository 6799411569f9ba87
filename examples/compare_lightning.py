"""Does GC help a small network that is a LightningModule?

gradcent compare examples/compare_lightning.py:experiment --seeds 5
"""

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradcent_lab.adapters import from_lightning


class Digits(LightningModule):
    """Two convolutions with GroupNorm on scikit-learn's 1,797 digits: 900 to train, the rest to test."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1, bias=False),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1, bias=False),
            nn.GroupNorm(4, 24),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(96, 10),
        )
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        labels = torch.tensor(digits.target)
        self.train_set = TensorDataset(images[:900], labels[:900])
        self.test_set = TensorDataset(images[900:], labels[900:])

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_set, batch_size=60, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.test_set, batch_size=300)

    def training_step(self, batch, index):
        images, labels = batch
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("val_acc", 100.0 * (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)]


def experiment():
    return from_lightning(Digits, monitor="val_acc", mode="max", epochs=10, name="digits-lightning")
