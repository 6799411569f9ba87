"""A study on a Ray cluster: every run is a Ray task; a lost node costs one retry.

The store must be on a file system that all nodes share. The run of a lost node goes to another node, which takes
over the stale lock and continues from the checkpoint.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradcent_lab import store
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.accelerator import Options
from gradcent_lab.run.progress import Progress, SilentProgress
from gradcent_lab.run.run_one import run_task
from gradcent_lab.store.pairs import check_pairs
from gradcent_lab.store.records import RunRecord

RETRIES = 3


def run_on_ray(
    tasks: Sequence[Task],
    root: Path | str,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    gpus: float | None = None,
    cpus: float = 1.0,
) -> list[RunRecord]:
    """Run tasks on the cluster of RAY_ADDRESS, or on one started here; return the records.

    `gpus` is a run's share of a GPU (0.25 puts four on one); None takes one where the cluster has GPUs.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("a Ray cluster needs Ray: pip install ray") from error

    started = not ray.is_initialized()
    if started:
        address = "auto" if os.environ.get("RAY_ADDRESS") else None
        ray.init(address=address, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    try:
        if gpus is None:
            gpus = 1.0 if ray.cluster_resources().get("GPU") else 0.0
        place, options, display = Path(root).resolve(), options or Options(), progress or SilentProgress()
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES)(_work)
        waiting = {remote.remote(task, place, options): task for task in tasks}
        records: dict[str, RunRecord] = {}
        failures: list[str] = []
        while waiting:
            ready, _ = ray.wait(list(waiting), num_returns=1)
            task = waiting.pop(ready[0])
            try:
                kind, content = ray.get(ready[0])
            except ray.exceptions.RayError as error:
                failures.append(f"{task.config.label}: {str(error).splitlines()[0]}")
                continue
            if kind == "busy":  # the lock is not stale yet: try again later
                waiting[remote.remote(task, place, options, 5.0)] = task
            elif kind == "failed":
                failures.append(content)
            else:
                records[task.config.run_id] = content
                (display.run_skipped if kind == "skipped" else display.run_finished)(content)
    finally:
        if started:
            ray.shutdown()
    found = [records[task.config.run_id] for task in tasks if task.config.run_id in records]
    check_pairs(found)
    if failures:
        raise UserError(f"{len(failures)} of {len(tasks)} runs failed, the rest is stored; {failures[0]}")
    return found


def _work(task: Task, root: Path, options: Options, delay: float = 0.0) -> tuple[str, Any]:
    """Run one task on a node; return errors instead of raising, so that Ray retries lost nodes only."""
    time.sleep(delay)
    skipped = store.is_finished(store.folder(root, task.config))
    try:
        record = run_task(task, root, options, SilentProgress())
    except UserError as error:
        return "failed", str(error)
    if record is None:
        return "busy", None
    return ("skipped" if skipped else "done"), record
