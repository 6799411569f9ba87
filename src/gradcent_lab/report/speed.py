"""Speed in sentences: how soon each arm reaches the target, and the paired ratio."""

from __future__ import annotations

from collections.abc import Sequence

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.speed import Ratio, Speed
from gradcent_lab.experiment.metric_name import split_metric_name
from gradcent_lab.report.tables import decimals


def speed_sentences(finding: Finding) -> list[str]:
    """Return the target, the share of runs that reach it, and the ratios; empty where there are no curves."""
    speed = finding.speed
    if speed is None:
        return []
    n = len(speed.without)
    name, unit = split_metric_name(finding.metric)
    target = f"{name} {speed.target:.{decimals(finding)}f}{' %' if unit else ''}"
    source = "given by --target" if speed.target_given else "the median last value without GC"
    reached = (
        f"reached by {speed.reached_without} of {n} runs without GC and {speed.reached_with} of {n} with GC"
    )
    lines = [f"Target {target} ({source}): {reached}."]
    if speed.ratio is None:
        return [*lines, f"No run reaches it within {speed.epochs} epochs, so there is no ratio."]
    first = speed.first
    lines.append(
        f"With GC a run needs {_ratio(speed.ratio)} the epochs and steps; it is first in {first[0]} of {n} pairs, "
        f"later in {first[1]}{_medians(speed)}."
    )
    if speed.seconds_ratio is not None:
        lines.append(
            f"In seconds: {_ratio(speed.seconds_ratio)}; an epoch with GC takes {speed.overhead:.2f} times as "
            "long here."
        )
    censored = 2 * n - speed.reached_without - speed.reached_with
    if censored:
        runs = (
            "1 run that never reaches the target counts"
            if censored == 1
            else (f"{censored} runs that never reach the target count")
        )
        lines.append(f"{runs} with all {speed.epochs} epochs, which draws the ratio towards 1.")
    return lines


def arm_speed_sentences(findings: Sequence[Finding]) -> list[str]:
    """Return the speed of several arms with GC: the common target once, then a sentence for each arm."""
    measured = [(finding, finding.speed) for finding in findings if finding.speed is not None]
    if not measured:
        return []
    lines = [speed_sentences(measured[0][0])[0].partition(" and ")[0] + "."]
    for finding, speed in measured:
        n = len(speed.with_)
        text = f"{finding.arm}: reached by {speed.reached_with} of {n} runs"
        if speed.ratio is not None:
            first, later = speed.first
            text += f"; {_ratio(speed.ratio)} the epochs and steps, first in {first} of {n} pairs, later in {later}"
        if speed.seconds_ratio is not None:
            text += f"; in seconds {_ratio(speed.seconds_ratio)}"
        lines.append(f"{text}.")
    lines.append(
        f"Runs that never reach the target count with all {measured[0][1].epochs} epochs, which draws the ratios "
        "towards 1."
    )
    return lines


def _medians(speed: Speed) -> str:
    before, after = speed.median(with_gc=False), speed.median(with_gc=True)
    if before is None or after is None:
        return ""
    steps = speed.steps_per_epoch
    in_steps = f", {before * steps:.0f} and {after * steps:.0f} steps" if steps else ""
    return f" (medians {before:.1f} epochs without and {after:.1f} with{in_steps})"


def _ratio(ratio: Ratio) -> str:
    if ratio.low != ratio.low:
        return f"{ratio.mean:.2f} times"
    return f"{ratio.mean:.2f} times [{ratio.low:.2f}, {ratio.high:.2f}]"
