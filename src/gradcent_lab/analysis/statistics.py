"""What paired runs can and cannot say: interval, test, effect size, seeds needed, verdict.

The unit is the paired difference: same seed, same initial weights, same batches, with GC minus
without. Everything is computed by scipy; docs/statistics.md explains each choice and the coverage
measured for the intervals. Differences are kept in the metric's own unit; `gain` turns the sign so that
positive is good, also where lower is better (error rates, losses).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from gradcent_lab.analysis.paper_claims import PairedClaim

Verdict = Literal["reproduced", "same direction", "no effect", "opposite", "not run at this scale"]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced",
    "same direction",
    "no effect",
    "opposite",
    "not run at this scale",
)

CONFIDENCE = 0.95
POWER = 0.80
RESAMPLES = 9999
FEWEST_FOR_BOOTSTRAP = 5  # resampling fewer pairs cannot reach 95 %: it never leaves their range
MOST_SEEDS = 10_000


@dataclass(frozen=True, slots=True)
class Summary:
    """n, mean and standard deviation (n − 1) of one arm; std is NaN for a single run."""

    n: int
    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The paired comparison of one cell; `low` and `high` bound the mean difference (NaN for n = 1)."""

    without: Summary
    with_: Summary
    difference: float
    low: float
    high: float
    interval: Literal["bootstrap", "Student t", "none"]
    p_value: float
    effect_size: float
    better: int
    seeds_needed: int | None
    higher_is_better: bool

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.without.n

    @property
    def gain(self) -> float:
        """The difference with its sign turned so that positive means better with GC."""
        return self.difference if self.higher_is_better else -self.difference

    @property
    def shown(self) -> bool:
        """Whether the runs show an effect: the interval leaves out 0 and the paired test agrees."""
        return bool(self.p_value < 1 - CONFIDENCE and (self.low > 0 or self.high < 0))


def summarize(values: Sequence[float]) -> Summary:
    """Return n, mean and std of the values.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(n=3, mean=2.0, std=1.0)
    """
    array = np.asarray(values, dtype=np.float64)
    return Summary(len(array), float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan)


def compare(without: Sequence[float], with_: Sequence[float], higher_is_better: bool = True) -> Comparison:
    """Compare two arms whose entries are pairs (entry i of both has seed i)."""
    if len(without) != len(with_) or not len(without):
        raise ValueError(
            f"paired arms need the same seeds, got {len(without)} runs without and {len(with_)} with"
        )
    difference = np.asarray(with_, dtype=np.float64) - np.asarray(without, dtype=np.float64)
    if not np.isfinite(difference).all():
        raise ValueError("a result is not finite: a run diverged, and a mean over it means nothing")
    low, high, kind = paired_interval(difference)
    gains = difference if higher_is_better else -difference
    return Comparison(
        without=summarize(without),
        with_=summarize(with_),
        difference=float(difference.mean()),
        low=low,
        high=high,
        interval=kind,
        p_value=paired_test(difference),
        effect_size=effect_size(difference),
        better=int((gains > 0).sum()),
        seeds_needed=seeds_needed(difference),
        higher_is_better=higher_is_better,
    )


