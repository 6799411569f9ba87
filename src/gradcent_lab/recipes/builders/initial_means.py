"""Figure 3: |mean| of every weight vector of a network's convolutions, before training.

A row is one convolution with the means of its vectors; the result is the median of |mean| over all vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradcent.diagnostics import initial_means
from gradcent_lab import models
from gradcent_lab.data.random_streams import seed_everything
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement


def measure(
    settings: Mapping[str, Any], data: Path | None, seed: int, arm: Arm
) -> tuple[float, list[dict[str, Any]]]:
    """Return the median of |mean| and the means, convolution by convolution."""
    seed_everything(seed, "weights")
    spec = dict(settings["model"])
    model = models.make(spec, spec.pop("classes", 1000), data)
    if "pretrained" not in spec:
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
    means = {name: value.abs() for name, value in initial_means(model, layers="conv").items()}
    rows = [{"layer": name, "abs_means": value.tolist()} for name, value in means.items()]
    return float(torch.cat(list(means.values())).median()), rows


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        lambda seed, arm: measure(settings, data, seed, arm),
        "median |mean of a weight vector|",
        higher_is_better=False,
    )
