"""One entry point for lists of tensors; the paths behind it are chosen by `kernel=`.

- ``native``: C, for dense CPU tensors (native.py); whole optimizer steps too (steps.py)
- ``triton``: one launch per list, for CUDA tensors (triton.py); whole optimizer steps too
- ``foreach``: torch's own list operations, for any device (foreach.py)
- ``reference``: the equation, tensor by tensor (operator.py)

An explicit choice is obeyed or refused with the reason; ``auto`` takes the first that fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import centralize, has_shared_elements
from . import foreach, native

__all__ = ["centralize_gradients_", "centralized", "foreach", "native"]

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
    chosen = _chosen(gradients, layouts)
    if not chosen:
        return list(gradients)
    result = list(gradients)
    own = [gradients[i] for i in chosen]
    for i, each in zip(
        chosen,
        _centralized(own, [layouts[i] for i in chosen], [weights[i] for i in chosen], decay, kernel),
        strict=True,
    ):
        result[i] = each
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
        (each, layout)
        for each, layout in zip(parameters, layouts, strict=True)
        if layout is not None and each.grad is not None and not each.grad.is_sparse
    ]
    if not pairs:
        return
    weights = [each for each, _ in pairs]
    gradients: list[Tensor] = [each.grad for each in weights]  # type: ignore[misc]
    own = [layout for _, layout in pairs]
    if _may_be_native(gradients, kernel):
        try:
            replaced = native.centralize_(gradients, own, *_as_numbers(weights, decay))
            for i, result in replaced.items():
                weights[i].grad = result
            return
        except native.Unsupported as problem:
            _refuse_if_asked(kernel, "native", problem)
    for parameter, gradient, result in zip(
        weights, gradients, _centralized(gradients, own, weights, decay, kernel), strict=True
    ):
        if has_shared_elements(gradient):  # an expanded gradient, as sum().backward() makes
            parameter.grad = result
        else:
            gradient.copy_(result)


def _centralized(
    gradients: list[Tensor],
    layouts: Sequence[Layout | None],
    weights: list[Tensor],
    decay: Decay,
    kernel: str,
) -> list[Tensor]:
    """All have layouts; take the first path that fits, or the one that was asked for."""
    if _may_be_native(gradients, kernel):
        try:
            return native.centralized(gradients, layouts, *_as_numbers(weights, decay))
        except native.Unsupported as problem:
            _refuse_if_asked(kernel, "native", problem)
    if kernel == "triton" or (kernel == "auto" and gradients[0].is_cuda):
        from . import triton

        if triton.available() or kernel == "triton":
            try:
                return triton.centralized(gradients, layouts, *_with_decay(weights, decay))
            except native.Unsupported as problem:
                _refuse_if_asked(kernel, "triton", problem)
    if kernel == "foreach" or (kernel == "auto" and len(gradients) > 1 and not torch.is_grad_enabled()):
        try:
            return foreach.centralized(gradients, layouts, *_with_decay(weights, decay))
        except native.Unsupported as problem:
            _refuse_if_asked(kernel, "foreach", problem)
    shares, strength = _with_decay(weights, decay)
    return [
        centralize(gradient, layout, weight=shares and shares[i], decay=strength)  # type: ignore[arg-type]
        for i, (gradient, layout) in enumerate(zip(gradients, layouts, strict=True))
    ]


def _chosen(gradients: Sequence[Tensor], layouts: Sequence[Layout | None]) -> list[int]:
    return [i for i, layout in enumerate(layouts) if layout is not None and not gradients[i].is_sparse]


def _may_be_native(gradients: Sequence[Tensor], kernel: str) -> bool:
    if kernel == "native":
        if not native.available():
            raise RuntimeError(f"kernel='native' is not to be had: {native.reason()}. Use kernel='auto'")
        if torch.is_grad_enabled() and any(each.requires_grad for each in gradients):
            raise RuntimeError("kernel='native' cannot be differentiated through; use kernel='reference'")
        return True
    # With gradients enabled somebody may want to differentiate through the result.
    return (
        kernel == "auto"
        and native.available()
        and gradients[0].device.type == "cpu"
        and not torch.is_grad_enabled()
    )


def _refuse_if_asked(kernel: str, path: str, problem: Exception) -> None:
    if kernel == path:
        raise TypeError(f"kernel={path!r} cannot take this list: {problem}. Use kernel='auto'") from problem


def _with_decay(weights: list[Tensor], decay: Decay) -> tuple[list[Tensor] | None, Decay]:
    """No decay, no need to read the weights."""
    return (weights, decay) if isinstance(decay, Tensor) or decay != 0 else (None, 0.0)


def _as_numbers(weights: list[Tensor], decay: Decay) -> tuple[list[Tensor] | None, float]:
    decay = float(decay)
    return (weights, decay) if decay else (None, 0.0)
