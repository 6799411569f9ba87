"""Figures of the forecast: the share removed layer by layer, and forecast against outcome on the calibration tasks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gradcent_lab.report.figures.style import INK, MORE, MUTED, WITH, WITHOUT, caption, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_BARS = 40  # layers drawn; the ones with the most gradient energy


class LayerBar(NamedTuple):
    """One layer: shares between 0 and 1."""

    name: str
    removed: float
    removed_std: float
    level: float | None
    is_input: bool


class OutcomePoint(NamedTuple):
    """One calibration task: share removed, and the change of the training loss with its interval."""

    name: str
    removed: float
    change: float
    low: float
    high: float
    expected: str  # "open", "nothing" or "harm"


@styled
def layer_shares(layers: Sequence[LayerBar], note: str = "") -> Figure:
    """Draw one bar per layer: the share of its gradient that GC removes; a tick marks the level of its inputs."""
    shown = list(layers)[:MOST_BARS]
    figure, (axis,) = new_figure(6.8, 1.3 + 0.24 * len(shown))
    places = range(len(shown))
    colours = [MORE[0] if layer.is_input else WITH for layer in shown]
    axis.barh(
        list(places),
        [100 * layer.removed for layer in shown],
        xerr=[100 * layer.removed_std for layer in shown],
        color=colours,
        height=0.62,
        alpha=0.85,
        error_kw={"ecolor": MUTED, "elinewidth": 1},
    )
    for place, layer in zip(places, shown, strict=True):
        if layer.level is not None:
            axis.plot([100 * layer.level] * 2, [place - 0.36, place + 0.36], color=INK, lw=2)
    axis.set_yticks(list(places), [_short(layer.name) for layer in shown])
    axis.invert_yaxis()
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the gradient that GC removes, % (tick: level of the input)")
    axis.grid(axis="y", visible=False)
    if any(layer.is_input for layer in shown):
        axis.plot([], [], color=MORE[0], lw=6, label="input layer")
        axis.plot([], [], color=WITH, lw=6, label="hidden layer")
        axis.legend(loc="lower right")
    caption(figure, note)
    return figure


@styled
def calibration(points: Sequence[OutcomePoint], named: Sequence[str] = (), note: str = "") -> Figure:
    """Draw the outcome of every calibration task against its forecast; `named` tasks carry their number in it."""
    figure, (axis,) = new_figure(6.8, 4.6)
    axis.axhline(0, color=MUTED, lw=1)
    styles = {
        "open": (WITH, "o", "no expectation"),
        "nothing": (MORE[2], "s", "theory: GC does nothing"),
        "harm": (WITHOUT, "^", "target depends on the input mean"),
    }
    for expected, (colour, marker, label) in styles.items():
        chosen = [point for point in points if point.expected == expected and math.isfinite(point.change)]
        if not chosen:
            continue
        changes = [100 * point.change for point in chosen]
        errors = [
            [100 * (point.change - point.low) for point in chosen],
            [100 * (point.high - point.change) for point in chosen],
        ]
        axis.errorbar(
            [100 * point.removed for point in chosen],
            changes,
            yerr=errors,
            fmt=marker,
            color=colour,
            ms=5,
            lw=0.8,
            alpha=0.85,
            label=label,
        )
    by_name = {point.name: point for point in points}
    for number, name in enumerate(named, start=1):
        point = by_name[name]
        place = (100 * point.removed, 100 * point.change)
        axis.annotate(str(number), place, (6, 5), textcoords="offset points", fontsize=8, color=INK)
    axis.set_xlabel("forecast: share of the gradient removed in the first 60 steps without GC, %")
    axis.set_ylabel("outcome: change of the\nmean training loss with GC, %")
    axis.legend(loc="best")
    caption(figure, note)
    return figure


def _short(name: str, most: int = 38) -> str:
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
