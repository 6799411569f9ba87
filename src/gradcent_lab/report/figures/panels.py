"""A row of panels, one per case: test curves of all arms with their means at the epoch that is judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.figures.curves import _draw_arm, _whole_epochs, arms_of
from gradcent_lab.report.figures.style import MUTED, arm_colour, caption, new_figure, styled
from gradcent_lab.report.tables import decimals, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"with GC (all)": "GC in all layers", "with GC (hidden)": "GC in hidden layers only"}


@dataclass(frozen=True)
class Panel:
    """A title and the findings of one experiment: one arm with GC, or several against the same baseline."""

    title: str
    findings: tuple[Finding, ...]
    note: str = ""  # written into the panel


@styled
def draw_panels(panels: Sequence[Panel], text: str = "", columns: int | None = None) -> Figure:
    """Draw the panels on one y range; the means stand under each title."""
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(3.7 * columns, 3.4 * rows, rows, columns)
    every = [run for panel in panels for f in panel.findings for run in (*f.without, *f.with_)]
    values = [line["eval_metric"] for run in every for line in run.curves]
    low, high = min(values), max(values)
    for number, (axis, panel) in enumerate(zip(axes, panels, strict=False)):
        base = panel.findings[0].without
        runs = [*base, *(run for finding in panel.findings for run in finding.with_)]
        for index, (arm, drawn) in enumerate(arms_of(runs).items()):
            # a dashed line lets an equal curve below it be seen
            style, width = ("--" if index > 1 else "-"), (1.8 if index else 2.6)
            label = LABELS.get(arm, arm)
            _draw_arm(axis, drawn, "eval_metric", arm_colour(index), label, None, style, width=width)
        if panel.note:
            place: dict[str, Any] = {
                "transform": axis.transAxes,
                "ha": "right",
                "va": "top",
                "fontsize": 8.5,
                "color": MUTED,
            }
            axis.text(0.99, 0.62, panel.note, **place)
        axis.text(0, 1.02, _means(panel), transform=axis.transAxes, fontsize=8.5, color=MUTED)
        axis.set_title(panel.title, pad=18)
        axis.set_xlabel("epoch")
        axis.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        _whole_epochs(axis)
        if number == 0 or len(panel.findings) > 1:
            axis.legend(loc="lower right")
        if number % columns == 0:
            axis.set_ylabel(f"test {panel.findings[0].metric}")
    caption(figure, text)
    return figure


def _means(panel: Panel) -> str:
    """The means without and with GC; with several arms, each arm's."""
    results = [(finding, finding.comparison) for finding in panel.findings if finding.comparison is not None]
    if not results:
        return ""
    finding, first = results[0]
    places = min(1, decimals(finding))
    before = f"{first.without.mean:.{places}f} → "
    if len(results) == 1:
        change = signed(first.difference, places)
        return f"{before}{first.with_.mean:.{places}f} ({change}), better in {first.better} of {first.n}"
    layers = {"all": "all layers", "hidden": "hidden layers only"}
    return before + ", ".join(
        f"{result.with_.mean:.{places}f} ({layers.get(f.arm, f.arm)})" for f, result in results
    )
