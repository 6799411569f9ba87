"""Half of CIFAR-100, with a tuned learning rate in both arms: the tuned counterpart of `cifar100-small`."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.recipe import Switches

SCALES = (
    Scale(
        "mini",
        "ResNet-8 of width 16 on 25,000 training images and all test images of CIFAR-100, 10 epochs of 195 steps; "
        "learning rates tuned for each arm",
        seeds=tuple(range(8)),
        sizes={"train": 25_000, "eval": None, "width": 16, "epochs": 10, "batch_size": 128},
        tuning=Tuning({"lr": (0.03, 0.1, 0.3, 1.0)}, beyond={"lr": (3.0,)}),
    ),
    small_resnet.smoke((0.1, 0.3)),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("R8", small_resnet.settings("cifar100-tuned", {"name": "R8"}, scale.sizes, 0.1)),)


RECIPE = small_resnet.tuned_recipe(
    "cifar100-tuned",
    "ResNet-8 on half of CIFAR-100, tuned",
    SCALES,
    cells,
)
