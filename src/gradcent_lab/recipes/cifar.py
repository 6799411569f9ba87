"""What the CIFAR-100 recipes share (section 5.3): scales, settings and switches.

200 epochs, batch 128, the learning rate divided by 10 every 60 epochs, 4 pixels of padding, crop and flip.
"""

from __future__ import annotations

from typing import Any

from gradcent_lab.experiment.run_config import OFF, Arm, Numerics
from gradcent_lab.experiment.study import Scale, Source
from gradcent_lab.recipes.common import MOMENTUM, SMOKE, milestones
from gradcent_lab.recipes.recipe import Switch, Switches

# the networks at scale `mini`, chosen so that a run takes 1 to 6 minutes on one core
MINI: dict[str, dict[str, Any]] = {
    "R18": {"name": "R8", "width": 16},
    "R50": {"name": "R14", "width": 8},
    "R101": {"name": "R26", "width": 8},
    "X29": {"name": "X29", "width": 16},
    "V11": {"name": "V11", "width": 16},
    "D121": {"name": "D63", "growth": 4},
}
SCALES = (
    Scale(
        "paper",
        "all of CIFAR-100, 200 epochs, networks of full width",
        seeds=tuple(range(10)),
        is_paper=True,
        sizes={"train": None, "eval": None, "epochs": 200, "batch_size": 128, "divide_width": 1},
    ),
    Scale(
        "small",
        "10,000 training images (100 per class) and all test images of CIFAR-100, 20 epochs, networks of a "
        "quarter of the width",
        seeds=(0, 1, 2),
        sizes={"train": 10_000, "eval": None, "epochs": 20, "batch_size": 128, "divide_width": 4},
    ),
    Scale(
        "mini",
        "10,000 training and 5,000 test images of CIFAR-100, batch 32, 6 epochs of 312 steps with the learning rate "
        "divided by 10 after epochs 4 and 5; narrower networks, and shallower ones in place of R18 (8 layers), "
        "R50 (14), R101 (26) and D121 (63)",
        seeds=(0, 1, 2, 3, 4),
        # batch 32, so that weight decay has the steps to change the weights: Table 3 asks what it does
        sizes={
            "train": 10_000,
            "eval": 5_000,
            "epochs": 6,
            "batch_size": 32,
            "drops": [4, 5],
            "models": MINI,
        },
        numerics=Numerics(channels_last=True),
    ),
    Scale(
        "smoke",
        f"16 training and 16 test images, 1 epoch, networks of a sixteenth of the width; {SMOKE}",
        sizes={"train": 16, "eval": 16, "epochs": 1, "batch_size": 8, "divide_width": 16},
    ),
)
WIDTHS = {"X29": ("width", 256), "D121": ("growth", 32)}  # the others have a width of 64
LEARNING_RATE = {"SGDM": 0.1, "SGDW": 0.1, "Adagrad": 0.01, "Adam": 0.001, "AdamW": 0.001}
DECAY = {"SGDM": 5e-4, "Adam": 5e-4, "Adagrad": 5e-4, "SGDW": 1e-3, "AdamW": 1e-3}
SWITCHES: dict[str, Switch] = {
    "layers": Switch(("conv", "all"), "the text centralizes convolutions; the released script conv + FC"),
    "momentum": MOMENTUM,
    "at": Switch(
        ("gradient", "update"),
        "the paper centralizes the gradient; the authors' later code can centralize the update",
    ),
}


def settings(
    recipe: str,
    scale: Scale,
    network: str,
    optimizer: str,
    switches: Switches,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
) -> dict[str, Any]:
    """Return the settings of one cell."""
    sizes = scale.sizes
    option, full_width = WIDTHS.get(network, ("width", 64))
    if "models" in sizes:
        model: dict[str, Any] = sizes["models"][network]
    else:
        model = {"name": network, option: full_width // sizes["divide_width"]}
    if scale.name == "smoke" and network in ("R50", "R101"):
        model = {"name": "R14", "width": 4}  # the same blocks, one per stage
    options: dict[str, Any] = {
        "name": optimizer,
        "lr": LEARNING_RATE[optimizer] if lr is None else lr,
        "weight_decay": DECAY[optimizer] if weight_decay is None else weight_decay,
    }
    if optimizer in ("SGDM", "SGDW") and switches["momentum"] == "paper":
        options["dampening"] = 0.9
    return {
        "name": recipe,
        "data": {
            "set": "cifar100",
            "train": sizes["train"],
            "eval": sizes["eval"],
            "augment": "pad-crop-flip",
        },
        "model": model,
        "optimizer": options,
        "schedule": {"milestones": sizes.get("drops", milestones(sizes["epochs"], 0.3))},
        "epochs": sizes["epochs"],
        "batch_size": sizes["batch_size"],
        "eval_batch_size": 250,
    }


def in_table2(optimizer: str, *, lr: float | None = None, decay: float) -> Source | None:
    """Return the cell of Table 2 that has this learning rate (its default if None) and decay; None if it has none."""
    same_rate = lr is None or lr == LEARNING_RATE[optimizer]
    if not same_rate or decay != DECAY[optimizer]:
        return None
    return Source("table2", optimizer, {"adamw": "adamw"})


def arms(switches: Switches, **options: Any) -> tuple[Arm, Arm]:
    """Return the arms off and on for these switches; `options` go to `gradcent.attach`."""
    attach: dict[str, Any] = {"layers": switches["layers"], **options}
    if switches["at"] != "gradient":
        attach["at"] = switches["at"]
    return OFF, Arm("on", attach)
