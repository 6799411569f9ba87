"""AdamW with GC: the decay is decoupled and stays outside the projection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..kernels import fused_steps
from ._explicit_step import ExplicitStep, explicit_step
from .adam import adam_step


class AdamW(ExplicitStep, torch.optim.AdamW):
    """torch.optim.AdamW whose moments both see Φ(g).

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.AdamW(model.parameters(), lr=1e-3, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    @explicit_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step."""
        return adam_step(self, closure, fused_steps.ADAMW)
