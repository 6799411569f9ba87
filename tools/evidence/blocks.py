"""The generated blocks of docs/does-it-help.md and of the README's opening, as Markdown."""

from __future__ import annotations

import math
from pathlib import Path

from evidence import figures
from evidence.advice import advice
from evidence.programme import ARMS, IN_ALL_LAYERS, Results, load
from evidence.sentences import effect_text, gap, headline, title, training_difference, with_interval
from gradcent_lab import recipes, store
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.report.figures.style import save
from gradcent_lab.report.tables import signed

IMAGES = "images/evidence"


def answer(root: Path, demo: Path | None = None) -> str:
    """What follows for a user; every sentence with its evidence. `demo` is the table of `gradcent demo`."""
    table = demo or root.parent / "demo" / "table.md"
    rows = table_rows(table.read_text()) if table.exists() else []
    parts = []
    for heading, sentences in advice(load(root), rows):
        parts.append(f"### {heading}\n\n" + "\n".join(f"- {sentence}" for sentence in sentences))
    return "\n\n".join(parts)


def table_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of the first Markdown table in a text, by header."""
    table = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [dict(zip(table[0], row, strict=True)) for row in table[2:]]


def opening(root: Path) -> str:
    """The most informative comparison so far, for the README: one sentence with its limits."""
    return f"{headline(load(root))} [All comparisons, controls and what is missing](docs/does-it-help.md)."


def comparisons(root: Path) -> str:
    """Forest plot and table of all comparisons."""
    lines = [
        f"![every comparison: mean difference with its interval, and the paper's gains]({IMAGES}/forest.png)",
        "",
        "| experiment | arm | without → with, test % | difference [95 %] | BN re-estimated | training accuracy | pairs | verdict | the paper |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in load(root):
        for finding in result.findings:
            lines.append(_row(result, finding))
    lines += [
        "",
        "Differences are in points, over pairs with the same initial weights and batches, at the last epoch. *BN re-estimated*: the same "
        "difference with BatchNorm statistics taken from training batches. *Training accuracy*: difference of the last epoch's. "
        "Intervals share the 5 % among the arms of a cell. *The paper*: its gain for the nearest claim, at its own scale.",
    ]
    return "\n".join(lines)


def _row(result: Results, finding: Finding) -> str:
    comparison = finding.comparison
    assert comparison is not None
    control = "–" if finding.control is None else signed(finding.control.difference, 2)
    claim = result.claim(finding)
    planned = result.planned_pairs(finding.arm)
    pairs = f"{comparison.n}" if comparison.n == planned else f"{comparison.n} of {planned}"
    cells = (
        title(result, finding.cell),
        ARMS.get(finding.arm, finding.arm),
        f"{comparison.without.mean:.1f} → {comparison.with_.mean:.1f}",
        effect_text(finding),
        control,
        signed(training_difference(finding), 2),
        pairs,
        finding.verdict,
        "–" if claim is None else signed(claim, 2),
    )
    return f"| {' | '.join(cells)} |"


def rates(root: Path) -> str:
    """Accuracy against learning rate, and what was chosen."""
    results = [result for result in load(root) if result.study.scale.tuning is not None]
    if not any(result.tuning_records for result in results):
        return "No tuning run is finished yet."
    lines = [f"![held-out accuracy against the learning rate, without and with GC]({IMAGES}/rates.png)", ""]
    for result in results:
        done, planned = len(result.tuning_records), result.planned_runs[0]
        if done < planned:
            lines.append(
                f"- {result.experiment.title}: {done} of {planned} tuning runs are finished; nothing is chosen yet."
            )
            continue
        for cell in result.study.cells:
            arms = result.tuned_arms(cell.name)
            chosen = ", ".join(
                f"{figures.arm_label(arm.arm)} {dict(arm.best.values)['lr']:g} ({arm.best.mean:.1f} %)"
                for arm in arms
            )
            edges = [arm.arm for arm in arms if arm.at_edge()]
            edge = f" At the end of the grid: {' and '.join(map(figures.arm_label, edges))}." if edges else ""
            lines.append(f"- {title(result, cell.name)}: chosen {chosen}.{edge}{_beyond(result, cell.name)}")
    return "\n".join(lines)


def _beyond(result: Results, cell: str) -> str:
    """What the arms reach beyond the grid, and whether that is better than what was chosen."""
    chosen = {arm.arm: arm.best.mean for arm in result.tuned_arms(cell)}
    parts = []
    for arm in result.beyond_arms(cell):
        for point in arm.points:
            rate, name = f"{dict(point.values)['lr']:g}", figures.arm_label(arm.arm)
            if point.diverged:
                parts.append(f"{name} {rate} diverges")
            elif point.results:
                better = ", better than the chosen one" if point.mean > chosen[arm.arm] else ""
                parts.append(f"{name} {rate} ({point.mean:.1f} %{better})")
    return f" Beyond it: {', '.join(parts)}." if parts else ""


def curves(root: Path) -> str:
    """Curves and steps to target."""
    results = load(root)
    rows = [
        (result, finding)
        for result in results
        for finding in result.findings
        if finding.arm in IN_ALL_LAYERS and finding.speed is not None
    ]
    if not rows:
        return "No pair is finished yet."
    lines = [
        f"![accuracy over steps without and with GC, with the target]({IMAGES}/curves.png)",
        "",
        "| experiment | target, test % | runs that reach it, without / with | steps with ÷ without [95 %] | train − test gap, without → with |",
        "|---|---|---|---|---|",
    ]
    for result, finding in rows:
        speed, change = finding.speed, gap(finding)
        assert speed is not None
        ratio = "–"
        if speed.ratio is not None:
            ratio = f"{speed.ratio.mean:.2f}"
            if math.isfinite(speed.ratio.low):
                ratio += f" [{speed.ratio.low:.2f}, {speed.ratio.high:.2f}]"
        lines.append(
            f"| {title(result, finding.cell)} | {speed.target:.1f} | {speed.reached_without} / {speed.reached_with} of {len(speed.without)} | "
            f"{ratio} | {signed(change.without.mean, 1)} → {signed(change.with_.mean, 1)} ({with_interval(change)}) |"
        )
    lines += [
        "",
        "The target is the median last test accuracy of the runs without GC, so half of them reach it by definition. A run that never does "
        "enters the ratio with its whole length. The learning rate falls to 0 in all runs, so a target near the end is reached late by "
        "both arms: the ratio understates how much earlier one of them is. Training accuracy is on augmented images.",
    ]
    return "\n".join(lines)


def exact(root: Path) -> str:
    """What holds exactly or is counted: the theorems, and how small the initial means are."""
    parts = []
    for name in ("theory", "fig3", "fig4", "overhead"):
        found = store.load(root, name) if (root / name).is_dir() else []
        tables = recipes.get(name).tables
        if found and tables is not None:
            parts += [table.markdown() for table in tables(found)]
        else:
            parts.append(
                f"{name} has not run: `gradcent run {name} --scale {'mini' if name == 'fig4' else 'small'}`.\n"
            )
    return "\n".join(parts)


def missing(root: Path) -> str:
    """What has run and what has not, with the command that runs it."""
    lines = ["| # | experiment | tuning runs | runs of the comparison | command |", "|---|---|---|---|---|"]
    for result in load(root):
        if result.experiment.letter == "–":
            continue
        tuning, planned = result.planned_runs
        tuned_text = f"{len(result.tuning_records)} of {tuning}" if tuning else "–"
        if result.planned_beyond:
            tuned_text += f", beyond the grid {len(result.beyond_records)} of {result.planned_beyond}"
        command = f"`gradcent run {result.experiment.recipe} --scale {result.experiment.scale} --workers 2`"
        status = f"{len(result.records)} of {planned}{'' if len(result.records) < planned else ', complete'}"
        lines.append(
            f"| {result.experiment.letter} | {result.experiment.title} | {tuned_text} | {status} | {command} |"
        )
    lines += [
        "",
        "Also planned (I): `gradcent run table1 --scale mini --workers 2`, and the same with `table3`, `table4`, `table8` and `table9`. `gradcent list "
        "RECIPE` shows the hours.",
    ]
    return "\n".join(lines)


def draw(root: Path, folder: Path) -> None:
    """Write the figures of the page as PNG files."""
    results = load(root)
    for name, figure in (
        ("forest", figures.forest(results)),
        ("rates", figures.rates(results)),
        ("curves", figures.curves(results)),
    ):
        if figure is not None:
            for path in save(figure, folder / name):
                if path.suffix == ".svg":
                    path.unlink()
