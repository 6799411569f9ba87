"""Measure a forecast: train the user's experiment for a few steps without GC and read its gradients.

Every seed trains a fresh copy of the model. Nothing of it reaches the user: random generators are put back, and a
model object that the experiment's function keeps for itself is copied first.
"""

from __future__ import annotations

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import gradcent
from gradcent import calibration
from gradcent_lab.data import random_streams
from gradcent_lab.data.batches import Batch, Feed
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import one_line
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.forecasting.curvature import curvature_ratio
from gradcent_lab.forecasting.gradient_share import GradientShare
from gradcent_lab.forecasting.target_mean import explained_by_input_mean

STEPS, SEEDS = 60, 3
MOST_PASSES = 200  # forward and backward passes over all seeds, for models of any size
SAMPLES = 4096  # samples that the target's dependence on the input mean is read from


@dataclass(frozen=True)
class LayerForecast:
    """One weight: the share of its gradient that GC would remove, and why.

    removed, removed_std: share of the gradient's energy, mean and spread over seeds.
    energy: the layer's share of the whole gradient's energy.
    level: the share of its inputs' energy along 1; None where the example does not reach it.
    """

    name: str
    module: str
    role: str | None
    level: float | None
    removed: float
    removed_std: float
    energy: float


@dataclass(frozen=True)
class Forecast:
    """What the first steps without GC say about the effect of GC.

    removed, removed_std: share of the gradient's energy that GC removes, mean and spread over seeds.
    explained: share of the target that the mean of the input explains; None where that has no meaning.
    curvature: λmax(H) / λmax(PHP), if it was asked for; `curvature_note` says why it is missing.
    """

    name: str
    removed: float
    removed_std: float
    explained: float | None
    layers: tuple[LayerForecast, ...]
    steps: int
    seeds: int
    centralized: str
    curvature: float | None = None
    curvature_note: str = ""

    def sentence(self) -> str:
        """Return the forecast in one or two sentences, never more certain than the calibration."""
        return calibration.sentence(self.removed, self.explained)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**asdict(self), "sentence": self.sentence()}


