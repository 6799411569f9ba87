"""Run a study: every run once, in this process or in several, waiting for runs that other processes hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import Arm, Numerics, RunConfig
from gradcent_lab.experiment.spec import Experiment, describe
from gradcent_lab.experiment.study import Study, Task, tasks_of
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.process_pool import run_in_workers
from gradcent_lab.run.progress import Progress, SilentProgress
from gradcent_lab.run.run_one import run_task
from gradcent_lab.store.pairs import check_pairs
from gradcent_lab.store.records import RunRecord

POLL_SECONDS = 1.0  # between checks of a run that another process holds


def shard(tasks: Sequence[Task], part: int, parts: int) -> list[Task]:
    """Return part `part` of `parts` (from 1) in the order of the tasks; the runs of a pair stay in one part."""
    if not 1 <= part <= parts:
        raise UserError(f"shard {part}/{parts}: the first number must lie between 1 and the second")
    pairs = list(dict.fromkeys(map(_pair, tasks)))
    chosen = set(pairs[part - 1 :: parts])
    return [task for task in tasks if _pair(task) in chosen]


def _pair(task: Task) -> tuple[int, str]:
    return task.config.seed, task.config.cell


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
    """Run the missing runs of a study and return all its records (those of one part, for a job array)."""
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
    make: Callable[[], Experiment] = partial(_return, made)
    if workers > 1 and not isinstance(experiment, Experiment):
        make = experiment
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
    """Run every task once, waiting for those that other processes run; return the records in order.

    `keep_going` finishes the others when a run fails and raises at the end.
    """
    root, options, display = Path(root), options or Options(), progress or SilentProgress()
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
            run_in_workers(list(waiting), root, options, display, workers, done, failed)
        else:
            for task in list(waiting):
                try:
                    done(task, run_task(task, root, options, display))
                except UserError as error:
                    failed(task, error)
        if waiting and len(waiting) == before:
            time.sleep(POLL_SECONDS)
    found = [records[task.config.run_id] for task in tasks if task.config.run_id in records]
    check_pairs(found)
    if failures:
        whole = len(failures) == len(tasks)
        count = f"{'all ' if whole else ''}{len(failures)}{'' if whole else f' of {len(tasks)}'} runs failed"
        raise UserError(f"{count}{': ' if whole else ', the rest is stored; '}{failures[0]}")
    return found


def _return(experiment: Experiment) -> Experiment:
    return experiment
