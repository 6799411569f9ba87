"""Centralizing a list with torch's own list operations: for devices that have no kernels of ours.

The means are one reduction per tensor; the rest is a handful of `_foreach` calls for the whole list,
where a plain loop would launch a dozen operations per tensor. Accuracy is the reference's: two
passes, so that a constant vector leaves exactly 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import vector_means
from .native import Unsupported

_HALF = (torch.float16, torch.bfloat16)


def centralized(
    tensors: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    weights: Sequence[Tensor] | None = None,
    decay: float | Tensor = 0.0,
) -> list[Tensor]:
    """Return t − mean(t + decay·w) for each tensor; those without a layout are returned as they are."""
    out = list(tensors)
    chosen = [i for i, layout in enumerate(layouts) if layout is not None and tensors[i].numel() > 0]
    for i in chosen:
        _check(i, tensors[i])
    if not chosen:
        return out
    flat: list[Layout] = [layouts[i] for i in chosen]  # type: ignore[misc]
    views = [
        tensors[i].view(layout.split(tensors[i].shape)[0]) for i, layout in zip(chosen, flat, strict=True)
    ]
    rest = [view.float() if view.dtype in _HALF else view for view in views]
    # All means are those of the original dims, so that vector_means (and its care for overflow) serves.
    means = [
        vector_means(each.view(tensors[i].shape), layout)
        for i, each, layout in zip(chosen, rest, flat, strict=True)
    ]
    shifts: list[Tensor] | None = None
    if weights is not None:
        shifts = [
            vector_means(weights[i].detach(), layout).to(mean.dtype)
            for i, layout, mean in zip(chosen, flat, means, strict=True)
        ]
        shifts = list(torch._foreach_mul(shifts, decay))
        means = list(torch._foreach_add(means, shifts))
    rest = list(torch._foreach_sub(rest, means))
    # The first mean carries rounding; what it leaves is removed by a second one.
    again = [each.sum(layout.split(tensors[i].shape)[1], keepdim=True) / layout.length
             for i, each, layout in zip(chosen, rest, flat, strict=True)]  # fmt: skip
    if shifts is not None:
        again = list(torch._foreach_add(again, shifts))
    again = [torch.where(each.isfinite(), each, 0.0) for each in again]
    torch._foreach_sub_(rest, again)
    for i, each in zip(chosen, rest, strict=True):
        out[i] = each.to(tensors[i].dtype).view(tensors[i].shape)
    return out


def _check(index: int, tensor: Tensor) -> None:
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    if not plain or not tensor.is_floating_point() or tensor.layout is not torch.strided:
        raise Unsupported(f"tensor {index}: a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}")
