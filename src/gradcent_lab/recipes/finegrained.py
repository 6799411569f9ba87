"""Table 7 and Figure 7: fine-tuning a pretrained ResNet-50 on four fine-grained data sets (section 5.5).

100 epochs, SGDM, learning rate divided by 10 after epochs 50 and 80, images resized to 512 and cropped to 448.
"""

from __future__ import annotations

from dataclasses import replace

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import MOMENTUM, SMOKE, TINY_IMAGENET_WEIGHTS, sgdm
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switch, Switches

SETS = {
    "FGVC Aircraft": "aircraft",
    "Stanford Cars": "cars",
    "Stanford Dogs": "dogs",
    "CUB-200-2011": "cub200",
}
SMALL_MODEL = {"name": "resnet18", "pretrained": TINY_IMAGENET_WEIGHTS, "stem_stride": 1}
IN_MEMORY = {"memory": True, "normalize": "half"}
SCALES = (
    Scale(
        "paper",
        "ResNet-50 pretrained on ImageNet, 448 pixels, 100 epochs",
        seeds=tuple(range(10)),
        is_paper=True,
        sizes={
            "data": {"size": 448, "resize": 512},
            "model": {"name": "resnet50", "pretrained": "torchvision"},
            "epochs": 100,
            "batch_size": {"paper": 256, "released": 128},
        },
    ),
    Scale(
        "small",
        "ResNet-18 pretrained on Tiny-ImageNet instead of ResNet-50 on ImageNet, 64 pixels, 20 epochs, "
        "2,000 training and 1,000 test images, batch 64",
        seeds=(0, 1, 2),
        sizes={
            "data": {"size": 64, "resize": 73, "train": 2_000, "eval": 1_000, **IN_MEMORY},
            "model": SMALL_MODEL,
            "epochs": 20,
            "batch_size": {"paper": 64, "released": 32},
        },
    ),
    Scale(
        "mini",
        "ResNet-18 pretrained on Tiny-ImageNet instead of ResNet-50 on ImageNet, 32 pixels, 8 epochs of 31 steps "
        "with the learning rate divided by 10 after epochs 4 and 6, 2,000 training and 1,000 test images, batch 64",
        seeds=(0, 1, 2, 3, 4),
        sizes={
            "data": {"size": 32, "resize": 36, "train": 2_000, "eval": 1_000, **IN_MEMORY},
            "model": SMALL_MODEL,
            "epochs": 8,
            "batch_size": {"paper": 64, "released": 32},
        },
    ),
    Scale(
        "smoke",
        f"the pretrained ResNet-18 at 32 pixels, 16 training and 16 test images, 1 epoch; {SMOKE}",
        sizes={
            "data": {"size": 32, "resize": 36, "train": 16, "eval": 16, **IN_MEMORY},
            "model": SMALL_MODEL,
            "epochs": 1,
            "batch_size": {"paper": 8, "released": 4},
        },
    ),
)
AUGMENT = {"centre": "none", "random": "crop-flip", "released": "centre-crop-flip"}
RATES = {"paper": {"lr": 0.01, "head_lr": 0.1}, "released": {"lr": 0.1}}
SWITCHES = {
    "training": Switch(
        ("paper", "released"),
        "the text: lr 0.1 for the FC layer, 0.01 for the rest, batch 256; the released code: 0.1 for all, batch 128. "
        "The released pipeline needs both training=released and crop=released",
    ),
    "crop": Switch(
        ("centre", "random", "released"),
        "the text resizes to a square of 512 and crops the centre, in training too; random crop and flip is usual; the "
        "released code resizes the short side to 512, flips, crops the centre and drops the last evaluation batch. The "
        "released pipeline needs both training=released and crop=released",
    ),
    "momentum": MOMENTUM,
}


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per data set."""
    sizes, training = scale.sizes, switches["training"]
    released = switches["crop"] == "released"
    augment = AUGMENT[switches["crop"]]
    dropped = {"eval_drop_last": True} if released else {}
    return tuple(
        Cell(
            title,
            {
                "name": "table7",
                "data": {"set": name, **sizes["data"], "square": not released, "augment": augment},
                "model": sizes["model"],
                "optimizer": sgdm(switches, **RATES[training], weight_decay=1e-4),
                "schedule": {"milestones": [sizes["epochs"] // 2, sizes["epochs"] * 4 // 5]},
                "epochs": sizes["epochs"],
                "batch_size": sizes["batch_size"][training],
                **dropped,
            },
        )
        for title, name in SETS.items()
    )


TABLE7 = Recipe(
    "table7",
    "Fine-tuning on four fine-grained data sets",
    "Table 7",
    SCALES,
    cells,
    (OFF, ON),
    Lazy("recipes.builders.classification:build"),
    switches=SWITCHES,
    notes=("the paper gives no weight decay for these sets: 1e-4, as on ImageNet",),
    paper_table=7,
    judged_epoch="best",
    figures=Lazy("recipes.presentation.figures:train_and_test_curves"),
)
FIG7 = replace(
    TABLE7,
    name="fig7",
    title="Accuracy curves of the first 40 epochs on four fine-grained data sets (runs of table7)",
    paper="Figure 7",
    study_name="table7",
)
