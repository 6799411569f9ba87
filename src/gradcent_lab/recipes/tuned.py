"""Studies whose arms are tuned first: the runs of the grid, the choice, and the comparison with the chosen values.

Tuning runs train on a part of the training data and are evaluated on the rest of it; they are stored as the study
`NAME-tuning`. The comparison uses other seeds, all training data and the evaluation data, which tuning never sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradcent_lab.analysis.tuning import TunedArm, Values, describe_values, grid_points, tuned_arms
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.study import HELD_OUT, Cell, Study, Task, Tuning, tasks_of
from gradcent_lab.store import records as store
from gradcent_lab.store.records import RunRecord

Grid = Mapping[str, tuple[float, ...]]
TunedCells = Mapping[str, Sequence[TunedArm]]  # cell → its tuned arms


def tuning_name(study_name: str) -> str:
    """Return the name of the study that holds the tuning runs."""
    return f"{study_name}-tuning"


def tuning_study(study: Study) -> Study:
    """Return the study of the grid: one cell per cell and grid point, the tuned arms, the tuning seeds."""
    return _points_study(study, _tuning(study).grid_of)


def beyond_study(study: Study) -> Study:
    """Return the same for the values outside the grid, which choose nothing; it has no cells if there are none."""
    return _points_study(study, _tuning(study).beyond_of)


def _points_study(study: Study, values_of: Callable[[Cell], Grid]) -> Study:
    tuning = _tuning(study)
    cells = []
    for cell in study.cells:
        arms = tuple(arm for arm in cell.arms or study.arms if arm.name not in tuning.follow)
        grid = values_of(cell)
        for values in grid_points(grid) if grid else ():
            settings = {**_with_values(cell, values), "held_out": HELD_OUT}
            cells.append(Cell(_point_name(cell, values), settings, arms))
    return replace(study, name=tuning_name(study.name), cells=tuple(cells), seeds=tuning.seeds)


def choose(study: Study, records: Sequence[RunRecord]) -> TunedCells:
    """Return the held-out results of every cell and tuned arm; raise if a run of the grid is missing."""
    found = {record.path.name: record for record in records}
    tasks = {task.config.run_id: task.config for task in tasks_of(tuning_study(study), None)}
    missing = [config for run_id, config in tasks.items() if run_id not in found]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(tasks)} tuning runs are not finished (the first: {missing[0].label}): the "
            "comparison needs the values that they choose; run again when they are"
        )
    chosen: dict[str, list[TunedArm]] = {}
    for cell in study.cells:
        points = grid_points(_tuning(study).grid_of(cell))
        names = {_point_name(cell, values): values for values in points}
        runs = [
            (config.arm.name, names[config.cell], found[run_id])
            for run_id, config in tasks.items()
            if config.cell in names
        ]
        chosen[cell.name] = tuned_arms(list(dict.fromkeys(arm for arm, _, _ in runs)), points, runs)
    return chosen


def chosen_study(study: Study, tuned: TunedCells) -> Study:
    """Return the comparison: every arm with the values chosen for it, or for the arm that it follows."""
    follow = _tuning(study).follow
    cells = []
    for cell in study.cells:
        best = {arm.arm: arm.best.values for arm in tuned[cell.name]}
        arms = tuple(
            _tuned(arm, cell, best[follow.get(arm.name, arm.name)]) for arm in cell.arms or study.arms
        )
        cells.append(replace(cell, arms=arms))
    return replace(study, cells=tuple(cells))


def comparison_tasks(study: Study, tuned: TunedCells, data: Path | None) -> list[Task]:
    """Return the runs of the comparison: the tuned arms for all seeds, then the arms that follow them."""
    final, tuning = chosen_study(study, tuned), _tuning(study)

    def part(following: bool) -> tuple[Cell, ...]:
        cells = (
            replace(cell, arms=tuple(a for a in cell.arms or () if (a.name in tuning.follow) == following))
            for cell in final.cells
        )
        return tuple(
            cell for cell in cells if cell.arms
        )  # a cell without arms of its own would get the study's

    return [
        *tasks_of(replace(final, cells=part(False)), data),
        *tasks_of(replace(final, cells=part(True)), data),
    ]


def run_tuned(
    study: Study,
    root: Path,
    data: Path | None,
    run: Callable[[Study, list[Task]], Any],
) -> None:
    """Run the grid and the values beyond it, choose from the grid, and run the comparison.

    `run` runs the tasks of a study and may leave some to others.
    """
    grid = tuning_study(study)
    run(grid, [*tasks_of(grid, data), *tasks_of(beyond_study(study), data)])
    run(study, comparison_tasks(study, choose(study, store.load(root, grid.name)), data))


def _tuning(study: Study) -> Tuning:
    if study.scale.tuning is None:
        raise UserError(f"{study.name} tunes nothing at scale {study.scale.name}")
    return study.scale.tuning


def _tuned(arm: Arm, cell: Cell, values: Values) -> Arm:
    return replace(arm, settings={"optimizer": _with_values(cell, values)["optimizer"]})


def _with_values(cell: Cell, values: Values) -> dict[str, Any]:
    return {**cell.settings, "optimizer": {**cell.settings["optimizer"], **dict(values)}}


def _point_name(cell: Cell, values: Values) -> str:
    return f"{cell.name}, {describe_values(values)}"
