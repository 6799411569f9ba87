"""Overhead: seconds per epoch with and without GC (section 3.4: 0.6 of 71 s, 0.85 %, for ResNet-50 on CIFAR-100)."""

from __future__ import annotations

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.study import Cell, Scale
from gradcent_lab.recipes.common import SMOKE
from gradcent_lab.recipes.recipe import Lazy, Recipe, Switches

# The networks of a run beside the reference without GC: the prefix of their times, and `kernel` of `attach`.
# "foreach" centralizes by torch's list operations and leaves the step to torch's fused kernel, so that its difference
# to the reference is what GC adds; "auto" takes gradcent's own steps, whose speed differs from that of torch's kernel.
KERNELS = {"": "foreach", "default_": "auto"}

SCALES = (
    Scale(
        "paper",
        "ResNet-50 for CIFAR-100, batch 128, 200 steps",
        seeds=tuple(range(5)),
        is_paper=True,
        sizes={"model": {"name": "R50"}, "batch_size": 128, "steps": 200},
    ),
    Scale(
        "small",
        "ResNet-18 of width 32, batch 32, 60 steps",
        seeds=tuple(range(5)),
        sizes={"model": {"name": "R18", "width": 32}, "batch_size": 32, "steps": 60},
    ),
    Scale(
        "smoke",
        f"ResNet-8 of width 8, batch 8, 5 steps; {SMOKE}",
        sizes={"model": {"name": "R8", "width": 8}, "batch_size": 8, "steps": 5},
    ),
)


def cells(scale: Scale, switches: Switches) -> tuple[Cell, ...]:
    """Return the only cell."""
    return (Cell(scale.sizes["model"]["name"], {"name": "overhead", **scale.sizes, "kernels": KERNELS}),)


RECIPE = Recipe(
    "overhead",
    "Seconds per epoch with and without GC",
    "section 3.4",
    SCALES,
    cells,
    (OFF, ON),
    Lazy("recipes.builders.overhead:build"),
    notes=(
        "the baseline is torch's fused SGD; the arm with GC centralizes by torch's list operations and steps by the "
        "same fused kernel, so that kernel speed is not mixed in",
        "a third network of the runs with GC steps by gradcent's own kernels",
    ),
    metric="seconds per epoch",
    tables=Lazy("recipes.presentation.tables:overhead"),
)
