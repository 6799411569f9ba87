"""One run from lock to result: take its lock, run it, store it; or skip it if finished or locked."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import RunConfig
from gradcent_lab.experiment.spec import Measurement
from gradcent_lab.experiment.study import Task
from gradcent_lab.names import check_label
from gradcent_lab.run.accelerator import Options, on_cpu
from gradcent_lab.run.progress import Progress, SilentProgress
from gradcent_lab.run.rank_agreement import RankAgreement
from gradcent_lab.run.run_clock import RunClock
from gradcent_lab.store import records as store
from gradcent_lab.store import run_lock
from gradcent_lab.store.atomic_files import make_folder, storage_errors, write_json
from gradcent_lab.store.records import RunRecord


def run_task(task: Task, root: Path, options: Options, progress: Progress) -> RunRecord | None:
    """Run `task` unless it is finished; return its record, or None while another process runs it."""
    path = store.folder(root, task.config)
    for text, what in (
        (task.config.cell, "cell"),
        (task.config.arm.name, "arm"),
        (task.config.scale, "scale"),
    ):
        check_label(text, f"the name of the {what}")
    launch = _launch(options)
    with storage_errors(path), contextlib.ExitStack() as stack:
        lock: run_lock.Lock | str | None = None
        with launch.agreement.block():
            if launch.is_first:
                lock = stack.enter_context(_claim(path, task.config))
        state = launch.broadcast(lock if isinstance(lock, str) else "run")
        if state == "busy":
            return None
        if state == "finished":
            with launch.agreement.block():
                record = store.load_run(path)
            if launch.is_first:
                progress.run_skipped(record)
            return record
        try:
            with launch.agreement.block():
                _run(task, path, options, progress if launch.is_first else SilentProgress(), lock)
        except run_lock.LostLock:
            return None
        except UserError as error:
            if launch.is_first:
                with contextlib.suppress(UserError):  # the disk may be full, which is what `error` says
                    write_json(path / "failed.json", {"error": str(error), "kind": type(error).__name__})
            raise
        with launch.agreement.block():
            return store.load_run(path)


def _run(task: Task, path: Path, options: Options, progress: Progress, lock: Any) -> None:
    config = task.config
    check = lock.check if lock is not None else (lambda: None)
    progress.run_started(config)
    clock = RunClock()
    made = task.make()
    check_label(made.metric_name, "the metric's name")
    if isinstance(made, Measurement):
        began = time.monotonic()
        headline, curves = made.measure(config.seed, config.arm)
        result = {
            "best": headline,
            "best_epoch": 0,
            "last": headline,
            **(
                {}
                if math.isfinite(headline)
                else {"diverged": f"{config.label}: {made.metric_name} became {headline}"}
            ),
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
            clock=clock,
            epoch_done=lambda metrics: progress.epoch_done(config, metrics),
            before_write=check,
        )
    if lock is not None:
        check()
        store.finish(path, {**result, **clock.result()}, curves)
        run_lock.clear(path)
        progress.run_finished(store.load_run(path))


@contextlib.contextmanager
def _claim(path: Path, config: RunConfig) -> Iterator[run_lock.Lock | str]:
    """Yield the lock with the run's folder ready, or why it is not to be run: "finished" or "busy"."""
    if store.is_finished(path):
        store.sweep(path)
        yield "finished"
        return
    make_folder(path)
    with run_lock.held(path) as lock:
        if store.is_finished(path):  # it was finished between the two checks
            run_lock.clear(path)
            yield "finished"
        elif lock is None:
            yield "busy"
        else:
            (path / "failed.json").unlink(missing_ok=True)
            store.begin(path, config)
            yield lock


@dataclass(frozen=True)
class _Launch:
    """The processes that share a run: whether this is the first, and how they exchange words and failures."""

    is_first: bool
    broadcast: Callable[[str], str]
    agreement: RankAgreement


def _launch(options: Options) -> _Launch:
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return _Launch(True, lambda word: word, RankAgreement(1, 0))
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    state = PartialState(cpu=on_cpu(options))
    agreement = RankAgreement(state.num_processes, state.process_index)
    return _Launch(state.is_main_process, lambda word: str(broadcast_object_list([word])[0]), agreement)
