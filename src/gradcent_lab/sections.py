"""The sections of a report: the runs of a folder by study and scale, with what their recipe says of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab import exhibits
from gradcent_lab.errors import UserError
from gradcent_lab.report import Section
from gradcent_lab.store import RunRecord

if TYPE_CHECKING:
    from gradcent_lab.recipes.recipe import Recipe


def sections(records: Iterable[RunRecord], root: Path | None = None) -> list[Section]:
    """Return one section per study and scale: tables in the paper's order, then figures, then the rest."""
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.study, record.scale), []).append(record)
    return [_section(groups[key], root) for key in sorted(groups, key=_order)]


def _section(records: Sequence[RunRecord], root: Path | None) -> Section:
    study, scale = records[0].study, records[0].scale
    recipe = _recipe(study)
    title, words = study, ""
    notes: tuple[str, ...] = ()
    repeat: tuple[str, ...] = ()
    if recipe is not None and scale != "own":
        title = recipe.heading
        words = recipe.scale(scale).words
        chosen = switches(recipe, scale, records)
        notes = tuple(note for said in chosen for note in recipe.said(said)) or recipe.notes
        out = f" --out {root}" if root is not None else ""
        repeat = tuple(
            f"gradcent run {recipe.name} --scale {scale}"
            + "".join(
                f" --set {name}={value}" for name, value in said.items() if value != _usual(recipe, name)
            )
            + out
            for said in chosen or [{}]
        )
    return Section(
        records,
        title=title,
        scale_words=words,
        repeat=repeat,
        notes=tuple(dict.fromkeys(notes)),
        pictures=exhibits.pictures(study, records, f"{scale} scale: {words}" if words else ""),
        tables=exhibits.tables(study, records),
    )


def switches(recipe: Recipe, scale: str, records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """Return the positions of the recipe's switches that these runs were made with.

    They are found by making the study with every combination and looking for the runs' names in it.
    """
    from gradcent_lab.study import tasks_of

    have = {record.path.name for record in records}
    names = list(recipe.switches)
    found: list[tuple[int, dict[str, str]]] = []
    for values in itertools.product(*(recipe.switches[name].choices for name in names)):
        chosen = dict(zip(names, values, strict=True))
        made = {task.config.run_id for task in tasks_of(recipe.study(scale, chosen), None)}
        if made & have:
            found.append((len(made & have), chosen))
    found.sort(key=lambda pair: -pair[0])
    # cells that a switch does not touch belong to several combinations: keep those that explain new runs
    kept, explained = [], set[str]()
    for _, chosen in found:
        made = {task.config.run_id for task in tasks_of(recipe.study(scale, chosen), None)} & have
        if made - explained:
            kept.append(chosen)
            explained |= made
    return kept


def _usual(recipe: Recipe, name: str) -> str:
    return recipe.switches[name].choices[0]


def _recipe(study: str) -> Recipe | None:
    from gradcent_lab import recipes

    try:
        return recipes.get(study)
    except UserError:
        return None


def _order(key: tuple[str, str]) -> tuple[int, str, int, str]:
    """Tables by number, figures by number, then names; the paper's scale before smaller ones."""
    study, scale = key
    kind = 0 if study.startswith("table") else 1 if re.match(r"fig\d", study) else 2
    scales = ("paper", "small", "smoke")
    return kind, study, scales.index(scale) if scale in scales else len(scales), scale
