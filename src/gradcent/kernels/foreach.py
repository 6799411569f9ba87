"""Centralizing a list with torch's own list operations, on any device.

The means are one reduction per tensor; the rest is a few `_foreach` calls for the whole list, where a plain
loop would launch a dozen operations per tensor. It is as exact as the reference: two passes, so that a constant
vector leaves exactly 0.
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
    selected = [i for i, layout in enumerate(layouts) if layout is not None and tensors[i].numel() > 0]
    for i in selected:
        _check(i, tensors[i])
    if not selected:
        return out
    chosen: list[Layout] = [layouts[i] for i in selected]  # type: ignore[misc]
    splits = [layout.split(tensors[i].shape) for i, layout in zip(selected, chosen, strict=True)]
    views = [tensors[i].view(shape) for i, (shape, _) in zip(selected, splits, strict=True)]
    residuals = [view.float() if view.dtype in _HALF else view for view in views]
    # vector_means takes the original dims; it handles sums that overflow.
    means = [
        vector_means(residual.view(tensors[i].shape), layout)
        for i, residual, layout in zip(selected, residuals, chosen, strict=True)
    ]
    shifts: list[Tensor] | None = None
    if weights is not None:
        shifts = [
            vector_means(weights[i].detach(), layout).to(mean.dtype)
            for i, layout, mean in zip(selected, chosen, means, strict=True)
        ]
        shifts = list(torch._foreach_mul(shifts, decay))
        means = list(torch._foreach_add(means, shifts))
    residuals = list(torch._foreach_sub(residuals, means))
    # The first mean is rounded; the mean of what it leaves is subtracted, too.
    corrections = [
        residual.sum(dims, keepdim=True) / layout.length
        for residual, (_, dims), layout in zip(residuals, splits, chosen, strict=True)
    ]
    if shifts is not None:
        corrections = list(torch._foreach_add(corrections, shifts))
    corrections = [torch.where(correction.isfinite(), correction, 0.0) for correction in corrections]
    torch._foreach_sub_(residuals, corrections)
    for i, residual in zip(selected, residuals, strict=True):
        out[i] = residual.to(tensors[i].dtype).view(tensors[i].shape)
    return out


def _check(index: int, tensor: Tensor) -> None:
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    if not plain or not tensor.is_floating_point() or tensor.layout is not torch.strided:
        raise Unsupported(f"tensor {index}: a {type(tensor).__name__} of {tensor.dtype}, {tensor.layout}")
