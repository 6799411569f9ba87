"""Add recipe.json to finished runs that an older version wrote: the scale and the switches they were made with.

python tools/record_recipes.py results/studies

Older versions stored the settings of a run, but not the switches that led to them. Every combination of switches
is turned into a study, and a run belongs to the first combination that contains its id, defaults first.
Seal runs without checksums first (tools/seal_records.py).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gradcent_lab import recipes
from gradcent_lab.experiment.run_config import Numerics, RecipeInfo
from gradcent_lab.experiment.study import tasks_of
from gradcent_lab.recipes.recipe import Recipe
from gradcent_lab.store import records
from gradcent_lab.store.atomic_files import read_json, write_json
from gradcent_lab.store.integrity import seal


def record_folder(root: Path) -> int:
    """Write recipe.json for every finished run below `root` that has a recipe and no recipe.json; return how many."""
    written = 0
    for run in records.load(root):
        info = find_info(run) if run.recipe is None else None
        if info is None:
            continue
        write_json(run.path / "recipe.json", info.as_dict())
        result = read_json(run.path / "result.json")
        write_json(run.path / "result.json", seal(run.path, result, {}))
        assert records.load_run(run.path).recipe == info
        written += 1
    return written


def find_info(run: records.RunRecord) -> RecipeInfo | None:
    """Return the scale and switches of a run; None if no recipe at its scale makes this run."""
    recipe = recipes.find(run.study)
    if recipe is None or all(scale.name != run.scale for scale in recipe.scales):
        return None
    numerics = Numerics(**run.config["numerics"])
    for switches in combinations(recipe):
        study = replace(recipe.study(run.scale, switches), seeds=(run.seed,), numerics=numerics)
        for task in tasks_of(study, None):
            if task.config.run_id == run.path.name:
                return task.config.recipe
    return None


def combinations(recipe: Recipe) -> Iterator[dict[str, str]]:
    """Yield every choice of switches; the first is the default."""
    choices = (switch.choices for switch in recipe.switches.values())
    for chosen in itertools.product(*choices):
        yield dict(zip(recipe.switches, chosen, strict=True))


if __name__ == "__main__":
    print(f"recorded the recipe of {record_folder(Path(sys.argv[1]))} runs")
