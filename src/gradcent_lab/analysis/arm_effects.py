"""Several arms with GC on one experiment: which layers the effect comes from, and which arm to use.

Two families of comparisons, each corrected by Bonferroni. Every arm against the arm without GC gives the verdicts (k
arms: 5 % / k each, in `findings`). Every two arms with GC against each other show what one choice of layers adds to
another (m contrasts: 5 % / m each, here). Bonferroni, because the comparisons share seeds and one baseline: it holds
under any dependence, it corrects intervals as well as tests, and it applies to e-values too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.sequential import decide
from gradcent_lab.analysis.statistics import ALPHA, compare

DEFAULT_ARM = "all"


@dataclass(frozen=True)
class Contrast:
    """Two arms with GC over the seeds that both finished: `second` minus `first`."""

    first: str
    second: str
    difference: float
    low: float
    high: float
    better: int  # pairs in which `second` is better
    n: int
    alpha: float
    winner: str | None  # the arm that is shown to be better


@dataclass(frozen=True)
class ArmEffects:
    """What several arms with GC show together.

    chosen: the arm to use; None if no arm is shown to help.
    harmful: the arms that are shown to hurt.
    """

    findings: tuple[Finding, ...]
    contrasts: tuple[Contrast, ...]
    chosen: str | None
    harmful: tuple[str, ...]

    def finding(self, arm: str) -> Finding | None:
        """Return the comparison of one arm with no GC, None if it was not run."""
        return next((finding for finding in self.findings if finding.arm == arm), None)

    def contrast(self, first: str, second: str) -> Contrast | None:
        """Return the contrast of two arms in this order, None if there is none."""
        return next((c for c in self.contrasts if (c.first, c.second) == (first, second)), None)


def arm_effects(found: Sequence[Finding]) -> ArmEffects:
    """Compare the arms with each other and choose one."""
    contrasts = _contrasts(found)
    harmful = tuple(f.arm for f in found if f.answer.kind == "hurts")
    return ArmEffects(tuple(found), contrasts, _choose(found, contrasts), harmful)


def _contrasts(found: Sequence[Finding]) -> tuple[Contrast, ...]:
    """Compare every two arms, the default arm first."""
    ordered = sorted(found, key=lambda finding: finding.arm != DEFAULT_ARM)
    pairs = list(combinations(ordered, 2))
    contrasts = []
    for first, second in pairs:
        runs = [{run.seed: run for run in finding.with_} for finding in (first, second)]
        seeds = sorted(runs[0].keys() & runs[1].keys())
        if not seeds:
            continue
        values = [[getattr(side[seed], first.epoch) for seed in seeds] for side in runs]
        result = compare(values[0], values[1], first.higher_is_better, len(pairs))
        low, high, shown = result.low, result.high, result.shown
        if first.decision is not None:  # the number of pairs was not fixed in advance
            differences = [b - a for a, b in zip(*values, strict=True)]
            decision = decide(
                differences, 0.0, higher_is_better=first.higher_is_better, alpha=ALPHA / len(pairs)
            )
            low, high, shown = decision.low, decision.high, decision.outcome in ("helps", "hurts")
        winner = None
        if shown:
            winner = second.arm if result.gain > 0 else first.arm
        contrasts.append(
            Contrast(
                first.arm,
                second.arm,
                result.difference,
                low,
                high,
                result.better,
                result.n,
                result.alpha,
                winner,
            )
        )
    return tuple(contrasts)


def _choose(found: Sequence[Finding], contrasts: Sequence[Contrast]) -> str | None:
    """Choose the helping arm with the largest gain; but all layers where they help and no arm is shown to be better."""
    helping = {f.arm: f.comparison.gain for f in found if f.answer.kind == "helps" and f.comparison}
    if not helping:
        divergence = [f.arm for f in found if f.answer.kind == "helps"]
        return divergence[0] if divergence else None
    best = max(helping, key=lambda arm: helping[arm])
    if DEFAULT_ARM in helping and best != DEFAULT_ARM:
        shown = any(c.first == DEFAULT_ARM and c.second == best and c.winner == best for c in contrasts)
        return best if shown else DEFAULT_ARM
    return best
