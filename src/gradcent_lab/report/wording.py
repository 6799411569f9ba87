"""What a finding means, in sentences: the same words in the terminal and in the report."""

from __future__ import annotations

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.statistics import FEWEST_FOR_BOOTSTRAP, Verdict
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.tables import decimals, interval_words, p_words, signed

NBSP = "\N{NO-BREAK SPACE}"
MEANING: dict[Verdict, str] = {
    "reproduced": "at the paper's scale: the interval leaves out 0, and the paper's difference agrees within errors",
    "same direction": "better with GC: the interval leaves out 0, p < 0.05; not the paper's scale, or not its size",
    "no effect": "none shown: the interval holds 0, or p ≥ 0.05; that is not proof of absence",
    "opposite": "worse with GC: the interval leaves out 0, p < 0.05",
    "not run at this scale": "no pairs, or a single one, which has no interval",
}


def conclude(finding: Finding) -> str:
    """Return the answer in one or two sentences: what was seen, and what it would take to know more."""
    result = finding.comparison
    if result is None:
        return "Not run here."
    name, unit = split_metric_name(finding.metric)
    seen = f"{name} {signed(result.difference, decimals(finding))}{unit}"
    if result.n == 1:
        return f"One pair, {seen}: that says nothing about an effect. Run five seeds or more."
    detail = (
        f"95{NBSP}% interval {interval_words(finding)}, {result.n}{NBSP}pairs, p{NBSP}{_p(result.p_value)}"
    )
    if result.shown:
        word = "better" if result.gain > 0 else "worse"
        count = result.better if result.gain > 0 else sum(_worse(finding))
        return f"{seen} with GC, {word} in {count} of {result.n} pairs ({detail})."
    return f"No effect shown: {seen} ({detail}). {more_seeds(finding)}".rstrip()


def more_seeds(finding: Finding) -> str:
    """Say how many seeds the difference seen would need (at 80 % power), where the runs do not show it."""
    result = finding.comparison
    if result is None or result.n < 2 or result.shown:
        return ""
    if result.difference == 0:
        return "The arms came out equal on average."
    if result.seeds_needed is None:
        return "If it were real, a difference this small would take over 10,000 seeds to show."
    need = max(result.seeds_needed, result.n + 1)
    return f"If it were real, a difference of this size would take about {need} seeds to show."


def warning(n: int) -> str | None:
    """Return the warning for a number of seeds that is too small to say anything, or None."""
    if n >= FEWEST_FOR_BOOTSTRAP:
        return None
    if n == 1:
        return "one seed has no interval and shows nothing: five or more are needed"
    return f"{n} seeds can show only a very large effect: five or more are needed"


def _p(p: float) -> str:
    text = p_words(p)
    return (text if text.startswith("<") else f"= {text}").replace(" ", NBSP)


def _worse(finding: Finding) -> list[bool]:
    pairs = zip(finding.without, finding.with_, strict=True)
    sign = 1 if finding.higher_is_better else -1
    return [sign * (getattr(b, finding.epoch) - getattr(a, finding.epoch)) < 0 for a, b in pairs]
