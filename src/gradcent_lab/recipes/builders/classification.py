"""Image classification from plain settings: what most recipes run.

The settings (data, network, optimizer, schedule) are JSON values; here they become an `Experiment`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from gradcent_lab import models
from gradcent_lab.data import open_set
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.spec import Experiment


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment that `settings` describe."""
    train, evaluation, classes = open_set(settings["data"], data)
    error = settings.get("metric", "accuracy") == "error"
    decay = settings["schedule"]
    return Experiment(
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
        schedule=optimizers.schedule(decay["milestones"], decay.get("factor", 0.1)),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        eval_batch_size=settings.get("eval_batch_size"),
        drop_last=settings.get("drop_last", True),
        eval_drop_last=settings.get("eval_drop_last", False),
        settings=settings,
    )


def correct(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Whether the largest logit is the label's, per image."""
    return output.argmax(1) == target


def wrong(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Whether it is not, per image."""
    return output.argmax(1) != target
