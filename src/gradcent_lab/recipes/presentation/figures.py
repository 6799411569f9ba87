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
    return [Picture("fig2", figures.projection(without[0].curves, with_[0].curves), caption)]


def initial_means(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 3."""
    panels = {record.cell: [np.asarray(row["abs_means"]) for row in record.curves] for record in records}
    figure = figures.initial_means(panels, scale_text)
    return [Picture("fig3", figure, "Figure 3: means of the initial weight vectors.")]


def gradient_history(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 4: the gradient that the optimizer is given, so the centralized one in the arm with GC."""
    without, with_ = split_arms(records)
    if not without or not with_:
        return []
    centralized = [
        {key: row[f"{key}_centralized"] for key in GRADIENT_PANELS} for row in with_[0].iterations()
    ]
    figure = figures.gradient_history(without[0].iterations(), centralized, GRADIENT_PANELS, scale_text)
    caption = "Figure 4: size of the gradient over iterations; red without GC, blue with."
    return [Picture("fig4", figure, caption)]


def four_combinations(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 5."""
    combined = [replace(r, arm=r.cell if is_baseline(r) else f"{r.cell}+GC") for r in records]
    figure = figures.learning_curves(combined, labels={r.arm: r.arm for r in combined}, note=scale_text)
    return [Picture("fig5", figure, "Figure 5: training loss and test accuracy of the four combinations.")]


def error_curves(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 6, from the runs of Table 5."""
    runs = [record for record in records if record.cell == FIGURE_CELL]
    if not runs:
        return []
    figure = figures.learning_curves(runs, ("train_metric", "eval_metric"), note=scale_text)
    return [Picture("fig6", figure, "Figure 6: training and validation error of ResNet-50 with GN.")]


def train_and_test_curves(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Figure 7, from the runs of Table 7."""
    cells = dict.fromkeys(record.cell for record in records)
    panels = [(cell, [record for record in records if record.cell == cell]) for cell in cells]
    caption = "Figure 7: training (solid) and test (dotted) accuracy, first 40 epochs."
    return [Picture("fig7", train_and_test(panels, note=scale_text), caption)]
