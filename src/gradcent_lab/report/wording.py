"""Findings in sentences: verdict, evidence and advice, with the same words in the terminal and in the report."""

from __future__ import annotations

import math

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import ALPHA, RECOMMENDED_PAIRS, Comparison
from gradcent_lab.analysis.verdict import Kind, round_up
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.tables import decimals, interval_text, mean_std, p_value_text, signed

NBSP = "\N{NO-BREAK SPACE}"
SPREAD_RATIO = 3.0  # a change of the spread over seeds by this factor is reported

MEANING: dict[Kind, str] = {
    "helps": "better with GC: the interval excludes 0 and p < 0.05, or the sign-flip test's p < 0.01",
    "hurts": "worse with GC, by the same rule",
    "equivalent": "the whole interval lies within the margin: a larger difference is excluded with 95 % confidence",
    "inconclusive": "the runs neither show a difference nor exclude one that matters: not the same as no effect",
    "reproduced": (
        "at the paper's scale with its settings: both means are near the paper's, the difference agrees within "
        "errors, and the interval excludes half the paper's difference"
    ),
    "same direction": "better with GC, but not at the paper's scale, not with its settings, or not of its size",
    "opposite": "worse with GC where the paper reports a gain",
    "not run at this scale": "no pairs",
}


def conclude(finding: Finding) -> str:
    """Return the evidence in one or two sentences: difference, interval, tests, pairs won, diverged runs."""
    result = finding.comparison
    diverged = divergence_sentence(finding)
    if result is None:
        return diverged or "Not run here."
    name, unit = split_metric_name(finding.metric)
    difference = f"{name} {signed(result.difference, decimals(finding))}{unit} with GC"
    if result.n == 1:
        return _join(f"One pair, {difference}: one pair has no interval.", diverged)
    percent = f"{100 * (1 - result.alpha):.3g}"
    evidence = (
        f"{percent}{NBSP}% interval {interval_text(finding)}, {result.n}{NBSP}pairs, "
        f"t-test p{NBSP}{_p(result.p_value)}, sign-flip p{NBSP}{_p(result.sign_flip_p)}"
    )
    if finding.decision is not None:
        evidence = _sequential_evidence(finding, percent)
    won = f"better in {result.better}, worse in {result.worse} of {result.n} pairs"
    sentences = (spread_sentence(finding), control_sentence(finding), diverged)
    return _join(f"{difference}, {won} ({evidence}).", *sentences)


def _sequential_evidence(finding: Finding, percent: str) -> str:
    """The evidence of the rule that may be applied after every pair."""
    decision, places = finding.decision, decimals(finding)
    assert decision is not None
    interval = "unbounded"
    if math.isfinite(decision.low):
        interval = f"[{signed(decision.low, places)}, {signed(decision.high, places)}]"
    return (
        f"{decision.n}{NBSP}pairs, e-value {decision.e_value:.3g} ({_threshold(finding)} decides), always-valid "
        f"{percent}{NBSP}% interval {interval}"
    )


def _threshold(finding: Finding) -> str:
    """The e-value that decides: 1 / alpha, 20 for one arm and 20 times their number for several."""
    return f"{1 / (finding.comparison.alpha if finding.comparison else ALPHA):.3g}"


def spread_sentence(finding: Finding) -> str:
    """Return the change of the spread over seeds, where it is large: a collapse from 15.9 to 0.8 is a finding."""
    result = finding.comparison
    if result is None or result.n < 3 or not (result.without.std > 0 or result.with_.std > 0):
        return ""
    small, large = sorted((result.without.std, result.with_.std))
    if large < SPREAD_RATIO * small:
        return ""
    places = decimals(finding)
    return f"The spread over seeds goes from {result.without.std:.{places}f} to {result.with_.std:.{places}f} with GC."


def control_sentence(finding: Finding) -> str:
    """Return the difference of the BatchNorm control; empty where the model has no BatchNorm."""
    control = finding.control
    if control is None or finding.comparison is None or finding.epoch != "last":
        return ""
    settings = finding.without[0].config.get("settings", {})
    kind = "running" if settings.get("recalibrate_bn") else "re-estimated"
    difference = f"{signed(control.difference, decimals(finding))}{split_metric_name(finding.metric)[1]}"
    return f"With {kind} BatchNorm statistics: {difference}."


def divergence_sentence(finding: Finding) -> str:
    """Return how many runs of each arm diverged; empty where none did."""
    counts = finding.divergence
    if not counts.any:
        return ""
    left_out = counts.pairs - len(finding.without)
    rest = f" The means leave out {left_out} of {counts.pairs} pairs." if finding.without else ""
    return f"Diverged: {counts.without} of {counts.pairs} runs without GC, {counts.with_} with GC.{rest}"


def advise(finding: Finding) -> str:
    """Return what to do next; it follows from the verdict."""
    answer, result = finding.answer, finding.comparison
    unit = split_metric_name(finding.metric)[1]
    margin = "1" + unit.removesuffix("s") if answer.margin == 1 else f"{answer.margin or 0:.3g}{unit}"
    if answer.kind in ("helps", "reproduced", "same direction"):
        if answer.because == "divergence":
            return "Use GC here: runs without it diverge more often."
        return "Use GC here."
    if answer.kind in ("hurts", "opposite"):
        if answer.because == "divergence":
            return "Do not use GC here: runs with it diverge more often."
        return "Do not use GC here."
    if answer.kind == "equivalent":
        return f"GC makes no difference that matters here (margin {margin}): leave it off or on."
    if answer.kind == "not run at this scale":
        return ""
    if answer.because == "divergence":
        return (
            "Inconclusive because runs diverged: lower the learning rate, or add pairs to see which arm "
            "diverges more often."
        )
    if answer.because == "batch norm":
        return (
            "Inconclusive because the difference comes from BatchNorm's running statistics, not from the weights: "
            "compare again with --recalibrate-bn, and re-estimate the statistics before you evaluate."
        )
    if result is None or result.n < 2:
        return f"Inconclusive: run {RECOMMENDED_PAIRS} pairs or more."
    if answer.more_pairs is None:
        return (
            f"Inconclusive: differences scatter so much that detecting {margin} would take more than 10,000 pairs. "
            "Find out what makes runs differ first, or give a larger --margin."
        )
    detectable = f"{round_up(result.detectable)}{unit}"
    return (
        f"Inconclusive: these pairs detect a difference of {detectable} or more (80{NBSP}% power). "
        f"To detect {margin}, add about {answer.more_pairs} pairs."
    )


def warning(n: int) -> str | None:
    """Return the warning for a number of seeds that is too small to show anything, or None."""
    if n >= RECOMMENDED_PAIRS:
        return None
    if n == 1:
        return "one seed has no interval and shows nothing: five or more are needed"
    return f"{n} seeds can show only a very large effect: five or more are needed"


def means_sentence(result: Comparison, places: int) -> str:
    """Return both means: `85.1 ± 15.9 without GC, 95.3 ± 0.8 with`."""
    return f"{mean_std(result.without, places)} without GC, {mean_std(result.with_, places)} with"


def _p(p: float) -> str:
    text = p_value_text(p)
    return (text if text.startswith("<") else f"= {text}").replace(" ", NBSP)


def _join(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)
