"""What single comparisons say, in words and numbers that follow from the runs by fixed rules."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evidence.programme import ARMS, IN_ALL_LAYERS, OPTIMIZERS, SHORT_TRAINING, Results
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import Comparison, compare
from gradcent_lab.analysis.tuning import GridPoint, TunedArm
from gradcent_lab.report.tables import signed
from gradcent_lab.report.wording import divergence_sentence

EARLY = 3.0  # points; below this gap in both arms training says nothing about generalization


def with_interval(result: Comparison, places: int = 2) -> str:
    """A mean difference with its interval."""
    if not math.isfinite(result.low):
        return f"{signed(result.difference, places)} (one pair)"
    return (
        f"{signed(result.difference, places)} [{signed(result.low, places)}, {signed(result.high, places)}]"
    )


def effect_text(finding: Finding) -> str:
    """The difference with its interval, in points; `diverged` where no pair finished."""
    return with_interval(finding.comparison) if finding.comparison else "diverged"


def means_text(finding: Finding) -> str:
    """Both means: `12.3 → 15.2`."""
    numbers = finding.comparison
    return f"{numbers.without.mean:.1f} → {numbers.with_.mean:.1f}" if numbers else "–"


def metric_word(finding: Finding) -> str:
    """The metric in one word."""
    return "IoU" if "IoU" in finding.metric else "accuracy"


def is_small(finding: Finding) -> bool:
    """Whether a difference is shown, but no difference as large as the margin is left in its interval."""
    answer, numbers = finding.answer, finding.comparison
    if answer.kind not in ("helps", "hurts") or answer.because or numbers is None or answer.margin is None:
        return False
    return numbers.bound <= answer.margin


def verdict_text(finding: Finding) -> str:
    """The verdict; with its reason where it does not follow from the difference, and marked where it is small."""
    if is_small(finding):
        assert finding.answer.margin is not None
        unit = "point" if finding.answer.margin == 1 else "points"
        return f"{finding.verdict}, by less than {finding.answer.margin:g} {unit}"
    if finding.answer.because == "batch norm" and finding.control is not None:
        return f"{finding.verdict} (with BatchNorm re-estimated: {with_interval(finding.control)})"
    if finding.answer.because == "divergence":
        return f"{finding.verdict} (runs diverged)"
    return finding.verdict


def pairs_text(result: Results, finding: Finding) -> str:
    """The number of pairs; how many are missing or diverged."""
    done, planned = len(finding.without), result.planned_pairs
    text = f"{done}" if done == planned else f"{done} of {planned}"
    diverged = finding.divergence.pairs - done
    return f"{text} ({diverged} diverged)" if diverged else text


def state_text(result: Results, finding: Finding) -> str:
    """What a sentence must say about pairs that are missing or diverged; empty if there are none."""
    parts = []
    if finding.divergence.pairs < result.planned_pairs:
        parts.append(f"unfinished: {finding.divergence.pairs} of {result.planned_pairs} pairs.")
    return " ".join([*parts, divergence_sentence(finding)]).strip()


def training_change(finding: Finding) -> Comparison:
    """The training metric of the last epoch: with GC minus without."""
    return _compare_last(finding, lambda run: run.curves[-1]["train_metric"])


def gap(finding: Finding) -> Comparison:
    """The gap between training and test metric at the last epoch: with GC minus without."""
    return _compare_last(
        finding, lambda run: run.curves[-1]["train_metric"] - run.last, higher_is_better=False
    )


def _compare_last(finding: Finding, value: Any, higher_is_better: bool = True) -> Comparison:
    values = [[value(run) for run in runs] for runs in (finding.without, finding.with_)]
    return compare(values[0], values[1], higher_is_better)


def at_equal_training(finding: Finding) -> Comparison | None:
    """Test metric at equal training metric, with GC minus without: a comparison of generalization, not of speed.

    The level is the lower of the two last training metrics of a pair; the test metric there is interpolated between
    epochs. None where a curve starts above the level.
    """
    values: list[list[float]] = [[], []]
    for pair in zip(finding.without, finding.with_, strict=True):
        level = min(run.curves[-1]["train_metric"] for run in pair)
        for side, run in zip(values, pair, strict=True):
            test = test_at(run.curves, level)
            if test is None:
                return None
            side.append(test)
    return compare(values[0], values[1]) if values[0] else None


def test_at(curve: Sequence[Mapping[str, Any]], level: float) -> float | None:
    """Return the test metric where the training metric first reaches a level; None if it begins above it."""
    before = None
    for line in curve:
        train, test = float(line["train_metric"]), float(line["eval_metric"])
        if train >= level:
            if before is None:
                return test if train == level else None
            share = (level - before[0]) / (train - before[0])
            return before[1] + share * (test - before[1])
        before = train, test
    return None


def generalization_text(finding: Finding) -> str:
    """What training and test metric say together; whether GC trains faster, and whether the gap changes."""
    metric, change, training = metric_word(finding), gap(finding), training_change(finding)
    parts = [f"Training {metric} at the end: {with_interval(training, 1)} points."]
    if max(abs(change.without.mean), abs(change.with_.mean)) < EARLY:
        parts.append(
            f"Its gap to the test {metric} is below {EARLY:g} points in both arms: too early in training to say anything "
            "about generalization."
        )
        return " ".join(parts)
    word = "does not change measurably"
    if math.isfinite(change.low) and change.high < 0:
        word = "shrinks"
    elif math.isfinite(change.low) and change.low > 0:
        word = "widens"
    parts.append(
        f"The gap between training and test {metric} {word}: {change.without.mean:.1f} → {change.with_.mean:.1f} points."
    )
    matched = at_equal_training(finding)
    if matched is not None:
        parts.append(
            f"At equal training {metric} the test {metric} differs by {with_interval(matched)} points."
        )
    return " ".join(parts)


def edge_text(result: Results, cell: str) -> str:
    """Which arms chose the highest or lowest rate of their grid, and what the next rate did; empty if none did."""
    if not result.is_tuned(cell):
        return ""
    beyond = {arm.arm: arm.points for arm in result.beyond_arms(cell)}
    edges = []
    for arm in result.tuned_arms(cell):
        if arm.at_edge():
            edges.append(f"{arm_label(arm.arm)}{_next_rate(arm, beyond.get(arm.arm, ()))}")
    return f"Chosen rate at the end of the grid {' and '.join(edges)}." if edges else ""


def _next_rate(arm: TunedArm, beyond: Sequence[GridPoint]) -> str:
    """Whether the rates beyond the grid are worse than the chosen one, if they have run."""
    if not beyond:
        return ""
    sign = 1.0 if arm.higher_is_better else -1.0
    better = any(sign * (point.mean - arm.best.mean) > 0 for point in beyond)  # NaN where a run diverged
    return " (the next rate is better)" if better else " (the next rate is worse)"


def arm_label(arm: str) -> str:
    """A tuned arm in words."""
    return {"off": "without GC", "update": "with GC at the update"}.get(arm, "with GC")


def comparison_text(result: Results, finding: Finding) -> str:
    """One comparison in a line: what was trained and for how long, both means, the difference, the verdict."""
    arm = "" if finding.arm in IN_ALL_LAYERS else f", {ARMS.get(finding.arm, finding.arm)}"
    steps = result.steps(finding)
    length = f", {steps:,} steps" if steps else ""
    parts = [
        f"**{result.title(finding.cell)}**{arm}{length} (`{result.experiment.recipe}`): {means_text(finding)} %, "
        f"{effect_text(finding)} points, {verdict_text(finding)}.",
        state_text(result, finding),
        edge_text(result, finding.cell),
    ]
    return " ".join(part for part in parts if part)


def headline(results: Sequence[Results]) -> str:
    """The README's opening: how often GC helped, and the tuned comparison with the most pairs and steps."""
    found = [(r, f) for r in results if r.experiment.subject for f in r.main_findings()]
    if not found:
        return "No comparison of the evidence programme is finished yet."
    result, finding = max(found, key=lambda entry: _weight(*entry))
    numbers = finding.comparison
    if numbers is None:
        return f"{counts_text([f for _, f in found])}."
    limits = (state_text(result, finding), edge_text(result, finding.cell))
    return (
        f"**{counts_text([f for _, f in found])}.** {_resnets(found)}The largest comparison: {result.title(finding.cell)}, {result.steps(finding):,} steps, "
        f"{numbers.n} pairs: {means_text(finding)} % test {metric_word(finding)}, {effect_text(finding)} points, {verdict_text(finding)}. "
        f"{' '.join(text for text in limits if text)} The networks are small and the training is short: nothing here says what GC does "
        "over a long schedule."
    )


