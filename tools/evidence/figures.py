"""The figures of the page: forest plot, accuracy against learning rate, curves with steps to target.

They are drawn narrow (5.4 inches), so that their text stays readable on a phone.
"""

from __future__ import annotations

import hashlib
import statistics
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from evidence.programme import ARMS, CONTROLS, IN_ALL_LAYERS, OPTIMIZERS, Results, steps_of
from evidence.sentences import arm_label
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
from gradcent_lab.report.wording import NBSP

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gradcent_lab.analysis.tuning import TunedArm
    from gradcent_lab.store.records import RunRecord

WIDTH = 5.4
DIGEST = "Data"  # the text field of a PNG that holds the digest of its runs
PARTS_OF_GC = MORE[1]  # the colour of arms that centralize a part of the layers or at another place


def data_digest(results: Sequence[Results]) -> str:
    """Return a digest of every number that the figures can show."""
    lines = []
    for result in results:
        for record in (*result.records, *result.tuning_records, *result.beyond_records):
            numbers = [(line.get("eval_metric"), line.get("train_metric")) for line in record.curves]
            lines.append(f"{record.study} {record.path.name} {numbers}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


@styled
def forest(results: Sequence[Results]) -> Figure:
    """Draw every comparison: mean and interval, single pairs, and the paper's gain as a diamond."""
    rows: list[tuple[Results, Finding] | str] = []
    for result in results:
        found = [finding for finding in result.findings if finding.comparison]
        if found:
            rows.append(f"{result.experiment.title}{'' if result.complete else ' (unfinished)'}")
            rows += [(result, finding) for finding in found]
    figure, (axis,) = new_figure(WIDTH, 1.1 + 0.27 * len(rows))
    limits = _limits(results)
    labels = []
    for place, row in enumerate(rows):
        if isinstance(row, str):
            labels.append("")
            _draw_heading(axis, place, row)
            continue
        result, finding = row
        labels.append(_label(finding, several=len(result.study.cells) > 1))
        _draw_row(axis, place, finding, result.claim(finding), limits)
    axis.axvline(0, color=INK, lw=0.9, zorder=1)
    axis.set_xlim(*limits)
    axis.set_yticks(range(len(rows)), labels)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0, labelcolor=INK)
    axis.set_xlabel("difference in points", fontsize=9)
    caption(
        figure,
        "Test accuracy (U-Net: IoU) of an arm minus that without GC. Dot and bar: mean and interval over pairs (95 %, shared among the arms "
        "of a cell); open dot: one pair; grey: single pairs; arrow: the interval goes on. Blue: GC in all layers; purple: in some "
        "layers or at the update; green: controls. Diamond: the paper's gain, at its own scale.",
    )
    return figure


def _draw_heading(axis: Axes, place: int, text: str) -> None:
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


def _limits(results: Sequence[Results]) -> tuple[float, float]:
    """Range of all single pairs and of the paper's gains, with a margin; 0 is always inside."""
    values = [0.0]
    for result in results:
        for finding in result.findings:
            values += _differences(finding)
            claim = result.claim(finding)
            values += [] if claim is None else [claim]
    margin = 0.12 * (max(values) - min(values)) + 0.5
    return min(values) - margin, max(values) + margin


def _differences(finding: Finding) -> list[float]:
    return [b.last - a.last for a, b in zip(finding.without, finding.with_, strict=True)]


def _colour(arm: str) -> str:
    if arm in CONTROLS:
        return MORE[0]
    return WITH if arm in (*IN_ALL_LAYERS, "conv") else PARTS_OF_GC


