"""Stopping rule that may be checked after every pair: mixture t e-value and its confidence sequence.

Repeating a t-test after every pair until p < 0.05 raises a false alarm in 23 % of null cases (3 to 20 pairs). An
e-value is a bet against "GC makes no difference" that cannot win in expectation if that is true, so
E ≥ 20 happens with probability at most 5 % however often one looks (Ville's inequality). The e-value here mixes
the t likelihood ratio over effect sizes, with a normal prior of variance 1/g for mean / standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import betaln

from gradcent_lab.analysis.statistics import ALPHA, Comparison, pairs_to_detect
from gradcent_lab.analysis.verdict import Divergence, Verdict

PRIOR = 0.25  # g: the prior of the effect size has variance 1/g = 4
FEWEST_PAIRS = 3
MOST_PAIRS = 20
EQUAL_PAIRS = 8  # pairs without any scatter that decide; the sign e-value of eight equal signs is 28

Outcome = Literal["helps", "hurts", "equivalent", "undecided"]


@dataclass(frozen=True)
class Decision:
    """What the pairs so far decide; `low` and `high` are the confidence sequence (infinite at first)."""

    outcome: Outcome
    n: int
    e_value: float
    low: float
    high: float


def log_e_value(difference: Sequence[float], null: float = 0.0, prior: float = PRIOR) -> float:
    """Return the log of the mixture t e-value against a mean difference of `null`.

    log E = ½·log(g/(g+n)) + (n/2)·[log(1 + t²/ν) − log(1 + (g/(g+n))·t²/ν)], with ν = n − 1.
    """
    values = np.asarray(difference, dtype=np.float64) - null
    n = len(values)
    if n < 2:
        return 0.0
    ratio = prior / (prior + n)
    variance = float(values.var(ddof=1))
    if np.ptp(values) <= 1e-12 * float(np.abs(values).max()):
        return sign_log_e_value(n if values[0] > 0 else 0, n if values[0] < 0 else 0)
    squared_t = n * float(values.mean()) ** 2 / variance
    scaled = squared_t / (n - 1)
    return 0.5 * math.log(ratio) + n / 2 * (math.log1p(scaled) - math.log1p(ratio * scaled))


def sign_log_e_value(positive: int, negative: int) -> float:
    """Return the log e-value against equal chances of two outcomes, mixed uniformly over the chance.

    >>> round(math.exp(sign_log_e_value(8, 0)), 1)
    28.4
    """
    return (positive + negative) * math.log(2) + float(betaln(positive + 1, negative + 1))


def confidence_sequence(
    difference: Sequence[float], alpha: float = ALPHA, prior: float = PRIOR
) -> tuple[float, float]:
    """Return the interval of mean differences that the e-value has not rejected; infinite while too few pairs.

    With probability 1 − alpha all intervals of a study hold the true mean, so it may be read after every pair.
    """
    values = np.asarray(difference, dtype=np.float64)
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    mean, deviation = float(values.mean()), float(values.std(ddof=1))
    ratio = prior / (prior + n)
    # E < 1/alpha  <=>  (1 + u) / (1 + ratio·u) < k, with u = t²/ν; solved for u
    k = math.exp(2 / n * (-math.log(alpha) - 0.5 * math.log(ratio)))
    if k * ratio >= 1:
        return -math.inf, math.inf
    half = math.sqrt((k - 1) / (1 - k * ratio) * (n - 1) / n) * deviation
    return mean - half, mean + half


def decide(
    difference: Sequence[float],
    margin: float,
    *,
    higher_is_better: bool = True,
    divergence: Divergence | None = None,
    alpha: float = ALPHA,
) -> Decision:
    """Return what the pairs so far decide, by the rule that may be applied after every pair.

    `difference` holds the pairs in which both runs finished. An arm that diverges more often is decided by the
    sign e-value of the pairs in which only one run diverged.
    """
    values = np.asarray(difference, dtype=np.float64)
    n = len(values)
    divergence = divergence or Divergence(n)
    log_e = log_e_value(difference)
    low, high = confidence_sequence(difference, alpha)
    threshold = -math.log(alpha)
    outcome: Outcome = "undecided"
    surplus = divergence.only_with - divergence.only_without
    diverged = sign_log_e_value(divergence.only_with, divergence.only_without)
    scatter = n > 1 and float(np.ptp(values)) > 0
    if diverged >= threshold:
        outcome, log_e = ("hurts" if surplus > 0 else "helps"), diverged
    elif n >= FEWEST_PAIRS and log_e >= threshold:
        gain = float(values.mean()) * (1 if higher_is_better else -1)
        outcome = "helps" if gain > 0 else "hurts"
    elif n >= (FEWEST_PAIRS if scatter else EQUAL_PAIRS) and -margin <= low and high <= margin:
        outcome = "equivalent"
    # the pairs that survived are selected: they cannot decide for the arm that diverges more often
    if diverged < threshold and (
        (outcome == "helps" and surplus > 0)
        or (outcome == "hurts" and surplus < 0)
        or (outcome == "equivalent" and surplus)
    ):
        outcome = "undecided"
    return Decision(outcome, n, math.exp(min(log_e, 700.0)), low, high)


def decided(
    decision: Decision, margin: float, comparison: Comparison | None, divergence: Divergence
) -> Verdict:
    """Return the decision as a verdict."""
    surplus = divergence.only_with - divergence.only_without
    because: Literal["", "divergence"] = "divergence" if surplus and decision.outcome == "undecided" else ""
    if decision.outcome == "undecided":
        needed = pairs_to_detect(margin, comparison.scatter, comparison.alpha) if comparison else None
        more = None if needed is None or comparison is None else max(needed - comparison.n, 1)
        return Verdict("inconclusive", margin=margin, more_pairs=more, because=because)
    if decision.outcome == "equivalent":
        return Verdict("equivalent", bound=max(abs(decision.low), abs(decision.high)), margin=margin)
    return Verdict(decision.outcome, margin=margin)
