"""Table 7 and figure 7: fine-tuning a pretrained ResNet-50 on four fine-grained sets (section 5.5).

100 epochs, SGDM, learning rate divided by 10 after epochs 50 and 80, images resized to 512 and cut to 448.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale, Study
from gradcent_lab.recipes.classification import build
from gradcent_lab.recipes.recipe import Recipe, Switch

SETS = {
    "FGVC Aircraft": "aircraft",
    "Stanford Cars": "cars",
    "Stanford Dogs": "dogs",
    "CUB-200-2011": "cub200",
}
TINY = "weights/resnet18_tinyimagenet200_fp16.safetensors"
SCALES = (
    Scale("paper", "the paper's: ResNet-50 pretrained on ImageNet, 448 pixels, 100 epochs, 10 seeds"),
    Scale(
        "small",
        "ResNet-18 pretrained on Tiny-ImageNet instead of ResNet-50 on ImageNet, 64 pixels, 20 epochs, "
        "2,000 training and 1,000 test images, batch 64, 3 seeds",
    ),
    Scale(
        "smoke",
        "the pretrained ResNet-18 at 32 pixels, 16 training and 16 test images, 1 epoch, 1 seed: shows that it "
        "runs, nothing else",
    ),
)
SEEDS = {"paper": tuple(range(10)), "small": (0, 1, 2), "smoke": (0,)}
SMALL_MODEL = {"name": "resnet18", "pretrained": TINY, "stem_stride": 1}
SIZES: dict[str, dict[str, Any]] = {
    "paper": {
        "data": {"size": 448, "resize": 512},
        "model": {"name": "resnet50", "pretrained": "torchvision"},
        "epochs": 100,
        "batch_size": {"paper": 256, "released": 128},
    },
    "small": {
        "data": {
            "size": 64,
            "resize": 73,
            "train": 2_000,
            "eval": 1_000,
            "memory": True,
            "normalize": "half",
        },
        "model": SMALL_MODEL,
        "epochs": 20,
        "batch_size": {"paper": 64, "released": 32},
    },
    "smoke": {
        "data": {"size": 32, "resize": 36, "train": 16, "eval": 16, "memory": True, "normalize": "half"},
        "model": SMALL_MODEL,
        "epochs": 1,
        "batch_size": {"paper": 8, "released": 4},
    },
}
RATES = {"paper": {"lr": 0.01, "head_lr": 0.1}, "released": {"lr": 0.1}}


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study of table 7."""
    size, side = SIZES[scale], switches["training"]
    augment = "crop-flip" if switches["crop"] == "random" else "none"
    cells = []
    for title, name in SETS.items():
        settings = {
            "name": "table7",
            "data": {"set": name, **size["data"], "square": True, "augment": augment},
            "model": size["model"],
            "optimizer": {
                "name": "SGDM",
                **RATES[side],
                "weight_decay": 1e-4,
                **({"dampening": 0.9} if switches["momentum"] == "paper" else {}),
            },
            "schedule": {"milestones": [size["epochs"] // 2, size["epochs"] * 4 // 5]},
            "epochs": size["epochs"],
            "batch_size": size["batch_size"][side],
        }
        cells.append(Cell(title, settings))
    return Study(
        name="table7",
        title=TABLE7.title,
        scale=TABLE7.scale(scale),
        cells=tuple(cells),
        arms=(OFF, ON),
        seeds=SEEDS[scale],
        build=build,
        notes=TABLE7.said(switches),
    )


SWITCHES = {
    "training": Switch(
        ("paper", "released"),
        "the text: lr 0.1 for the FC layer, 0.01 for the rest, batch 256; the released code: 0.1 for all, batch 128",
    ),
    "crop": Switch(
        ("centre", "random"), "the text cuts the middle for training too; random crop and flip is usual"
    ),
    "momentum": Switch(
        ("released", "paper"),
        "released code and PyTorch: m = βm + ĝ; Algorithm 1 prints m = βm + (1 − β)ĝ (dampening β)",
    ),
}
TABLE7 = Recipe(
    "table7",
    "Fine-tuning on four fine-grained sets",
    "Table 7",
    SCALES,
    make,
    needs=tuple(SETS.values()),
    switches=SWITCHES,
    notes=("the paper gives no weight decay for these sets: 1e-4, as on ImageNet",),
)
FIG7 = Recipe(
    "fig7",
    "Accuracy curves of the first 40 epochs on four fine-grained sets (runs of table7)",
    "Figure 7",
    SCALES,
    make,
    needs=TABLE7.needs,
    switches=SWITCHES,
    notes=TABLE7.notes,
)
