"""Centralizing lists of gradients; `kernel=` chooses the implementation.

- ``native``: C, for dense CPU tensors (native.py); fused optimizer steps too
- ``triton``: one launch per list, for CUDA tensors (triton.py); fused optimizer steps too
- ``foreach``: torch's own list operations, for any device (foreach.py)
- ``reference``: the equation, tensor by tensor (operator.py)

An explicit choice is obeyed or refused with the reason; ``auto`` takes the first that supports the list.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import centralize, has_shared_elements
from . import foreach, native

Decay = float | Tensor


def centralized(
    gradients: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    weights: Sequence[Tensor],
    *,
    decay: Decay,
    kernel: str = "auto",
) -> list[Tensor]:
    """Return g − mean(g + decay·w) for each gradient that has a layout, the others as they are."""
    selected = [i for i, layout in enumerate(layouts) if layout is not None and not gradients[i].is_sparse]
    result = list(gradients)
    if not selected:
        return result
    new = _centralized(
        [gradients[i] for i in selected],
        [layouts[i] for i in selected],
        [weights[i] for i in selected],
        decay,
        kernel,
    )
    for i, gradient in zip(selected, new, strict=True):
        result[i] = gradient
    return result


def centralize_gradients_(
    parameters: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    *,
    decay: Decay,
    kernel: str = "auto",
) -> None:
    """Centralize the `grad` of each parameter that has a layout, in place where memory allows."""
    pairs = [
        (param, layout)
        for param, layout in zip(parameters, layouts, strict=True)
        if layout is not None and param.grad is not None and not param.grad.is_sparse
    ]
    if not pairs:
        return
    weights = [param for param, _ in pairs]
    gradients: list[Tensor] = [param.grad for param in weights]  # type: ignore[misc]
    selected = [layout for _, layout in pairs]
    if _use_native(gradients, kernel):
        try:
            replaced = native.centralize_(gradients, selected, *_decay_as_float(weights, decay))
            for i, gradient in replaced.items():
                weights[i].grad = gradient
            return
        except native.Unsupported as error:
            _refuse_if_requested(kernel, "native", error)
    for param, gradient, result in zip(
        weights, gradients, _centralized(gradients, selected, weights, decay, kernel), strict=True
    ):
        if has_shared_elements(gradient):  # an expanded gradient, as sum().backward() creates
            param.grad = result
        else:
            gradient.copy_(result)


def _centralized(
    gradients: list[Tensor],
    layouts: Sequence[Layout | None],
    weights: list[Tensor],
    decay: Decay,
    kernel: str,
) -> list[Tensor]:
    """All have layouts; take the first implementation that supports the list, or the requested one."""
    if _use_native(gradients, kernel):
        try:
            return native.centralized(gradients, layouts, *_decay_as_float(weights, decay))
        except native.Unsupported as error:
            _refuse_if_requested(kernel, "native", error)
    if kernel == "triton" or (kernel == "auto" and gradients[0].is_cuda):
        from . import triton

        if triton.available() or kernel == "triton":
            try:
                return triton.centralized(gradients, layouts, *_with_decay(weights, decay))
            except native.Unsupported as error:
                _refuse_if_requested(kernel, "triton", error)
    if kernel == "foreach" or (kernel == "auto" and len(gradients) > 1 and not torch.is_grad_enabled()):
        try:
            return foreach.centralized(gradients, layouts, *_with_decay(weights, decay))
        except native.Unsupported as error:
            _refuse_if_requested(kernel, "foreach", error)
    shares, strength = _with_decay(weights, decay)
    return [
        centralize(gradient, layout, weight=shares and shares[i], decay=strength)  # type: ignore[arg-type]
        for i, (gradient, layout) in enumerate(zip(gradients, layouts, strict=True))
    ]


def _use_native(gradients: Sequence[Tensor], kernel: str) -> bool:
    if kernel == "native":
        if not native.available():
            raise RuntimeError(f"kernel='native' is unavailable: {native.reason()}. Use kernel='auto'")
        if torch.is_grad_enabled() and any(gradient.requires_grad for gradient in gradients):
            raise RuntimeError("kernel='native' cannot be differentiated through; use kernel='reference'")
        return True
    # With gradients enabled the result may be differentiated through.
    return (
        kernel == "auto"
        and native.available()
        and gradients[0].device.type == "cpu"
        and not torch.is_grad_enabled()
    )


def _refuse_if_requested(kernel: str, path: str, error: Exception) -> None:
    if kernel == path:
        raise TypeError(f"kernel={path!r} cannot take this list: {error}. Use kernel='auto'") from error


def _with_decay(weights: list[Tensor], decay: Decay) -> tuple[list[Tensor] | None, Decay]:
    """Return the weights only if there is decay: otherwise they are not read."""
    return (weights, decay) if isinstance(decay, Tensor) or decay != 0 else (None, 0.0)


def _decay_as_float(weights: list[Tensor], decay: Decay) -> tuple[list[Tensor] | None, float]:
    decay = float(decay)
    return (weights, decay) if decay else (None, 0.0)
