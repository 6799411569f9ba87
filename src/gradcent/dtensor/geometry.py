"""Which part of a tensor's weight vectors one rank of a device mesh holds, as integers.

A DTensor's layout refers to its global shape. Sharding a dim that indexes vectors keeps every vector whole on one
rank. Sharding a dim that is averaged splits all vectors. The first dim of a grouped transposed convolution does both:
where a shard boundary falls inside a group, some vectors are split. Every rank computes the same result from shape,
placements and mesh, so the collectives of all ranks match.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..layout import Layout

Indices = Sequence[int]
Pieces = list[tuple[int, int]]  # (size, role) of the parts of one dim; roles 1 and 3 are averaged
_AVERAGED = (1, 3)


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank holds of a tensor's weight vectors."""

    shape: tuple[int, ...]  # of the local tensor
    layout: Layout | None  # of the local tensor, if its vectors are whole and a Layout describes them
    reduce: tuple[
        int, ...
    ]  # the mesh dims over which the sums of split vectors are all-reduced; empty: none is split
    vectors: tuple[tuple[int, ...] | int | None, ...]
    """Per dim of the tensor: 1 if it is averaged, None if it is kept, else the vector index of each element."""
    kept: tuple[int, ...]  # the number of vectors along each dim
    length: int  # of one whole weight vector


@lru_cache(maxsize=8192)
def share(
    layout: Layout,
    shape: tuple[int, ...],
    placements: tuple[Any, ...],
    mesh: tuple[int, ...],
    coordinate: tuple[int, ...],
) -> Share:
    """Return what the rank at ``coordinate`` of a mesh of that shape holds."""
    by_dim = [_sharding(placements, mesh, dim) for dim in range(len(shape))]
    pieces = _pieces(layout, shape)
    local = [_held(size, sharding, coordinate) for size, sharding in zip(shape, by_dim, strict=True)]
    reduce: set[int] = set()
    vectors: list[tuple[int, ...] | int | None] = []
    kept: list[int] = []
    for size, parts, sharding, held in zip(shape, pieces, by_dim, local, strict=True):
        split = _split_axes(size, parts, sharding)
        reduce |= split
        roles = {role in _AVERAGED for _, role in parts}
        if roles == {True}:
            vectors.append(1)
            kept.append(1)
        elif roles == {True, False}:
            ids = _vector_ids(parts)
            vectors.append(tuple(ids[index] for index in held))
            kept.append(max(ids) + 1)
        else:
            vectors.append(None)
            kept.append(len(held))
    whole = None if reduce else _local_layout(pieces, shape, local)
    return Share(
        shape=tuple(map(len, local)),
        layout=whole,
        reduce=tuple(sorted(reduce)),
        vectors=tuple(vectors),
        kept=tuple(kept),
        length=layout.length,
    )


def _sharding(placements: tuple[Any, ...], mesh: tuple[int, ...], dim: int) -> list[tuple[int, int, int]]:
    """Return (mesh dim, its size, split factor) of the mesh dims that shard ``dim``, in order."""
    axes = []
    for axis, (placement, size) in enumerate(zip(placements, mesh, strict=True)):
        name = type(placement).__name__
        if name in ("Shard", "_StridedShard"):
            if placement.dim == dim:
                axes.append((axis, size, int(getattr(placement, "split_factor", 1))))
        elif name != "Replicate":
            raise TypeError(
                f"gradcent does not support the placement {placement}; "
                "redistribute the gradient to Shard or Replicate first"
            )
    return axes


def _held(size: int, sharding: list[tuple[int, int, int]], coordinate: tuple[int, ...]) -> Indices:
    """Return the indices of a dim that the rank at ``coordinate`` holds."""
    held: Indices = range(size)
    strided = [entry for entry in sharding if entry[2] > 1]
    if strided and strided[0] == sharding[0]:
        later = math.prod(number for _, number, _ in sharding[1:])
        if strided[0][2] == later and len(strided) == 1:
            # FSDP2 over tensor parallel: the later mesh dims split first, without remainder.
            sharding = [*sharding[1:], (sharding[0][0], sharding[0][1], 1)]
    for axis, number, factor in sharding:
        if factor == 1:
            held = _chunk(held, number, coordinate[axis])
        else:
            pieces = (_chunk(held, factor, index) for index in range(factor))
            held = [index for piece in pieces for index in _chunk(piece, number, coordinate[axis])]
    return held


def _chunk(indices: Indices, number: int, index: int) -> Indices:
    """Return one chunk as torch.chunk does: all of the same size, the last ones shorter or empty."""
    size = -(-len(indices) // number)
    return indices[index * size : (index + 1) * size]


def _pieces(layout: Layout, shape: tuple[int, ...]) -> list[Pieces]:
    """Return the parts into which `Layout.split` splits each dim, with their roles."""
    parts = iter(layout.split(shape)[0])
    role, left = 0, layout.shape[0]
    result: list[Pieces] = []
    for size in shape:
        dim: Pieces = []
        while size > 1 and layout.numel:
            part = next(parts)
            while left == 1:
                role, left = role + 1, layout.shape[role + 1]
            dim.append((part, role))
            size //= part
            left //= part
        result.append(dim)
    return result


def _vector_ids(parts: Pieces) -> list[int]:
    """Return the vector index of each index of a dim."""
    ids = [0]
    for size, role in parts:
        if role in _AVERAGED:
            ids = [vector for vector in ids for _ in range(size)]
        else:
            ids = [vector * size + index for vector in ids for index in range(size)]
    return ids


def _split_axes(size: int, parts: Pieces, sharding: list[tuple[int, int, int]]) -> set[int]:
    """Return the mesh dims over which vectors of this dim are split."""
    averaged = [role in _AVERAGED for _, role in parts]
    if not sharding or not any(averaged):
        return set()
    ids = [0] * size if all(averaged) else _vector_ids(parts)
    holders: list[tuple[dict[int, int], set[int]]] = []
    for place in itertools.product(*(range(number) for _, number, _ in sharding)):
        at = {axis: index for (axis, _, _), index in zip(sharding, place, strict=True)}
        coordinate = tuple(at.get(axis, 0) for axis in range(max(at) + 1))
        holders.append((at, {ids[index] for index in _held(size, sharding, coordinate)}))
    split = set()
    for axis, number, _ in sharding:
        groups = [
            set().union(*(held for at, held in holders if at[axis] == index)) for index in range(number)
        ]
        if sum(map(len, groups)) != len(
            set().union(*groups)
        ):  # two ranks along this mesh dim hold parts of one vector
            split.add(axis)
    return split


def _local_layout(pieces: list[Pieces], shape: tuple[int, ...], local: list[Indices]) -> Layout | None:
    """Return the Layout of the local tensor, or None if no Layout describes its vectors."""
    factors = [1, 1, 1, 1]
    for size, parts, held in zip(shape, pieces, local, strict=True):
        if len(held) == size or not held:
            for part, role in parts:
                factors[role] *= part
            if not held:
                factors[2] = 0
            continue
        (_, role), rest = parts[0], math.prod(part for part, _ in parts[1:])
        blocks = [held[start : start + rest] for start in range(0, len(held), rest)]
        regular = all(
            len(block) == rest and block[0] % rest == 0 and block[-1] - block[0] == rest - 1
            for block in blocks
        )
        if role in _AVERAGED or not regular:
            return None
        factors[role] *= len(held) // rest
        for part, other in parts[1:]:
            factors[other] *= part
    return Layout(*factors)
