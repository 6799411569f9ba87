"""What a study is: cells × arms × seeds at one scale, and the list of its runs.

The arms of a seed form a pair: they start from the same weights (compared by hash) and see the same batches
with the same augmentation, so their difference is due to centralization alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradcent_lab.experiment.run_config import Arm, Numerics, RecipeInfo, RunConfig
from gradcent_lab.experiment.spec import Experiment, Measurement

HELD_OUT = 0.2  # the share of the training data that tuning runs are judged on


@dataclass(frozen=True)
class Task:
    """A run to do: its configuration and the function that builds what it runs.

    Worker processes import that function, so it must be picklable.
    """

    config: RunConfig
    make: Callable[[], Experiment | Measurement]


@dataclass(frozen=True)
class Tuning:
    """How a study chooses hyper-parameters of the optimizer, for each cell and arm, on held-out training data.

    grid: option of the optimizer → the values to try; every tuned arm gets all of them. A cell may have its own.
    beyond: values outside the grid that every tuned arm runs too. They choose nothing: they show whether an arm whose
        best value is at an end of the grid would do better outside. A cell may have its own.
    seeds: the tuning seeds, which the comparison must not use.
    follow: arm → the tuned arm whose values it takes, for arms that show where the effect of that arm comes from.
        They run after the tuned arms.
    """

    grid: Mapping[str, tuple[float, ...]]
    beyond: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    seeds: tuple[int, ...] = (10_000, 10_001)
    follow: Mapping[str, str] = field(default_factory=dict)

    def grid_of(self, cell: Cell) -> Mapping[str, tuple[float, ...]]:
        """Return the grid of a cell."""
        return self.grid if cell.grid is None else cell.grid

    def beyond_of(self, cell: Cell) -> Mapping[str, tuple[float, ...]]:
        """Return the values outside the grid of a cell."""
        return self.beyond if cell.beyond is None else cell.beyond


@dataclass(frozen=True)
class Scale:
    """How large a study is.

    description: what differs from the paper, or what the paper does; printed on every table and figure.
    is_paper: the runs are the paper's experiment at its full size.
    sizes: the numbers that a recipe reads to make its cells.
    tuning: what is tuned before the comparison; None if nothing is.
    numerics: numerical options of this scale; None for the recipe's.
    """

    name: str
    description: str
    seeds: tuple[int, ...] = (0,)
    is_paper: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)
    tuning: Tuning | None = None
    numerics: Numerics | None = None


@dataclass(frozen=True)
class Source:
    """The cell of another study that a table shows too: the runs are that study's and are made once.

    switches: the switches of that study that this one does not have, with the choices that give the same runs.
    """

    study: str
    cell: str
    switches: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One row or column of a table: a name and the settings of its experiment."""

    name: str
    settings: Mapping[str, Any]
    arms: tuple[Arm, ...] | None = None  # replaces the study's arms
    grid: Mapping[str, tuple[float, ...]] | None = None  # replaces the grid of the scale's tuning
    beyond: Mapping[str, tuple[float, ...]] | None = None  # replaces its values outside the grid
    source: Source | None = None  # set where the runs are those of another study's cell

    @property
    def data_set(self) -> str | None:
        """The name of the data set that the cell reads, or None."""
        name = self.settings.get("data", {}).get("set") or self.settings.get("set")
        return None if name is None else str(name)


@dataclass(frozen=True)
class Study:
    """A recipe at one scale: every cell with every arm for every seed."""

    name: str
    scale: Scale
    cells: tuple[Cell, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    build: Callable[[Mapping[str, Any], Path | None], Experiment | Measurement]  # (settings, data folder)
    numerics: Numerics = field(default_factory=Numerics)
    notes: tuple[str, ...] = ()  # the choices where the paper and the released code disagree
    metric: str = "accuracy, %"  # what the live display shows after every epoch
    switches: Mapping[str, str] = field(default_factory=dict)


def tasks_of(study: Study, data: Path | None) -> list[Task]:
    """Return a study's runs, seed by seed, so that an unfinished study has whole pairs."""
    scale = study.scale
    tasks = []
    for seed in study.seeds:
        for cell in study.cells:
            source = cell.source or Source(study.name, cell.name)
            switches = {**study.switches, **source.switches}
            recipe = RecipeInfo(source.study, scale.description, scale.is_paper, switches)
            for arm in cell.arms or study.arms:
                settings = {**cell.settings, **(arm.settings or {})}
                config = RunConfig(
                    source.study, source.cell, arm, seed, scale.name, settings, study.numerics, recipe
                )
                tasks.append(Task(config, partial(study.build, settings, data)))
    return tasks