def _draw_row(
    axis: Axes, place: int, finding: Finding, claim: float | None, limits: tuple[float, float]
) -> None:
    result = finding.comparison
    assert result is not None
    colour, values = _colour(finding.arm), _differences(finding)
    spread = np.linspace(-0.17, 0.17, len(values)) if len(values) > 1 else np.zeros(1)
    if len(values) > 1:
        axis.scatter(values, place + spread, s=9, color=MUTED, alpha=0.7, linewidths=0, zorder=2)
        ends = max(result.low, limits[0]), min(result.high, limits[1])
        axis.plot(ends, [place, place], color=colour, lw=2.2, solid_capstyle="round", zorder=3)
        for end, beyond, marker in ((ends[0], result.low, "<"), (ends[1], result.high, ">")):
            if end != beyond:  # few pairs: the interval is wider than the figure
                axis.scatter([end], [place], s=30, marker=marker, color=colour, zorder=3, clip_on=False)
    axis.scatter(
        [result.difference],
        [place],
        s=36,
        facecolors=colour if len(values) > 1 else PAPER,
        edgecolors=colour,
        zorder=4,
    )
    if claim is not None:
        axis.scatter([claim], [place], s=34, marker="D", facecolors="none", edgecolors=INK, zorder=5)


def _label(finding: Finding, several: bool) -> str:
    name = ARMS.get(finding.arm, finding.arm)
    cell = f"{finding.cell}: " if several else ""
    return f"{cell}{name}, n = {len(finding.without)}"


@styled
def rates(results: Sequence[Results]) -> Figure | None:
    """Draw held-out accuracy against the learning rate, one panel per tuned cell; a ring marks what was chosen."""
    panels = [
        (result, cell.name)
        for result in results
        for cell in result.study.cells
        if result.tuned_arms(cell.name)
    ]
    if not panels:
        return None
    figure, axes = _panels(len(panels), 2.3)
    for axis, (result, cell) in zip(axes, panels, strict=False):
        _draw_rates(axis, result, cell)
    _set_y_labels(axes, len(panels), "held-out accuracy, %")
    _legend(figure, axes)
    caption(
        figure,
        "Every panel has its own vertical axis. Small dots: the two tuning seeds. Ring: the rate chosen from the grid. Dashed, open: a rate beyond the "
        "grid, not used for the choice. Cross: a run diverged.",
    )
    return figure


def _draw_rates(axis: Axes, result: Results, cell: str) -> None:
    arms = result.tuned_arms(cell)
    beyond = {arm.arm: arm for arm in result.beyond_arms(cell)}
    finite = [value for arm in arms for point in arm.points for value in point.results]
    if finite:  # a rate far beyond the grid would compress the others
        span = max(max(finite) - min(finite), 1.0)
        room = 0.6 if beyond else 0.15
        axis.set_ylim(max(min(finite) - room * span, 0), max(finite) + 0.2 * span)
    for arm in arms:
        colour = {"off": WITHOUT, "update": PARTS_OF_GC}.get(arm.arm, WITH)
        _draw_rate_line(axis, arm, beyond.get(arm.arm), colour)
        if result.is_tuned(cell):
            ring: dict[str, Any] = {"s": 110, "facecolors": "none", "edgecolors": colour, "linewidths": 1.6}
            axis.scatter([_rate(arm.best)], [arm.best.mean], zorder=4, **ring)
    axis.set_xscale("log")
    shown = [*arms[0].points, *(point for arm in list(beyond.values())[:1] for point in arm.points)]
    ticks = [_rate(point) for point in shown]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_title(_panel_title(result, cell, "" if result.is_tuned(cell) else "unfinished"), fontsize=9)
    axis.set_xlabel(
        "learning rate of the pretrained layers"
        if result.experiment.recipe == "cub-tuned"
        else "learning rate"
    )


def _draw_rate_line(axis: Axes, arm: TunedArm, beyond: TunedArm | None, colour: str) -> None:
    points = [point for point in arm.points if np.isfinite(point.mean)]
    x, y = [_rate(point) for point in points], [point.mean for point in points]
    for point in (*arm.points, *(beyond.points if beyond else ())):
        axis.scatter(
            [_rate(point)] * len(point.results), point.results, s=9, color=colour, alpha=0.6, linewidths=0
        )
        if point.diverged:
            axis.scatter(
                [_rate(point)], [0.03], marker="x", color=colour, s=36, transform=axis.get_xaxis_transform()
            )
    axis.plot(x, y, color=colour, marker="o", ms=4, lw=1.8, label=arm_label(arm.arm))
    for point in beyond.points if beyond else ():
        if np.isfinite(point.mean) and points:
            line: dict[str, Any] = {
                "color": colour,
                "lw": 1.2,
                "ls": "--",
                "marker": "o",
                "ms": 4,
                "mfc": PAPER,
            }
            axis.plot((x[-1], _rate(point)), (y[-1], point.mean), markevery=[1], **line)


