"""The shard of a DTensor on this rank, and the sums of weight vectors that are split over ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

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


class Shard:
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
    def of(cls, gradient: Tensor, layout: Layout | None, weight: Tensor) -> Shard:
        """Return the shard of a gradient; ``layout`` refers to the whole tensor."""
        if layout is None or not is_sharded(gradient):
            return cls(gradient, gradient, weight, layout)
        refuse_compiling([gradient])
        mesh, placements = gradient.device_mesh, gradient.placements  # type: ignore[attr-defined]
        local = local_of(gradient)
        coordinate = mesh.get_coordinate()
        if is_sharded(weight) and weight.placements != placements:  # type: ignore[attr-defined]
            weight = weight.detach().redistribute(placements=placements)  # type: ignore[attr-defined]
        shard = cls(gradient, local, local_of(weight), None)
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


def sums_of(local: Tensor, held: Share) -> Tensor:
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


def all_reduce_sums(sums: list[tuple[Shard, Tensor]]) -> list[Tensor]:
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


def shifted(local: Tensor, held: Share, totals: Tensor) -> Tensor:
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


def local_of(tensor: Tensor) -> Tensor:
    """Return the local shard of a DTensor, any other tensor itself, both detached."""
    to_local = getattr(tensor, "to_local", None)
    return tensor.detach() if to_local is None else to_local().detach()
