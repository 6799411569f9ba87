"""The figures of the page: forest plot, accuracy against learning rate, curves with steps to target.

They are drawn narrow (5.4 inches), so that their text stays readable on a phone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.programme import ARMS, CONTROLS, IN_ALL_LAYERS, Results
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.figures.style import (
    INK,
    MORE,
    MUTED,
    PAPER,
    WITH,
    WITHOUT,
    caption,
    new_figure,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradcent_lab.store.records import RunRecord

WIDTH = 5.4


@styled
def forest(results: Sequence[Results]) -> Figure:
    """Draw every comparison: mean and 95 % interval, single pairs, and the paper's gain as a diamond."""
    rows: list[tuple[Results, Finding] | str] = []
    for result in results:
        if result.findings:
            rows.append(f"{result.experiment.title}{'' if result.complete else ' (unfinished)'}")
            rows += [(result, finding) for finding in result.findings]
    figure, (axis,) = new_figure(WIDTH, 1.1 + 0.27 * len(rows))
    labels, headings = [], []
    for place, row in enumerate(rows):
        if isinstance(row, str):
            labels.append("")
            headings.append((place, row))
            continue
        result, finding = row
        labels.append(_label(finding, several=len(result.study.cells) > 1))
        _draw_row(axis, place, finding, result.claim(finding))
    axis.axvline(0, color=INK, lw=0.9, zorder=1)
    low, high = _limits(results)
    axis.set_xlim(low, high)  # the interval of two pairs may be wider than all effects: it leaves the figure
    for place, text in headings:
        axis.annotate(
            text,
            (0, place),
            (-150, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=8.6,
            weight="bold",
            color=INK,
            annotation_clip=False,
            bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1},
        )
    axis.set_yticks(range(len(rows)), labels)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    axis.set_xlabel("test accuracy (U-Net: IoU), arm minus no GC, points", fontsize=9)
    key = "Dot and bar: mean and 95 % interval over pairs; grey: single pairs; green: controls; diamond: the paper's gain, at its own scale."
    caption(figure, key)
    return figure


def _limits(results: Sequence[Results]) -> tuple[float, float]:
    """Range of all single pairs and of the paper's gains, with a margin; 0 is always inside."""
    values = [0.0]
    for result in results:
        for finding in result.findings:
            values += [b.last - a.last for a, b in zip(finding.without, finding.with_, strict=True)]
            claim = result.claim(finding)
            values += [] if claim is None else [claim]
    margin = 0.12 * (max(values) - min(values)) + 0.5
    return min(values) - margin, max(values) + margin


def _draw_row(axis: Axes, place: int, finding: Finding, claim: float | None) -> None:
    result = finding.comparison
    assert result is not None
    colour = MORE[0] if finding.arm in CONTROLS else WITH
    values = [b.last - a.last for a, b in zip(finding.without, finding.with_, strict=True)]
    spread = np.linspace(-0.17, 0.17, len(values)) if len(values) > 1 else np.zeros(1)
    axis.scatter(values, place + spread, s=9, color=MUTED, alpha=0.7, linewidths=0, zorder=2)
    if result.interval != "none":
        axis.plot(
            [result.low, result.high], [place, place], color=colour, lw=2.2, solid_capstyle="round", zorder=3
        )
    axis.scatter([result.difference], [place], s=36, color=colour, zorder=4)
    if claim is not None:
        axis.scatter([claim], [place], s=34, marker="D", facecolors="none", edgecolors=INK, zorder=5)


def _label(finding: Finding, several: bool) -> str:
    name = ARMS.get(finding.arm, finding.arm)
    assert finding.comparison is not None
    cell = f"{finding.cell}: " if several else ""
    return f"{cell}{name}, n = {finding.comparison.n}"


def arm_label(arm: str) -> str:
    """A tuned arm in words."""
    return {"off": "without GC", "update": "with GC at the update"}.get(arm, "with GC")


