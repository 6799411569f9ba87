"""Speed: epochs, steps and seconds until a run reaches a target, and the paired ratio with GC over without.

The target is the median last-epoch value of the runs without GC, or what the user sets; it is never chosen from
runs with GC. A run that never reaches the target is censored: it is counted, and enters the ratio with the
whole length of its training, which draws the ratio towards 1 (a restricted time, as in survival analysis).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from gradcent_lab.analysis.statistics import ALPHA

Curve = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ratio:
    """Geometric mean of the paired ratios with / without, with its interval (NaN for one pair)."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Speed:
    """How fast both arms reach the target; times are None for runs that never reach it."""

    target: float
    target_given: bool
    epochs: int
    without: tuple[float | None, ...]
    with_: tuple[float | None, ...]
    ratio: Ratio | None  # of epochs and of steps: the arms of a pair take equal steps per epoch
    overhead: float  # seconds per epoch with GC over without, median over pairs
    steps_per_epoch: int | None

    @property
    def reached_without(self) -> int:
        """Number of runs without GC that reach the target."""
        return sum(time is not None for time in self.without)

    @property
    def reached_with(self) -> int:
        """Number of runs with GC that reach the target."""
        return sum(time is not None for time in self.with_)

    @property
    def seconds_ratio(self) -> Ratio | None:
        """The ratio of training time: the ratio of epochs times the measured overhead of an epoch."""
        if self.ratio is None:
            return None
        return Ratio(*(self.overhead * value for value in (self.ratio.mean, self.ratio.low, self.ratio.high)))

    @property
    def first(self) -> tuple[int, int]:
        """Pairs in which the run with GC reaches the target first, and pairs in which the other does."""
        pairs = list(zip(self._restricted(self.without), self._restricted(self.with_), strict=True))
        return sum(b < a for a, b in pairs), sum(b > a for a, b in pairs)

    def median(self, *, with_gc: bool) -> float | None:
        """Median epochs to the target of one arm; None where half of its runs or more never reach it."""
        times = [math.inf if time is None else time for time in (self.with_ if with_gc else self.without)]
        middle = statistics.median(times)
        return middle if math.isfinite(middle) else None

    def _restricted(self, times: Sequence[float | None]) -> list[float]:
        return [math.inf if time is None else time for time in times]


def epochs_to_target(
    values: Sequence[float], target: float, *, higher_is_better: bool = True
) -> float | None:
    """Return when a curve first reaches the target, interpolated between evaluations; None if it never does.

    Evaluation i (from 1) comes at the end of epoch i. A run that reaches the target at its first evaluation
    counts as 1, because nothing is known of the time before.

    >>> epochs_to_target([50.0, 70.0, 90.0], 80.0)
    2.5
    >>> epochs_to_target([50.0, 70.0], 80.0) is None
    True
    """
    sign = 1.0 if higher_is_better else -1.0
    before = math.nan
    for epoch, value in enumerate(values, start=1):
        if sign * value >= sign * target:
            if epoch == 1 or not math.isfinite(before) or value == before:
                return float(epoch)
            return epoch - 1 + (target - before) / (value - before)
        before = value
    return None


def default_target(without: Sequence[Curve], key: str = "eval_metric") -> float:
    """Return the median last-epoch value of the runs without GC."""
    return float(statistics.median(curve[-1][key] for curve in without))


def measure_speed(
    without: Sequence[Curve],
    with_: Sequence[Curve],
    *,
    higher_is_better: bool = True,
    target: float | None = None,
    key: str = "eval_metric",
) -> Speed | None:
    """Return the speed of both arms over their pairs; None where runs have fewer than two evaluations."""
    if not without or min(len(curve) for curve in (*without, *with_)) < 2:
        return None
    goal = default_target(without, key) if target is None else target
    epochs = max(len(curve) for curve in without)
    times = [
        tuple(
            epochs_to_target([line[key] for line in curve], goal, higher_is_better=higher_is_better)
            for curve in arm
        )
        for arm in (without, with_)
    ]
    some = any(time is not None for arm in times for time in arm)
    censored = [[epochs if time is None else time for time in arm] for arm in times]
    seconds = [[_seconds_per_epoch(curve) for curve in arm] for arm in (without, with_)]
    overheads = [b / a for a, b in zip(*seconds, strict=True) if a and b]
    steps = without[0][-1].get("steps")
    return Speed(
        target=goal,
        target_given=target is not None,
        epochs=epochs,
        without=times[0],
        with_=times[1],
        ratio=paired_ratio(censored[0], censored[1]) if some else None,
        overhead=statistics.median(overheads) if overheads else 1.0,
        steps_per_epoch=int(steps) if steps else None,
    )


def paired_ratio(without: Sequence[float], with_: Sequence[float], alpha: float = ALPHA) -> Ratio:
    """Return the geometric mean of with / without over pairs, with Student's interval of the logarithm."""
    logs = np.log(np.asarray(with_, dtype=np.float64)) - np.log(np.asarray(without, dtype=np.float64))
    mean, n = float(logs.mean()), len(logs)
    if n < 2:
        return Ratio(math.exp(mean), math.nan, math.nan)
    half = float(stats.t.isf(alpha / 2, n - 1)) * float(stats.sem(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def _seconds_per_epoch(curve: Curve) -> float:
    """Median seconds of an epoch; the first is left out where there are others, because it warms up."""
    seconds = [float(line["seconds"]) for line in curve if line.get("seconds")]
    return statistics.median(seconds[1:] or seconds) if seconds else 0.0
