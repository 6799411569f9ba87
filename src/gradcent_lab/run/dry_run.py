"""One batch of a user's experiment before the first run: what is wrong is found in a second and said in one line.

Nothing of it reaches the runs: every random generator is put back, and the runs build their own models.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gradcent_lab.data import random_streams as seeds
from gradcent_lab.data.batches import Batch, Feed
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import described, one_line
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.weights import weights_hash


def rehearse(experiment: Experiment, spec: str) -> list[str]:
    """Build the model twice, train on one batch, evaluate one; raise on the first thing that cannot be.

    Return warnings about what can be but is probably not meant.
    """
    with seeds.seeded(0, "rehearsal"):
        model = _same_twice(experiment, spec)
        _check_step(experiment, model, spec)
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        model = model.to(device or "cpu")
        batch = _batch(experiment, True, spec)
        loss, output, targets = _forward(experiment, model.train(), batch, spec)
        _check_loss(loss, spec)
        _named(spec, "the gradient of the loss", loss.backward)
        with torch.no_grad():
            _check_metric(experiment, output, targets, spec)
            batch = _batch(experiment, False, spec)
            if experiment.evaluate is None:
                loss, output, targets = _forward(experiment, model.eval(), batch, spec)
                _check_metric(experiment, output, targets, spec)
                return _metric_warnings(experiment, output, targets)
    return []


def _metric_warnings(experiment: Experiment, output: Any, targets: Any) -> list[str]:
    """Warn about fractions that are announced as percentages."""
    value = experiment.metric(output, targets)
    if "%" not in experiment.metric_name or not value.is_floating_point() or not value.numel():
        return []
    if not bool((value >= 0).all()) or not bool((value <= 1).all()) or not bool((value > 0).any()):
        return []
    return [
        f"metric_name is {experiment.metric_name!r}, but metric returns fractions between 0 and 1, which are shown as "
        "they are: return booleans (counted as 0 or 100), or multiply by 100"
    ]


def _same_twice(experiment: Experiment, spec: str) -> nn.Module:
    """Return the model, once two of them built from one seed turned out equal."""
    models = []
    for _ in range(2):
        seeds.seed_everything(0, "weights")
        models.append(_named(spec, "Experiment.model", experiment.model))
    if models[0] is models[1]:
        raise UserError(
            f"{spec}: Experiment.model returns the same object twice, so a second run would start from trained "
            "weights: build the model inside the function"
        )
    if weights_hash(models[0]) != weights_hash(models[1]):
        raise UserError(
            f"{spec}: two models built from the same seed differ, so no two runs would be a pair: take random "
            "numbers from torch's, numpy's or Python's global generators, which are seeded for every run"
        )
    made: nn.Module = models[1]
    return made


def _check_step(experiment: Experiment, model: nn.Module, spec: str) -> None:
    params = experiment.parameters(model) if experiment.parameters else model.parameters()
    optimizer = _named(spec, "Experiment.optimizer", lambda: experiment.optimizer(params))
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UserError(
            f"{spec}: {type(optimizer).__name__} evaluates the loss several times a step, which the lab's loop does "
            "not: choose another with --optimizer"
        )


def _batch(experiment: Experiment, train: bool, spec: str) -> Batch:
    data = experiment.train_data if train else experiment.eval_data
    size = experiment.batch_size if train else experiment.eval_batch_size or experiment.batch_size
    drop = experiment.drop_last if train else experiment.eval_drop_last
    what = f"Experiment.{'train' if train else 'eval'}_data"

    def first() -> Batch | None:
        return next(iter(Feed(data, size, seed=0, train=train, drop_last=drop).epoch(0)), None)

    batch = _named(spec, what, first)
    if batch is None:
        raise UserError(f"{spec}: {what} has no batches")
    made: Batch = batch
    return made


def _forward(experiment: Experiment, model: nn.Module, batch: Batch, spec: str) -> tuple[Any, Any, Any]:
    from accelerate.utils import send_to_device

    device = next(model.parameters()).device
    inputs, targets = (send_to_device(part, device) for part in (batch.inputs, batch.targets))
    if experiment.forward is None:
        output = _named(spec, "the model", lambda: model(inputs))
    else:
        forward = experiment.forward
        output = _named(spec, "Experiment.forward", lambda: forward(model, inputs, targets))
    return _named(spec, "Experiment.loss", lambda: experiment.loss(output, targets)), output, targets


def _check_loss(loss: Any, spec: str) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else described(loss)
        raise UserError(
            f"{spec}: Experiment.loss must return the mean loss of the batch, one number, not {what}"
        )
    if not loss.requires_grad:
        raise UserError(
            f"{spec}: Experiment.loss does not depend on the model's weights (detached, or no_grad?)"
        )


def _check_metric(experiment: Experiment, output: Any, targets: Any, spec: str) -> None:
    value = _named(spec, "Experiment.metric", lambda: experiment.metric(output, targets))
    if not isinstance(value, torch.Tensor):
        raise UserError(
            f"{spec}: Experiment.metric must return a tensor, one value per sample or one for the batch, "
            f"not {described(value)}"
        )


def _named(spec: str, what: str, call: Callable[[], Any]) -> Any:
    """Call, and say which part of the experiment failed and where."""
    try:
        return call()
    except UserError as error:
        raise UserError(f"{spec}: {error}") from error
    except Exception as error:
        raise UserError(f"{spec}: {what} fails on the first batch: {one_line(error)}") from error
