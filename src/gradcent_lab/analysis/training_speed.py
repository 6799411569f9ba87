"""How fast a network trains and evaluates on one core of this machine: a short probe of real training steps.

Processor time is measured, not wall time, so that other programs do not distort the estimate. Classifiers of the lab
are probed on random images with the optimizer of the cell, and with the batch size of the study where a step is short
enough; smaller batches for large networks. Other experiments are probed on their own data.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.run_config import canonical

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from gradcent_lab.data.batches import Batch, Feed
    from gradcent_lab.experiment.spec import Experiment

PROBE_SECONDS = 1.0  # of training and of evaluation each, besides one step that warms up
STEP_OPERATIONS = 6e10  # a larger step is probed with a smaller batch


@dataclass(frozen=True)
class TrainingSpeed:
    """Images per second of processor time on one thread."""

    train: float
    evaluate: float


def probe(
    spec: Mapping[str, Any],
    classes: int,
    pixels: int,
    batch_size: int,
    *,
    operations: float,
    channels_last: bool,
    optimizer: str = "SGDM",
) -> TrainingSpeed:
    """Measure a network and the named optimizer; `operations` are those of one image forward and backward.

    Equal questions are asked once.
    """
    batch = max(2, min(batch_size, int(STEP_OPERATIONS / max(operations, 1.0))))
    plain = {key: value for key, value in spec.items() if key != "pretrained"}
    return _probe(canonical(plain), classes, pixels, batch, channels_last, optimizer)


@lru_cache(maxsize=64)
def _probe(
    spec_text: str, classes: int, pixels: int, batch: int, channels_last: bool, optimizer_name: str
) -> TrainingSpeed:
    import json

    import torch
    from torch.nn import functional

    from gradcent_lab import models

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            model = models.make(json.loads(spec_text), classes)
            images = torch.randn(batch, 3, pixels, pixels)
            labels = torch.randint(0, classes, (batch,))
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
            images = images.to(memory_format=torch.channels_last)
        optimizer = _optimizer(optimizer_name, model)

        def step() -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

        def evaluate() -> None:
            with torch.no_grad():
                model(images)

        train = batch / _seconds(step)
        model.eval()
        return TrainingSpeed(train, batch / _seconds(evaluate))
    finally:
        torch.set_num_threads(threads)


def _optimizer(name: str, model: nn.Module) -> Optimizer:
    """Return the optimizer of this name, or SGDM where its package is not installed."""
    from gradcent_lab.experiment import optimizers

    spec = {"name": name, "lr": 1e-3, "weight_decay": 1e-4}
    split = optimizers.groups(spec)
    try:
        return optimizers.optimizer(spec)(split(model) if split else model.parameters())
    except UserError:
        return _optimizer("SGDM", model)


def probe_experiment(experiment: Experiment) -> TrainingSpeed:
    """Measure an experiment on its own data, in samples per second; what it computes after an epoch is left out."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            return _probe_experiment(experiment)
    finally:
        torch.set_num_threads(threads)


def _probe_experiment(experiment: Experiment) -> TrainingSpeed:
    import torch

    from gradcent_lab.data.batches import Feed

    size = experiment.batch_size
    feed = Feed(experiment.train_data, size, seed=0, train=True, drop_last=experiment.drop_last)
    eval_size = experiment.eval_batch_size or size
    eval_feed = Feed(experiment.eval_data, eval_size, seed=0, train=False)
    model = experiment.model()
    parameters = experiment.parameters(model) if experiment.parameters else model.parameters()
    optimizer = experiment.optimizer(parameters)
    batches, eval_batches = _endless(feed), _endless(eval_feed)

    def step() -> None:
        batch = next(batches)
        output = _forward(experiment, model, batch)
        optimizer.zero_grad()
        experiment.loss(output, batch.targets).backward()
        if experiment.observe is not None:
            experiment.observe(model)
        optimizer.step()

    def evaluate() -> None:
        with torch.no_grad():
            batch = next(eval_batches)
            # detectors, which have an evaluation of their own, take no targets in it
            model(batch.inputs) if experiment.evaluate is not None else _forward(experiment, model, batch)

    model.train()
    train = size / _seconds(step)
    model.eval()
    return TrainingSpeed(train, eval_size / _seconds(evaluate))


def _forward(experiment: Experiment, model: nn.Module, batch: Batch) -> Any:
    if experiment.forward is None:
        return model(batch.inputs)
    return experiment.forward(model, batch.inputs, batch.targets)


def _endless(feed: Feed) -> Iterator[Batch]:
    for epoch in itertools.count():
        yield from feed.epoch(epoch)


def _seconds(work: Callable[[], None]) -> float:
    """Mean processor seconds of one call."""
    work()
    began, calls = time.process_time(), 0
    while time.process_time() - began < PROBE_SECONDS:
        work()
        calls += 1
    return (time.process_time() - began) / calls
