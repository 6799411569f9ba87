"""The study at the top of the README: does GC help a small residual network on CIFAR-100? Not in the paper.

ResNet-8 of width 16 with BN on 10,000 training images (100 per class), SGDM as in the paper's CIFAR section;
centralization off, of convolutions, and of convolutions and the FC layer; 5 paired seeds.
"""

from __future__ import annotations

from gradcent_lab.experiment.run_config import CONV, CONV_AND_FC, OFF, Numerics
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import SMOKE
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SCALES = (
    Scale(
        "small",
        "10,000 training images, all 10,000 test images, ResNet-8 of width 16, 10 epochs with the learning rate "
        "divided by 10 after epochs 6 and 9",
        seeds=(0, 1, 2, 3, 4),
        sizes={"train": 10_000, "eval": None, "width": 16, "epochs": 10, "batch_size": 128},
    ),
    Scale(
        "mini",
        "10,000 training and 5,000 test images, ResNet-8 of width 16, 8 epochs of 78 steps with the learning rate "
        "divided by 10 after epochs 5 and 7",
        seeds=(0, 1, 2, 3, 4),
        sizes={"train": 10_000, "eval": 5_000, "width": 16, "epochs": 8, "batch_size": 128, "drops": [5, 7]},
    ),
    Scale(
        "smoke",
        f"200 training and 100 test images, width 8, 1 epoch; {SMOKE}",
        sizes={"train": 200, "eval": 100, "width": 8, "epochs": 1, "batch_size": 50},
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    sizes = scale.sizes
    settings = {
        "name": "cifar100-small",
        "data": {
            "set": "cifar100",
            "train": sizes["train"],
            "eval": sizes["eval"],
            "augment": "pad-crop-flip",
        },
        "model": {"name": "R8", "width": sizes["width"]},
        "optimizer": {"name": "SGDM", "lr": 0.1, "weight_decay": 5e-4},
        "schedule": {"milestones": sizes.get("drops", [6, 9])},
        "epochs": sizes["epochs"],
        "batch_size": sizes["batch_size"],
        "eval_batch_size": 250,
    }
    return (Cell("R8", settings),)


RECIPE = Recipe(
    "cifar100-small",
    "ResNet-8 on a fifth of CIFAR-100, GC off, on convolutions, on all",
    None,
    SCALES,
    cells,
    (OFF, CONV, CONV_AND_FC),
    Lazy("recipes.builders.classification:build"),
    numerics=Numerics(channels_last=True),
)
