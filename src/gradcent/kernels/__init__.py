"""One entry point for centralizing lists of tensors; the paths behind it are chosen by `kernel=`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import centralize


def centralized(
    gradients: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    weights: Sequence[Tensor],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> list[Tensor]:
    """Return g − mean(g + decay·w) for each gradient that has a layout, the others as they are."""
    with_decay = isinstance(decay, Tensor) or decay != 0
    return [
        gradient
        if layout is None or gradient.is_sparse
        else centralize(gradient, layout, weight=weight if with_decay else None, decay=decay)
        for gradient, layout, weight in zip(gradients, layouts, weights, strict=True)
    ]


def centralize_gradients_(
    parameters: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> None:
    """Centralize the `grad` of each parameter that has a layout, in place where memory allows."""
    chosen = [(each, layout) for each, layout in zip(parameters, layouts, strict=True) if layout is not None]
    gradients = [each.grad for each, _ in chosen if each.grad is not None]
    results = centralized(
        gradients, [layout for _, layout in chosen], [each for each, _ in chosen], decay=decay, kernel=kernel
    )
    for (parameter, _), gradient, result in zip(chosen, gradients, results, strict=True):
        if torch._debug_has_internal_overlap(gradient) == 0:
            gradient.copy_(result)
        else:  # an expanded gradient, as sum().backward() makes: several elements share one place
            parameter.grad = result
