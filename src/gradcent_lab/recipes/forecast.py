"""The calibration of `gradcent forecast`: does the share removed in the first steps predict the effect of GC?

Each cell is one small task with three arms (without GC, GC in all layers, GC in the hidden layers), each tuned over
the same learning rates. The recipe is not in the paper.
"""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.forecasting.calibration.tasks import all_tasks
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

SMOKE_TASKS = ("mlp relu, digits, SGD", "mlp tanh, digits, SGD", "mlp relu, brightness, SGD")
SCALES = (
    Scale(
        "full",
        "68 tasks, 3 to 8 learning rates with 2 tuning seeds, then 8 fresh seeds; about 25 minutes on one core",
    ),
    Scale("smoke", "3 of the 68 tasks, with the same seeds", sizes={"tasks": SMOKE_TASKS}),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return one cell per task."""
    chosen = scale.sizes.get("tasks")
    names = [task.name for task in all_tasks() if chosen is None or task.name in chosen]
    return tuple(Cell(name, {"name": "forecast", "task": name}) for name in names)


RECIPE = Recipe(
    "forecast",
    "What the first steps without GC say about its effect",
    None,
    SCALES,
    cells,
    (OFF,),
    Lazy("recipes.builders.calibration:build"),
    notes=(
        "the stored runs of the first tasks say 78 tasks: ten tasks of the larger networks were then removed, and the "
        "others shortened, to save time; none of them had been run",
    ),
    metric="change of the training loss with GC, %",
    paired=False,
    figures=Lazy("recipes.presentation.calibration:figures"),
    tables=Lazy("recipes.presentation.calibration:tables"),
)
