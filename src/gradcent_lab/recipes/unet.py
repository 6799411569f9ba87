"""A U-Net with transposed convolutions on Penn-Fudan: what centralizing along the wrong axis does. Not in the paper.

PyTorch stores a transposed convolution's weight as (in, out, k, k), so the usual "mean over all dims but the
first" averages over another vector than the paper's: over the outputs of one input channel, not over the inputs
of one output channel. Three arms: off, on, and that rule for the transposed convolutions.
"""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF, ON, Arm
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

WRONG_AXIS = Arm("wrong axis", {"layers": "all", "overrides": {"up*.weight": "rows"}})
SCALES = (
    Scale(
        "small",
        "a U-Net of width 8 on 128 training and 42 test images of Penn-Fudan at 64 pixels, 20 epochs",
        seeds=(0, 1, 2, 3, 4),
        sizes={"size": 64, "width": 8, "epochs": 20, "train": None, "eval": None},
    ),
    Scale(
        "mini",
        "a U-Net of width 8 on 128 training and 42 test images of Penn-Fudan at 64 pixels, 60 epochs",
        seeds=tuple(range(6)),
        sizes={"size": 64, "width": 8, "epochs": 60, "train": None, "eval": None},
    ),
    Scale(
        "smoke",
        "16 training and 8 test images at 32 pixels, width 4, 1 epoch; checks that it runs",
        sizes={"size": 32, "width": 4, "epochs": 1, "train": 16, "eval": 8},
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    sizes = scale.sizes
    settings = {
        "name": "unet",
        "data": {"set": "penn-fudan", **{key: sizes[key] for key in ("size", "train", "eval")}},
        "width": sizes["width"],
        "optimizer": {"name": "SGDM", "lr": 0.1, "weight_decay": 5e-4},
        "epochs": sizes["epochs"],
        "batch_size": 8,
    }
    return (Cell("U-Net", settings),)


RECIPE = Recipe(
    "unet",
    "Segmentation by a U-Net with transposed convolutions, and GC along the wrong axis",
    None,
    SCALES,
    cells,
    (OFF, ON, WRONG_AXIS),
    Lazy("recipes.builders.unet:build"),
    notes=(
        "arm “wrong axis”: means over all dims but the first, as every other implementation takes them, for the "
        "two transposed convolutions; all other layers as in arm “on”",
    ),
    metric="IoU, %",
    tables=Lazy("recipes.presentation.wrong_axis:tables"),
)
