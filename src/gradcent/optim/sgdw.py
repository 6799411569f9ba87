"""SGDW: SGD with decoupled weight decay (Loshchilov and Hutter), which torch.optim does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ..kernels import fused_steps
from ._explicit_step import ExplicitStep, explicit_step
from .sgd import sgd_step


class SGDW(ExplicitStep, torch.optim.SGD):
    """SGD whose weight decay multiplies the weight by 1 − lr·λ, as AdamW's does.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.SGDW(model.parameters(), lr=0.1, weight_decay=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    decay_kind: ClassVar[str] = "decoupled"

    @explicit_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step."""
        return sgd_step(self, closure, fused_steps.SGDW, sgdw)


def sgdw(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: Any,
    *,
    weight_decay: Any,
    lr: Any,
    **options: Any,
) -> None:
    """w ← (1 − lr·λ)·w, then the SGD step without decay; no change where a GradScaler found inf."""
    if not isinstance(weight_decay, (int, float)) or weight_decay != 0:
        shrink = 1 - lr * weight_decay
        found_inf = options.get("found_inf")
        for param in params:
            if found_inf is None:
                param.mul_(shrink)
            else:
                dtype = torch.float64 if param.dtype is torch.float64 else torch.float32
                factor = torch.as_tensor(shrink, dtype=dtype, device=found_inf.device)
                param.mul_(torch.where(found_inf.reshape(()) > 0, torch.ones_like(factor), factor))
    sgd(params, grads, momentum_buffers, weight_decay=0.0, lr=lr, **options)
