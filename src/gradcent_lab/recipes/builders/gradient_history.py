"""Figure 4: image classification that records the gradient of the first convolution and of the FC layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

import gradcent
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.recipes.builders import classification

LAYERS = {"conv1": "conv", "fc": "fc"}  # module → prefix of the recorded numbers


def observer() -> Callable[[nn.Module], dict[str, float]]:
    """Return a function that reads both layers; it plans the layouts when it first sees the model."""
    layouts: dict[str, Any] = {}

    def observe(model: nn.Module) -> dict[str, float]:
        weights = {name: model.get_parameter(f"{name}.weight") for name in LAYERS}
        if not layouts:
            plan = gradcent.explain(model)
            layouts.update({name: plan.layout(weight) for name, weight in weights.items()})
        numbers: dict[str, float] = {}
        for name, prefix in LAYERS.items():
            gradient = weights[name].grad
            assert gradient is not None
            centralized = gradcent.centralize(gradient, layouts[name])
            for suffix, value in (("", gradient), ("_centralized", centralized)):
                numbers[f"{prefix}_norm{suffix}"] = float(value.norm())
                numbers[f"{prefix}_max{suffix}"] = float(value.abs().max())
        return numbers

    return observe


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment with its observer."""
    return replace(classification.build(settings, data), observe=observer())
