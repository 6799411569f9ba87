"""The sections of a report: the runs of a folder by study and scale, with what their recipe says of them."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Numerics
from gradcent_lab.report import paper_artifacts as exhibits
from gradcent_lab.report.html import Section
from gradcent_lab.store.records import RunRecord

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
            + _changed(recipe, scale, records)
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
    from gradcent_lab.experiment.study import tasks_of

    have = {record.path.name for record in records}
    seeds = tuple(sorted({record.seed for record in records}))
    kinds = {tuple(sorted(numerics.items())) for record in records if (numerics := record.config["numerics"])}
    names = list(recipe.switches)

    def ids(chosen: Mapping[str, str]) -> set[str]:
        """The names of the study's runs, with the seeds and the arithmetic of these."""
        study = replace(recipe.study(scale, chosen), seeds=seeds)
        several = [replace(study, numerics=Numerics(**dict(kind))) for kind in kinds] or [study]
        return {task.config.run_id for each in several for task in tasks_of(each, None)}

    found: list[tuple[int, dict[str, str]]] = []
    for values in itertools.product(*(recipe.switches[name].choices for name in names)):
        chosen = dict(zip(names, values, strict=True))
        made = ids(chosen)
        if made & have:
            found.append((len(made & have), chosen))
    found.sort(key=lambda pair: -pair[0])
    # cells that a switch does not touch belong to several combinations: keep those that explain new runs
    kept, explained = [], set[str]()
    for _, chosen in found:
        made = ids(chosen) & have
        if made - explained:
            kept.append(chosen)
            explained |= made
    return kept


def _changed(recipe: Recipe, scale: str, records: Sequence[RunRecord]) -> str:
    """Return the options of `gradcent run` beside switches that these runs were made with."""
    study = recipe.study(scale)
    words = []
    cells = dict.fromkeys(record.cell for record in records)
    if set(cells) < {cell.name for cell in study.cells}:
        words += [f"--cell {shlex.quote(name)}" for name in cells]
    if len(seeds := {record.seed for record in records}) != len(study.seeds):
        words.append(f"--seeds {max(seeds) + 1}")
    used = records[0].config["numerics"]
    if used["precision"] != study.numerics.precision:
        words.append(f"--precision {used['precision']}")
    for name in ("compile", "channels_last"):
        if used[name] and not getattr(study.numerics, name):
            words.append(f"--{name.replace('_', '-')}")
    return "".join(f" {word}" for word in words)


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
