"""Time to target: interpolation, censoring, the choice of the target, the paired ratio."""

import math

import numpy as np
import pytest
from scipy import stats

from gradcent_lab.analysis.speed import default_target, epochs_to_target, measure_speed, paired_ratio


def curve(values, seconds=1.0, steps=10):
    return [
        {"epoch": i + 1, "eval_metric": v, "seconds": seconds, "steps": steps} for i, v in enumerate(values)
    ]


def test_the_first_evaluation_that_reaches_the_target_is_interpolated():
    assert epochs_to_target([10, 20, 40], 30) == 2.5
    assert epochs_to_target([10, 20, 40], 20) == 2.0
    assert epochs_to_target([10, 50, 20, 60], 30) == 1.5  # the first crossing counts
    assert epochs_to_target([35, 50], 30) == 1.0  # already there at the first evaluation
    assert epochs_to_target([10, 20], 30) is None
    assert epochs_to_target([3.0, 2.0, 1.0], 1.5, higher_is_better=False) == 2.5
    assert epochs_to_target([math.nan, 20, 40], 15) == 2.0


def test_the_target_comes_from_the_arm_without_gc_alone():
    without = [curve([10, 50]), curve([10, 60]), curve([10, 55])]
    assert default_target(without) == 55
    low, high = (measure_speed(without, [curve([10, v]) for v in (99, 98, 97)]) for v in (1, 2))
    assert low.target == high.target == 55
    assert measure_speed(without, without, target=20.0).target == 20.0


def test_censored_runs_are_counted_and_enter_with_the_whole_training():
    without = [curve([10, 20, 40]), curve([10, 20, 30])]
    with_ = [curve([10, 40, 40]), curve([40, 40, 40])]
    speed = measure_speed(without, with_, target=40.0)
    assert speed.without == (3.0, None)
    assert speed.with_ == (2.0, 1.0)
    assert (speed.reached_without, speed.reached_with) == (1, 2)
    assert speed.ratio.mean == pytest.approx(math.sqrt((2 / 3) * (1 / 3)))
    assert speed.first == (2, 0)
    assert speed.median(with_gc=True) == 1.5
    assert speed.median(with_gc=False) is None  # half of the runs never reach it
    assert speed.steps_per_epoch == 10


def test_a_target_that_nobody_reaches_has_no_ratio():
    speed = measure_speed([curve([1, 2])], [curve([1, 3])], target=50.0)
    assert speed.ratio is None
    assert speed.seconds_ratio is None
    assert (speed.reached_without, speed.reached_with) == (0, 0)


def test_the_ratio_is_the_geometric_mean_with_students_interval_of_the_logarithm():
    rng = np.random.default_rng(0)
    without, with_ = rng.uniform(5, 10, 7), rng.uniform(3, 8, 7)
    ratio = paired_ratio(without, with_)
    logs = np.log(with_ / without)
    expected = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert ratio.mean == pytest.approx(stats.gmean(with_ / without))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert math.isnan(paired_ratio([2.0], [1.0]).low)


def test_the_interval_of_the_ratio_covers_the_truth():
    rng = np.random.default_rng(1)
    trials = 1500
    hits = 0
    for _ in range(trials):
        base = rng.lognormal(2.0, 0.3, 6)
        ratio = paired_ratio(base, base * rng.lognormal(math.log(0.7), 0.2, 6))
        hits += ratio.low <= 0.7 <= ratio.high
    assert hits / trials == pytest.approx(0.95, abs=3 * math.sqrt(0.95 * 0.05 / trials))


def test_seconds_include_the_measured_overhead():
    without = [curve([10, 20, 40], seconds=2.0)] * 3
    with_ = [curve([10, 40, 40], seconds=2.2)] * 3
    speed = measure_speed(without, with_, target=40.0)
    assert speed.overhead == pytest.approx(1.1)
    assert speed.seconds_ratio.mean == pytest.approx(2 / 3 * 1.1)


def test_single_evaluations_have_no_speed():
    assert measure_speed([curve([50])], [curve([60])]) is None
