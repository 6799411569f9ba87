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
    named = [*facts.get("false_promises", ()), *facts.get("missed_harms", ())]
    caption = "Forecast against outcome; false promises and missed harms carry their name."
    return [Picture("forecast", calibration(points, named, scale_text), caption)]


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
    rho, low, high = facts["rank_correlation_fresh"]
    rows = (
        ("tasks in the first and second half", f"{facts['fitted_tasks']} and {facts['fresh_tasks']}"),
        ("rank correlation of share removed and change of loss", f"{rho:+.2f} [{low:+.2f}, {high:+.2f}]"),
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
    text = f"{100 * change.mean:+.0f} [{100 * change.low:+.0f}, {100 * change.high:+.0f}]"
    return f"{text}, {change.diverged:+d} diverged" if change.diverged else text
