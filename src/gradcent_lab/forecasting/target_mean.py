"""How much of the target the mean of the input explains: the warning sign for harm (Theorem 4.1).

A centralized input layer cannot learn to depend on the mean of its input. For classes the figure is η², the
share of the variance of the input's mean that lies between classes; for numbers it is R², the share of the
target's variance that a linear function of the input's mean explains.
"""

from __future__ import annotations

import torch
from torch import Tensor


def explained_by_input_mean(inputs: Tensor, targets: Tensor) -> float | None:
    """Return η² or R² over samples, or None where the question has no meaning (token inputs, dense class maps)."""
    if not inputs.is_floating_point() or len(inputs) < 3:
        return None
    means = inputs.detach().double().flatten(1).mean(1)
    spread = means - means.mean()
    total = float(spread.square().sum())
    if total <= 1e-12 * max(1.0, float(means.square().sum())):
        return 0.0  # every sample has the same mean
    if not targets.is_floating_point():
        return _between_classes(spread, targets, total) if targets.ndim == 1 else None
    values = (
        targets.detach().double().flatten(1) if targets.ndim > 1 else targets.detach().double().unsqueeze(1)
    )
    values = values - values.mean(0)
    variance = float(values.square().sum())
    if variance == 0:
        return 0.0
    slopes = spread @ values / total
    return float((total * slopes.square()).sum()) / variance


def _between_classes(spread: Tensor, labels: Tensor, total: float) -> float:
    classes, counts = labels.unique(return_counts=True)
    if len(classes) < 2:
        return 0.0
    means = torch.stack([spread[labels == label].mean() for label in classes])
    return float((counts * means.square()).sum()) / total
