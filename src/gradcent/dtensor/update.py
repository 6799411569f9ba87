"""GC at the update for lists that may contain DTensors: the means before a step are restored after it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..kernels.means import ListMeans
from ..layout import Layout
from . import simulated
from .shard import Shard, all_reduce_sums, any_sharded, is_sharded, shifted, sums_of


class UpdateProjection:
    """Projects the change of a list of weights in a step, for `at="update"`: record, step, restore.

    Entries of ``layouts`` that are None mark tensors that are left alone.
    """

    def __init__(self, layouts: Sequence[Layout | None], kernel: str = "auto") -> None:
        self.kernel = kernel
        self.indices = [index for index, layout in enumerate(layouts) if layout is not None]
        self.layouts = [layout for layout in layouts if layout is not None]
        self._means = ListMeans(self.layouts, kernel)
        self._sharded: tuple[ListMeans, list[Tensor]] | None = None
        self._simulated: list[tuple[int, Tensor]] = []  # means of DTensors of simulated ranks

    def record(self, params: Sequence[Tensor]) -> None:
        """Record the means before the step; no communication."""
        weights = [params[index] for index in self.indices]
        self._sharded = None
        if not any_sharded(weights):
            self._means.record(weights)
            return
        self._simulated = [
            (index, simulated.vector_means(weight, layout))
            for index, (weight, layout) in enumerate(zip(weights, self.layouts, strict=True))
            if is_sharded(weight) and simulated.is_simulated(weight)
        ]
        whole, split = _whole_and_split(weights, self.layouts)
        means = ListMeans([shard.layout for shard in whole if shard.layout is not None], self.kernel)
        means.record([shard.local for shard in whole])
        self._sharded = means, [sums_of(shard.local, shard.share) for shard in split]

    def restore_(self, params: Sequence[Tensor]) -> None:
        """Restore the means after the step; one all-reduce for all split vectors."""
        weights = [params[index] for index in self.indices]
        if self._sharded is None:
            self._means.restore_(weights)
            return
        means, sums = self._sharded
        with torch.no_grad():
            whole, split = _whole_and_split(weights, self.layouts)
            means.restore_([shard.local for shard in whole])
            drifts = [
                (shard, sums_of(shard.local, shard.share) - before)
                for shard, before in zip(split, sums, strict=True)
            ]
            for shard, drift in zip(split, all_reduce_sums(drifts), strict=True):
                shard.local.copy_(shifted(shard.local, shard.share, drift))
            for index, mean in self._simulated:
                simulated.restore_means_(weights[index].detach(), self.layouts[index], mean)
        self._sharded, self._simulated = None, []


def _whole_and_split(weights: Sequence[Tensor], layouts: Sequence[Layout]) -> tuple[list[Shard], list[Shard]]:
    """Return the shards whose vectors are whole and those whose vectors are split; some hold no element at all."""
    shards = [
        Shard.of(weight.detach(), layout, weight) for weight, layout in zip(weights, layouts, strict=True)
    ]
    whole = [shard for shard in shards if shard.share is None and shard.layout is not None]
    return whole, [shard for shard in shards if shard.share is not None]
