"""The demo's three cases: the same runs judged early and at the end, and a task where GC must lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab.analysis.findings import Finding, Rules, findings
from gradcent_lab.compare import digits
from gradcent_lab.compare.arms import PlannedArm, tasks_for
from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.report import figures
from gradcent_lab.report.console import print_curves
from gradcent_lab.report.figures.panels import finding_panels
from gradcent_lab.report.html import write_report, write_text
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.tables import decimals, findings_csv, findings_table, signed
from gradcent_lab.report.wording import conclude
from gradcent_lab.run.progress import Display
from gradcent_lab.run.scheduler import run_tasks
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console


def run_cases(console: Console, root: Path, seeds: int, epochs: int, workers: int) -> list[RunRecord]:
    """Run both experiments with and without GC, all in one pool of processes."""
    tasks = []
    chosen = range(digits.FIRST_SEED, digits.FIRST_SEED + seeds)
    for make in (
        partial(digits.digits, epochs),
        partial(digits.brightness, digits.brightness_epochs(epochs)),
    ):
        arms = [PlannedArm(arm, make(), make) for arm in (OFF, ON)]
        tasks += tasks_for(arms, chosen, share=workers > 1)
    with Display(console, [OFF, ON], len(tasks), "accuracy, %", cells=["digits", "brightness"]) as display:
        return run_tasks(tasks, root, progress=display, workers=workers)


def until_epoch(record: RunRecord, epoch: int) -> RunRecord:
    """Return the run as if it had ended after `epoch` epochs; without a schedule, that is the same run."""
    curves = record.curves[:epoch]
    values = [line["eval_metric"] for line in curves]
    best = max(range(len(values)), key=values.__getitem__)
    cell = f"{record.cell}, epoch {epoch}"
    return replace(record, curves=curves, last=values[-1], best=values[best], best_epoch=best + 1, cell=cell)


def cases(records: Sequence[RunRecord], epochs: int, margin: float) -> list[tuple[str, Finding]]:
    """Return the three findings under their titles."""
    reads = [record for record in records if record.study == "digits"]
    bright = [record for record in records if record.study == "brightness"]
    early = digits.early_epoch(epochs)
    rules = Rules(margin=margin)
    return [
        (
            f"Learns faster: digits at epoch {early}",
            findings([until_epoch(r, early) for r in reads], rules=rules)[0],
        ),
        (
            f"Given time, the gap closes: epoch {epochs}",
            findings([until_epoch(r, epochs) for r in reads], rules=rules)[0],
        ),
        (
            "Where it hurts: brightness as label",
            findings([until_epoch(r, digits.brightness_epochs(epochs)) for r in bright], rules=rules)[0],
        ),
    ]


def present_cases(
    console: Console,
    records: Sequence[RunRecord],
    epochs: int,
    out: Path,
    notes: Sequence[str],
    command: str,
    margin: float,
) -> None:
    """Print the three cases and write the page, the picture and the tables."""
    panels = cases(records, epochs, margin)
    print_cases(console, panels)
    for _, finding in panels[1:]:
        print_curves(console, [finding])
        console.print()
    words = "Test accuracy of a small network on scikit-learn's digits; thick: mean over seeds, thin: single runs."
    picture = finding_panels(panels, words)
    figures.save(picture, out / "demo")
    found = [finding for _, finding in panels]
    write_text(out / "table.csv", findings_csv(found))
    write_text(out / "table.md", findings_table(found, "three cases").markdown())
    sections = []
    for number, (title, finding) in enumerate(panels):
        first = number == 0
        sections.append(
            Section(
                [*finding.without, *finding.with_],
                (finding,),
                title=title,
                notes=tuple(notes) if first else (),
                repeat=(command,),
                paste=digits.PASTE if first else "",
                pictures=(Picture("demo", finding_panels(panels), words),) if first else (),
            )
        )
    title = "Gradient centralization in three cases"
    page = write_report(sections, out / "report.html", title=title, kicker="gradcent demo")
    console.print(f"  report   {page}", highlight=False, soft_wrap=True, markup=False)
    console.print("  picture  demo.png (and .svg)", highlight=False)
    console.print("  tables   table.md, table.csv", highlight=False)


def print_cases(console: Console, panels: Sequence[tuple[str, Finding]]) -> None:
    """Print one table row per case, and the evidence below."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("case")
    for name in ("without GC", "with GC", "difference", "verdict"):
        table.add_column(name, justify="right")
    for title, finding in panels:
        result = finding.comparison
        if result is None:
            table.add_row(title, "–", "–", "–", finding.verdict)
            continue
        places = min(1, decimals(finding))
        means = (f"{result.without.mean:.{places}f} %", f"{result.with_.mean:.{places}f} %")
        table.add_row(title, *means, signed(result.difference, places), finding.verdict)
    console.print(Padding(table, (0, 0, 1, 2), expand=False))
    for title, finding in panels:
        console.print(f"  [bold]{title}[/bold]", highlight=False)
        console.print(Padding(Text(conclude(finding)), (0, 0, 1, 2), expand=False))
