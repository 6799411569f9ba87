"""Table 5 and figure 6: top-1 errors of ResNet-50 and ResNet-101 with BN and GN on ImageNet (section 5.4).

100 epochs, batch 256, learning rate 0.1 divided by 10 every 30 epochs, decay 1e-4, convolutions only. The
printed errors match the best epoch, not the last; the store keeps both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcent_lab.experiment.run_config import CONV, OFF
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.classification import build, milestones
from gradcent_lab.recipes.recipe import Recipe, Switch

SCALES = (
    Scale(
        "paper",
        "the paper's: ImageNet at 224 pixels, 100 epochs; 3 seeds where the paper has one run",
    ),
    Scale(
        "small",
        "Mini-ImageNet (100 classes of ImageNet, 100 training images each) at 64 pixels instead of ImageNet, "
        "ResNets for small images of width 16, 15 epochs, batch 128, 3 seeds",
    ),
    Scale(
        "smoke",
        "16 training and 16 test images of Mini-ImageNet at 32 pixels, one block a stage of width 4, 1 epoch, "
        "1 seed: shows that it runs, nothing else",
    ),
)
SEEDS = {"paper": (0, 1, 2), "small": (0, 1, 2), "smoke": (0,)}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "data": {"set": "imagenet", "size": 224, "resize": 256, "augment": "resized-crop-flip"},
        "epochs": 100,
        "batch_size": 256,
        "models": {"R50": {"name": "resnet50"}, "R101": {"name": "resnet101"}},
    },
    "small": {
        "data": {
            "set": "miniimagenet",
            "train": 10_000,
            "eval": 2_000,
            "size": 64,
            "augment": "pad-crop-flip",
            "memory": True,
        },
        "epochs": 15,
        "batch_size": 128,
        "models": {"R50": {"name": "R50", "width": 16}, "R101": {"name": "R101", "width": 16}},
    },
    "smoke": {
        "data": {
            "set": "miniimagenet",
            "train": 16,
            "eval": 16,
            "size": 32,
            "augment": "pad-crop-flip",
            "memory": True,
        },
        "epochs": 1,
        "batch_size": 8,
        "models": {"R50": {"name": "R14", "width": 4}, "R101": {"name": "R14", "width": 4}},
    },
}
CELLS = (("R50BN", "R50", "bn"), ("R50GN", "R50", "gn"), ("R101BN", "R101", "bn"), ("R101GN", "R101", "gn"))


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study of table 5."""
    size = SIZES[scale]
    cells = []
    for name, network, norm in CELLS:
        settings = {
            "name": "table5",
            "data": size["data"],
            "model": {**size["models"][network], "norm": norm},
            "optimizer": {
                "name": "SGDM",
                "lr": 0.1,
                "weight_decay": 1e-4,
                **({"dampening": 0.9} if switches["momentum"] == "paper" else {}),
            },
            "schedule": {"milestones": milestones(size["epochs"], 0.3)},
            "epochs": size["epochs"],
            "batch_size": size["batch_size"],
            "eval_drop_last": switches["validation"] == "released",
            "metric": "error",
        }
        cells.append(Cell(name, settings))
    return Study(
        name="table5",
        title=TABLE5.title,
        scale=TABLE5.scale(scale),
        cells=tuple(cells),
        arms=(OFF, CONV),
        seeds=SEEDS[scale],
        build=build,
        notes=TABLE5.said(switches),
        metric="top-1 error, %",
    )


def make_figure(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the part of table 5 that figure 6 draws: its runs are the same ones."""
    from dataclasses import replace

    study = make(scale, switches)
    return replace(study, title=FIG6.title, cells=tuple(cell for cell in study.cells if cell.name == "R50GN"))


SWITCHES = {
    "momentum": Switch(
        ("released", "paper"),
        "released code and PyTorch: m = βm + ĝ; Algorithm 1 prints m = βm + (1 − β)ĝ (dampening β)",
    ),
    "validation": Switch(
        ("all", "released"), "all validation images; the released loader dropped the last partial batch"
    ),
}
TABLE5 = Recipe(
    "table5",
    "ResNet-50 and ResNet-101 with BN and GN on ImageNet, top-1 error",
    "Table 5",
    SCALES,
    make,
    needs=("imagenet", "miniimagenet"),
    switches=SWITCHES,
    notes=("the printed errors match the best epoch, not the last: both are reported",),
)
FIG6 = Recipe(
    "fig6",
    "Training and validation error curves of ResNet-50 with GN on ImageNet (runs of table5)",
    "Figure 6",
    SCALES,
    make_figure,
    needs=("imagenet", "miniimagenet"),
    switches=SWITCHES,
    notes=TABLE5.notes,
)
