"""Which Triton kernel takes which tensor: layouts become launches, each with the tasks of its programs.

A launch serves all tensors of one specialisation: dtype, kernel, tile and alignment. Tensors whose pointers
and sizes are multiples of 16 bytes take the aligned specialisation, where the compiler emits 128-bit
accesses. This module does not import Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..layout import Layout
from .native import Unsupported

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ACCESS = 16  # bytes of the widest access
SHORTEST_ROW = 16  # shorter rows share the tile of this length
LONGEST_RUN = 1024  # elements of one run of a vector that is not contiguous
COLUMN_BYTES = 128  # bytes of neighbouring vectors that one program takes
INT32 = 1 << 31


@dataclass(frozen=True, slots=True)
class Operand:
    """What planning needs to know of one parameter and its gradient and states, which have the same."""

    numel: int
    dtype: torch.dtype
    layout: Layout | None
    aligned: bool  # all data pointers are multiples of 16 bytes

    def is_aligned(self, contiguous: int) -> bool:
        """Whether pieces of so many elements, one behind the other, all begin at multiples of 16 bytes."""
        return self.aligned and contiguous * self.dtype.itemsize % ACCESS == 0


@dataclass(frozen=True, slots=True)
class Specialisation:
    """The compile-time constants of a launch that depend on the tensors, and its threads."""

    kernel: str  # "rows" or "columns"
    dtype: torch.dtype
    constants: tuple[tuple[str, Any], ...]
    elements: int  # of the tile that one program holds at a time
    per_thread: int

    def num_warps(self, warp_size: int) -> int:
        """Return the number of warps of a program."""
        return max(1, self.elements // (self.per_thread * warp_size))


@dataclass(slots=True)
class Launch:
    """One launch: its specialisation and the (tensor, batch, first vector) of each program."""

    specialisation: Specialisation
    tasks: list[Tensor] = field(default_factory=list)

    def table(self) -> Tensor:
        """Return the tasks as an int32 tensor of shape (programs, 3)."""
        return torch.cat(self.tasks)


# a specialisation, the tensor's row of the table of sizes, and its tasks (batch, first vector)
Assignment = tuple[Specialisation, tuple[int, int, int, int], Tensor]


def longest_row(dtype: torch.dtype) -> int:
    """Return the length of the longest row that stays in registers."""
    return 4096 if dtype.itemsize <= 4 else 2048


def plan_launches(operands: Sequence[Operand]) -> tuple[list[Launch], Tensor]:
    """Return the launches that step all operands, and the table of their sizes (int64, one row per operand)."""
    launches: dict[Specialisation, Launch] = {}
    sizes = torch.zeros(len(operands), 4, dtype=torch.int64)
    for index, operand in enumerate(operands):
        if operand.numel == 0:
            continue
        specialisation, row, tasks = _assign(index, operand)
        sizes[index] = torch.tensor(row)
        launch = launches.setdefault(specialisation, Launch(specialisation))
        launch.tasks.append(torch.cat([torch.full((len(tasks), 1), index, dtype=torch.int32), tasks], dim=1))
    return list(launches.values()), sizes


def _assign(index: int, operand: Operand) -> Assignment:
    """Return the specialisation of one tensor, its row of the table of sizes and its tasks (batch, first vector)."""
    layout = operand.layout
    if layout is None:
        return _plain(operand)
    if layout.vectors == 1 or layout.outer == 1:
        length = layout.length
        if length <= longest_row(operand.dtype):
            return _rows(operand, length)
        return _long_rows(operand, length)
    if layout.inner > LONGEST_RUN:
        raise Unsupported(
            f"tensor {index}: its weight vectors are runs of {layout.inner} elements; the Triton kernels take at most "
            f"{LONGEST_RUN}"
        )
    return _columns(operand, layout)


def _row_tile(dtype: torch.dtype, aligned: bool) -> tuple[int, int]:
    """Return the elements of a tile of rows and those of a thread.

    Narrow accesses need more address registers: threads then take half as many elements.
    """
    per_thread = 8 if aligned and dtype.itemsize <= 4 else 4
    return 128 * per_thread, per_thread


def _column_tile(dtype: torch.dtype, aligned: bool) -> tuple[int, int]:
    """Return the same for two passes, whose loops hold more in registers: one wide access for each operand."""
    return 1024, ACCESS // dtype.itemsize if aligned else 4


def _plain(operand: Operand) -> Assignment:
    aligned = operand.is_aligned(operand.numel)
    elements, per_thread = _row_tile(operand.dtype, aligned)
    constants = (("ALIGNED", aligned), ("CENTRALIZED", False), ("ROWS", 1), ("LENGTH", elements))
    chunks = -(-operand.numel // elements)
    sizes = (elements, operand.numel, 0, 0)
    return Specialisation("rows", operand.dtype, constants, elements, per_thread), sizes, _tasks(1, chunks, 1)


def _rows(operand: Operand, length: int) -> Assignment:
    aligned = operand.is_aligned(length)
    elements, per_thread = _row_tile(operand.dtype, aligned)
    width = max(SHORTEST_ROW, _power_of_two(length))
    rows = max(1, elements // width)
    constants = (("ALIGNED", aligned), ("CENTRALIZED", True), ("ROWS", rows), ("LENGTH", width))
    specialisation = Specialisation("rows", operand.dtype, constants, rows * width, per_thread)
    return specialisation, (length, operand.numel, 0, 0), _tasks(1, operand.numel // length, rows)


def _long_rows(operand: Operand, length: int) -> Assignment:
    """A long row is one vector whose runs follow each other; each row is a batch of its own."""
    aligned = operand.is_aligned(length)
    elements, _ = _column_tile(operand.dtype, aligned)
    sizes = (length, 1, elements, -(-length // elements))
    specialisation = _two_passes(operand, aligned, sizes, (1, 1, elements))
    return specialisation, sizes, _tasks(operand.numel // length, 1, 1)


def _columns(operand: Operand, layout: Layout) -> Assignment:
    itemsize = operand.dtype.itemsize
    aligned = operand.is_aligned(layout.vectors if layout.inner == 1 else layout.inner)
    elements, _ = _column_tile(operand.dtype, aligned)
    inner = _power_of_two(layout.inner)
    vectors = max(1, min(COLUMN_BYTES // itemsize, elements) // inner)
    outer = max(1, elements // (vectors * inner))
    span = layout.outer * layout.vectors * layout.inner
    sizes = (span, layout.vectors, layout.inner, layout.outer)
    specialisation = _two_passes(operand, aligned, sizes, (outer, vectors, inner))
    return specialisation, sizes, _tasks(layout.batch, layout.vectors, vectors)


def _two_passes(
    operand: Operand, aligned: bool, sizes: tuple[int, int, int, int], tile: tuple[int, int, int]
) -> Specialisation:
    span, vectors, inner, _ = sizes
    reach = (
        span + tile[0] * vectors * inner
    )  # the last tile computes offsets behind the span before masking them
    index = "int64" if reach >= INT32 else "int32"
    names = ("OUTER", "VECTORS", "INNER")
    constants = (("ALIGNED", aligned), ("INDEX", index), *zip(names, tile, strict=True))
    _, per_thread = _column_tile(operand.dtype, aligned)
    return Specialisation("columns", operand.dtype, constants, tile[0] * tile[1] * tile[2], per_thread)


def _tasks(batches: int, vectors: int, step: int) -> Tensor:
    first = torch.arange(0, vectors, step, dtype=torch.int32)
    batch = torch.arange(batches, dtype=torch.int32)
    return torch.stack(torch.meshgrid(batch, first, indexing="ij"), dim=-1).reshape(-1, 2)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
