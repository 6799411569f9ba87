"""Group run records into cells and name cells and arms, so that only runs of one configuration are compared.

Runs of different settings are never averaged: a cell that was run with several settings becomes several cells, and arms
that share a name but not their options get names that tell them apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from gradcent_lab.analysis.bn_lag import CONTROL
from gradcent_lab.experiment.run_config import digest
from gradcent_lab.store.records import RunRecord

CellName = tuple[str, str, str]  # study, scale, cell
CellKey = tuple[str, str, str, str]  # the same and the digest of the settings


def group_by_cell(records: Iterable[RunRecord]) -> list[tuple[str, list[RunRecord]]]:
    """Return (label, runs) of every cell; a run with several metrics is in one cell per metric."""
    cells: dict[CellKey, list[RunRecord]] = defaultdict(list)
    records = label_arms(list(chain.from_iterable(map(by_metric, records))))
    replaced = _replaced_by_arms(records)
    for record in records:
        settings = record.config.get("settings", {})
        shared = {k: v for k, v in settings.items() if k not in replaced[_cell_name(record)]}
        cells[(*_cell_name(record), digest([shared, record.config.get("numerics")]))].append(record)
    labels = _labels(cells)
    return [(labels[key], runs) for key, runs in cells.items()]


def by_metric(record: RunRecord) -> list[RunRecord]:
    """Return one record for each metric of a run that has several: cell `R50` becomes `R50 AP`, `R50 AP.5` ….

    All of them are read at the same epochs, the best one by the run's own metric.
    """
    if not record.metrics:
        return [record]
    if record.diverged:
        return [replace(record, cell=f"{record.cell} {m}", metric_name=m, metrics=()) for m in record.metrics]
    records = []
    for metric in record.metrics:
        curves = [{**line, "eval_metric": line[metric]} for line in record.curves]
        if metric != record.metric_name:  # the control was evaluated for the run's metric only
            curves = [{k: v for k, v in line.items() if k != CONTROL} for line in curves]
        best = curves[record.best_epoch - 1]["eval_metric"]
        last = curves[-1]["eval_metric"]
        cell = f"{record.cell} {metric}"
        summary = {"cell": cell, "metric_name": metric, "best": best, "last": last, "curves": curves}
        records.append(replace(record, **summary, metrics=()))
    return records


def label_arms(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the records with arm names that tell arms apart: `on (layers conv)` and `on (layers all)`.

    An arm is its whole configuration, not its name: variants of GC that share a name are never averaged.
    """
    variants: dict[tuple[str, str, str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for record in records:
        variants[(*_cell_name(record), record.arm)][_arm_identity(record)] = _arm_options(record)
    labelled = []
    for record in records:
        same_name = variants[(*_cell_name(record), record.arm)]
        label = record.arm
        if len(same_name) > 1:
            options = same_name[_arm_identity(record)]
            names = sorted({name for other in same_name.values() for name in other})
            differing = [n for n in names if len({repr(other.get(n)) for other in same_name.values()}) > 1]
            label = f"{record.arm} ({', '.join(f'{n} {options.get(n)}' for n in differing)})"
        labelled.append(replace(record, arm=label))
    return labelled


_ATTACH_DEFAULTS = {"layers": "all", "at": "gradient", "decay": "auto"}


def _arm_options(record: RunRecord) -> dict[str, Any]:
    """An arm's options with the defaults filled in, so that an option left out equals its default."""
    arm = record.config["arm"]
    if arm["attach"] is None:
        control = {"control": arm["control"]} if arm.get("control") else {}
        return {"attach": None, **control, **(arm.get("settings") or {})}
    return {**_ATTACH_DEFAULTS, **arm["attach"], **(arm.get("settings") or {})}


def _arm_identity(record: RunRecord) -> str:
    return digest(_arm_options(record))


def _labels(cells: Mapping[CellKey, Sequence[RunRecord]]) -> dict[CellKey, str]:
    """Name each cell; the name of a cell that was run with several settings says which of them differ."""
    variants: dict[tuple[str, str, str], list[CellKey]] = defaultdict(list)
    for key in cells:
        variants[key[:3]].append(key)
    labels: dict[CellKey, str] = {}
    for (_, _, cell), keys in variants.items():
        settings = {key: _flat(cells[key][0].config.get("settings") or {}) for key in keys}
        names = sorted({name for flat in settings.values() for name in flat})
        differing = [n for n in names if len({repr(flat.get(n)) for flat in settings.values()}) > 1]
        readable = [n for n in differing if not n.startswith(("sources", "architecture"))][:3]
        for number, key in enumerate(keys, start=1):
            options = ", ".join(f"{n} {settings[key].get(n)}" for n in readable) or f"version {number}"
            labels[key] = f"{cell} ({options})" if len(keys) > 1 else cell
    return labels


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _cell_name(record: RunRecord) -> CellName:
    return record.study, record.scale, record.cell


def _replaced_by_arms(records: Iterable[RunRecord]) -> dict[CellName, set[str]]:
    """Return the settings that an arm of a cell replaces: these do not make different cells."""
    names: dict[CellName, set[str]] = defaultdict(set)
    for record in records:
        names[_cell_name(record)] |= set(record.config["arm"].get("settings") or {})
    return names
