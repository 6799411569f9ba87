"""Several arms with GC in a table, in sentences and in one piece of advice: where the effect comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradcent_lab.analysis.arm_effects import DEFAULT_ARM, ArmEffects, Contrast
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.tables import (
    DASH,
    Table,
    decimals,
    interval_text,
    level_text,
    mean_std,
    signed,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid

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

    `weights` says for each arm which share of the weights it centralizes.
    """
    first = effects.findings[0]
    against = _reference(effects)
    alone = len(effects.findings) == 1
    level = level_text([f.comparison for f in effects.findings if f.comparison])
    header = ["GC in", "weights", "result", "difference from no GC", level, "better"]
    header += [] if alone else [f"difference from {LAYERS[against]}"]
    header += ["verdict"]
    rows = [
        _row(effects, finding, weights.get(finding.arm, DASH), against, alone) for finding in effects.findings
    ]
    base = first.comparison
    places = min((decimals(f) for f in effects.findings if f.comparison), default=2)
    without = mean_std(base.without, places) if base else DASH
    rows.insert(0, ["none", DASH, without, *[DASH] * (len(header) - 3)])
    return Table(TITLE, tuple(header), tuple(tuple(row) for row in rows), _notes(effects))


def _reference(effects: ArmEffects) -> str:
    """The arm that the others are compared with: all layers, or the first arm where that was not run."""
    arms = [finding.arm for finding in effects.findings]
    return DEFAULT_ARM if DEFAULT_ARM in arms else arms[0]


def _row(effects: ArmEffects, finding: Finding, weights: str, against: str, alone: bool) -> list[str]:
    result, places = finding.comparison, decimals(finding)
    row = [LAYERS.get(finding.arm, finding.arm), weights]
    if result is None:
        row += [DASH] * 4
    else:
        row += [
            mean_std(result.with_, places),
            signed(result.difference, places),
            interval_text(finding),
            f"{result.better} of {result.n}",
        ]
    if not alone:
        contrast = effects.contrast(against, finding.arm)
        row.append(DASH if contrast is None else _contrast_cell(contrast, places))
    return [*row, finding.verdict]


def _contrast_cell(contrast: Contrast, places: int) -> str:
    interval = ""
    if math.isfinite(contrast.low):
        interval = f" [{signed(contrast.low, places)}, {signed(contrast.high, places)}]"
    return f"{signed(contrast.difference, places)}{interval}"


def _notes(effects: ArmEffects) -> tuple[str, ...]:
    arms, contrasts = len(effects.findings), effects.contrasts
    if arms < 2:
        return ()
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
    return tuple(lines)


def effect_sentences(effects: ArmEffects) -> list[str]:
    """Return how much of the effect of all layers each arm gives alone, and which arms are better than others."""
    whole = effects.finding(DEFAULT_ARM)
    if whole is None or whole.comparison is None:
        return []
    name, unit = split_metric_name(whole.metric)
    places = decimals(whole)
    total = whole.comparison.difference
    lines = [f"GC in all layers changes {name} by {signed(total, places)}{unit}."]
    parts = []
    for finding in effects.findings:
        if finding.arm == DEFAULT_ARM or finding.comparison is None:
            continue
        difference = finding.comparison.difference
        share = ""
        if whole.comparison.shown and total:
            share = f", {100 * difference / total:.0f} % of it".replace("-", "−")
        parts.append(f"in {LAYERS[finding.arm]} alone by {signed(difference, places)}{unit}{share}")
    if parts:
        lines.append(f"GC {'; '.join(parts)}.")
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
    harmful = ", ".join(f"layers={arm!r}" for arm in effects.harmful).replace("'", '"')
    avoid = f" Do not use {harmful}: worse than no GC." if harmful else ""
    if effects.chosen is not None:
        use = "Use GC in all layers" if effects.chosen == DEFAULT_ARM else f'Use layers="{effects.chosen}"'
        return f"{use}.{avoid}"
    if effects.harmful and len(effects.harmful) == len(effects.findings):
        return "Do not use GC here, in any of these layers."
    kinds = {
        finding.arm: finding.answer for finding in effects.findings if finding.arm not in effects.harmful
    }
    equal = [arm for arm, answer in kinds.items() if answer.kind == "equivalent"]
    open_ = [arm for arm, answer in kinds.items() if answer.kind == "inconclusive"]
    parts = []
    if harmful:
        parts.append(f"Do not use {harmful}.")
    if equal:
        listed = " and ".join(f'layers="{arm}"' for arm in equal)
        parts.append(f"GC with {listed} makes no difference that matters: leave it off or on.")
    if open_:
        listed = " and ".join(f'layers="{arm}"' for arm in open_)
        more = [kinds[arm].more_pairs for arm in open_]
        known = [count for count in more if count is not None]
        pairs = f" Add about {max(known)} pairs." if len(known) == len(more) else ""
        parts.append(f"Inconclusive: {listed}.{pairs}")
    return " ".join(parts)


def print_arms(console: Console, effects: ArmEffects, table: Table) -> None:
    """Print every seed with all arms, the table, the sentences and the advice."""
    from rich.padding import Padding
    from rich.table import Table as Grid
    from rich.text import Text

    console.print(Padding(_seeds_grid(effects), (0, 0, 1, 2), expand=False))
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, name in enumerate(table.header):
        grid.add_column(name, justify="left" if number == 0 else "right")
    for row in table.rows:
        grid.add_row(*row)
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
    places = min((decimals(f) for f in effects.findings if f.comparison), default=2)
    epoch = effects.findings[0].epoch
    base = {run.seed: run for finding in effects.findings for run in finding.without}
    arms = [{run.seed: run for run in finding.with_} for finding in effects.findings]
    for seed in sorted(base):
        cells = [f"{getattr(base[seed], epoch):.{places}f}"]
        cells += [f"{getattr(runs[seed], epoch):.{places}f}" if seed in runs else DASH for runs in arms]
        grid.add_row(str(seed), *cells, style="dim")
    return grid
