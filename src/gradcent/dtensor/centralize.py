"""GC on DTensors (FSDP2, tensor parallel): each rank centralizes its local shard.

If no weight vector is split over ranks, this needs no communication and the kernels run on the local shard. The
partial sums of split vectors are all-reduced: all split tensors of a step share one small all-reduce. The result has
the gradient's placements; `g - g.mean()` may return a replicated or partial tensor, and momentum buffers would
silently lose their sharding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from ..layout import Layout
from . import simulated
from .shard import Shard, all_reduce_sums, any_sharded, is_sharded, local_of, shifted, sums_of


def centralized(
    gradients: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    weights: Sequence[Tensor],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> list[Tensor]:
    """`kernels.centralized` for lists that may contain DTensors."""
    if not any_sharded(gradients):
        return kernels.centralized(gradients, layouts, weights, decay=decay, kernel=kernel)
    with torch.no_grad():
        gradients = [
            gradient if layout is None else _resolve_partial(gradient)
            for gradient, layout in zip(gradients, layouts, strict=True)
        ]
        shards = [Shard.of(*item) for item in zip(gradients, layouts, weights, strict=True)]
        # In a simulation, `layout` and `share` of a shard are None: it is centralized as a whole.
        results = kernels.centralized(
            [shard.local for shard in shards],
            [shard.layout for shard in shards],
            [shard.weight for shard in shards],
            decay=decay,
            kernel=kernel,
        )
        split = [index for index, shard in enumerate(shards) if shard.share is not None]
        split_results = _centralize_split([shards[index] for index in split], decay)
        for index, result in zip(split, split_results, strict=True):
            results[index] = result
        return [
            simulated.centralized(shard.gradient, layout, weight, decay)
            if shard.simulated and layout is not None
            else shard.like_gradient(result)
            for shard, result, layout, weight in zip(shards, results, layouts, weights, strict=True)
        ]


def centralize_gradients_(
    parameters: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> None:
    """`kernels.centralize_gradients_` for lists that may contain DTensors."""
    gradients = [param.grad for param in parameters]
    if not any_sharded(gradients):
        return kernels.centralize_gradients_(parameters, layouts, decay=decay, kernel=kernel)
    chosen = [
        (parameter, gradient, layout)
        for parameter, gradient, layout in zip(parameters, gradients, layouts, strict=True)
        if gradient is not None and layout is not None
    ]
    results = centralized(
        [gradient for _, gradient, _ in chosen],
        [layout for _, _, layout in chosen],
        [parameter for parameter, _, _ in chosen],
        decay=decay,
        kernel=kernel,
    )
    with torch.no_grad():
        for (parameter, gradient, _), result in zip(chosen, results, strict=True):
            if is_sharded(gradient) and gradient.placements != result.placements:  # type: ignore[attr-defined]
                parameter.grad = result  # the gradient was a partial sum
            else:
                local_of(gradient).copy_(local_of(result))


def whole_vectors(tensor: Tensor, layout: Layout) -> tuple[Tensor, Layout] | None:
    """Return the tensor (of a DTensor, the local shard) and its layout if its weight vectors are not split."""
    shard = Shard.of(tensor.detach(), layout, tensor)
    return None if shard.layout is None else (shard.local, shard.layout)


def _centralize_split(shards: list[Shard], decay: float | Tensor) -> list[Tensor]:
    """Centralize shards whose vectors are split (or lie irregularly); one all-reduce for all of them."""
    with_decay = isinstance(decay, Tensor) or decay != 0
    shifts = [decay * sums_of(shard.weight, shard.share) if with_decay else 0.0 for shard in shards]
    rests = [shard.local for shard in shards]
    # Sums of float32 and half types are accumulated in float64, so that one pass makes a constant row exactly 0.
    # float64 has no wider type and gets a second pass, as in operator.py.
    for second_pass in (False, True):
        indices = [index for index, rest in enumerate(rests) if not second_pass or rest.dtype in _DOUBLE]
        sums = [
            (shards[index], sums_of(rests[index], shards[index].share) + shifts[index]) for index in indices
        ]
        for index, total in zip(indices, all_reduce_sums(sums), strict=True):
            rests[index] = shifted(rests[index], shards[index].share, total)
    return rests


_DOUBLE = (torch.float64, torch.complex128)


def _resolve_partial(gradient: Tensor) -> Tensor:
    """All-reduce a gradient whose placements are partial; return other gradients unchanged."""
    if not is_sharded(gradient):
        return gradient
    placements = gradient.placements  # type: ignore[attr-defined]
    if not any(placement.is_partial() for placement in placements):
        return gradient
    from torch.distributed.tensor import Replicate

    resolved = [Replicate() if placement.is_partial() else placement for placement in placements]
    return gradient.redistribute(placements=resolved)  # type: ignore[attr-defined,no-any-return]
