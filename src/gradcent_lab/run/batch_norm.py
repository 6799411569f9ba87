"""BatchNorm statistics re-estimated before an evaluation, to tell stale running statistics from GC's effect.

Running statistics lag behind the weights: early in training, or with few steps per epoch, they can cost tens of
points in one arm and few in the other, with equal weights otherwise. Here they are replaced by the plain average over
training batches for the time of one evaluation; training does not change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

BATCHES = 50  # training batches that the statistics are averaged over, or all of an epoch if fewer


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the BatchNorm layers that keep and update running statistics."""
    return [
        m
        for m in model.modules()
        if isinstance(m, _BatchNorm) and m.track_running_stats and not getattr(m, "fixed_statistics", False)
    ]


@contextlib.contextmanager
def recalibrated(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[Any], Any],
    average: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Iterator[None]:
    """Evaluate with re-estimated statistics inside the block; put the running statistics back after it.

    Only BatchNorm layers are in training mode while the statistics are estimated, so dropout draws no random
    numbers. `average` joins the statistics of several processes.
    """
    layers = batch_norms(model)
    kept = [
        (layer.momentum, {k: v.clone() for k, v in layer.named_buffers(recurse=False)}) for layer in layers
    ]
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the plain average over batches
            layer.train()
        with torch.no_grad():
            for batch in islice(iter(batches), BATCHES):
                forward(batch)
        model.eval()
        if average is not None:
            for layer in layers:
                for statistic in (layer.running_mean, layer.running_var):
                    if statistic is not None:
                        statistic.copy_(average(statistic))
        yield
    finally:
        for layer, (momentum, buffers) in zip(layers, kept, strict=True):
            layer.momentum = momentum
            for name, value in buffers.items():
                getattr(layer, name).copy_(value)
        model.eval()
        for module in training:
            module.training = True
