"""Tables of recipes whose runs are measurements: theorem checks, overhead, data set statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradcent_lab.analysis import paper_claims
from gradcent_lab.recipes.presentation.figures import split_arms
from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord


def theorem_checks(records: Sequence[RunRecord]) -> list[Table]:
    """Return the worst value of every check over the seeds."""
    checks: dict[str, list[dict[str, float]]] = {}
    for record in records:
        for row in record.curves:
            checks.setdefault(row["check"], []).append(row)
    rows = []
    for check, result in checks.items():
        worst = max(result, key=lambda row: row["value"])
        held = sum(bool(row["holds"]) for row in result)
        bound = f"{worst.get('relation', '≤')} {worst['bound']:.3g}"
        rows.append((check, f"{worst['value']:.3g}", bound, f"{held} of {len(result)}"))
    return [
        Table(
            "Theorems 4.1 and 4.2, and the identity",
            ("check", "largest value", "should be", "holds"),
            tuple(rows),
        )
    ]


def overhead(records: Sequence[RunRecord]) -> list[Table]:
    """Return what GC adds to a training step and to the optimizer step, in percent (section 3.4)."""
    rows = []
    for cell in dict.fromkeys(record.cell for record in records):
        off, on = split_arms([record for record in records if record.cell == cell])
        for runs, label, prefix in (
            (on, "with GC, torch's fused step", ""),
            (on, "with GC, gradcent's kernels", "default_"),
            (off, "without GC (noise)", ""),
        ):
            if not runs:
                continue
            added = [
                _added([_median(run, f"{prefix}{key}") / _median(run, f"reference_{key}") for run in runs])
                for key in ("seconds", "optimizer_seconds")
            ]
            step, whole = f"{prefix}optimizer_seconds", f"{prefix}seconds"
            share = np.mean([_median(run, step) / _median(run, whole) for run in runs])
            rows.append((cell, label, *added, f"{100 * share:.1f} %", str(len(runs))))
    printed = paper_claims.EXTRA_SECONDS_PER_EPOCH, paper_claims.SECONDS_PER_EPOCH
    note = (
        f"The paper: {printed[0]} s of {printed[1]:.0f} s, +{100 * printed[0] / printed[1]:.2f} % (ResNet-50, Tesla "
        "P100). Mean and range over the runs; in each, medians over steps that alternate with those of a network "
        "without GC, stepped by torch's fused kernel. With GC and torch's fused step, torch's list operations "
        "centralize the gradients before the same kernel: the difference is what GC adds. With gradcent's kernels "
        "one fused step does both, and its speed is in the difference. The rows without GC compare two equal "
        "networks: a difference of their size is noise."
    )
    header = ("network", "step", "training step", "optimizer step", "optimizer share of the step", "n")
    return [Table("Overhead of GC", header, tuple(rows), (note,))] if rows else []


def _median(run: RunRecord, key: str) -> float:
    return float(np.median([row[key] for row in run.curves]))


def _added(ratios: Sequence[float]) -> str:
    mean, low, high = (100 * (value - 1) for value in (np.mean(ratios), min(ratios), max(ratios)))
    return f"{mean:+.2f} % ({low:+.2f} to {high:+.2f})".replace("-", "−")


def image_counts(records: Sequence[RunRecord]) -> list[Table]:
    """Return Table 6: the numbers the paper prints and those on disk."""
    names = {"#Category": "categories", "#Training": "training", "#Testing": "testing"}
    printed = {(c.row, c.column): int(c.mean) for c in paper_claims.claims() if c.table == 6}
    counts = {record.cell: record.curves[0] for record in records}
    rows = []
    for data in dict.fromkeys(row for row, _ in printed):
        here = counts.get(data)
        cells = [
            f"{printed[data, column]:,} → {here[key]:,}" if here else f"{printed[data, column]:,} → –"
            for column, key in names.items()
        ]
        same = here is not None and all(here[key] == printed[data, column] for column, key in names.items())
        rows.append((data, *cells, "equal" if same else "missing" if here is None else "differs"))
    return [Table("Table 6: paper → here", ("set", *names.values(), ""), tuple(rows))]