def forecast(
    experiment: Experiment,
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    curvature: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Forecast:
    """Train copies of the experiment's model without GC for a few steps and return what that says about GC.

    progress: called with (steps done, steps in all).
    """
    if steps < 1 or seeds < 1:
        raise UserError(f"a forecast needs 1 or more steps and seeds, not {steps} and {seeds}")
    steps = min(steps, max(1, MOST_PASSES // seeds))
    results = []
    for seed in range(seeds):
        done = seed * steps
        step_done = None if progress is None else lambda step, done=done: progress(done + step, seeds * steps)
        with random_streams.seeded(seed, "forecast"):
            results.append(_Copy(experiment, seed).read(steps, step_done))
    first = results[0]
    shares = [result.share for result in results]
    measured = Forecast(
        name=experiment.name,
        removed=statistics.fmean(share.mean for share in shares),
        removed_std=_spread([share.mean for share in shares]),
        explained=first.explained,
        layers=tuple(_layer(entry, shares) for entry in first.entries if entry.name in shares[0].layers),
        steps=steps,
        seeds=seeds,
        centralized=first.plan.summary().splitlines()[0],
    )
    if not curvature:
        return measured
    with random_streams.seeded(0, "forecast"):
        ratio, note = _Copy(experiment, 0).curvature()
    return replace(measured, curvature=ratio, curvature_note=note)


def _layer(entry: Any, shares: Sequence[GradientShare]) -> LayerForecast:
    readings = [share.layer(entry.name) for share in shares if entry.name in share.layers]
    removed = [reading[0] for reading in readings]
    energy = statistics.fmean(reading[1] for reading in readings)
    return LayerForecast(
        entry.name, entry.module, entry.role, entry.level, statistics.fmean(removed), _spread(removed), energy
    )


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


class _Copy:
    """A fresh copy of the model with its optimizer and batches, for one seed."""

    def __init__(self, experiment: Experiment, seed: int) -> None:
        self.experiment = experiment
        random_streams.seed_everything(seed, "weights")
        self.model: nn.Module = copy.deepcopy(experiment.model())
        self.device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.model.to(self.device or "cpu").train()
        self.feed = Feed(
            experiment.train_data,
            experiment.batch_size,
            seed=seed,
            train=True,
            drop_last=experiment.drop_last,
        )
        self.share = GradientShare()
        self.explained: float | None = None

    def read(self, steps: int, step_done: Callable[[int], None] | None) -> _Copy:
        """Take the steps and keep what they show."""
        batches = self._batches()
        first = next(batches, None)
        if first is None:
            raise UserError("Experiment.train_data has no batches")
        self._plan(first)
        params = (
            self.experiment.parameters(self.model) if self.experiment.parameters else self.model.parameters()
        )
        optimizer = self.experiment.optimizer(params)
        schedule = self.experiment.schedule(optimizer, self.feed.steps) if self.experiment.schedule else None
        monitor = gradcent.Monitor(self.model, every=1, plan=self.plan)
        seen: list[Batch] = []
        batch: Batch | None = first
        for step in range(steps):
            if batch is None:
                raise UserError("Experiment.train_data ended before the first step")
            if sum(kept.count for kept in seen) < SAMPLES:
                seen.append(batch)
            self._step(batch, optimizer, schedule, monitor, step)
            if step_done is not None:
                step_done(step + 1)
            batch = next(batches, None)
        if not self.share.steps:
            raise UserError(f"all gradients were zero in the first {steps} steps: GC has nothing to act on")
        self.explained = _explained(seen)
        return self

    def _plan(self, first: Batch) -> None:
        try:
            self.plan = gradcent.explain(
                self.model, example=self._to_device(first), example_forward=self._example_forward
            )
            self.plan.require_something()
        except ValueError as error:
            raise UserError(str(error)) from error
        self.entries = [entry for entry in self.plan.entries if entry.centralized]
        if not self.entries:
            raise UserError("every weight that GC would centralize is frozen: there is nothing to forecast")

    def _example_forward(self, model: nn.Module, example: tuple[Any, Any]) -> Any:
        custom = self.experiment.forward
        return model(example[0]) if custom is None else custom(model, *example)

    def _to_device(self, batch: Batch) -> tuple[Any, Any]:
        if self.device is None:
            return batch.inputs, batch.targets
        from accelerate.utils import send_to_device

        return send_to_device(batch.inputs, self.device), send_to_device(batch.targets, self.device)

    def _batches(self) -> Iterator[Batch]:
        """Yield training batches, epoch after epoch."""
        epoch = 0
        while True:
            count = 0
            for batch in self.feed.epoch(epoch):
                count += 1
                yield batch
            if not count:
                return
            epoch += 1

    def _loss(self, batch: Batch) -> Tensor:
        example = self._to_device(batch)
        loss = self.experiment.loss(self._example_forward(self.model, example), example[1])
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise UserError(f"Experiment.loss must return one number, got {shape}")
        return loss

    def _step(
        self, batch: Batch, optimizer: Any, schedule: Any, monitor: gradcent.Monitor, step: int
    ) -> None:
        optimizer.zero_grad()
        loss = self._loss(batch)
        if not math.isfinite(float(loss.detach())):
            raise UserError(
                f"the loss became {float(loss.detach())} in step {step + 1} without GC: lower the learning rate"
            )
        loss.backward()
        if self.experiment.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.experiment.clip)
        self.share.add(monitor.update())
        optimizer.step()
        if schedule is not None:
            schedule.step()

    def curvature(self) -> tuple[float | None, str]:
        """Return the ratio of the largest curvatures on one batch, or why it cannot be computed."""
        batch = next(self._batches())
        self._plan(batch)
        try:
            return curvature_ratio(lambda: self._loss(batch), self.plan), ""
        except (RuntimeError, NotImplementedError) as error:
            return None, f"the model cannot be differentiated twice: {one_line(error)}"


def _explained(batches: Sequence[Batch]) -> float | None:
    """Return the largest share of the target that the mean of one floating-point input explains."""
    targets = [batch.targets for batch in batches]
    if not all(isinstance(target, Tensor) for target in targets):
        return None
    joined = torch.cat([target.detach().cpu() for target in targets])
    found = []
    for inputs in zip(*(_floating(batch.inputs, batch.count) for batch in batches), strict=False):
        if len({tuple(values.shape[1:]) for values in inputs}) == 1:
            found.append(explained_by_input_mean(torch.cat(inputs), joined))
    known = [value for value in found if value is not None]
    return max(known) if known else None


def _floating(inputs: Any, count: int) -> list[Tensor]:
    """Return the floating-point tensors of a batch whose first dim is the samples."""
    return [
        leaf.detach().cpu()
        for leaf in _leaves(inputs)
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 0 and len(leaf) == count
    ]


def _leaves(inputs: Any) -> Iterator[Any]:
    if isinstance(inputs, Mapping):
        inputs = list(inputs.values())
    if isinstance(inputs, (list, tuple)):
        for part in inputs:
            yield from _leaves(part)
    else:
        yield inputs
