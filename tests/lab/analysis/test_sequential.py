"""The stopping rule: its formula by numerical integration, its error rates and its power by simulation."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from gradcent_lab.analysis.sequential import (
    FEWEST_PAIRS,
    MOST_PAIRS,
    confidence_sequence,
    decide,
    log_e_value,
)
from gradcent_lab.analysis.verdict import Divergence


@pytest.mark.parametrize("n", [2, 5, 12])
def test_the_e_value_is_the_mixed_likelihood_ratio_of_t(n):
    values = np.random.default_rng(n).normal(0.7, 1.3, n)
    t = stats.ttest_1samp(values, 0).statistic

    def weighted(effect):
        return stats.nct.pdf(t, n - 1, effect * math.sqrt(n)) * stats.norm.pdf(effect, scale=2.0)

    mixed, _ = integrate.quad(weighted, -15, 15, points=[0.0, t / math.sqrt(n)], limit=200)
    assert math.exp(log_e_value(values)) == pytest.approx(mixed / stats.t.pdf(t, n - 1), rel=1e-5)


@pytest.mark.parametrize("n", [4, 8, 20])
def test_the_confidence_sequence_holds_what_the_e_value_has_not_rejected(n):
    values = np.random.default_rng(n).normal(0.2, 1.0, n)
    low, high = confidence_sequence(values)
    for edge in (low, high):
        assert math.exp(log_e_value(values, null=edge)) == pytest.approx(20)
    assert low < values.mean() < high
    assert confidence_sequence(values[:2]) == (-math.inf, math.inf)


def study(rng, mean, margin=1e-9, most=MOST_PAIRS, std=1.0):
    """Add pairs until decided, as `--until-decided` does; return (outcome, pairs, mean always covered)."""
    values, covered = [], True
    decision = None
    while len(values) < most:
        values.append(rng.normal(mean, std))
        decision = decide(values, margin)
        covered &= decision.low <= mean <= decision.high
        if decision.outcome != "undecided":
            break
    return decision.outcome, len(values), covered


def test_looking_after_every_pair_raises_few_false_alarms():
    rng = np.random.default_rng(0)
    trials = 1500
    results = [study(rng, 0.0) for _ in range(trials)]
    alarms = sum(outcome in ("helps", "hurts") for outcome, _, _ in results) / trials
    assert alarms < 0.05
    assert alarms == pytest.approx(0.024, abs=3 * math.sqrt(0.024 / trials))  # 20,000 simulations: 2.4 %
    assert sum(covered for _, _, covered in results) / trials > 0.95


def test_repeated_t_tests_would_raise_many():
    # what the rule replaces: the reason it exists is that this share is not 5 %
    rng = np.random.default_rng(1)
    values = rng.normal(size=(4000, MOST_PAIRS))
    alarm = np.zeros(len(values), dtype=bool)
    for n in range(FEWEST_PAIRS, MOST_PAIRS + 1):
        alarm |= stats.ttest_1samp(values[:, :n], 0, axis=1).pvalue < 0.05
    assert alarm.mean() == pytest.approx(0.23, abs=0.02)


@pytest.mark.parametrize(("effect", "pairs"), [(1.0, 12.7), (1.5, 8.1), (2.0, 6.2), (3.0, 4.8)])
def test_effects_are_found_after_the_documented_number_of_pairs(effect, pairs):
    rng = np.random.default_rng(int(10 * effect))
    results = [study(rng, effect, most=60) for _ in range(250)]
    assert all(outcome == "helps" for outcome, _, _ in results)
    lengths = np.array([n for _, n, _ in results])
    assert lengths.mean() == pytest.approx(pairs, abs=4 * lengths.std() / math.sqrt(len(lengths)))


def test_equivalence_is_found_and_rarely_wrong():
    rng = np.random.default_rng(4)
    equal = [study(rng, 0.0, margin=1.5) for _ in range(200)]
    assert sum(outcome == "equivalent" for outcome, _, _ in equal) > 190
    # the truth lies at the margin: claiming equivalence is an error
    edge = [study(rng, 1.5, margin=1.5)[0] for _ in range(400)]
    assert edge.count("equivalent") / len(edge) < 0.05


def test_lower_is_better_turns_the_outcome():
    values = [-1.0, -1.1, -0.9, -1.05, -0.95]
    assert decide(values, 0.1).outcome == "hurts"
    assert decide(values, 0.1, higher_is_better=False).outcome == "helps"


def test_pairs_without_scatter_do_not_decide_early():
    # accuracies that saturate: three equal zeros are no proof of anything
    assert decide([0.0] * 7, 0.5).outcome == "undecided"
    assert decide([0.0] * 8, 0.5).outcome == "equivalent"
    assert decide([1.0] * 7, 0.5).outcome == "undecided"
    assert decide([1.0] * 8, 0.5).outcome == "helps"  # sign e-value 2^8/9 = 28


def test_divergence_decides_by_its_own_e_value_and_blocks_selected_pairs():
    good = [1.0, 1.1, 0.9, 1.05, 0.95]
    assert decide(good, 0.1, divergence=Divergence(6, with_=1, only_with=1)).outcome == "undecided"
    assert decide(good, 0.1, divergence=Divergence(13, with_=8, only_with=8)).outcome == "hurts"
    assert decide([], 0.1, divergence=Divergence(8, without=8, only_without=8)).outcome == "helps"


def test_one_pair_decides_nothing():
    assert decide([5.0], 0.1).outcome == "undecided"
    assert decide([], 0.1).e_value == 1.0
