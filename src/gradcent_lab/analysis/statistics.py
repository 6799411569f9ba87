"""Paired statistics: interval, tests, effect size and the difference a study of this size can detect.

The unit is the paired difference: same seed, same initial weights, same batches, with GC minus without.
docs/statistics.md explains each choice and lists the measured coverage of the intervals. Differences keep the
metric's unit; `gain` has the sign turned so that positive is good, also where lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
POWER = 0.80
RESAMPLES = 9999
FEWEST_FOR_BOOTSTRAP = 10  # below, the bootstrap covers less than it says (91.5 % at five pairs)
RECOMMENDED_PAIRS = 5  # fewer pairs can show only a very large effect
MOST_PAIRS = 10_000
EXACT_SIGN_FLIPS = 16  # up to this many pairs all 2^(n-1) sign patterns are enumerated
SIGN_FLIP_ALPHA = (
    0.01  # the sign-flip test alone shows an effect at this level; reachable from eight pairs on
)

IntervalKind = Literal["bootstrap", "Student t", "none"]


@dataclass(frozen=True)
class Summary:
    """n, mean and standard deviation (n − 1) of one arm; std is NaN for a single run."""

    n: int
    mean: float
    std: float


@dataclass(frozen=True)
class Comparison:
    """The paired comparison of one cell.

    `low` and `high` bound the mean difference at confidence 1 − `alpha` (NaN for one pair). `detectable` is the
    true mean difference that this many pairs with this scatter detect with 80 % power (NaN for one pair).
    """

    without: Summary
    with_: Summary
    difference: float
    low: float
    high: float
    interval: IntervalKind
    p_value: float
    sign_flip_p: float
    effect_size: float
    better: int
    worse: int
    scatter: float
    detectable: float
    higher_is_better: bool
    alpha: float = ALPHA

    @property
    def n(self) -> int:
        """Number of pairs."""
        return self.without.n

    @property
    def gain(self) -> float:
        """The difference with its sign turned so that positive means better with GC."""
        return self.difference if self.higher_is_better else -self.difference

    @property
    def bound(self) -> float:
        """The largest absolute difference inside the interval (NaN for one pair)."""
        return max(abs(self.low), abs(self.high))

    @property
    def shown(self) -> bool:
        """Whether the runs show an effect.

        Either the interval excludes 0 and the t-test agrees, or the exact sign-flip test rejects at 1 %. The second
        rule is for differences with an outlier: eight of eight better pairs show an effect, whatever their spread.
        """
        excludes_zero = self.low > 0 or self.high < 0
        by_mean = excludes_zero and self.p_value < self.alpha
        return bool(by_mean or self.sign_flip_p < SIGN_FLIP_ALPHA * self.alpha / ALPHA)


def summarize(values: Sequence[float]) -> Summary:
    """Return n, mean and std of the values.

    >>> summarize([1.0, 2.0, 3.0])
    Summary(n=3, mean=2.0, std=1.0)
    """
    array = np.asarray(values, dtype=np.float64)
    return Summary(len(array), float(array.mean()), float(array.std(ddof=1)) if len(array) > 1 else math.nan)


def compare(
    without: Sequence[float], with_: Sequence[float], higher_is_better: bool = True, comparisons: int = 1
) -> Comparison:
    """Compare two arms whose entries are pairs (entry i of both has seed i).

    `comparisons` is the number of arms that are compared with the same baseline: interval and tests are then
    taken at 5 % / comparisons (Bonferroni), so that all of them together raise a false alarm in at most 5 %.
    """
    if len(without) != len(with_) or not len(without):
        raise ValueError(
            f"paired arms need the same seeds, got {len(without)} runs without and {len(with_)} with"
        )
    difference = np.asarray(with_, dtype=np.float64) - np.asarray(without, dtype=np.float64)
    if not np.isfinite(difference).all():
        raise ValueError("a result is not finite: count diverged runs apart, their mean is undefined")
    alpha = ALPHA / comparisons
    low, high, kind = paired_interval(difference, 1 - alpha)
    gains = difference if higher_is_better else -difference
    scatter = float(difference.std(ddof=1)) if len(difference) > 1 else math.nan
    return Comparison(
        without=summarize(without),
        with_=summarize(with_),
        difference=float(difference.mean()),
        low=low,
        high=high,
        interval=kind,
        p_value=paired_test(difference),
        sign_flip_p=sign_flip_test(difference),
        effect_size=effect_size(difference),
        better=int((gains > 0).sum()),
        worse=int((gains < 0).sum()),
        scatter=scatter,
        detectable=minimum_detectable(len(difference), scatter, alpha),
        higher_is_better=higher_is_better,
        alpha=alpha,
    )


def paired_interval(
    difference: np.ndarray, confidence: float = CONFIDENCE
) -> tuple[float, float, IntervalKind]:
    """Return (low, high, kind) of the mean paired difference.

    Student's interval below ten pairs. From ten pairs on the percentile bootstrap, taken at the wider level that
    corrects its coverage on small samples (Hesterberg 2015). The resamples are seeded, so that the same runs
    always give the same interval.
    """
    n = len(difference)
    if n < 2:
        return math.nan, math.nan, "none"
    mean, quantile = float(difference.mean()), float(stats.t.isf((1 - confidence) / 2, n - 1))
    if n < FEWEST_FOR_BOOTSTRAP:
        half = quantile * float(stats.sem(difference))
        return mean - half, mean + half, "Student t"
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
    """Return the two-sided p-value of the paired t-test.

    Where all differences are equal the t statistic does not exist and the sign test is used instead. Its p-value
    is 1 for a single pair, which tests nothing.
    """
    if np.ptp(difference) <= 1e-12 * np.abs(difference).max():
        moved = int((difference != 0).sum())
        return float(stats.binomtest(moved, moved).pvalue) if moved else 1.0
    return float(stats.ttest_1samp(difference, 0.0).pvalue)


def sign_flip_test(difference: np.ndarray) -> float:
    """Return the two-sided p-value of the sign-flip (permutation) test of the mean difference.

    If GC does nothing, the arms of a pair are exchangeable and every sign pattern of the differences is equally
    likely. The p-value is the share of patterns whose mean is at least as far from 0. No distribution is
    assumed, but with n pairs it cannot be below 2^(1-n): 0.0625 at five pairs, 0.0078 at eight.
    """
    n = len(difference)
    threshold = abs(float(difference.sum())) - 1e-9 * float(np.abs(difference).sum())
    if n <= EXACT_SIGN_FLIPS:
        patterns = np.arange(2**n // 2)[:, None] >> np.arange(n) & 1  # the last sign is fixed by symmetry
        sums = np.abs((1 - 2 * patterns) @ difference)
        return float((sums >= threshold).mean())
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(RESAMPLES, n))
    extreme = int((np.abs(signs @ difference) >= threshold).sum())
    return (extreme + 1) / (RESAMPLES + 1)


def effect_size(difference: np.ndarray) -> float:
    """Return Hedges' g of the paired differences: mean over std, corrected for few pairs.

    NaN for one or two pairs, whose correction is not defined, and where all differences are equal and not 0.
    """
    n = len(difference)
    if n > 1 and not difference.any():
        return 0.0
    if n < 3 or np.ptp(difference) == 0:
        return math.nan
    correction = 1 - 3 / (4 * (n - 1) - 1)
    return float(correction * difference.mean() / difference.std(ddof=1))


def minimum_detectable(pairs: int, scatter: float, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the true mean difference that a t-test on `pairs` pairs with this scatter detects with this power.

    It depends on the scatter of the differences and not on their mean, so it is no post-hoc power.
    """
    if pairs < 2 or not math.isfinite(scatter):
        return math.nan
    return _detectable_ratio(pairs, alpha, power) * scatter


