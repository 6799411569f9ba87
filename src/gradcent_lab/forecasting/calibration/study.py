"""The calibration of one task: tune every arm, compare on fresh seeds, read the forecast.

The protocol is fixed here. Every arm is trained with the tuning seeds at every learning rate of the optimizer's grid;
an arm uses the rate with its lowest mean training loss. While an arm's best rate is the lowest or the highest, all
arms try one more rate beyond it. The comparison and the forecast use other seeds.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

import gradcent
from gradcent_lab.forecasting.calibration import training
from gradcent_lab.forecasting.calibration.datasets import Split
from gradcent_lab.forecasting.calibration.tasks import Task
from gradcent_lab.forecasting.curvature import curvature_ratio
from gradcent_lab.forecasting.gradient_share import GradientShare
from gradcent_lab.forecasting.target_mean import explained_by_input_mean

TUNING_SEEDS = (1001, 1002)
FRESH_SEEDS = tuple(range(8))
FORECAST_SEEDS = (2001, 2002, 2003)
FORECAST_STEPS = 60
MOST_EXTENSIONS = 3  # learning rates added beyond the grid

Row = dict[str, Any]


def run_task(task: Task, fresh_seeds: Iterable[int] = FRESH_SEEDS) -> list[Row]:
    """Run all of a task and return one row per run, then one row per forecast."""
    split = task.load_data()
    rows = tune(task, split)
    for seed in fresh_seeds:
        for arm in training.ARMS:
            run = training.train(task, split, arm, best_lr(rows, arm), seed)
            rows.append({"phase": "compare", **run.as_row()})
    for seed in FORECAST_SEEDS:
        rows.append(
            {"phase": "forecast", "seed": seed, **forecast_row(task, split, best_lr(rows, "off"), seed)}
        )
    return rows


def tune(task: Task, split: Split) -> list[Row]:
    """Train every arm at the same learning rates and return the rows; see the module's docstring."""
    rows: list[Row] = []
    rates = list(task.learning_rates)
    untried = list(rates)
    for extensions in range(MOST_EXTENSIONS + 1):
        for arm in training.ARMS:
            for lr in untried:
                for seed in TUNING_SEEDS:
                    rows.append({"phase": "tune", **training.train(task, split, arm, lr, seed).as_row()})
        best = {best_lr(rows, arm) for arm in training.ARMS}
        if max(best) == max(rates):
            untried = [_next_rate(max(rates), up=True)]
        elif min(best) == min(rates):
            untried = [_next_rate(min(rates), up=False)]
        else:
            break
        if extensions < MOST_EXTENSIONS:
            rates += untried
    return rows


def _next_rate(rate: float, *, up: bool) -> float:
    """Return the neighbour of a rate in the series 0.1, 0.3, 1, 3, …."""
    digit, power = f"{rate:.0e}".split("e")
    if up:
        return float(f"3e{power}") if digit == "1" else float(f"1e{int(power) + 1}")
    return float(f"1e{power}") if digit == "3" else float(f"3e{int(power) - 1}")


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
    ratio = _curvature(task, split, model, seed)
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
        "curvature": ratio,
        "layers": {name: round(share.layer(name)[0], 4) for name in share.layers},
    }


def _curvature(task: Task, split: Split, model: nn.Module, seed: int) -> float | None:
    """Return λmax(H)/λmax(PHP) of the first batch at initialization, or None where it cannot be computed."""
    inputs, targets = next(training.batches(split, task.batch, 1, seed))
    plan = gradcent.explain(model, example=inputs[:16])
    state = copy.deepcopy(model.state_dict())
    try:
        ratio = curvature_ratio(lambda: training.loss_of(split)(model(inputs), targets), plan)
    except RuntimeError:
        return None
    finally:
        model.load_state_dict(state)  # BatchNorm counted the batch
    return float(f"{ratio:.4g}")
