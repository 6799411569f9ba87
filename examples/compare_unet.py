"""Does GC help a U-Net with transposed convolutions find discs among squares and noise?

gradcent compare examples/compare_unet.py:experiment --seeds 5
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from gradcent_lab.experiment import Experiment

SIZE = 32


def drawings(count: int, seed: int) -> TensorDataset:
    """Draw one disc (to be found) and two squares (not to be found) per image, with noise over them."""
    random = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    place = torch.randint(5, SIZE - 5, (3, 2, count, 1, 1), generator=random)
    radius = torch.randint(3, 7, (3, count, 1, 1), generator=random)
    disc = (x - place[0, 0]).square() + (y - place[0, 1]).square() <= radius[0].square()
    image = disc.float()
    for k in (1, 2):
        square = ((x - place[k, 0]).abs() <= radius[k] - 1) & ((y - place[k, 1]).abs() <= radius[k] - 1)
        image = torch.maximum(image, 0.9 * square.float())
    image = image + 0.5 * torch.randn(count, SIZE, SIZE, generator=random)
    return TensorDataset(image.unsqueeze(1), disc.float().unsqueeze(1))


def double(inputs: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = []
    for i in (inputs, outputs):
        layers += [nn.Conv2d(i, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = (
            double(1, width),
            double(width, 2 * width),
            double(2 * width, 4 * width),
        )
        self.up2, self.join2 = (
            nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2),
            double(4 * width, 2 * width),
        )
        self.up1, self.join1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2), double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(nn.functional.max_pool2d(first, 2))
        x = self.bottom(nn.functional.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(x), second], 1))
        return self.out(self.join1(torch.cat([self.up1(x), first], 1)))


def overlap(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Intersection over union of every image, in percent."""
    found, there = output > 0, target > 0.5
    both, either = (found & there).sum((1, 2, 3)), (found | there).sum((1, 2, 3))
    return 100 * both / either.clamp(min=1)


def experiment() -> Experiment:
    return Experiment(
        name="discs",
        model=UNet,
        train_data=drawings(320, seed=1),
        eval_data=drawings(200, seed=2),
        loss=nn.functional.binary_cross_entropy_with_logits,
        metric=overlap,
        metric_name="IoU, %",
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, weight_decay=5e-4),
        epochs=10,
        batch_size=16,
        eval_batch_size=100,
    )
