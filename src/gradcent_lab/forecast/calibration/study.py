"""The calibration of one task: tune every arm on its own seeds, compare on fresh seeds, read the forecast.

The protocol is fixed here. Each arm is trained at every learning rate of the optimizer's grid with the tuning seeds;
the rate with the lowest mean training loss is the arm's own. The comparison and the forecast use other seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

import gradcent
from gradcent_lab.forecast.calibration import training
from gradcent_lab.forecast.calibration.datasets import Split
from gradcent_lab.forecast.calibration.tasks import Task
from gradcent_lab.forecast.gradient_share import GradientShare
from gradcent_lab.forecast.target_mean import explained_by_input_mean

TUNING_SEEDS = (1001, 1002)
FRESH_SEEDS = tuple(range(8))
FORECAST_SEEDS = (2001, 2002, 2003)
FORECAST_STEPS = 60

Row = dict[str, Any]


def run_task(task: Task, fresh_seeds: Iterable[int] = FRESH_SEEDS) -> list[Row]:
    """Run all of a task and return one row per run, then one row per forecast."""
    split = task.load_data()
    rows: list[Row] = []
    for arm in training.ARMS:
        for lr in task.learning_rates:
            for seed in TUNING_SEEDS:
                rows.append({"phase": "tune", **training.train(task, split, arm, lr, seed).as_row()})
    for seed in fresh_seeds:
        for arm in training.ARMS:
            run = training.train(task, split, arm, best_lr(rows, arm), seed)
            rows.append({"phase": "compare", **run.as_row()})
    for seed in FORECAST_SEEDS:
        rows.append(
            {"phase": "forecast", "seed": seed, **forecast_row(task, split, best_lr(rows, "off"), seed)}
        )
    return rows


def best_lr(rows: Iterable[Row], arm: str) -> float:
    """Return the learning rate with the lowest mean training loss over the tuning seeds."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        if row["phase"] == "tune" and row["arm"] == arm:
            losses.setdefault(row["lr"], []).append(float("inf") if row["diverged"] else row["train_loss"])
    return min(losses, key=lambda lr: sum(losses[lr]) / len(losses[lr]))


def forecast_row(task: Task, split: Split, lr: float, seed: int) -> Row:
    """Train without GC for the first steps and return what the forecast reads."""
    torch.manual_seed(seed)
    model = task.build_model()
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
