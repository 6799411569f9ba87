"""From run records to findings: what the pairs of a cell show, and what the paper claims.

A finding is one line of a table: a cell, an arm with GC against the arm without, over the seeds that have
both. Runs whose initial weights differ are no pair and are refused; runs of different settings are never
averaged; a seed that only one arm has is left out and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gradcent_lab.analysis import paper_claims
from gradcent_lab.analysis.bn_lag import control_comparison, lags
from gradcent_lab.analysis.cells import group_by_cell
from gradcent_lab.analysis.sequential import Decision, decide, decided
from gradcent_lab.analysis.speed import Speed, measure_speed
from gradcent_lab.analysis.statistics import ALPHA, Comparison, compare
from gradcent_lab.analysis.verdict import Divergence, Verdict, default_margin, judge, judge_claim
from gradcent_lab.errors import UserError
from gradcent_lab.store.pairs import check_pairs
from gradcent_lab.store.records import RunRecord

Epoch = Literal["best", "last"]


@dataclass(frozen=True)
class Rules:
    """How findings are judged.

    margin: the difference below which the reader would not care; None takes the metric's default.
    target: the value whose time of arrival is the speed; None takes the baseline's median last value.
    sequential: judge by the rule that may be applied after every pair.
    comparisons: how many arms of a cell share the 5 %; None counts those that have runs.
    """

    margin: float | None = None
    target: float | None = None
    sequential: bool = False
    comparisons: int | None = None


@dataclass(frozen=True)
class Finding:
    """One cell's comparison; `comparison` is None where nothing was run."""

    study: str
    cell: str
    arm: str
    scale: str
    metric: str
    higher_is_better: bool
    epoch: Epoch
    claim: paper_claims.PairedClaim | None
    comparison: Comparison | None
    answer: Verdict
    without: tuple[RunRecord, ...] = ()  # the pairs in which both runs finished
    with_: tuple[RunRecord, ...] = ()
    unpaired: tuple[int, ...] = ()
    divergence: Divergence = field(default_factory=lambda: Divergence(0))
    control: Comparison | None = None  # the last epoch with BatchNorm statistics estimated the other way
    decision: Decision | None = (
        None  # the stopping rule's, where the number of pairs was not fixed in advance
    )
    speed: Speed | None = None
    environments: tuple[str, ...] = ()  # what differs between the two runs of some pairs, in words

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        return self.answer.label

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have both arms."""
        return tuple(record.seed for record in self.without)

    def at(self, epoch: Epoch) -> Comparison | None:
        """The same pairs compared at their best or at their last epoch."""
        if not self.without:
            return None
        values = [[getattr(run, epoch) for run in runs] for runs in (self.without, self.with_)]
        comparisons = round(ALPHA / self.comparison.alpha) if self.comparison else 1
        return compare(values[0], values[1], self.higher_is_better, comparisons)


@dataclass(frozen=True)
class _Judgement:
    """What the runs of a study are judged by; `findings` documents the fields."""

    epoch: Epoch
    table: int | None
    default_switches: Mapping[str, str] | None
    rules: Rules

    def has_default_switches(self, record: RunRecord) -> bool:
        """Whether the run was made with the recipe's defaults, as far as that is recorded."""
        if record.recipe is None or self.default_switches is None:
            return True
        return dict(record.recipe.switches) == dict(self.default_switches)


def is_baseline(record: RunRecord) -> bool:
    """Whether this run is the arm without GC and without a control in its place."""
    arm = record.config["arm"]
    return arm["attach"] is None and not arm.get("control")


def findings(
    records: Iterable[RunRecord],
    *,
    epoch: Epoch = "last",
    table: int | None = None,
    default_switches: Mapping[str, str] | None = None,
    with_claims: bool = True,
    rules: Rules | None = None,
) -> list[Finding]:
    """Return the findings of all records, and the claims of the paper's `table` that were not run.

    epoch: the epoch that the verdict is about. The last one by default: choosing an epoch by its test result
        flatters both arms. A recipe of the paper may ask for the best epoch, which the paper prints.
    table: the paper's table to compare with.
    default_switches: the recipe's defaults; a claim counts as reproduced only with these.
    rules: margin, target and stopping rule of a user's comparison.
    """
    rules = rules or Rules()
    judge_by = _Judgement(epoch, table, default_switches, rules)
    results: list[Finding] = []
    for label, runs in group_by_cell(records):
        results += _cell(label, runs, judge_by)
    if with_claims and table is not None:
        results += _not_run(results, table, epoch)
    return sorted(results, key=_order)


def _cell(label: str, runs: Sequence[RunRecord], judge_by: _Judgement) -> list[Finding]:
    arms: dict[str, dict[int, RunRecord]] = defaultdict(dict)
    for run in runs:
        arms[run.arm][run.seed] = run
    baselines = {run.arm for run in runs if is_baseline(run)}
    if len(baselines) > 1:
        raise UserError(f"{runs[0].study} {label} has {len(baselines)} arms without GC: {sorted(baselines)}")
    base = arms.pop(baselines.pop()) if baselines else {}
    sharing = judge_by.rules.comparisons or len(arms)
    return [_finding(label, arm, base, treated, judge_by, sharing) for arm, treated in arms.items()]