@cache
def _detectable_ratio(pairs: int, alpha: float, power: float) -> float:
    """The detectable mean in standard deviations, by bisection."""
    low, high = 0.0, 1.0  # bounds of ratio / (1 + ratio)
    for _ in range(40):
        middle = (low + high) / 2
        enough = _power(pairs, middle / (1 - middle), alpha) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high / (1 - high)


def pairs_to_detect(
    difference: float, scatter: float, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """Return how many pairs with this scatter detect a true mean difference; None beyond 10,000 or if unknown."""
    if not (math.isfinite(scatter) and difference > 0):
        return None
    if scatter == 0:
        return 2
    ratio = difference / scatter
    if _power(MOST_PAIRS, ratio, alpha) < power:
        return None
    low, high = 1, MOST_PAIRS  # power grows with n: bisect for the first n that suffices
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(middle, ratio, alpha) >= power else (middle, high)
    return high


def _power(pairs: int, ratio: float, alpha: float) -> float:
    """Power of the two-sided paired t-test for a true mean of `ratio` standard deviations."""
    # computed as the F test of its square: scipy's noncentral t returns NaN in its far tail
    critical = float(stats.t.isf(alpha / 2, pairs - 1)) ** 2
    return float(stats.ncf.sf(critical, 1, pairs - 1, pairs * ratio**2))


def multiple_comparisons(comparisons: Sequence[Comparison]) -> str | None:
    """Return the note under a table of several comparisons, or None for fewer than two."""
    tested = [comparison.p_value for comparison in comparisons if comparison.n > 1]
    if len(tested) < 2:
        return None
    shown = sum(p < ALPHA for p in tested)
    kept = int((stats.false_discovery_control(tested) < ALPHA).sum())
    chance = len(tested) * ALPHA
    return (
        f"{len(tested)} comparisons: about {chance:.1f} would have p < 0.05 by chance alone. "
        f"{shown} do here; {kept} after the Benjamini–Hochberg correction."
    )
