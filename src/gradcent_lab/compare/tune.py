"""Tune both arms on the same grid, seeds and held-out training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from gradcent_lab.analysis.tuning import TunedArm, Values, describe_values, grid_points, tuned_arms
from gradcent_lab.compare.arms import PlannedArm, tasks_for
from gradcent_lab.data.held_out import hold_out
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import Progress
from gradcent_lab.run.scheduler import run_tasks

FIRST_SEED = 10_000  # tuning seeds; the comparison counts from 0, so it never sees one of them


def tune(
    arms: Sequence[PlannedArm],
    grid: Mapping[str, Sequence[float]],
    build: Callable[[Values], Experiment],
    root: Path,
    *,
    seeds: int,
    workers: int = 1,
    progress: Progress | None = None,
    options: Options | None = None,
) -> list[TunedArm]:
    """Run every arm at every grid point and return their held-out results.

    `build` returns the user's experiment with the values of a grid point; other processes can call it.
    """
    points = grid_points(grid)
    check_schedule(build, grid)
    tasks, owners = [], []
    for values in points:
        make = partial(held_out_experiment, build, values)
        experiment = make()
        for planned in arms:
            tuned = PlannedArm(replace(planned.arm, settings={"tuned": dict(values)}), experiment, make)
            cell = describe_values(values)
            study = f"{experiment.name}-tuning"
            chosen = range(FIRST_SEED, FIRST_SEED + seeds)
            own = tasks_for([tuned], chosen, study=study, cell=cell, share=workers > 1)
            tasks += own
            owners += [(planned.arm.name, values)] * len(own)
    records = run_tasks(tasks, root, progress=progress, workers=workers, options=options)
    runs = [(arm, values, record) for (arm, values), record in zip(owners, records, strict=True)]
    return tuned_arms([planned.arm.name for planned in arms], points, runs)


def held_out_experiment(build: Callable[[Values], Experiment], values: Values) -> Experiment:
    """Build the experiment of a grid point on held-out training data; importable by other processes."""
    return hold_out(build(values))


def check_schedule(build: Callable[[Values], Experiment], grid: Mapping[str, Sequence[float]]) -> None:
    """Refuse to tune a learning rate that the schedule replaces by its own, which would compare equal runs."""
    rates = grid.get("lr", ())
    if len(rates) < 2:
        return
    states = []
    for rate in rates[:2]:
        experiment = build(
            (("lr", rate), *((name, values[0]) for name, values in grid.items() if name != "lr"))
        )
        with torch.random.fork_rng(devices=[]):
            model = experiment.model()
            params = experiment.parameters(model) if experiment.parameters else model.parameters()
            optimizer = experiment.optimizer(params)
        if experiment.schedule is None:
            return
        experiment.schedule(optimizer, 10)
        keys = ("lr", "initial_lr", "max_lr")
        states.append([tuple(group.get(key) for key in keys) for group in optimizer.param_groups])
    if states[0] == states[1]:
        raise UserError(
            "--tune lr: Experiment.schedule sets the learning rate itself, so every value would give the same run: "
            "let it read optimizer.param_groups[0]['lr']"
        )
