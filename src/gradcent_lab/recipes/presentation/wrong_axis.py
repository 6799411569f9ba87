"""What the wrong axis does to a U-Net's transposed convolutions, from the runs of the recipe `unet`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord

SHARES = ("mean", "wrong_removed", "wrong_left")


def drift(rows: Sequence[dict[str, Any]]) -> float:
    """Return the largest change of any weight vector's sum between the first iteration and the last."""
    names = [name for name in rows[0] if name.startswith("sum ")]
    return max(abs(float(rows[-1][name]) - float(rows[0][name])) for name in names)


def shares(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the mean share of each kind of energy over all iterations of all runs, in percent."""
    rows = [row for record in records for row in record.iterations() if "mean" in row]
    return {name: 100 * mean(row[name] for row in rows) for name in SHARES}


def tables(records: Sequence[RunRecord]) -> list[Table]:
    """Return the table of energies and the table of drifts."""
    by_arm: dict[str, list[RunRecord]] = {}
    for record in records:
        by_arm.setdefault(record.arm, []).append(record)
    energy, drifts = [], []
    for arm, runs in by_arm.items():
        share = shares(runs)
        energy.append((arm, *(f"{share[name]:.1f} %" for name in SHARES)))
        moved = [drift(record.iterations()) for record in runs]
        drifts.append((arm, f"{mean(moved):.2g}", f"{max(moved):.2g}", str(len(runs))))
    return [
        Table(
            "Energy of the transposed convolutions' gradient",
            ("arm", "in the weight vectors' means", "the wrong axis removes", "and leaves in those means"),
            tuple(energy),
            (
                "Mean over all iterations. GC removes the first; the rule “all dims but the first” removes the "
                "second instead and leaves the third, which should be 0.",
            ),
        ),
        Table(
            "Drift of the weight vectors' sums",
            ("arm", "mean over seeds", "largest", "n"),
            tuple(drifts),
            ("Largest change of any sum over the run (Theorem 4.1: none with GC).",),
        ),
    ]
