"""Paired statistics against closed forms, simulation and scipy's other routes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gradcent_lab.analysis import statistics as lab
from gradcent_lab.report.wording import warning


def pairs(difference, base=50.0):
    difference = np.asarray(difference, dtype=float)
    return np.full(len(difference), base), base + difference


def test_summary_and_difference():
    result = lab.compare([1.0, 2.0, 3.0, 4.0, 6.0], [2.0, 2.5, 4.5, 5.0, 7.5])
    assert result.without == lab.Summary(5, 3.2, pytest.approx(np.std([1, 2, 3, 4, 6], ddof=1)))
    assert result.difference == pytest.approx(1.1)
    assert result.better == 5
    assert result.p_value == pytest.approx(stats.ttest_rel([2.0, 2.5, 4.5, 5.0, 7.5], [1, 2, 3, 4, 6]).pvalue)
    assert result.low > 0
    assert result.interval == "Student t"
    assert result.bound == result.high


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_equal_pairs_are_neither_better_nor_worse(higher_is_better):
    result = lab.compare(*pairs([2.0, 1.0, 0.0, -1.0]), higher_is_better=higher_is_better)
    assert (result.better, result.worse) == ((2, 1) if higher_is_better else (1, 2))
    assert result.gain == (0.5 if higher_is_better else -0.5)


def test_two_pairs_have_a_scatter_an_interval_and_a_detectable_difference():
    result = lab.compare([1.0, 4.0], [2.0, 7.0])
    assert result.scatter == pytest.approx(math.sqrt(2))
    assert result.with_.std == pytest.approx(5 / math.sqrt(2))
    expected = stats.ttest_rel([2.0, 7.0], [1.0, 4.0])
    assert result.p_value == pytest.approx(expected.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert result.detectable > result.scatter


@pytest.mark.parametrize("n", [10, 25])
def test_from_ten_pairs_on_the_interval_is_a_seeded_bootstrap_as_wide_as_students(n):
    values = 0.5 + stats.norm.ppf((np.arange(n) + 0.5) / n)
    low, high, kind = lab.paired_interval(values)
    student = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert kind == "bootstrap"
    assert high - low == pytest.approx(student.high - student.low, rel=0.04)
    level = 1 - 2 * stats.norm.sf(math.sqrt(n / (n - 1)) * stats.t.isf(0.025, n - 1))
    options = {"n_resamples": 9999, "method": "percentile", "random_state": np.random.default_rng(0)}
    expected = stats.bootstrap((values,), np.mean, confidence_level=level, **options)
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval))


@pytest.mark.parametrize("n", [3, 5, 9, 10])
def test_intervals_cover_what_they_say(n):
    rng = np.random.default_rng(n)
    trials = 1000 if n < lab.FEWEST_FOR_BOOTSTRAP else 250
    hits = 0
    for _ in range(trials):
        low, high, _ = lab.paired_interval(rng.normal(0.3, 1, n))
        hits += low <= 0.3 <= high
    assert hits / trials > 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


@pytest.mark.parametrize("n", [5, 8])
def test_false_alarms_stay_under_five_percent(n):
    rng = np.random.default_rng(n)
    trials = 1000
    alarms = sum(lab.compare(*pairs(rng.normal(0, 1, n))).shown for _ in range(trials))
    assert alarms / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("comparisons", [1, 3])
@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_under_ten_pairs_the_interval_is_students(n, comparisons):
    values = np.random.default_rng(n).normal(0.5, 1, n)
    result = lab.compare(np.zeros(n), values, comparisons=comparisons)
    expected = stats.ttest_1samp(values, 0).confidence_interval(1 - 0.05 / comparisons)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high))
    assert result.interval == "Student t"


def test_one_pair_shows_nothing():
    result = lab.compare([1.0], [2.0])
    assert math.isnan(result.low)
    assert (result.p_value, result.sign_flip_p) == (1, 1)
    assert math.isnan(result.detectable)
    assert not result.shown


def test_equal_differences_need_no_t_statistic():
    same = lab.compare(*pairs([0.0] * 5))
    assert (same.p_value, same.sign_flip_p, same.effect_size) == (1.0, 1.0, 0.0)
    assert not same.shown
    constant = lab.compare(*pairs([1.0] * 5))
    assert constant.p_value == pytest.approx(2 / 2**5)  # the sign test
    assert not constant.shown  # five equal signs are not enough by that test
    assert lab.compare(*pairs([1.0] * 6)).shown
    twelve = lab.compare(*pairs([1.0] * 12))
    assert (twelve.low, twelve.high, twelve.interval) == (1.0, 1.0, "bootstrap")
    assert lab.paired_test(np.linspace(1000, 1000 + 2e-10, 5)) == 2 / 2**5  # equal but for rounding


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"low": 0.1, "high": 0.5, "p_value": 0.01}, True),
        ({"low": -0.5, "high": -0.1, "p_value": 0.01}, True),
        ({"low": 0.0, "high": 0.5, "p_value": 0.01}, False),
        ({"low": -0.5, "high": 0.0, "p_value": 0.01}, False),
        ({"low": -0.1, "high": 0.5, "p_value": 0.01}, False),
        ({"low": 0.1, "high": 0.5, "p_value": lab.ALPHA}, False),
        ({"low": 0.1, "high": 0.5, "p_value": 0.02, "alpha": lab.ALPHA / 3}, False),
        ({"sign_flip_p": 0.009}, True),
        ({"sign_flip_p": 0.01}, False),
        ({"sign_flip_p": 0.009, "alpha": lab.ALPHA / 3}, False),
        ({"sign_flip_p": 0.003, "alpha": lab.ALPHA / 3}, True),
    ],
    ids=str,
)
def test_an_effect_is_shown_by_interval_and_t_test_or_by_sign_flips(changes, shown):
    nothing = replace(lab.compare([1.0, 2.0], [2.0, 1.0]), low=-1.0, high=1.0, p_value=1.0, sign_flip_p=1.0)
    assert not nothing.shown
    assert replace(nothing, **changes).shown is shown


@pytest.mark.parametrize("n", [2, 5, 8, 12])
def test_the_sign_flip_test_is_scipys_permutation_test(n):
    values = np.random.default_rng(n).normal(0.6, 1, n)
    expected = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", alternative="two-sided", n_resamples=np.inf
    )
    # scipy doubles the smaller tail; with a symmetric null that is the share of both tails
    assert lab.sign_flip_test(values) == pytest.approx(min(expected.pvalue, 1.0))


def test_the_sign_flip_test_is_exact_and_bounded_by_the_number_of_pairs():
    assert lab.sign_flip_test(np.full(5, 1.0)) == 2 / 2**5
    assert lab.sign_flip_test(np.arange(1.0, 9.0)) == 2 / 2**8
    assert lab.sign_flip_test(np.array([1.0, 1.0, -1.0])) == 1.0
    assert lab.sign_flip_test(np.array([0.25, 0.75])) == 0.5
    assert [lab.sign_flip_test(np.zeros(n)) for n in (1, 2, 16, 17)] == [1.0] * 4
    # the smallest share of the 9,999 patterns and the observed one
    assert lab.sign_flip_test(np.ones(40)) == 1 / 10_000
    many = np.random.default_rng(0).normal(0.8, 1, 30)  # sampled, not enumerated
    assert lab.sign_flip_test(many) == pytest.approx(stats.ttest_1samp(many, 0).pvalue, abs=0.01)


@pytest.mark.parametrize("n", [16, 17, 40])
def test_sign_flips_of_equal_sizes_are_the_binomial_test(n):
    worse = n // 3
    p = lab.sign_flip_test(np.array([-1.0] * worse + [1.0] * (n - worse)))
    exact = stats.binomtest(worse, n).pvalue
    assert p == pytest.approx(exact, abs=1e-12 if n == 16 else 0.01)
    if n == 17:
        assert p == 0.1457  # of the seed 0: the same runs always give the same number


def test_eight_of_eight_better_pairs_show_an_effect_whatever_their_spread():
    # one outlier makes the t-test useless; no pair is worse
    result = lab.compare(*pairs([0.4, 0.5, 0.6, 0.7, 0.3, 0.5, 0.9, 50.0]))
    assert result.p_value > 0.05
    assert result.low < 0
    assert result.sign_flip_p == 2 / 2**8
    assert result.shown


def test_minimum_detectable_difference_is_the_textbook_figure_and_has_the_power():
    # d = 0.5, two-sided 5 %, power 0.8: 34 pairs in every table of power analysis; d = 1: 10 pairs
    assert lab.pairs_to_detect(0.5, 1.0) == 34
    assert lab.pairs_to_detect(1.0, 1.0) == 10
    assert lab.pairs_to_detect(1e-4, 1.0) is None
    assert lab.pairs_to_detect(1000.0, 1.0) == 2
    assert lab.pairs_to_detect(1.0, 0.0) == 2
    assert lab.minimum_detectable(34, 1.0) == pytest.approx(0.5, abs=0.01)
    for n in (2, 3, 7, 10_000):  # the two functions are each other's inverse
        assert lab.pairs_to_detect(3 * lab.minimum_detectable(n, 2.0) * 1.000001, 6.0) == n
    assert lab.pairs_to_detect(lab.minimum_detectable(10_001, 1.0) * 1.000001, 1.0) is None
    rng = np.random.default_rng(1)
    for n, scatter in ((5, 2.0), (12, 0.3)):
        size = lab.minimum_detectable(n, scatter)
        found = stats.ttest_1samp(rng.normal(size, scatter, (4000, n)), 0, axis=1).pvalue < 0.05
        assert found.mean() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(("pairs", "scatter"), [(1, 1.0), (5, math.nan), (5, math.inf)])
def test_nothing_is_detectable_with_one_pair_or_without_a_scatter(pairs, scatter):
    assert math.isnan(lab.minimum_detectable(pairs, scatter))


@pytest.mark.parametrize(
    ("difference", "scatter"), [(0.0, 0.0), (-1.0, 1.0), (1.0, math.nan), (1.0, math.inf)]
)
def test_no_number_of_pairs_detects_nothing(difference, scatter):
    assert lab.pairs_to_detect(difference, scatter) is None


def test_the_minimum_detectable_difference_ignores_the_mean():
    values = np.array([-1.0, 0.0, 1.0, 0.5])
    near, far = lab.compare(*pairs(values)), lab.compare(*pairs(values + 100))
    assert near.detectable == pytest.approx(far.detectable)


def test_several_arms_against_one_baseline_share_five_percent():
    rng = np.random.default_rng(5)
    trials, alarms = 600, 0
    for _ in range(trials):
        off = rng.normal(0, 1, 6)
        arms = [rng.normal(0, 1, 6) for _ in range(3)]
        alarms += any(lab.compare(off, arm, comparisons=3).shown for arm in arms)
    assert alarms / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)
    wide, narrow = lab.compare(off, arms[0], comparisons=3), lab.compare(off, arms[0])
    assert wide.high - wide.low > narrow.high - narrow.low


def test_effect_size_is_hedges_g():
    values = np.array([0.2, 0.5, 0.1, 0.9, 0.3])
    expected = values.mean() / values.std(ddof=1) * (1 - 3 / (4 * 4 - 1))
    assert lab.effect_size(values) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [([1.0], math.nan), ([1.0, 1.2], math.nan), ([0.0, 0.0], 0.0), ([0.0], math.nan), ([1.0] * 5, math.nan)],
)
def test_effect_size_where_its_correction_or_its_std_is_not_defined(difference, expected):
    """Found by mutation: two pairs had the effect size 0, whatever their difference."""
    assert lab.effect_size(np.array(difference)) == pytest.approx(expected, nan_ok=True)


def test_effect_size_of_three_pairs_has_no_bias():
    draws = np.random.default_rng(0).normal(0.5, 1, (20_000, 3))
    assert np.mean([lab.effect_size(draw) for draw in draws]) == pytest.approx(0.5, abs=0.03)


def test_lower_is_better_turns_the_sign_of_the_gain_only():
    result = lab.compare(*pairs([-1.0, -1.1, -0.9, -1.2, -0.8]), higher_is_better=False)
    assert result.difference == pytest.approx(-1)
    assert result.gain == pytest.approx(1)
    assert result.better == 5
    assert result.worse == 0
    assert result.shown


def test_multiple_comparisons_note():
    strong, weak = (
        lab.compare(*pairs([1, 1.1, 0.9, 1.2, 0.8])),
        lab.compare(*pairs([1, -1.1, 0.9, -1.2, 0.3])),
    )
    assert lab.multiple_comparisons([strong]) is None
    assert lab.multiple_comparisons([strong, lab.compare([1.0], [2.0])]) is None  # one pair tests nothing
    two_pairs = lab.compare(*pairs([1, 1.1]))
    assert lab.multiple_comparisons([strong, two_pairs]).startswith("2 comparisons")
    at_the_level = [replace(strong, p_value=lab.ALPHA)] * 2
    assert "2 comparisons: about 0.1 would" in lab.multiple_comparisons(at_the_level)
    assert "0 do here; 0 after" in lab.multiple_comparisons(at_the_level)
    note = lab.multiple_comparisons([strong, weak, weak, weak])
    assert note.startswith("4 comparisons: about 0.2 would")
    assert "1 do here; 1 after" in note


def test_the_recommended_number_of_pairs_is_the_one_that_the_warning_names():
    assert warning(lab.RECOMMENDED_PAIRS) is None
    assert "five or more" in warning(4)
    assert warning(5) is None


def test_a_comparison_does_not_change():
    result = lab.compare([1.0, 2.0], [2.0, 1.0])
    for part, name in ((result, "low"), (result.without, "mean")):
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(part, name, 1.0)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="same seeds, got 2 runs without and 1 with"):
        lab.compare([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="same seeds, got 0 runs without and 0 with"):
        lab.compare([], [])
    with pytest.raises(ValueError, match="diverged"):
        lab.compare([1.0, math.nan], [1.0, 2.0])
