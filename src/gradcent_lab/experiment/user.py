"""A user's own experiment: find the function, check what it returns, apply what the command line changes.

Every error is found before the first run and reported in one line.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from gradcent_lab.errors import UserError
from gradcent_lab.experiment.import_spec import call, described, find
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.names import check_folder_name, check_label


@dataclasses.dataclass(frozen=True)
class Changes:
    """What the command line changes in an experiment; None keeps the function's value."""

    epochs: int | None = None
    optimizer: str | None = None
    lr: float | None = None
    recalibrate_bn: bool = False
    tuned: tuple[tuple[str, float], ...] = ()  # options of the optimizer's param groups, chosen by tuning


def build(spec: str, changes: Changes) -> Experiment:
    """Return the experiment of `module:function`; importable, so that worker processes can call it."""
    found = find(spec)
    made = found if isinstance(found, Experiment) else call(spec, found)
    check(made, spec)
    return apply(made, changes)


def check(made: Any, spec: str) -> None:
    """Refuse what is not an Experiment, or is one whose parts cannot be what they should."""
    if not isinstance(made, Experiment):
        kind = "nothing" if made is None else described(made)
        raise UserError(f"{spec} returned {kind}, not a gradcent_lab.experiment.Experiment")
    for name in ("model", "loss", "metric", "optimizer"):
        value = getattr(made, name)
        built = name in ("model", "optimizer") and hasattr(value, "state_dict") and not inspect.isclass(value)
        if built or not callable(value):
            what = f"a function that makes the {name}, afresh for every run" if built else "a function"
            raise UserError(f"{spec}: Experiment.{name} must be {what}, not {described(value)}")
    for name in ("epochs", "batch_size"):
        value = getattr(made, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{spec}: Experiment.{name} must be a whole number of 1 or more, not {value!r}")
    try:
        check_folder_name(made.name, "Experiment.name")
        check_label(made.metric_name, "Experiment.metric_name")
    except UserError as error:
        raise UserError(f"{spec}: {error}") from error


def apply(made: Experiment, changes: Changes) -> Experiment:
    """Return the experiment with the command line's changes."""
    replaced: dict[str, Any] = {}
    if changes.epochs is not None:
        replaced["epochs"] = changes.epochs
    if changes.recalibrate_bn:
        replaced["recalibrate_bn"] = True
    optimizer = made.optimizer
    if changes.optimizer is not None or changes.lr is not None:
        optimizer = _Optimizer(optimizer, changes.optimizer, changes.lr)
    if changes.tuned:
        optimizer = _TunedOptimizer(optimizer, changes.tuned)
    if optimizer is not made.optimizer:
        replaced["optimizer"] = optimizer
        if made.settings is not None:
            options = {
                "optimizer_option": changes.optimizer,
                "lr_option": changes.lr,
                "tuned": dict(changes.tuned) or None,
            }
            replaced["settings"] = {**made.settings, **{k: v for k, v in options.items() if v is not None}}
    return dataclasses.replace(made, **replaced)


@dataclasses.dataclass(frozen=True)
class _TunedOptimizer:
    """The experiment's optimizer with other values in all its param groups."""

    base: Callable[[Any], Any]
    values: tuple[tuple[str, float], ...]

    def __call__(self, params: Any) -> Any:
        optimizer = self.base(params)
        for name, value in self.values:
            check_tunable(optimizer, name)
            for group in optimizer.param_groups:
                group[name] = value
            if name in optimizer.defaults:
                optimizer.defaults[name] = value
        return optimizer


def check_tunable(optimizer: Any, name: str) -> None:
    """Refuse a name that is no number of the optimizer's, or that differs between its param groups."""
    groups = optimizer.param_groups
    numbers = sorted(
        key
        for key in groups[0]
        if isinstance(groups[0][key], int | float) and not isinstance(groups[0][key], bool)
    )
    if name not in numbers:
        raise UserError(f"--tune {name}: {type(optimizer).__name__} has {', '.join(numbers)}")
    values = {float(group[name]) for group in groups}
    if len(values) > 1:
        listed = ", ".join(f"{value:g}" for value in sorted(values))
        raise UserError(
            f"--tune {name} cannot replace several values ({listed}): the param groups differ in it"
        )


@dataclasses.dataclass(frozen=True)
class _Optimizer:
    """The experiment's optimizer with another class, or another learning rate."""

    own: Callable[[Any], Any]
    name: str | None
    lr: float | None

    def __call__(self, params: Any) -> Any:
        if self.name is None:
            made = self.own(params)
            rates = {float(group["lr"]) for group in made.param_groups}
            if len(rates) > 1:
                listed = ", ".join(f"{rate:g}" for rate in sorted(rates))
                raise UserError(
                    f"--lr cannot replace several learning rates ({listed}): change them in your function"
                )
            for group in made.param_groups:
                group["lr"] = self.lr
            return made
        kind, options = parse_optimizer(self.name)
        if self.lr is not None:
            options["lr"] = self.lr
        try:
            return kind(params, **options)
        except (TypeError, ValueError) as error:
            raise UserError(f"--optimizer {self.name}: {error}") from error


def parse_optimizer(text: str) -> tuple[type, dict[str, Any]]:
    """Read `AdamW` or `SGD(momentum=0.9, weight_decay=5e-4)`: a class of torch.optim, and its options."""
    import torch

    try:
        tree = ast.parse(text.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        options = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
        name = call.func.id
    except (SyntaxError, ValueError) as error:
        raise UserError(
            f"--optimizer {text}: write a name, or 'SGD(momentum=0.9, weight_decay=5e-4)'"
        ) from error
    kinds = {
        key: value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value)
        and issubclass(value, torch.optim.Optimizer)
        and value is not torch.optim.Optimizer
    }
    if name not in kinds:
        raise UserError(f"--optimizer {name}: torch.optim has {', '.join(sorted(kinds))}")
    return kinds[name], options
