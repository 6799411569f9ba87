"""SGDW: SGD with decoupled weight decay (Loshchilov and Hutter), which torch.optim does not have."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ._base import Seamed
from ._seam import centralized_step


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
        if options.get("found_inf") is not None:
            kept = torch.where(options["found_inf"] > 0, 1.0, kept)
        for parameter in params:
            parameter.mul_(kept)
    sgd(params, grads, momentum_buffer_list, weight_decay=0.0, lr=lr, **options)


class SGDW(Seamed, torch.optim.SGD):
    """SGD whose weight decay multiplies the weight by 1 − lr·λ, as AdamW's does."""

    decay_kind: ClassVar[str] = "decoupled"
    step = centralized_step(torch.optim.SGD, "sgd", sgdw)
