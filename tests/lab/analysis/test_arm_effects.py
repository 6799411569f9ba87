"""Several arms with GC: contrasts, the choice of an arm, the table and the advice, on made-up runs."""

import math

import numpy as np
import pytest
from scipy import stats
from synthetic_records import record

from gradcent_lab.analysis.arm_effects import arm_effects
from gradcent_lab.analysis.findings import Rules, findings
from gradcent_lab.analysis.sequential import confidence_sequence
from gradcent_lab.report.arms import advise_arms, arms_table, effect_sentences

NOISE = np.random.default_rng(3).normal(0, 0.3, (4, 8))


def runs(gains, n=8):
    """Runs of the arm without GC and of arms with the given mean gains over it."""
    records = []
    for seed in range(n):
        base = 50 + NOISE[0, seed]
        records.append(record(arm="off", seed=seed, last=base, scale="own"))
        for number, (arm, gain) in enumerate(gains.items(), start=1):
            last = base + gain + NOISE[number, seed]
            records.append(record(arm=arm, seed=seed, last=last, scale="own", attach={"layers": arm}))
    return records


def effects(gains, **rules):
    return arm_effects(findings(runs(gains), rules=Rules(margin=1.0, **rules)))


@pytest.mark.parametrize(
    ("gains", "chosen", "advice"),
    [
        ({"all": 3, "hidden": 2.9, "input": 0}, "all", "Use GC in all layers."),
        (
            {"all": 1.5, "hidden": 4, "input": -3},
            "hidden",
            'Use layers="hidden". Do not use layers="input": worse',
        ),
        (
            {"all": -4, "hidden": 0},
            None,
            'Do not use layers="all". GC with layers="hidden" makes no difference',
        ),
        (
            {"all": -4, "hidden": 3},
            "hidden",
            'Use layers="hidden". Do not use layers="all": worse than no GC.',
        ),
        ({"all": -4, "input": -5}, None, "Do not use GC here, in any of these layers."),
    ],
)
def test_the_advice_follows_from_all_verdicts(gains, chosen, advice):
    result = effects(gains)
    assert result.chosen == chosen
    assert advise_arms(result).startswith(advice)


def test_contrasts_are_the_paired_differences_at_the_corrected_level():
    gains = {"all": 3, "hidden": 2, "input": 0}
    records = {(r.arm, r.seed): r.last for r in runs(gains)}
    result = effects(gains)
    assert [(c.first, c.second) for c in result.contrasts] == [
        ("all", "hidden"),
        ("all", "input"),
        ("hidden", "input"),
    ]
    for contrast in result.contrasts:
        a, b = ([records[arm, seed] for seed in range(8)] for arm in (contrast.first, contrast.second))
        low, high = stats.ttest_rel(b, a).confidence_interval(1 - 0.05 / 3)
        assert (contrast.low, contrast.high) == pytest.approx((low, high))
        assert contrast.difference == pytest.approx(np.mean(np.subtract(b, a)))
        assert contrast.better == int((np.subtract(b, a) > 0).sum())
    for finding in result.findings:
        a, b = ([records[arm, seed] for seed in range(8)] for arm in ("off", finding.arm))
        low, high = stats.ttest_rel(b, a).confidence_interval(1 - 0.05 / 3)
        assert (finding.comparison.low, finding.comparison.high) == pytest.approx((low, high))


def test_the_default_stays_unless_another_arm_is_shown_to_be_better():
    """`hidden` has the larger mean, but eight pairs do not show that it is better than `all`."""
    result = effects({"all": 3, "hidden": 3.05})
    hidden, both = (result.finding(arm).comparison.difference for arm in ("hidden", "all"))
    if hidden < both:  # the noise decides the order; make it what the test is about
        result = effects({"all": 3, "hidden": 3.05 + both - hidden})
    assert result.finding("hidden").comparison.difference > result.finding("all").comparison.difference
    assert result.contrasts[0].winner is None
    assert result.chosen == "all"


def test_false_alarms_over_several_arms_stay_below_five_percent():
    """400 studies without any effect, three arms each: at most 5 % of studies have any shown arm."""
    random = np.random.default_rng(0)
    alarms = 0
    from gradcent_lab.analysis.statistics import compare

    for _ in range(400):
        base = random.normal(size=6)
        arms = random.normal(size=(3, 6))
        alarms += any(compare(base, arm, True, 3).shown for arm in arms)
    assert alarms / 400 < 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)


def test_table_and_sentences_say_where_the_effect_comes_from():
    gains = {"all": 4, "hidden": 3, "input": 1}
    result = effects(gains)
    table = arms_table(result, {"all": "4 of 9, 99 %"})
    assert [row[0] for row in table.rows] == ["none", "all layers", "the hidden layers", "the input layer"]
    assert table.rows[1][1] == "4 of 9, 99 %"
    assert "98.3 % interval" in table.header
    assert "Bonferroni for 3 arms" in table.notes[0]
    whole, part = (result.finding(arm).comparison.difference for arm in ("all", "hidden"))
    text = " ".join(effect_sentences(result))
    assert f"{100 * part / whole:.0f} % of it" in text
    assert "GC in all layers is better than GC in the input layer" in text


def test_with_the_stopping_rule_the_contrasts_use_it_too():
    gains = {"all": 3, "hidden": 0.1}
    fixed, sequential = effects(gains).contrasts[0], effects(gains, sequential=True).contrasts[0]
    assert sequential.low < fixed.low < fixed.high < sequential.high
    assert sequential.winner == "all"


def test_contrasts_of_the_stopping_rule_share_the_five_percent():
    gains = {"all": 3, "hidden": 2.5, "input": 0}
    last = {(run.arm, run.seed): run.last for run in runs(gains)}
    for contrast in effects(gains, sequential=True).contrasts:
        differences = [last[contrast.second, seed] - last[contrast.first, seed] for seed in range(8)]
        assert (contrast.low, contrast.high) == pytest.approx(confidence_sequence(differences, 0.05 / 3))
