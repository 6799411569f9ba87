"""Table 4: test accuracy with different learning rates on CIFAR-100, ResNet-50, SGDM and Adam."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

DECAY = 5e-4
RATES = {"SGDM": ("0.05", "0.1", "0.2"), "Adam": ("0.0005", "0.001", "0.0015")}


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per optimizer and learning rate."""
    return tuple(
        _cell(optimizer, rate, scale, switches) for optimizer, rates in RATES.items() for rate in rates
    )


def _cell(optimizer: str, rate: str, scale: Scale, switches: Switches) -> Cell:
    source = cifar.in_table2(optimizer, lr=float(rate), decay=DECAY)
    study = source.study if source else "table4"
    settings = cifar.settings(study, scale, "R50", optimizer, switches, lr=float(rate), weight_decay=DECAY)
    return Cell(f"{optimizer} {rate}", settings, source=source)


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
