"""A copy of the user's model that is trained for a few steps without GC, for one seed."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import gradcent
from gradcent_lab.data import random_streams
from gradcent_lab.data.batches import Batch, Feed, resolve
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import described, one_line
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.forecasting.curvature import curvature_ratio
from gradcent_lab.forecasting.gradient_share import GradientShare
from gradcent_lab.forecasting.target_mean import explained_by_input_mean
from gradcent_lab.forecasting.unseen import unseen_kinds

SAMPLES = 4096  # samples that the target's dependence on the input mean is read from


class TrainingCopy:
    """A fresh copy of the model with its optimizer and batches, for one seed."""

    def __init__(self, experiment: Experiment, seed: int, steps: int) -> None:
        self.experiment, self.steps = experiment, steps
        random_streams.seed_everything(seed, "weights")
        self.model: nn.Module = copy.deepcopy(_named("Experiment.model", experiment.model))
        self.device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        self.model.to(self.device or "cpu").train()
        self.feed = Feed(
            _rereadable(experiment.train_data, None if experiment.schedule else steps),
            experiment.batch_size,
            seed=seed,
            train=True,
            drop_last=experiment.drop_last,
        )
        self.share = GradientShare()
        self.explained: float | None = None
        self.unseen: tuple[str, ...] = ()

    def read(self, step_done: Callable[[int], None] | None) -> TrainingCopy:
        """Take the steps and keep what they show."""
        batches = self._batches()
        first = next(batches, None)
        if first is None:
            raise UserError("Experiment.train_data has no batches")
        self._plan(first)
        optimizer = _named("Experiment.optimizer", self._optimizer)
        self.unseen = unseen_kinds(self.model, self.plan, optimizer)
        schedule = self.experiment.schedule(optimizer, self.feed.steps) if self.experiment.schedule else None
        monitor = gradcent.Monitor(self.model, every=1, plan=self.plan)
        seen: list[Batch] = []
        batch: Batch | None = first
        for step in range(self.steps):
            if batch is None:
                break  # the data ended
            if sum(kept.count for kept in seen) < SAMPLES:
                seen.append(batch)
            self._step(batch, optimizer, schedule, monitor, step)
            if step_done is not None:
                step_done(step + 1)
            batch = next(batches, None)
        if not self.share.steps:
            raise UserError(
                f"all gradients were zero in the first {self.steps} steps: GC has nothing to act on"
            )
        self.explained = _explained(seen)
        return self

    def _optimizer(self) -> Any:
        select = self.experiment.parameters
        return self.experiment.optimizer(select(self.model) if select else self.model.parameters())

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
        output = _named("the model", lambda: self._example_forward(self.model, example))
        loss: Tensor = _named("Experiment.loss", lambda: self.experiment.loss(output, example[1]))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            what = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else described(loss)
            raise UserError(f"Experiment.loss must return one number, the mean loss of the batch, not {what}")
        if not loss.requires_grad:
            raise UserError("Experiment.loss does not depend on the model's weights (detached, or no_grad?)")
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
        readings = monitor.update()
        for reading in readings:
            if not math.isfinite(reading.energy):
                raise UserError(
                    f"the gradient of {reading.name} holds nan or inf in step {step + 1} without GC: lower the "
                    "learning rate, or set Experiment.clip"
                )
        self.share.add(readings)
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


def _named(what: str, call: Callable[[], Any]) -> Any:
    """Call; an error names the part of the experiment that failed and the line."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} fails: {one_line(error)}") from error


class _FirstBatches:
    """The first batches of an iterable without a length: `Feed` counts them, and the iterable may be endless."""

    def __init__(self, data: Any, count: int) -> None:
        self.data, self.count = data, count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self.data), self.count)


def _rereadable(data: Any, most: int | None) -> Any:
    """Return data that can be read again for every copy of the model, at most `most` batches if it has no length."""
    data = resolve(data)
    if hasattr(data, "__next__"):
        raise UserError(
            f"Experiment.train_data is {described(data)}, which can be read only once: give a dataset, a DataLoader, "
            "a list of batches, or an object whose __iter__ starts anew"
        )
    sized = hasattr(data, "__len__") or hasattr(data, "take")
    return data if sized or most is None else _FirstBatches(data, most)


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
