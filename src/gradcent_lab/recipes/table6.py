"""Table 6: the statistics of the fine-grained data sets, counted on disk."""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.finegrained import SETS
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SCALES = tuple(
    Scale(name, "all images on disk, the same at every scale", is_paper=True)
    for name in ("paper", "small", "smoke")
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per data set."""
    return tuple(Cell(title, {"name": "table6", "set": name}) for title, name in SETS.items())


RECIPE = Recipe(
    "table6",
    "Statistics of the fine-grained data sets",
    "Table 6",
    SCALES,
    cells,
    (OFF,),
    Lazy("recipes.builders.image_counts:build"),
    metric="images",
    paper_table=6,
    paired=False,
    tables=Lazy("recipes.presentation.tables:image_counts"),
)
