"""The independent truth of the engine tests: a small model, and GC written out by hand for its layers.

Nothing here calls gradcent: the reference loop uses torch's optimizer alone and centralizes the gradient
(or restores the means) between its lines, one formula per layer.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

STEPS, BATCH = 20, 8


class Columns(nn.Module):
    """A weight stored as (in, out), as transformers' Conv1D has it; planned by override."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Net(nn.Module):
    """Convolutions of all kinds, uneven sizes, a norm, weights in both orders."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 9, 3)
        self.grouped = nn.Conv2d(9, 6, 2, groups=3)
        self.up = nn.ConvTranspose2d(6, 6, 2, groups=3)
        self.back = nn.ConvTranspose2d(6, 3, 3)
        self.norm = nn.LayerNorm(15)
        self.fc = nn.Linear(15, 7)
        self.columns = Columns(7, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        x = torch.tanh(self.grouped(x))
        x = torch.tanh(self.up(x))
        x = torch.tanh(self.back(x)).mean(3).flatten(1)
        x = torch.tanh(self.fc(self.norm(x)))
        return self.head(torch.tanh(self.columns(x)))


OVERRIDES = {"columns.weight": "columns"}
AVERAGED: dict[str, Callable[[Tensor], Tensor]] = {
    # each returns the mean of every weight vector, in a shape that broadcasts against the weight
    "conv.weight": lambda w: w.mean((1, 2, 3), keepdim=True),
    "grouped.weight": lambda w: w.mean((1, 2, 3), keepdim=True),
    "up.weight": lambda w: (
        w.view(3, 2, 2, 2, 2).mean((1, 3, 4), keepdim=True).expand(3, 2, 2, 2, 2).reshape(w.shape)
    ),
    "back.weight": lambda w: w.mean((0, 2, 3), keepdim=True),
    "fc.weight": lambda w: w.mean(1, keepdim=True),
    "columns.weight": lambda w: w.mean(0, keepdim=True),
    "head.weight": lambda w: w.mean(1, keepdim=True),
    # the tensor-parallel model
    "up_proj.weight": lambda w: w.mean(1, keepdim=True),
    "down_proj.weight": lambda w: w.mean(1, keepdim=True),
}


class Feedforward(nn.Module):
    """The usual pair of a tensor-parallel block, one split column-wise and one row-wise."""

    def __init__(self) -> None:
        super().__init__()
        self.up_proj = nn.Linear(6, 8)
        self.down_proj = nn.Linear(8, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.down_proj(torch.tanh(self.up_proj(x)))))


def model(kind: type[nn.Module] = Net, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The same weights in every process."""
    torch.manual_seed(0)
    return kind().to(dtype)


def batches(kind: type[nn.Module] = Net, steps: int = STEPS, dtype: torch.dtype = torch.float64) -> Any:
    """The same global batches in every process."""
    generator = torch.Generator().manual_seed(1)
    shape = (BATCH, 2, 5, 5) if kind is Net else (BATCH, 6)
    for _ in range(steps):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        y = torch.randn((BATCH, 3), generator=generator, dtype=torch.float64)
        yield x.to(dtype), y.to(dtype)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.05),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.05),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.05),
    "adamw_fused": lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.05, fused=True),
    "sgd_foreach": lambda params: torch.optim.SGD(
        params, lr=0.05, momentum=0.9, weight_decay=0.05, foreach=True
    ),
    "sgd_plain": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
}
COUPLED = ("sgd", "sgd_foreach", "adam")


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return ((net(x) - y) ** 2).mean()


def reference(
    start: nn.Module,
    optimizer: str,
    at: str,
    *,
    project_decay: bool = True,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
    clip: float | None = None,
) -> dict[str, Tensor]:
    """Train one process on the global batch, with GC by hand; return the weights."""
    net = copy.deepcopy(start)
    step_with = OPTIMIZERS[optimizer](net.parameters())
    coupled = optimizer in COUPLED and project_decay
    for x, y in batches(type(start), steps, dtype):
        step_with.zero_grad()
        loss_of(net, x, y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        by_hand(net, step_with, at, 0.05 if coupled else 0.0)
    return {name: each.detach().clone() for name, each in net.named_parameters()}


def by_hand(net: nn.Module, step_with: torch.optim.Optimizer, at: str, decay: float) -> None:
    """One step with GC written out."""
    with torch.no_grad():
        weights = {name: each for name, each in net.named_parameters() if name in AVERAGED}
        before = {name: AVERAGED[name](each).clone() for name, each in weights.items()}
        if at == "gradient":
            for name, each in weights.items():
                each.grad -= AVERAGED[name](each.grad + decay * each)
        step_with.step()
        if at == "update":
            for name, each in weights.items():
                each -= AVERAGED[name](each) - before[name]


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest difference of two sets of weights; they must be the same parameters."""
    assert ours.keys() == theirs.keys(), sorted(ours.keys() ^ theirs.keys())
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in theirs)
