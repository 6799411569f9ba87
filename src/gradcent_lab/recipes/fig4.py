"""Figure 4: norm and largest value of the gradient over the iterations, first convolution and FC (section 4.2).

ResNet-50 trained on CIFAR-100 with and without GC. Every iteration is recorded before and after centralizing:
the paper draws the first without GC and the second with it.
"""

from __future__ import annotations

from dataclasses import replace

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes import cifar
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SCALES = tuple(replace(scale, seeds=(0,)) for scale in cifar.SCALES)  # the figure draws one seed


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("R50", cifar.settings("fig4", scale, "R50", "SGDM", switches)),)


RECIPE = Recipe(
    "fig4",
    "Gradient norm and largest value over the iterations",
    "Figure 4",
    SCALES,
    cells,
    (OFF, ON),
    Lazy("recipes.builders.gradient_history:build"),
    switches={"momentum": cifar.SWITCHES["momentum"]},
    notes=(
        "GC on convolutions and FC, because the figure shows both",
        "one seed, because the figure draws one",
    ),
    paired=False,
    figures=Lazy("recipes.presentation.figures:gradient_history"),
    tables=Lazy("recipes.presentation.summaries:gradient_history"),
)
