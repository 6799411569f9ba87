"""Tuning in sentences, as a table and as a figure: metric against the tuned value, both arms, chosen points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gradcent_lab.analysis.tuning import GridPoint, TunedArm, describe_values
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.figures.style import arm_colour, new_figure, styled
from gradcent_lab.report.tables import DASH, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arm_title(arm: str) -> str:
    """Return an arm's name for a reader."""
    return "without GC" if arm == "off" else "with GC" if arm == "on" else f"with GC ({arm})"


def tuning_sentences(arms: Sequence[TunedArm], margin: float, metric: str) -> list[str]:
    """Return what was chosen, how wide the good ranges are, and where the grid ends too early."""
    unit = split_metric_name(metric)[1] if margin != 1 else split_metric_name(metric)[1].removesuffix("s")
    names = [name for name, _ in arms[0].points[0].values]
    chosen = "; ".join(f"{arm_title(arm.arm)} {describe_values(arm.best.values)}" for arm in arms)
    seeds = max(len(point.results) + point.diverged for point in arms[0].points)
    lines = [
        f"Chosen on held-out training data ({seeds} tuning seed{'s' * (seeds > 1)}, {len(arms[0].points)} grid points "
        f"each): {chosen}."
    ]
    for name in names:
        ranges = []
        for arm in arms:
            low, high = arm.good_range(name, margin)
            factor = f", a factor of {high / low:.3g}" if low > 0 and high > low else ""
            ranges.append(f"{arm_title(arm.arm)} {low:g} to {high:g}{factor}")
        lines.append(f"Within {margin:.3g}{unit} of its best, {name} ranges: {'; '.join(ranges)}.")
    for arm in arms:
        if edges := arm.at_edge():
            lines.append(
                f"The best {' and '.join(edges)} {arm_title(arm.arm)} lies at the end of the grid: extend it for a "
                "fair comparison."
            )
        diverged = sum(point.diverged for point in arm.points)
        if diverged:
            lines.append(f"Diverged while tuning {arm_title(arm.arm)}: {diverged} runs.")
    return lines


def tuning_table(arms: Sequence[TunedArm], metric: str) -> Table:
    """Return the held-out results of both arms at every grid point."""
    header = ("grid point", *(arm_title(arm.arm) for arm in arms))
    rows = []
    for number, point in enumerate(arms[0].points):
        cells = []
        for arm in arms:
            mine = arm.points[number]
            mark = " (chosen)" if mine is arm.best else ""
            cells.append(f"{_mean(mine)}{mark}")
        rows.append((describe_values(point.values), *cells))
    notes = (f"{metric} on held-out training data, mean ± standard deviation over the tuning seeds.",)
    return Table("Tuning", header, tuple(rows), notes)


def _mean(point: GridPoint) -> str:
    if point.diverged:
        return f"{point.diverged} of {point.diverged + len(point.results)} diverged"
    if not point.results:
        return DASH
    spread = f" ± {statistics.stdev(point.results):.2f}" if len(point.results) > 1 else ""
    return f"{point.mean:.2f}{spread}"


@styled
def tuning_figure(arms: Sequence[TunedArm], metric: str) -> Figure:
    """Draw the metric against the first tuned value, the best over the others; a ring marks what was chosen."""
    name = arms[0].points[0].values[0][0]
    figure, (axis,) = new_figure(5.6, 3.4)
    for index, arm in enumerate(arms):
        points = _profile(arm, name)
        x = [value for value, _ in points]
        y = [point.mean for _, point in points]
        errors = [
            statistics.stdev(point.results) / math.sqrt(len(point.results)) if len(point.results) > 1 else 0.0
            for _, point in points
        ]
        colour = arm_colour(index)
        axis.errorbar(
            x, y, yerr=errors, color=colour, marker="o", ms=4, lw=1.8, capsize=2, label=arm_title(arm.arm)
        )
        best = arm.best
        ring: dict[str, Any] = {
            "s": 120,
            "facecolors": "none",
            "edgecolors": colour,
            "linewidths": 1.6,
            "zorder": 4,
        }
        axis.scatter([dict(best.values)[name]], [best.mean], **ring)
    if all(value > 0 for value, _ in _profile(arms[0], name)):
        axis.set_xscale("log")
        ticks = [value for value, _ in _profile(arms[0], name)]
        axis.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axis.minorticks_off()
    axis.set_xlabel(name.replace("lr", "learning rate"))
    axis.set_title(f"{metric}, held out")
    axis.legend(loc="best")
    return figure


def _profile(arm: TunedArm, name: str) -> list[tuple[float, GridPoint]]:
    """The best point of an arm at every value of one name, in order; points that diverged have NaN."""
    sign = 1.0 if arm.higher_is_better else -1.0
    best: dict[float, GridPoint] = {}
    for point in arm.points:
        value = dict(point.values)[name]
        known = best.get(value)
        if known is None or math.isnan(known.mean) or sign * point.mean > sign * known.mean:
            best[value] = point
    return sorted(best.items())
