"""GC on DTensors (FSDP2, tensor parallel): each rank centralizes the shard it holds.

Where no weight vector is cut this needs no communication, and the kernels run on the local shard. Where
vectors are cut, sums of the parts are added up over the ranks: all cut tensors of a step share one small
reduction. The result has the gradient's own placements; `g - g.mean()` would come back replicated
or partial, and momentum buffers would silently lose their sharding.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import kernels
from ..layout import Layout
from ..operator import restore_means_ as _restore_means_
from ..operator import vector_means as _vector_means
from .geometry import Share, share


def any_sharded(tensors: Sequence[Tensor | None]) -> bool:
    """Whether there is a DTensor among these; costs next to nothing where nobody uses them."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and getattr(module, "DTensor", None) in set(map(type, tensors))


def is_sharded(tensor: Tensor) -> bool:
    """Whether this is a DTensor."""
    return any_sharded([tensor])


def refuse_compiling(tensors: Sequence[Tensor]) -> None:
    """Say that a step over DTensors cannot be compiled, where somebody is doing that."""
    if torch.compiler.is_compiling() and any_sharded(tensors):
        raise RuntimeError(
            "gradcent: a step over sharded parameters (DTensor) cannot be compiled; "
            "call optimizer.step() as it is, and compile the model alone"
        )


