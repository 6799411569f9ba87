"""Table 3: testing accuracies with different weight decay on CIFAR-100, ResNet-50, SGDM (section 5.3)."""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.study import Cell, Study
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.classification import build
from gradcent_lab.recipes.recipe import Recipe

DECAYS = {"0": 0.0, "1e-4": 1e-4, "2e-4": 2e-4, "5e-4": 5e-4, "1e-3": 1e-3}


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    return Study(
        name="table3",
        title=RECIPE.title,
        scale=RECIPE.scale(scale),
        cells=tuple(
            Cell(name, cifar.settings("table3", scale, "R50", "SGDM", switches, weight_decay=decay))
            for name, decay in DECAYS.items()
        ),
        arms=cifar.arms(switches),
        seeds=cifar.SEEDS[scale],
        build=build,
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "table3",
    "Weight decay on CIFAR-100, ResNet-50, SGDM",
    "Table 3",
    cifar.SCALES,
    make,
    needs=("cifar100",),
    switches=cifar.SWITCHES,
)
