"""Figure 2: descent on a small quadratic loss in three dimensions, with or without GC.

The rows are the path of w, the gradient and its projection at every step, and the distance of w from the
hyperplane eᵀ(w − w⁰) = 0, which GC keeps at zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gradcent
from gradcent_lab.experiment.run_config import Arm
from gradcent_lab.experiment.spec import Measurement

START, CENTRE, CURVATURE = (1.5, -0.5, 1.0), (-0.5, 0.25, 0.5), (1.0, 2.0, 0.5)


def measure(settings: Mapping[str, Any], arm: Arm) -> tuple[float, list[dict[str, Any]]]:
    """Descend and return how far w left the hyperplane, and the path."""
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([START]))
    start = model.weight.detach().clone()
    centre = torch.tensor(CENTRE, dtype=torch.float64)
    curvature = torch.tensor(CURVATURE, dtype=torch.float64)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
    layout = gradcent.explain(model).layout(model.weight)
    assert layout is not None
    if arm.attach is not None:
        gradcent.attach(optimizer, model, **arm.attach)
    rows: list[dict[str, Any]] = []
    for step in range(settings["steps"]):
        optimizer.zero_grad()
        loss = (curvature * (model.weight[0] - centre).square()).sum() / 2
        loss.backward()
        gradient = model.weight.grad
        assert gradient is not None
        projected = gradcent.centralize(gradient, layout)
        off_plane = float((model.weight.detach() - start).sum() / 3**0.5)
        rows.append(
            {
                "step": step,
                "loss": float(loss.detach()),
                "w": model.weight[0].tolist(),
                "gradient": gradient[0].tolist(),
                "projected": projected[0].tolist(),
                "off_plane": off_plane,
            }
        )
        optimizer.step()
    return abs(float(rows[-1]["off_plane"])), rows


def build(settings: Mapping[str, Any], data: Path | None) -> Measurement:
    """Return the measurement."""
    return Measurement(
        lambda seed, arm: measure(settings, arm), "distance from the hyperplane", higher_is_better=False
    )
