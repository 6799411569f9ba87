"""What the calibration found: the forecast of each task beside its outcome, and how well one predicts the other.

The families are divided at random into two halves. Ranges and the warning threshold are fixed on the first
half; coverage, false promises and missed harms are counted on the second, whose tasks they have not seen.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from gradcent.calibration import FEWEST, NOTICEABLE, range_of
from gradcent_lab.forecasting.calibration.study import Row, best_lr
from gradcent_lab.forecasting.calibration.tasks import Task, all_tasks

HALVES_SEED = 18  # chosen before any run


@dataclass(frozen=True)
class Change:
    """The paired change of a loss in an arm with GC, relative to the arm without: −0.3 is 30 % lower."""

    mean: float
    low: float
    high: float
    better: int
    pairs: int
    diverged: int

    @property
    def slower(self) -> bool:
        """Whether the loss is noticeably higher, and not by chance."""
        return self.diverged > 0 or (self.mean > NOTICEABLE and self.low > 0)

    @property
    def faster(self) -> bool:
        """Whether the loss is noticeably lower, and not by chance."""
        return self.diverged == 0 and self.mean < -NOTICEABLE and self.high < 0


@dataclass(frozen=True)
class Outcome:
    """One task: what the forecast read, and what training with tuned arms showed."""

    task: Task
    removed: float
    removed_std: float
    explained: float | None
    curvature: float | None  # λmax(H)/λmax(PHP) at initialization, mean over seeds
    learning_rates: dict[str, float]
    train: dict[str, Change]  # by arm: all, hidden
    test: dict[str, Change]

    @property
    def harmed(self) -> bool:
        """Whether GC in all layers makes training slower or the test loss worse."""
        return self.train["all"].slower or self.test["all"].slower

    @property
    def harmed_hidden(self) -> bool:
        """The same for GC in the hidden layers only."""
        return self.train["hidden"].slower or self.test["hidden"].slower


def outcomes(rows_by_task: Mapping[str, Sequence[Row]]) -> list[Outcome]:
    """Return the outcome of every task that has rows, in the order of the tasks."""
    return [outcome(task, rows_by_task[task.name]) for task in all_tasks() if task.name in rows_by_task]


def outcome(task: Task, rows: Sequence[Row]) -> Outcome:
    """Return what the lines of a task say."""
    forecasts = [row for row in rows if row["phase"] == "forecast"]
    shares = [row["removed"] for row in forecasts]
    ratios = [row["curvature"] for row in forecasts if row["curvature"] is not None]
    return Outcome(
        task=task,
        removed=float(np.mean(shares)),
        removed_std=float(np.std(shares, ddof=1)) if len(shares) > 1 else 0.0,
        explained=forecasts[0]["explained"],
        curvature=float(np.mean(ratios)) if ratios else None,
        learning_rates={arm: best_lr(rows, arm) for arm in ("off", "all", "hidden")},
        train={arm: paired_change(rows, arm, "train_loss") for arm in ("all", "hidden")},
        test={arm: paired_change(rows, arm, "test_loss") for arm in ("all", "hidden")},
    )


def paired_change(rows: Iterable[Row], arm: str, loss: str) -> Change:
    """Compare an arm with the arm without GC, seed by seed, on the logarithm of the loss (Student's interval)."""
    losses: dict[str, dict[int, float]] = {"off": {}, arm: {}}
    for row in rows:
        if row["phase"] == "compare" and row["arm"] in losses:
            losses[row["arm"]][row["seed"]] = math.inf if row["diverged"] else row[loss]
    seeds = sorted(losses["off"].keys() & losses[arm].keys())
    pairs = [(losses["off"][seed], losses[arm][seed]) for seed in seeds]
    finite = [(off, on) for off, on in pairs if math.isfinite(off) and math.isfinite(on)]
    diverged = sum(not math.isfinite(on) for _, on in pairs) - sum(not math.isfinite(off) for off, _ in pairs)
    logs = np.log([max(on, 1e-12) / max(off, 1e-12) for off, on in finite])
    if len(logs) < 2:
        return Change(math.nan, math.nan, math.nan, 0, len(pairs), diverged)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    mean = logs.mean()
    low, center, high = (float(math.expm1(value)) for value in (mean - half, mean, mean + half))
    return Change(center, low, high, int((logs < 0).sum()), len(pairs), diverged)


def halves(found: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Divide the tasks by family into the half that fixes thresholds and the half that checks them."""
    families = sorted({task.family for task in all_tasks()})
    random.Random(HALVES_SEED).shuffle(families)
    first = set(families[: len(families) // 2])
    return (
        [entry for entry in found if entry.task.family in first],
        [entry for entry in found if entry.task.family not in first],
    )


Range = tuple[float, float]


def ranges(fitted: Sequence[Outcome]) -> dict[Range, tuple[float, float, float]]:
    """Return (lowest, median, highest) change of the training loss for each range with enough tasks."""
    grouped: dict[Range, list[float]] = {}
    for entry in fitted:
        if math.isfinite(entry.train["all"].mean):
            grouped.setdefault(range_of(entry.removed), []).append(entry.train["all"].mean)
    return {
        key: (min(values), float(np.median(values)), max(values))
        for key, values in sorted(grouped.items())
        if len(values) >= FEWEST
    }


def warning_threshold(fitted: Sequence[Outcome]) -> float:
    """Return the share of the target explained by the input mean that best separates harm from no harm.

    "Best" is the largest sum of sensitivity and specificity on the first half; ties take the lower threshold.
    """
    known = [(entry.explained, entry.harmed) for entry in fitted if entry.explained is not None]
    harms = sum(harm for _, harm in known)
    if not harms or harms == len(known):
        return 0.5
    values = sorted({value for value, _ in known})
    candidates = [0.0, *((a + b) / 2 for a, b in itertools.pairwise(values))]

    def score(threshold: float) -> float:
        caught = sum(harm and value >= threshold for value, harm in known) / harms
        quiet = sum(not harm and value < threshold for value, harm in known) / (len(known) - harms)
        return caught + quiet

    return max(candidates, key=lambda threshold: (round(score(threshold), 9), -threshold))


def rank_correlation(
    found: Sequence[Outcome],
    *,
    by: Literal["removed", "curvature"] = "removed",
    of: Literal["train", "test"] = "train",
    resamples: int = 1000,
) -> tuple[float, float, float]:
    """Return Spearman's correlation of a forecast and the change of a loss, with a bootstrap 95 % interval.

    The bootstrap draws whole families, because tasks of one family resemble each other.
    """
    by_family: dict[str, list[tuple[float, float]]] = {}
    for entry in found:
        pair = (getattr(entry, by), getattr(entry, of)["all"].mean)
        if pair[0] is not None and math.isfinite(pair[1]):
            by_family.setdefault(entry.task.family, []).append(pair)
    families = [np.array(pairs) for pairs in by_family.values()]
    rho = _spearman(np.concatenate(families)) if families else math.nan
    if math.isnan(rho):
        return math.nan, math.nan, math.nan
    generator = np.random.default_rng(0)
    values = [
        _spearman(
            np.concatenate([families[i] for i in generator.integers(len(families), size=len(families))])
        )
        for _ in range(resamples)
    ]
    low, high = np.nanquantile(values, [0.025, 0.975])
    return rho, float(low), float(high)


def _spearman(pairs: Any) -> float:
    """Return the correlation of the ranks; nan if one side is constant."""
    ranks = stats.rankdata(pairs, axis=0)
    ranks = ranks - ranks.mean(0)
    scale = math.sqrt(float((ranks[:, 0] ** 2).sum() * (ranks[:, 1] ** 2).sum()))
    return float((ranks[:, 0] * ranks[:, 1]).sum()) / scale if scale else math.nan


def check(found: Sequence[Outcome]) -> dict[str, Any]:
    """Fix ranges and threshold on the first half, and count on the second how they hold."""
    fitted, fresh = halves(found)
    known, threshold = ranges(fitted), warning_threshold(fitted)

    def promised(entry: Outcome) -> bool:
        """Whether the forecast says faster: most tasks of its range were, and nothing warns of harm."""
        warned = entry.explained is not None and entry.explained >= threshold
        return known.get(range_of(entry.removed), (0, 0, 0))[1] < -NOTICEABLE and not warned

    def is_covered(entry: Outcome) -> bool:
        low, _, high = known[range_of(entry.removed)]
        return low - NOTICEABLE <= entry.train["all"].mean <= high + NOTICEABLE

    described = [entry for entry in fresh if range_of(entry.removed) in known]
    uncovered = [entry for entry in described if not is_covered(entry)]
    harms = [entry for entry in fresh if entry.harmed]
    missed = [entry for entry in harms if entry.explained is None or entry.explained < threshold]
    false = [entry for entry in fresh if promised(entry) and entry.train["all"].slower]
    return {
        "tasks": len(found),
        "fitted_tasks": len(fitted),
        "fresh_tasks": len(fresh),
        "ranges": {
            f"{low:.2f}-{high:.2f}": [round(value, 4) for value in known[low, high]] for low, high in known
        },
        "warning_threshold": round(threshold, 4),
        "rank_correlation_fitted": [round(value, 3) for value in rank_correlation(fitted)],
        "rank_correlation_fresh": [round(value, 3) for value in rank_correlation(fresh)],
        "rank_correlation_test_fresh": [round(value, 3) for value in rank_correlation(fresh, of="test")],
        "rank_correlation_curvature_fresh": [
            round(value, 3) for value in rank_correlation(fresh, by="curvature")
        ],
        "covered": len(described) - len(uncovered),
        "coverage_of": len(described),
        "uncovered": [entry.task.name for entry in uncovered],
        "promises": sum(promised(entry) for entry in fresh),
        "false_promises": [entry.task.name for entry in false],
        "harms": len(harms),
        "missed_harms": [entry.task.name for entry in missed],
        "false_warnings": [
            entry.task.name
            for entry in fresh
            if entry.explained is not None and entry.explained >= threshold and not entry.harmed
        ],
        "harms_removed_by_hidden": sum(not entry.harmed_hidden for entry in harms),
    }
