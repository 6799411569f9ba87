"""What a user's experiment has that no calibration task has: there the forecast extrapolates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

import gradcent
from gradcent import calibration

MUCH_LARGER = 10  # times the largest network of the calibration

# Torch's own subclasses, and an optimizer that differs from a calibrated one by its weight decay alone.
_SAME_KIND = {"NonDynamicallyQuantizableLinear": "Linear", "Adam": "AdamW"}


def layer_classes(model: nn.Module, plan: gradcent.Plan) -> Iterator[list[str]]:
    """Yield, for every module with a centralized weight, the names of its class and its base classes."""
    centralized = {id(param) for param, entry in plan.named() if entry.layout is not None}
    for module in model.modules():
        if any(id(param) in centralized for param in module.parameters(recurse=False)):
            yield _class_names(module)


def unseen_kinds(model: nn.Module, plan: gradcent.Plan, optimizer: object) -> tuple[str, ...]:
    """Return what the calibration does not cover, in words that follow "no task with"."""
    missing = []
    names = _class_names(optimizer)
    if not set(names) & set(calibration.OPTIMIZERS):
        missing.append(f"the optimizer {names[0]}")
    unknown = {
        classes[0] for classes in layer_classes(model, plan) if not set(classes) & set(calibration.LAYERS)
    }
    missing += [f"{name} layers" for name in sorted(unknown)]
    weights = sum(param.numel() for param in model.parameters())
    if weights > MUCH_LARGER * calibration.MOST_WEIGHTS:
        missing.append(
            f"so many weights (the largest has {calibration.MOST_WEIGHTS:,}, this model {weights:,})"
        )
    return tuple(missing)


def unseen_sentence(missing: Sequence[str]) -> str:
    """Return the sentence that lists what the calibration does not cover; empty if it covers everything."""
    if not missing:
        return ""
    *first, last = missing
    listed = f"{', '.join(first)} or {last}" if first else last
    return f"The calibration has no task with {listed}: take the ranges as a hint only."


def _class_names(value: object) -> list[str]:
    return [_SAME_KIND.get(kind.__name__, kind.__name__) for kind in type(value).__mro__]
