"""The generated blocks of docs/does-it-help.md, docs/exact.md and of the README's opening, as Markdown."""

from __future__ import annotations

import math
from pathlib import Path

from evidence import advice, figures, questions
from evidence.programme import ARMS, IN_ALL_LAYERS, Results, load
from evidence.sentences import (
    arm_label,
    at_equal_training,
    edge_text,
    effect_text,
    gap,
    headline,
    means_text,
    pairs_text,
    training_change,
    verdict_text,
    with_interval,
)
from gradcent_lab import recipes, store
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import multiple_comparisons
from gradcent_lab.report.figures.style import save
from gradcent_lab.report.tables import signed

IMAGES = "images/evidence"


def answer(root: Path, demo: Path | None = None) -> str:
    """The short answer by subject, then every comparison by its verdict. `demo` is the table of `gradcent demo`."""
    table = demo or root.parent / "demo" / "table.md"
    rows = table_rows(table.read_text()) if table.exists() else []
    results = load(root)
    parts = ["\n".join(f"- {line}" for line in advice.summary(results, rows))]
    for heading, sentences in advice.advice(results, rows):
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
    """How often GC helped, and the largest comparison, for the README."""
    return f"{headline(load(root))} [All comparisons, controls and what is missing](docs/does-it-help.md)."


def answers(root: Path) -> str:
    """The questions of the protocol with their answers."""
    rows = questions.table(load(root))
    return "\n".join(["| question | answer | experiment |", "|---|---|---|", *rows])


