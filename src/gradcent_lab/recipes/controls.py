"""Controls: is it the mean that GC removes, or only the step size or the rank? And in which layers?

ResNet-8 with BN at one learning rate for all arms, which was the best one without GC in a pilot on other seeds.
"""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

LEARNING_RATE = 0.3
ARMS = (
    OFF,
    small_resnet.ALL,
    small_resnet.INPUT,
    *(Arm(name, control=name) for name in ("rescaled", "random direction", "centred images")),
)
SCALES = (
    Scale(
        "mini",
        "ResNet-8 of width 16 on 10,000 training and 5,000 test images of CIFAR-100, 4 epochs of 78 steps, learning "
        "rate 0.3 for all arms",
        seeds=tuple(range(8)),
        sizes={"train": 10_000, "eval": 5_000, "width": 16, "epochs": 4, "batch_size": 128},
    ),
    small_resnet.smoke(),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("R8", small_resnet.settings("controls", {"name": "R8"}, scale.sizes, LEARNING_RATE)),)


RECIPE = Recipe(
    "controls",
    "What GC's effect comes from: step size, rank, or the mean; and which layers",
    None,
    SCALES,
    cells,
    ARMS,
    Lazy("recipes.builders.classification:build"),
    notes=(
        small_resnet.NOTES[0],
        "rescaled: the gradient of each weight keeps its direction and gets the norm of the centralized one",
        "random direction: each weight vector loses its part along a fixed random unit vector instead of (1, …, 1)/√M",
        "centred images: no GC; the mean over channels and pixels is subtracted from each image",
    ),
    numerics=small_resnet.NUMERICS,
)
