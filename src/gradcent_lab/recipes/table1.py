"""Table 1: test accuracy of five networks on CIFAR-100, SGDM with and without GC (section 5.3)."""

from __future__ import annotations

from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

NETWORKS = ("R18", "R101", "X29", "V11", "D121")


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per network."""
    return tuple(
        Cell(network, cifar.settings("table1", scale, network, "SGDM", switches)) for network in NETWORKS
    )


RECIPE = Recipe(
    "table1",
    "Networks on CIFAR-100",
    "Table 1",
    cifar.SCALES,
    cells,
    cifar.arms,
    Lazy("recipes.builders.classification:build"),
    switches=cifar.SWITCHES,
    paper_table=1,
    judged_epoch="best",
)
