"""Theorems 4.1 and 4.2 and the identity behind GC checked numerically, with corrections of the printed statements."""

from __future__ import annotations

from gradcent_lab.experiment.run_config import ON
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SCALES = (
    Scale(
        "paper",
        "200 steps, 10,000 of a convolutional network, 1,000 random gradients: a check of the mathematics, not an "
        "experiment",
        seeds=tuple(range(5)),
        is_paper=True,
        sizes={"steps": 200, "gradients": 1000, "network_steps": 10_000},
    ),
    Scale(
        "small",
        "100 steps, 10,000 of a convolutional network, 200 random gradients",
        seeds=(0, 1),
        sizes={"steps": 100, "gradients": 200, "network_steps": 10_000},
    ),
    Scale(
        "smoke",
        "20 steps, 100 of a convolutional network, 20 random gradients",
        sizes={"steps": 20, "gradients": 20, "network_steps": 100},
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell("theorems 4.1 and 4.2", {"name": "theory", **scale.sizes}),)


RECIPE = Recipe(
    "theory",
    "Theorems 4.1 and 4.2, and why GC acts, checked numerically",
    "section 4",
    SCALES,
    cells,
    (ON,),
    Lazy("recipes.builders.theorems:build"),
    notes=(
        "Theorem 4.1 is printed with the wrong sign: wᵀx − wᵀ(x + γ1) = −γ1ᵀw",
        "Theorem 4.2b holds for the spectral norm, but its printed proof uses an identity of the Frobenius norm",
        "the largest value usually shrinks, but need not: it may grow by up to 2 − 2/M",
    ),
    metric="failed checks",
    paired=False,
    tables=Lazy("recipes.presentation.tables:theorem_checks"),
)
