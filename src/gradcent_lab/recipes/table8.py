"""Table 8: average precision of Faster R-CNN with FPN and four backbones on COCO (section 5.6)."""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.study import Study
from gradcent_lab.recipes import coco
from gradcent_lab.recipes.recipe import Recipe

NETWORKS = ("R50", "X101-32x4d", "R101", "X101-64x4d")


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    return coco.make(RECIPE, NETWORKS, False, scale, switches)


RECIPE = Recipe(
    "table8",
    "Faster R-CNN with FPN on COCO, average precision",
    "Table 8",
    coco.SCALES,
    make,
    needs=("coco", "penn-fudan"),
    switches=coco.SWITCHES,
    notes=coco.NOTES,
)
