"""What a weight vector is: which elements of a tensor share one mean (Section 3.2 of the paper).

The paper writes every weight as a matrix whose columns are the weight vectors. PyTorch stores them in several orders.
Each of these orders is one view of the tensor as ``(batch, outer, vectors, inner)``: a weight vector is everything
with the same ``batch`` and ``vectors`` index, and its mean runs over ``outer`` and ``inner``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Layout:
    """The view ``(batch, outer, vectors, inner)`` of a tensor.

    >>> Layout.rows((64, 3, 7, 7))
    Layout(batch=1, outer=1, vectors=64, inner=147)
    >>> Layout.rows((64, 3, 7, 7)).length
    147
    """

    batch: int
    outer: int
    vectors: int
    inner: int

    def __post_init__(self) -> None:
        for name in ("batch", "outer", "vectors", "inner"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ValueError(f"Layout.{name} must be a non-negative integer, got {value!r}")

    @classmethod
    def rows(cls, shape: Sequence[int]) -> Layout:
        """One vector per index of the first dim: Linear, convolutions, Bilinear, RNN weights."""
        _require_dims("rows", shape)
        return cls(1, 1, shape[0], math.prod(shape[1:]))

    @classmethod
    def columns(cls, shape: Sequence[int]) -> Layout:
        """One vector per index of the second dim: weights stored as (in, out, …)."""
        return cls.transposed(shape, groups=1)

    @classmethod
    def transposed(cls, shape: Sequence[int], groups: int) -> Layout:
        """Transposed convolutions (in, out/groups, k…), where a vector runs over in/groups and k."""
        _require_dims("columns", shape)
        if groups < 1 or shape[0] % groups:
            raise ValueError(f"{groups} groups do not divide the first dim of shape {tuple(shape)}")
        return cls(groups, shape[0] // groups, shape[1], math.prod(shape[2:]))

    @classmethod
    def stacked_rows(cls, shape: Sequence[int]) -> Layout:
        """Stacked experts (E, out, in)."""
        _require_dims("stacked_rows", shape)
        return cls(1, 1, shape[0] * shape[1], math.prod(shape[2:]))

    @classmethod
    def stacked_columns(cls, shape: Sequence[int]) -> Layout:
        """Stacked experts (E, in, out)."""
        _require_dims("stacked_columns", shape)
        return cls(shape[0], shape[1], shape[2], math.prod(shape[3:]))

    @property
    def length(self) -> int:
        """Number of elements in one weight vector."""
        return self.outer * self.inner

    @property
    def count(self) -> int:
        """Number of weight vectors."""
        return self.batch * self.vectors

    @property
    def numel(self) -> int:
        """Number of elements of the whole tensor."""
        return self.batch * self.outer * self.vectors * self.inner

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The four integers as a view shape."""
        return (self.batch, self.outer, self.vectors, self.inner)

    def split(self, shape: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the tensor's shape with its dims split at the layout's borders, and the dims to average.

        Splitting a dim is a view whatever the strides are, so channels-last and other
        non-contiguous tensors need no copy.

        >>> Layout.transposed((6, 4, 3, 3), groups=2).split((6, 4, 3, 3))
        ((2, 3, 4, 3, 3), (1, 3, 4))
        """
        return _split(self.shape, tuple(shape))


# The layouts that overrides and rules may name, and the number of dims that each needs.
MIN_DIMS = {"rows": 2, "columns": 2, "stacked_rows": 3, "stacked_columns": 3}
LAYOUT_NAMES = tuple(MIN_DIMS)


def layout_named(name: str, shape: Sequence[int]) -> Layout:
    """Return the layout called ``name`` for a tensor of that shape.

    >>> layout_named("stacked_columns", (8, 32, 64))
    Layout(batch=8, outer=32, vectors=64, inner=1)
    """
    if name not in MIN_DIMS:
        raise ValueError(f"no layout is called {name!r}; choose one of {', '.join(LAYOUT_NAMES)}")
    constructor: Callable[[Sequence[int]], Layout] = getattr(Layout, name)
    return constructor(shape)


def _require_dims(name: str, shape: Sequence[int]) -> None:
    if len(shape) < MIN_DIMS[name]:
        raise ValueError(f'layout "{name}" needs {MIN_DIMS[name]} dims or more, got shape {tuple(shape)}')


@lru_cache(maxsize=4096)
def _split(
    factors: tuple[int, int, int, int], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if math.prod(factors) != math.prod(shape):
        raise ValueError(
            f"layout (batch, outer, vectors, inner) = {factors} has {math.prod(factors)} elements, "
            f"but the tensor of shape {shape} has {math.prod(shape)}"
        )
    if math.prod(shape) == 0:
        return shape, ()
    pieces: list[int] = []
    averaged: list[int] = []
    role, left = 0, factors[0]
    for size in shape:
        while size > 1:
            while left == 1:  # the products are equal, so a dim that is left has a factor that is left
                role, left = role + 1, factors[role + 1]
            piece = math.gcd(size, left) if size != left else size
            if piece != min(size, left):
                raise ValueError(
                    f"layout (batch, outer, vectors, inner) = {factors} does not fall on the dims of shape {shape}"
                )
            if role in (1, 3):
                averaged.append(len(pieces))
            pieces.append(piece)
            size //= piece
            left //= piece
    return tuple(pieces), tuple(averaged)
