"""A recipe: everything about one table or figure, in one object.

It holds the cells, arms, scales and switches of the experiment, and how its runs are shown: the epoch they are
judged by, the paper's table they are compared with, figures and extra tables. The report asks the recipe; no
other module lists recipes or branches on their names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Arm, Numerics
from gradcent_lab.experiment.study import Cell, Scale, Source, Study
from gradcent_lab.recipes.repeat import repeat_commands

if TYPE_CHECKING:
    from gradcent_lab.analysis.findings import Epoch
    from gradcent_lab.experiment.spec import Experiment, Measurement
    from gradcent_lab.report.section import Picture
    from gradcent_lab.report.tables import Table
    from gradcent_lab.store.records import RunRecord

Switches = Mapping[str, str]  # switch → choice


@dataclass(frozen=True)
class Lazy:
    """A function named `module:function`, relative to `gradcent_lab`, that is imported when it is called.

    Recipes name the functions that train, draw and tabulate this way: `gradcent list` reads every recipe and
    must not import torch or matplotlib. It is picklable, so worker processes can call it.
    """

    path: str

    def resolve(self) -> Callable[..., Any]:
        """Import the function."""
        module, _, name = self.path.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(f"gradcent_lab.{module}"), name)
        return function

    def __call__(self, *args: Any) -> Any:
        """Import the function and call it."""
        return self.resolve()(*args)


@dataclass(frozen=True)
class Switch:
    """A point on which the paper and the released code disagree; the first choice is the default."""

    choices: tuple[str, ...]
    description: str


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    paper: where it is in the paper ("Table 1"); None for an experiment that is not in the paper.
    cells: (scale, switches) → the cells of the table.
    arms: the arms of every cell, or a function of the switches that returns them.
    build: (settings, data folder) → the experiment or measurement of one cell.
    study_name: the study that holds the runs; the recipe's name by default. Figure 6 draws runs of Table 5.
    metric: the metric shown after every epoch.
    paper_table: the number of the paper's table that the runs are compared with.
    judged_epoch: the epoch that the verdict is about. The paper prints the best epoch on the test set; detection
        frameworks report the last.
    paired: whether the arms of a seed form pairs that are compared; False for a measurement.
    figures: (records, scale text) → the figures these runs can draw.
    tables: (records) → tables beside the table of pairs.
    """

    name: str
    title: str
    paper: str | None
    scales: tuple[Scale, ...]
    cells: Callable[[Scale, Switches], tuple[Cell, ...]]
    arms: tuple[Arm, ...] | Callable[[Switches], tuple[Arm, ...]]
    build: Callable[[Mapping[str, Any], Path | None], Experiment | Measurement]
    study_name: str = ""
    switches: Mapping[str, Switch] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    metric: str = "accuracy, %"
    numerics: Numerics = field(default_factory=Numerics)
    paper_table: int | None = None
    judged_epoch: Epoch = "last"
    paired: bool = True
    figures: Callable[[Sequence[RunRecord], str], list[Picture]] | None = None
    tables: Callable[[Sequence[RunRecord]], list[Table]] | None = None

    @property
    def heading(self) -> str:
        """The title with its place in the paper."""
        if self.paper is None:
            return f"{self.title} (not in the paper)"
        return f"{self.paper[0].upper()}{self.paper[1:]}: {self.title}"

    @property
    def data_sets(self) -> tuple[str, ...]:
        """The data sets that any scale reads."""
        cells = (cell for scale in self.scales for cell in self.cells(scale, self.default_switches))
        return tuple(dict.fromkeys(cell.data_set for cell in cells if cell.data_set is not None))

    @property
    def default_switches(self) -> dict[str, str]:
        """Every switch with its first choice."""
        return {name: switch.choices[0] for name, switch in self.switches.items()}

    @property
    def sources(self) -> dict[str, Source]:
        """The cells whose runs are those of another study."""
        cells = self.cells(self.scales[0], self.default_switches)
        return {cell.name: cell.source for cell in cells if cell.source is not None}

    def scale(self, name: str) -> Scale:
        """Return one of the recipe's scales by name."""
        for scale in self.scales:
            if scale.name == name:
                return scale
        known = ", ".join(scale.name for scale in self.scales)
        raise UserError(f"recipe {self.name} has no scale {name!r}: choose one of {known}")

    def study(self, scale_name: str, switches: Switches | None = None) -> Study:
        """Return the study at a scale; switches that are not given keep their defaults."""
        scale, chosen = self.scale(scale_name), self.check_switches(switches or {})
        return Study(
            name=self.study_name or self.name,
            scale=scale,
            cells=self.cells(scale, chosen),
            arms=self.arms if isinstance(self.arms, tuple) else self.arms(chosen),
            seeds=scale.seeds,
            build=self.build,
            numerics=scale.numerics or self.numerics,
            notes=self.notes_for(chosen),
            metric=self.metric,
            switches=chosen,
        )

    def check_switches(self, switches: Switches) -> dict[str, str]:
        """Return every switch with its choice; raise for an unknown switch or choice."""
        for name, choice in switches.items():
            if name not in self.switches:
                known = ", ".join(self.switches) or "none"
                raise UserError(f"recipe {self.name} has no switch {name!r}; it has {known}")
            if choice not in self.switches[name].choices:
                choices = " or ".join(self.switches[name].choices)
                raise UserError(f"switch {name} of {self.name} takes {choices}, not {choice!r}")
        return {**self.default_switches, **switches}

    def notes_for(self, switches: Switches) -> tuple[str, ...]:
        """Return the notes of a study: the choice of every switch, then the fixed notes."""
        choices = (f"{name}={choice}: {self.switches[name].description}" for name, choice in switches.items())
        return (*choices, *self.notes)

    def repeat_commands(self, records: Sequence[RunRecord], root: Path | None) -> tuple[str, ...]:
        """Return the commands that repeat recorded runs."""
        return repeat_commands(self, records, root)
