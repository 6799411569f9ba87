"""The questions of the protocol with their answers, and the contrasts between arms that explain GC's effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evidence.programme import ARMS, Results
from evidence.sentences import (
    counts_text,
    effect_text,
    gap,
    generalization_text,
    is_small,
    progress,
    verdict_text,
    with_interval,
)
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import Comparison, compare


def answer(result: Results) -> str:
    """The answer to the question of an experiment, from its finished pairs."""
    if not result.main_findings():
        return f"Not known yet: {progress(result)}."
    return ANSWERS.get(result.experiment.recipe, _effects)(result)


def _effects(result: Results) -> str:
    """The effect in every cell, and what it says about generalization where there is one cell."""
    found = result.main_findings()
    parts = [_effect(result, f) for f in found]
    if len(found) == 1 and found[0].without:
        parts.append(generalization_text(found[0]))
    return " ".join(parts)


def _effect(result: Results, finding: Finding) -> str:
    name = f"{finding.cell}: " if len(result.study.cells) > 1 else ""
    return f"{name}{effect_text(finding)}, {verdict_text(finding)}."


def _catches_up(result: Results) -> str:
    """Whether the baseline at its best rate, and beyond its grid, stays below GC."""
    finding = result.main_findings()[0]
    word = "Undecided." if finding.answer.kind == "inconclusive" else "Yes."
    if finding.answer.kind == "helps" and not is_small(finding):
        word = "No."
    return f"{word} {_effects(result)}"


def _gap(result: Results) -> str:
    """Whether the gap shrinks, and what the test accuracy does."""
    finding = result.main_findings()[0]
    if not finding.without:
        return _effects(result)
    change = gap(finding)
    word = "Yes." if change.high < 0 else "No, it widens." if change.low > 0 else "No change is shown."
    return f"{word} {generalization_text(finding)} Test accuracy: {_effect(result, finding)}"


def _norms(result: Results) -> str:
    """Which norm gains most, and which layers with BN."""
    found = sorted((f for f in result.main_findings() if f.comparison), key=_difference, reverse=True)
    parts = [_effects(result)]
    if len(found) > 1:
        parts.append(f"Largest with {found[0].cell}, smallest with {found[-1].cell}.")
    parts += [contrast_text(result, "BN", arm) for arm in ("hidden", "input") if result.contrast("BN", arm)]
    return " ".join(parts)


def _difference(finding: Finding) -> float:
    assert finding.comparison is not None
    return finding.comparison.difference


def _optimizers(result: Results) -> str:
    """Every optimizer with GC at the gradient and at the update, and which of them is better."""
    parts = [f"At the gradient: {counts_text(result.main_findings())}."]
    updates = [f for f in result.findings if f.arm == "update"]
    if updates:
        parts.append(f"At the update: {counts_text(updates)}.")
    for finding in result.main_findings():
        text = f"{finding.cell} {effect_text(finding)}"
        other = result.finding("update", finding.cell)
        if other is not None:
            text += f", at the update {effect_text(other)}"
            contrast = result.contrast(finding.cell, "update")
            if contrast is not None and contrast.n > 1:
                text += f" (update − gradient {with_interval(contrast)})"
        parts.append(f"{text}.")
    return " ".join(parts)


def _unet(result: Results) -> str:
    """GC with and without re-estimated BatchNorm, and the wrong axis against the right one."""
    finding = result.main_findings()[0]
    parts = [f"IoU {_effect(result, finding)}"]
    if finding.control is not None:
        parts.append(f"With BatchNorm re-estimated: {with_interval(finding.control)}.")
    if result.contrast(finding.cell, "wrong axis"):
        parts.append(contrast_text(result, finding.cell, "wrong axis"))
    if finding.answer.kind == "inconclusive" and finding.comparison and finding.comparison.n > 1:
        parts.append(
            f"These pairs detect {finding.comparison.detectable:.1f} points or more with 80 % power."
        )
    return " ".join(parts)


def contrast_text(result: Results, cell: str, arm: str) -> str:
    """One arm against GC in all layers, over the seeds of both and at the same learning rate."""
    contrast = result.contrast(cell, arm)
    assert contrast is not None
    name = ARMS[arm].removeprefix("control: ")
    return f"{name[0].upper()}{name[1:]}, minus GC in all layers: {with_interval(contrast)} points, {_contrast_word(contrast)}."


def _contrast_word(contrast: Comparison) -> str:
    if not contrast.shown:
        return "no difference shown"
    return "better" if contrast.gain > 0 else "worse"


CONTROL_QUESTIONS = (
    ("rescaled", "Is it the step size?", "The gradient rescaled to the norm of the centralized one"),
    (
        "random direction",
        "Is it the loss of one direction?",
        "Removing a random direction from each weight vector",
    ),
    ("input", "Is it the input layer?", "GC in the input layer alone"),
    ("centred images", "Is it the mean of the image?", "Centring each image, without GC,"),
)


def why(result: Results) -> list[str]:
    """Step size, one direction less, the input layer, the mean of the image: does one of them do what GC does?"""
    (cell,) = (c.name for c in result.study.cells)
    gc = result.main(cell)
    if gc is None or not gc.without:
        return ["Not known yet: no pair of the controls is finished."]
    lines = []
    for arm, question, what in CONTROL_QUESTIONS:
        control, contrast = result.finding(arm, cell), result.contrast(cell, arm)
        if control is not None and contrast is not None:
            lines.append(
                f"**{question}** {_explains(gc, contrast, half_contrast(result, cell, arm))} {what} gives {effect_text(control)} points; "
                f"minus GC in all layers {with_interval(contrast)}."
            )
    return lines


def _controls(result: Results) -> str:
    """The controls' answers without their numbers, which have a section of their own."""
    (cell,) = (c.name for c in result.study.cells)
    gc = result.main(cell)
    assert gc is not None
    parts = []
    for arm, question, _ in CONTROL_QUESTIONS:
        contrast = result.contrast(cell, arm)
        if contrast is not None:
            parts.append(f"{question} {_explains(gc, contrast, half_contrast(result, cell, arm))}")
    return " ".join(parts)


