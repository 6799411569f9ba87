"""What follows for a user: every comparison under the heading that its verdict gives it, and why GC acts as it does.

A control explains GC's effect if its interval lies above half of it, and does not if it lies below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from evidence.programme import Results
from evidence.sentences import comparison_text, effect_text, numbers_of, progress, title
from gradcent import calibration
from gradcent_lab.analysis.findings import Finding

HELPS, EQUAL, HURTS, OPEN = "helps", "equivalent", "hurts", "inconclusive"
HEADINGS = {
    HELPS: "Where it helped: switch GC on for networks like these, and tune the learning rate with it",
    EQUAL: "Where it made no difference",
    HURTS: 'Where it hurt: leave GC off, or use `layers="hidden"`',
    OPEN: "Not decided by these runs",
}
MUCH, LITTLE = calibration.EDGES[2], calibration.EDGES[1]  # shares of the gradient that GC removes


def advice(results: Sequence[Results], demo: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Return headings with their sentences; `demo` holds the rows of the demo's table."""
    groups: dict[str, list[str]] = {kind: [] for kind in HEADINGS}
    for result in results:
        if not result.findings:
            groups[OPEN].append(_not_known(result, result.experiment.title))
            continue
        for cell in result.study.cells:
            found = [f for f in (result.main(cell.name), result.finding("update", cell.name)) if f]
            if not found:
                groups[OPEN].append(_not_known(result, title(result, cell.name)))
            for finding in found:
                groups[finding.answer.kind].append(comparison_text(result, finding))
    groups[HELPS] += [*_rates(results), _much_removed()]
    groups[HURTS] += [*_demo(demo), _little_removed(), _harmed()]
    sections = [(HEADINGS[kind], sentences) for kind, sentences in groups.items() if sentences]
    controls = next(result for result in results if result.experiment.recipe == "controls")
    return [*sections, ("Why", _controls(controls))]


def _not_known(result: Results, name: str) -> str:
    return (
        f"**{name}** (`{result.experiment.recipe}`), {result.experiment.question} Not known yet: no pair is finished "
        f"({progress(result)})."
    )


def _rates(results: Sequence[Results]) -> list[str]:
    """How the tuned learning rates of both arms compare."""
    pairs = []
    for result in results:
        if result.study.scale.tuning is None or len(result.tuning_records) < result.planned_runs[0]:
            continue
        for cell in result.study.cells:
            rates = {arm.arm: dict(arm.best.values)["lr"] for arm in result.tuned_arms(cell.name)}
            pairs.append((rates["off"], rates["all"]))
    if not pairs:
        return []
    higher, lower = sum(on > off for off, on in pairs), sum(on < off for off, on in pairs)
    return [
        f"**Learning rate.** With GC the best rate of the grid is higher in {higher} of {len(pairs)} tuned comparisons, the same in "
        f"{len(pairs) - higher - lower}, lower in {lower}."
    ]


def _much_removed() -> str:
    points = [point for point in calibration.POINTS if point.removed >= MUCH]
    return (
        f"**Small tasks of the [forecast](forecast.md#calibration), every arm tuned**: where GC removes {100 * MUCH:.0f} % of the gradient or more, "
        f"{sum(p.faster for p in points)} of {len(points)} tasks trained faster with GC, {sum(p.slower for p in points)} slower. "
        "`gradcent forecast` measures that share for your model."
    )


def _little_removed() -> str:
    points = [point for point in calibration.POINTS if point.removed < LITTLE]
    faster, slower = sum(p.faster for p in points), sum(p.slower for p in points)
    return (
        f"**Small tasks of the [forecast](forecast.md#calibration)**: where GC removes less than {100 * LITTLE:.0f} % of the gradient (most inputs are "
        f"centered already), {len(points) - faster - slower} of {len(points)} tasks trained about equally, {faster} faster, {slower} slower."
    )


def _harmed() -> str:
    points = calibration.POINTS
    return (
        f"**Small tasks of the [forecast](forecast.md#calibration)**: GC in all layers harmed {sum(p.harmed for p in points)} of {len(points)}, GC in the "
        f"hidden layers only {sum(p.harmed_hidden for p in points)}."
    )


def _demo(rows: Sequence[dict[str, str]]) -> list[str]:
    by_arm = {row["GC on"]: row for row in rows if row["cell"].startswith("brightness")}
    if not {"all", "hidden"} <= by_arm.keys():
        return []
    everywhere, hidden = by_arm["all"], by_arm["hidden"]
    return [
        f"**The label is the brightness of the image** (`gradcent demo`, {everywhere['n']} pairs): {everywhere['without GC']} → {everywhere['with GC']} %, "
        f'difference {everywhere["difference"]} {everywhere["interval"]}, {everywhere["verdict"]}. With `layers="hidden"`: {hidden["difference"]} '
        f"{hidden['interval']}."
    ]


def _controls(result: Results) -> list[str]:
    """Step size, rank, or the mean? And which layers?"""
    gc = result.finding("all")
    if gc is None:
        return ["Controls (is it the mean, or only step size or rank?): no pair is finished yet."]
    lines = []
    for arm, what, word in (
        ("rescaled", "The smaller step alone (gradient rescaled to the centralized norm)", "step size"),
        ("random direction", "Losing one random direction per weight vector", "the loss of a rank"),
    ):
        finding = result.finding(arm)
        if finding is not None:
            lines.append(f"**Is it {word}?** {what} gives {effect_text(finding)}: {explains(finding, gc)}.")
    for arm, what in (
        ("input", "GC in the input layer alone"),
        ("centred images", "Centring each image, without GC,"),
    ):
        finding = result.finding(arm)
        if finding is not None:
            share = ""
            if numbers_of(gc).shown:
                ratio = numbers_of(finding).difference / numbers_of(gc).difference
                share = f", {100 * ratio:.0f} % of the effect of GC in all layers (ratio of means)"
            lines.append(
                f"**Where does it come from?** {what} gives {effect_text(finding)}{share}: {explains(finding, gc)}."
            )
    return lines


def explains(control: Finding, gc: Finding) -> str:
    """Whether a control's interval lies below or above half of GC's effect."""
    effect, other = numbers_of(gc), numbers_of(control)
    half = effect.difference / 2
    if effect.interval == "none" or not effect.shown:
        return "GC's own effect is not shown yet, so there is nothing to explain"
    if not math.isfinite(other.low):
        return "undecided with one pair"
    if other.high < half:
        return "it does not explain the effect (the interval lies below half of it)"
    if other.low > half:
        return "it explains at least half of the effect"
    return "undecided, the interval contains half of the effect"
