"""What the CIFAR-100 recipes share (section 5.3): training settings, scales and switches.

200 epochs, batch 128, the learning rate divided by 10 every 60 epochs, 4 pixels of padding, crop and flip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.experiment.study import Scale
from gradcent_lab.recipes.classification import milestones
from gradcent_lab.recipes.recipe import Switch

SCALES = (
    Scale("paper", "the paper's: all of CIFAR-100, 200 epochs, networks of full width, 10 seeds"),
    Scale(
        "small",
        "10,000 training images (100 a class) and all test images of CIFAR-100, 20 epochs, networks a "
        "quarter as wide, 3 seeds",
    ),
    Scale(
        "smoke",
        "16 training and 16 test images, 1 epoch, networks a sixteenth as wide, 1 seed: shows that it runs, "
        "nothing else",
    ),
)
SEEDS = {"paper": tuple(range(10)), "small": (0, 1, 2), "smoke": (0,)}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {"train": None, "eval": None, "epochs": 200, "batch_size": 128, "narrow": 1},
    "small": {"train": 10_000, "eval": None, "epochs": 20, "batch_size": 128, "narrow": 4},
    "smoke": {"train": 16, "eval": 16, "epochs": 1, "batch_size": 8, "narrow": 16},
}
WIDTHS = {"X29": ("width", 256), "D121": ("growth", 32)}  # the others have a width of 64
LEARNING_RATE = {"SGDM": 0.1, "SGDW": 0.1, "Adagrad": 0.01, "Adam": 0.001, "AdamW": 0.001}
DECAY = {"SGDM": 5e-4, "Adam": 5e-4, "Adagrad": 5e-4, "SGDW": 1e-3, "AdamW": 1e-3}

SWITCHES: dict[str, Switch] = {
    "layers": Switch(("conv", "all"), "the text centralizes convolutions; the released script conv + FC"),
    "momentum": Switch(
        ("released", "paper"),
        "released code and PyTorch: m = βm + ĝ; Algorithm 1 prints m = βm + (1 − β)ĝ (dampening β)",
    ),
    "at": Switch(
        ("gradient", "update"),
        "the paper centralizes the gradient; the authors' later code offers the update",
    ),
}


def settings(
    recipe: str,
    scale: str,
    network: str,
    optimizer: str,
    switches: Mapping[str, str],
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
) -> dict[str, Any]:
    """Return the settings of one cell."""
    size = SIZES[scale]
    option, full = WIDTHS.get(network, ("width", 64))
    model: dict[str, Any] = {"name": network, option: full // size["narrow"]}
    if scale == "smoke" and network in ("R50", "R101"):
        model = {"name": "R14", "width": 4}  # the same blocks, one a stage
    chosen: dict[str, Any] = {
        "name": optimizer,
        "lr": LEARNING_RATE[optimizer] if lr is None else lr,
        "weight_decay": DECAY[optimizer] if weight_decay is None else weight_decay,
    }
    if optimizer in ("SGDM", "SGDW") and switches["momentum"] == "paper":
        chosen["dampening"] = 0.9
    return {
        "name": recipe,
        "data": {
            "set": "cifar100",
            "train": size["train"],
            "eval": size["eval"],
            "augment": "pad-crop-flip",
        },
        "model": model,
        "optimizer": chosen,
        "schedule": {"milestones": milestones(size["epochs"], 0.3)},
        "epochs": size["epochs"],
        "batch_size": size["batch_size"],
        "eval_batch_size": 250,
    }


def arms(switches: Mapping[str, str], **more: Any) -> tuple[Arm, Arm]:
    """Return off and on as the switches say; `more` goes to `gradcent.attach`."""
    attach: dict[str, Any] = {"layers": switches["layers"], **more}
    if switches["at"] != "gradient":
        attach["at"] = switches["at"]
    return OFF, Arm("on", attach)
