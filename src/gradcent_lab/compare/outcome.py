"""What a comparison prints and writes once its runs are done: verdict, speed, tuning, reasons, report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcent_lab.analysis.arm_effects import arm_effects
from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.tuning import TunedArm
from gradcent_lab.analysis.verdict import default_margin
from gradcent_lab.compare.options import paste_lines
from gradcent_lab.compare.why import why_sentences
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.report.arms import advise_arms, arms_table, effect_sentences, print_arms
from gradcent_lab.report.console import print_curves, print_findings, print_lines, print_written
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.speed import arm_speed_sentences, speed_sentences
from gradcent_lab.report.tables import Table
from gradcent_lab.report.tuning import tuning_figure, tuning_sentences, tuning_table
from gradcent_lab.report.write import write_outputs
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from rich.console import Console

NOT_ADVISED = ("hurts", "opposite")


@dataclass(frozen=True)
class Outcome:
    """The runs of a comparison, judged, with the words that belong to them.

    attach: the keyword arguments of `gradcent.attach` by arm; empty for a script, whose lines are its own.
    weights: what each arm centralizes, in a few words.
    """

    name: str
    records: Sequence[RunRecord]
    found: Sequence[Finding]
    facts: Mapping[str, str]
    notes: Sequence[str]
    command: str
    attach: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    tuned: Sequence[TunedArm] = ()
    margin: float | None = None
    experiment: Experiment | None = None


def present(console: Console, outcome: Outcome, out: Path) -> None:
    """Print the answer and write the report."""
    several = len(outcome.found) > 1
    pictures: list[Picture] = []
    tables: list[Table] = []
    answer, advised, effects = "", _advised(outcome), []
    if several:
        joint = arm_effects(outcome.found)
        tables.append(arms_table(joint, outcome.weights))
        effects, answer = effect_sentences(joint), advise_arms(joint)
        print_arms(console, joint, tables[0])
    else:
        print_findings(console, outcome.found)
    speed = arm_speed_sentences(outcome.found) if several else speed_sentences(outcome.found[0])
    print_section(console, "Speed", speed)
    tuning: list[str] = []
    if outcome.tuned:
        margin = outcome.margin
        if margin is None:
            margin = default_margin(outcome.records[0].metric_name, outcome.tuned[0].best.mean)
        metric = outcome.records[0].metric_name
        tuning = tuning_sentences(outcome.tuned, margin, metric)
        print_section(console, "Tuning", tuning)
        tables.append(tuning_table(outcome.tuned, metric))
        caption = "Held-out results of all arms over the grid; bars: standard error over the tuning seeds."
        pictures.append(Picture("tuning", tuning_figure(outcome.tuned, metric), caption))
    why: list[str] = []
    if outcome.experiment is not None and outcome.attach:
        arm = advised or next(iter(outcome.attach))
        why = why_sentences(outcome.experiment, outcome.attach[arm])
    print_section(console, "Why", why)
    print_curves(console, outcome.found)
    # the lines to paste follow from the verdict: a page that says "hurts" does not say "attach"
    paste = paste_lines(outcome.attach[advised]) if advised else ""
    section = Section(
        outcome.records,
        tuple(outcome.found),
        title=outcome.name,
        description="; ".join(outcome.facts.values()),
        repeat=(outcome.command,),
        notes=tuple([*outcome.notes, *effects, *speed, *tuning, *why]),
        paste=paste,
        pictures=tuple(pictures),
        tables=tuple(tables),
        answer=answer,
    )
    title = f"{outcome.name}, with and without gradient centralization"
    print_written(console, write_outputs(section, out, title=title, kicker="gradcent compare"))
    if paste:
        print_lines(console, "To use GC in your own script:", paste)
    console.print()


def _advised(outcome: Outcome) -> str:
    """The arm whose lines are shown for pasting; empty where GC is not advised."""
    if not outcome.attach:
        return ""
    if len(outcome.found) > 1:
        return arm_effects(outcome.found).chosen or ""
    allowed = [f.arm for f in outcome.found if f.answer.kind not in NOT_ADVISED]
    return next(iter(outcome.attach)) if allowed else ""


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
