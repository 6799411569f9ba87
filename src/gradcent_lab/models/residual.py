"""Residual networks for small images: ResNet (He et al. 2016) and ResNeXt (Xie et al. 2017).

The CIFAR form the paper's figures come from: a 3×3 stem (1×1 for ResNeXt), no max-pool, and projection
shortcuts wherever the shape changes. Layers are named as in torchvision (conv1, bn1, layer1 …, fc).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, groups=groups, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, outputs, 3, 1, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(f(x) + shortcut(x))."""
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(y)) + self.downsample(x), inplace=True)


class Bottleneck(nn.Module):
    """A 1×1, a (grouped) 3×3 and a 1×1 convolution."""

    expansion = 4

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = _shortcut(inputs, outputs, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return relu(f(x) + shortcut(x))."""
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        y = functional.relu(self.bn2(self.conv2(y)), inplace=True)
        return functional.relu(self.bn3(self.conv3(y)) + self.downsample(x), inplace=True)


class ResidualNet(nn.Module):
    """A stem, stages of blocks, global average pooling and one fully connected layer.

    `width` is the first stage's inner width (doubled in every stage), `expansion` the ratio of a block's
    outputs to it, and `stem` the number of channels that go into the first stage.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        stages: Sequence[int],
        classes: int,
        *,
        width: int = 64,
        stem: int | None = None,
        stem_kernel: int = 3,
        expansion: int | None = None,
        groups: int = 1,
    ) -> None:
        super().__init__()
        channels = stem or width
        expansion = expansion or block.expansion
        self.conv1 = nn.Conv2d(3, channels, stem_kernel, 1, stem_kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.stages = len(stages)
        for number, blocks in enumerate(stages):
            inner = width * 2**number
            stage = []
            for position in range(blocks):
                stride = 2 if number > 0 and position == 0 else 1
                stage.append(block(channels, inner, inner * expansion, stride, groups))
                channels = inner * expansion
            self.add_module(f"layer{number + 1}", nn.Sequential(*stage))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        for number in range(self.stages):
            x = self.get_submodule(f"layer{number + 1}")(x)
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
