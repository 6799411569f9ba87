"""What theory says about the share of the gradient that GC removes, checked at initialization.

A row compares a share of energy along 1 with its formula: 1/π behind the ReLU of a unit normal, 0 behind a LayerNorm
without affine parameters, β²/(β² + γ²) behind one with a constant scale γ and bias β, Var(γ)/(n·E[γ²]) behind one of
width n with random scales and no bias.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

import gradcent

WIDTH, SAMPLES, OUTPUTS = 1024, 64, 4096


def share_removed(behind: nn.Module, inputs: Tensor) -> float:
    """Return the share of the gradient's energy that GC removes in a Linear layer behind `behind`.

    The slopes δ at the layer's output are random, so no sample is preferred. The share along 1 is one number per
    output, so many outputs are needed for a mean that fluctuates by no more than 3 %.
    """
    layer = nn.Linear(WIDTH, OUTPUTS, bias=False, dtype=inputs.dtype)
    output = layer(behind(inputs).detach())
    (gradient,) = torch.autograd.grad(output, layer.weight, torch.randn_like(output))
    rest = gradcent.centralize(gradient, gradcent.Layout.rows(gradient.shape))
    return 1 - float(rest.square().sum() / gradient.square().sum())


def rows() -> list[tuple[str, float, float]]:
    """Return (check, difference from the formula, largest difference allowed)."""
    normal = torch.randn(SAMPLES, WIDTH, dtype=torch.float64)
    hidden = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.float64)
    nn.init.normal_(hidden.weight, std=WIDTH**-0.5)
    after_layer = nn.Sequential(hidden, nn.ReLU())
    plain = nn.LayerNorm(WIDTH, eps=0.0, elementwise_affine=False)
    constant = _layer_norm(torch.full((WIDTH,), 2.0), torch.full((WIDTH,), 1.0))
    scales = 1 + 0.5 * torch.randn(WIDTH, dtype=torch.float64)
    scaled = _layer_norm(scales, torch.zeros(WIDTH))
    expected = float(scales.var(correction=0) / (WIDTH * scales.square().mean()))
    return [
        ("share removed behind the ReLU of a unit normal is 1/π", _off(nn.ReLU(), normal, 1 / math.pi), 0.03),
        ("and behind a random layer and its ReLU", _off(after_layer, normal, 1 / math.pi), 0.03),
        ("behind LayerNorm without affine parameters it is 0", _off(plain, normal, 0.0), 1e-12),
        ("with constant scale γ and bias β it is β²/(β² + γ²)", _off(constant, normal, 0.2), 0.02),
        ("with random scales it is Var(γ)/(n·E[γ²])", _off(scaled, normal, expected), 0.5 * expected),
    ]


def _off(behind: Any, inputs: Tensor, formula: float) -> float:
    return abs(share_removed(behind, inputs) - formula)


def _layer_norm(scale: Tensor, bias: Tensor) -> nn.LayerNorm:
    layer = nn.LayerNorm(WIDTH, eps=0.0, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(scale)
        layer.bias.copy_(bias)
    return layer
