"""GC on DTensors (FSDP2, tensor parallel): each rank centralizes its local shard.

If no weight vector is split over ranks, this needs no communication and the kernels run on the local shard. The
partial sums of split vectors are all-reduced: all split tensors of a step share one small all-reduce. The result has
the gradient's placements; `g - g.mean()` may return a replicated or partial tensor, and momentum buffers would
silently lose their sharding.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..kernels.means import ListMeans
from ..layout import Layout
from . import simulated
from .geometry import Share, share


def any_sharded(tensors: Sequence[Tensor | None]) -> bool:
    """Whether one of these is a DTensor; this costs almost nothing if torch.distributed.tensor is not imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and getattr(module, "DTensor", None) in set(map(type, tensors))


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    return any_sharded([tensor])


def refuse_compiling(tensors: Sequence[Tensor]) -> None:
    """Raise if a step over DTensors is being compiled."""
    if torch.compiler.is_compiling() and any_sharded(tensors):
        raise RuntimeError(
            "gradcent: a step over sharded parameters (DTensor) cannot be compiled; "
            "call optimizer.step() uncompiled, and compile the model alone"
        )


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
        shards = [_Shard.of(*item) for item in zip(gradients, layouts, weights, strict=True)]
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
                _local(gradient).copy_(_local(result))


class UpdateProjection:
    """Projects the change of a list of weights in a step, for `at="update"`: record, step, restore.

    Entries of ``layouts`` that are None mark tensors that are left alone.
    """

    def __init__(self, layouts: Sequence[Layout | None], kernel: str = "auto") -> None:
        self.kernel = kernel
        self.indices = [index for index, layout in enumerate(layouts) if layout is not None]
        self.layouts = [layout for layout in layouts if layout is not None]
        self._means = ListMeans(self.layouts, kernel)
        self._sharded: tuple[ListMeans, list[Tensor]] | None = None
        self._simulated: list[tuple[int, Tensor]] = []  # means of DTensors of simulated ranks

    def record(self, params: Sequence[Tensor]) -> None:
        """Record the means before the step; no communication."""
        weights = [params[index] for index in self.indices]
        self._sharded = None
        if not any_sharded(weights):
            self._means.record(weights)
            return
        self._simulated = [
            (index, simulated.vector_means(weight, layout))
            for index, (weight, layout) in enumerate(zip(weights, self.layouts, strict=True))
            if is_sharded(weight) and simulated.is_simulated(weight)
        ]
        whole, split = _whole_and_split(weights, self.layouts)
        means = ListMeans([shard.layout for shard in whole if shard.layout is not None], self.kernel)
        means.record([shard.local for shard in whole])
        self._sharded = means, [_sums(shard.local, shard.share) for shard in split]

    def restore_(self, params: Sequence[Tensor]) -> None:
        """Restore the means after the step; one all-reduce for all split vectors."""
        weights = [params[index] for index in self.indices]
        if self._sharded is None:
            self._means.restore_(weights)
            return
        means, sums = self._sharded
        with torch.no_grad():
            whole, split = _whole_and_split(weights, self.layouts)
            means.restore_([shard.local for shard in whole])
            drifts = [
                (shard, _sums(shard.local, shard.share) - before)
                for shard, before in zip(split, sums, strict=True)
            ]
            for shard, drift in zip(split, _all_reduce_sums(drifts), strict=True):
                shard.local.copy_(_shifted(shard.local, shard.share, drift))
            for index, mean in self._simulated:
                simulated.restore_means_(weights[index].detach(), self.layouts[index], mean)
        self._sharded, self._simulated = None, []


def _whole_and_split(
    weights: Sequence[Tensor], layouts: Sequence[Layout]
) -> tuple[list[_Shard], list[_Shard]]:
    """Return the shards whose vectors are whole and those whose vectors are split; some hold no element at all."""
    shards = [
        _Shard.of(weight.detach(), layout, weight) for weight, layout in zip(weights, layouts, strict=True)
    ]
    whole = [shard for shard in shards if shard.share is None and shard.layout is not None]
    return whole, [shard for shard in shards if shard.share is not None]


def whole_vectors(tensor: Tensor, layout: Layout) -> tuple[Tensor, Layout] | None:
    """Return the tensor (of a DTensor, the local shard) and its layout if its weight vectors are not split."""
    shard = _Shard.of(tensor.detach(), layout, tensor)
    return None if shard.layout is None else (shard.local, shard.layout)


