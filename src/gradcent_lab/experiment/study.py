"""Many runs: the cells, arms and seeds of a study, each run once, on one process or several.

The arms of a seed are a pair: they begin with the same weights (compared by hash) and see the same batches
with the same augmentation, so their difference is due to centralization alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Arm, Numerics, RunConfig
from gradcent_lab.experiment.spec import Experiment, Measurement, describe
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.run_one import Silent, Task, run_task
from gradcent_lab.store.records import RunRecord

SAME = "the same at every scale"  # in the words of a scale that changes nothing
POLL = 1.0  # seconds between looks at a run that another process holds


class Progress(Protocol):
    """What is told while a study runs; the display implements it."""

    def run_started(self, config: RunConfig) -> None:
        """A run begins, or goes on from its checkpoint."""

    def epoch_done(self, config: RunConfig, metrics: Mapping[str, Any]) -> None:
        """An epoch ended; `metrics` is its line of metrics.jsonl."""

    def run_finished(self, record: RunRecord) -> None:
        """A run ended."""

    def run_skipped(self, record: RunRecord) -> None:
        """A run was found finished in the store."""


@dataclass(frozen=True)
class Scale:
    """How far a study is from the paper's, in words that are printed on every table and figure."""

    name: str
    words: str


@dataclass(frozen=True)
class Cell:
    """One row or column of a table: a name and the settings of its experiment."""

    name: str
    settings: Mapping[str, Any]
    arms: tuple[Arm, ...] | None = None  # where they are not the study's


@dataclass(frozen=True)
class Study:
    """A recipe at one scale: every cell with every arm for every seed."""

    name: str
    title: str
    scale: Scale
    cells: tuple[Cell, ...]
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    build: Callable[[Mapping[str, Any], Path | None], Experiment | Measurement]  # (settings, data folder)
    numerics: Numerics = field(default_factory=Numerics)
    notes: tuple[str, ...] = ()  # which side was taken where the paper and the released code disagree
    metric: str = "accuracy, %"  # what the live display shows after every epoch


def tasks_of(study: Study, data: Path | None) -> list[Task]:
    """Return a study's runs, seed by seed, so that an unfinished study has whole pairs."""
    tasks = []
    for seed in study.seeds:
        for cell in study.cells:
            for arm in cell.arms or study.arms:
                settings = {**cell.settings, **(arm.settings or {})}
                config = RunConfig(
                    study.name, cell.name, arm, seed, study.scale.name, settings, study.numerics
                )
                tasks.append(Task(config, partial(study.build, settings, data)))
    return tasks


def shard(tasks: Sequence[Task], part: int, parts: int) -> list[Task]:
    """Return part `part` of `parts` (from 1): whole pairs stay together."""
    if not 1 <= part <= parts:
        raise UserError(f"shard {part}/{parts}: the first number must lie between 1 and the second")
    pairs: dict[tuple[int, str], list[Task]] = {}
    for task in tasks:
        pairs.setdefault((task.config.seed, task.config.cell), []).append(task)
    return [task for pair in list(pairs.values())[part - 1 :: parts] for task in pair]


def run_study(
    study: Study,
    root: Path | str,
    *,
    data: Path | None = None,
    part: tuple[int, int] = (1, 1),
    progress: Progress | None = None,
    workers: int = 1,
    options: Options | None = None,
    keep_going: bool = True,
) -> list[RunRecord]:
    """Run what a study lacks and return all its records (those of one part, for a job array)."""
    return run_tasks(
        shard(tasks_of(study, data), *part),
        root,
        progress=progress,
        workers=workers,
        options=options,
        keep_going=keep_going,
    )


def run_pairs(
    experiment: Experiment | Callable[[], Experiment],
    arms: Sequence[Arm],
    seeds: Sequence[int],
    root: Path | str,
    *,
    cell: str | None = None,
    scale: str = "own",
    progress: Progress | None = None,
    workers: int = 1,
    numerics: Numerics | None = None,
    options: Options | None = None,
) -> list[RunRecord]:
    """Run every arm for every seed of one experiment and return the records.

    With `workers` > 1 pass a function that other processes can import instead of the experiment itself.
    """
    made = experiment if isinstance(experiment, Experiment) else experiment()
    if not isinstance(made, Experiment):
        raise UserError(f"expected an Experiment, got {type(made).__name__}")
    share = workers > 1 and not isinstance(experiment, Experiment)
    make = experiment if share else partial(_given, made)
    settings = describe(made)
    tasks = [
        Task(
            RunConfig(made.name, cell or made.name, arm, seed, scale, settings, numerics or Numerics()), make
        )
        for seed in seeds
        for arm in arms
    ]
    return run_tasks(tasks, root, progress=progress, workers=workers, options=options)


def run_tasks(
    tasks: Sequence[Task],
    root: Path | str,
    *,
    progress: Progress | None = None,
    workers: int = 1,
    options: Options | None = None,
    keep_going: bool = False,
) -> list[RunRecord]:
    """Run tasks, each once, waiting for those that other processes are at; return records in their order.

    `keep_going` finishes the others when a run fails, and tells at the end.
    """
    root, options, display = Path(root), options or Options(), progress or Silent()
    records: dict[str, RunRecord] = {}
    failures: list[UserError] = []
    waiting = list(tasks)

    def done(task: Task, record: RunRecord | None) -> None:
        if record is not None:
            records[task.config.run_id] = record
            waiting.remove(task)

    def failed(task: Task, error: UserError) -> None:
        if not keep_going:
            raise error
        failures.append(error)
        waiting.remove(task)

    while waiting:
        before = len(waiting)
        if workers > 1 and before > 1:
            from gradcent_lab.run.process_pool import run_in_workers

            run_in_workers(list(waiting), root, options, display, workers, done, failed)
        else:
            for task in list(waiting):
                try:
                    done(task, run_task(task, root, options, display))
                except UserError as error:
                    failed(task, error)
        if waiting and len(waiting) == before:
            time.sleep(POLL)
    found = [records[task.config.run_id] for task in tasks if task.config.run_id in records]
    check_pairs(found)
    if failures:
        whole = len(failures) == len(tasks)
        count = f"{'all ' if whole else ''}{len(failures)}{'' if whole else f' of {len(tasks)}'} runs failed"
        raise UserError(f"{count}{': ' if whole else ', the rest is stored; '}{failures[0]}")
    return found


def check_pairs(records: Sequence[RunRecord]) -> None:
    """Raise unless the arms of every seed began from the same weights."""
    seen: dict[tuple[str, str, str, int], RunRecord] = {}
    for record in records:
        other = seen.setdefault((record.study, record.scale, record.cell, record.seed), record)
        if other.initial_weights != record.initial_weights:
            raise UserError(
                f"{record.study} {record.cell} seed {record.seed}: the arms {other.arm} and {record.arm} "
                "began from different weights: the model must be built from torch's generator alone"
            )


def _given(experiment: Experiment) -> Experiment:
    return experiment
