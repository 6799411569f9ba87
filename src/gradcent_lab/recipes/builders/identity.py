"""The identity P·Σ δ xᵀ = Σ δ (P x)ᵀ, checked by autograd for the layouts that the planner knows.

Every case has a module and a reference: the same computation written out with `contract`, whose weight gradient is
computed from centered inputs. The reference knows nothing of layouts. A row compares the reference's weight gradients
with the module's gradients after `gradcent.centralize`, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradcent

ROUNDING = 1e-12
Reference = Callable[..., Tensor]


def contract(x: Tensor, weight: Tensor) -> Tensor:
    """Return Σ_i x[…, g, i] w[g, o, i]; the gradient of the weight comes from x minus its mean over i."""

    def product(values: Tensor, matrix: Tensor) -> Tensor:
        return torch.einsum("...gi,goi->...go", values, matrix)

    centered = (x - x.mean(-1, keepdim=True)).detach()
    from_centered = product(centered, weight)
    return product(x, weight.detach()) + from_centered - from_centered.detach()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Like F.linear, by `contract`."""
    output = contract(x.unsqueeze(-2), weight.unsqueeze(0)).squeeze(-2)
    return output if bias is None else output + bias


def convolve(x: Tensor, weight: Tensor, stride: int, padding: int, groups: int) -> Tensor:
    """Like F.conv1d, conv2d and conv3d, by `contract` on the patches."""
    sizes = weight.shape[2:]
    patches = F.pad(x, [padding] * 2 * len(sizes))
    for dim, size in enumerate(sizes):
        patches = patches.unfold(2 + dim, size, stride)
    places = patches.shape[2 : 2 + len(sizes)]
    order = [0, *range(2, 2 + len(sizes)), 1, *range(2 + len(sizes), patches.ndim)]
    rows = patches.permute(order).reshape(len(x), *places, groups, -1)
    output = contract(rows, weight.reshape(groups, len(weight) // groups, -1)).flatten(-2)
    return output.movedim(-1, 1)


def _linear(m: Any, x: Tensor) -> Tensor:
    return linear(x, m.weight, m.bias)


def _bilinear(m: Any, x: Tensor) -> Tensor:
    first, second = x[:, :3], x[:, 3:]
    products = (first.unsqueeze(2) * second.unsqueeze(1)).flatten(1)
    return linear(products, m.layer.weight.flatten(1), m.layer.bias)


def _conv(m: Any, x: Tensor) -> Tensor:
    bias: Tensor = m.bias.view(-1, *[1] * len(m.kernel_size))
    return convolve(x, m.weight, m.stride[0], m.padding[0], m.groups) + bias


def _transposed(m: Any, x: Tensor) -> Tensor:
    """A transposed convolution is a convolution of the input with zeros in between, with the flipped kernel."""
    size, stride = m.kernel_size[0], m.stride[0]
    spread = x.new_zeros(len(x), x.shape[1], *[(n - 1) * stride + 1 for n in x.shape[2:]])
    spread[:, :, ::stride, ::stride] = x
    per_group = m.weight.view(m.groups, -1, *m.weight.shape[1:]).transpose(1, 2).flip(-1, -2)
    bias: Tensor = m.bias.view(-1, 1, 1)
    return convolve(spread, per_group.flatten(0, 1), 1, size - 1, m.groups) + bias


def _attention(m: Any, x: Tensor) -> Tensor:
    layer = m.layer
    if layer.in_proj_weight is not None:
        weights = layer.in_proj_weight.chunk(3)
    else:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    inputs = (x, x[..., : weights[1].shape[1]], x[..., : weights[2].shape[1]])
    parts = [
        linear(values, weight, bias).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
        for values, weight, bias in zip(inputs, weights, layer.in_proj_bias.chunk(3), strict=True)
    ]
    scores = parts[0] @ parts[1].transpose(-1, -2) / math.sqrt(parts[0].shape[-1])
    mixed = (scores.softmax(-1) @ parts[2]).transpose(1, 2).flatten(-2)
    return linear(mixed, layer.out_proj.weight, layer.out_proj.bias)


def _recurrent(m: Any, x: Tensor) -> Tensor:
    layer = m.layer
    state = memory = x.new_zeros(len(x), layer.hidden_size)
    outputs = []
    for step in x.unbind(1):
        from_input = linear(step, layer.weight_ih_l0, layer.bias_ih_l0)
        from_state = linear(state, layer.weight_hh_l0, layer.bias_hh_l0)
        if isinstance(layer, nn.LSTM):
            i, f, g, o = (from_input + from_state).chunk(4, -1)
            memory = f.sigmoid() * memory + i.sigmoid() * g.tanh()
            state = o.sigmoid() * memory.tanh()
        elif isinstance(layer, nn.GRU):
            (r, z, n), (r2, z2, n2) = from_input.chunk(3, -1), from_state.chunk(3, -1)
            new = (n + (r + r2).sigmoid() * n2).tanh()
            state = (1 - (z + z2).sigmoid()) * new + (z + z2).sigmoid() * state
        else:
            state = (from_input + from_state).tanh()
        outputs.append(state)
    return torch.stack(outputs, 1)


class Called(nn.Module):
    """A layer that is called in its own way, so that every case takes one tensor."""

    def __init__(self, layer: nn.Module, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        """Call the layer."""
        return self.call(self.layer, x)


class Einsum(nn.Module):
    """A weight that only tracing understands."""

    def __init__(self, equation: str, *shape: int) -> None:
        super().__init__()
        self.equation, self.kernel = equation, nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        """Contract x with the kernel."""
        output: Tensor = torch.einsum(self.equation, x, self.kernel)
        return output


def _rnn(layer: nn.Module) -> nn.Module:
    return Called(layer, lambda m, x: m(x)[0])


def _self_attention(layer: nn.MultiheadAttention) -> nn.Module:
    def call(m: Any, x: Tensor) -> Tensor:
        output: Tensor = m(x, x[..., : m.kdim], x[..., : m.vdim], need_weights=False)[0]
        return output

    return Called(layer, call)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Reference]] = {
    "Linear": (lambda: nn.Linear(6, 4), (5, 6), _linear),
    "Linear on sequences": (lambda: nn.Linear(6, 4), (2, 5, 6), _linear),
    "Bilinear": (
        lambda: Called(nn.Bilinear(3, 4, 5), lambda m, x: m(x[:, :3], x[:, 3:])),
        (6, 7),
        _bilinear,
    ),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 7), _conv),
    "Conv2d, padding and stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (2, 3, 7, 7), _conv),
    "Conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (2, 4, 5, 5), _conv),
    "Conv2d, depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (2, 4, 5, 5), _conv),
    "Conv3d": (lambda: nn.Conv3d(2, 4, 2), (2, 2, 3, 4, 3), _conv),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 4, 4), _transposed),
    "ConvTranspose2d, groups": (lambda: nn.ConvTranspose2d(4, 6, 3, groups=2), (2, 4, 4, 4), _transposed),
    "MultiheadAttention": (
        lambda: _self_attention(nn.MultiheadAttention(6, 2, batch_first=True)),
        (2, 4, 6),
        _attention,
    ),
    "MultiheadAttention, separate": (
        lambda: _self_attention(nn.MultiheadAttention(6, 2, kdim=4, vdim=5, batch_first=True)),
        (2, 4, 6),
        _attention,
    ),
    "RNN": (lambda: _rnn(nn.RNN(3, 4, batch_first=True)), (2, 5, 3), _recurrent),
    "LSTM": (lambda: _rnn(nn.LSTM(3, 4, batch_first=True)), (2, 5, 3), _recurrent),
    "GRU": (lambda: _rnn(nn.GRU(3, 4, batch_first=True)), (2, 5, 3), _recurrent),
    "traced (in, out)": (
        lambda: Einsum("bi,io->bo", 6, 4),
        (5, 6),
        lambda m, x: linear(x, m.kernel.T),
    ),
    "traced (in, heads, dim)": (
        lambda: Einsum("bti,ihd->bthd", 6, 2, 4),
        (2, 3, 6),
        lambda m, x: linear(x, m.kernel.flatten(1).T).unflatten(-1, (2, 4)),
    ),
    "traced (heads, dim, out)": (
        lambda: Einsum("bthd,hdo->bto", 2, 4, 5),
        (2, 3, 2, 4),
        lambda m, x: linear(x.flatten(2), m.kernel.flatten(0, 1).T),
    ),
    "traced (experts, in, out)": (
        lambda: Einsum("bei,eio->beo", 3, 6, 4),
        (5, 3, 6),
        lambda m, x: contract(x, m.kernel.transpose(1, 2)),
    ),
    "traced (out, experts, in)": (
        lambda: Einsum("bei,oei->beo", 4, 3, 6),
        (5, 3, 6),
        lambda m, x: contract(x, m.kernel.transpose(0, 1)),
    ),
}


def largest_difference(name: str, centralize: Callable[..., Tensor] = gradcent.centralize) -> float:
    """Return the largest difference of the two gradients (and of the outputs), relative to the gradient's size."""
    build, shape, reference = CASES[name]
    module = build().double()
    x = torch.randn(shape, dtype=torch.float64) + 0.5
    plan = gradcent.explain(module, example=x)
    pairs = [(param, entry.layout) for param, entry in plan.named() if entry.layout is not None]
    params = [param for param, _ in pairs]
    output, written_out = module(x), reference(module, x)
    delta = torch.randn_like(output)
    gradients = torch.autograd.grad(output, params, delta)
    expected = torch.autograd.grad(written_out, params, delta)
    differences = [float((output - written_out).detach().abs().max())]
    for gradient, truth, (_, layout) in zip(gradients, expected, pairs, strict=True):
        scale = float(gradient.abs().max())
        differences.append(float((centralize(gradient, layout) - truth).abs().max()) / scale)
    return max(differences)
