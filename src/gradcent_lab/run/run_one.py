"""One run from claim to result: take its lock, run it, store it; or find it finished, or in other hands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import RunConfig
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Task
from gradcent_lab.run.accelerator import Options, on_cpu
from gradcent_lab.run.progress import Progress, SilentProgress
from gradcent_lab.store import records as store
from gradcent_lab.store import run_lock as locks
from gradcent_lab.store.atomic_files import make_folder, write_json
from gradcent_lab.store.records import RunRecord


def run_task(task: Task, root: Path, options: Options, progress: Progress) -> RunRecord | None:
    """Run `task` unless it is finished; return its record, or None while another process is at it."""
    path = store.folder(root, task.config)
    first, spread = _processes(options)
    with contextlib.ExitStack() as stack:
        lock = stack.enter_context(_claim(path, task.config)) if first else None
        state = spread(lock if isinstance(lock, str) else "run")
        if state == "busy":
            return None
        if state == "finished":
            record = store.load_run(path)
            if first:
                progress.run_skipped(record)
            return record
        try:
            _run(task, path, options, progress if first else SilentProgress(), lock)
        except locks.LostLock:
            return None
        except UserError as error:
            if first:
                with contextlib.suppress(UserError):  # the disk may be full, which is what `error` says
                    write_json(path / "failed.json", {"error": str(error), "kind": type(error).__name__})
            raise
        spread("written")
        return store.load_run(path)


def _run(task: Task, path: Path, options: Options, progress: Progress, lock: Any) -> None:
    config = task.config
    check = lock.check if lock is not None else (lambda: None)
    progress.run_started(config)
    made = task.make()
    if isinstance(made, Measurement):
        began = time.monotonic()
        headline, curves = made.measure(config.seed, config.arm)
        result = {
            "best": headline,
            "best_epoch": 0,
            "last": headline,
            "metric_name": made.metric_name,
            "higher_is_better": made.higher_is_better,
            "initial_weights": "",
            "seconds": round(time.monotonic() - began, 3),
        }
    else:
        from gradcent_lab.run.trainer import train

        result, curves = train(
            made,
            config,
            path,
            options=options,
            epoch_done=lambda metrics: progress.epoch_done(config, metrics),
            before_write=check,
        )
    if lock is not None:
        check()
        store.finish(path, result, curves)
        locks.clear(path)
        progress.run_finished(store.load_run(path))


@contextlib.contextmanager
def _claim(path: Path, config: RunConfig) -> Iterator[locks.Lock | str]:
    """Give the lock with the run's folder ready, or the word for why it is not to be run."""
    if store.is_finished(path):
        yield "finished"
        return
    make_folder(path)
    with locks.held(path) as lock:
        if store.is_finished(path):  # it ended between the two looks
            locks.clear(path)
            yield "finished"
        elif lock is None:
            yield "busy"
        else:
            (path / "failed.json").unlink(missing_ok=True)
            store.begin(path, config)
            yield lock


def _processes(options: Options) -> tuple[bool, Callable[[str], str]]:
    """Whether this is the first process of a launch, and a function that spreads its word to the others."""
    import os

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True, lambda word: word
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    state = PartialState(cpu=on_cpu(options))
    return state.is_main_process, lambda word: str(broadcast_object_list([word])[0])
