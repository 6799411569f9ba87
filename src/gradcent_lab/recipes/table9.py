"""Table 9: average precision of boxes and masks of Mask R-CNN with FPN on COCO (section 5.6)."""

from __future__ import annotations

from collections.abc import Mapping

from gradcent_lab.experiment.study import Study
from gradcent_lab.recipes import coco
from gradcent_lab.recipes.recipe import Recipe

NETWORKS = ("R50", "R50 (4c1f)", "R101", "R101GN", "X101-32x4d", "R50GN+WS", "X101-64x4d")


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study."""
    return coco.make(RECIPE, NETWORKS, True, scale, switches)


RECIPE = Recipe(
    "table9",
    "Mask R-CNN with FPN on COCO, average precision of boxes and masks",
    "Table 9",
    coco.SCALES,
    make,
    needs=("coco", "penn-fudan"),
    switches=coco.SWITCHES,
    notes=coco.NOTES,
)
