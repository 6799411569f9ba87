"""The paper's Figures 2, 3 and 4: the projection, the means of initial weights, the size of gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradcent_lab.report.figures.style import INK, MUTED, WITH, WITHOUT, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 4000  # per series: more cannot be seen
MOST_MARKERS = 1200  # where every point is an element of the SVG


@styled
def projection(
    without: Sequence[Mapping[str, Any]],
    with_: Sequence[Mapping[str, Any]],
    note: str = "",
    *,
    width: float = 6.6,
) -> Figure:
    """Draw Figure 2 from two real descents in ℝ³: rows with the weight `w`, its `gradient` and `projected`.

    Both start at w⁰; with GC the path stays in the hyperplane eᵀ(w − w⁰) = 0 (Eq. 4). The view is oblique,
    along the hyperplane, with its normal upwards and the projected step to the right.
    """
    start = np.asarray(without[0]["w"], dtype=np.float64)
    gradient, projected = (np.asarray(without[0][key], dtype=np.float64) for key in ("gradient", "projected"))
    up = 1.0 if gradient.sum() < 0 else -1.0  # the side of the hyperplane that descent without GC goes to
    normal = up * np.ones(3) / math.sqrt(3)
    right = -projected / np.linalg.norm(projected)
    turn = math.radians(20)  # a little into the page, so that the path does not run along an edge
    right = math.cos(turn) * right - math.sin(turn) * np.cross(normal, right)
    view = np.array([[1.0, 0.55, 0.0], [0.0, 0.42, 1.0]]) @ np.array([right, np.cross(normal, right), normal])
    figure, (axis,) = new_figure(width, 3.6)
    ends = []
    for name, rows, colour in (("without GC", without, WITHOUT), ("with GC", with_, WITH)):
        path = (np.array([row["w"] for row in rows], dtype=np.float64) - start) @ view.T
        ends.append(path)
        axis.plot(*path.T, "-o", color=colour, ms=3, lw=1.2, alpha=0.85, label=f"path {name}", zorder=3)
        axis.plot(*path[-1], marker="*", color=colour, ms=13, zorder=5)
    length = 0.75 * float(np.linalg.norm(ends[1][-1])) / float(np.linalg.norm(view @ projected))
    tips = np.array([view @ (-length * gradient), view @ (-length * projected)])
    reach = float(np.abs(np.vstack([*ends, tips])).max())
    edge = np.array([[-0.22, -0.42], [1.25, -0.42], [1.25, 0.75], [-0.22, 0.75]]) * reach
    plane = edge @ np.array([[1.0, 0.0], [0.55, 0.42]])
    axis.fill(*plane.T, facecolor=WITH, alpha=0.09, edgecolor="none")
    axis.plot(*np.vstack([plane, plane[:1]]).T, color=WITH, lw=0.8, alpha=0.7)
    for tip, colour, label, shift in (
        (tips[0], WITHOUT, r"$-\nabla L$", (7, -5)),
        (tips[1], WITH, r"$-P\nabla L$", (-30, -27)),
        (np.array([0.0, 0.42 * reach]), MUTED, "$e$" if up > 0 else "$-e$", (6, -6)),
    ):
        arrow = {"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        point = (float(tip[0]), float(tip[1]))
        axis.annotate("", point, (0, 0), arrowprops=arrow, zorder=4)
        axis.annotate(
            label, point, shift, textcoords="offset points", color=colour, fontsize=12.5, parse_math=True
        )
    axis.plot(*tips.T, "--", color=MUTED, lw=1)
    axis.plot(0, 0, "o", color=INK, ms=6, zorder=6)
    axis.annotate("$w^0$", (0, 0), (-17, -12), textcoords="offset points", fontsize=12.5, parse_math=True)
    place: dict[str, Any] = {"textcoords": "offset points", "parse_math": True}
    axis.annotate("$e^T(w-w^0)=0$", plane[1], (-92, 5), color=WITH, fontsize=10.5, **place)
    axis.set_aspect("equal")
    axis.axis("off")
    axis.legend(loc="upper left")
    caption(figure, note)
    return figure


@styled
def initial_means(
    panels: Mapping[str, Sequence[np.ndarray]], note: str = "", *, width: float = 7.0
) -> Figure:
    """Draw Figure 3: ln |mean| of every weight vector, one panel per initialization, layers left to right.

    `panels` maps a title to one array of weight-vector means per layer, from shallow to deep.
    """
    figure, axes = new_figure(width, 2.15 * len(panels) + 0.3, len(panels), 1)
    gap = "\n" if width < 5 else " "
    for axis, (title, layers) in zip(axes, panels.items(), strict=True):
        at = 0
        for number, means in enumerate(layers):
            values = np.log(np.maximum(np.abs(np.asarray(means, dtype=np.float64)), 1e-30))
            x = np.arange(at, at + len(values))
            at += len(values)
            keep = slice(None, None, max(1, math.ceil(len(values) * len(layers) / MOST_POINTS)))
            colour = WITH if number % 2 == 0 else "#7f8a96"  # an image: grey that is seen on light and dark
            axis.scatter(x[keep], values[keep], s=2.5, color=colour, linewidths=0, alpha=0.8, rasterized=True)
        axis.axhline(-7, color=WITHOUT, lw=1, ls="--")
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "center", "parse_math": True}
        axis.annotate("$e^{-7}$", (1.005, -7), color=WITHOUT, **place)
        everything = np.concatenate([np.abs(np.asarray(layer)) for layer in layers])
        below = 100 * np.mean(everything < math.exp(-7))
        axis.set_title(f"{title}:{gap}{below:.0f} % of {at:,} weight vectors below e⁻⁷")
        axis.set_ylabel("ln |mean|")
        axis.margins(x=0.01)
    axes[-1].set_xlabel(f"weight vector, layers from shallow to deep{gap}in alternating colours")
    caption(figure, note)
    return figure


@styled
def gradient_history(
    without: Sequence[Mapping[str, float]],
    with_: Sequence[Mapping[str, float]],
    series: Mapping[str, str],
    note: str = "",
    *,
    columns: int = 4,
) -> Figure:
    """Draw Figure 4: norm and largest value of a layer's gradient over iterations, red without, blue with.

    `series` maps a key of the iteration rows to its panel's title; the scale of the y axis is logarithmic.
    """
    from matplotlib.ticker import LogFormatter, MaxNLocator

    columns = min(columns, len(series))
    rows_of_panels = -(-len(series) // columns)
    figure, axes = new_figure(2.9 * columns + 0.5, 3.0 * rows_of_panels, rows_of_panels, columns)
    for axis, (key, title) in zip(axes, series.items(), strict=False):
        for rows, colour, label in ((without, WITHOUT, "without GC"), (with_, WITH, "with GC")):
            values = np.array([row[key] for row in rows], dtype=np.float64)
            every = max(1, math.ceil(len(values) / MOST_MARKERS))
            x = np.arange(len(values))[::every]
            size = 2.0 if len(x) > 400 else 4.0  # few points get larger markers
            # markers, not an image: inside a page they follow its light or dark mode
            axis.plot(x, values[::every], "o", ms=size, mew=0, color=colour, alpha=0.6, label=label)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(LogFormatter())  # plain text; the default writes formulas
        axis.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
        axis.set_title(title)
        axis.set_xlabel("iteration")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, nbins=5))
    for axis in axes[len(series) :]:
        axis.set_visible(False)
    axes[0].legend(loc="best", markerscale=2.5)
    caption(figure, note)
    return figure
