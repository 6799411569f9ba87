"""The training run of a detector from plain settings: what the detection recipes build.

The paper's framework: SGDM, learning rate 0.02 for 16 images per step and in proportion for other batches,
linear warm-up over the first steps, divided by 10 after two thirds and eleven twelfths of the epochs,
gradients clipped at norm 35 before they are centralized, images mirrored at random.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from gradcent_lab.detection import models
from gradcent_lab.detection.data import open_detection
from gradcent_lab.detection.examples import keep_examples
from gradcent_lab.detection.metrics import Evaluator
from gradcent_lab.experiment import optimizers
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.weights import weights_hash
from gradcent_lab.store.atomic_files import write_json

IMAGES_PER_STEP = 16  # the batch size that the learning rate is given for


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment that `settings` describe."""
    masks = bool(settings["model"].get("masks", False))
    train, test = open_detection(settings["data"], data, masks=masks)
    classes = len(test.truth["categories"])
    evaluator = Evaluator(test, masks)
    rate = settings["optimizer"]["lr"] * settings["batch_size"] / IMAGES_PER_STEP
    decay = settings["schedule"]

    def closing(model: nn.Module, folder: Path | None) -> None:
        examples = keep_examples(model, test, evaluator, settings.get("examples", 4))
        if folder is not None:
            bare = getattr(model, "module", model)
            counts = {"train": dict(train.counts), "test": dict(test.counts)}
            images = {"train": len(train), "test": len(test)}
            write_json(
                folder / "detection.json",
                {"images": images, "annotations": counts, "final_weights": weights_hash(bare)},
            )
            write_json(folder / "examples.json", examples)

    return Experiment(
        name=settings["name"],
        model=lambda: models.make(settings["model"], classes, data),
        train_data=train,
        eval_data=test,
        loss=total,
        metric=box_loss,
        metric_name=evaluator.names[0],
        metrics=evaluator.names,
        optimizer=optimizers.optimizer({**settings["optimizer"], "lr": rate}),
        parameters=models.trained,
        schedule=schedule(decay["milestones"], decay["warmup_steps"], decay["warmup_from"]),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        eval_batch_size=settings.get("eval_batch_size", 1),
        clip=settings.get("clip"),
        forward=with_targets,
        evaluate=evaluator,
        closing=closing,
        settings=settings,
    )


def with_targets(model: nn.Module, images: list[torch.Tensor], targets: list[dict[str, torch.Tensor]]) -> Any:
    """Call a detector in training, which returns its losses by name."""
    return model(images, targets)


def total(losses: Mapping[str, torch.Tensor], _: Any) -> torch.Tensor:
    """Return the sum of a detector's losses, each of weight 1."""
    return torch.stack(list(losses.values())).sum()


def box_loss(losses: Mapping[str, torch.Tensor], _: Any) -> torch.Tensor:
    """Return the box loss of the second stage, the training metric that is recorded."""
    return losses["loss_box_reg"].detach()


def schedule(
    milestones: list[int], warmup_steps: int, warmup_from: float
) -> Callable[[Optimizer, int], LRScheduler]:
    """Return linear warm-up from `warmup_from` times the rate, then a tenth after each milestone (epochs)."""

    def make(optimizer: Optimizer, steps_per_epoch: int) -> LRScheduler:
        def factor(step: int) -> float:
            done = min(1.0, step / warmup_steps) if warmup_steps else 1.0
            drops = sum(step >= milestone * steps_per_epoch for milestone in milestones)
            return float((warmup_from + (1 - warmup_from) * done) * 0.1**drops)

        return LambdaLR(optimizer, factor)

    return make