def _finding(
    label: str,
    arm: str,
    base: Mapping[int, RunRecord],
    treated: Mapping[int, RunRecord],
    judge_by: _Judgement,
    arms: int,
) -> Finding:
    """Compare one arm with the baseline over the seeds that have both."""
    seeds = sorted(base.keys() & treated.keys())
    for seed in seeds:
        check_pairs((base[seed], treated[seed]))
    divergence = count_diverged([(base[seed], treated[seed]) for seed in seeds])
    finite = [seed for seed in seeds if not (base[seed].diverged or treated[seed].diverged)]
    first = next(iter(treated.values()))
    epoch, table, rules = judge_by.epoch, judge_by.table, judge_by.rules
    claim = paper_claims.find(table, first.cell) if table is not None else None
    pair = [tuple(side[seed] for seed in finite) for side in (base, treated)]
    result = None
    if finite:
        values = [[getattr(run, epoch) for run in side] for side in pair]
        # the paper's tables list the arms of the authors' code; elsewhere several arms share the 5 %
        result = compare(values[0], values[1], first.higher_is_better, 1 if table else arms)
    margin = rules.margin
    if margin is None:
        margin = default_margin(first.metric_name, result.without.mean if result else 0.0)
    if table:
        answer = judge_claim(
            result,
            claim,
            paper_scale=first.is_paper_scale,
            default_switches=judge_by.has_default_switches(first),
            margin=margin,
            divergence=divergence,
        )
    else:
        answer = judge(result, margin, divergence) if seeds else Verdict("not run at this scale")
    decision = None
    if rules.sequential and not table:
        differences = [b - a for a, b in zip(*values, strict=True)] if finite else []
        higher = first.higher_is_better
        decision = decide(
            differences, margin, higher_is_better=higher, divergence=divergence, alpha=ALPHA / arms
        )
        answer = decided(decision, margin, result, divergence)
    control = control_comparison(pair[0], pair[1])
    if not table and result and control and lags(result, control, margin):
        answer = Verdict("inconclusive", margin=margin, because="batch norm")
    return Finding(
        study=first.study,
        cell=label,
        arm=arm,
        scale=first.scale,
        metric=first.metric_name,
        higher_is_better=first.higher_is_better,
        epoch=epoch,
        claim=claim,
        comparison=result,
        answer=answer,
        control=control,
        decision=decision,
        speed=measure_speed(
            [run.curves for run in pair[0]],
            [run.curves for run in pair[1]],
            higher_is_better=first.higher_is_better,
            target=rules.target,
        )
        if all("eval_metric" in line for run in (*pair[0], *pair[1]) for line in run.curves)
        else None,
        without=pair[0],
        with_=pair[1],
        unpaired=tuple(sorted(base.keys() ^ treated.keys())),
        divergence=divergence,
        environments=differing_environments([(base[seed], treated[seed]) for seed in seeds]),
    )


def count_diverged(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> Divergence:
    """Count the diverged runs of both arms."""
    flags = [(bool(a.diverged), bool(b.diverged)) for a, b in pairs]
    return Divergence(
        pairs=len(flags),
        without=sum(a for a, _ in flags),
        with_=sum(b for _, b in flags),
        only_without=sum(a and not b for a, b in flags),
        only_with=sum(b and not a for a, b in flags),
    )


# what can change the rounding of a run and is not in its configuration
_ENVIRONMENT = ("processes", "threads", "gpus", "instruction_set", "python")


def differing_environments(pairs: Sequence[tuple[RunRecord, RunRecord]]) -> tuple[str, ...]:
    """Return what differs between the machines of a pair's two runs: `seed 3: torch 2.8.0 and 2.9.0`."""
    lines = []
    for a, b in pairs:
        sides = []
        for record in (a, b):
            environment = record.environment
            versions = {
                k: v for k, v in (environment.get("versions") or {}).items() if k in ("torch", "gradcent")
            }
            sides.append(versions | {k: environment[k] for k in _ENVIRONMENT if k in environment})
        differing = [k for k in sides[0] if k in sides[1] and sides[0][k] != sides[1][k]]
        lines += [f"seed {a.seed}: {k} {sides[0][k]} and {sides[1][k]}" for k in differing]
    return tuple(lines)


def _not_run(results: Sequence[Finding], table: int, epoch: Epoch) -> list[Finding]:
    """Return the claims of the table for which `results` has no run at its scale."""
    missing = []
    for study, scale in sorted({(finding.study, finding.scale) for finding in results}):
        here = [finding for finding in results if (finding.study, finding.scale) == (study, scale)]
        done = {finding.claim.cell for finding in here if finding.claim}
        for claim in paper_claims.paired_claims():
            if claim.table == table and claim.cell not in done:
                missing.append(unrun(claim, study, scale, epoch))
    return missing


def unrun(claim: paper_claims.PairedClaim, study: str, scale: str, epoch: Epoch) -> Finding:
    """Return the line of a claim without runs."""
    return Finding(
        study=study,
        cell=claim.cell,
        arm="on",
        scale=scale,
        metric=claim.info.metric,
        higher_is_better=claim.info.higher_is_better,
        epoch=epoch,
        claim=claim,
        comparison=None,
        answer=Verdict("not run at this scale"),
    )


def _order(finding: Finding) -> tuple[Any, ...]:
    """By study and scale, then as the paper prints its columns, then by name."""
    place = paper_claims.paired_claims().index(finding.claim) if finding.claim else 0
    return finding.study, finding.scale, place, finding.cell, finding.arm
