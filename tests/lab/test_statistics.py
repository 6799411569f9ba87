"""Statistics against closed forms, simulation and scipy's other routes."""

import math

import numpy as np
import pytest
from scipy import stats

from gradcent_lab.analysis import paper_claims as claims
from gradcent_lab.analysis import statistics as lab


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
    assert result.interval == "bootstrap"


def test_the_same_runs_always_give_the_same_interval():
    values = np.random.default_rng(3).normal(0.5, 1, 7)
    assert lab.paired_interval(values) == lab.paired_interval(values)


@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_cover_what_they_say(n):
    rng = np.random.default_rng(n)
    trials = 250
    hits = 0
    for _ in range(trials):
        low, high, _ = lab.paired_interval(rng.normal(0.3, 1, n))
        hits += low <= 0.3 <= high
    # 92 % at n = 5 (measured over 2,000 trials), 95 % at 3 and 10; three binomial deviations of slack
    assert hits / trials > 0.92 - 3 * math.sqrt(0.92 * 0.08 / trials)


def test_false_alarms_stay_under_five_percent():
    rng = np.random.default_rng(0)
    trials = 250
    alarms = sum(lab.compare(*pairs(rng.normal(0, 1, 5))).shown for _ in range(trials))
    assert alarms / trials < 0.05 + 3 * math.sqrt(0.05 * 0.95 / trials)


def test_under_five_pairs_the_interval_is_students():
    values = np.array([0.1, 0.4, 0.9])
    low, high, kind = lab.paired_interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (low, high) == pytest.approx((expected.low, expected.high))
    assert kind == "Student t"


def test_one_pair_says_nothing():
    result = lab.compare([1.0], [2.0])
    assert math.isnan(result.low)
    assert result.p_value == 1
    assert result.seeds_needed is None
    assert not result.shown
    assert lab.verdict(result) == "not run at this scale"
    assert lab.verdict(None) == "not run at this scale"


def test_equal_differences_need_no_t_statistic():
    same = lab.compare(*pairs([0.0] * 5))
    assert (same.p_value, same.effect_size, same.seeds_needed) == (1.0, 0.0, None)
    assert lab.verdict(same) == "no effect"
    constant = lab.compare(*pairs([1.0] * 5))
    assert constant.p_value == pytest.approx(2 / 2**5)  # the sign test
    assert lab.verdict(constant) == "no effect"  # five equal signs are not enough by that test
    assert lab.verdict(lab.compare(*pairs([1.0] * 6))) == "same direction"


def test_seeds_needed_is_the_textbook_figure_and_really_has_the_power():
    # d = 0.5, two-sided 5 %, power 0.8: 34 pairs in every table of power analysis; d = 1: 10 pairs
    unit = np.array([-1.0, 0.0, 1.0])  # standard deviation 1
    assert lab.seeds_needed(unit + 0.5) == 34
    assert lab.seeds_needed(unit + 1.0) == 10
    assert lab.seeds_needed(unit + 1e-4) is None
    assert lab.seeds_needed(unit + 1000.0) == 2
    rng = np.random.default_rng(1)
    found = stats.ttest_1samp(rng.normal(0.5, 1, (2000, 34)), 0, axis=1).pvalue < 0.05
    assert found.mean() == pytest.approx(0.8, abs=0.03)


def test_effect_size_is_hedges_g():
    values = np.array([0.2, 0.5, 0.1, 0.9, 0.3])
    expected = values.mean() / values.std(ddof=1) * (1 - 3 / (4 * 4 - 1))
    assert lab.effect_size(values) == pytest.approx(expected)


def test_lower_is_better_turns_the_sign_of_the_gain_only():
    result = lab.compare(*pairs([-1.0, -1.1, -0.9, -1.2, -0.8]), higher_is_better=False)
    assert result.difference == pytest.approx(-1)
    assert result.gain == pytest.approx(1)
    assert result.better == 5
    assert lab.verdict(result) == "same direction"
    assert lab.verdict(lab.compare(*pairs([-1.0, -1.1, -0.9, -1.2, -0.8]))) == "opposite"


def test_reproduced_needs_the_papers_scale_and_its_size():
    claim = claims.find(1, "R18")  # + 1.95
    scatter = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])
    like_the_paper, smaller = lab.compare(*pairs(1.9 + scatter)), lab.compare(*pairs(0.6 + scatter))
    assert lab.verdict(like_the_paper, claim, "paper") == "reproduced"
    assert lab.verdict(like_the_paper, claim, "small") == "same direction"
    assert lab.verdict(smaller, claim, "paper") == "same direction"
    assert lab.verdict(lab.compare(*pairs(-1.9 + scatter)), claim, "paper") == "opposite"
    assert lab.verdict(lab.compare(*pairs(0.05 + scatter)), claim, "paper") == "no effect"


def test_multiple_comparisons_note():
    strong, weak = (
        lab.compare(*pairs([1, 1.1, 0.9, 1.2, 0.8])),
        lab.compare(*pairs([1, -1.1, 0.9, -1.2, 0.3])),
    )
    assert lab.multiple_comparisons([strong]) is None
    note = lab.multiple_comparisons([strong, weak, weak, weak])
    assert note.startswith("4 comparisons: about 0.2 would")
    assert "1 do here; 1 after" in note


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="same seeds, got 2 runs without and 1 with"):
        lab.compare([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="diverged"):
        lab.compare([1.0, math.nan], [1.0, 2.0])
