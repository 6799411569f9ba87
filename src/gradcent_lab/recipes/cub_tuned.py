"""Fine-tuning on CUB-200-2011 with tuned arms: Table 7 and Figure 7 in small."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import finegrained, small_resnet
from gradcent_lab.recipes.common import SMOKE
from gradcent_lab.recipes.recipe import Switches

HEAD_RATE = 0.1  # the paper's, for the new FC layer; the grid is for the pretrained layers
SCALES = (
    Scale(
        "mini",
        "ResNet-18 pretrained on Tiny-ImageNet, all 5,994 training and 2,000 test images at 32 pixels, 6 epochs of 93 "
        "steps; the learning rate of the pretrained layers tuned for each arm",
        seeds=(0, 1, 2, 3, 4),
        sizes={"train": None, "eval": 2_000, "epochs": 6, "batch_size": 64},
        tuning=Tuning({"lr": (0.01, 0.03, 0.1)}),
    ),
    Scale(
        "smoke",
        f"the pretrained ResNet-18 at 32 pixels, 16 training and 16 test images, 1 epoch; {SMOKE}",
        sizes={"train": 16, "eval": 16, "epochs": 1, "batch_size": 4},
        tuning=Tuning({"lr": (0.01, 0.03)}, seeds=(10_000,)),
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    sizes = scale.sizes
    settings = {
        "name": "cub-tuned",
        "data": {
            "set": "cub200",
            "size": 32,
            "resize": 36,
            "train": sizes["train"],
            "eval": sizes["eval"],
            **finegrained.IN_MEMORY,
            "square": True,
            "augment": "crop-flip",
        },
        "model": finegrained.SMALL_MODEL,
        "optimizer": {"name": "SGDM", "lr": 0.01, "head_lr": HEAD_RATE, "weight_decay": 1e-4},
        "schedule": {"warmup": 0.2},
        "epochs": sizes["epochs"],
        "batch_size": sizes["batch_size"],
        "eval_batch_size": 250,
    }
    return (Cell("CUB-200-2011", settings),)


RECIPE = small_resnet.tuned_recipe(
    "cub-tuned", "Fine-tuning a pretrained ResNet-18 on CUB-200-2011, tuned", SCALES, cells
)
