"""How the calibration is shown: forecast against outcome, what the second half says, and every task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradcent_lab.forecasting.calibration.outcomes import Change, Outcome, check, outcomes
from gradcent_lab.report.figures.forecast import OutcomePoint, calibration
from gradcent_lab.report.section import Picture
from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord

CONTRADICTIONS = ("false_promises", "missed_harms", "uncovered")
FEWEST = 20  # tasks below which halves and correlations mean nothing


def read_outcomes(records: Sequence[RunRecord]) -> list[Outcome]:
    """Return the outcomes of the stored tasks."""
    return outcomes({record.cell: record.curves for record in records})


def figures(records: Sequence[RunRecord], scale_text: str) -> list[Picture]:
    """Forecast against outcome, the exceptions named."""
    found = read_outcomes(records)
    points = [
        OutcomePoint(
            entry.task.name,
            entry.removed,
            entry.train["all"].mean,
            entry.train["all"].low,
            entry.train["all"].high,
            entry.task.expected,
        )
        for entry in found
    ]
    facts: dict[str, Any] = check(found) if len(found) >= FEWEST else {}
    contradicting = {name for kind in CONTRADICTIONS for name in facts.get(kind, ())}
    named = [entry.task.name for entry in sorted(found, key=_position) if entry.task.name in contradicting]
    key = "; ".join(f"{number} {name}" for number, name in enumerate(named, start=1))
    caption = (
        "Forecast against outcome, with 95 % intervals over 8 seeds. Numbers mark the tasks of the second half of the "
        "families that contradict the forecast (slower than promised, harmed without a warning, or outside the range "
        f"of the first half): {key or 'none'}."
    )
    scale_text = f"{scale_text} {key}".strip()
    return [Picture("forecast", calibration(points, named, scale_text), caption)]


def _position(entry: Outcome) -> tuple[float, float]:
    return entry.removed, entry.train["all"].mean


def tables(records: Sequence[RunRecord]) -> list[Table]:
    """The check on the second half, and every task."""
    found = read_outcomes(records)
    every = Table(
        "Every task",
        (
            "task",
            "removed, %",
            "target from input mean",
            "GC in all layers",
            "hidden layers",
            "test, all",
            "test, hidden",
        ),
        tuple(
            (
                entry.task.name,
                f"{100 * entry.removed:.0f} ± {100 * entry.removed_std:.0f}",
                "–" if entry.explained is None else f"{entry.explained:.2f}",
                change_text(entry.train["all"]),
                change_text(entry.train["hidden"]),
                change_text(entry.test["all"]),
                change_text(entry.test["hidden"]),
            )
            for entry in sorted(found, key=lambda entry: entry.removed)
        ),
        (
            "Change of the mean training loss, or of the test loss, in %, with its 95 % interval over 8 pairs. Each "
            "arm is tuned over the same learning rates.",
        ),
    )
    return [*([check_table(check(found))] if len(found) >= FEWEST else []), every]


def check_table(facts: dict[str, Any]) -> Table:
    """What was fixed on the first half of the families and what the second half says about it."""

    def interval(values: Sequence[float]) -> str:
        rho, low, high = values
        return f"{rho:+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")

    rows = (
        ("tasks in the first and second half", f"{facts['fitted_tasks']} and {facts['fresh_tasks']}"),
        (
            "rank correlation of share removed and change of the training loss",
            interval(facts["rank_correlation_fresh"]),
        ),
        ("the same for the test loss", interval(facts["rank_correlation_test_fresh"])),
        (
            "rank correlation of λmax(H)/λmax(PHP) and change of loss",
            interval(facts["rank_correlation_curvature_fresh"]),
        ),
        ("rank correlation on the first half, for comparison", interval(facts["rank_correlation_fitted"])),
        ("changes inside the predicted range", f"{facts['covered']} of {facts['coverage_of']}"),
        ("promised faster, was slower", f"{len(facts['false_promises'])} of {facts['promises']}"),
        ("harms without a warning", f"{len(facts['missed_harms'])} of {facts['harms']}"),
        ("warnings without harm", str(len(facts["false_warnings"]))),
        ('harms that layers="hidden" removes', f"{facts['harms_removed_by_hidden']} of {facts['harms']}"),
        ("warning threshold, fixed on the first half", f"{facts['warning_threshold']:.2f}"),
    )
    return Table("The second half of the families, which fixed nothing", ("figure", "value"), rows)


def change_text(change: Change) -> str:
    """Return a change in % with its interval."""
    if not math.isfinite(change.mean):
        return f"{change.diverged} diverged"
    numbers = [
        f"{round(100 * value):+d}".replace("-", "−") for value in (change.mean, change.low, change.high)
    ]
    text = f"{numbers[0]} [{numbers[1]}, {numbers[2]}]".replace("+0", "0")
    return f"{text}, {change.diverged:+d} diverged" if change.diverged else text
