"""The paper's experiments, one file each, and one of our own; imported only when asked for."""

from __future__ import annotations

import difflib
import importlib

from gradcent_lab.errors import UserError
from gradcent_lab.recipes.recipe import Recipe

# name -> module and variable
RECIPES: dict[str, tuple[str, str]] = {
    "table1": ("table1", "RECIPE"),
    "table2": ("table2", "RECIPE"),
    "table3": ("table3", "RECIPE"),
    "table4": ("table4", "RECIPE"),
    "table5": ("imagenet", "TABLE5"),
    "table6": ("table6", "RECIPE"),
    "table7": ("finegrained", "TABLE7"),
    "table8": ("table8", "RECIPE"),
    "table9": ("table9", "RECIPE"),
    "fig2": ("fig2", "RECIPE"),
    "fig3": ("fig3", "RECIPE"),
    "fig4": ("fig4", "RECIPE"),
    "fig5": ("fig5", "RECIPE"),
    "fig6": ("imagenet", "FIG6"),
    "fig7": ("finegrained", "FIG7"),
    "theory": ("theory", "RECIPE"),
    "overhead": ("overhead", "RECIPE"),
    "cifar100-small": ("cifar100_small", "RECIPE"),
    "unet": ("unet", "RECIPE"),
}
WAITING: dict[str, str] = {
    "person-reid": "the authors' extra on person re-identification: not in the paper, not done yet",
}


def get(name: str) -> Recipe:
    """Return a recipe by name."""
    if name in WAITING:
        raise UserError(f"{name} cannot be run yet ({WAITING[name]})")
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, 1)
        hint = f"did you mean {near[0]}?" if near else "`gradcent list` shows them"
        raise UserError(f"there is no recipe {name!r}: {hint}")
    module, variable = RECIPES[name]
    recipe: Recipe = getattr(importlib.import_module(f"gradcent_lab.recipes.{module}"), variable)
    return recipe
