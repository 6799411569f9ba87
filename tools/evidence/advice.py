"""When to switch GC on, and when not: every comparison under the heading that its verdict gives it."""

from __future__ import annotations

from collections.abc import Sequence

from evidence.programme import SHORT_TRAINING, SUBJECTS, Results
from evidence.sentences import comparison_text, counts_text, effect_text, is_small, progress, verdict_text
from gradcent import calibration
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.tables import signed

HELPS, EQUAL, HURTS, OPEN = "helps", "equivalent", "hurts", "inconclusive"
HEADINGS = {
    HELPS: "Switch it on",
    EQUAL: "It makes no difference of a point or more",
    HURTS: "Leave it off",
    OPEN: "Not known",
}
MUCH, LITTLE = calibration.EDGES[2], calibration.EDGES[1]  # shares of the gradient that GC removes
TASKS = "Small tasks of the [forecast](forecast.md#calibration), every arm tuned"


def advice(results: Sequence[Results], demo: Sequence[dict[str, str]]) -> list[tuple[str, list[str]]]:
    """Return headings with their sentences; `demo` holds the rows of the demo's table."""
    groups: dict[str, list[str]] = {kind: [] for kind in HEADINGS}
    for result in results:
        if not result.experiment.subject:
            continue
        for cell in result.study.cells:
            found = [f for f in (result.main(cell.name), result.finding("update", cell.name)) if f]
            for finding in found:
                groups[EQUAL if is_small(finding) else finding.answer.kind].append(
                    comparison_text(result, finding)
                )
        unknown = [c.name for c in result.study.cells if result.main(c.name) is None]
        if unknown:
            groups[OPEN].append(_not_known(result, unknown))
    groups[HELPS].append(_much_removed())
    groups[EQUAL].append(_little_removed())
    groups[HURTS] += [*_brightness(demo), _harmed()]
    groups[OPEN].insert(0, _long_training(results, demo))
    return [(HEADINGS[kind], sentences) for kind, sentences in groups.items() if sentences]


def summary(results: Sequence[Results], demo: Sequence[dict[str, str]]) -> list[str]:
    """One line per subject: whether to switch GC on there, and the numbers that say so."""
    lines = []
    for subject in SUBJECTS:
        mine = [result for result in results if result.experiment.subject == subject]
        found = [(result, finding) for result in mine for finding in result.main_findings()]
        missing = sum(len(result.study.cells) for result in mine) - len(found)
        word = _word([finding for _, finding in found])
        if found and missing:
            word = f"{word.removesuffix('.')}, as far as it has run."
        lines.append(f"**{subject}: {word}**{_numbers(found)}")
    hurt = _brightness_rows(demo)
    if hurt:
        everywhere, hidden = hurt
        lines.append(
            f'**The target depends on the mean of the input (brightness, a sum): no, or with `layers="hidden"`.** {everywhere["difference"]} '
            f"{everywhere['interval']} points in the brightness case of `gradcent demo`, {hidden['difference']} {hidden['interval']} with hidden layers only."
        )
    return [*lines, "**Long training, large networks: not measured.**"]


def _word(found: Sequence[Finding]) -> str:
    """The answer to "should I switch it on?" for one subject."""
    kinds = {EQUAL if is_small(f) else f.answer.kind for f in found}
    if not kinds:
        return "not known yet."
    if kinds == {HELPS}:
        return "yes."
    if kinds == {HURTS}:
        return "no."
    if kinds == {EQUAL}:
        return "it makes no difference that matters."
    return "not decided." if kinds == {OPEN} else "it depends."


def _numbers(found: Sequence[tuple[Results, Finding]]) -> str:
    """The effect of a single comparison; for several, how they are distributed."""
    if len(found) == 1:
        result, finding = found[0]
        return f" {result.title(finding.cell)}: {effect_text(finding)} points, {verdict_text(finding)}."
    differences = sorted(f.comparison.difference for _, f in found if f.comparison)
    if not differences:
        return ""
    spread = f"{signed(differences[0], 2)} to {signed(differences[-1], 2)}"
    return f" {counts_text([f for _, f in found])}; mean differences {spread} points."


def _not_known(result: Results, cells: Sequence[str]) -> str:
    names = "" if len(cells) == len(result.study.cells) else f" with {', '.join(cells)}"
    return (
        f"**{result.experiment.title}**{names} (`{result.experiment.recipe}`). {result.experiment.question} No pair is "
        f"finished ({progress(result)})."
    )


def _long_training(results: Sequence[Results], demo: Sequence[dict[str, str]]) -> str:
    """That no run here is long, and what the demo shows about it."""
    epochs = [
        len(f.without[0].curves)
        for r in results
        if r.experiment.subject == SHORT_TRAINING
        for f in r.main_findings()
        if f.without
    ]
    longest = (
        f" The longest training of a convolutional network here has {max(epochs)} epochs." if epochs else ""
    )
    rows = {row["cell"]: row for row in demo if row["GC on"] in ("all", "on")}
    early, late = rows.get("digits, epoch 10"), rows.get("digits, epoch 40")
    fades = ""
    if early and late:
        fades = (
            f" In the digits case of `gradcent demo` the gain is {early['difference']} points after 10 epochs and "
            f"{late['difference']} after 40, in the same runs."
        )
    return f"**Long training** was not measured.{longest}{fades}"


def _much_removed() -> str:
    points = [point for point in calibration.POINTS if point.removed >= MUCH]
    return (
        f"**{TASKS}**: where GC removes {100 * MUCH:.0f} % of the gradient or more, the training loss of "
        f"{sum(p.faster for p in points)} of {len(points)} tasks was lower with GC, of {sum(p.slower for p in points)} higher. "
        "`gradcent forecast` measures that share for your model."
    )


def _little_removed() -> str:
    points = [point for point in calibration.POINTS if point.removed < LITTLE]
    faster, slower = sum(p.faster for p in points), sum(p.slower for p in points)
    return (
        f"**{TASKS}**: where GC removes less than {100 * LITTLE:.0f} % of the gradient (most inputs are centered already), the "
        f"training loss of {len(points) - faster - slower} of {len(points)} tasks was about equal, of {faster} lower, of {slower} higher."
    )


def _harmed() -> str:
    points = calibration.POINTS
    return (
        f"**{TASKS}**: GC in all layers harmed {sum(p.harmed for p in points)} of {len(points)}, GC in the hidden layers only "
        f"{sum(p.harmed_hidden for p in points)}."
    )


def _brightness_rows(rows: Sequence[dict[str, str]]) -> tuple[dict[str, str], dict[str, str]] | None:
    """The demo's case in which the mean is the label: GC in all layers, and in the hidden layers only."""
    by_arm = {row["GC on"]: row for row in rows if row["cell"].startswith("brightness")}
    return (by_arm["all"], by_arm["hidden"]) if {"all", "hidden"} <= by_arm.keys() else None


def _brightness(rows: Sequence[dict[str, str]]) -> list[str]:
    found = _brightness_rows(rows)
    if found is None:
        return []
    everywhere, hidden = found
    return [
        f"**The label is the brightness of the image** (`gradcent demo`, {everywhere['n']} pairs): {everywhere['without GC']} → "
        f"{everywhere['with GC']} %, difference {everywhere['difference']} {everywhere['interval']}, {everywhere['verdict']}. With "
        f'`layers="hidden"`: {hidden["difference"]} {hidden["interval"]}.'
    ]
