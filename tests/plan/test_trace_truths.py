"""Truths that know nothing of dims: which elements one output depends on, the identity, and Theorem 4.1."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradcent

Make = Callable[[], tuple[nn.Module, Any]]


class Function(nn.Module):
    """A layer with one parameter and a function ``(x, weight) -> output``."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


def _einsum(equation: str, *shape: int) -> nn.Module:
    return Function(lambda x, w: torch.einsum(equation, x, w), *shape)


def _heads(x: Tensor, w: Tensor) -> Tensor:
    q, k, v = w.view(3, 2, 2, 6).unbind(0)
    return torch.cat([x @ part.flatten(0, 1).t() for part in (q, k, v)], -1)


def _unfolded(x: Tensor, w: Tensor) -> Tensor:
    return w.flatten(1) @ F.unfold(x, 3)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4, bias=False), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, bias=False), (2, 4, 6)),
    "conv2d grouped": (lambda: nn.Conv2d(4, 6, 2, groups=2, bias=False), (1, 4, 4, 4)),
    "conv2d depthwise, padded": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1, bias=False), (1, 4, 4, 4)),
    "transposed conv1d": (lambda: nn.ConvTranspose1d(4, 6, 3, bias=False), (1, 4, 6)),
    "transposed conv2d grouped": (
        lambda: nn.ConvTranspose2d(4, 6, 2, groups=2, bias=False),
        (1, 4, 4, 4),
    ),
    "einsum (in, out)": (lambda: _einsum("bi,io->bo", 6, 4), (3, 6)),
    "einsum (in, heads, dim)": (lambda: _einsum("bti,ihd->bhtd", 6, 2, 4), (2, 3, 6)),
    "einsum (heads, dim, out)": (lambda: _einsum("bhtd,hdo->bto", 2, 4, 5), (2, 2, 3, 4)),
    "einsum (experts, in, out)": (lambda: _einsum("ebi,eio->ebo", 3, 6, 4), (3, 2, 6)),
    "einsum (out, experts, in)": (lambda: _einsum("ebi,oei->ebo", 4, 3, 6), (3, 2, 6)),
    "matmul (experts, out, in)": (
        lambda: Function(lambda x, w: x @ w.transpose(1, 2), 3, 4, 6),
        (3, 2, 6),
    ),
    "packed heads": (lambda: Function(_heads, 12, 6), (3, 6)),
    "unfolded convolution": (lambda: Function(_unfolded, 5, 2, 3, 3), (2, 2, 5, 5)),
    "tensordot": (lambda: Function(lambda x, w: torch.tensordot(x, w, ([1, 2], [2, 0])), 3, 5, 2), (4, 2, 3)),
    "single vector": (lambda: Function(lambda x, w: x @ w, 6), (3, 6)),
    "concatenated": (lambda: Function(lambda x, w: x @ torch.cat([w, -w], 1), 6, 4), (3, 6)),
}


def _layer(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    return make().double(), torch.rand(shape, dtype=torch.float64) + 0.5


def _slopes(layer: nn.Module, x: Tensor) -> Tensor:
    """Return d output / d weight for every output, the weight flattened: (outputs, elements)."""
    (weight,) = layer.parameters()
    outputs = layer(x).flatten()
    rows = [torch.autograd.grad(output, weight, retain_graph=True)[0].flatten() for output in outputs]
    return torch.stack(rows)


@pytest.mark.parametrize("name", LAYERS)
def test_a_weight_vector_is_what_one_output_depends_on(name: str) -> None:
    layer, x = _layer(name)
    (weight,) = layer.parameters()
    layout = gradcent.explain(layer, example=x).layout(weight)
    assert layout is not None
    # Numbers that are different for every vector, spread over the tensor by the layout.
    pieces, averaged = layout.split(weight.shape)
    kept = [1 if dim in averaged else size for dim, size in enumerate(pieces)]
    label = torch.arange(layout.count).view(kept).expand(pieces).reshape(-1)
    depends = _slopes(layer, x) != 0
    full = depends.sum(1) == layout.length  # at the borders of a padded convolution an output sees less
    assert full.any()
    for support in depends:
        assert len(label[support].unique()) == 1
    assert label[depends[full].any(0)].unique().numel() == layout.count


@pytest.mark.parametrize("name", LAYERS)
def test_centralizing_the_gradient_is_centring_the_inputs(name: str) -> None:
    """P·Σ δ xᵀ = Σ δ (P x)ᵀ, where x is what one output multiplies its weight vector with."""
    layer, x = _layer(name)
    (weight,) = layer.parameters()
    layout = gradcent.explain(layer, example=x).layout(weight)
    assert layout is not None
    slopes = _slopes(layer, x)
    delta = torch.randn(len(slopes), dtype=torch.float64)
    centred = slopes.clone()
    whole = slopes[(slopes != 0).sum(1) == layout.length] != 0
    for row in centred:
        support = row != 0
        # zeros at the border belong to the vector too: take the whole vector from an output that sees all of it
        vector = next(mask for mask in whole if bool(mask[support].all()))
        row[vector] -= row[vector].mean()
    gradient = (delta @ slopes).view_as(weight)
    expected = (delta @ centred).view_as(weight)
    torch.testing.assert_close(gradcent.centralize(gradient, layout), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("with_gc", [True, False])
def test_theorem_4_1(name: str, with_gc: bool) -> None:
    """After centralized SGD steps a constant shift of the inputs changes the outputs as it did before."""
    layer, x = _layer(name)
    (weight,) = layer.parameters()
    slopes = _slopes(layer, x)
    whole = (slopes != 0).sum(1) == (slopes != 0).sum(1).max()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02, momentum=0.9)
    if with_gc:
        gradcent.attach(optimizer, layer, example=x)

    def change(gamma: float = 0.7) -> Tensor:
        with torch.no_grad():
            return (layer(x + gamma) - layer(x)).flatten()[whole]

    before, start = change(), copy.deepcopy(weight.detach())
    for _ in range(5):
        optimizer.zero_grad()
        layer(x).sub(1).square().mean().backward()
        optimizer.step()
    assert not torch.allclose(weight.detach(), start)
    if with_gc:
        torch.testing.assert_close(change(), before, rtol=1e-11, atol=1e-11)
    else:
        assert (change() - before).abs().max() > 1e-3


@pytest.mark.parametrize("name", LAYERS)
def test_level_is_the_share_of_the_inputs_along_one(name: str) -> None:
    layer, x = _layer(name)
    plan = gradcent.explain(layer, example=x)
    (entry,) = plan.entries
    assert entry.layout is not None
    assert entry.level is not None
    slopes = _slopes(layer, x)
    along = slopes.sum(1).square().sum() / entry.layout.length
    torch.testing.assert_close(entry.level, float(along / slopes.square().sum()), rtol=1e-9, atol=0)
