"""SGDW: SGD with decoupled weight decay (Loshchilov and Hutter), which torch.optim does not have."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ._base import Seamed
from ._torch_step import centralized_step


def sgdw(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffer_list: Any,
    *,
    weight_decay: Any,
    lr: Any,
    **options: Any,
) -> None:
    """w ← (1 − lr·λ)·w, then the SGD step without decay; nothing happens where a GradScaler saw inf."""
    if not isinstance(weight_decay, (int, float)) or weight_decay != 0:
        kept = 1 - lr * weight_decay
        found = options.get("found_inf")
        for parameter in params:
            if found is None:
                parameter.mul_(kept)
            else:
                wide = torch.float64 if parameter.dtype is torch.float64 else torch.float32
                factor = torch.as_tensor(kept, dtype=wide, device=found.device)
                parameter.mul_(torch.where(found.reshape(()) > 0, torch.ones_like(factor), factor))
    sgd(params, grads, momentum_buffer_list, weight_decay=0.0, lr=lr, **options)


class SGDW(Seamed, torch.optim.SGD):
    """SGD whose weight decay multiplies the weight by 1 − lr·λ, as AdamW's does."""

    decay_kind: ClassVar[str] = "decoupled"
    step = centralized_step(torch.optim.SGD, "sgd", sgdw)
