"""A U-Net on Penn-Fudan that records what the wrong axis does to its transposed convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

import gradcent
from gradcent_lab.data.folders import read
from gradcent_lab.detection.coco import library
from gradcent_lab.detection.sources import open_source
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.spec import Experiment

TRANSPOSED = ("up2", "up1")  # the transposed convolutions


class People(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images squeezed to a square, and where people are; mirrored at random for training."""

    def __init__(self, root: Path | None, split: str, size: int, count: int | None) -> None:
        from torchvision.transforms.functional import pil_to_tensor

        source = open_source("penn-fudan", root, split)
        outlines: dict[int, list[Any]] = {}
        for each in source.document["annotations"]:
            outlines.setdefault(each["image_id"], []).append(each["segmentation"])
        images, masks = [], []
        for entry in source.document["images"][:count]:
            picture = read(source.images / entry["file_name"]).resize((size, size))
            images.append(pil_to_tensor(picture).float() / 127.5 - 1)
            whole = torch.from_numpy(library().mask.decode(library().mask.merge(outlines[entry["id"]])))
            masks.append(functional.adaptive_avg_pool2d(whole[None].float(), size) > 0.5)
        self.images, self.masks, self.train = (
            torch.stack(images),
            torch.stack(masks).float(),
            split == "train",
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = self.images[index], self.masks[index]
        if self.train and torch.rand(()) < 0.5:
            image, mask = image.flip(2), mask.flip(2)
        return image, mask


class UNet(nn.Module):
    """Two steps down, two up by transposed convolutions (Ronneberger et al. 2015), with BN."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down1, self.down2 = _double(3, width), _double(width, 2 * width)
        self.bottom = _double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = _double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = _double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a logit for every pixel."""
        first = self.down1(x)
        second = self.down2(functional.max_pool2d(first, 2))
        x = self.bottom(functional.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(x), second], 1))
        x = self.join1(torch.cat([self.up1(x), first], 1))
        return self.out(x)  # type: ignore[no-any-return]


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


@torch.no_grad()
def observe(model: nn.Module) -> dict[str, float]:
    """Return, for the transposed convolutions, shares of the gradient's energy and every weight vector's sum.

    mean: in the means of the weight vectors, which GC removes. wrong_removed: what the wrong axis removes.
    wrong_left: in the weight vectors' means after centralizing along the wrong axis, which should be 0.
    """
    total = mean = removed = left = 0.0
    numbers: dict[str, float] = {}
    for name in TRANSPOSED:
        layer: Any = model.get_submodule(name)
        gradient, shape = layer.weight.grad, tuple(layer.weight.shape)
        right, wrong = gradcent.Layout.transposed(shape, layer.groups), gradcent.Layout.rows(shape)
        turned = gradcent.centralize(gradient, wrong)
        total += _energy(gradient)
        mean += _energy(gradient - gradcent.centralize(gradient, right))
        removed += _energy(gradient - turned)
        left += _energy(turned - gradcent.centralize(turned, right))
        sums = layer.weight.double().sum((0, 2, 3)).tolist()
        numbers |= {f"sum {name} {index}": value for index, value in enumerate(sums)}
    if total > 0:
        numbers |= {"mean": mean / total, "wrong_removed": removed / total, "wrong_left": left / total}
    return numbers


def _energy(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().sum())


def overlap(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return intersection over union of people in every image, in percent."""
    found, there = output > 0, target > 0.5
    both, either = (found & there).sum((1, 2, 3)), (found | there).sum((1, 2, 3))
    return 100 * both / either.clamp(min=1)


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment that `settings` describe."""
    size = settings["data"]["size"]
    return Experiment(
        name="unet",
        model=lambda: UNet(settings["width"]),
        train_data=People(data, "train", size, settings["data"]["train"]),
        eval_data=People(data, "test", size, settings["data"]["eval"]),
        loss=functional.binary_cross_entropy_with_logits,
        metric=overlap,
        metric_name="IoU, %",
        optimizer=optimizers.optimizer(settings["optimizer"]),
        schedule=optimizers.schedule([settings["epochs"] * 3 // 4]),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        observe=observe,
        settings=settings,
    )
