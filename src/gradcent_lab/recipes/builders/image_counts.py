"""Table 6: count the classes and images of a data set on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradcent_lab.data.datasets import place
from gradcent_lab.data.folder_formats import samples
from gradcent_lab.experiment.spec import Measurement


def measure(settings: Mapping[str, Any], data: Path | None) -> tuple[float, list[dict[str, Any]]]:
    """Return the number of images and the counts of the table."""
    found, classes = samples(settings["set"], place(settings["set"], data))
    counts = {"categories": classes, "training": len(found["train"]), "testing": len(found["test"])}
    return float(counts["training"] + counts["testing"]), [counts]


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(lambda seed, arm: measure(settings, data), "images", higher_is_better=True)
