"""What makes two runs a pair, checked in one place: before a study returns and before a report compares."""

from __future__ import annotations

from collections.abc import Iterable

from gradcent_lab.errors import UserError
from gradcent_lab.store.records import RunRecord


def check_pairs(records: Iterable[RunRecord]) -> None:
    """Raise unless the arms of every seed started from the same weights."""
    first_arms: dict[tuple[str, str, str, int], RunRecord] = {}
    for record in records:
        first = first_arms.setdefault((record.study, record.scale, record.cell, record.seed), record)
        if first.initial_weights != record.initial_weights:
            raise UserError(
                f"{record.study} {record.cell} seed {record.seed}: the arms {first.arm!r} ({first.path.name}) and "
                f"{record.arm!r} ({record.path.name}) started from different weights, so they are no pair: build "
                "the model from torch's global generator alone, delete both runs and run again"
            )
