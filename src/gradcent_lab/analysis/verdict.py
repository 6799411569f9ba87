"""Verdicts: what paired runs say about GC, and which advice follows.

Two vocabularies. A user's experiment: helps, hurts, no difference larger than X, inconclusive. A claim of the
paper: reproduced, same direction, opposite, and the same two words where no effect is shown. "Not known" is
never reported as "no effect".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scipy import stats

from gradcent_lab.analysis.paper_claims import PairedClaim
from gradcent_lab.analysis.statistics import ALPHA, Comparison, pairs_to_detect

Kind = Literal[
    "helps",
    "hurts",
    "equivalent",
    "inconclusive",
    "reproduced",
    "same direction",
    "opposite",
    "not run at this scale",
]

PERCENT_MARGIN = 1.0  # default margin of a metric in percent, in points
RELATIVE_MARGIN = 0.02  # default margin of every other metric, as a share of the mean without GC
NEAR_POINTS = 1.0  # an arm's mean is near the paper's within this many units of its table …
NEAR_STDS = 3.0  # … or this many of its printed standard deviations


@dataclass(frozen=True)
class Divergence:
    """Diverged runs of both arms over the pairs of one comparison."""

    pairs: int
    without: int = 0  # pairs in which the run without GC diverged
    with_: int = 0  # pairs in which the run with GC diverged
    only_without: int = 0
    only_with: int = 0

    @property
    def any(self) -> bool:
        """Whether any run diverged."""
        return bool(self.without or self.with_)

    @property
    def p_value(self) -> float:
        """Two-sided exact McNemar test: do the arms diverge equally often?"""
        discordant = self.only_without + self.only_with
        return float(stats.binomtest(self.only_with, discordant).pvalue) if discordant else 1.0


@dataclass(frozen=True)
class Verdict:
    """A verdict and the numbers it needs.

    bound: for `equivalent`, the largest absolute difference inside the interval.
    margin: the difference below which a user would not care.
    more_pairs: for `inconclusive`, how many more pairs detect a difference of `margin` with 80 % power at the
        scatter seen; None where that is unknown or beyond 10,000.
    because: why a verdict does not follow from the mean alone: "divergence", or "batch norm" where the difference
        comes from stale BatchNorm statistics.
    """

    kind: Kind
    bound: float | None = None
    margin: float | None = None
    more_pairs: int | None = None
    because: Literal["", "divergence", "batch norm"] = ""

    @property
    def label(self) -> str:
        """The verdict in a few words, for tables.

        >>> Verdict("equivalent", bound=0.4321).label, Verdict("inconclusive").label
        ('no difference larger than 0.44', 'inconclusive')
        """
        if self.kind == "equivalent" and self.bound is not None:
            return f"no difference larger than {round_up(self.bound)}"
        return "no difference larger than X" if self.kind == "equivalent" else self.kind


def round_up(value: float, digits: int = 2) -> str:
    """Return a bound with two significant digits, rounded away from 0 so that the statement stays true.

    >>> round_up(0.4321), round_up(12.01), round_up(0.0), round_up(3.0)
    ('0.44', '13', '0', '3.0')
    """
    if value <= 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(value))
    scaled = math.ceil(value * 10.0**places - 1e-9) / 10.0**places
    return f"{scaled:.{max(places, 0)}f}"


def default_margin(metric: str, mean_without: float) -> float:
    """Return the margin used where the user gives none: 1 point of a percentage, 2 % of the mean otherwise.

    >>> default_margin("accuracy, %", 90.0), default_margin("loss", 1.5)
    (1.0, 0.03)
    """
    return PERCENT_MARGIN if "%" in metric else RELATIVE_MARGIN * abs(mean_without)


def judge(comparison: Comparison | None, margin: float, divergence: Divergence | None = None) -> Verdict:
    """Return the verdict on a user's experiment.

    Pairs in which both runs finished decide by their mean. Diverged runs can overrule that: an arm that
    diverges significantly more often loses, and an arm that diverges more often at all cannot win by the
    mean of the pairs that survived, because those are selected.
    """
    divergence = divergence or Divergence(0)
    if divergence.p_value < ALPHA:
        return Verdict(
            "hurts" if divergence.only_with > divergence.only_without else "helps", because="divergence"
        )
    if comparison is None:
        return Verdict("inconclusive", margin=margin, because="divergence" if divergence.any else "")
    kind: Kind = "inconclusive"
    if comparison.shown:
        kind = "helps" if comparison.gain > 0 else "hurts"
    elif comparison.n > 1 and comparison.bound <= margin:
        kind = "equivalent"
    surplus = divergence.only_with - divergence.only_without
    selected = (
        (kind == "helps" and surplus > 0)
        or (kind == "hurts" and surplus < 0)
        or (kind == "equivalent" and surplus)
    )
    if selected:
        return Verdict("inconclusive", margin=margin, because="divergence")
    if kind == "equivalent":
        return Verdict(kind, bound=comparison.bound, margin=margin)
    if kind == "inconclusive":
        needed = pairs_to_detect(margin, comparison.scatter, comparison.alpha)
        more = None if needed is None else max(needed - comparison.n, 1)
        return Verdict(kind, margin=margin, more_pairs=more)
    return Verdict(kind, margin=margin)


def judge_claim(
    comparison: Comparison | None,
    claim: PairedClaim | None,
    *,
    paper_scale: bool,
    default_switches: bool,
    margin: float,
    divergence: Divergence | None = None,
) -> Verdict:
    """Return the verdict on a claim of the paper.

    `reproduced` needs the paper's scale and default switches, both arm means near the printed ones, a difference
    that agrees with the printed one within both errors, and an interval that excludes half the printed effect.
    """
    if comparison is None and not (divergence and divergence.any):
        return Verdict("not run at this scale")
    verdict = judge(comparison, margin, divergence)
    if verdict.kind == "hurts":
        return Verdict("opposite", because=verdict.because)
    if verdict.kind != "helps":
        return verdict
    if (
        claim is not None
        and comparison is not None
        and not (divergence and divergence.any)
        and paper_scale
        and default_switches
        and _agrees(comparison, claim)
    ):
        return Verdict("reproduced")
    return Verdict("same direction", because=verdict.because)


def _agrees(comparison: Comparison, claim: PairedClaim) -> bool:
    """Whether arm means, difference and interval agree with the printed numbers."""
    arms = ((comparison.without, claim.without), (comparison.with_, claim.with_))
    near = all(
        abs(ours.mean - printed.mean) <= max(NEAR_POINTS, NEAR_STDS * (printed.std or 0.0))
        for ours, printed in arms
    )
    if comparison.n < 2:
        return False
    standard_error = (comparison.high - comparison.low) / (
        2 * stats.t.isf(comparison.alpha / 2, comparison.n - 1)
    )
    allowed = float(stats.norm.isf(ALPHA / 2)) * math.hypot(standard_error, claim.standard_error or 0.0)
    sign = 1.0 if claim.difference > 0 else -1.0
    nearest = min(sign * comparison.low, sign * comparison.high)
    return (
        near
        and abs(comparison.difference - claim.difference) <= allowed
        and nearest > abs(claim.difference) / 2
    )
