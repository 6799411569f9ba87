"""What a study shows beside its table of pairs: the paper's figures, and tables of what is no comparison.

Figures 6 and 7 are drawn from the runs of tables 5 and 7, as in the paper.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gradcent_lab.analysis import paper_claims as claims
from gradcent_lab.analysis.findings import is_baseline
from gradcent_lab.report import figures
from gradcent_lab.report.figures.curves import train_and_test
from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# studies that compare no pairs: their runs are one measurement each
MEASURED = frozenset({"fig2", "fig3", "fig4", "table6", "theory"})


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and its caption."""

    name: str
    figure: Figure
    caption: str


def pictures(study: str, records: Sequence[RunRecord], words: str = "") -> list[Picture]:
    """Return the paper's figures that these runs can draw."""
    draw = _PICTURES.get(study)
    return draw(records, words) if draw and records else []


def tables(study: str, records: Sequence[RunRecord]) -> list[Table]:
    """Return the tables of a study that has no pairs, or more than the one of its pairs."""
    make = _TABLES.get(study)
    return make(records) if make and records else []


def _arms(records: Sequence[RunRecord]) -> tuple[list[RunRecord], list[RunRecord]]:
    return [r for r in records if is_baseline(r)], [r for r in records if not is_baseline(r)]


def _fig2(records: Sequence[RunRecord], words: str) -> list[Picture]:
    without, with_ = _arms(records)
    if not without or not with_:
        return []
    caption = "The gradient is projected on the hyperplane; the path with GC never leaves it. Stars: where they end."
    return [Picture("fig2", figures.projection(without[0].curves, with_[0].curves), caption)]


def _fig3(records: Sequence[RunRecord], words: str) -> list[Picture]:
    panels = {record.cell: [np.asarray(row["abs_means"]) for row in record.curves] for record in records}
    return [
        Picture(
            "fig3", figures.initial_means(panels, words), "Figure 3: means of the initial weight vectors."
        )
    ]


def _fig4(records: Sequence[RunRecord], words: str) -> list[Picture]:
    without, with_ = _arms(records)
    if not without or not with_:
        return []
    # the paper draws the gradient as the optimizer is given it: centralized in the arm with GC
    named = {
        "conv_norm": "first conv, norm",
        "conv_max": "first conv, max",
        "fc_norm": "FC, norm",
        "fc_max": "FC, max",
    }
    seen = [{key: row[f"{key}_centralized"] for key in named} for row in with_[0].iterations()]
    figure = figures.gradient_history(without[0].iterations(), seen, named, words)
    return [
        Picture("fig4", figure, "Figure 4: size of the gradient over iterations; red without GC, blue with.")
    ]


def _fig5(records: Sequence[RunRecord], words: str) -> list[Picture]:
    named = [replace(r, arm=r.cell if is_baseline(r) else f"{r.cell}+GC") for r in records]
    figure = figures.learning_curves(named, labels={r.arm: r.arm for r in named}, words=words)
    return [Picture("fig5", figure, "Figure 5: training loss and test accuracy of the four combinations.")]


def _fig6(records: Sequence[RunRecord], words: str) -> list[Picture]:
    chosen = [r for r in records if r.cell == "R50GN"]
    if not chosen:
        return []
    figure = figures.learning_curves(chosen, ("train_metric", "eval_metric"), words=words)
    return [Picture("fig6", figure, "Figure 6: training and validation error of ResNet-50 with GN.")]


def _fig7(records: Sequence[RunRecord], words: str) -> list[Picture]:
    cells = list(dict.fromkeys(r.cell for r in records))
    panels = [(cell, [r for r in records if r.cell == cell]) for cell in cells]
    caption = "Figure 7: training (solid) and testing (dotted) accuracy, first 40 epochs."
    return [Picture("fig7", train_and_test(panels, words=words), caption)]


def _detections(records: Sequence[RunRecord], words: str) -> list[Picture]:
    from gradcent_lab.detection import exhibits

    return [Picture(*parts) for parts in exhibits.figures(records, words)]


