"""Findings as tables, in Markdown, CSV and LaTeX, each with the scale and the notes that belong to it."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import ALPHA, Comparison, Summary, multiple_comparisons

DASH = "–"
CONTROL = "BatchNorm control"
MIXED_LEVELS = "interval"  # heading of a column whose cells name their levels


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text, and the notes printed under them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        lines = [self.header, ("---",) * len(self.header), *self.rows]
        body = "\n".join("| " + " | ".join(_markdown(cell) for cell in line) + " |" for line in lines)
        return "\n\n".join([f"**{_markdown(self.title)}**", body, *self.notes]) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX that needs no package."""
        lines = [rf" {' & '.join(map(_latex, row))} \\" for row in self.rows]
        return "\n".join(
            [
                r"\begin{table}[t]",
                r"\centering",
                rf"\caption{{{_latex(self.title)}}}",
                rf"\begin{{tabular}}{{l{'r' * (len(self.header) - 1)}}}",
                r"\hline",
                rf" {' & '.join(map(_latex, self.header))} \\",
                r"\hline",
                *lines,
                r"\hline",
                r"\end{tabular}",
                *(rf"\par\footnotesize {_latex(note)}" for note in self.notes),
                r"\end{table}",
                "",
            ]
        )


def findings_table(findings: Sequence[Finding], scale_text: str | None = None) -> Table:
    """Return the table of one study's findings: paper, ours, n, difference with interval, p, verdict."""
    first = findings[0]
    paper = any(finding.claim for finding in findings)
    arms = len({finding.arm for finding in findings}) > 1
    header = ["cell", *(["GC on"] if arms else []), *(["paper: without → with"] if paper else [])]
    level = level_text([finding.comparison for finding in findings if finding.comparison])
    control = any(finding.control is not None for finding in findings)
    header += ["without GC", "with GC", "n", "difference", level, "p"]
    header += [*([CONTROL] if control else []), "verdict"]
    rows = tuple(tuple(_row(finding, arms, paper, control, level == MIXED_LEVELS)) for finding in findings)
    caption = f"{first.scale} scale" + (f": {scale_text}" if scale_text else "")
    title = f"{first.study}, {caption if first.scale != 'own' else scale_text or 'your experiment'}"
    return Table(title, tuple(header), rows, notes(findings))


def level_text(comparisons: Sequence[Comparison]) -> str:
    """Return the heading of a column of intervals with their level: `95 % interval`, `97.5 % interval`."""
    levels = {f"{100 * (1 - comparison.alpha):.3g}" for comparison in comparisons} or {"95"}
    return f"{levels.pop()} % interval" if len(levels) == 1 else MIXED_LEVELS


