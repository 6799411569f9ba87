"""Theorems 4.1 and 4.2 on a convolutional network and its cross-entropy, in float64.

4.1: the response of the first convolution to a shift of its input, after thousands of steps with GC and without.
4.2: the Hessian is autograd's. What GC sees of it is the Jacobian of the centralized gradient, which must be P H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call, jacrev

import gradcent

SHIFT = 3.0


def make_problem() -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """Return a network, images with a mean as photographs have one, and labels, from torch's global generator."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5)
    ).double()
    images = 0.5 + torch.rand(32, 1, 8, 8, dtype=torch.float64)
    return model, images, torch.randint(0, 5, (32,))


def shift_responses(steps: int, *, centralize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Train with SGDM; return the first convolution's response to a constant shift before and after."""
    model, images, labels = make_problem()

    def response() -> torch.Tensor:
        with torch.no_grad():
            changed: torch.Tensor = model[0](images[:2] + SHIFT) - model[0](images[:2])
        return changed

    before = response()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if centralize:
        gradcent.attach(optimizer, model)
    for step in range(steps):
        part = slice(8 * (step % 4), 8 * (step % 4) + 8)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[part]), labels[part]).backward()
        optimizer.step()
    return before, response()


def hessians(layer: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return P, the Hessian of the loss with respect to one weight, and the Jacobian of its centralized gradient."""
    model, images, labels = make_problem()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weight: torch.Tensor) -> torch.Tensor:
        output = functional_call(model, {**parameters, layer: weight}, (images,))
        return nn.functional.cross_entropy(output, labels)

    weight = parameters[layer]
    layout, size, length = gradcent.Layout.rows(weight.shape), weight.numel(), weight[0].numel()
    hessian = jacrev(jacrev(loss))(weight).reshape(size, size)
    seen = jacrev(lambda w: gradcent.centralize(jacrev(loss)(w), layout))(weight).reshape(size, size)
    eye = torch.eye(length, dtype=torch.float64)
    return torch.block_diag(*[eye - 1 / length] * len(weight)), hessian, seen


def measure_shift(steps: int) -> dict[str, float]:
    """Return how far the response to a shift moves, with GC over all steps and without over at most 500."""
    moved = {}
    for name, centralize in (("with GC", True), ("without GC", False)):
        before, after = shift_responses(steps if centralize else min(steps, 500), centralize=centralize)
        moved[name] = float((after - before).abs().max())
    return moved


def measure_hessian(layer: str) -> dict[str, Any]:
    """Return the error of P H and the ratios of the norms of what GC sees to those of the Hessian."""
    projection, hessian, seen = hessians(layer)
    return {
        "error": float((seen - projection @ hessian).abs().max()),
        "spectral": float(torch.linalg.matrix_norm(seen, 2) / torch.linalg.matrix_norm(hessian, 2)),
        "frobenius": float(seen.norm() / hessian.norm()),
    }
