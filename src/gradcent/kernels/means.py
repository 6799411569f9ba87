"""The means of a list of weights before a step, and restoring them after it: GC at the update (`at="update"`).

Only the sums of the weight vectors are kept during the step. The batched form reduces each tensor once, into a buffer
that all tensors of one dtype and device share and that is reused across steps; the rest is done on the whole buffer.
The reference form calls operator.py for each tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import operator
from ..layout import Layout

_ACCUMULATE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_Signature = list[tuple[torch.Size, torch.dtype, torch.device]]


class ListMeans:
    """Records the means of a list of weights, and restores them."""

    def __init__(self, layouts: Sequence[Layout], kernel: str = "auto") -> None:
        self.layouts, self.kernel = list(layouts), kernel
        self._signature: _Signature = []
        self._batches: list[_Batch] = []
        self._others: list[int] = []  # the tensors that are in no batch
        self._recorded: list[_Batch] = []
        self._means: list[tuple[int, Tensor]] = []  # of tensors that the reference restores

    def record(self, weights: Sequence[Tensor]) -> None:
        """Record the means before a step."""
        batches, single = self._prepare(weights)
        self._recorded = [batch for batch in batches if batch.record(weights)]
        for batch in batches:
            if batch not in self._recorded:
                single = [*single, *batch.indices]
        self._means = [
            (index, operator.vector_means(weights[index], self.layouts[index])) for index in single
        ]

    def restore_(self, weights: Sequence[Tensor]) -> None:
        """Shift each weight vector in place so that its mean is again what it was before the step."""
        for index, mean in self._means:
            operator.restore_means_(weights[index], self.layouts[index], mean)
        for batch in self._recorded:
            if not batch.restore_(weights):
                for index, mean in zip(batch.indices, batch.means(), strict=True):
                    operator.restore_means_(weights[index], self.layouts[index], mean)
        self._recorded, self._means = [], []

    def _prepare(self, weights: Sequence[Tensor]) -> tuple[list[_Batch], list[int]]:
        """Return the batches and the tensors that are in none; prepare them again if a weight has changed its type."""
        if self.kernel == "reference" or torch.is_grad_enabled():
            return [], list(range(len(weights)))
        signature = [(weight.shape, weight.dtype, weight.device) for weight in weights]
        if signature != self._signature:
            indices: dict[tuple[torch.dtype, torch.device], list[int]] = {}
            self._others = []
            for index, weight in enumerate(weights):
                if _can_batch(weight, self.layouts[index]):
                    indices.setdefault((weight.dtype, weight.device), []).append(index)
                elif self.kernel == "foreach":
                    raise TypeError(
                        f"kernel='foreach' cannot project the update of tensor {index}, a {type(weight).__name__} of "
                        f"{weight.dtype} on {weight.device}. Use kernel='auto'"
                    )
                else:
                    self._others.append(index)
            self._batches = [_Batch(weights, self.layouts, chosen) for chosen in indices.values()]
            self._signature = signature
        return self._batches, self._others


class _Batch:
    """Tensors of one dtype and device, and the buffer for the sums of all their weight vectors."""

    def __init__(self, weights: Sequence[Tensor], layouts: Sequence[Layout], indices: list[int]) -> None:
        self.indices = indices
        first = weights[indices[0]]
        # Reading a GPU's values would synchronize, so overflow is avoided there by a wider accumulator.
        wide = torch.float64 if first.dtype is torch.float32 and first.is_cuda else None
        self.dtype = wide or _ACCUMULATE.get(first.dtype, first.dtype)
        self.checks_overflow = first.device.type == "cpu"
        counts = [layouts[index].count for index in indices]
        self.before = torch.empty(sum(counts), dtype=self.dtype, device=first.device)
        self.drift = torch.empty_like(self.before)
        lengths = [float(layouts[index].length) for index in indices]
        self.lengths = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(counts)).to(self.before)
        self.splits: list[
            tuple[tuple[int, ...] | None, tuple[int, ...]]
        ] = []  # the view's shape, averaged dims
        reduced, broadcast = [], []
        for index in indices:
            shape, averaged = layouts[index].split(weights[index].shape)
            self.splits.append((None if shape == tuple(weights[index].shape) else shape, averaged))
            reduced.append([size for dim, size in enumerate(shape) if dim not in averaged])
            broadcast.append([1 if dim in averaged else size for dim, size in enumerate(shape)])
        self.before_parts = _parts(self.before, counts, reduced)
        self.drift_parts = _parts(self.drift, counts, reduced)
        self.drifts = _parts(self.drift, counts, broadcast)
        self.means_shapes = broadcast
        self.counts = counts

    def record(self, weights: Sequence[Tensor]) -> bool:
        """Sum before the step; False if a sum overflows, which operator.py handles."""
        self._sum(weights, self.before_parts)
        return not self.checks_overflow or _all_finite(self.before)

    def restore_(self, weights: Sequence[Tensor]) -> bool:
        """Shift the weights by what their means have changed; False, with nothing changed, if a sum overflows."""
        views = self._sum(weights, self.drift_parts)
        self.drift.sub_(self.before)
        if self.checks_overflow and not _all_finite(self.drift):
            return False
        self.drift.div_(self.lengths)
        torch._foreach_sub_(views, self.drifts)
        return True

    def means(self) -> list[Tensor]:
        """Return the recorded means by tensor."""
        return _parts(self.before / self.lengths, self.counts, self.means_shapes)

    def _sum(self, weights: Sequence[Tensor], out: list[Tensor]) -> list[Tensor]:
        """Sum the weight vectors into the parts of a buffer; return the views of the weights."""
        views = []
        for index, (shape, averaged), part in zip(self.indices, self.splits, out, strict=True):
            view = weights[index] if shape is None else weights[index].view(shape)
            torch.sum(view, averaged, dtype=self.dtype, out=part)
            views.append(view)
        return views


def _can_batch(weight: Tensor, layout: Layout) -> bool:
    plain = type(weight).__torch_dispatch__ is Tensor.__torch_dispatch__
    if not plain or weight.layout is not torch.strided or weight.dtype not in _REAL:
        return False
    if not weight.numel() or layout.length == 1:  # sum(()) would sum over all dims
        return False
    device = weight.device.type
    return device == "cpu" or (device == "cuda" and weight.dtype is not torch.float64)


def _parts(flat: Tensor, counts: list[int], shapes: list[list[int]]) -> list[Tensor]:
    """Return the parts of a buffer, one per tensor, as views of the given shapes."""
    return [part.view(shape) for part, shape in zip(torch.split(flat, counts), shapes, strict=True)]


def _all_finite(tensor: Tensor) -> bool:
    # The sum is finite in almost every step, and cheaper than looking at each element.
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())
