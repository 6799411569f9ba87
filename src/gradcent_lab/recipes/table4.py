"""Table 4: testing accuracies with different learning rates on CIFAR-100, ResNet-50, SGDM and Adam."""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.study import Cell, Study
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.classification import build
from gradcent_lab.recipes.recipe import Recipe

RATES = (
    ("SGDM", "0.05"),
    ("SGDM", "0.1"),
    ("SGDM", "0.2"),
    ("Adam", "0.0005"),
    ("Adam", "0.001"),
    ("Adam", "0.0015"),
)


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    return Study(
        name="table4",
        title=RECIPE.title,
        scale=RECIPE.scale(scale),
        cells=tuple(
            Cell(
                f"{optimizer} {rate}",
                cifar.settings(
                    "table4", scale, "R50", optimizer, switches, lr=float(rate), weight_decay=5e-4
                ),
            )
            for optimizer, rate in RATES
        ),
        arms=cifar.arms(switches),
        seeds=cifar.SEEDS[scale],
        build=build,
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "table4",
    "Learning rates on CIFAR-100, ResNet-50, SGDM and Adam",
    "Table 4",
    cifar.SCALES,
    make,
    needs=("cifar100",),
    switches=cifar.SWITCHES,
)