def half_contrast(result: Results, cell: str, arm: str) -> Comparison:
    """An arm's effect minus half of that of GC in all layers, over common seeds, at the level of the contrasts."""
    main, other = result.main(cell), result.finding(arm, cell)
    assert main is not None
    assert other is not None
    off = {run.seed: run.last for run in main.without}
    sides = [{run.seed: run.last for run in f.with_} for f in (main, other)]
    seeds = sorted(off.keys() & sides[0].keys() & sides[1].keys())
    half = [(sides[0][seed] - off[seed]) / 2 for seed in seeds]
    effect = [sides[1][seed] - off[seed] for seed in seeds]
    return compare(half, effect, main.higher_is_better, len(result.arms_with_gc(cell)) - 1)


def _explains(gc: Finding, contrast: Comparison, half: Comparison) -> str:
    """Whether an arm does what GC does: less than half of it, less, or at least half."""
    if gc.answer.kind != "helps":
        return "There is no effect of GC to explain."
    if half.n < 2:
        return "Undecided with one pair."
    if half.high < 0:
        return "No, it gives less than half of GC's effect."
    if contrast.high < 0:
        return "Not alone, it gives less than GC in all layers."
    if half.low > 0:
        return "It gives at least half of GC's effect."
    return "Undecided."


ANSWERS: dict[str, Callable[[Results], str]] = {
    "cifar100-tuned": _catches_up,
    "few-images": _gap,
    "norms": _norms,
    "optimizers-tuned": _optimizers,
    "unet": _unet,
    "controls": _controls,
}


def table(results: Sequence[Results]) -> list[str]:
    """The rows of the page's table: question, answer, experiment."""
    return [
        f"| {result.experiment.question} | {answer(result)} | `{result.experiment.recipe}` |"
        for result in results
        if result.experiment.letter != "–"
    ]
