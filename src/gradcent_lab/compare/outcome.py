"""What a comparison prints and writes once its runs are done: verdict, speed, tuning, reasons, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.tuning import TunedArm
from gradcent_lab.analysis.verdict import default_margin
from gradcent_lab.compare.why import why_sentences
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.report.console import print_curves, print_findings, print_lines, print_written
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.speed import speed_sentences
from gradcent_lab.report.tuning import tuning_figure, tuning_sentences, tuning_table
from gradcent_lab.report.write import write_outputs
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

NOT_ADVISED = ("hurts", "opposite")


@dataclass(frozen=True)
class Outcome:
    """The runs of a comparison, judged, with the words that belong to them."""

    name: str
    records: Sequence[RunRecord]
    found: Sequence[Finding]
    facts: Mapping[str, str]
    notes: Sequence[str]
    command: str
    paste: str = ""
    tuned: Sequence[TunedArm] = ()
    margin: float | None = None
    experiment: Experiment | None = None
    attach: Mapping[str, Any] = field(default_factory=dict)


def present(console: Console, outcome: Outcome, out: Path) -> None:
    """Print the answer and write the report."""
    print_findings(console, outcome.found)
    notes = list(outcome.notes)
    speed = [line for finding in outcome.found for line in speed_sentences(finding)]
    print_section(console, "Speed", speed)
    pictures, tables = [], []
    tuning: list[str] = []
    if outcome.tuned:
        margin = outcome.margin
        if margin is None:
            margin = default_margin(outcome.records[0].metric_name, outcome.tuned[0].best.mean)
        metric = outcome.records[0].metric_name
        tuning = tuning_sentences(outcome.tuned, margin, metric)
        print_section(console, "Tuning", tuning)
        tables.append(tuning_table(outcome.tuned, metric))
        caption = "Held-out results of both arms over the grid; bars: standard error over the tuning seeds."
        pictures.append(Picture("tuning", tuning_figure(outcome.tuned, metric), caption))
    why = why_sentences(outcome.experiment, outcome.attach) if outcome.experiment is not None else []
    print_section(console, "Why", why)
    print_curves(console, outcome.found)
    # the lines to paste follow from the verdict: a page that says "hurts" does not say "attach"
    advised = any(finding.answer.kind not in NOT_ADVISED for finding in outcome.found)
    paste = outcome.paste if advised else ""
    section = Section(
        outcome.records,
        tuple(outcome.found),
        title=outcome.name,
        description="; ".join(outcome.facts.values()),
        repeat=(outcome.command,),
        notes=tuple([*notes, *speed, *tuning, *why]),
        paste=paste,
        pictures=tuple(pictures),
        tables=tuple(tables),
    )
    title = f"{outcome.name}, with and without gradient centralization"
    print_written(console, write_outputs(section, out, title=title, kicker="gradcent compare"))
    if paste:
        print_lines(console, "To use GC in your own script:", paste)
    console.print()


def print_section(console: Console, title: str, lines: Sequence[str]) -> None:
    """Print a heading and sentences, one a line."""
    from rich.padding import Padding
    from rich.text import Text

    if not lines:
        return
    console.print(f"  [bold]{title}[/bold]", highlight=False)
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    console.print()