def comparisons(root: Path) -> str:
    """Forest plot and table of all comparisons."""
    lines = [
        f"![every comparison: mean difference with its interval, and the paper's gains]({IMAGES}/forest.png)",
        "",
        "| experiment | steps | arm | without → with, test % | difference [interval] | BN re-estimated | pairs | verdict | the paper's gain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    results = load(root)
    for result in results:
        lines += [_row(result, finding) for finding in result.findings]
    compared = [f.comparison for r in results for f in r.findings if f.comparison]
    lines += [
        "",
        "Differences are in points, over pairs with the same initial weights and batches, at the last epoch. Intervals: 95 % for a cell "
        "with one arm; where a cell has several arms they share the 5 % (Bonferroni), and the verdict uses the same level. *Helps*: the interval lies above 0, "
        "however small the difference. *BN re-estimated*: the same difference with BatchNorm statistics taken from training "
        "batches. *The paper's gain*: its nearest claim, at its own scale; the networks, images and lengths differ, so the sizes are not comparable.",
        "",
        f"{multiple_comparisons(compared) or ''} Intervals cover the scatter of seeds on one fixed set of images. `controls` and cell BN of "
        "`norms` share their runs without GC (seeds 0 to 5), and `optimizers-tuned` trains the same network on the same images: these are not "
        "independent confirmations.",
    ]
    return "\n".join(lines)


def _row(result: Results, finding: Finding) -> str:
    claim, place = result.claim(finding), result.nearest(finding)
    steps = result.steps(finding)
    cells = (
        result.title(finding.cell),
        f"{steps:,}" if steps else "–",
        ARMS.get(finding.arm, finding.arm),
        means_text(finding),
        effect_text(finding),
        "–" if finding.control is None else signed(finding.control.difference, 2),
        pairs_text(result, finding),
        verdict_text(finding),
        "–" if claim is None or place is None else f"{signed(claim, 2)} ({place.words})",
    )
    return f"| {' | '.join(cells)} |"


def rates(root: Path) -> str:
    """Accuracy against learning rate, and what was chosen."""
    results = [result for result in load(root) if result.study.scale.tuning is not None]
    if not any(result.tuning_records for result in results):
        return "No tuning run is finished yet."
    lines = [f"![held-out accuracy against the learning rate, without and with GC]({IMAGES}/rates.png)", ""]
    chosen: list[tuple[float, float]] = []
    for result in results:
        waiting = [cell.name for cell in result.study.cells if not result.is_tuned(cell.name)]
        for cell in result.study.cells:
            if cell.name in waiting:
                continue
            arms = result.tuned_arms(cell.name)
            rate = {arm.arm: dict(arm.best.values)["lr"] for arm in arms}
            chosen.append((rate["off"], rate["all"]))
            text = ", ".join(
                f"{arm_label(arm.arm)} {rate[arm.arm]:g} ({arm.best.mean:.1f} %)" for arm in arms
            )
            parts = (f"chosen {text}.", edge_text(result, cell.name), _beyond(result, cell.name))
            lines.append(f"- {result.title(cell.name)}: {' '.join(part for part in parts if part)}")
        if waiting:
            names = f" ({', '.join(waiting)})" if len(result.study.cells) > 1 else ""
            lines.append(
                f"- {result.experiment.title}{names}: {len(result.tuning_records)} of {result.planned_runs[0]} tuning runs are "
                "finished; nothing is chosen yet."
            )
    higher, lower = sum(on > off for off, on in chosen), sum(on < off for off, on in chosen)
    lines += [
        "",
        f"With GC the best rate of the grid is higher in {higher} of {len(chosen)} cells, the same in {len(chosen) - higher - lower}, lower in "
        f"{lower}. Two seeds choose each rate, so neighbouring rates are often not told apart.",
    ]
    return "\n".join(lines)


def _beyond(result: Results, cell: str) -> str:
    """What the arms reach beyond the grid, and whether that is better than what was chosen."""
    chosen = {arm.arm: arm.best.mean for arm in result.tuned_arms(cell)}
    parts = []
    for arm in result.beyond_arms(cell):
        for point in arm.points:
            rate, name = f"{dict(point.values)['lr']:g}", arm_label(arm.arm)
            if point.diverged:
                parts.append(f"{name} {rate} diverges")
            elif point.results:
                better = ", better than the chosen one" if point.mean > chosen[arm.arm] else ""
                parts.append(f"{name} {rate} ({point.mean:.1f} %{better})")
    return f"Beyond it: {', '.join(parts)}." if parts else ""


def curves(root: Path) -> str:
    """Curves, steps to target, and training against test metric."""
    results = load(root)
    rows = [
        (result, finding)
        for result in results
        for finding in result.findings
        if finding.arm in (*IN_ALL_LAYERS, "update") and finding.speed is not None
    ]
    if not rows:
        return "No pair is finished yet."
    lines = [
        f"![accuracy over steps without and with GC, with the target]({IMAGES}/curves.png)",
        "",
        "| experiment | target, test % | runs that reach it, without / with | steps with ÷ without [95 %] | training metric [95 %] | train − test gap, without → with [95 %] | test difference at equal training metric [95 %] |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [_speed_row(result, finding) for result, finding in rows]
    lines += [
        "",
        "The target is the median last test result of the runs without GC, so at least half of them reach it by definition. A run that never does "
        "enters the ratio with its whole length. The schedule is tied to the length of the run, so the ratio does not say how much shorter a run could be. "
        "The training metric is the mean over the last epoch, on augmented images where images are augmented. *At equal training metric*: the test "
        "result where the training metric of both runs of a pair is that of the lower one, interpolated between epochs; the mean over an "
        "epoch lags behind, which favours the arm that improves faster. This column was added after the first results were known.",
    ]
    return "\n".join(lines)


def _speed_row(result: Results, finding: Finding) -> str:
    speed, change, matched = finding.speed, gap(finding), at_equal_training(finding)
    assert speed is not None
    ratio = "–"
    if speed.ratio is not None:
        ratio = f"{speed.ratio.mean:.2f}"
        if math.isfinite(speed.ratio.low):
            ratio += f" [{speed.ratio.low:.2f}, {speed.ratio.high:.2f}]"
    at = ", GC at the update" if finding.arm == "update" else ""
    cells = (
        f"{result.title(finding.cell)}{at}",
        f"{speed.target:.1f}",
        f"{speed.reached_without} / {speed.reached_with} of {len(speed.without)}",
        ratio,
        with_interval(training_change(finding), 1),
        f"{signed(change.without.mean, 1)} → {signed(change.with_.mean, 1)} ({with_interval(change, 1)})",
        "–" if matched is None else with_interval(matched, 1),
    )
    return f"| {' | '.join(cells)} |"


def why(root: Path) -> str:
    """What the controls say about the cause of GC's effect."""
    (result,) = (result for result in load(root) if result.experiment.recipe == "controls")
    return "\n".join(f"- {line}" for line in questions.why(result))


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
    """Write the figures of the page as PNG files that carry the digest of their data."""
    results = load(root)
    digest = figures.data_digest(results)
    for name, draw_figure in figures.FIGURES.items():
        figure = draw_figure(results)
        if figure is not None:
            for path in save(figure, folder / name, {figures.DIGEST: digest}):
                if path.suffix == ".svg":
                    path.unlink()


def stale_figures(root: Path, folder: Path) -> list[Path]:
    """Return the figures that are missing or were drawn from other runs."""
    from PIL import Image

    digest, stale = figures.data_digest(load(root)), []
    for name in figures.FIGURES:
        path = folder / f"{name}.png"
        if not path.exists():
            stale.append(path)
            continue
        with Image.open(path) as image:
            if image.info.get(figures.DIGEST) != digest:
                stale.append(path)
    return stale