def paired_interval(
    difference: np.ndarray, confidence: float = CONFIDENCE
) -> tuple[float, float, Literal["bootstrap", "Student t", "none"]]:
    """Return (low, high, kind) of the mean paired difference.

    The percentile bootstrap, taken at the wider level that makes it cover what it says on small samples
    (Hesterberg 2015): plain, it would cover 84 % instead of 95 % at five pairs. Under five pairs no
    bootstrap can reach 95 % and Student's interval is used. The resamples are seeded, so that the same
    runs always give the same interval.
    """
    n = len(difference)
    if n < 2:
        return math.nan, math.nan, "none"
    mean, quantile = float(difference.mean()), float(stats.t.isf((1 - confidence) / 2, n - 1))
    if n < FEWEST_FOR_BOOTSTRAP:
        half = quantile * float(stats.sem(difference))
        return mean - half, mean + half, "Student t"
    if np.ptp(difference) == 0:
        return mean, mean, "bootstrap"
    level = 1 - 2 * float(stats.norm.sf(math.sqrt(n / (n - 1)) * quantile))
    result = stats.bootstrap(
        (difference,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high), "bootstrap"


def paired_test(difference: np.ndarray) -> float:
    """Return the two-sided p-value of the paired t-test; 1 for a single pair, which tests nothing.

    Where all differences are equal the t statistic does not exist, and the sign test answers instead.
    """
    n = len(difference)
    if n < 2:
        return 1.0
    if np.ptp(difference) <= 1e-12 * np.abs(difference).max():
        moved = int((difference != 0).sum())
        return float(stats.binomtest(moved, moved).pvalue) if moved else 1.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def effect_size(difference: np.ndarray) -> float:
    """Return Hedges' g of the paired differences: mean over std, corrected for few pairs."""
    n = len(difference)
    if n < 2 or np.ptp(difference) == 0:
        return math.nan if n < 2 or difference[0] != 0 else 0.0
    correction = 1 - 3 / (4 * (n - 1) - 1)
    return float(correction * difference.mean() / difference.std(ddof=1))


def seeds_needed(difference: np.ndarray, power: float = POWER) -> int | None:
    """Return how many pairs would show a difference of this size and scatter with the given power.

    None where that cannot be said (one pair, or no difference at all) or would be over 10,000.
    """
    n = len(difference)
    if n < 2 or difference.mean() == 0:
        return None
    if np.ptp(difference) == 0:
        return 2
    ratio = abs(float(difference.mean() / difference.std(ddof=1)))

    def enough(pairs: int) -> bool:
        return _power(pairs, ratio) >= power

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS  # power grows with n: bisect for the first n that is enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _power(pairs: int, ratio: float) -> float:
    """Power of the two-sided paired t-test at 5 %, for a true mean of `ratio` standard deviations."""
    # as the F test of its square: scipy's noncentral t returns NaN in its far tail
    critical = float(stats.t.isf((1 - CONFIDENCE) / 2, pairs - 1)) ** 2
    return float(stats.ncf.sf(critical, 1, pairs - 1, pairs * ratio**2))


def verdict(comparison: Comparison | None, claim: PairedClaim | None = None, scale: str = "own") -> Verdict:
    """Return the verdict on the claim that GC helps, in the house's five words.

    `reproduced` is said only of a run at the paper's scale whose difference agrees with the printed one
    within both errors; a smaller or another set-up that shows the same sign is `same direction`.
    One pair has no interval, and so no verdict.
    """
    if comparison is None or comparison.n < 2:
        return "not run at this scale"
    if not comparison.shown:
        return "no effect"
    if comparison.gain < 0:
        return "opposite"
    if claim is None or scale != "paper":
        return "same direction"
    own = (comparison.high - comparison.low) / (2 * stats.t.isf((1 - CONFIDENCE) / 2, comparison.n - 1))
    allowed = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * math.hypot(own, claim.standard_error or 0.0)
    return "reproduced" if abs(comparison.difference - claim.difference) <= allowed else "same direction"


def multiple_comparisons(comparisons: Sequence[Comparison]) -> str | None:
    """Return the note that belongs under a table of several comparisons, or None for fewer than two."""
    tested = [comparison.p_value for comparison in comparisons if comparison.n > 1]
    if len(tested) < 2:
        return None
    shown = sum(p < 1 - CONFIDENCE for p in tested)
    kept = int((stats.false_discovery_control(tested) < 1 - CONFIDENCE).sum())
    chance = len(tested) * (1 - CONFIDENCE)
    return (
        f"{len(tested)} comparisons: about {chance:.1f} would have p < 0.05 by chance alone. "
        f"{shown} do here; {kept} after the Benjamini–Hochberg correction."
    )
