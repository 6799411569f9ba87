"""The commands that repeat recorded runs of a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gradcent_lab.experiment.study import Study
from gradcent_lab.store.records import RunRecord

if TYPE_CHECKING:
    from gradcent_lab.recipes.recipe import Recipe


def repeat_commands(recipe: Recipe, records: Sequence[RunRecord], root: Path | None) -> tuple[str, ...]:
    """Return one `gradcent run` per choice of switches; options at their defaults are left out."""
    groups: dict[tuple[tuple[str, str], ...], list[RunRecord]] = {}
    for record in records:
        switches = record.recipe.switches if record.recipe is not None else {}
        groups.setdefault(tuple(sorted(switches.items())), []).append(record)
    return tuple(_command(recipe, dict(switches), runs, root) for switches, runs in groups.items())


def _command(
    recipe: Recipe, switches: Mapping[str, str], records: Sequence[RunRecord], root: Path | None
) -> str:
    scale = records[0].scale
    arguments = ["gradcent", "run", recipe.name, "--scale", scale]
    for name, default in recipe.default_switches.items():
        if switches.get(name, default) != default:
            arguments += ["--set", f"{name}={switches[name]}"]
    if any(known.name == scale for known in recipe.scales):
        arguments += _options(recipe.study(scale), records)
    if root is not None:
        arguments += ["--out", str(root)]
    return shlex.join(arguments)


def _options(study: Study, records: Sequence[RunRecord]) -> list[str]:
    """Return the options that changed cells, seeds and numerics."""
    options: list[str] = []
    cells = dict.fromkeys(record.cell for record in records)
    if set(cells) < {cell.name for cell in study.cells}:
        for name in cells:
            options += ["--cell", name]
    seeds = {record.seed for record in records}
    if len(seeds) != len(study.seeds):
        options += ["--seeds", str(max(seeds) + 1)]
    numerics = records[0].config["numerics"]
    if numerics["precision"] != study.numerics.precision:
        options += ["--precision", numerics["precision"]]
    if numerics["compile"] and not study.numerics.compile:
        options.append("--compile")
    if numerics["channels_last"] and not study.numerics.channels_last:
        options.append("--channels-last")
    return options
