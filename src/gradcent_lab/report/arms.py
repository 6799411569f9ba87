"""Several arms with GC in a table, in sentences and in one piece of advice: where the effect comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradcent_lab.analysis.arm_effects import DEFAULT_ARM, ArmEffects, Contrast
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.tables import (
    CONTROL,
    DASH,
    Table,
    control_note,
    decimals,
    level_text,
    mean_std,
    signed,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

WEIGHTS = "tensors, weights"  # heading of the column that says what an arm centralizes
NBSP = "\N{NO-BREAK SPACE}"
TITLE = "Where the effect comes from"
LAYERS = {
    "all": "all layers",
    "hidden": "the hidden layers",
    "input": "the input layer",
    "conv": "the convolutions",
    "linear": "the linear layers",
}


def arms_table(effects: ArmEffects, weights: Mapping[str, str]) -> Table:
    """Return one row per arm: what it centralizes, its result, and its difference from no GC and from all layers.

    `weights` says for each arm how many tensors it centralizes and which share of the weights they hold.
    """
    base = effects.findings[0].comparison
    against, places = _reference(effects), _places(effects)
    control = any(finding.control is not None for finding in effects.findings)
    header = ["GC in", WEIGHTS, "result", "minus no GC"]
    header += [level_text([f.comparison for f in effects.findings if f.comparison]), "better"]
    header += [*([CONTROL] if control else []), f"minus {LAYERS[against]}", "verdict"]
    without = mean_std(base.without, places) if base else DASH
    rows = [("none", DASH, without, *[DASH] * (len(header) - 3))]
    for finding in effects.findings:
        result = finding.comparison
        cells = [DASH] * 4
        if result is not None:
            interval = DASH
            if result.interval != "none":
                interval = f"[{signed(result.low, places)}, {signed(result.high, places)}]"
            cells = [mean_std(result.with_, places), signed(result.difference, places), interval]
            cells.append(f"{result.better} of {result.n}")
        if control:
            cells.append(signed(finding.control.difference, places) if finding.control else DASH)
        contrast = effects.contrast(against, finding.arm)
        cells.append(DASH if contrast is None else _contrast_cell(contrast, places))
        name = LAYERS.get(finding.arm, finding.arm)
        rows.append((name, weights.get(finding.arm, DASH), *cells, finding.verdict))
    return Table(TITLE, tuple(header), tuple(rows), _notes(effects))


def _reference(effects: ArmEffects) -> str:
    """The arm that the others are compared with: all layers, or the first arm where that was not run."""
    arms = [finding.arm for finding in effects.findings]
    return DEFAULT_ARM if DEFAULT_ARM in arms else arms[0]


def _places(effects: ArmEffects) -> int:
    """Decimals for all arms, those of the arm that needs fewest."""
    return min((decimals(finding) for finding in effects.findings if finding.comparison), default=2)


def _contrast_cell(contrast: Contrast, places: int) -> str:
    interval = ""
    if math.isfinite(contrast.low):
        interval = f" [{signed(contrast.low, places)}, {signed(contrast.high, places)}]"
    return f"{signed(contrast.difference, places)}{interval}"


def _notes(effects: ArmEffects) -> tuple[str, ...]:
    arms, contrasts = len(effects.findings), effects.contrasts
    lines = [
        f"Corrected by Bonferroni for {arms} arms against one baseline, which holds whatever the arms share: each "
        f"verdict is at 5 % / {arms}, so that all of them together raise a false alarm in at most 5 % of studies."
    ]
    if contrasts:
        level = f"{100 * (1 - contrasts[0].alpha):.3g}"
        lines.append(
            f"Intervals between arms are at {level} %, corrected for the "
            f"{len(contrasts)} comparisons among them."
            if len(contrasts) > 1
            else f"The interval between the two arms is at {level} %."
        )
    controlled = [finding for finding in effects.findings if finding.control is not None]
    if controlled:
        lines.append(control_note(controlled[0]))
    return tuple(lines)


def effect_sentences(effects: ArmEffects) -> list[str]:
    """Return how much of the effect of all layers each arm gives alone, and which arms are better than others."""
    whole = effects.finding(DEFAULT_ARM)
    if whole is None or whole.comparison is None:
        return []
    name, unit = split_metric_name(whole.metric)
    places = _places(effects)
    total = whole.comparison.difference
    parts = [f"GC in all layers changes {name} by {signed(total, places)}{unit}"]
    for finding in effects.findings:
        if finding.arm == DEFAULT_ARM or finding.comparison is None:
            continue
        difference = finding.comparison.difference
        share = ""
        if whole.comparison.shown and total:
            share = f", {100 * difference / total:.0f} % of it".replace("-", "−")
        parts.append(f"in {LAYERS[finding.arm]} alone by {signed(difference, places)}{unit}{share}")
    lines = [f"{', '.join(parts)}."]
    for contrast in effects.contrasts:
        if contrast.winner is not None:
            loser = contrast.first if contrast.winner == contrast.second else contrast.second
            gain = contrast.difference if contrast.winner == contrast.second else -contrast.difference
            won = contrast.better if contrast.winner == contrast.second else contrast.n - contrast.better
            lines.append(
                f"GC in {LAYERS[contrast.winner]} is better than GC in {LAYERS[loser]} by "
                f"{signed(gain, places)}{unit}, in {won} of {contrast.n} pairs "
                f"({100 * (1 - contrast.alpha):.3g} % interval "
                f"excludes 0)."
            )
    return lines


def advise_arms(effects: ArmEffects) -> str:
    """Return what to do; it follows from the verdicts of all arms."""
    harmful = _layers(effects.harmful)
    avoid = f" Do not use {harmful}: worse than no GC." if harmful else ""
    if effects.chosen is not None:
        use = "Use GC in all layers" if effects.chosen == DEFAULT_ARM else f'Use layers="{effects.chosen}"'
        return f"{use}.{avoid}"
    if effects.harmful and len(effects.harmful) == len(effects.findings):
        return "Do not use GC here, in any of these layers."
    rest = {finding.arm: finding.answer for finding in effects.findings if finding.arm not in effects.harmful}
    parts = [f"Do not use {harmful}."] if harmful else []
    if equal := [arm for arm, answer in rest.items() if answer.kind == "equivalent"]:
        parts.append(f"GC with {_layers(equal)} makes no difference that matters: leave it off or on.")
    undecided = {arm: answer for arm, answer in rest.items() if answer.kind == "inconclusive"}
    if lagging := [arm for arm, answer in undecided.items() if answer.because == "batch norm"]:
        parts.append(
            f"Inconclusive for {_layers(lagging)}, because the difference comes from BatchNorm's running statistics: "
            "compare again with --recalibrate-bn."
        )
    if diverging := [arm for arm, answer in undecided.items() if answer.because == "divergence"]:
        parts.append(
            f"Inconclusive for {_layers(diverging)}, because runs diverged: lower the learning rate."
        )
    if few := [arm for arm, answer in undecided.items() if not answer.because]:
        more = [rest[arm].more_pairs for arm in few]
        known = [count for count in more if count is not None]
        pairs = f": add about {max(known)} pairs" if len(known) == len(more) else ""
        parts.append(f"Inconclusive for {_layers(few)}{pairs}.")
    return " ".join(parts)


def _layers(arms: Sequence[str]) -> str:
    """Arms as the options of `attach`: `layers="all", layers="hidden"`."""
    return ", ".join(f'layers="{arm}"' for arm in arms)


def print_arms(console: Console, effects: ArmEffects, table: Table) -> None:
    """Print every seed with all arms, the table, the sentences and the advice."""
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    console.print(Padding(_seeds_grid(effects), (0, 0, 1, 2), expand=False))
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown = [
        number for number, name in enumerate(table.header) if name != WEIGHTS
    ]  # the facts above have them
    for number in shown:
        grid.add_column(table.header[number], justify="right" if number else "left")
    for row in table.rows:
        grid.add_row(*(row[number].replace(" ", NBSP) for number in shown))
    console.print(f"  [bold]{TITLE}[/bold]", highlight=False)
    console.print(Padding(grid, (0, 0, 1, 2), expand=False))
    for line in (*effect_sentences(effects), *table.notes):
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    console.print(Padding(Text(advise_arms(effects), style="bold"), (1, 0, 1, 2), expand=False))


def _seeds_grid(effects: ArmEffects) -> Grid:
    """One row per seed with the result of every arm; a dash where a run diverged or is missing."""
    from rich.table import Table as Grid

    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    for name in ("seed", "without GC", *(f"GC: {finding.arm}" for finding in effects.findings)):
        grid.add_column(name, justify="right")
    places, epoch = _places(effects), effects.findings[0].epoch
    base = {run.seed: run for finding in effects.findings for run in finding.without}
    arms = [{run.seed: run for run in finding.with_} for finding in effects.findings]
    for seed in sorted(base):
        cells = [f"{getattr(base[seed], epoch):.{places}f}"]
        cells += [f"{getattr(runs[seed], epoch):.{places}f}" if seed in runs else DASH for runs in arms]
        grid.add_row(str(seed), *cells, style="dim")
    return grid
