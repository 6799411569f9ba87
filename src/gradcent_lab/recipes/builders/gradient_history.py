"""Figure 4: image classification that records the gradient of the first convolution and of the FC layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.recipes.builders import classification

LAYERS = {"conv1": "conv", "fc": "fc"}


def observer() -> Callable[[nn.Module], dict[str, float]]:
    """Return a function that reads both layers; the layouts are planned when it first sees the model."""
    layouts: dict[str, Any] = {}

    def observe(model: nn.Module) -> dict[str, float]:
        import gradcent

        if not layouts:
            plan = gradcent.explain(model)
            layouts.update({name: plan.layout(model.get_submodule(name).weight) for name in LAYERS})
        numbers = {}
        for name, word in LAYERS.items():
            gradient = model.get_submodule(name).weight.grad
            for stage, value in (
                ("", gradient),
                ("_centralized", gradcent.centralize(gradient, layouts[name])),
            ):
                numbers[f"{word}_norm{stage}"] = float(value.norm())
                numbers[f"{word}_max{stage}"] = float(value.abs().max())
        return numbers

    return observe


def build(settings: Mapping[str, Any], data: Path | None) -> Experiment:
    """Return the experiment with its observer."""
    return replace(classification.build(settings, data), observe=observer())
