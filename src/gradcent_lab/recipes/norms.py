"""BN, GN, and BN with weight standardization, with and without GC: the paper's Table 5, figures 5 and 6 in small.

The paper's largest gains are those with GN. Every cell and arm has its own learning rate, tuned on held-out images.
With the usual 32 groups most layers of this narrow network have one channel per group, which is instance
normalization; with 8 groups every group has at least 2 channels, as in the paper's networks.
"""

from __future__ import annotations

from typing import Any

from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.recipe import Switches

MODELS: dict[str, dict[str, Any]] = {
    "BN": {"name": "R8"},
    "GN": {"name": "R8", "norm": "gn"},
    "GN (8 groups)": {"name": "R8", "norm": "gn", "groups": 8},
    "BN+WS": {"name": "R8", "weight_standardization": True},
}
BY_ROLE = ("BN",)  # the cells that also have the arms `hidden` and `input`
SCALES = (
    Scale(
        "mini",
        "ResNet-8 of width 16 on 10,000 training and 5,000 test images of CIFAR-100, 4 epochs of 78 steps; learning "
        "rates tuned for each norm and arm",
        seeds=tuple(range(6)),
        sizes={"train": 10_000, "eval": 5_000, "width": 16, "epochs": 4, "batch_size": 128},
        tuning=Tuning({"lr": (0.1, 0.3, 1.0)}, beyond={"lr": (3.0,)}, follow=small_resnet.FOLLOW),
    ),
    small_resnet.smoke((0.1, 0.3)),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per norm."""
    return tuple(
        Cell(
            name,
            small_resnet.settings("norms", model, scale.sizes, 0.3),
            arms=small_resnet.BY_ROLE if name in BY_ROLE else small_resnet.OFF_AND_ALL,
        )
        for name, model in MODELS.items()
    )


RECIPE = small_resnet.tuned_recipe(
    "norms",
    "BN, GN and BN with weight standardization, tuned",
    SCALES,
    cells,
    small_resnet.BY_ROLE,
)
