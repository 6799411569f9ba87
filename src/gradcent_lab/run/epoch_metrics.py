"""Means of loss and metric over an epoch, as sums on the device that are reduced over the processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator


class Meters:
    """Sums of loss and metric and their counts: [loss, samples, metric, values]."""

    def __init__(self, device: torch.device, sums: list[float] | None = None) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sums = torch.tensor(sums or [0.0] * 4, dtype=dtype, device=device)

    def add(self, loss: torch.Tensor, metric: torch.Tensor, count: int) -> None:
        """Add a batch of `count` samples; a boolean metric counts 100 where it is true."""
        if count == 0:
            return
        values = metric.detach()
        scale = 100.0 if values.dtype == torch.bool else 1.0
        values = values.to(self._sums.dtype)
        if values.dim() == 0:  # one value for the whole batch
            total, number = values * count, count
        else:
            total, number = values.sum(), values.numel()
        self._sums[0] += loss.to(self._sums.dtype) * count
        self._sums[1] += count
        self._sums[2] += total * scale
        self._sums[3] += number

    def loss_sum(self) -> float:
        """The sum of the loss so far: not finite once a single loss was not."""
        return float(self._sums[0])

    def mean(self, accelerator: Accelerator) -> tuple[float, float]:
        """Return the mean loss and the mean metric over all processes."""
        sums = accelerator.reduce(self._sums, "sum") if accelerator.num_processes > 1 else self._sums
        loss, samples, metric, values = sums.tolist()
        return loss / max(samples, 1.0), metric / max(values, 1.0)

    def state(self) -> list[float]:
        """Return the sums for a checkpoint."""
        sums: list[float] = self._sums.tolist()
        return sums
