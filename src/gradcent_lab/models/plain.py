"""VGG-11 (Simonyan & Zisserman 2014) for 32-pixel images, with batch normalization and one FC layer."""

from __future__ import annotations

import torch
from torch import nn

VGG11 = (1, "pool", 2, "pool", 4, 4, "pool", 8, 8, "pool", 8, 8, "pool")  # multiples of the width


class PlainNet(nn.Module):
    """Convolutions and max-pools in a row."""

    def __init__(self, classes: int, *, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for item in VGG11:
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, item * width, 3, padding=1), nn.BatchNorm2d(item * width)]
            layers.append(nn.ReLU(inplace=True))
            channels = item * width
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits; images of other sizes than 32 are averaged over what is left of them."""
        return self.fc(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]
