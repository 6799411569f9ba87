"""Tables 8 and 9: Faster R-CNN and Mask R-CNN with FPN on COCO, average precision (section 5.6).

SGDM, learning rate 0.02 for 16 images per step, decay 1e-4, 12 epochs (1x) or 24 (2x), short side 800.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gradcent_lab.experiment.run_config import OFF, ON, Arm
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.coco_networks import NETWORKS, SMALL_SIZES, SMOKE_SIZES
from gradcent_lab.recipes.common import MOMENTUM, SMOKE, sgdm
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switch, Switches

SCALES = (
    Scale(
        "paper",
        "COCO train2017 and val2017, short side 800, 12 or 24 epochs, 16 images per step; several seeds where the "
        "paper has one run",
        seeds=(0, 1, 2),
        is_paper=True,
        sizes={
            "data": {"set": "coco"},
            "epochs": 12,
            "batch_size": 16,
            "lr": 0.02,
            "warmup_steps": 500,
            "model": {},
            "examples": 6,
        },
    ),
    Scale(
        "small",
        "Penn-Fudan pedestrians (96 training, 42 test images) instead of COCO, short side 128; for R50 a ResNet-18 "
        "pretrained on Tiny-ImageNet, for the others 26-layer networks from scratch with trainable BN or GN; FPN "
        "of 64 channels, 4 images per step, 4 times the learning rate, 12 or 24 epochs",
        seeds=(0, 1, 2),
        sizes={
            "data": {"set": "penn-fudan", "train": 96},
            "epochs": 12,
            "batch_size": 4,
            "lr": 0.08,
            "warmup_steps": 24,
            "model": SMALL_SIZES,
            "examples": 4,
        },
    ),
    Scale(
        "mini",
        "Penn-Fudan pedestrians (96 training, 42 test images) instead of COCO, short side 96; R50 as a ResNet-18 "
        "pretrained on Tiny-ImageNet and, in Table 9, R50GN+WS as a 14-layer network from scratch, the other networks "
        "left out; FPN of 64 channels, 4 images per step, 12 epochs",
        seeds=(0, 1, 2, 3, 4),
        sizes={
            "data": {"set": "penn-fudan", "train": 96},
            "epochs": 12,
            "batch_size": 4,
            "lr": 0.08,
            "warmup_steps": 24,
            "model": {**SMALL_SIZES, "short": 96, "long": 144},
            "examples": 4,
        },
    ),
    Scale(
        "smoke",
        "2 training and 2 test images of Penn-Fudan at 64 pixels, 14- and 26-layer networks from scratch, FPN of "
        f"16 channels, 1 epoch; {SMOKE}",
        sizes={
            "data": {"set": "penn-fudan", "train": 2, "eval": 2},
            "epochs": 1,
            "batch_size": 2,
            "lr": 0.02,
            "warmup_steps": 1,
            "model": SMOKE_SIZES,
            "examples": 2,
        },
    ),
)
TABLE8_NETWORKS = ("R50", "X101-32x4d", "R101", "X101-64x4d")
TABLE9_NETWORKS = ("R50", "R50 (4c1f)", "R101", "R101GN", "X101-32x4d", "R50GN+WS", "X101-64x4d")
TWICE_AS_LONG = ("R101GN", "R50GN+WS")  # the text: 2x for the networks with GN
SWITCHES = {
    "clip": Switch(
        ("35", "none"), "the paper's framework clips the gradient at norm 35, before it is centralized"
    ),
    "momentum": MOMENTUM,
    "bn": Switch(
        ("framework", "frozen"),
        "MMDetection trains BN's scales and shifts with fixed statistics; frozen: neither trains, as in torchvision",
    ),
    "images": Switch(
        ("scale", "2", "4", "8", "16", "32"),
        "images per step: the scale's number or this one, lr in proportion",
    ),
}


# table 9 only: a Faster R-CNN has no transposed convolution
DECONVOLUTION = Switch(
    ("inputs", "released"),
    "means over the inputs of each output; the released code takes them over all dims but the first, which for the "
    "mask head's transposed convolution are the outputs of one input, presumably so in the paper's numbers",
)
BN: dict[str, dict[str, Any]] = {"framework": {"norm": "fixed statistics"}, "frozen": {}}


def arms(switches: Switches) -> tuple[Arm, Arm]:
    """Return the arms off and on."""
    if switches.get("deconvolution") == "released":
        name = "roi_heads.mask_predictor.conv5_mask.weight"
        return OFF, Arm("on", {"layers": "all", "overrides": {name: "rows"}})
    return OFF, ON


def cells(
    recipe: str, networks: tuple[str, ...], masks: bool, scale: Scale, switches: Switches
) -> tuple[Cell, ...]:
    """Return one cell per network."""
    known = NETWORKS[scale.name]
    return tuple(
        Cell(name, settings(recipe, name, masks, scale, switches)) for name in networks if name in known
    )


def settings(recipe: str, network: str, masks: bool, scale: Scale, switches: Switches) -> dict[str, Any]:
    """Return the settings of one cell."""
    sizes = scale.sizes
    times = 2 if network in TWICE_AS_LONG and scale.name in ("paper", "small") else 1
    return {
        "name": recipe,
        "data": {**sizes["data"], "flip": True},
        "model": {**sizes["model"], **BN[switches["bn"]], **NETWORKS[scale.name][network], "masks": masks},
        # the learning rate is for 16 images; it is scaled in proportion to batch_size
        "optimizer": sgdm(switches, lr=sizes["lr"], weight_decay=1e-4),
        "schedule": {
            "milestones": [8 * times, 11 * times],
            "warmup_steps": sizes["warmup_steps"],
            "warmup_from": 1 / 3,
        },
        "clip": 35.0 if switches["clip"] == "35" else None,
        "epochs": sizes["epochs"] * times,
        "batch_size": sizes["batch_size"] if switches["images"] == "scale" else int(switches["images"]),
        "examples": sizes["examples"],
    }


ZOO = {
    8: "all numbers without GC in Table 8 equal MMDetection's model zoo: its published runs, not pairs",
    9: "APb and APm without GC of R101, X101-32x4d and X101-64x4d in Table 9 equal MMDetection's model zoo: its "
    "published runs, not pairs",
}


def _recipe(number: int, title: str, networks: tuple[str, ...], masks: bool) -> Recipe:
    return Recipe(
        f"table{number}",
        title,
        f"Table {number}",
        SCALES,
        partial(cells, f"table{number}", networks, masks),
        arms,
        Lazy("detection.training:build"),
        switches={**SWITCHES, "deconvolution": DECONVOLUTION} if masks else SWITCHES,
        notes=(
            "val2017 has 5,000 images, not the 40,000 of the text",
            "torchvision's detectors in place of MMDetection's: the same architectures, other details of losses",
            "the stem and the first stage are frozen; judged by the last epoch, as the framework reports",
            ZOO[number],
        ),
        metric="APb" if masks else "AP",
        paper_table=number,
        figures=Lazy("recipes.presentation.detection:figures"),
        tables=partial(Lazy("recipes.presentation.detection:tables"), number),
    )


TABLE8 = _recipe(8, "Faster R-CNN with FPN on COCO, average precision", TABLE8_NETWORKS, False)
TABLE9 = _recipe(
    9, "Mask R-CNN with FPN on COCO, average precision of boxes and masks", TABLE9_NETWORKS, True
)
