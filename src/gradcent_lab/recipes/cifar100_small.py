"""The study that opens the README: does GC help a small residual network on CIFAR-100? Not in the paper.

ResNet-8 of width 16 with BN on 10,000 training images (100 a class), SGDM as in the paper's CIFAR section,
centralization off, of convolutions, and of convolutions and the FC layer; 5 paired seeds.
"""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.run_config import CONV, CONV_AND_FC, OFF, Numerics
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.classification import build
from gradcent_lab.recipes.recipe import Recipe

SCALES = (
    Scale(
        "small",
        "10,000 training images, all 10,000 test images, ResNet-8 of width 16, 10 epochs with the "
        "learning rate divided by 10 after epochs 6 and 9, 5 seeds; "
        "not an experiment of the paper",
    ),
    Scale(
        "smoke",
        "200 training and 100 test images, width 8, 1 epoch, 1 seed: shows that it runs, nothing else",
    ),
)
SIZES = {
    "small": {"train": 10_000, "eval": None, "width": 16, "epochs": 10, "seeds": 5, "batch_size": 128},
    "smoke": {"train": 200, "eval": 100, "width": 8, "epochs": 1, "seeds": 1, "batch_size": 50},
}


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    size = SIZES[scale]
    epochs = size["epochs"]
    settings = {
        "name": "cifar100-small",
        "data": {
            "set": "cifar100",
            "train": size["train"],
            "eval": size["eval"],
            "augment": "pad-crop-flip",
        },
        "model": {"name": "R8", "width": size["width"]},
        "optimizer": {"name": "SGDM", "lr": 0.1, "weight_decay": 5e-4},
        "schedule": {"milestones": [6, 9]},
        "epochs": epochs,
        "batch_size": size["batch_size"],
        "eval_batch_size": 250,
    }
    return Study(
        name="cifar100-small",
        title=RECIPE.title,
        scale=RECIPE.scale(scale),
        cells=(Cell("R8", settings),),
        arms=(OFF, CONV, CONV_AND_FC),
        seeds=tuple(range(size["seeds"])),
        build=build,
        numerics=Numerics(channels_last=True),
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "cifar100-small",
    "ResNet-8 on a fifth of CIFAR-100, GC off, on convolutions, on all",
    "none",
    SCALES,
    make,
    needs=("cifar100",),
)
