"""Figure 2: the geometry of GC: the gradient is projected onto the hyperplane eᵀ(w − w⁰) = 0 (section 4.1)."""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SCALES = tuple(
    Scale(name, "a quadratic loss in three dimensions, the same at every scale", is_paper=True)
    for name in ("paper", "small", "smoke")
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("quadratic", {"name": "fig2", "lr": 0.15, "steps": 40}),)


RECIPE = Recipe(
    "fig2",
    "The projection of the gradient",
    "Figure 2",
    SCALES,
    cells,
    (OFF, ON),
    Lazy("recipes.builders.projection:build"),
    metric="distance from the hyperplane",
    paired=False,
    figures=Lazy("recipes.presentation.figures:projection"),
)
