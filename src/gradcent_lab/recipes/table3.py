"""Table 3: test accuracy with different weight decay on CIFAR-100, ResNet-50, SGDM (section 5.3)."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

DECAYS = {"0": 0.0, "1e-4": 1e-4, "2e-4": 2e-4, "5e-4": 5e-4, "1e-3": 1e-3}


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per weight decay."""
    return tuple(_cell(name, decay, scale, switches) for name, decay in DECAYS.items())


def _cell(name: str, decay: float, scale: Scale, switches: Switches) -> Cell:
    source = cifar.in_table2("SGDM", decay=decay)
    study = source.study if source else "table3"
    settings = cifar.settings(study, scale, "R50", "SGDM", switches, weight_decay=decay)
    return Cell(name, settings, source=source)


RECIPE = Recipe(
    "table3",
    "Weight decay on CIFAR-100, ResNet-50, SGDM",
    "Table 3",
    cifar.SCALES,
    cells,
    cifar.arms,
    Lazy("recipes.builders.classification:build"),
    switches=cifar.SWITCHES,
    paper_table=3,
    judged_epoch="best",
)
