"""What the recipes of the evidence programme share: small residual networks on CIFAR-100, tuned arms, controls.

`results/PROTOCOL.md` fixes their grids, seeds, metric and stopping rule before the runs. None is in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gradcent_lab.experiment.run_config import OFF, Arm, Numerics
from gradcent_lab.experiment.study import Cell, Scale, Tuning
from gradcent_lab.recipes.common import SMOKE
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

ALL = Arm("all", {"layers": "all"})
HIDDEN = Arm("hidden", {"layers": "hidden"})
INPUT = Arm("input", {"layers": "input"})
OFF_AND_ALL = (OFF, ALL)
BY_ROLE = (OFF, ALL, HIDDEN, INPUT)
FOLLOW = {"hidden": "all", "input": "all"}  # they show where the effect of the arm `all` comes from
NUMERICS = Numerics(channels_last=True)
SMOKE_SIZES = {"train": 200, "eval": 100, "width": 8, "epochs": 1, "batch_size": 50}
NOTES = (
    "the grid, the seeds, the metric and the stopping rule were fixed before the runs: results/PROTOCOL.md",
    "arms hidden and input take the values tuned for arm all: they show where its effect comes from",
)


def smoke(lr: tuple[float, ...] = ()) -> Scale:
    """Return the scale `smoke`, with two learning rates and one tuning seed if arms are tuned."""
    tuning = Tuning({"lr": lr}, seeds=(10_000,), follow=FOLLOW) if lr else None
    return Scale(
        "smoke",
        f"200 training and 100 test images of CIFAR-100, width 8, 1 epoch; {SMOKE}",
        sizes=SMOKE_SIZES,
        tuning=tuning,
    )


def settings(recipe: str, model: Mapping[str, Any], sizes: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """Return the settings of a cell: SGDM, linear warm-up over a fifth of the run, then a cosine to 0."""
    return {
        "name": recipe,
        "data": {
            "set": "cifar100",
            "train": sizes["train"],
            "eval": sizes["eval"],
            "augment": "pad-crop-flip",
        },
        "model": {**model, "width": sizes["width"]},
        "optimizer": {"name": "SGDM", "lr": lr, "weight_decay": 5e-4},
        "schedule": {"warmup": 0.2},
        "epochs": sizes["epochs"],
        "batch_size": sizes["batch_size"],
        "eval_batch_size": 500,
    }


def tuned_recipe(
    name: str,
    title: str,
    scales: tuple[Scale, ...],
    cells: Callable[[Scale, Switches], tuple[Cell, ...]],
    arms: tuple[Arm, ...] = OFF_AND_ALL,
) -> Recipe:
    """Return a recipe that compares arms, each tuned one at its own learning rate."""
    build = Lazy("recipes.builders.classification:build")
    notes = NOTES if arms == BY_ROLE else NOTES[:1]
    return Recipe(name, title, None, scales, cells, arms, build, notes=notes, numerics=NUMERICS)
