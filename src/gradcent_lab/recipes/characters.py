"""A character transformer with AdamW: behind LayerNorm the inputs of most matrices have no mean for GC to remove.

The text is Python's own manual, each paragraph once. Both arms have their own learning rate, tuned on held-out
training text.
"""

from __future__ import annotations

from gradcent_lab.data.python_manual import manual_digest
from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes import small_resnet
from gradcent_lab.recipes.common import SMOKE
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

EVALUATED = 600  # windows
SCALES = (
    Scale(
        "mini",
        "3 pre-LN layers of width 96 on 5,120 windows of 64 characters of Python's manual, 600 windows for testing, 10 "
        "epochs of 160 steps; learning rates tuned for each arm",
        seeds=tuple(range(6)),
        sizes={"train": 5_120, "length": 64, "width": 96, "layers": 3, "epochs": 10, "batch_size": 32},
        tuning=Tuning({"lr": (1e-3, 3e-3, 1e-2)}, beyond={"lr": (3e-2,)}),
    ),
    Scale(
        "smoke",
        f"one layer of width 16 on 128 windows of 16 characters, 1 epoch; {SMOKE}",
        sizes={"train": 128, "length": 16, "width": 16, "layers": 1, "epochs": 1, "batch_size": 16},
        tuning=Tuning({"lr": (1e-3, 3e-3)}, seeds=(10_000,)),
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    sizes = scale.sizes
    settings = {
        "name": "characters",
        "data": {
            "text": manual_digest(),
            "train": sizes["train"],
            "eval": EVALUATED,
            "length": sizes["length"],
        },
        "model": {"width": sizes["width"], "layers": sizes["layers"], "pre_norm": True},
        "optimizer": {"name": "AdamW", "lr": 3e-3, "weight_decay": 0.01},
        "schedule": {"warmup": 0.1},
        "epochs": sizes["epochs"],
        "batch_size": sizes["batch_size"],
    }
    return (Cell("transformer", settings),)


RECIPE = Recipe(
    "characters",
    "A character transformer with AdamW, tuned: where GC may do nothing",
    None,
    SCALES,
    cells,
    small_resnet.OFF_AND_ALL,
    Lazy("recipes.builders.characters:build"),
    notes=(
        small_resnet.NOTES[0],
        "the text is the manual of the Python that runs it; settings hold its digest",
    ),
    metric="accuracy, %",
)