def _rate(point: Any) -> float:
    return float(dict(point.values)["lr"])


@styled
def curves(results: Sequence[Results]) -> Figure | None:
    """Draw test and training accuracy over the steps, with the target and the steps to it; optimizers are left to the table."""
    panels = [
        (result, finding)
        for result in results
        if result.experiment.subject != OPTIMIZERS
        for finding in result.main_findings()
        if finding.without
    ]
    if not panels:
        return None
    figure, axes = _panels(len(panels), 2.4)
    for axis, (result, finding) in zip(axes, panels, strict=False):
        for runs, colour, label in (
            (finding.without, WITHOUT, "without GC"),
            (finding.with_, WITH, "with GC"),
        ):
            _draw_curves(axis, runs, colour, label)
        _draw_target(axis, finding)
        axis.set_title(_panel_title(result, finding.cell, f"n = {len(finding.without)}"), fontsize=9)
        axis.set_xlabel("steps")
    _set_y_labels(axes, len(panels), "accuracy or IoU, %")
    _legend(figure, axes)
    caption(
        figure,
        "Solid: test, mean over seeds, with the range of all runs; dotted: training. Dashed: the target, the median last test result without GC; "
        "triangles: mean steps to it, where a run that never reaches it counts with its whole length.",
    )
    return figure


def _draw_curves(axis: Axes, runs: Sequence[RunRecord], colour: str, label: str) -> None:
    steps = np.cumsum([steps_of(runs[0], line) for line in runs[0].curves])
    tests = np.array([[line["eval_metric"] for line in run.curves] for run in runs])
    training = np.mean([[line["train_metric"] for line in run.curves] for run in runs], axis=0)
    axis.fill_between(steps, tests.min(axis=0), tests.max(axis=0), color=colour, alpha=0.15, lw=0)
    axis.plot(steps, tests.mean(axis=0), "-", color=colour, lw=1.8, label=label)
    axis.plot(steps, training, ":", color=colour, lw=1.6)


def _draw_target(axis: Axes, finding: Finding) -> None:
    speed = finding.speed
    if speed is None:
        return
    axis.axhline(speed.target, color=MUTED, lw=1, ls="--", zorder=1)
    steps = steps_of(finding.without[0], finding.without[0].curves[-1])
    for times, colour in ((speed.without, WITHOUT), (speed.with_, WITH)):
        epochs = statistics.fmean(speed.epochs if time is None else time for time in times)
        axis.scatter(
            [epochs * steps],
            [0.04],
            marker="^",
            s=34,
            color=colour,
            zorder=4,
            clip_on=False,
            transform=axis.get_xaxis_transform(),
        )


def _panels(count: int, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(2, count)
    lines = -(-count // columns)
    figure, axes = new_figure(WIDTH, 0.9 + height * lines, lines, columns)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes


def _set_y_labels(axes: Sequence[Axes], count: int, text: str) -> None:
    for axis in axes[:count:2]:
        axis.set_ylabel(text)


def _legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend above all panels, with every arm that any of them shows."""
    handles = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside upper left", ncols=len(handles))


def _panel_title(result: Results, cell: str, more: str) -> str:
    """What a panel shows, in lines that fit above it."""
    title = result.title(cell).removesuffix(", tuned").replace("lr ", f"lr{NBSP}")
    return textwrap.fill(f"{title}, {more.replace(' ', NBSP)}" if more else title, 27)


FIGURES: dict[str, Callable[[Sequence[Results]], Any]] = {"forest": forest, "rates": rates, "curves": curves}
