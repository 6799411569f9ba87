"""Sentences that follow from the runs by fixed rules. A comparison that is not finished is called that.

A control explains GC's effect if its interval lies above half of it, and does not if it lies below.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from evidence.programme import Results
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.tables import signed


def effect_text(finding: Finding) -> str:
    """The difference with its interval, in points."""
    result = finding.comparison
    assert result is not None
    interval = (
        f" [{signed(result.low, 2)}, {signed(result.high, 2)}]"
        if math.isfinite(result.low)
        else " (one pair)"
    )
    return f"{signed(result.difference, 2)}{interval}"


def conclusions(results: Sequence[Results]) -> list[str]:
    """Return every conclusion, the unknown ones too."""
    by_name = {result.experiment.recipe: result for result in results}
    return [
        *_norms(by_name["norms"]),
        *_controls(by_name["controls"]),
        *_longer(by_name["cifar100-tuned"]),
        *_few_images(by_name["few-images"]),
        *_earlier(by_name["cifar100-small"]),
    ]


def headline(results: Sequence[Results]) -> str:
    """The most informative comparison that is finished: the tuned ones first."""
    by_name = {result.experiment.recipe: result for result in results}
    for name, arm, text in (
        (
            "cifar100-tuned",
            "all",
            "ResNet-8 on half of CIFAR-100, both arms with their own tuned learning rate",
        ),
        (
            "norms",
            "all",
            "ResNet-8 with BN on a fifth of CIFAR-100, 312 steps, both arms with their own tuned learning rate",
        ),
        (
            "controls",
            "all",
            "ResNet-8 with BN on a fifth of CIFAR-100, 312 steps, both arms at the learning rate that was best without GC in a pilot",
        ),
        ("cifar100-small", "conv + FC", "ResNet-8 on a fifth of CIFAR-100, both arms at learning rate 0.1"),
    ):
        result = by_name[name]
        finding = result.finding(arm)
        if finding is None or finding.comparison is None or finding.comparison.n < 3:
            continue
        numbers = finding.comparison
        state = (
            ""
            if numbers.n == result.planned_pairs(arm)
            else f", {numbers.n} of {result.planned_pairs(arm)} planned pairs"
        )
        return (
            f"**{text}: {numbers.without.mean:.1f} → {numbers.with_.mean:.1f} % test accuracy, difference {effect_text(finding)} points "
            f"over {numbers.n} pairs{state}: {finding.verdict}.** {_training_text(finding)} The network is small and the training short; this says "
            "nothing about long schedules."
        )
    return "No comparison of the evidence programme has three finished pairs yet."


def _controls(result: Results) -> list[str]:
    gc = result.finding("all")
    if gc is None or gc.comparison is None:
        return ["Controls (is it the mean, or only step size or rank?): no pair is finished yet."]
    state = _state(result, gc)
    lines = [
        f"**Short training at a fixed learning rate** ({result.experiment.title}{state}): {effect_text(gc)} points, {gc.verdict}. "
        f"{_training_text(gc)}"
    ]
    names = {
        "rescaled": ("the smaller step alone (gradient rescaled to the centralized norm)", "step size"),
        "random direction": ("losing one random direction per weight vector", "the loss of a rank"),
    }
    for arm, (what, word) in names.items():
        finding = result.finding(arm)
        if finding is not None:
            lines.append(
                f"**Is it {word}?** {what[0].upper()}{what[1:]} gives {effect_text(finding)}: {_explains(finding, gc)}."
            )
    for arm, what in (
        ("input", "GC in the input layer alone"),
        ("centred images", "Centring each image, without GC,"),
    ):
        finding = result.finding(arm)
        if finding is not None and finding.comparison is not None:
            share = ""
            if gc.comparison.shown:
                share = f", {100 * finding.comparison.difference / gc.comparison.difference:.0f} % of the effect of GC in all layers (ratio of means)"
            lines.append(
                f"**Where does it come from?** {what} gives {effect_text(finding)}{share}: {_explains(finding, gc)}."
            )
    return lines


def _explains(control: Finding, gc: Finding) -> str:
    """Whether a control's interval lies below or above half of GC's effect."""
    assert control.comparison is not None
    assert gc.comparison is not None
    half = gc.comparison.difference / 2
    if gc.comparison.interval == "none" or not gc.comparison.shown:
        return "GC's own effect is not shown yet, so there is nothing to explain"
    if not math.isfinite(control.comparison.low):
        return "undecided with one pair"
    if control.comparison.high < half:
        return "it does not explain the effect (the interval lies below half of it)"
    if control.comparison.low > half:
        return "it explains at least half of the effect"
    return "undecided, the interval contains half of the effect"


def _norms(result: Results) -> list[str]:
    lines = []
    for cell in ("BN", "GN", "BN+WS"):
        finding = result.finding("all", cell)
        if finding is None:
            lines.append(f"**{cell}, both arms tuned**: no pair is finished yet ({_progress(result)}).")
            continue
        parts = [
            f"**{cell}, both arms tuned** ({result.experiment.recipe}{_state(result, finding)}): {effect_text(finding)} points, {finding.verdict}. "
            f"{_training_text(finding)}"
        ]
        for arm, words in (("hidden", "hidden layers only"), ("input", "input layer only")):
            other = result.finding(arm, cell)
            if other is not None:
                parts.append(f"With GC in the {words}: {effect_text(other)}.")
        claim = result.claim(finding)
        if claim is not None:
            parts.append(f"The paper's gain on ImageNet: {signed(claim, 2)}.")
        lines.append(" ".join(parts))
    return lines


def _longer(result: Results) -> list[str]:
    finding = result.finding("all")
    if finding is None:
        return [f"**With five times the steps and a tuned baseline**: not known yet ({_progress(result)})."]
    return [
        f"**With more images and steps, both arms tuned** ({result.experiment.recipe}{_state(result, finding)}): {effect_text(finding)} points, "
        f"{finding.verdict}. {_training_text(finding)}"
    ]


def _few_images(result: Results) -> list[str]:
    finding = result.finding("all")
    if finding is None:
        return [
            f"**Does GC generalize better from few images** (the paper's claim)? Not known yet ({_progress(result)})."
        ]
    gaps = [
        statistics.fmean(run.curves[-1]["train_metric"] - run.last for run in runs)
        for runs in (finding.without, finding.with_)
    ]
    return [
        f"**Few images, both arms tuned** ({result.experiment.recipe}{_state(result, finding)}): {effect_text(finding)} points, {finding.verdict}; the gap "
        f"between training and test accuracy goes from {gaps[0]:.1f} to {gaps[1]:.1f} points."
    ]


def _earlier(result: Results) -> list[str]:
    finding = result.finding("conv + FC")
    if finding is None:
        return []
    return [
        f"**An earlier study without tuning** (both arms at lr 0.1, 10 epochs): {effect_text(finding)} points. {_training_text(finding)} "
        "A tuned baseline may do better."
    ]


def _training(finding: Finding) -> float:
    pairs = zip(finding.without, finding.with_, strict=True)
    return statistics.fmean(b.curves[-1]["train_metric"] - a.curves[-1]["train_metric"] for a, b in pairs)


def _training_text(finding: Finding) -> str:
    """Whether training accuracy rises with test accuracy: then training is faster, and nothing shows better generalization."""
    assert finding.comparison is not None
    change, gain = _training(finding), finding.comparison.difference
    text = f"Training accuracy changes by {signed(change, 1)} points"
    if finding.comparison.shown and gain > 0 and change >= gain / 2:
        return f"{text}: faster training, not better generalization."
    return f"{text}."


def _state(result: Results, finding: Finding) -> str:
    assert finding.comparison is not None
    planned = result.planned_pairs(finding.arm)
    return (
        "" if finding.comparison.n == planned else f"; unfinished, {finding.comparison.n} of {planned} pairs"
    )


def _progress(result: Results) -> str:
    tuning, planned = result.planned_runs
    return f"{len(result.tuning_records)} of {tuning} tuning runs and {len(result.records)} of {planned} runs of the comparison are finished"
