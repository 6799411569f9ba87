"""Table 5 and Figure 6: top-1 errors of ResNet-50 and ResNet-101 with BN and GN on ImageNet (section 5.4).

100 epochs, batch 256, learning rate 0.1 divided by 10 every 30 epochs, decay 1e-4, convolutions only. The
printed errors match the best epoch, not the last; the store keeps both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gradcent_lab.experiment.run_config import CONV, OFF, Numerics
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import MOMENTUM, SMOKE, milestones, sgdm
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switch, Switches

IN_MEMORY = {"set": "miniimagenet", "augment": "pad-crop-flip", "memory": True}
SCALES = (
    Scale(
        "paper",
        "ImageNet at 224 pixels, 100 epochs; several seeds where the paper has one run",
        seeds=(0, 1, 2),
        is_paper=True,
        sizes={
            "data": {"set": "imagenet", "size": 224, "resize": 256, "augment": "resized-crop-flip"},
            "epochs": 100,
            "batch_size": 256,
            "models": {"R50": {"name": "resnet50"}, "R101": {"name": "resnet101"}},
        },
    ),
    Scale(
        "small",
        "Mini-ImageNet (100 classes of ImageNet, 100 training images each) at 64 pixels instead of ImageNet, "
        "ResNets for small images of width 16 (GN with 8 groups), 15 epochs, batch 128",
        seeds=(0, 1, 2),
        sizes={
            "data": {**IN_MEMORY, "train": 10_000, "eval": 2_000, "size": 64},
            "epochs": 15,
            "batch_size": 128,
            "models": {"R50": {"name": "R50", "width": 16}, "R101": {"name": "R101", "width": 16}},
            "groups": 8,
        },
    ),
    Scale(
        "mini",
        "Mini-ImageNet (100 training images per class) at 32 pixels instead of ImageNet; one bottleneck block per "
        "stage for R50, two for R101, width 8 (GN with 4 groups), 10 epochs of 78 steps, batch 128",
        seeds=(0, 1, 2, 3, 4),
        sizes={
            "data": {**IN_MEMORY, "train": 10_000, "eval": 2_000, "size": 32},
            "epochs": 10,
            "batch_size": 128,
            "models": {"R50": {"name": "R14", "width": 8}, "R101": {"name": "R26", "width": 8}},
            "groups": 4,
        },
        numerics=Numerics(channels_last=True),
    ),
    Scale(
        "smoke",
        "16 training and 16 test images of Mini-ImageNet at 32 pixels, one block per stage of width 4, 1 epoch; "
        f"{SMOKE}",
        sizes={
            "data": {**IN_MEMORY, "train": 16, "eval": 16, "size": 32},
            "epochs": 1,
            "batch_size": 8,
            "models": {"R50": {"name": "R14", "width": 4}, "R101": {"name": "R14", "width": 4}},
            "groups": 2,
        },
    ),
)
NETWORKS = {
    "R50BN": ("R50", "bn"),
    "R50GN": ("R50", "gn"),
    "R101BN": ("R101", "bn"),
    "R101GN": ("R101", "gn"),
}
FIGURE_CELL = "R50GN"
SWITCHES = {
    "momentum": MOMENTUM,
    "validation": Switch(
        ("all", "released"), "all validation images; the released loader drops the last partial batch"
    ),
}


def norm_spec(scale: Scale, norm: str) -> dict[str, Any]:
    """Return the norm of a network's specification.

    The paper's networks have 32 groups, so that 2 channels or more share a group. The narrow networks of the other
    scales need fewer groups for that: one channel per group is instance normalization.
    """
    groups = scale.sizes.get("groups")
    return {"norm": norm, "groups": groups} if norm == "gn" and groups else {"norm": norm}


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per network and normalization."""
    sizes = scale.sizes
    return tuple(
        Cell(
            name,
            {
                "name": "table5",
                "data": sizes["data"],
                "model": {**sizes["models"][network], **norm_spec(scale, norm)},
                "optimizer": sgdm(switches, lr=0.1, weight_decay=1e-4),
                "schedule": {"milestones": milestones(sizes["epochs"], 0.3)},
                "epochs": sizes["epochs"],
                "batch_size": sizes["batch_size"],
                "eval_drop_last": switches["validation"] == "released",
                "metric": "error",
            },
        )
        for name, (network, norm) in NETWORKS.items()
    )


def figure_cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the cell of Table 5 that Figure 6 draws."""
    return tuple(cell for cell in cells(scale, switches) if cell.name == FIGURE_CELL)


TABLE5 = Recipe(
    "table5",
    "ResNet-50 and ResNet-101 with BN and GN on ImageNet, top-1 error",
    "Table 5",
    SCALES,
    cells,
    (OFF, CONV),
    Lazy("recipes.builders.classification:build"),
    switches=SWITCHES,
    notes=(
        "the printed errors match the best epoch, not the last: both are reported",
        "the convolutions of the released ImageNet networks have biases; these are torchvision's, without. A norm "
        "follows each of them: BN cancels a bias, GN only what the biases of a group have in common",
    ),
    metric="top-1 error, %",
    paper_table=5,
    judged_epoch="best",
    figures=Lazy("recipes.presentation.figures:error_curves"),
)
FIG6 = replace(
    TABLE5,
    name="fig6",
    title="Error curves of ResNet-50 with GN on ImageNet (runs of table5)",
    paper="Figure 6",
    cells=figure_cells,
    study_name="table5",
)
