"""Table 6: the statistics of the fine-grained sets, counted on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab.data.datasets import place
from gradcent_lab.data.folder_formats import samples
from gradcent_lab.experiment.run_config import OFF
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import SAME, Cell, Scale, Study
from gradcent_lab.recipes.finegrained import SETS
from gradcent_lab.recipes.recipe import Recipe

SCALES = tuple(Scale(name, f"all images that are there, {SAME}") for name in ("paper", "small", "smoke"))


def measure(settings: Mapping[str, Any], data: Path | None) -> tuple[float, list[dict[str, Any]]]:
    """Return the number of images and the counts of the table."""
    found, classes = samples(settings["set"], place(settings["set"], data))
    counts = {"categories": classes, "training": len(found["train"]), "testing": len(found["test"])}
    return float(counts["training"] + counts["testing"]), [counts]


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement("table6", lambda seed, arm: measure(settings, data), "images", True, settings)


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    cells = tuple(Cell(title, {"name": "table6", "set": name}) for title, name in SETS.items())
    return Study("table6", RECIPE.title, RECIPE.scale(scale), cells, (OFF,), (0,), build)


RECIPE = Recipe(
    "table6", "Statistics of the fine-grained sets", "Table 6", SCALES, make, needs=tuple(SETS.values())
)
