"""Figure 5: Mini-ImageNet, ResNet-50, four ways: BN, BN+GC, BN+WS, BN+WS+GC (section 5.2).

84-pixel images enlarged to 224, conv + FC, 100 epochs, learning rate divided by 10 every 30, batch 128; the
rest as on ImageNet. A cell is a network (BN, BN+WS), an arm is GC off or on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.classification import build, milestones
from gradcent_lab.recipes.imagenet import SWITCHES
from gradcent_lab.recipes.recipe import Recipe

SCALES = (
    Scale(
        "paper",
        "the paper's: 500 training images a class at 224 pixels, 100 epochs, 10 seeds",
    ),
    Scale(
        "small",
        "100 training and 20 test images a class at 64 pixels, ResNet-50 for small images of width 16, "
        "15 epochs, 3 seeds",
    ),
    Scale(
        "smoke",
        "16 training and 16 test images at 32 pixels, one block a stage of width 4, 1 epoch, 1 seed: shows that "
        "it runs, nothing else",
    ),
)
SEEDS = {"paper": tuple(range(10)), "small": (0, 1, 2), "smoke": (0,)}
MEMORY = {"set": "miniimagenet", "augment": "pad-crop-flip", "memory": True}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "data": {"set": "miniimagenet", "size": 224, "resize": 256, "augment": "resized-crop-flip"},
        "model": {"name": "resnet50"},
        "epochs": 100,
        "batch_size": 128,
    },
    "small": {
        "data": {**MEMORY, "size": 64, "train": 10_000, "eval": 2_000},
        "model": {"name": "R50", "width": 16},
        "epochs": 15,
        "batch_size": 128,
    },
    "smoke": {
        "data": {**MEMORY, "size": 32, "train": 16, "eval": 16},
        "model": {"name": "R14", "width": 4},
        "epochs": 1,
        "batch_size": 8,
    },
}


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    size = SIZES[scale]
    cells = []
    for name, standardize in (("BN", False), ("BN+WS", True)):
        settings = {
            "name": "fig5",
            "data": size["data"],
            "model": {**size["model"], "weight_standardization": standardize},
            "optimizer": {
                "name": "SGDM",
                "lr": 0.1,
                "weight_decay": 1e-4,
                **({"dampening": 0.9} if switches["momentum"] == "paper" else {}),
            },
            "schedule": {"milestones": milestones(size["epochs"], 0.3)},
            "epochs": size["epochs"],
            "batch_size": size["batch_size"],
        }
        cells.append(Cell(name, settings))
    return Study(
        name="fig5",
        title=RECIPE.title,
        scale=RECIPE.scale(scale),
        cells=tuple(cells),
        arms=(OFF, ON),
        seeds=SEEDS[scale],
        build=build,
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "fig5",
    "BN, BN+GC, BN+WS and BN+WS+GC on Mini-ImageNet",
    "Figure 5",
    SCALES,
    make,
    needs=("miniimagenet",),
    switches={"momentum": SWITCHES["momentum"]},
)
