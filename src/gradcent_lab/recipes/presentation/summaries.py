"""Tables that test the captions of figures 3, 4 and 5, computed from the runs that the figures draw."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradcent_lab.analysis.findings import is_baseline
from gradcent_lab.recipes.presentation.figures import GRADIENT_PANELS, split_arms
from gradcent_lab.report.tables import DASH, Table
from gradcent_lab.store.records import RunRecord

SMALL_MEAN = math.exp(-7)  # the caption of Figure 3: "less than e^-7 for most of the weight vectors"


def initial_means(records: Sequence[RunRecord]) -> list[Table]:
    """Return the share of weight vectors whose |mean| is below e⁻⁷ (Figure 3)."""
    rows = []
    for record in records:
        means = np.concatenate([np.asarray(row["abs_means"]) for row in record.curves])
        share = float((means < SMALL_MEAN).mean())
        holds = "holds" if share > 0.5 else "does not hold"
        rows.append(
            (record.cell, f"{len(means):,}", f"{np.median(means):.2g}", f"{100 * share:.0f} %", holds)
        )
    header = ("initialization", "weight vectors", "median of |mean|", "below e⁻⁷", "“most are below e⁻⁷”")
    note = "The paper's caption: the means are “usually very small (less than e⁻⁷) for most of the weight vectors”."
    return [Table("Figure 3: how small the means are", header, tuple(rows), (note,))]


def gradient_history(records: Sequence[RunRecord]) -> list[Table]:
    """Return how much smaller the gradient is with GC, iteration by iteration (Figure 4)."""
    without, with_ = split_arms(records)
    if not without or not with_:
        return []
    off, on = without[0].iterations(), with_[0].iterations()
    steps = min(len(off), len(on))
    if not steps:
        return []
    rows = []
    for key, title in GRADIENT_PANELS.items():
        a, b, same = (
            np.asarray(values)
            for values in (
                [row[key] for row in off[:steps]],
                [row[f"{key}_centralized"] for row in on[:steps]],
                [row[f"{key}_centralized"] / row[key] if row[key] else 1.0 for row in off[:steps]],
            )
        )
        ratio = float(np.median(b) / np.median(a)) if np.median(a) else math.nan
        rows.append(
            (title, f"{ratio:.2f}", f"{100 * float((b < a).mean()):.0f} %", f"{float(np.median(same)):.2f}")
        )
    header = (
        "gradient",
        "median with GC ÷ median without",
        "iterations in which it is smaller with GC",
        "centralized ÷ plain, the same gradient of the run without GC (median)",
    )
    note = (
        f"{steps:,} iterations. The paper's caption says that GC “largely reduces” both. The last column is what the "
        "projection removes from one gradient; the others also contain that the two runs take different paths."
    )
    return [Table("Figure 4: is the gradient smaller?", header, tuple(rows), (note,))]


def four_combinations(records: Sequence[RunRecord]) -> list[Table]:
    """Return last training loss and accuracy of the four combinations, and in how many seeds GC leads (Figure 5)."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.cell if is_baseline(record) else f"{record.cell}+GC", []).append(record)
    rows = []
    for name, runs in groups.items():
        finished = [run for run in runs if not run.diverged]
        if not finished:
            rows.append((name, DASH, DASH, "0"))
            continue
        losses = [run.curves[-1]["train_loss"] for run in finished]
        accuracy = [run.last for run in finished]
        rows.append((name, _mean_std(losses, 3), _mean_std(accuracy, 2), str(len(finished))))
    order = _order_sentence(groups)
    header = ("", "training loss, last epoch", "test accuracy, last epoch, %", "runs")
    return [Table("Figure 5: the four combinations", header, tuple(rows), (order,) if order else ())]


def _order_sentence(groups: dict[str, list[RunRecord]]) -> str:
    """Say in how many seeds GC has the lower training loss and the higher accuracy, with and without WS."""
    parts = []
    for cell in ("BN", "BN+WS"):
        off = {run.seed: run for run in groups.get(cell, []) if not run.diverged}
        on = {run.seed: run for run in groups.get(f"{cell}+GC", []) if not run.diverged}
        seeds = sorted(off.keys() & on.keys())
        if seeds:
            loss = sum(on[s].curves[-1]["train_loss"] < off[s].curves[-1]["train_loss"] for s in seeds)
            better = sum(on[s].last > off[s].last for s in seeds)
            parts.append(
                f"{cell}: GC has the lower training loss in {loss} and the higher test accuracy in {better} of "
                f"{len(seeds)} seeds"
            )
    return "; ".join(parts)


def _mean_std(values: Sequence[float], digits: int) -> str:
    spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{spread}"
