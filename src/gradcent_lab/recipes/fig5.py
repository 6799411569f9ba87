"""Figure 5: Mini-ImageNet, ResNet-50, four combinations: BN, BN+GC, BN+WS, BN+WS+GC (section 5.2).

84-pixel images enlarged to 224, conv + FC, 100 epochs, learning rate divided by 10 every 30, batch 128; the
rest as on ImageNet. A cell is a network (BN, BN+WS), an arm is GC off or on.
"""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF, ON, Numerics
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import MOMENTUM, SMOKE, milestones, sgdm
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

IN_MEMORY = {"set": "miniimagenet", "augment": "pad-crop-flip", "memory": True}
SCALES = (
    Scale(
        "paper",
        "500 training images per class at 224 pixels, 100 epochs",
        seeds=tuple(range(10)),
        is_paper=True,
        sizes={
            "data": {"set": "miniimagenet", "size": 224, "resize": 256, "augment": "resized-crop-flip"},
            "model": {"name": "resnet50"},
            "epochs": 100,
            "batch_size": 128,
        },
    ),
    Scale(
        "small",
        "100 training and 20 test images per class at 64 pixels, ResNet-50 for small images of width 16, 15 epochs",
        seeds=(0, 1, 2),
        sizes={
            "data": {**IN_MEMORY, "size": 64, "train": 10_000, "eval": 2_000},
            "model": {"name": "R50", "width": 16},
            "epochs": 15,
            "batch_size": 128,
        },
    ),
    Scale(
        "mini",
        "100 training and 20 test images per class at 32 pixels, one bottleneck block per stage of width 8, 20 epochs "
        "of 78 steps",
        seeds=(0, 1, 2, 3, 4),
        sizes={
            "data": {**IN_MEMORY, "size": 32, "train": 10_000, "eval": 2_000},
            "model": {"name": "R14", "width": 8},
            "epochs": 20,
            "batch_size": 128,
        },
        numerics=Numerics(channels_last=True),
    ),
    Scale(
        "smoke",
        f"16 training and 16 test images at 32 pixels, one block per stage of width 4, 1 epoch; {SMOKE}",
        sizes={
            "data": {**IN_MEMORY, "size": 32, "train": 16, "eval": 16},
            "model": {"name": "R14", "width": 4},
            "epochs": 1,
            "batch_size": 8,
        },
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per network: without and with weight standardization."""
    sizes = scale.sizes
    return tuple(
        Cell(
            name,
            {
                "name": "fig5",
                "data": sizes["data"],
                "model": {**sizes["model"], "weight_standardization": standardize},
                "optimizer": sgdm(switches, lr=0.1, weight_decay=1e-4),
                "schedule": {"milestones": milestones(sizes["epochs"], 0.3)},
                "epochs": sizes["epochs"],
                "batch_size": sizes["batch_size"],
            },
        )
        for name, standardize in (("BN", False), ("BN+WS", True))
    )


RECIPE = Recipe(
    "fig5",
    "BN, BN+GC, BN+WS and BN+WS+GC on Mini-ImageNet",
    "Figure 5",
    SCALES,
    cells,
    (OFF, ON),
    Lazy("recipes.builders.classification:build"),
    switches={"momentum": MOMENTUM},
    notes=("the released Mini-ImageNet network draws the gains of BN from U(0, 1); here they start at 1",),
    figures=Lazy("recipes.presentation.figures:four_combinations"),
    tables=Lazy("recipes.presentation.summaries:four_combinations"),
)
