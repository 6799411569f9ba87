"""GC on DTensors whose ranks are simulated in one process, as in torch's LocalTensor mode.

There one tensor stands for the shards of all ranks, and a mesh coordinate has another value on every rank, so no single
:class:`~gradcent.dtensor.geometry.Share` describes the local part. The tensor is replicated, centralized as a whole
and sharded again. That costs memory and communication, which a simulation has to spare.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import operator
from ..layout import Layout


def is_simulated(tensor: Any) -> bool:
    """Whether this DTensor's mesh coordinate is not a plain number."""
    coordinate = tensor.device_mesh.get_coordinate()
    return coordinate is not None and any(type(index) is not int for index in coordinate)


def centralized(gradient: Tensor, layout: Layout, weight: Tensor, decay: float | Tensor) -> Tensor:
    """Return g − mean(g + decay·w) with the gradient's placements."""
    with_decay = isinstance(decay, Tensor) or decay != 0
    whole_weight = _whole(weight) if with_decay else None
    return _sharded_like(
        gradient, operator.centralize(_whole(gradient), layout, weight=whole_weight, decay=decay)
    )


def vector_means(weight: Tensor, layout: Layout) -> Tensor:
    """Return the means that :func:`restore_means_` restores."""
    return operator.vector_means(_whole(weight), layout)


def restore_means_(weight: Tensor, layout: Layout, means: Tensor) -> None:
    """Shift each weight vector so that its mean is the given one."""
    weight.copy_(_sharded_like(weight, operator.restore_means_(_whole(weight).clone(), layout, means)))


def _whole(tensor: Any) -> Tensor:
    from torch.distributed.tensor import Replicate

    replicated = tensor.detach().redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)
    return replicated.to_local()  # type: ignore[no-any-return]


def _sharded_like(tensor: Any, whole: Tensor) -> Tensor:
    from torch.distributed.tensor import Replicate

    replicate = [Replicate()] * tensor.device_mesh.ndim
    replicated = type(tensor).from_local(whole, tensor.device_mesh, replicate, run_check=False)
    return replicated.redistribute(placements=tensor.placements)  # type: ignore[no-any-return]
