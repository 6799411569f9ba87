"""DenseNet-121 for 32-pixel images (Huang et al. 2017): every layer sees all the maps before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class DenseLayer(nn.Module):
    """Normalize, 1×1 convolution to four times the growth, normalize, 3×3 convolution to the growth."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input concatenated with the new maps."""
        y = self.conv1(functional.relu(self.bn1(x)))
        y = self.conv2(functional.relu(self.bn2(y)))
        return torch.cat([y, x], 1)


class Transition(nn.Module):
    """Halve the maps by a 1×1 convolution and their size by average pooling."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return fewer and smaller maps."""
        return functional.avg_pool2d(self.conv(functional.relu(self.bn(x))), 2)


class DenseNet(nn.Module):
    """Dense stages with transitions between them."""

    def __init__(self, stages: Sequence[int], classes: int, *, growth: int = 32) -> None:
        super().__init__()
        channels = 2 * growth
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        parts: list[nn.Module] = []
        for number, layers in enumerate(stages):
            for _ in range(layers):
                parts.append(DenseLayer(channels, growth))
                channels += growth
            if number < len(stages) - 1:
                parts.append(Transition(channels, channels // 2))
                channels //= 2
        self.features = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = functional.relu(self.bn(self.features(self.conv1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]
