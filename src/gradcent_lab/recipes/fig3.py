"""Figure 3: |mean| of every weight vector of the convolutions of ResNet-50, before training (section 4.1).

Kaiming normal initialization, and weights pretrained on ImageNet.
"""

from __future__ import annotations

from typing import Any

from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import TINY_IMAGENET_WEIGHTS
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

TINY_MODEL: dict[str, Any] = {"name": "resnet18", "pretrained": TINY_IMAGENET_WEIGHTS, "classes": 200}
SCALES = (
    Scale(
        "paper",
        "ResNet-50, Kaiming normal and pretrained on ImageNet by torchvision",
        is_paper=True,
        sizes={
            "Kaiming": {"name": "resnet50"},
            "pretrained": {"name": "resnet50", "pretrained": "torchvision"},
        },
    ),
    Scale(
        "small",
        "ResNet-50 with Kaiming normal initialization; ResNet-18 pretrained on Tiny-ImageNet instead",
        sizes={"Kaiming": {"name": "resnet50"}, "pretrained": TINY_MODEL},
    ),
    Scale(
        "smoke",
        "ResNet-18 in both cases, the pretrained one on Tiny-ImageNet",
        sizes={"Kaiming": {"name": "resnet18"}, "pretrained": TINY_MODEL},
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per initialization."""
    return tuple(Cell(name, {"name": "fig3", "model": model}) for name, model in scale.sizes.items())


RECIPE = Recipe(
    "fig3",
    "Means of the initial weight vectors",
    "Figure 3",
    SCALES,
    cells,
    (OFF,),
    Lazy("recipes.builders.initial_means:build"),
    metric="median |mean of a weight vector|",
    paired=False,
    figures=Lazy("recipes.presentation.figures:initial_means"),
    tables=Lazy("recipes.presentation.summaries:initial_means"),
)