def centralized(
    gradients: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    weights: Sequence[Tensor],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> list[Tensor]:
    """`kernels.centralized` for lists in which there may be DTensors."""
    if not any_sharded(gradients):
        return kernels.centralized(gradients, layouts, weights, decay=decay, kernel=kernel)
    with torch.no_grad():
        gradients = [
            gradient if layout is None else _settled(gradient)
            for gradient, layout in zip(gradients, layouts, strict=True)
        ]
        shards = [_Shard.of(*each) for each in zip(gradients, layouts, weights, strict=True)]
        results = kernels.centralized(
            [each.local for each in shards],
            [each.layout for each in shards],
            [each.weight for each in shards],
            decay=decay,
            kernel=kernel,
        )
        cut = [index for index, each in enumerate(shards) if each.share is not None]
        rests = _centralize_irregular([shards[index] for index in cut], decay)
        for index, rest in zip(cut, rests, strict=True):
            results[index] = rest
        return [each.like_gradient(result) for each, result in zip(shards, results, strict=True)]


def centralize_gradients_(
    parameters: Sequence[Tensor],
    layouts: Sequence[Layout | None],
    *,
    decay: float | Tensor,
    kernel: str = "auto",
) -> None:
    """`kernels.centralize_gradients_` for lists in which there may be DTensors."""
    gradients = [each.grad for each in parameters]
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
                parameter.grad = result  # a partial sum was settled
            else:
                _local(gradient).copy_(_local(result))


def vector_means(weights: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Tensor]:
    """Return what :func:`restore_means_` needs to know of the weights before a step; no communication."""
    if not any_sharded(weights):
        return [_vector_means(each, layout) for each, layout in zip(weights, layouts, strict=True)]
    shards = [_Shard.of(each.detach(), layout, each) for each, layout in zip(weights, layouts, strict=True)]
    return [
        _sums(each.local, each.share)
        if each.share is not None
        else each.local  # nothing of this tensor is here
        if each.layout is None
        else _vector_means(each.local, each.layout)
        for each in shards
    ]


def restore_means_(weights: Sequence[Tensor], layouts: Sequence[Layout], means: Sequence[Tensor]) -> None:
    """Shift each weight vector so that its mean is what it was: one reduction for all that are cut."""
    if not any_sharded(weights):
        for each, layout, mean in zip(weights, layouts, means, strict=True):
            _restore_means_(each, layout, mean)
        return
    with torch.no_grad():
        cut: list[tuple[_Shard, Tensor]] = []
        for each, layout, before in zip(weights, layouts, means, strict=True):
            shard = _Shard.of(each.detach(), layout, each)
            if shard.share is not None:
                cut.append((shard, before))
            elif shard.layout is not None:
                _restore_means_(shard.local, shard.layout, before)
        drifts = _added_up([(shard, _sums(shard.local, shard.share) - before) for shard, before in cut])
        for (shard, _), drift in zip(cut, drifts, strict=True):
            shard.local.copy_(_shifted(shard.local, shard.share, drift))


def whole_vectors(tensor: Tensor, layout: Layout) -> tuple[Tensor, Layout] | None:
    """Return the tensor (of a DTensor, the shard) if whole weight vectors of it are here, and their layout."""
    shard = _Shard.of(tensor.detach(), layout, tensor)
    return None if shard.layout is None else (shard.local, shard.layout)


class _Shard:
    """A gradient as this rank sees it: the local tensor, and its local layout or its share of cut vectors."""

    __slots__ = ("gradient", "layout", "local", "mesh", "share", "weight")

    def __init__(self, gradient: Tensor, local: Tensor, weight: Tensor, layout: Layout | None) -> None:
        self.gradient, self.local, self.weight, self.layout = gradient, local, weight, layout
        self.share: Any = None  # set where the vectors are not simply there
        self.mesh: Any = None

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
        made = cls(gradient, local, _local(weight), None)
        if coordinate is None:  # this rank has no part in the tensor
            return made
        made.mesh = mesh
        held = share(layout, tuple(gradient.shape), placements, tuple(mesh.shape), tuple(coordinate))
        if held.shape != tuple(local.shape):
            raise RuntimeError(
                f"a tensor of shape {tuple(gradient.shape)} placed as {placements} holds {tuple(local.shape)} "
                f"here, where gradcent expects {held.shape}: this way of sharding is not known to it; "
                "please report it, and leave the parameter out with overrides={name: None}"
            )
        if held.layout is None:
            made.share = held
        elif local.numel():
            made.layout = held.layout
        return made

    def like_gradient(self, result: Tensor) -> Tensor:
        """Give a result the gradient's own placements."""
        if result is self.local:
            return self.gradient
        if not is_sharded(self.gradient):
            return result
        whole: Any = self.gradient
        return type(whole).from_local(  # type: ignore[no-any-return]
            result,
            whole.device_mesh,
            whole.placements,
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )


def _centralize_irregular(shards: list[_Shard], decay: float | Tensor) -> list[Tensor]:
    """Centralize shards whose vectors are cut (or lie irregularly); one reduction for all of them."""
    with_decay = isinstance(decay, Tensor) or decay != 0
    shifts = [decay * _sums(each.weight, each.share) if with_decay else 0.0 for each in shards]
    rests = [each.local for each in shards]
    # Sums of float32 and half numbers are taken in float64, so that one pass leaves a constant row
    # exactly 0; float64 itself has nothing wider and gets a second pass, as in operator.py.
    for again in (False, True):
        turn = [index for index, rest in enumerate(rests) if not again or rest.dtype in _DOUBLE]
        sums = [(shards[index], _sums(rests[index], shards[index].share) + shifts[index]) for index in turn]
        for index, total in zip(turn, _added_up(sums), strict=True):
            rests[index] = _shifted(rests[index], shards[index].share, total)
    return rests


_DOUBLE = (torch.float64, torch.complex128)


def _sums(local: Tensor, held: Share) -> Tensor:
    """Return the sum of the part of each vector that is here, in float64 where the device has it."""
    real = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
    wide = torch.float32 if local.device.type == "mps" else torch.float64
    averaged = [dim for dim, each in enumerate(held.vectors) if each == 1]
    sums = real.sum(averaged, keepdim=True, dtype=wide) if averaged else real.to(wide)
    for dim, each in enumerate(held.vectors):
        if isinstance(each, tuple):
            shape = (*sums.shape[:dim], held.kept[dim], *sums.shape[dim + 1 :])
            sums = sums.new_zeros(shape).index_add_(dim, _index(each, local.device), sums)
    return sums


@lru_cache(maxsize=1024)
def _index(vectors: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the vectors' numbers on the device, kept there: a copy in every step would wait for it."""
    return torch.tensor(vectors, device=device, dtype=torch.long)


def _added_up(sums: list[tuple[_Shard, Tensor]]) -> list[Tensor]:
    """Add up the sums of cut vectors over the ranks that hold parts of them, all in one reduction."""
    results = [each for _, each in sums]
    buckets: dict[tuple[Any, ...], list[int]] = {}
    for index, (shard, each) in enumerate(sums):
        if shard.share.reduce:
            groups = tuple(shard.mesh.get_group(axis) for axis in shard.share.reduce)
            buckets.setdefault((groups, each.dtype, each.device), []).append(index)
    for (groups, _, _), indices in buckets.items():
        flat = torch.cat([results[index].reshape(-1) for index in indices])
        for group in groups:
            torch.distributed.all_reduce(flat, group=group)
        pieces = torch.split(flat, [results[index].numel() for index in indices])
        for index, piece in zip(indices, pieces, strict=True):
            results[index] = piece.view_as(results[index])
    return results


def _shifted(local: Tensor, held: Share, totals: Tensor) -> Tensor:
    """Subtract from each element the mean of its vector, whose sum is given."""
    real = torch.view_as_real(local.resolve_conj()) if local.is_complex() else local
    means = totals / held.length
    for dim, each in enumerate(held.vectors):
        if isinstance(each, tuple):
            means = means.index_select(dim, _index(each, local.device))
    half = real.dtype in (torch.float16, torch.bfloat16)
    work = torch.float32 if half else real.dtype
    coarse = means.to(work)
    fine = (means - coarse).to(work)  # what rounding the mean left; without it the rest has a mean of its own
    rest = real.to(work) - coarse
    rest = torch.where(fine.isfinite(), rest - fine, rest).to(real.dtype)
    return torch.view_as_complex(rest) if local.is_complex() else rest


def _settled(gradient: Tensor) -> Tensor:
    """Turn a gradient that is still a sum over ranks into one that is there."""
    if not is_sharded(gradient):
        return gradient
    placements = gradient.placements  # type: ignore[attr-defined]
    if not any(each.is_partial() for each in placements):
        return gradient
    from torch.distributed.tensor import Replicate

    settled = [Replicate() if each.is_partial() else each for each in placements]
    return gradient.redistribute(placements=settled)  # type: ignore[attr-defined,no-any-return]


def _local(tensor: Tensor) -> Tensor:
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()
