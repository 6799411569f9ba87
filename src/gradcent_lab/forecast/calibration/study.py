"""Run the calibration: tune every arm of every task on its own seeds, then compare on fresh seeds; resumable.

The protocol is fixed here. Each arm of a task is trained at every learning rate of the optimizer's grid with
the tuning seeds; the rate with the lowest mean training loss is the arm's own. The comparison and the forecast
use other seeds. One JSON line per run in `<out>/<task>.jsonl`; finished lines are not run again.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

import gradcent
from gradcent_lab.errors import UserError
from gradcent_lab.forecast.calibration import training
from gradcent_lab.forecast.calibration.datasets import Split
from gradcent_lab.forecast.calibration.tasks import Task, all_tasks
from gradcent_lab.forecast.gradient_share import GradientShare
from gradcent_lab.forecast.target_mean import explained_by_input_mean

TUNING_SEEDS = (1001, 1002)
FRESH_SEEDS = tuple(range(8))
FORECAST_SEEDS = (2001, 2002, 2003)
FORECAST_STEPS = 60

Row = dict[str, Any]


def file_name(task: Task) -> str:
    """Return the file of a task's lines."""
    return re.sub(r"[^a-z0-9]+", "-", task.name.lower()).strip("-") + ".jsonl"


def read_rows(path: Path) -> list[Row]:
    """Return the finished lines; a line cut short by a kill is dropped and run again."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def run_task(task: Task, out: Path, deadline: float = math.inf) -> bool:
    """Run what is missing of a task; return whether it is complete."""
    torch.set_num_threads(1)
    path = out / file_name(task)
    rows = read_rows(path)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))  # without a line that was cut short
    split = task.data()
    with path.open("a") as file:

        def add(row: Row) -> None:
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()

        for arm in training.ARMS:
            for lr in task.learning_rates:
                for seed in TUNING_SEEDS:
                    if time.monotonic() > deadline:
                        return False
                    _run_once(task, split, arm, lr, seed, "tune", rows, add)
        for seed in FRESH_SEEDS:
            for arm in training.ARMS:
                if time.monotonic() > deadline:
                    return False
                _run_once(task, split, arm, best_lr(rows, arm), seed, "compare", rows, add)
        for seed in FORECAST_SEEDS:
            if not any(row["phase"] == "forecast" and row["seed"] == seed for row in rows):
                add(
                    {
                        "phase": "forecast",
                        "seed": seed,
                        **forecast_row(task, split, best_lr(rows, "off"), seed),
                    }
                )
    return True


def _run_once(
    task: Task,
    split: Split,
    arm: training.Arm,
    lr: float,
    seed: int,
    phase: str,
    rows: Sequence[Row],
    add: Callable[[Row], None],
) -> None:
    key = (phase, arm, lr, seed)
    if not any((row["phase"], row.get("arm"), row.get("lr"), row["seed"]) == key for row in rows):
        add({"phase": phase, **training.train(task, split, arm, lr, seed).as_row()})


def best_lr(rows: Iterable[Row], arm: str) -> float:
    """Return the learning rate with the lowest mean training loss over the tuning seeds."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        if row["phase"] == "tune" and row["arm"] == arm:
            losses.setdefault(row["lr"], []).append(row["train_loss"])
    return min(losses, key=lambda lr: sum(losses[lr]) / len(losses[lr]))


def forecast_row(task: Task, split: Split, lr: float, seed: int) -> Row:
    """Train without GC for the first steps and return what the forecast reads."""
    torch.manual_seed(seed)
    model = task.model()
    example = split.train_inputs[: min(task.batch, 16)]
    monitor = gradcent.Monitor(model, every=1, plan=gradcent.explain(model, example=example))
    optimizers = training.build_optimizers(task, model, lr)
    loss_function = training.loss_of(split)
    share = GradientShare()
    for inputs, targets in training.batches(split, task.batch, FORECAST_STEPS, seed):
        model.zero_grad()
        loss_function(model(inputs), targets).backward()
        share.add(monitor.update())
        for optimizer in optimizers:
            optimizer.step()
    explained = explained_by_input_mean(split.train_inputs, split.train_targets)
    return {
        "lr": lr,
        "removed": round(share.mean, 4),
        "explained": None if explained is None else round(explained, 4),
        "layers": {name: round(share.layer(name)[0], 4) for name in share.layers},
    }


def run_all(out: Path, *, names: Sequence[str] = (), workers: int = 2, minutes: float = math.inf) -> int:
    """Run every task that contains one of `names` (all without names); return how many are complete."""
    tasks = [task for task in all_tasks() if not names or any(name in task.name for name in names)]
    if not tasks:
        raise UserError(f"no calibration task contains {' or '.join(map(repr, names))}")
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * minutes
    if workers == 1:
        return sum(run_task(task, out, deadline) for task in tasks)
    # Tasks hold functions that do not pickle; workers find them by their index.
    context = multiprocessing.get_context("spawn")
    wanted = {task.name for task in tasks}
    numbers = [index for index, task in enumerate(all_tasks()) if task.name in wanted]
    with context.Pool(workers) as pool:
        return sum(
            pool.starmap(_run_number, [(number, out, 60 * minutes) for number in numbers], chunksize=1)
        )


def _run_number(number: int, out: Path, seconds: float) -> bool:
    return run_task(all_tasks()[number], out, time.monotonic() + seconds)
