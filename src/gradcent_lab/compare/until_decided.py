"""Add pairs until the stopping rule decides or the largest number of pairs is reached."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from gradcent_lab.analysis.findings import Finding
from gradcent_lab.analysis.sequential import FEWEST_PAIRS
from gradcent_lab.errors import UserError
from gradcent_lab.store.atomic_files import make_folder, write_json
from gradcent_lab.store.records import RunRecord


def run_until_decided(
    run_seeds: Callable[[range], list[RunRecord]],
    judge: Callable[[Sequence[RunRecord]], list[Finding]],
    *,
    most: int,
    step: int = 1,
    report: Callable[[list[Finding]], None] | None = None,
) -> list[RunRecord]:
    """Run pairs and apply the rule after each of them, until every arm is decided; return all records.

    Finished runs of an earlier command are used again, and the rule is applied to them in the same order, so a
    study that is interrupted and continued stops where it would have stopped. `step` pairs are run at a time.
    """
    records: list[RunRecord] = []
    done = 0
    while done < most:
        upto = min(most, max(FEWEST_PAIRS, done + step))
        records += run_seeds(range(done, upto))
        for pairs in range(max(done + 1, min(FEWEST_PAIRS, upto)), upto + 1):
            found = judge([record for record in records if record.seed < pairs])
            if report is not None:
                report(found)
            if found and all(f.decision is not None and f.decision.outcome != "undecided" for f in found):
                return [record for record in records if record.seed < pairs]
        done = upto
    return records


def note_look(folder: Path, key: str, pairs: int) -> bool:
    """Note that a comparison was judged after `pairs` pairs; return whether it was judged after fewer before.

    Intervals and p-values hold for a number of pairs that was fixed in advance. Adding pairs after a look is
    stopping by result, so such a comparison is judged by the rule that allows it.
    """
    path = folder / "looks.json"
    looks: dict[str, list[int]] = {}
    if path.exists():
        try:
            looks = json.loads(path.read_text())
            earlier = [int(n) for n in looks.get(key, [])]
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}): delete it") from error
    else:
        earlier = []
    looks[key] = sorted({*earlier, pairs})
    make_folder(folder)
    write_json(path, looks)
    return any(n < pairs for n in earlier)
