"""Image classification from plain settings: what most recipes run.

The settings (data, network, optimizer, schedule) are JSON values; here they become an `Experiment`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from gradcent_lab import models
from gradcent_lab.data import open_set
from gradcent_lab.data.held_out import hold_out
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.spec import Experiment


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment that `settings` describe."""
    train, evaluation, classes = open_set(settings["data"], data)
    error = settings.get("metric", "accuracy") == "error"
    experiment = Experiment(
        name=settings["name"],
        model=lambda: models.make(settings["model"], classes, data),
        train_data=train,
        eval_data=evaluation,
        loss=functional.cross_entropy,
        metric=wrong if error else correct,
        metric_name="top-1 error, %" if error else "accuracy, %",
        higher_is_better=not error,
        optimizer=optimizers.optimizer(settings["optimizer"]),
        parameters=optimizers.groups(settings["optimizer"]),
        schedule=_schedule(settings),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        eval_batch_size=settings.get("eval_batch_size"),
        drop_last=settings.get("drop_last", True),
        eval_drop_last=settings.get("eval_drop_last", False),
        settings=settings,
    )
    share = settings.get("held_out")  # a tuning run: evaluated on training images that it does not train on
    return experiment if share is None else hold_out(experiment, share)


def _schedule(settings: Mapping[str, Any]) -> Callable[[Optimizer, int], LRScheduler]:
    chosen = settings["schedule"]
    if "warmup" in chosen:
        return optimizers.warmup_cosine(settings["epochs"], chosen["warmup"])
    return optimizers.schedule(chosen["milestones"], chosen.get("factor", 0.1))


def correct(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Whether the largest logit is the label's, per image."""
    return output.argmax(1) == target


def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Whether it is not, per image."""
    return output.argmax(1) != target