def notes(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return what a reader must know to read the numbers, in sentences."""
    first = findings[0]
    better = "higher" if first.higher_is_better else "lower"
    trained = any("epoch" in line for f in findings for run in f.without for line in run.curves)
    at = f" at the {first.epoch} epoch" if trained or first.claim else ""
    lines = [
        f"{common_metric(findings)}{at} ({better} is better), mean ± standard deviation over "
        "seeds; the difference is with GC minus without, over pairs that share initial weights and batches."
    ]
    short = [f for f in findings if f.comparison and f.comparison.interval == "Student t"]
    if short:
        lines.append("Below ten pairs the interval is Student's, otherwise the bootstrap's.")
    levels = {f.comparison.alpha for f in findings if f.comparison}
    corrected = bool(levels) and max(levels) < ALPHA
    if levels and min(levels) < ALPHA:
        lines.append(
            "Several arms share one baseline: interval and verdict of each are at 5 % divided by their number "
            f"(Bonferroni; {100 * (1 - min(levels)):.3g} % intervals), so that those of one cell together are at 95 %."
        )
    controlled = [f for f in findings if f.control is not None and f.comparison is not None]
    if controlled:
        lines.append(control_note(controlled[0]))
    for finding in findings:
        if finding.unpaired:
            seeds = ", ".join(map(str, finding.unpaired))
            lines.append(
                f"{finding.cell}, {finding.arm}: left out, because only one arm was run: seed {seeds}."
            )
        counts = finding.divergence
        if counts.any:
            lines.append(
                f"{finding.cell}, {finding.arm}: {counts.without} of {counts.pairs} runs without GC and {counts.with_} "
                "with GC diverged; the means leave these pairs out."
            )
        if finding.environments:
            lines.append(
                f"{finding.cell}, {finding.arm}: the two runs of a pair ran in different environments "
                f"({'; '.join(finding.environments[:3])})."
            )
    # a single cell whose arms are corrected already needs no second correction
    several = not corrected or len({f.cell for f in findings}) > 1
    many = multiple_comparisons([f.comparison for f in findings if f.comparison]) if several else None
    return tuple(lines + ([many] if many else []))


def control_note(finding: Finding) -> str:
    """Return what the column of the control shows."""
    recalibrated = finding.without[0].config.get("settings", {}).get("recalibrate_bn")
    other = "running instead of re-estimated" if recalibrated else "re-estimated instead of running"
    return f"{CONTROL}: the difference at the last epoch, on the same weights, with {other} BatchNorm statistics."


def other_epoch(findings: Sequence[Finding]) -> list[Table]:
    """Return the table of the same pairs at the last epoch, where they are judged by their best one, as the paper's.

    None where there is nothing to choose, because the runs had a single epoch.
    """
    judged = [f for f in findings if f.comparison and f.epoch == "best" and len(f.without[0].curves) > 1]
    if not judged:
        return []
    several = len({f.arm for f in judged}) > 1
    level = level_text([finding.comparison for finding in judged if finding.comparison])
    rows = []
    for finding in judged:
        last = replace(finding, epoch="last", comparison=finding.at("last"))
        rows.append(tuple(_row(last, several, False, with_level=level == MIXED_LEVELS)[:-1]))
    header = (
        "cell",
        *(["GC on"] if several else []),
        "without GC",
        "with GC",
        "n",
        "difference",
        level,
        "p",
    )
    caption = "The verdicts are those of the best epoch, which is what the paper prints."
    return [Table("The same pairs at the last epoch", header, tuple(rows), (caption,))]


def _row(
    finding: Finding, arms: bool, paper: bool, control: bool = False, with_level: bool = False
) -> list[str]:
    row = [finding.cell, *([finding.arm] if arms else [])]
    if paper:
        row.append(claim_text(finding))
    result = finding.comparison
    if result is None:
        return [*row, DASH, DASH, "0", DASH, DASH, DASH, *([DASH] if control else []), finding.verdict]
    places = decimals(finding)
    return [
        *row,
        mean_std(result.without, places),
        mean_std(result.with_, places),
        str(result.n),
        signed(result.difference, places),
        interval_text(finding) + (f" ({100 * (1 - result.alpha):.3g} %)" if with_level else ""),
        p_value_text(result.p_value) if result.n > 1 else DASH,
        *([signed(finding.control.difference, places) if finding.control else DASH] if control else []),
        finding.verdict,
    ]


def claim_text(finding: Finding) -> str:
    """Return the paper's pair and its difference: `76.87 → 78.82 (+1.95)`."""
    claim = finding.claim
    if claim is None:
        return DASH
    places = 2 if claim.info.metric != "AP" else 1
    before, after = (f"{side.mean:.{places}f}" for side in (claim.without, claim.with_))
    return f"{before} → {after} ({signed(claim.difference, places)})"


def decimals(finding: Finding) -> int:
    """Return how many decimals carry information: two digits of the arms' standard deviation, at most 5."""
    result = finding.comparison
    spread = [s.std for s in (result.without, result.with_) if s.std > 0] if result else []
    if not spread:
        return 2
    return min(5, max(1, 1 - math.floor(math.log10(min(spread)))))


def common_metric(findings: Sequence[Finding]) -> str:
    """Return what a table's numbers are: their metric, or the word for several (AP, AP.5 …)."""
    metrics = {finding.metric for finding in findings if finding.comparison} or {findings[0].metric}
    return metrics.pop() if len(metrics) == 1 else "each line's metric"


def mean_std(summary: Summary, places: int) -> str:
    """Return `mean ± std`, or the mean alone for a single run."""
    std = "" if math.isnan(summary.std) else f" ± {summary.std:.{places}f}"
    return f"{summary.mean:.{places}f}{std}"


def signed(value: float, places: int) -> str:
    """Return a number with its sign, a real minus, and no sign on zero.

    >>> signed(1.25, 1), signed(-0.5, 2), signed(-0.001, 2)
    ('+1.2', '−0.50', '0.00')
    """
    text = f"{value:+.{places}f}"
    return text[1:] if float(text) == 0 else text.replace("-", "−")


def interval_text(finding: Finding) -> str:
    """Return `[low, high]` of the difference, or a dash for one pair."""
    result = finding.comparison
    if result is None or result.interval == "none":
        return DASH
    places = decimals(finding)
    return f"[{signed(result.low, places)}, {signed(result.high, places)}]"


def p_value_text(p: float) -> str:
    """Return a p-value rounded for reading.

    >>> p_value_text(0.0004), p_value_text(0.0312), p_value_text(0.42)
    ('< 0.001', '0.031', '0.42')
    """
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


CSV_HEADER = (
    *("study", "scale", "cell", "arm", "metric", "epoch", "verdict", "seeds"),
    *("n", "mean_without", "std_without", "mean_with", "std_with", "difference", "low", "high"),
    *("interval", "p", "p_sign_flip", "effect_size", "better", "worse", "detectable"),
    *("diverged_without", "diverged_with", "paper_without", "paper_with", "bn_control"),
)


def findings_csv(findings: Sequence[Finding]) -> str:
    """Return the findings as CSV with full precision, one line per cell and arm."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    _write_row(writer, CSV_HEADER)
    for f in findings:
        cells = [f.study, f.scale, f.cell, f.arm, f.metric, f.epoch, f.verdict, " ".join(map(str, f.seeds))]
        numbers: list[object] = [0, *[""] * 14]
        if r := f.comparison:
            arms = [r.without.mean, r.without.std, r.with_.mean, r.with_.std]
            test = [r.interval, r.p_value, r.sign_flip_p, r.effect_size, r.better, r.worse, r.detectable]
            numbers = [r.n, *arms, r.difference, r.low, r.high, *test]
        paper = [f.claim.without.mean, f.claim.with_.mean] if f.claim else ["", ""]
        control = f.control.difference if f.control else ""
        _write_row(writer, [*cells, *numbers, f.divergence.without, f.divergence.with_, *paper, control])
    return stream.getvalue()


def _write_row(writer: Any, cells: Iterable[Any]) -> None:
    """Write a line of CSV; text that a spreadsheet would take for a formula gets an apostrophe."""
    formulas = ("=", "+", "-", "@")
    writer.writerow(
        [f"'{cell}" if isinstance(cell, str) and cell.startswith(formulas) else cell for cell in cells]
    )


_LATEX = {"%": r"\%", "&": r"\&", "_": r"\_", "#": r"\#", "±": r"$\pm$", "→": r"$\to$", "−": "$-$", "–": "--"}
_LATEX |= {
    "<": "$<$",
    "{": r"\{",
    "}": r"\}",
    "\\": r"\textbackslash{}",
    "$": r"\$",
    "~": r"\~{}",
    "^": r"\^{}",
}


def _markdown(text: str) -> str:
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text.replace("|", "\\|"))  # no HTML from a name


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