def _detection_tables(records: Sequence[RunRecord]) -> list[Table]:
    from gradcent_lab.detection import exhibits

    return exhibits.tables(records)


def _axis_tables(records: Sequence[RunRecord]) -> list[Table]:
    from gradcent_lab.detection import axis

    return axis.tables(records)


def _theory(records: Sequence[RunRecord]) -> list[Table]:
    """The worst value of every check over the seeds."""
    checks: dict[str, list[dict[str, float]]] = {}
    for record in records:
        for row in record.curves:
            checks.setdefault(row["check"], []).append(row)
    rows = []
    for check, found in checks.items():
        worst = max(found, key=lambda row: row["value"])
        held = sum(bool(row["holds"]) for row in found)
        bound = f"{worst.get('relation', '≤')} {worst['bound']:.3g}"
        rows.append((check, f"{worst['value']:.3g}", bound, f"{held} of {len(found)}"))
    return [Table("Theorems 4.1 and 4.2", ("check", "largest value", "should be", "holds"), tuple(rows))]


def _overhead(records: Sequence[RunRecord]) -> list[Table]:
    """Section 3.4: what GC adds to an epoch, in per cent, of the whole and of the optimizer's step."""
    rows = []
    for cell in dict.fromkeys(record.cell for record in records):
        arms = _arms([record for record in records if record.cell == cell])
        if not all(arms):
            continue
        whole, part = (
            [float(np.mean([np.median([row[key] for row in run.curves]) for run in runs])) for runs in arms]
            for key in ("seconds", "optimizer_seconds")
        )
        added = [f"{100 * (b / a - 1):+.2f} %".replace("-", "−") for a, b in (whole, part)]
        rows.append((cell, *added, f"{100 * part[0] / whole[0]:.1f} %", str(min(map(len, arms)))))
    printed = claims.EXTRA_SECONDS_PER_EPOCH, claims.SECONDS_PER_EPOCH
    words = (
        f"The paper: {printed[0]} s of {printed[1]:.0f} s, +{100 * printed[0] / printed[1]:.2f} % (ResNet-50, Tesla "
        "P100). Medians over steps; what is less than the spread of the pairs above is noise."
    )
    header = ("network", "a training step", "the optimizer's step", "its share of the whole", "n")
    return [Table("What GC adds", header, tuple(rows), (words,))] if rows else []


def _counts(records: Sequence[RunRecord]) -> list[Table]:
    """Table 6: what the paper prints and what is on the disk."""
    names = {"#Category": "categories", "#Training": "training", "#Testing": "testing"}
    printed = {(c.row, c.column): int(c.mean) for c in claims.claims() if c.table == 6}
    found = {record.cell: record.curves[0] for record in records}
    rows = []
    for data in dict.fromkeys(row for row, _ in printed):
        here = found.get(data)
        cells = [
            f"{printed[data, column]:,} → {here[key]:,}" if here else f"{printed[data, column]:,} → –"
            for column, key in names.items()
        ]
        same = here is not None and all(here[key] == printed[data, column] for column, key in names.items())
        rows.append((data, *cells, "equal" if same else "not there" if here is None else "differs"))
    return [Table("Table 6: paper → here", ("set", *names.values(), ""), tuple(rows))]


_PICTURES: dict[str, Callable[[Sequence[RunRecord], str], list[Picture]]] = {
    "fig2": _fig2,
    "fig3": _fig3,
    "fig4": _fig4,
    "fig5": _fig5,
    "table5": _fig6,
    "table7": _fig7,
    "table8": _detections,
    "table9": _detections,
}
_TABLES: dict[str, Callable[[Sequence[RunRecord]], list[Table]]] = {
    "theory": _theory,
    "overhead": _overhead,
    "table6": _counts,
    "table8": _detection_tables,
    "table9": _detection_tables,
    "unet": _axis_tables,
}
