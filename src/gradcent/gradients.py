"""GC on the gradients themselves, for engines and loops whose optimizer step cannot be reached.

Φ is linear, so it commutes with averaging over workers and with accumulation: centralizing each
gradient as backward makes it gives the same sum. What it cannot see is the optimizer's weight decay:
a coupled λw stays outside the projection (Pg + λw instead of P(g + λw)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import kernels
from .layout import Layout
from .operator import centralize
from .plan import Layers, Overrides, Plan


class GradientHandles:
    """The hooks that :func:`attach_to_gradients` set; `remove()` takes them off, `plan` says what they do."""

    def __init__(self, plan: Plan, handles: list[Any]) -> None:
        self.plan, self._handles = plan, handles

    def remove(self) -> None:
        """Stop centralizing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []


def attach_to_gradients(
    model: nn.Module | Sequence[nn.Module],
    *,
    plan: Plan | None = None,
    layers: Layers = "all",
    overrides: Overrides | None = None,
) -> GradientHandles:
    """Centralize each gradient as backward makes it, before anything accumulates, reduces or flattens it.

    For engines that flatten or shard parameters before the optimizer sees them (FSDP1, DeepSpeed
    ZeRO: call it before they wrap the model) and for optimizer-in-backward. With coupled weight decay the
    optimizer adds λw after the projection: use :func:`gradcent.attach` where you can. Do not use both.
    """
    if plan is None:
        plan = Plan.of(model, layers=layers, overrides=overrides)
    plan.require_something()
    handles: list[Any] = []
    for parameter, entry in plan.named():
        if entry.layout is not None and not entry.frozen:
            handles.append(parameter.register_hook(_hook(entry.layout)))  # type: ignore[no-untyped-call]
    return GradientHandles(plan, handles)


def centralize_gradients_(
    model: nn.Module | Sequence[nn.Module] | Plan,
    *,
    layers: Layers = "all",
    overrides: Overrides | None = None,
    kernel: str = "auto",
) -> None:
    """Centralize the gradients that are there now, in place; for loops that do everything by hand.

    Pass a :class:`Plan` instead of the model to plan once and call often.
    """
    plan = model if isinstance(model, Plan) else Plan.of(model, layers=layers, overrides=overrides)
    plan.require_something()
    trained = [
        (each, entry.layout)
        for each, entry in plan.named()
        if each.grad is not None and not each.grad.is_sparse
    ]
    with torch.no_grad():
        kernels.centralize_gradients_(
            [each for each, _ in trained], [layout for _, layout in trained], decay=0.0, kernel=kernel
        )


def _hook(layout: Layout) -> Any:
    def hook(gradient: Tensor) -> Tensor:
        return gradient if gradient.is_sparse else centralize(gradient, layout)

    return hook
