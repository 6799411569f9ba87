"""A deeper network on few images: the paper's claim that GC regularizes where samples are limited.

The judged numbers are test accuracy and the gap between training and test accuracy.
"""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.recipe import Switches

SCALES = (
    Scale(
        "mini",
        "ResNet-18 of width 16 on 5,000 training images (50 per class) and 5,000 test images of CIFAR-100, 30 epochs "
        "of 39 steps; learning rates tuned for each arm",
        seeds=tuple(range(6)),
        sizes={"train": 5_000, "eval": 5_000, "width": 16, "epochs": 30, "batch_size": 128},
        tuning=Tuning({"lr": (0.03, 0.1, 0.3)}, beyond={"lr": (1.0,)}),
    ),
    small_resnet.smoke((0.1, 0.3)),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("R18", small_resnet.settings("few-images", {"name": "R18"}, scale.sizes, 0.1)),)


RECIPE = small_resnet.tuned_recipe(
    "few-images",
    "ResNet-18 on 5,000 images, tuned: does GC close the gap between training and test?",
    SCALES,
    cells,
)
