"""Table 1: testing accuracies of five networks on CIFAR-100, SGDM with and without GC (section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.study import Cell, Study
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.classification import build
from gradcent_lab.recipes.recipe import Recipe

NETWORKS = ("R18", "R101", "X29", "V11", "D121")


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    return Study(
        name="table1",
        title=RECIPE.title,
        scale=RECIPE.scale(scale),
        cells=tuple(
            Cell(network, cifar.settings("table1", scale, network, "SGDM", switches)) for network in NETWORKS
        ),
        arms=cifar.arms(switches),
        seeds=cifar.SEEDS[scale],
        build=build,
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "table1",
    "Networks on CIFAR-100",
    "Table 1",
    cifar.SCALES,
    make,
    needs=("cifar100",),
    switches=cifar.SWITCHES,
)
