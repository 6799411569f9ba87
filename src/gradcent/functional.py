"""The public functions on one tensor, plain or sharded: :func:`centralize` and :func:`centralize_`."""

from __future__ import annotations

from torch import Tensor

from . import operator
from .dtensor import centralize as sharded
from .dtensor.shard import is_sharded
from .layout import Layout


def centralize(
    tensor: Tensor, layout: Layout, *, weight: Tensor | None = None, decay: float | Tensor = 0.0
) -> Tensor:
    """Return ``tensor`` minus the mean of each weight vector of ``tensor + decay * weight``.

    A DTensor keeps its placements: each rank centralizes the shard that it holds.

    >>> import torch
    >>> centralize(torch.tensor([[1.0, 2.0, 6.0]]), Layout.rows((1, 3)))
    tensor([[-2., -1.,  3.]])
    """
    operator.check(tensor, layout, weight)
    if is_sharded(tensor):
        weights = [tensor if weight is None else weight]
        return sharded.centralized([tensor], [layout], weights, decay=decay if weight is not None else 0.0)[0]
    return operator.centralize(tensor, layout, weight=weight, decay=decay)


def centralize_(
    tensor: Tensor, layout: Layout, *, weight: Tensor | None = None, decay: float | Tensor = 0.0
) -> Tensor:
    """Centralize ``tensor`` in place and return it; see :func:`centralize`.

    >>> import torch
    >>> gradient = torch.tensor([[1.0, 2.0, 6.0]])
    >>> _ = centralize_(gradient, Layout.rows((1, 3)))
    >>> gradient
    tensor([[-2., -1.,  3.]])
    """
    fixed = None if weight is None else weight.detach()  # a stored gradient does not depend on the weight
    return tensor.copy_(centralize(tensor, layout, weight=fixed, decay=decay))
