"""Figure 3: |mean| of every weight vector of the convolutions of ResNet-50, before training (section 4.1).

Kaiming normal initialization and weights pretrained on ImageNet. A row is one convolution with the means of
its vectors; the headline is the median of |mean| over all vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcent_lab import models
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.finegrained import TINY
from gradcent_lab.recipes.recipe import Recipe

SCALES = (
    Scale("paper", "the paper's: ResNet-50, Kaiming normal and pretrained on ImageNet by torchvision"),
    Scale(
        "small", "ResNet-50 with Kaiming normal initialization; ResNet-18 pretrained on Tiny-ImageNet instead"
    ),
    Scale("smoke", "ResNet-18 in both cases, the pretrained one on Tiny-ImageNet"),
)
TINY_MODEL = {"name": "resnet18", "pretrained": TINY, "classes": 200}
CELLS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "Kaiming": {"name": "resnet50"},
        "pretrained": {"name": "resnet50", "pretrained": "torchvision"},
    },
    "small": {"Kaiming": {"name": "resnet50"}, "pretrained": TINY_MODEL},
    "smoke": {"Kaiming": {"name": "resnet18"}, "pretrained": TINY_MODEL},
}


def measure(
    settings: Mapping[str, Any], data: Path | None, seed: int, arm: Arm
) -> tuple[float, list[dict[str, Any]]]:
    """Return the median of |mean| and the means, convolution by convolution."""
    from gradcent.diagnostics import initial_means

    seed_everything(seed, "weights")
    spec = dict(settings["model"])
    model = models.make(spec, spec.pop("classes", 1000), data)
    if "pretrained" not in spec:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
    means = {name: value.abs() for name, value in initial_means(model, layers="conv").items()}
    rows = [{"layer": name, "abs_means": value.tolist()} for name, value in means.items()]
    return float(torch.cat(list(means.values())).median()), rows


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        "fig3",
        lambda seed, arm: measure(settings, data, seed, arm),
        "median |mean of a weight vector|",
        False,
        settings,
    )


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    cells = tuple(Cell(name, {"name": "fig3", "model": model}) for name, model in CELLS[scale].items())
    return Study("fig3", RECIPE.title, RECIPE.scale(scale), cells, (OFF,), (0,), build)


RECIPE = Recipe("fig3", "Means of the initial weight vectors", "Figure 3", SCALES, make)
