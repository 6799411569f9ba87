"""Follow parameters into the new storages that operators make: copies, concatenations, look-ups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .provenance import Decoded, Factor, Source, source_of
from .usage import Held

Holding = tuple[Tensor, Held]


def is_elementwise(func: Any, name: str) -> bool:
    """Whether an element of an operator's output belongs to the same element of its operands."""
    return torch.Tag.pointwise in func.tags or name in _ELEMENTWISE or name in NORMALIZATIONS


def elementwise(holding: Iterable[Holding], output: Tensor) -> Held | None:
    """The output has the operands' elements in the operands' places, up to broadcasting."""
    sources: list[Source] = []
    first: Held | None = None
    passed = False
    for tensor, held in holding:
        if tensor.dim() > output.dim():
            continue
        first, passed = first or held, passed or held.passed
        missing: Decoded = [[] for _ in range(output.dim() - tensor.dim())]
        for source, decoded in _decoded(held, tensor):
            sources.append(source_of(source.parameter, output, [*missing, *decoded]))
    return replace(first, sources=tuple(sources), passed=passed) if first and sources else None


def concatenated(parts: Sequence[tuple[Tensor, Held | None]], dim: int, output: Tensor) -> Held | None:
    """``cat``, and ``stack`` of tensors with one dim fewer than the output."""
    dim %= output.dim()
    stacked = any(tensor.dim() < output.dim() and tensor.numel() for tensor, _ in parts)
    sources: list[Source] = []
    passed = False
    start = 0
    for tensor, held in parts:
        length = 1 if stacked else tensor.shape[dim] if tensor.dim() == output.dim() else 0
        place = output.narrow(dim, start, length)
        start += length
        if held is None or not length:
            continue
        passed = passed or held.passed
        for source, decoded in _decoded(held, tensor):
            if stacked:
                decoded = [*decoded[:dim], [], *decoded[dim:]]
            sources.append(source_of(source.parameter, place, decoded, output.shape))
    return Held(tuple(sources), passed) if sources else None


def repeated(tensor: Tensor, held: Held, repeats: Sequence[int], output: Tensor) -> Held | None:
    """``repeat``: the tensor's dims, each followed by its number of repetitions."""
    sources = []
    for source, decoded in _decoded(held, tensor):
        padded: Decoded = [[] for _ in range(output.dim() - tensor.dim())] + decoded
        factors = [
            [*dim, Factor(None, count, 1)] if count > 1 and dim else dim
            for dim, count in zip(padded, repeats, strict=True)
        ]
        sources.append(source_of(source.parameter, output, factors))
    return replace(held, sources=tuple(sources)) if sources else None


def selected(table: Tensor, held: Held, output: Tensor) -> Held | None:
    """A look-up along the first dim, if each index selects a matrix (an expert); a row is an embedding's."""
    sources = []
    for source, decoded in _decoded(held, table):
        kept = decoded[1:]
        if sum(bool(factors) for factors in kept) < 2:
            return None
        missing: Decoded = [[] for _ in range(output.dim() - len(kept))]
        sources.append(source_of(source.parameter, output, [*missing, *kept]))
    return Held(tuple(sources), held.passed, selected=True) if sources else None


def mixed(bank: Tensor, held: Held, output: Tensor) -> Held | None:
    """``data @ bank``: the rows of the bank, mixed by data (conditional convolutions)."""
    sources = [
        source_of(source.parameter, output, [[], decoded[1]]) for source, decoded in _decoded(held, bank)
    ]
    return Held(tuple(sources), mixed=True) if sources else None


def _decoded(held: Held, tensor: Tensor) -> list[tuple[Source, Decoded]]:
    pairs = ((source, source.decode(tensor)) for source in held.sources)
    return [(source, decoded) for source, decoded in pairs if decoded is not None]


LOOKUPS = {
    "aten::embedding",
    "aten::_embedding_bag",
    "aten::_embedding_bag_forward_only",
    "aten::gather",
    "aten::index",
    "aten::index_select",
    "aten::take",
    "aten::take_along_dim",
}
# The output has the shape of the first operand; the others are scales, biases and statistics.
NORMALIZATIONS = {
    "aten::_batch_norm_no_update",
    "aten::_batch_norm_with_update",
    "aten::_fused_rms_norm",
    "aten::_log_softmax",
    "aten::_native_batch_norm_legit",
    "aten::_softmax",
    "aten::_weight_norm_interface",
    "aten::cudnn_batch_norm",
    "aten::miopen_batch_norm",
    "aten::native_batch_norm",
    "aten::native_dropout",
    "aten::native_group_norm",
    "aten::native_layer_norm",
}
# Not tagged as pointwise.
_ELEMENTWISE = {
    "aten::_prelu_kernel",
    "aten::_to_copy",
    "aten::cat",
    "aten::copy",
    "aten::expand",
    "aten::flip",
    "aten::masked_fill",
    "aten::prelu",
    "aten::stack",
    "aten::tril",
    "aten::triu",
    "aten::where",
}
REDUCTIONS = {
    "aten::amax",
    "aten::amin",
    "aten::linalg_vector_norm",
    "aten::max",
    "aten::mean",
    "aten::min",
    "aten::norm",
    "aten::std",
    "aten::std_mean",
    "aten::sum",
    "aten::var",
    "aten::var_mean",
}
