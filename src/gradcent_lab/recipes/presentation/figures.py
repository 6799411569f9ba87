"""The paper's figures, drawn from the runs of a recipe. Each function returns what these runs can draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradcent_lab.analysis.findings import is_baseline
from gradcent_lab.recipes.imagenet import FIGURE_CELL
from gradcent_lab.report import figures
from gradcent_lab.report.figures.curves import train_and_test
from gradcent_lab.report.section import Picture
from gradcent_lab.store.records import RunRecord

PHONE = 4.2  # inches: the width of a figure that a phone shows

# key of the rows of iterations.jsonl → title of the panel
GRADIENT_PANELS = {
    "conv_norm": "first conv, norm",
    "conv_max": "first conv, max",
    "fc_norm": "FC, norm",
    "fc_max": "FC, max",
}


def split_arms(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    """Return the runs without GC and the runs with GC."""
    return [r for r in records if is_baseline(r)], [r for r in records if not is_baseline(r)]


def projection(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 2."""
    without, with_ = split_arms(records)
    if not without or not with_:
        return []
    caption = "The gradient is projected onto the hyperplane; the path with GC stays in it. Stars: last step."
    wide, narrow = (
        figures.projection(without[0].curves, with_[0].curves, width=width) for width in (6.6, PHONE)
    )
    return [Picture("fig2", wide, caption, narrow)]


def initial_means(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 3."""
    panels = {record.cell: [np.asarray(row["abs_means"]) for row in record.curves] for record in records}
    wide, narrow = (figures.initial_means(panels, scale_text, width=width) for width in (7.0, PHONE))
    return [Picture("fig3", wide, "Figure 3: means of the initial weight vectors.", narrow)]


def gradient_history(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 4: the gradient that the optimizer is given, so the centralized one in the arm with GC."""
    without, with_ = split_arms(records)
    if not without or not with_:
        return []
    centralized = [
        {key: row[f"{key}_centralized"] for key in GRADIENT_PANELS} for row in with_[0].iterations()
    ]
    rows = without[0].iterations()
    wide, narrow = (
        figures.gradient_history(rows, centralized, GRADIENT_PANELS, scale_text, columns=columns)
        for columns in (4, 1)
    )
    caption = "Figure 4: size of the gradient over iterations; red without GC, blue with."
    return [Picture("fig4", wide, caption, narrow)]


def four_combinations(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 5."""
    combined = [replace(r, arm=r.cell if is_baseline(r) else f"{r.cell}+GC") for r in records]
    labels = {r.arm: r.arm for r in combined}
    wide, narrow = (
        figures.learning_curves(combined, labels=labels, note=scale_text, columns=columns)
        for columns in (2, 1)
    )
    caption = "Figure 5: training loss and test accuracy of the four combinations."
    return [Picture("fig5", wide, caption, narrow)]


def error_curves(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 6, from the runs of Table 5."""
    runs = [record for record in records if record.cell == FIGURE_CELL]
    if not runs:
        return []
    wide, narrow = (
        figures.learning_curves(runs, ("train_metric", "eval_metric"), note=scale_text, columns=columns)
        for columns in (2, 1)
    )
    return [Picture("fig6", wide, "Figure 6: training and validation error of ResNet-50 with GN.", narrow)]


def train_and_test_curves(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 7, from the runs of Table 7."""
    cells = dict.fromkeys(record.cell for record in records)
    panels = [(cell, [record for record in records if record.cell == cell]) for cell in cells]
    caption = "Figure 7: training (solid) and test (dotted) accuracy, first 40 epochs."
    wide, narrow = (train_and_test(panels, note=scale_text, columns=columns) for columns in (4, 1))
    return [Picture("fig7", wide, caption, narrow)]
