"""Verdicts: what a comparison may be called, with the cases that were called "no effect" before."""

import numpy as np
import pytest
from scipy import stats

from gradcent_lab.analysis import paper_claims as claims
from gradcent_lab.analysis.statistics import compare, pairs_to_detect
from gradcent_lab.analysis.verdict import Divergence, Verdict, default_margin, judge, judge_claim


def pairs(difference, base=50.0):
    difference = np.asarray(difference, dtype=float)
    return compare(np.full(len(difference), base), base + difference)


def scaled(mean, std, n, seed=0):
    """Differences with exactly this mean and standard deviation."""
    values = np.random.default_rng(seed).normal(size=n)
    return mean + std * (values - values.mean()) / values.std(ddof=1)


@pytest.mark.parametrize(
    "difference",
    [
        [0.3, 0.2, 50.0, 0.1, 0.4],  # one run collapsed: +10.2, p about 0.3
        [108.0, -106.0],  # two seeds, an interval of hundreds of points
        [1.0],  # one pair
    ],
)
def test_not_known_is_inconclusive_and_says_how_many_pairs_are_missing(difference):
    result = pairs(difference)
    verdict = judge(result, margin=1.0)
    assert verdict.kind == "inconclusive"
    if len(difference) == 5:
        assert verdict.more_pairs == pairs_to_detect(1.0, np.std(difference, ddof=1)) - 5
    else:  # unknown, or more than 10,000
        assert verdict.more_pairs is None


def test_eight_of_eight_better_helps():
    assert judge(pairs([0.4, 0.5, 0.6, 0.7, 0.3, 0.5, 0.9, 50.0]), margin=1.0).kind == "helps"


def test_helps_and_hurts_follow_the_direction_of_the_metric():
    up = [1.0, 1.1, 0.9, 1.2, 0.8]
    assert judge(pairs(up), 1.0).kind == "helps"
    assert judge(pairs([-d for d in up]), 1.0).kind == "hurts"
    loss = compare([2.0] * 5, [2.0 - d for d in up], higher_is_better=False)
    assert judge(loss, 1.0).kind == "helps"


def test_no_difference_larger_than_x_is_a_true_statement_of_the_interval():
    result = pairs(scaled(0.05, 0.3, 8))
    verdict = judge(result, margin=1.0)
    assert verdict.kind == "equivalent"
    assert verdict.bound == max(abs(result.low), abs(result.high))
    assert float(verdict.label.removeprefix("no difference larger than ")) >= verdict.bound
    assert judge(result, margin=0.1).kind == "inconclusive"


def test_equivalence_is_wrong_in_at_most_five_percent():
    # the truth lies exactly at the margin: "no difference larger than" must be rare
    rng = np.random.default_rng(2)
    trials = 1000
    wrong = sum(judge(pairs(rng.normal(1.0, 0.5, 6)), 1.0).kind == "equivalent" for _ in range(trials))
    assert wrong / trials < 0.05 + 3 * (0.05 * 0.95 / trials) ** 0.5


def test_default_margin():
    assert default_margin("accuracy, %", 91.0) == 1.0
    assert default_margin("bits per character", 2.0) == pytest.approx(0.04)


def test_divergence_is_a_result():
    fine = pairs([1.0, 1.1, 0.9, 1.2, 0.8])
    # six pairs in which only the run with GC diverged: McNemar's exact p is 2/64
    worse = Divergence(11, with_=6, only_with=6)
    assert worse.p_value == pytest.approx(stats.binomtest(6, 6).pvalue)
    assert judge(fine, 1.0, worse) == Verdict("hurts", because="divergence")
    assert judge(None, 1.0, Divergence(6, without=6, only_without=6)).kind == "helps"
    # one diverged run with GC: the pairs that survived cannot prove that GC helps
    one = judge(fine, 1.0, Divergence(6, with_=1, only_with=1))
    assert (one.kind, one.because) == ("inconclusive", "divergence")
    # one diverged run without GC does not stand against GC
    assert judge(fine, 1.0, Divergence(6, without=1, only_without=1)).kind == "helps"
    # both diverged in the same pair: nothing is selected
    assert judge(fine, 1.0, Divergence(6, without=1, with_=1)).kind == "helps"


CLAIM = claims.find(1, "R18")  # 76.87 → 78.82, +1.95
SCATTER = np.array([-0.3, -0.1, 0.0, 0.1, 0.3])


def claim_verdict(difference, paper_scale=True, default_switches=True, base=76.9):
    result = pairs(difference, base)
    return judge_claim(
        result, CLAIM, paper_scale=paper_scale, default_switches=default_switches, margin=1.0
    ).label


def test_reproduced_needs_scale_switches_means_and_size():
    assert claim_verdict(1.9 + SCATTER) == "reproduced"
    assert claim_verdict(1.9 + SCATTER, paper_scale=False) == "same direction"
    assert claim_verdict(1.9 + SCATTER, default_switches=False) == "same direction"
    assert claim_verdict(1.9 + SCATTER, base=70.0) == "same direction"  # the right gain at the wrong accuracy
    assert claim_verdict(0.6 + SCATTER) == "same direction"
    assert claim_verdict(-1.9 + SCATTER) == "opposite"
    assert claim_verdict(0.05 + SCATTER) == "no difference larger than 0.33"
    assert claim_verdict(0.05 + 10 * SCATTER) == "inconclusive"
    nothing = judge_claim(None, CLAIM, paper_scale=True, default_switches=True, margin=1.0)
    assert nothing.label == "not run at this scale"


def test_one_pair_of_a_claim_is_inconclusive_not_unrun():
    assert claim_verdict([1.9]) == "inconclusive"


def test_half_the_effect_is_rarely_reproduced_and_the_whole_effect_often():
    rng = np.random.default_rng(3)
    trials = 1000

    def share(size):
        seen = (claim_verdict(rng.normal(size, 0.35, 5)) for _ in range(trials))
        return sum(verdict == "reproduced" for verdict in seen) / trials

    assert share(CLAIM.difference / 2) < 0.025 + 3 * (0.025 * 0.975 / trials) ** 0.5
    assert share(CLAIM.difference) > 0.75
