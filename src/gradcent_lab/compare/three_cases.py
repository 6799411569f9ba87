"""The demo's three cases: the same runs judged early and at the end, and a task where GC in the input layer hurts.

The forecast is measured before the runs: it reads a few steps without GC, and warns about the third case. A third arm
shows that GC in the hidden layers alone does no harm there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent import calibration
from gradcent_lab.analysis.findings import Finding, Rules, findings
from gradcent_lab.compare import digits
from gradcent_lab.compare.arms import PlannedArm, tasks_for
from gradcent_lab.experiment.run_config import OFF, Arm
from gradcent_lab.forecasting.measure import forecast
from gradcent_lab.forecasting.result import Forecast
from gradcent_lab.report import figures
from gradcent_lab.report.console import print_curves
from gradcent_lab.report.figures.panels import Panel, draw_panels
from gradcent_lab.report.html import write_report
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.tables import decimals, findings_csv, findings_table, signed
from gradcent_lab.report.wording import conclude
from gradcent_lab.run.progress import Display
from gradcent_lab.run.scheduler import run_tasks
from gradcent_lab.store.atomic_files import write_text
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

ALL, HIDDEN = Arm("all", {"layers": "all"}), Arm("hidden", {"layers": "hidden"})
ARMS = {"digits": (OFF, ALL), "brightness": (OFF, ALL, HIDDEN)}


@dataclass(frozen=True)
class Case:
    """One case: its title, the arms with GC against the arm without, and what the forecast said beforehand."""

    title: str
    findings: tuple[Finding, ...]
    forecast: Forecast | None

    @property
    def note(self) -> str:
        """The forecast's warning in a few words, for the picture; empty where it has none."""
        explained = self.forecast.explained if self.forecast else None
        if explained is None or explained < calibration.HINT:
            return ""
        return (
            f"Forecast before the runs: the input's mean\nexplains {100 * explained:.0f} % of the label: GC in the "
            'input\nlayer can hurt. Try layers="hidden" first.'
        )


def forecasts() -> dict[str, Forecast]:
    """Return the forecast of both experiments, from a few steps without GC."""
    return {"digits": forecast(digits.digits()), "brightness": forecast(digits.brightness())}


def run_cases(console: Console, root: Path, seeds: int, epochs: int, workers: int) -> list[RunRecord]:
    """Run both experiments with all their arms, in one pool of processes."""
    tasks = []
    chosen = range(digits.FIRST_SEED, digits.FIRST_SEED + seeds)
    makes = {
        "digits": partial(digits.digits, epochs),
        "brightness": partial(digits.brightness, digits.brightness_epochs(epochs)),
    }
    for name, make in makes.items():
        arms = [PlannedArm(arm, make(), make) for arm in ARMS[name]]
        tasks += tasks_for(arms, chosen, share=workers > 1)
    with Display(console, [OFF, ALL, HIDDEN], len(tasks), "accuracy, %", cells=list(makes)) as display:
        return run_tasks(tasks, root, progress=display, workers=workers)


def until_epoch(record: RunRecord, epoch: int) -> RunRecord:
    """Return the run as if it had ended after `epoch` epochs; without a schedule, that is the same run."""
    curves = record.curves[:epoch]
    values = [line["eval_metric"] for line in curves]
    best = max(range(len(values)), key=values.__getitem__)
    cell = f"{record.cell}, epoch {epoch}"
    return replace(record, curves=curves, last=values[-1], best=values[best], best_epoch=best + 1, cell=cell)


def cases(
    records: Sequence[RunRecord], epochs: int, margin: float, measured: Mapping[str, Forecast]
) -> list[Case]:
    """Return the three cases."""
    reads = [record for record in records if record.study == "digits"]
    bright = [record for record in records if record.study == "brightness"]
    early, half = digits.early_epoch(epochs), digits.brightness_epochs(epochs)
    rules = Rules(margin=margin)

    def judged(runs: Sequence[RunRecord], epoch: int) -> tuple[Finding, ...]:
        return tuple(findings([until_epoch(run, epoch) for run in runs], rules=rules))

    return [
        Case(f"Learns faster: digits at epoch {early}", judged(reads, early), measured["digits"]),
        Case(f"Given time, the gap closes: epoch {epochs}", judged(reads, epochs), None),
        Case("Where it hurts: brightness as label", judged(bright, half), measured["brightness"]),
    ]


def present_cases(
    console: Console,
    shown: Sequence[Case],
    out: Path,
    notes: Sequence[str],
    command: str,
) -> None:
    """Print the three cases and write the page, the picture and the tables."""
    print_cases(console, shown)
    for case in shown[1:]:
        print_curves(console, case.findings)
        console.print()
    text = "Test accuracy of a small network on scikit-learn's digits; thick: mean over seeds, thin: single runs."
    panels = [Panel(case.title, case.findings, case.note) for case in shown]
    figures.save(draw_panels(panels, text), out / "demo")
    every = [finding for case in shown for finding in case.findings]
    write_text(out / "table.csv", findings_csv(every))
    write_text(out / "table.md", findings_table(every, "three cases").markdown())
    sections = []
    for number, case in enumerate(shown):
        first = number == 0
        said = []
        if case.forecast is not None:
            said = [f"Forecast, from a few steps without GC: {case.forecast.sentence()}"]
        sections.append(
            Section(
                [run for finding in case.findings for run in (*finding.without, *finding.with_)],
                case.findings,
                title=case.title,
                notes=tuple([*said, *(notes if first else ())]),
                repeat=(command,),
                paste=digits.PASTE if first else "",
                pictures=(Picture("demo", draw_panels(panels), text, draw_panels(panels, columns=1)),)
                if first
                else (),
            )
        )
    title = "Gradient centralization in three cases"
    page = write_report(sections, out / "report.html", title=title, kicker="gradcent demo")
    console.print(f"  report   {page}", highlight=False, soft_wrap=True, markup=False)
    console.print("  picture  demo.png (and .svg)", highlight=False)
    console.print("  tables   table.md, table.csv", highlight=False)


def print_cases(console: Console, shown: Sequence[Case]) -> None:
    """Print one table row per comparison, then forecast and evidence of each case."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("case")
    for name in ("without GC", "with GC", "difference", "verdict"):
        table.add_column(name, justify="right")
    for case in shown:
        for finding in case.findings:
            result = finding.comparison
            title = case.title if finding is case.findings[0] else '  the same with layers="hidden"'
            if result is None:
                table.add_row(title, "–", "–", "–", finding.verdict)
                continue
            places = min(1, decimals(finding))
            means = (f"{result.without.mean:.{places}f} %", f"{result.with_.mean:.{places}f} %")
            table.add_row(title, *means, signed(result.difference, places), finding.verdict)
    console.print(Padding(table, (0, 0, 1, 2), expand=False))
    for case in shown:
        console.print(f"  [bold]{case.title}[/bold]", highlight=False)
        for finding in case.findings:
            arm = f'layers="{finding.arm}": ' if len(case.findings) > 1 else ""
            console.print(Padding(Text(f"{arm}{conclude(finding)}"), (0, 0, 0, 2), expand=False))
        console.print()
