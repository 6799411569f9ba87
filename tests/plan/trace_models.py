"""Models whose parameters are used in ways that no class rule knows, each with the dims that its author contracts.

The expected vectors are written down by hand from the forward pass: for each parameter the index tuples that pick its
weight vectors, or None if it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pick = Callable[[Tensor], list[Tensor]]


def rows(tensor: Tensor) -> list[Tensor]:
    return list(tensor)


def columns(tensor: Tensor) -> list[Tensor]:
    return [tensor[:, index] for index in range(tensor.shape[1])]


def stacked_rows(tensor: Tensor) -> list[Tensor]:
    return [row for matrix in tensor for row in matrix]


def stacked_columns(tensor: Tensor) -> list[Tensor]:
    return [column for matrix in tensor for column in columns(matrix)]


def param(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, dtype=torch.float64) * 0.3)


class Model(nn.Module):
    """A model with its example and the weight vectors of its parameters."""

    expected: dict[str, Pick | None]

    def example(self) -> Any:
        return torch.randn(7, 6, dtype=torch.float64)


class EinsumTransformer(Model):
    """Attention and MLP by einsum: (in, heads, dim), (heads, dim, in) and (in, out) weights."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = param(6, 2, 4), param(6, 2, 4), param(6, 2, 4)
        self.o = param(2, 4, 6)
        self.up, self.down = param(6, 10), param(6, 10)
        self.scale, self.bias = param(6), param(10)
        self.position = param(5, 6)
        per_head = lambda w: [w[:, h, d] for h in range(2) for d in range(4)]  # noqa: E731
        self.expected = {"q": per_head, "k": per_head, "v": per_head, "up": columns, "down": rows}
        self.expected |= {"o": lambda w: [w[:, :, i] for i in range(6)], "position": None, "scale": None}

    def example(self) -> Any:
        return torch.randn(3, 5, 6, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.position) * self.scale
        q, k, v = (torch.einsum("bti,ihd->bhtd", x, w) for w in (self.q, self.k, self.v))
        attention = torch.einsum("bhtd,bhsd->bhts", q, k).softmax(-1)
        x = x + torch.einsum("bhtd,hdi->bti", torch.einsum("bhts,bhsd->bhtd", attention, v), self.o)
        return x + torch.relu(x @ self.up + self.bias) @ self.down.t()


class Packed(Model):
    """One packed weight, cut into parts; two weights, concatenated; a bfloat16 copy; a stack of two."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = param(18, 6)
        self.first, self.second = param(4, 6), param(3, 6)
        self.copied = param(6, 5)
        self.one, self.two = param(6, 4), param(6, 4)
        self.expected = {name: rows for name in ("qkv", "first", "second")}
        self.expected |= {name: columns for name in ("copied", "one", "two")}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv.chunk(3)
        joined = F.linear(x, torch.cat([self.first, self.second]))
        low = x.to(torch.float32) @ self.copied.to(torch.float32).contiguous()
        stacked = torch.stack([self.one, self.two])
        pair = torch.bmm(x.expand(2, *x.shape), stacked)
        parts = F.linear(x, q) * F.linear(x, k[:]) + F.linear(x, v.contiguous())
        return parts.mean() + joined.mean() + low.mean() + pair.square().mean()


class Reparametrized(Model):
    """Weight standardization, weight norm and a mask, written in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel, self.direction, self.magnitude = param(4, 1, 3, 3), param(5, 6), param(5, 1)
        self.masked, self.gain = param(6, 6), param(6)
        self.register_buffer("mask", torch.tril(torch.ones(6, 6, dtype=torch.float64)))
        self.expected = {
            "kernel": rows,
            "direction": rows,
            "magnitude": None,
            "masked": columns,
            "gain": None,
        }

    def forward(self, x: Tensor) -> Tensor:
        kernel = self.kernel
        mean, std = kernel.mean((1, 2, 3), keepdim=True), kernel.std((1, 2, 3), keepdim=True)
        image = F.conv2d(x[None, None], (kernel - mean) / (std + 1e-5))
        weight = self.magnitude * self.direction / self.direction.norm(dim=1, keepdim=True)
        return (
            image.sum()
            + F.linear(x, weight * self.gain).square().sum()
            + (x @ (self.masked * self.mask)).sum()
        )


class Experts(Model):
    """Stacked experts: (E, out, in) in a loop, (E, in, out) by bmm, and a bank chosen by indices."""

    def __init__(self) -> None:
        super().__init__()
        self.looped, self.batched, self.chosen = param(3, 4, 6), param(3, 6, 4), param(3, 6, 5)
        self.table = param(9, 6)
        self.expected = {"looped": stacked_rows, "batched": stacked_columns, "chosen": stacked_columns}
        self.expected |= {"table": None}

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(len(x), device=x.device) % 3
        looped = sum(F.linear(x, self.looped[expert]).square().sum() for expert in range(3))
        batched = torch.bmm(x.expand(3, *x.shape), self.batched)
        chosen = torch.bmm(x[:, None], self.chosen[index])
        looked_up = self.table[(x[:, 0] > 0).long()]
        return looped + batched.sum() + chosen.square().sum() + (looked_up * x).sum()


class ConditionalConvolution(Model):
    """A kernel mixed from a flattened bank of kernels by data, as in CondConv."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.bank = nn.Linear(6, 4, dtype=torch.float64), param(4, 5 * 3 * 2)
        cut = lambda w: [w[e].view(5, 6)[o] for e in range(4) for o in range(5)]  # noqa: E731
        self.expected = {"bank": cut, "router.weight": rows}

    def forward(self, x: Tensor) -> Tensor:
        mixture = self.router(x).softmax(-1).mean(0, keepdim=True)
        return F.conv1d(x.t()[None, :3], torch.matmul(mixture, self.bank).view(5, 3, 2))


class Wrapped(Model):
    """A learned token and a table that layers read as their input: the layers have weights, the token has none."""

    def __init__(self) -> None:
        super().__init__()
        self.token = param(2, 6)
        self.norm, self.key = nn.LayerNorm(6, dtype=torch.float64), nn.Linear(6, 4, dtype=torch.float64)
        self.query = nn.Linear(6, 4, bias=False, dtype=torch.float64)
        self.expected = {"token": None, "query.weight": rows, "key.weight": rows}

    def forward(self, x: Tensor) -> Tensor:
        return self.query(self.norm(self.token)) @ self.key(x).t()


MODELS: dict[str, Callable[[], Model]] = {
    "einsum transformer": EinsumTransformer,
    "packed weights": Packed,
    "reparametrized": Reparametrized,
    "experts": Experts,
    "conditional convolution": ConditionalConvolution,
    "learned token": Wrapped,
}
