"""A row of panels, one per finding: test curves of both arms with the epoch that is judged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.figures.curves import _draw_arm, _whole_epochs, arms_of
from gradcent_lab.report.figures.style import MUTED, arm_colour, caption, new_figure, styled
from gradcent_lab.report.tables import decimals, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def finding_panels(
    panels: Sequence[tuple[str, Finding]], note: str = "", columns: int | None = None
) -> Figure:
    """Draw one panel per titled finding, all on one y range; the means stand under the title."""
    columns = columns or len(panels)
    rows = -(-len(panels) // columns)
    figure, axes = new_figure(3.5 * columns, 3.4 * rows, rows, columns)
    values = [line["eval_metric"] for _, f in panels for run in (*f.without, *f.with_) for line in run.curves]
    low, high = min(values), max(values)
    for axis, (title, finding) in zip(axes, panels, strict=False):
        for index, (arm, runs) in enumerate(arms_of([*finding.without, *finding.with_]).items()):
            _draw_arm(axis, runs, "eval_metric", arm_colour(index), arm, None)
        result = finding.comparison
        if result is not None:
            places = min(1, decimals(finding))
            text = (
                f"{result.without.mean:.{places}f} → {result.with_.mean:.{places}f} "
                f"({signed(result.difference, places)}), better in {result.better} of {result.n}"
            )
            axis.text(0, 1.02, text, transform=axis.transAxes, fontsize=8.5, color=MUTED)
        axis.set_title(title, pad=18)
        axis.set_xlabel("epoch")
        axis.set_ylim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        _whole_epochs(axis)
    axes[0].set_ylabel(f"test {panels[0][1].metric}")
    axes[0].legend(loc="lower right")
    caption(figure, note)
    return figure
