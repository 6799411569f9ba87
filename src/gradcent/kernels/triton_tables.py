"""Pointer tables on the device: read in every step, uploaded only when a tensor moved.

A row of the table holds the data pointers of one parameter's operands and a signature of their sizes. The rows are
compared with those of the last step. Same rows: nothing is uploaded. Other pointers: the table is uploaded. Another
signature or alignment: the launches are planned again (triton_tasks.py).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..layout import Layout
from . import native
from .native import Unsupported
from .triton_tasks import ACCESS, DTYPES, Operand, Specialisation, plan_launches

Layouts = Sequence[Layout | None]
# weight, gradient, first state or output, second state, step counter; None where the step has none
Lists = Sequence["Sequence[Tensor] | None"]
Check = Callable[[torch.device, set[torch.dtype]], None]  # raises Unsupported
WIDTH = 8  # columns of the table; triton_kernels.POINTERS
OPERANDS, COUNTER, SIGNATURE, INDEX = 4, 4, 5, 6
REPLAN = 2  # csrc/pointer_table.c: a signature or an alignment changed
DL_CPU, DL_CUDA, DL_ROCM = 1, 2, 10  # device types of DLPack


@dataclass(slots=True)
class Table:
    """The device tables of one list of tensors, reused across steps."""

    layouts: list[Layout | None]  # the cache key holds their ids
    device: torch.device
    rows: Tensor  # the rows last uploaded, on the CPU
    pointers: Tensor  # the same on the device
    sizes: Tensor
    launches: list[tuple[Specialisation, Tensor, int]]  # specialisation, tasks on the device, warps
    rates: Tensor | None = None
    counters_checked: bool = False


_tables: OrderedDict[Any, Table] = OrderedDict()
_groups: OrderedDict[Any, GroupTable] = OrderedDict()
_CAPACITY = 64
# A captured CUDA graph replays uploads and launches: the tables it refers to live as long as the process.
_captured: list[Any] = []


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on CPU tensors."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def table_for(lists: Lists, layouts: Layouts) -> Table:
    """Return the tables of these operands, updated on the device where something changed."""
    rows = read_rows(lists)
    device = _device(lists)
    key = (device, len(lists), tuple(map(id, layouts)), tuple(items is None for items in lists))
    table = _tables.get(key)
    if table is not None and torch.equal(table.rows, rows):
        _tables.move_to_end(key)
        return table
    if table is not None and torch.equal(_plan_key(table.rows), _plan_key(rows)):
        table.rows, table.pointers = rows, _upload(rows, device)
        return table
    table = _tables[key] = _planned(rows, lists, layouts, device)
    while len(_tables) > _CAPACITY:
        _tables.popitem(last=False)
    return table


def c_function(name: str) -> Any:
    """Return a function of the C extension, or None where that was not built."""
    return getattr(getattr(native, "_cpu", None), name, None)


@dataclass(slots=True)
class GroupTable:
    """The tables of a param group, and the rows that the C code compares with."""

    params: list[Tensor]  # the cache key holds the id of this list
    layouts: Layouts
    buffer: bytearray
    known: bytearray  # addresses of the objects read last, for the C code
    table: Table | None = None


def group_table(
    params: list[Tensor],
    state: dict[Any, Any],
    keys: tuple[str, ...],
    columns: tuple[int, ...],
    layouts: Layouts,
    check: Check,
) -> tuple[Table, list[Tensor], list[Tensor]] | None:
    """Read a param group in C: its tables, the parameters that have a gradient, and their step counters.

    None: there is no C extension, a state is missing, or a tensor is unusual. `table_for` says what is wrong.
    """
    read = c_function("pointer_table")
    if read is None:
        return None
    key = (id(params), keys)
    # An entry leaves the cache until its tables are on the device: the C code has changed its rows by then.
    entry = _groups.pop(key, None)
    if entry is None or entry.params is not params or len(entry.buffer) != 8 * WIDTH * len(params):
        entry = GroupTable(
            params, layouts, bytearray(8 * WIDTH * len(params)), bytearray(8 * OPERANDS * len(params))
        )
    result = read(params, state, keys, columns, entry.buffer, entry.known)
    if result is None:
        return None
    status, device_type, index, used, counters = result
    if not used or (device_type == DL_CPU) != interpreted() or device_type not in (DL_CPU, DL_CUDA, DL_ROCM):
        return None
    device = torch.device("cpu") if device_type == DL_CPU else torch.device("cuda", index)
    table = entry.table
    if status or table is None or len(table.rows) != len(used) or entry.layouts is not layouts:
        rows = torch.frombuffer(entry.buffer, dtype=torch.int64).view(-1, WIDTH)[: len(used)].clone()
        same_plan = table is not None and len(table.rows) == len(used) and entry.layouts is layouts
        if table is None or not same_plan or status & REPLAN:
            check(device, {t.dtype for t in used})
            chosen = [layouts[i] for i in rows[:, INDEX].tolist()]
            table = _planned(rows, [used], chosen, device)
        else:
            table.rows, table.pointers = rows, _upload(rows, device)
    entry.table, entry.layouts = table, layouts
    _groups[key] = entry
    while len(_groups) > _CAPACITY:
        _groups.popitem(last=False)
    return table, used, counters


def read_rows(lists: Lists) -> Tensor:
    """Read the operands of each parameter: pointers, and a signature of dtype, shape and strides."""
    rows = []
    params = lists[0] or ()
    for index, param in enumerate(params):
        operands = [None if items is None else items[index] for items in lists]
        _check(index, operands[:OPERANDS], param)
        counter = operands[COUNTER] if len(operands) > COUNTER else None
        counter_type = None if counter is None else (counter.dtype, counter.device)
        signature = hash((param.dtype, param.shape, param.stride(), counter_type)) >> 1
        pointers = [0 if t is None else t.data_ptr() for t in operands]
        pointers += [0] * (SIGNATURE - len(pointers))
        rows.append([*pointers, signature, 0, 0])
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, WIDTH)


def _check(index: int, operands: Sequence[Tensor | None], param: Tensor) -> None:
    for tensor in operands:
        if tensor is None:
            continue
        if (
            type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
            or tensor.layout is not torch.strided
        ):
            raise Unsupported(
                f"tensor {index}: the Triton kernels take plain dense tensors, got {type(tensor).__name__}"
            )
        if tensor.dtype not in DTYPES:
            raise Unsupported(f"tensor {index}: the Triton kernels do not take {tensor.dtype}")
        if not tensor.is_cuda and not interpreted():
            raise Unsupported(
                f"tensor {index}: the Triton kernels need CUDA tensors, got one on {tensor.device}"
            )
        if tensor.dtype != param.dtype or tensor.shape != param.shape or tensor.device != param.device:
            raise Unsupported(f"tensor {index}: its gradient or state differs in dtype, shape or device")
        if tensor.stride() != param.stride() and not (tensor.is_contiguous() and param.is_contiguous()):
            raise Unsupported(f"tensor {index}: its gradient or state is stored in another order of dims")
        if tensor.is_neg():
            raise Unsupported(f"tensor {index}: a negated view; call resolve_neg() on it")


def _device(lists: Lists) -> torch.device:
    devices = {t.device for t in lists[0] or ()}
    if len(devices) != 1:
        raise Unsupported(f"parameters on several devices: {', '.join(sorted(map(str, devices)))}")
    return devices.pop()


def _plan_key(rows: Tensor) -> Tensor:
    """What the launches depend on: the signatures, and which tensors are aligned."""
    low_bits = rows[:, 0] | rows[:, 1] | rows[:, 2] | rows[:, 3]
    return torch.stack([rows[:, SIGNATURE], (low_bits & (ACCESS - 1)) == 0], dim=1)


def _planned(rows: Tensor, lists: Lists, layouts: Layouts, device: torch.device) -> Table:
    aligned = _plan_key(rows)[:, 1].tolist()
    params = list(lists[0] or ())
    operands = [
        Operand(param.numel(), param.dtype, _in_memory_order(index, param, layout), bool(fits))
        for index, (param, layout, fits) in enumerate(zip(params, layouts, aligned, strict=True))
    ]
    launches, sizes = plan_launches(operands)
    warp_size = _warp_size(device)
    return Table(
        list(layouts),
        device,
        rows,
        _upload(rows, device),
        _upload(sizes, device),
        [
            (
                launch.specialisation,
                _upload(launch.table(), device),
                launch.specialisation.num_warps(warp_size),
            )
            for launch in launches
        ],
    )


def _in_memory_order(index: int, param: Tensor, layout: Layout | None) -> Layout | None:
    """Check that the layout describes memory: contiguous tensors, or rows in any dense order (channels-last)."""
    if param.is_contiguous() or param.numel() == 0:
        return layout
    rows = layout is None or (
        layout.batch == layout.outer == 1
        and layout.vectors == param.shape[0]
        and param.stride(0) == layout.inner
    )
    if not rows or not _dense(param):
        raise Unsupported(f"tensor {index}: stored in an order of dims that the Triton kernels do not follow")
    return layout


def _dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in any order of dims."""
    expected = 1
    dims = [(tensor.stride(d), tensor.shape[d]) for d in range(tensor.dim()) if tensor.shape[d] > 1]
    for stride, size in sorted(dims):
        if stride != expected:
            return False
        expected *= size
    return True


def _upload(table: Tensor, device: torch.device) -> Tensor:
    """Copy to the device without waiting for it; a CUDA graph being captured keeps both copies."""
    if device.type != "cuda":
        return table.clone()
    pinned = table.pin_memory()
    uploaded = pinned.to(device, non_blocking=True)
    if torch.cuda.is_current_stream_capturing():
        _captured.append((pinned, uploaded))
    return uploaded


def _warp_size(device: torch.device) -> int:
    if device.type != "cuda":
        return 32
    return int(getattr(torch.cuda.get_device_properties(device), "warp_size", 32))