def _resnets(found: Sequence[tuple[Results, Finding]]) -> str:
    """How many of the comparisons are of one kind, so that their number is not taken for breadth."""
    same = sum(result.experiment.subject in (SHORT_TRAINING, OPTIMIZERS) for result, _ in found)
    return f"{same} of them train small ResNets on CIFAR-100. " if same > 1 else ""


def _weight(result: Results, finding: Finding) -> tuple[bool, int]:
    """Tuned comparisons first, then by the training steps of all pairs."""
    return result.study.scale.tuning is not None, len(finding.without) * (result.steps(finding) or 0)


def counts_text(found: Sequence[Finding]) -> str:
    """How often GC helped, made no difference that matters, hurt, and how many comparisons are undecided."""
    counts = {
        kind: sum(f.answer.kind == kind and not is_small(f) for f in found)
        for kind in ("helps", "hurts", "inconclusive")
    }
    equal = len(found) - sum(counts.values())
    parts = [f"GC helped in {counts['helps']} of {len(found)} comparisons"]
    if equal:
        parts.append(f"made no difference of a point or more in {equal}")
    parts.append(f"hurt in {counts['hurts'] or 'none'}")
    if counts["inconclusive"]:
        parts.append(f"{counts['inconclusive']} {'is' if counts['inconclusive'] == 1 else 'are'} undecided")
    return ", ".join(parts)


def progress(result: Results) -> str:
    """How many runs of an experiment are finished."""
    tuning, planned = result.planned_runs
    tuned = f"{len(result.tuning_records)} of {tuning} tuning runs and " if tuning else ""
    return f"{tuned}{len(result.records)} of {planned} runs of the comparison are finished"
