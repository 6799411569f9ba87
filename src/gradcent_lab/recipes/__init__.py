"""The recipes: the paper's tables and figures, and experiments that are not in the paper.

A recipe module describes; what trains, draws and tabulates is in `builders` and `presentation` and is imported
when it is called.
"""

from __future__ import annotations

import difflib
import importlib

from gradcent_lab.errors import UserError
from gradcent_lab.recipes.recipe import Recipe

# name → module and variable, in the order of lists and reports
RECIPES: dict[str, tuple[str, str]] = {
    "table1": ("table1", "RECIPE"),
    "table2": ("table2", "RECIPE"),
    "table3": ("table3", "RECIPE"),
    "table4": ("table4", "RECIPE"),
    "table5": ("imagenet", "TABLE5"),
    "table6": ("table6", "RECIPE"),
    "table7": ("finegrained", "TABLE7"),
    "table8": ("coco", "TABLE8"),
    "table9": ("coco", "TABLE9"),
    "fig2": ("fig2", "RECIPE"),
    "fig3": ("fig3", "RECIPE"),
    "fig4": ("fig4", "RECIPE"),
    "fig5": ("fig5", "RECIPE"),
    "fig6": ("imagenet", "FIG6"),
    "fig7": ("finegrained", "FIG7"),
    "theory": ("theory", "RECIPE"),
    "overhead": ("overhead", "RECIPE"),
    "cifar100-small": ("cifar100_small", "RECIPE"),
    "cifar100-tuned": ("cifar100_tuned", "RECIPE"),
    "few-images": ("few_images", "RECIPE"),
    "norms": ("norms", "RECIPE"),
    "controls": ("controls", "RECIPE"),
    "optimizers-tuned": ("optimizers_tuned", "RECIPE"),
    "cub-tuned": ("cub_tuned", "RECIPE"),
    "characters": ("characters", "RECIPE"),
    "unet": ("unet", "RECIPE"),
    "forecast": ("forecast", "RECIPE"),
}


def find(name: str) -> Recipe | None:
    """Return a recipe by name, or None if there is none (a user's own study)."""
    if name not in RECIPES:
        return None
    module, variable = RECIPES[name]
    recipe: Recipe = getattr(importlib.import_module(f"gradcent_lab.recipes.{module}"), variable)
    return recipe


def get(name: str) -> Recipe:
    """Return a recipe by name; an unknown name is an error that suggests one."""
    recipe = find(name)
    if recipe is None:
        close = difflib.get_close_matches(name, RECIPES, 1)
        hint = f"did you mean {close[0]}?" if close else "`gradcent list` shows them"
        raise UserError(f"there is no recipe {name!r}: {hint}")
    return recipe


def all_recipes() -> dict[str, Recipe]:
    """Return every recipe by name, in the order of lists and reports."""
    return {name: get(name) for name in RECIPES}
