"""The arms of a user's comparison, each with the experiment it runs, and the tasks for any seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradcent_lab.experiment.run_config import Arm, RunConfig
from gradcent_lab.experiment.spec import Experiment, describe
from gradcent_lab.experiment.study import Task


@dataclass(frozen=True)
class PlannedArm:
    """An arm, its experiment, and a function that other processes call to build the experiment."""

    arm: Arm
    experiment: Experiment
    make: Callable[[], Experiment] | None = None

    def tuned(
        self, experiment: Experiment, make: Callable[[], Experiment] | None, values: dict[str, float]
    ) -> PlannedArm:
        """Return the arm with hyper-parameters of its own; they belong to the arm, not to the cell."""
        settings: dict[str, Any] = {"tuned": values}
        described = describe(experiment)
        if "optimizer_groups" in described:
            settings["optimizer_groups"] = described["optimizer_groups"]
        return PlannedArm(replace(self.arm, settings=settings), experiment, make)


def tasks_for(
    arms: Sequence[PlannedArm],
    seeds: Iterable[int],
    *,
    study: str | None = None,
    cell: str | None = None,
    share: bool = False,
) -> list[Task]:
    """Return the runs of all arms for the seeds, pair by pair; `share` lets other processes build them."""
    described = [describe(planned.experiment) for planned in arms]
    tasks = []
    for seed in seeds:
        for planned, settings in zip(arms, described, strict=True):
            name = study or planned.experiment.name
            full = {**settings, **(planned.arm.settings or {})}
            config = RunConfig(name, cell or planned.experiment.name, planned.arm, seed, "own", full)
            make = planned.make if share and planned.make is not None else partial(_given, planned.experiment)
            tasks.append(Task(config, make))
    return tasks


def _given(experiment: Experiment) -> Experiment:
    return experiment