class _Shard:
    """The part of a gradient on this rank: the local tensor, and its local layout or its share of split vectors."""

    __slots__ = ("gradient", "layout", "local", "mesh", "share", "simulated", "weight")

    def __init__(self, gradient: Tensor, local: Tensor, weight: Tensor, layout: Layout | None) -> None:
        self.gradient, self.local, self.weight, self.layout = gradient, local, weight, layout
        self.share: Any = (
            None  # set if the vectors are split over ranks, or lie irregularly in the local tensor
        )
        self.mesh: Any = None
        self.simulated = False  # whether all ranks live in this process

    @classmethod
    def of(cls, gradient: Tensor, layout: Layout | None, weight: Tensor) -> _Shard:
        if layout is None or not is_sharded(gradient):
            return cls(gradient, gradient, weight, layout)
        refuse_compiling([gradient])
        mesh, placements = gradient.device_mesh, gradient.placements  # type: ignore[attr-defined]
        local = _local(gradient)
        coordinate = mesh.get_coordinate()
        if is_sharded(weight) and weight.placements != placements:  # type: ignore[attr-defined]
            weight = weight.detach().redistribute(placements=placements)  # type: ignore[attr-defined]
        shard = cls(gradient, local, _local(weight), None)
        if coordinate is None:  # this rank is not in the mesh
            return shard
        shard.mesh = mesh
        shard.simulated = simulated.is_simulated(gradient)
        if shard.simulated:
            return shard
        held = share(layout, tuple(gradient.shape), placements, tuple(mesh.shape), tuple(coordinate))
        if held.shape != tuple(local.shape):
            raise RuntimeError(
                f"a tensor of shape {tuple(gradient.shape)} placed as {placements} holds {tuple(local.shape)} "
                f"on this rank, where gradcent expects {held.shape}: gradcent does not support this sharding; "
                "please report it, and leave the parameter out with overrides={name: None}"
            )
        if held.layout is None:
            shard.share = held
        elif local.numel():
            shard.layout = held.layout
        return shard

    def like_gradient(self, result: Tensor) -> Tensor:
        """Return a local result as a DTensor with the gradient's placements."""
        if result is self.local:
            return self.gradient
        if not is_sharded(self.gradient):
            return result
        gradient: Any = self.gradient
        return type(gradient).from_local(  # type: ignore[no-any-return]
            result,
            gradient.device_mesh,
            gradient.placements,
            run_check=False,
            shape=gradient.shape,
            stride=gradient.stride(),
        )


def _centralize_split(shards: list[_Shard], decay: float | Tensor) -> list[Tensor]:
    """Centralize shards whose vectors are split (or lie irregularly); one all-reduce for all of them."""
    with_decay = isinstance(decay, Tensor) or decay != 0
    shifts = [decay * _sums(shard.weight, shard.share) if with_decay else 0.0 for shard in shards]
    rests = [shard.local for shard in shards]
    # Sums of float32 and half types are accumulated in float64, so that one pass makes a constant row exactly 0.
    # float64 has no wider type and gets a second pass, as in operator.py.
    for second_pass in (False, True):
        indices = [index for index, rest in enumerate(rests) if not second_pass or rest.dtype in _DOUBLE]
        sums = [
            (shards[index], _sums(rests[index], shards[index].share) + shifts[index]) for index in indices
        ]
        for index, total in zip(indices, _all_reduce_sums(sums), strict=True):
            rests[index] = _shifted(rests[index], shards[index].share, total)
    return rests


_DOUBLE = (torch.float64, torch.complex128)


def _sums(local: Tensor, held: Share) -> Tensor:
    """Return the sum of the local part of each vector, in float64 if the device has it."""
    real = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
    wide = torch.float32 if local.device.type == "mps" else torch.float64
    averaged = [dim for dim, index in enumerate(held.vectors) if index == 1]
    sums = real.sum(averaged, keepdim=True, dtype=wide) if averaged else real.to(wide)
    for dim, index in enumerate(held.vectors):
        if isinstance(index, tuple):
            shape = (*sums.shape[:dim], held.kept[dim], *sums.shape[dim + 1 :])
            sums = sums.new_zeros(shape).index_add_(dim, _index(index, local.device), sums)
    return sums


@lru_cache(maxsize=1024)
def _index(vectors: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the vector indices on the device, cached: a copy in every step would synchronize."""
    return torch.tensor(vectors, device=device, dtype=torch.long)


def _all_reduce_sums(sums: list[tuple[_Shard, Tensor]]) -> list[Tensor]:
    """All-reduce the sums of split vectors over the ranks that hold parts of them, in one call per process group."""
    results = [local_sums for _, local_sums in sums]
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for index, (shard, local_sums) in enumerate(sums):
        if shard.share.reduce:
            groups = tuple(shard.mesh.get_group(axis) for axis in shard.share.reduce)
            buckets.setdefault((groups, local_sums.dtype, local_sums.device), []).append(index)
    for (groups, _, _), indices in buckets.items():
        flat = torch.cat([results[index].reshape(-1) for index in indices])
        for group in groups:
            torch.distributed.all_reduce(flat, group=group)
        pieces = torch.split(flat, [results[index].numel() for index in indices])
        for index, piece in zip(indices, pieces, strict=True):
            results[index] = piece.view_as(results[index])
    return results


def _shifted(local: Tensor, held: Share, totals: Tensor) -> Tensor:
    """Subtract from each element the mean of its vector, given the vectors' sums."""
    real = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
    means = totals / held.length
    for dim, index in enumerate(held.vectors):
        if isinstance(index, tuple):
            means = means.index_select(dim, _index(index, local.device))
    half = real.dtype in (torch.float16, torch.bfloat16)
    work = torch.float32 if half else real.dtype
    coarse = means.to(work)
    fine = (means - coarse).to(work)  # the rounding error of the mean; without it the result has a small mean
    rest = real.to(work) - coarse
    rest = torch.where(fine.isfinite(), rest - fine, rest).to(real.dtype)
    return torch.view_as_complex(rest) if local.is_complex() else rest


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


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()
