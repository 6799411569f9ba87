"""Curves over epochs (the paper's Figures 5, 6 and 7) and the paired differences behind every table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradcent_lab.analysis.findings import Finding, is_baseline
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.figures.style import (
    INK,
    MUTED,
    WITH,
    arm_colour,
    caption,
    new_figure,
    shorten,
    styled,
)
from gradcent_lab.report.tables import common_metric, decimals, interval_text, level_text, signed
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# quantity of metrics.jsonl → (title, how its line is drawn); Figure 7 draws testing dotted
LOOKS = {
    "train_loss": ("Training loss", "-"),
    "eval_loss": ("Test loss", "-"),
    "train_metric": ("Training {metric}", "-"),
    "eval_metric": ("Test {metric}", "-"),
}


@styled
def learning_curves(
    records: Sequence[RunRecord],
    quantities: Sequence[str] = ("train_loss", "eval_metric"),
    *,
    epochs: int | None = None,
    labels: Mapping[str, str] | None = None,
    note: str = "",
    target: float | None = None,
    columns: int | None = None,
) -> Figure:
    """Draw one panel per quantity; the thick line is the mean over seeds, thin lines are the seeds.

    Figure 5 is ("train_loss", "eval_metric"), Figure 6 is ("train_metric", "eval_metric") of error rates.
    """
    arms = arms_of(records, labels)
    columns = min(columns or len(quantities), len(quantities))
    rows = -(-len(quantities) // columns)
    figure, axes = new_figure(4.3 * columns, 3.3 * rows, rows, columns)
    for axis, quantity in zip(axes, quantities, strict=True):
        title, _ = LOOKS[quantity]
        for index, (arm, runs) in enumerate(arms.items()):
            width = 1.8 if index else 2.6  # so that equal curves do not hide each other
            _draw_arm(axis, runs, quantity, arm_colour(index), arm, epochs, width=width)
        if target is not None and quantity == "eval_metric":
            axis.axhline(target, color=MUTED, lw=1, ls="--", zorder=1)
            place: dict[str, Any] = {
                "xycoords": ("axes fraction", "data"),
                "textcoords": "offset points",
                "ha": "right",
            }
            axis.annotate("target", (0.99, target), (0, 3), fontsize=8, color=MUTED, **place)
        axis.set_title(title.format(metric=shorten(records[0].metric_name)))
        axis.set_xlabel("epoch")
        _whole_epochs(axis)
    axes[0].legend(loc="best")
    caption(figure, note)
    return figure


@styled
def train_and_test(
    panels: Sequence[tuple[str, Sequence[RunRecord]]],
    *,
    epochs: int | None = 40,
    note: str = "",
    columns: int = 4,
) -> Figure:
    """Draw Figure 7: one panel per data set, training accuracy solid, testing accuracy dotted."""
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(3.2 * columns + 0.6, 3.1 * rows, rows, columns)
    for axis, (title, records) in zip(axes, panels, strict=False):
        for index, (arm, runs) in enumerate(arms_of(records).items()):
            for quantity, style, word in (("train_metric", "-", "train"), ("eval_metric", ":", "test")):
                label = f"{arm}, {word}"
                _draw_arm(axis, runs, quantity, arm_colour(index), label, epochs, style, seeds=False)
        axis.set_title(title)
        axis.set_xlabel("epoch")
        _whole_epochs(axis)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    axes[0].set_ylabel(shorten(panels[0][1][0].metric_name))
    axes[0].legend(loc="best")
    caption(figure, note)
    return figure


@styled
def differences(
    findings: Sequence[Finding], note: str = "", *, alone: bool = True, width: float | None = None
) -> Figure:
    """Draw every pair's difference as a dot, the mean with its interval, and the paper's as a diamond.

    `alone` writes the numbers and the legend into the figure; on a page they are beside it.
    """
    shown = [finding for finding in findings if finding.comparison]
    size = width or (7.2 if alone else 5.6)
    figure, (axis,) = new_figure(size, (1.25 if alone else 0.95) + 0.5 * len(shown))
    several = len({finding.arm for finding in shown}) > 1
    for row, finding in enumerate(reversed(shown)):
        result = finding.comparison
        assert result is not None
        pairs = zip(finding.without, finding.with_, strict=True)
        values = [getattr(b, finding.epoch) - getattr(a, finding.epoch) for a, b in pairs]
        spread = np.linspace(-0.16, 0.16, len(values)) if len(values) > 1 else [0.0]
        axis.scatter(values, row + np.asarray(spread), s=13, color=MUTED, alpha=0.75, linewidths=0, zorder=2)
        if result.interval != "none":
            axis.plot(
                [result.low, result.high], [row, row], color=WITH, lw=2.2, solid_capstyle="round", zorder=3
            )
        axis.scatter([result.difference], [row], s=46, color=WITH, zorder=4)
        if finding.claim:
            paper = finding.claim.difference
            axis.scatter([paper], [row], s=42, zorder=5, marker="D", facecolors="none", edgecolors=INK)
        if not alone:
            continue
        text = f"{signed(result.difference, decimals(finding))}  {interval_text(finding)}  n = {result.n}"
        axis.annotate(
            text, (1.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=INK
        )
    axis.axvline(0, color=INK, lw=0.9, zorder=1)
    names = [f"{f.cell}, {f.arm}" if several else f.cell for f in reversed(shown)]
    axis.set_yticks(range(len(shown)), [shorten(name) for name in names])
    axis.set_ylim(-0.6, len(shown) - 0.4)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    better = "right" if shown[0].higher_is_better else "left"
    name, unit = (shorten(part) for part in split_metric_name(common_metric(shown)))
    gap = "\n" if size < 5 else " "
    axis.set_xlabel(f"{name}, with GC minus without{',' + unit if unit else ''}{gap}(better to the {better})")
    if alone:
        caption(figure, f"{note}. {legend_text(shown)}" if note else legend_text(shown))
    return figure


def legend_text(shown: Sequence[Finding]) -> str:
    """Return how to read the figure of differences."""
    paper = "; diamond: the paper's difference" if any(f.claim for f in shown) else ""
    level = level_text([f.comparison for f in shown if f.comparison])
    return f"Grey: single pairs; blue: mean and {level}{paper}."


def arms_of(
    records: Sequence[RunRecord], labels: Mapping[str, str] | None = None
) -> dict[str, list[RunRecord]]:
    """Return the runs of each arm under its label, the one without GC first."""
    arms: dict[str, list[RunRecord]] = defaultdict(list)
    if labels is not None:
        for arm, label in labels.items():
            arms[label] = [record for record in records if record.arm == arm]
        return arms
    for record in sorted(records, key=lambda r: (not is_baseline(r), r.arm, r.seed)):
        arms["without GC" if is_baseline(record) else f"with GC{_which(record, records)}"].append(record)
    return arms


def _which(record: RunRecord, records: Sequence[RunRecord]) -> str:
    """Return the arm's name where several arms have GC."""
    several = len({r.arm for r in records if not is_baseline(r)}) > 1
    return f" ({record.arm})" if several else ""


def mean_curve(runs: Sequence[RunRecord], quantity: str, epochs: int | None = None) -> np.ndarray:
    """Return the mean over runs of one quantity per epoch, as far as all of them go."""
    values = [[line[quantity] for line in run.curves] for run in runs]
    length = min([len(v) for v in values] + ([epochs] if epochs else []))
    return np.asarray(np.mean([v[:length] for v in values], axis=0))


def _draw_arm(
    axis: Axes,
    runs: Sequence[RunRecord],
    quantity: str,
    colour: str,
    label: str,
    epochs: int | None,
    style: str = "-",
    seeds: bool = True,
    width: float = 1.8,
) -> None:
    mean = mean_curve(runs, quantity, epochs)
    x = np.arange(1, len(mean) + 1)
    if seeds and len(runs) > 1:
        for run in runs:
            values = [line[quantity] for line in run.curves][: len(mean)]
            axis.plot(x, values, color=colour, lw=0.6, alpha=0.28, zorder=2)
    marker = "o" if len(mean) == 1 else None
    axis.plot(x, mean, style, color=colour, lw=width, label=shorten(label), zorder=3, marker=marker)


def _whole_epochs(axis: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
