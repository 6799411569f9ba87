"""What tables 8 and 9 share: the sizes of their scales, the schedules and the switches (section 5.6).

SGDM, learning rate 0.02 for 16 images a step, decay 1e-4, 12 epochs (1x) or 24 (2x), short side 800.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcent_lab.detection.training import build
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.recipe import Recipe, Switch

SCALES = (
    Scale(
        "paper",
        "the paper's: COCO train2017 and val2017, short side 800, 12 or 24 epochs, 16 images a step; 3 seeds "
        "where the paper has one run",
    ),
    Scale(
        "small",
        "Penn-Fudan pedestrians (96 training, 42 test images) instead of COCO, short side 128; for R50 a ResNet-18 "
        "pretrained on Tiny-ImageNet, for the others 26-layer networks from scratch with trainable BN or GN; FPN "
        "of 64 channels, 4 images a step, 4 times the learning rate, 12 or 24 epochs, 3 seeds",
    ),
    Scale(
        "smoke",
        "2 training and 2 test images of Penn-Fudan at 64 pixels, 14- and 26-layer networks from scratch, FPN of "
        "16 channels, 1 epoch, 1 seed: shows that it runs, nothing else",
    ),
)
SEEDS = {"paper": (0, 1, 2), "small": (0, 1, 2), "smoke": (0,)}
TINY = "weights/resnet18_tinyimagenet200_fp16.safetensors"
SMALL: dict[str, Any] = {
    "short": 128,
    "long": 192,
    "fpn": 64,
    "fc": 128,
    "anchor": 8,
    "proposals": (200, 100),  # kept for training and testing
    "samples": (64, 32),  # an image, first and second stage
    "detections": 20,
}
SMOKE: dict[str, Any] = {**SMALL, "short": 64, "long": 96, "fpn": 16, "fc": 32, "proposals": (40, 20)}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "data": {"set": "coco"},
        "epochs": 12,
        "batch_size": 16,
        "lr": 0.02,
        "warmup_steps": 500,
        "model": {},
        "examples": 6,
    },
    "small": {
        "data": {"set": "penn-fudan", "train": 96},
        "epochs": 12,
        "batch_size": 4,
        "lr": 0.08,
        "warmup_steps": 24,
        "model": SMALL,
        "examples": 4,
    },
    "smoke": {
        "data": {"set": "penn-fudan", "train": 2, "eval": 2},
        "epochs": 1,
        "batch_size": 2,
        "lr": 0.02,
        "warmup_steps": 1,
        "model": SMOKE,
        "examples": 2,
    },
}
_SCRATCH = {"norm": "bn", "trainable": 5}
_R18 = {"backbone": "R18", "pretrained": TINY, "normalize": "half"}
_GN = {"norm": "gn", "head": "4conv1fc"}
# the networks of both tables at each scale, by the paper's names
NETWORKS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "R50": {"backbone": "R50", "pretrained": "torchvision"},
        "R50 (4c1f)": {"backbone": "R50", "pretrained": "torchvision", "head": "4conv1fc"},
        "R101": {"backbone": "R101", "pretrained": "torchvision"},
        "X101-32x4d": {"backbone": "X101-32x4d", "pretrained": "weights/resnext101_32x4d.safetensors"},
        "X101-64x4d": {"backbone": "X101-64x4d", "pretrained": "torchvision"},
        "R101GN": {"backbone": "R101", "pretrained": "weights/resnet101_gn.safetensors", **_GN},
        "R50GN+WS": {
            "backbone": "R50",
            "pretrained": "weights/resnet50_gn_ws.safetensors",
            **_GN,
            "weight_standardization": True,
        },
    },
    "small": {
        "R50": _R18,
        "R50 (4c1f)": {**_R18, "head": "4conv1fc"},
        "R101": {"backbone": "R26", **_SCRATCH},
        "X101-32x4d": {"backbone": "X26-8x4d", **_SCRATCH},
        "X101-64x4d": {"backbone": "X26-16x4d", **_SCRATCH},
        "R101GN": {"backbone": "R26", **_SCRATCH, **_GN},
        "R50GN+WS": {"backbone": "R14", **_SCRATCH, **_GN, "weight_standardization": True},
    },
    "smoke": {
        "R50": {"backbone": "R14", "trainable": 3},
        "R50 (4c1f)": {"backbone": "R14", "trainable": 3, "head": "4conv1fc"},
        "R101": {"backbone": "R14", **_SCRATCH},
        "X101-32x4d": {"backbone": "X26-8x4d", "trainable": 3},
        "X101-64x4d": {"backbone": "X26-16x4d", "trainable": 3},
        "R101GN": {"backbone": "R14", **_SCRATCH, **_GN},
        "R50GN+WS": {"backbone": "R14", **_SCRATCH, **_GN, "weight_standardization": True},
    },
}
LONGER = ("R101GN", "R50GN+WS")  # the text: 2x for the networks with GN


def make(
    recipe: Recipe, names: tuple[str, ...], masks: bool, scale: str, switches: Mapping[str, str]
) -> Study:
    """Return the study of one of the two tables."""
    size = SIZES[scale]
    batch = size["batch_size"] if switches["images"] == "scale" else int(switches["images"])
    cells = []
    for name in names:
        times = 2 if name in LONGER and scale != "smoke" else 1
        epochs = size["epochs"] * times
        settings = {
            "name": recipe.name,
            "data": {**size["data"], "flip": True},
            "model": {**size["model"], **NETWORKS[scale][name], "masks": masks},
            "optimizer": {
                "name": "SGDM",
                "lr": size["lr"],  # for 16 images; in proportion to batch_size
                "weight_decay": 1e-4,
                **({"dampening": 0.9} if switches["momentum"] == "paper" else {}),
            },
            "schedule": {
                "milestones": [8 * times, 11 * times],
                "warmup_steps": size["warmup_steps"],
                "warmup_from": 1 / 3,
            },
            "clip": 35.0 if switches["clip"] == "35" else None,
            "epochs": epochs,
            "batch_size": batch,
            "examples": size["examples"],
        }
        cells.append(Cell(name, settings))
    return Study(
        name=recipe.name,
        title=recipe.title,
        scale=recipe.scale(scale),
        cells=tuple(cells),
        arms=(OFF, ON),
        seeds=SEEDS[scale],
        build=build,
        notes=recipe.said(switches),
        metric="APb" if masks else "AP",
    )


SWITCHES = {
    "clip": Switch(
        ("35", "none"), "the paper's framework clips the gradient at norm 35, before it is centralized"
    ),
    "momentum": Switch(
        ("released", "paper"),
        "released code and PyTorch: m = βm + ĝ; Algorithm 1 prints m = βm + (1 − β)ĝ (dampening β)",
    ),
    "images": Switch(
        ("scale", "2", "4", "8", "16", "32"), "images a step: the scale's own or so many, lr in proportion"
    ),
}
NOTES = (
    "val2017 has 5,000 images, not the 40,000 of the text",
    "torchvision's detectors in place of MMDetection's: the same architectures, other details of losses",
    "BN is frozen, as are the stem and the first stage; judged by the last epoch, as the framework reports",
)
