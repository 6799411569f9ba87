"""Which dims of a parameter a tensor walks over, read from the tensor's strides.

A tensor that aliases a parameter (a transpose, a reshape, a slice, a head of a packed projection) is a set of
strides into the parameter's storage. A :class:`Source` describes that storage as a list of axes, each of which
belongs to one dim of the parameter; :meth:`Source.decode` maps the strides of any view back to those axes. A copy
(another dtype, ``contiguous``, an elementwise function) gets a source of its own for its new storage. So no view
operator needs a rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ..layout import Layout


@dataclass(frozen=True, slots=True)
class Factor:
    """A part of one parameter dim: ``size`` steps of ``step`` elements of ``dim`` (None: a broadcast dim)."""

    dim: int | None
    size: int
    step: int


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a storage: ``factor`` is repeated every ``stride`` elements."""

    factor: Factor
    stride: int


Decoded = list[list[Factor]]
"""For each dim of a tensor the factors it walks over, innermost first."""


@dataclass(frozen=True, slots=True)
class Source:
    """A parameter, and where its elements are in one storage: the elements from ``begin`` up to ``end``."""

    parameter: int
    begin: int
    end: int
    axes: tuple[Axis, ...]

    def overlaps(self, tensor: Tensor) -> bool:
        """Whether a tensor in the same storage touches this parameter's elements."""
        begin, end = interval(tensor)
        return begin < self.end and self.begin < end

    def decode(self, tensor: Tensor) -> Decoded | None:
        """Return the factors that each dim of a view walks over, or None if the strides do not tell."""
        decoded: Decoded = []
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            factors = self._decode_dim(size, stride)
            if factors is None:
                return None
            decoded.append(factors)
        return None if _walks_twice(decoded) else decoded

    def _decode_dim(self, size: int, stride: int) -> list[Factor] | None:
        factors: list[Factor] = []
        if size == 1 or stride == 0:
            return factors
        left = size
        for axis in self.axes:
            if left == 1:
                break
            span = axis.stride * axis.factor.size
            if not axis.stride <= stride < span or stride % axis.stride:
                continue
            skip = stride // axis.stride
            taken = min(left, -(-axis.factor.size // skip))
            factors.append(Factor(axis.factor.dim, taken, axis.factor.step * skip))
            left = -(-left // taken)
            stride = span  # a dim that goes on after this axis must continue at the next one
        return factors if left == 1 else None


def interval(tensor: Tensor) -> tuple[int, int]:
    """Return the half-open range of storage elements that a tensor touches."""
    begin = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(begin), int(begin + 1 + sum((size - 1) * stride for size, stride in steps))


def source_of(parameter: int, tensor: Tensor, decoded: Decoded, sizes: Sequence[int] | None = None) -> Source:
    """Return the source for a tensor that holds a parameter's elements as ``decoded`` says.

    ``sizes`` are the sizes of the dims in the storage where they are larger than the tensor's: a concatenation.
    """
    axes = []
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        whole = sizes[dim] if sizes is not None else size
        if whole == 1 or stride == 0:
            continue
        factors = decoded[dim]
        covered = math.prod(factor.size for factor in factors)
        if covered != size or not factors:  # broadcast along this dim, or one of several stacked tensors
            factors = [Factor(None, size, 1)]
        if whole != size:  # the outermost factor goes on into the other tensors of the concatenation
            last = factors[-1]
            factors = [*factors[:-1], Factor(last.dim, -(-last.size * whole // size), last.step)]
        for factor in factors:
            axes.append(Axis(factor, stride))
            stride *= factor.size
    return Source(parameter, *interval(tensor), tuple(sorted(axes, key=lambda axis: axis.stride)))


def identity(tensor: Tensor) -> Decoded:
    """Return what a parameter itself decodes to."""
    return [[Factor(dim, size, 1)] if size > 1 else [] for dim, size in enumerate(tensor.shape)]


def _walks_twice(decoded: Decoded) -> bool:
    """Whether two dims walk over the same elements: sliding windows, diagonals."""
    parts: dict[int, list[Factor]] = {}
    for factor in (factor for factors in decoded for factor in factors):
        if factor.dim is not None:
            parts.setdefault(factor.dim, []).append(factor)
    for factors in parts.values():
        factors.sort(key=lambda factor: factor.step)
        for inner, outer in itertools.pairwise(factors):
            if outer.step < inner.step * inner.size:
                return True
    return False


def contracted(decoded: Decoded, dims: Iterable[int]) -> frozenset[Factor]:
    """Return the parts of the parameter's dims that a contraction over ``dims`` of the view sums over."""
    return frozenset(factor for dim in dims for factor in decoded[dim] if factor.dim is not None)


def without_groups(decoded: Decoded, groups: int) -> Decoded:
    """Remove the outermost ``groups`` from the first dim: each output sums over one group only."""
    if groups == 1 or not decoded[0]:
        return decoded
    *inner, outer = decoded[0]
    if outer.size % groups:
        return decoded
    rest = [Factor(outer.dim, outer.size // groups, outer.step)] if outer.size > groups else []
    return [[*inner, *rest], *decoded[1:]]


def _is_broadcast(tensor: Tensor, decoded: Decoded, dim: int) -> bool:
    """Whether a dim of a tensor repeats the parameter's elements."""
    return tensor.shape[dim] > 1 and not any(factor.dim is not None for factor in decoded[dim])


def is_scale(tensor: Tensor, decoded: Decoded, dims: tuple[int, ...]) -> bool:
    """Whether the parameter scales the weight: a magnitude, a gate, a factor for each input."""
    summed = [factor for dim in dims for factor in decoded[dim] if factor.dim is not None]
    if not summed:
        return any(_is_broadcast(tensor, decoded, dim) for dim in dims)
    others = [dim for dim in range(tensor.dim()) if dim not in dims]
    separates = any(factor.dim is not None for dim in others for factor in decoded[dim])
    return not separates and any(_is_broadcast(tensor, decoded, dim) for dim in others)


def layout_of(shape: Sequence[int], averaged: Iterable[Factor]) -> Layout | None:
    """Return the layout of a parameter whose weight vectors run over ``averaged``, or None if four integers do not do.

    >>> layout_of((8, 16, 4), [Factor(1, 16, 1)])
    Layout(batch=8, outer=16, vectors=4, inner=1)
    """
    pieces: list[tuple[int, bool]] = []  # (size, averaged), outermost first
    for dim, size in enumerate(shape):
        inner: list[tuple[int, bool]] = []
        position = 1
        for factor in sorted((f for f in averaged if f.dim == dim), key=lambda f: f.step):
            if factor.step % position:
                return None
            inner.append((factor.step // position, False))
            inner.append((factor.size, True))
            position = factor.step * factor.size
        if size % position:
            return None
        inner.append((size // position, False))
        pieces += reversed(inner)
    runs: list[list[int]] = []  # [size, averaged], neighbours of one kind joined
    for size, flag in pieces:
        if size == 1:
            continue
        if runs and runs[-1][1] == flag:
            runs[-1][0] *= size
        else:
            runs.append([size, flag])
    factors = [1, 1, 1, 1]
    position = 0 if runs and not runs[0][1] else 1
    if len(runs) <= 2 and position == 0:
        position = 2  # kept, averaged: rows
    elif len(runs) == 1:
        position = 3
    if position + len(runs) > 4:
        return None
    for size, _ in runs:
        factors[position] = size
        position += 1
    return Layout(*factors)


def same_vectors(shape: Sequence[int], first: Layout, second: Layout) -> bool:
    """Whether two layouts describe the same weight vectors of a tensor."""
    return _runs(shape, first) == _runs(shape, second)


def _runs(shape: Sequence[int], layout: Layout) -> list[tuple[int, bool]]:
    runs: list[tuple[int, bool]] = []
    pieces, averaged = layout.split(shape)
    for index, size in enumerate(pieces):
        flag = index in averaged
        if size == 1:
            continue
        if runs and runs[-1][1] == flag:
            runs[-1] = (runs[-1][0] * size, flag)
        else:
            runs.append((size, flag))
    return runs
