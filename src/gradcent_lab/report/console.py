"""What a comparison prints in the terminal: the pairs, the verdict, the curves and the files written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.names import escape_markup, printable
from gradcent_lab.report.braille_plot import plot
from gradcent_lab.report.figures.curves import arms_of, mean_curve
from gradcent_lab.report.tables import decimals, mean_std, signed
from gradcent_lab.report.wording import advise, conclude
from gradcent_lab.report.write import Written

if TYPE_CHECKING:
    from rich.console import Console

COLOURS = {
    "helps": "green",
    "hurts": "yellow",
    "reproduced": "green",
    "same direction": "blue",
    "opposite": "yellow",
}


def print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print every pair, the means, the difference with its interval, and the verdict in words."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    for finding in findings:
        result = finding.comparison
        if result is None and not finding.divergence.any:
            continue
        places = decimals(finding)
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
        several = len({f.arm for f in findings}) > 1
        names = ("seed", "without GC", f"with GC ({finding.arm})" if several else "with GC", "difference")
        for name in names:
            table.add_column(name, justify="right")
        for a, b in zip(finding.without, finding.with_, strict=True):
            x, y = getattr(a, finding.epoch), getattr(b, finding.epoch)
            values = (f"{x:.{places}f}", f"{y:.{places}f}", signed(y - x, places))
            table.add_row(str(a.seed), *values, style="dim")
        if result is not None and result.n > 1:
            means = (mean_std(result.without, places), mean_std(result.with_, places))
            table.add_row("mean", *means, signed(result.difference, places), style="bold")
        if result is not None:
            console.print(Padding(table, (0, 0, 0, 2), expand=False))
        colour = COLOURS.get(finding.answer.kind, "default")
        console.print(f"\n  verdict: [bold {colour}]{finding.verdict}[/]", highlight=False)
        console.print(Padding(Text(conclude(finding)), (0, 0, 0, 2), expand=False))
        console.print(Padding(Text(advise(finding), style="bold"), (0, 0, 1, 2), expand=False))


def print_curves(console: Console, findings: Sequence[Finding]) -> None:
    """Draw the mean test curve of every arm."""
    from rich.padding import Padding

    judged = [f for f in findings if f.comparison and len(f.without[0].curves) > 1]
    if not judged:
        return
    runs = [*judged[0].without, *(run for f in judged for run in f.with_)]
    lines = {arm: mean_curve(group, "eval_metric").tolist() for arm, group in arms_of(runs).items()}
    width = max(20, min(64, console.width - 16))
    coloured = console.color_system is not None and not console.no_color
    console.print(
        f"  test {split_metric_name(judged[0].metric)[0]}, {_over(len(judged[0].without))}",
        highlight=False,
    )
    console.print(Padding(plot(lines, width=width, colours=coloured), (0, 0, 0, 2), expand=False))


def print_facts(console: Console, facts: Mapping[str, str]) -> None:
    """Print names with a text beside each."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for name, text in facts.items():
        grid.add_row(printable(name), Text(printable(text)))
    console.print(Padding(grid, (0, 0, 1, 2), expand=False))


def print_lines(console: Console, title: str, text: str) -> None:
    """Print lines for copying, without markup or wrapping."""
    console.print(f"\n  {title}\n", highlight=False)
    for line in text.splitlines():
        console.print(f"      {line}".rstrip(), highlight=False, markup=False, soft_wrap=True)


def print_written(console: Console, written: Written) -> None:
    """Name the files, the report first."""
    folder = written.report.parent
    pngs = ", ".join(path.name for path in written.figures if path.suffix == ".png")
    tables = ", ".join(path.name for path in written.tables)
    console.print(f"\n  report   {escape_markup(written.report)}", highlight=False, soft_wrap=True)
    console.print(f"  figures  {escape_markup(pngs)} (and .svg)", highlight=False)
    console.print(f"  tables   {escape_markup(tables)}", highlight=False)
    console.print(f"  all in   {escape_markup(folder)}/", highlight=False, soft_wrap=True)


def _over(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"mean over {seeds} seeds"
