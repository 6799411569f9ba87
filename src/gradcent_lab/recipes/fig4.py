"""Figure 4: norm and largest value of the gradient over the iterations, first convolution and FC (section 4.2).

ResNet-50 trained on CIFAR-100 with and without GC. Every iteration is kept before and after centralizing: the
paper draws the first without GC and the second with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from gradcent_lab.experiment.run_config import OFF, ON
from gradcent_lab.experiment.spec import Experiment
from gradcent_lab.experiment.study import Cell, Study
from gradcent_lab.recipes import cifar, classification
from gradcent_lab.recipes.recipe import Recipe

LAYERS = {"conv1": "conv", "fc": "fc"}
SCALES = tuple(
    replace(scale, words=re.sub(r"\b\d+ seeds", "1 seed, as the figure draws", scale.words))
    for scale in cifar.SCALES
)


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


def make(scale: str, switches: Mapping[str, str]) -> Study:
    """Return the study: one seed is what the paper draws."""
    cell = Cell("R50", cifar.settings("fig4", scale, "R50", "SGDM", switches))
    return Study(
        "fig4",
        RECIPE.title,
        RECIPE.scale(scale),
        (cell,),
        (OFF, ON),
        (0,),
        build,
        notes=RECIPE.said(switches),
    )


RECIPE = Recipe(
    "fig4",
    "Gradient norm and largest value over the iterations",
    "Figure 4",
    SCALES,
    make,
    needs=("cifar100",),
    switches={"momentum": cifar.SWITCHES["momentum"]},
    notes=("GC on convolutions and FC, because the figure shows both",),
)
