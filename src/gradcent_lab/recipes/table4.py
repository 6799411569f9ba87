"""Table 4: test accuracy with different learning rates on CIFAR-100, ResNet-50, SGDM and Adam."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

RATES = {"SGDM": ("0.05", "0.1", "0.2"), "Adam": ("0.0005", "0.001", "0.0015")}


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per optimizer and learning rate."""
    return tuple(
        Cell(
            f"{optimizer} {rate}",
            cifar.settings("table4", scale, "R50", optimizer, switches, lr=float(rate), weight_decay=5e-4),
        )
        for optimizer, rates in RATES.items()
        for rate in rates
    )


RECIPE = Recipe(
    "table4",
    "Learning rates on CIFAR-100, ResNet-50, SGDM and Adam",
    "Table 4",
    cifar.SCALES,
    cells,
    cifar.arms,
    Lazy("recipes.builders.classification:build"),
    switches=cifar.SWITCHES,
    paper_table=4,
    judged_epoch="best",
)