@styled
def rates(results: Sequence[Results]) -> Figure | None:
    """Draw held-out accuracy against the learning rate, one panel per tuned cell; a ring marks what was chosen."""
    panels = [
        (result, cell.name, arms)
        for result in results
        for cell in result.study.cells
        if (arms := result.tuned_arms(cell.name))
    ]
    if not panels:
        return None
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = new_figure(WIDTH, 0.5 + 2.3 * lines, lines, columns)
    for axis, (result, cell, arms) in zip(axes, panels, strict=False):
        for arm in arms:
            colour = {"off": WITHOUT, "update": MORE[0]}.get(arm.arm, WITH)
            points = [p for p in arm.points if p.results]
            x = [dict(p.values)["lr"] for p in points]
            y = [statistics.fmean(p.results) for p in points]
            for rate, point in zip(x, points, strict=True):
                axis.scatter(
                    [rate] * len(point.results), point.results, s=9, color=colour, alpha=0.6, linewidths=0
                )
            axis.plot(
                x,
                y,
                color=colour,
                marker="o",
                ms=4,
                lw=1.8,
                label=arm_label(arm.arm),
            )
            beyond = next((a for a in result.beyond_arms(cell) if a.arm == arm.arm), None)
            for point in beyond.points if beyond else ():
                if point.results:
                    ends = (x[-1], dict(point.values)["lr"]), (y[-1], statistics.fmean(point.results))
                    axis.plot(
                        *ends, color=colour, lw=1.2, ls="--", marker="o", ms=4, mfc=PAPER, markevery=[1]
                    )
            if len(result.tuning_records) == result.planned_runs[0]:
                best = arm.best
                ring: dict[str, Any] = {
                    "s": 110,
                    "facecolors": "none",
                    "edgecolors": colour,
                    "linewidths": 1.6,
                }
                axis.scatter([dict(best.values)["lr"]], [best.mean], zorder=4, **ring)
        axis.set_xscale("log")
        shown = [*arms[0].points, *(p for a in result.beyond_arms(cell)[:1] for p in a.points)]
        ticks = [dict(p.values)["lr"] for p in shown]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        unfinished = len(result.tuning_records) < result.planned_runs[0]
        axis.set_title(
            f"{cell}, {result.experiment.recipe}{' (unfinished)' if unfinished else ''}", fontsize=9.5
        )
        axis.set_xlabel("learning rate")
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("held-out accuracy, %")
    axes[0].legend(loc="best")
    caption(
        figure,
        "Ring: the rate chosen from the grid. Dashed, open: a rate beyond the grid, which chooses nothing.",
    )
    return figure


def _steps(run: RunRecord, line: Mapping[str, Any]) -> int:
    """Steps of an epoch; runs of the first version did not record them."""
    settings = run.config["settings"]
    return int(line.get("steps") or settings["data"]["train"] // settings["batch_size"])


@styled
def curves(results: Sequence[Results]) -> Figure | None:
    """Draw test and training accuracy over the steps without and with GC, with the target line."""
    panels = [
        (result, finding) for result in results for finding in result.findings if finding.arm in IN_ALL_LAYERS
    ]
    if not panels:
        return None
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = new_figure(WIDTH, 0.6 + 2.4 * lines, lines, columns)
    for axis, (result, finding) in zip(axes, panels, strict=False):
        for runs, colour, label in (
            (finding.without, WITHOUT, "without GC"),
            (finding.with_, WITH, "with GC"),
        ):
            steps = np.cumsum([_steps(runs[0], line) for line in runs[0].curves])
            for key, style in (("eval_metric", "-"), ("train_metric", ":")):
                mean = np.mean([[line[key] for line in run.curves] for run in runs], axis=0)
                axis.plot(steps, mean, style, color=colour, lw=1.8, label=label if style == "-" else None)
        if finding.speed is not None:
            axis.axhline(finding.speed.target, color=MUTED, lw=1, ls="--", zorder=1)
        several = f"{finding.cell}, " if len(result.study.cells) > 1 else ""
        axis.set_title(f"{several}{result.experiment.recipe}, n = {len(finding.without)}", fontsize=9.5)
        axis.set_xlabel("steps")
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    axes[0].set_ylabel("accuracy, %")
    axes[0].legend(loc="lower right")
    caption(
        figure,
        "Solid: test; dotted: training (augmented images); dashed: the target, the median last test accuracy without GC.",
    )
    return figure
