"""From run records to findings: which runs are pairs, what they show, and what the paper claims there.

A finding is one line of a table: a cell, an arm with GC against the arm without, over the seeds that have
both. Runs whose initial weights differ are no pair and are refused; runs of different settings are never
averaged; a seed that only one arm has is left out and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from gradcent_lab.analysis import paper_claims as claims
from gradcent_lab.analysis.statistics import Comparison, Verdict, compare, verdict
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import digest
from gradcent_lab.store.pairs import check_pairs
from gradcent_lab.store.records import RunRecord

Epoch = Literal["best", "last"]


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
    claim: claims.PairedClaim | None
    comparison: Comparison | None
    verdict: Verdict
    without: tuple[RunRecord, ...] = ()
    with_: tuple[RunRecord, ...] = ()
    unpaired: tuple[int, ...] = ()

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have both arms."""
        return tuple(record.seed for record in self.without)

    def at(self, epoch: Epoch) -> Comparison | None:
        """The same pairs compared at their best or at their last epoch."""
        if not self.without:
            return None
        values = [[getattr(run, epoch) for run in runs] for runs in (self.without, self.with_)]
        return compare(values[0], values[1], self.higher_is_better)


def is_baseline(record: RunRecord) -> bool:
    """Whether this run is the arm without GC."""
    return record.config["arm"]["attach"] is None


def headline(study: str) -> Epoch:
    """Return the epoch a study is judged by.

    The paper's printed numbers match the best epoch on the test set, so its tables are judged by that, but for
    detection, where the framework it used reports the last; your own experiment by its last epoch, because
    choosing an epoch by its test result flatters both arms.
    """
    return "best" if claims.table_of(study) not in (None, 8, 9) else "last"


def by_metric(record: RunRecord) -> list[RunRecord]:
    """Return one record for each metric of a run that has several: cell `R50` becomes `R50 AP`, `R50 AP.5` ….

    All of them are read at the same epochs, the best one by the run's own metric.
    """
    if not record.metrics:
        return [record]
    records = []
    for metric in record.metrics:
        curves = [{**line, "eval_metric": line[metric]} for line in record.curves]
        best = curves[record.best_epoch - 1]["eval_metric"]
        last = curves[-1]["eval_metric"]
        cell = f"{record.cell} {metric}"
        own = {"cell": cell, "metric_name": metric, "best": best, "last": last, "curves": curves}
        records.append(replace(record, **own, metrics=()))
    return records


def findings(
    records: Iterable[RunRecord], *, epoch: Epoch | None = None, with_claims: bool = True
) -> list[Finding]:
    """Return the findings of all records, and the claims of their tables that were not run."""
    cells: dict[tuple[str, str, str, str], list[RunRecord]] = defaultdict(list)
    records = list(chain.from_iterable(map(by_metric, records)))
    arms_own = _arms_own(records)
    for record in records:
        shared = {
            k: v for k, v in record.config.get("settings", {}).items() if k not in arms_own[_place(record)]
        }
        same = digest([shared, record.config.get("numerics")])
        cells[record.study, record.scale, record.cell, same].append(record)
    labels = _labels(cells)
    found: list[Finding] = []
    for key, runs in cells.items():
        found += _cell(labels[key], runs, epoch or headline(key[0]))
    if with_claims:
        found += _not_run(found)
    return sorted(found, key=_order)


def _place(record: RunRecord) -> tuple[str, str, str]:
    return record.study, record.scale, record.cell


def _arms_own(records: Iterable[RunRecord]) -> dict[tuple[str, str, str], set[str]]:
    """The settings that an arm of a cell replaces on purpose: they do not tell configurations apart."""
    own: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for record in records:
        own[_place(record)] |= set(record.config["arm"].get("settings") or {})
    return own


def _cell(label: str, runs: Sequence[RunRecord], epoch: Epoch) -> list[Finding]:
    arms: dict[str, dict[int, RunRecord]] = defaultdict(dict)
    for run in runs:
        arms[run.arm][run.seed] = run
    baselines = {run.arm for run in runs if is_baseline(run)}
    if len(baselines) > 1:
        raise UserError(f"{runs[0].study} {label} has {len(baselines)} arms without GC: {sorted(baselines)}")
    base = arms.pop(baselines.pop()) if baselines else {}
    found = []
    for arm, own in arms.items():
        seeds = sorted(base.keys() & own.keys())
        for seed in seeds:
            check_pairs((base[seed], own[seed]))
        first = next(iter(own.values()))
        table = claims.table_of(first.study)
        claim = claims.find(table, first.cell) if table else None
        pair = [tuple(side[seed] for seed in seeds) for side in (base, own)]
        result = None
        if seeds:
            values = [[getattr(run, epoch) for run in side] for side in pair]
            result = compare(values[0], values[1], first.higher_is_better)
        found.append(
            Finding(
                study=first.study,
                cell=label,
                arm=arm,
                scale=first.scale,
                metric=first.metric_name,
                higher_is_better=first.higher_is_better,
                epoch=epoch,
                claim=claim,
                comparison=result,
                verdict=verdict(result, claim, first.scale),
                without=pair[0],
                with_=pair[1],
                unpaired=tuple(sorted(base.keys() ^ own.keys())),
            )
        )
    return found


def _labels(cells: Mapping[tuple[str, str, str, str], Sequence[RunRecord]]) -> dict[tuple[str, ...], str]:
    """Name each cell; one that was run with several settings says which of them differ."""
    variants: dict[tuple[str, ...], list[tuple[str, ...]]] = defaultdict(list)
    for key in cells:
        variants[key[:3]].append(key)
    labels: dict[tuple[str, ...], str] = {}
    for (_, _, cell), keys in variants.items():
        settings = {key: _flat(cells[key][0].config.get("settings") or {}) for key in keys}  # type: ignore[index]
        names = sorted({name for flat in settings.values() for name in flat})
        differing = [n for n in names if len({repr(flat.get(n)) for flat in settings.values()}) > 1]
        readable = [n for n in differing if not n.startswith(("sources", "architecture"))][:3]
        for number, key in enumerate(keys, start=1):
            words = ", ".join(f"{n} {settings[key].get(n)}" for n in readable) or f"version {number}"
            labels[key] = f"{cell} ({words})" if len(keys) > 1 else cell
    return labels


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _not_run(found: Sequence[Finding]) -> list[Finding]:
    """The claims of the tables that appear in `found` for which no run exists at that scale."""
    missing = []
    for study, scale in sorted({(f.study, f.scale) for f in found if claims.table_of(f.study)}):
        here = [f for f in found if (f.study, f.scale) == (study, scale)]
        done = {f.claim.cell for f in here if f.claim}
        for claim in claims.paired_claims():
            if claim.table == claims.table_of(study) and claim.cell not in done:
                missing.append(unrun(claim, study, scale))
    return missing


def unrun(claim: claims.PairedClaim, study: str, scale: str) -> Finding:
    """The line of a table for a claim nobody ran here."""
    return Finding(
        study=study,
        cell=claim.cell,
        arm="on",
        scale=scale,
        metric=claim.info.metric,
        higher_is_better=claim.info.higher_is_better,
        epoch=headline(study),
        claim=claim,
        comparison=None,
        verdict="not run at this scale",
    )


def _order(finding: Finding) -> tuple[Any, ...]:
    """By study and scale, then as the paper prints its columns, then by name."""
    place = claims.paired_claims().index(finding.claim) if finding.claim else 0
    return finding.study, finding.scale, place, finding.cell, finding.arm
