"""What makes two runs a pair, checked in one place: before a study returns and before a report compares."""

from __future__ import annotations

from collections.abc import Iterable

from gradcent_lab.errors import UserError
from gradcent_lab.store.records import RunRecord


def check_pairs(records: Iterable[RunRecord]) -> None:
    """Raise unless the arms of every seed started from the same weights and saw the same batches."""
    first_arms: dict[tuple[str, str, str, int], RunRecord] = {}
    for record in records:
        first = first_arms.setdefault((record.study, record.scale, record.cell, record.seed), record)
        if first.initial_weights != record.initial_weights:
            raise UserError(
                f"{record.study} {record.cell} seed {record.seed}: the arms {first.arm!r} ({first.path.name}) and "
                f"{record.arm!r} ({record.path.name}) started from different weights, so they are no pair: build "
                "the model from torch's global generator alone, delete both runs and run again"
            )
        processes = [r.environment.get("processes", 1) for r in (first, record)]
        if processes[0] != processes[1]:
            raise UserError(
                f"{record.study} {record.cell} seed {record.seed}: the arms {first.arm!r} ({first.path.name}) and "
                f"{record.arm!r} ({record.path.name}) ran in {processes[0]} and {processes[1]} processes, so they are "
                "no pair: run both with the same number"
            )
        for epoch, other in zip(first.curves, record.curves, strict=False):
            if epoch.get("batches") and other.get("batches") and epoch["batches"] != other["batches"]:
                raise UserError(
                    f"{record.study} {record.cell} seed {record.seed}: the arms {first.arm!r} ({first.path.name}) and "
                    f"{record.arm!r} ({record.path.name}) saw different batches in epoch {epoch['epoch']}, so they are "
                    "no pair: the order and the augmentation of the data must depend on the seed alone"
                )
