"""The sections of a report: runs grouped by study and scale, shown the way their recipe says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from gradcent_lab.analysis.findings import Epoch, findings
from gradcent_lab.experiment.study import Scale, Source
from gradcent_lab.report.section import Picture, Section
from gradcent_lab.report.tables import Table
from gradcent_lab.store.records import RunRecord


class Presentation(Protocol):
    """What the report asks of a recipe."""

    @property
    def heading(self) -> str:
        """The title with its place in the paper."""

    @property
    def paper(self) -> str | None:
        """The place in the paper; None if it is not in the paper."""

    @property
    def scales(self) -> tuple[Scale, ...]:
        """The scales, largest first."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that do not depend on switches."""

    @property
    def paper_table(self) -> int | None:
        """The paper's table to compare with."""

    @property
    def judged_epoch(self) -> Epoch:
        """The epoch that the verdict is about."""

    @property
    def sources(self) -> Mapping[str, Source]:
        """The cells whose runs are those of another study."""

    @property
    def default_switches(self) -> Mapping[str, str]:
        """Every switch with its default."""

    @property
    def paired(self) -> bool:
        """Whether the arms form pairs."""

    @property
    def figures(self) -> Callable[[Sequence[RunRecord], str], list[Picture]] | None:
        """(records, scale text) → figures."""

    @property
    def tables(self) -> Callable[[Sequence[RunRecord]], list[Table]] | None:
        """(records) → tables beside the table of pairs."""

    def notes_for(self, switches: Mapping[str, str]) -> tuple[str, ...]:
        """Return the notes of a study with these switches."""

    def repeat_commands(self, records: Sequence[RunRecord], root: Path | None) -> tuple[str, ...]:
        """Return the commands that repeat recorded runs."""


def sections(
    records: Iterable[RunRecord],
    recipes: Mapping[str, Presentation],
    root: Path | None = None,
    *,
    studies: Collection[str] | None = None,
) -> list[Section]:
    """Return one section per study and scale, in the order of `recipes`, then studies without a recipe.

    `studies` selects sections. The records must be those of all studies: a table shows cells of others, too.
    """
    records = list(records)
    groups: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.study, record.scale), []).append(record)
    for (study, scale), own in groups.items():
        if study in recipes:
            own += shared_runs(study, recipes[study], [r for r in records if r.scale == scale])
    order = list(recipes)

    def position(key: tuple[str, str]) -> tuple[int, str, int, str]:
        study, scale = key
        if study not in recipes:
            return len(order), study, 0, scale
        scales = [known.name for known in recipes[study].scales]
        return order.index(study), study, scales.index(scale) if scale in scales else len(scales), scale

    chosen = [key for key in sorted(groups, key=position) if studies is None or key[0] in studies]
    return [_section(groups[key], recipes.get(key[0]), root) for key in chosen]


def shared_runs(study: str, recipe: Presentation, records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs of other studies that the table shows too, under the names that it gives them."""
    shared = []
    for cell, source in recipe.sources.items():
        for record in records:
            if (record.study, record.cell) == (source.study, source.cell):
                info = record.recipe
                if info is not None:
                    switches = {k: v for k, v in info.switches.items() if k in recipe.default_switches}
                    info = replace(info, recipe=study, switches=switches)
                shared.append(replace(record, study=study, cell=cell, recipe=info))
    return shared


def _section(records: Sequence[RunRecord], recipe: Presentation | None, root: Path | None) -> Section:
    first = records[0]
    if recipe is None:
        return Section(records, findings(records), title=first.study)
    description = _description(first, recipe)
    scale_name = _scale_name(first, recipe)
    scale_text = f"{scale_name}: {description}" if description else scale_name
    switches = _unique(dict(record.recipe.switches) for record in records if record.recipe is not None)
    notes = [note for chosen in switches for note in recipe.notes_for(chosen)] or recipe.notes
    shown = {record.cell for record in records}
    notes = [
        *notes,
        *(
            f"{cell}: the same runs as {source.cell} of {source.study}, counted once"
            for cell, source in recipe.sources.items()
            if cell in shown
        ),
    ]
    results = []
    if recipe.paired:
        results = findings(
            records,
            epoch=recipe.judged_epoch,
            table=recipe.paper_table,
            default_switches=recipe.default_switches,
        )
    return Section(
        records,
        results,
        title=recipe.heading,
        description=description,
        scale_name=scale_name,
        repeat=recipe.repeat_commands(records, root),
        notes=tuple(dict.fromkeys(notes)),
        pictures=recipe.figures(records, scale_text) if recipe.figures is not None else (),
        tables=recipe.tables(records) if recipe.tables is not None else (),
    )


def _description(record: RunRecord, recipe: Presentation) -> str:
    """Return the scale's description as it was recorded, or the recipe's for runs of earlier versions."""
    if record.recipe is not None:
        return record.recipe.scale
    return next((scale.description for scale in recipe.scales if scale.name == record.scale), "")


def _scale_name(record: RunRecord, recipe: Presentation) -> str:
    if record.is_paper_scale:
        return "Scale of the paper"
    return f"Scale “{record.scale}”" + ("" if recipe.paper is None else ", not the paper's")


def _unique(switches: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    return list({tuple(sorted(chosen.items())): chosen for chosen in switches}.values())
