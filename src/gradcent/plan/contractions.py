"""The operators that contract two tensors: which dims of which operands they sum over.

Composite operators (``einsum``, ``matmul``, ``tensordot``, attention modules, RNNs on most devices) reach a dispatch
mode as these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Kind = Literal["conv", "linear"]
Level = tuple[Tensor, Tensor]
"""(energy of the data along 1, whole energy), summed over all weight vectors that the data meets."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """One contraction of ``left`` over ``left_dims`` with ``right`` over ``right_dims``.

    ``fixed``: the operator itself says that ``right`` is the weight. ``groups``: ``right``'s first dim is a stack of so
    many groups, of which each output sums over one. ``recurrent``: the data is what the layer itself computed before.
    ``level`` measures the left operand.
    """

    left: Tensor | tuple[Tensor, ...]
    left_dims: tuple[int, ...]
    right: Tensor
    right_dims: tuple[int, ...]
    kind: Kind = "linear"
    fixed: bool = False
    groups: int = 1
    recurrent: bool = False
    level: Callable[[], Level] | None = None


def of(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    """Return what an operator contracts; nothing if it is not a contraction."""
    read = _READERS.get(operator_name(func))
    if read is None:
        return []
    missing = [argument.name for argument in func._schema.arguments[len(args) :]]
    return read([*args, *(kwargs[name] for name in missing if name in kwargs)], kwargs)


def operator_name(func: Any) -> str:
    """Return an operator's name without its overload, for example ``aten::mm``."""
    return f"{func.namespace}::{func.overloadpacket.__name__}"


def level_of(data: Tensor, dims: Sequence[int]) -> Level:
    """Return the energy of ``data`` along 1, where a vector runs over ``dims``, and its whole energy."""
    length = math.prod(data.shape[dim] for dim in dims)
    norm = torch.linalg.vector_norm
    sums = data.sum(tuple(dims), dtype=_wide(data))
    return norm(sums).square() / max(length, 1), norm(data, dtype=_wide(data)).square()


def _wide(data: Tensor) -> torch.dtype | None:
    return torch.float32 if data.dtype in (torch.float16, torch.bfloat16) else None


def _matrices(left: int, left_dim: int, right_dim: int) -> Callable[..., list[Contraction]]:
    """Operators with the two matrices at ``args[left]`` and ``args[left + 1]``."""

    def read(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
        a, b = args[left], args[left + 1]
        return [Contraction(a, (left_dim % a.dim(),), b, (right_dim % b.dim(),))]

    return read


def _linear(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    x, weight = args[0], args[1]
    return [Contraction(x, (x.dim() - 1,), weight, (weight.dim() - 1,), fixed=True)]


def _convolution(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    kernel = tuple(range(2, weight.dim()))

    def level() -> Level:
        # The sum over each weight vector's inputs is the same convolution with ones, padding included.
        data = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        inputs = weight.shape[0] if transposed else groups
        outputs = 1 if transposed else weight.shape[1]
        ones = data.new_ones((inputs, outputs, *weight.shape[2:]))
        geometry = (None, stride, padding, dilation, transposed, output_padding, groups)
        sums = torch.ops.aten.convolution(data, ones, *geometry)
        energy = torch.ops.aten.convolution(data.square(), ones, *geometry).sum()
        inputs_per_group = (weight.shape[0] // groups) if transposed else weight.shape[1]
        length = inputs_per_group * math.prod(weight.shape[2:])
        return torch.linalg.vector_norm(sums).square() / length, energy

    dims = (0, *kernel) if transposed else (1, *kernel)
    stacked = groups if transposed else 1
    return [Contraction(x, (), weight, dims, "conv", fixed=True, groups=stacked, level=level)]


def _deform_conv(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    x, weight = args[0], args[1]
    return [Contraction(x, (), weight, tuple(range(1, weight.dim())), "conv", fixed=True)]


def _trilinear(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    """nn.Bilinear: the weight's dims are what is left of the expanded dims, and ``sumdim`` counts those."""
    first, weight, second, _, expanded, _, summed = args[:7]
    positions = [dim for dim in range(weight.dim() + len(expanded)) if dim not in expanded]
    dims = tuple(dim for dim, position in enumerate(positions) if position in summed)
    return [Contraction((first, second), (), weight, dims, fixed=True)]


def _mkldnn_rnn(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
    x, input_weight, hidden_weight = args[0], args[1], args[2]
    return [
        Contraction(x, (x.dim() - 1,), input_weight, (1,), fixed=True),
        Contraction(x, (), hidden_weight, (1,), fixed=True, recurrent=True),
    ]


def _packed_rnn(bidirectional: int) -> Callable[..., list[Contraction]]:
    """cuDNN's and MIOpen's RNN: a list of weights, so many per layer and direction."""

    def read(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Contraction]:
        x, weights, per_layer = args[:3]
        directions = 2 if args[bidirectional] else 1
        contractions = []
        for index, weight in enumerate(weights):
            layer, place = divmod(index, per_layer)
            if weight.dim() != 2:
                continue
            if place == 0 and layer < directions:
                contractions.append(Contraction(x, (x.dim() - 1,), weight, (1,), fixed=True))
            else:
                contractions.append(Contraction(x, (), weight, (1,), fixed=True, recurrent=True))
        return contractions

    return read


_READERS: dict[str, Callable[[Sequence[Any], dict[str, Any]], list[Contraction]]] = {
    "aten::mm": _matrices(0, 1, 0),
    "aten::_int_mm": _matrices(0, 1, 0),
    "aten::_scaled_mm": _matrices(0, 1, 0),
    "aten::mv": _matrices(0, 1, 0),
    "aten::dot": _matrices(0, 0, 0),
    "aten::vdot": _matrices(0, 0, 0),
    "aten::bmm": _matrices(0, 2, 1),
    "aten::addmm": _matrices(1, 1, 0),
    "aten::addmm_": _matrices(1, 1, 0),
    "aten::_addmm_activation": _matrices(1, 1, 0),
    "aten::addmv": _matrices(1, 1, 0),
    "aten::baddbmm": _matrices(1, 2, 1),
    "aten::baddbmm_": _matrices(1, 2, 1),
    "aten::addbmm": _matrices(1, 2, 1),
    "aten::_grouped_mm": _matrices(0, -1, -2),
    "aten::_scaled_grouped_mm": _matrices(0, -1, -2),
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::_trilinear": _trilinear,
    "aten::mkldnn_rnn_layer": _mkldnn_rnn,
    "aten::_cudnn_rnn": _packed_rnn(13),
    "aten::miopen_rnn": _packed_rnn(11),
    "torchvision::deform_conv2d": _deform_conv,
}
