"""Sentences about single comparisons that follow from the runs by fixed rules. An unfinished one is called that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from evidence.programme import ARMS, IN_ALL_LAYERS, Results
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import Comparison, compare
from gradcent_lab.report.tables import signed

HEADLINES = (
    ("cifar100-tuned", "ResNet-8 on half of CIFAR-100, both arms with their own tuned learning rate"),
    (
        "norms",
        "ResNet-8 with BN on a fifth of CIFAR-100, 312 steps, both arms with their own tuned learning rate",
    ),
    (
        "controls",
        "ResNet-8 with BN on a fifth of CIFAR-100, 312 steps, both arms at the learning rate that was best without GC in a pilot",
    ),
    ("cifar100-small", "ResNet-8 on a fifth of CIFAR-100, both arms at learning rate 0.1"),
)


def numbers_of(finding: Finding) -> Comparison:
    """The comparison of a finding that has pairs."""
    assert finding.comparison is not None
    return finding.comparison


def effect_text(finding: Finding) -> str:
    """The difference with its interval, in points."""
    return with_interval(numbers_of(finding))


def with_interval(result: Comparison) -> str:
    """A mean difference with its interval."""
    if not math.isfinite(result.low):
        return f"{signed(result.difference, 2)} (one pair)"
    return f"{signed(result.difference, 2)} [{signed(result.low, 2)}, {signed(result.high, 2)}]"


def training_difference(finding: Finding) -> float:
    """Mean paired difference of the last epoch's training metric."""
    pairs = zip(finding.without, finding.with_, strict=True)
    return statistics.fmean(b.curves[-1]["train_metric"] - a.curves[-1]["train_metric"] for a, b in pairs)


def gap(finding: Finding) -> Comparison:
    """The gap between training and test metric at the last epoch: with GC minus without."""
    values = [
        [run.curves[-1]["train_metric"] - run.last for run in runs]
        for runs in (finding.without, finding.with_)
    ]
    return compare(values[0], values[1], higher_is_better=False)


def training_text(finding: Finding) -> str:
    """Whether GC trains faster or generalizes better: the gap between training and test metric decides."""
    change, result = gap(finding), numbers_of(finding)
    metric = "IoU" if "IoU" in finding.metric else "accuracy"
    text = (
        f"Training {metric} changes by {signed(training_difference(finding), 1)} points, its gap to the test {metric} by "
        f"{with_interval(change)}"
    )
    if math.isfinite(change.low) and change.high < 0:
        return f"{text}: the gap shrinks from {change.without.mean:.1f} to {change.with_.mean:.1f} points."
    if result.shown and result.difference > 0:
        return f"{text}: faster training, no sign of better generalization."
    return f"{text}."


def comparison_text(result: Results, finding: Finding) -> str:
    """One comparison: what it is, the effect, and what training accuracy says about it."""
    numbers = numbers_of(finding)
    parts = [
        f"**{title(result, finding.cell)}**{arm_text(finding)} (`{result.experiment.recipe}`{state(result, finding)}): {numbers.without.mean:.1f} → "
        f"{numbers.with_.mean:.1f} %, {effect_text(finding)} points, {finding.verdict}. {training_text(finding)}"
    ]
    for arm, words in (("hidden", "hidden layers only"), ("input", "input layer only")):
        other = result.finding(arm, finding.cell)
        if other is not None and finding.arm in IN_ALL_LAYERS:
            parts.append(f"With GC in the {words}: {effect_text(other)}{state(result, other)}.")
    claim = result.claim(finding)
    if claim is not None:
        parts.append(f"The paper's nearest gain: {signed(claim, 2)}.")
    return " ".join(parts)


def arm_text(finding: Finding) -> str:
    """The arm, where it is not simply GC in all layers."""
    return "" if finding.arm in IN_ALL_LAYERS else f", {ARMS.get(finding.arm, finding.arm)}"


def headline(results: Sequence[Results]) -> str:
    """The most informative comparison that is finished: the tuned ones first."""
    by_name = {result.experiment.recipe: result for result in results}
    for name, text in HEADLINES:
        result = by_name[name]
        finding = result.main(result.study.cells[0].name)
        if finding is None or numbers_of(finding).n < 3:
            continue
        numbers = numbers_of(finding)
        return (
            f"**{text}: {numbers.without.mean:.1f} → {numbers.with_.mean:.1f} % test accuracy, difference {effect_text(finding)} points "
            f"over {numbers.n} pairs{state(result, finding)}: {finding.verdict}.** {training_text(finding)} The network is small and the training "
            "short; this says nothing about long schedules."
        )
    return "No comparison of the evidence programme has three finished pairs yet."


def title(result: Results, cell: str) -> str:
    """The experiment, with the cell where it has several."""
    several = len(result.study.cells) > 1
    return f"{result.experiment.title}, {cell}" if several else result.experiment.title


def state(result: Results, finding: Finding) -> str:
    """How many of the planned pairs are there, if not all."""
    done, planned = numbers_of(finding).n, result.planned_pairs(finding.arm)
    return "" if done == planned else f"; unfinished, {done} of {planned} pairs"


def progress(result: Results) -> str:
    """How many runs of an experiment are finished."""
    tuning, planned = result.planned_runs
    tuned = f"{len(result.tuning_records)} of {tuning} tuning runs and " if tuning else ""
    return f"{tuned}{len(result.records)} of {planned} runs of the comparison are finished"
