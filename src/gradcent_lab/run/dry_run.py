"""Prepare a user's experiment: build it once, check it on one batch, describe it, before the first run.

An error is found within seconds and reported in one line. The preparation does not affect the runs: it restores
every random generator, and the runs build their own models.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

import gradcent
from gradcent_lab.data.batches import Batch, Feed
from gradcent_lab.data.random_streams import seed_everything, seeded
from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import described, one_line
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Experiment, describe
from gradcent_lab.experiment.weights import weights_hash
from gradcent_lab.run.example_plan import plan_experiment, with_plan


@dataclasses.dataclass(frozen=True)
class ArmPlan:
    """What an arm centralizes: tensors and weights, of how many."""

    layers: str
    names: frozenset[str]  # of the centralized parameters
    tensors: int
    weights: int
    all_weights: int

    @property
    def share(self) -> float:
        """The share of all weights."""
        return self.weights / max(1, self.all_weights)

    def __str__(self) -> str:
        return f"{len(self.names)} of {self.tensors} parameters ({self.weights:,} weights), layers {self.layers!r}"


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A checked experiment and what its one build shows."""

    experiment: Experiment  # with its settings filled in, so that nothing is built again to describe it
    model: str
    weights: int
    optimizer: str
    learning_rates: tuple[float, ...]
    arms: Mapping[str, ArmPlan]  # by name, the arms with GC
    warnings: tuple[str, ...]  # what is allowed but probably not intended


def prepare(experiment: Experiment, spec: str, arms: Sequence[Arm]) -> Prepared:
    """Build the model, train on one batch, evaluate one, and attach each arm; raise on the first problem.

    The model is built a second time only to check that equal seeds give equal weights.
    """
    with seeded(0, "rehearsal"):
        model = _build_model(experiment, spec)
        optimizer = _build_optimizer(experiment, model, spec)
        settings = describe(experiment, (model, optimizer))
        optimizer_name = type(optimizer).__name__  # before attach, which replaces the class
        rates = tuple(sorted({float(group["lr"]) for group in optimizer.param_groups}))
        warnings = _check_batches(experiment, model, spec)
        plans = {arm.name: _check_arm(experiment, model, optimizer, arm) for arm in arms if arm.on}
    _check_distinct(plans)
    return Prepared(
        experiment=dataclasses.replace(experiment, settings=settings),
        model=type(model).__name__,
        weights=sum(parameter.numel() for parameter in model.parameters()),
        optimizer=optimizer_name,
        learning_rates=rates,
        arms=plans,
        warnings=tuple(warnings),
    )


def _check_arm(
    experiment: Experiment, model: nn.Module, optimizer: torch.optim.Optimizer, arm: Arm
) -> ArmPlan:
    """Attach GC with the options of an arm and detach it again; return what it centralizes."""
    attach = arm.attach or {}
    layers = str(attach.get("layers", "all"))
    try:
        plan = plan_experiment(model.train(), experiment, attach)
        gradcent.attach(optimizer, model, **with_plan(attach, plan))
        gradcent.detach(optimizer)
    except UserError:
        raise
    except Exception as error:
        message = str(error) if isinstance(error, ValueError) else one_line(error)
        raise UserError(message if layers == "all" else f"layers={layers!r}: {message}") from error
    centralized = [entry for entry in plan.entries if entry.centralized]
    return ArmPlan(
        layers=layers,
        names=frozenset(entry.name for entry in centralized),
        tensors=len(plan.entries),
        weights=sum(entry.numel for entry in centralized),
        all_weights=sum(entry.numel for entry in plan.entries),
    )


def _check_distinct(plans: Mapping[str, ArmPlan]) -> None:
    """Refuse two arms that centralize the same weights: their runs would be equal."""
    seen: dict[frozenset[str], str] = {}
    for name, plan in plans.items():
        first = seen.setdefault(plan.names, name)
        if first != name:
            raise UserError(
                f"--arms: {first} and {name} centralize the same weights of this model, so their runs would be equal: "
                "leave one of them out"
            )


def _check_batches(experiment: Experiment, model: nn.Module, spec: str) -> list[str]:
    """Run a training batch forward and backward and an evaluation batch forward; return warnings."""
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


def _build_model(experiment: Experiment, spec: str) -> nn.Module:
    """Return the model after checking that a second one from the same seed is equal."""
    models: list[nn.Module] = []
    for _ in range(2):
        seed_everything(0, "weights")
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
    return models[1]


def _build_optimizer(experiment: Experiment, model: nn.Module, spec: str) -> torch.optim.Optimizer:
    """Return the optimizer; one that needs a closure is refused."""
    params = experiment.parameters(model) if experiment.parameters else list(model.parameters())
    optimizer: torch.optim.Optimizer = _named(
        spec, "Experiment.optimizer", lambda: experiment.optimizer(params)
    )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise UserError(
            f"{spec}: {type(optimizer).__name__} evaluates the loss several times per step, which the lab's training "
            "loop does not: choose another with --optimizer"
        )
    return optimizer


def _batch(experiment: Experiment, train: bool, spec: str) -> Batch:
    data = experiment.train_data if train else experiment.eval_data
    size = experiment.batch_size if train else experiment.eval_batch_size or experiment.batch_size
    drop = experiment.drop_last if train else experiment.eval_drop_last
    what = f"Experiment.{'train' if train else 'eval'}_data"

    def first() -> Batch | None:
        return next(iter(Feed(data, size, seed=0, train=train, drop_last=drop).epoch(0)), None)

    batch: Batch | None = _named(spec, what, first)
    if batch is None:
        raise UserError(f"{spec}: {what} has no batches")
    return batch


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
    """Call; an error names the part of the experiment that failed and the line."""
    try:
        return call()
    except UserError as error:
        raise UserError(f"{spec}: {error}") from error
    except Exception as error:
        raise UserError(f"{spec}: {what} fails on the first batch: {one_line(error)}") from error
