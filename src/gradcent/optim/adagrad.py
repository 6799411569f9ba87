"""Adagrad with GC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adagrad import adagrad

from ..kernels import fused_steps
from ._explicit_step import ExplicitStep, call_closure, explicit_step


class Adagrad(ExplicitStep, torch.optim.Adagrad):
    """torch.optim.Adagrad whose sum of squares sees Φ(g), or P(g + λw) where there is weight decay.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Adagrad(model.parameters(), lr=1e-2, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    @explicit_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step."""
        loss = call_closure(closure)
        for group in self.param_groups:
            if self._try_fused_step(fused_steps.ADAGRAD, group):
                continue
            params: list[Tensor] = []
            grads: list[Tensor] = []
            sums: list[Tensor] = []
            steps: list[Tensor] = []
            has_sparse_grad, has_complex = self._init_group(group, params, grads, sums, steps)
            if self._try_fused_lists(fused_steps.ADAGRAD, group, params, grads, [sums, steps]):
                continue
            grads, recorded = self._before_update(group, params, grads)
            adagrad(
                params,
                grads,
                sums,
                steps,
                lr=group["lr"],
                weight_decay=group["weight_decay"],
                lr_decay=group["lr_decay"],
                eps=group["eps"],
                has_sparse_grad=has_sparse_grad,
                foreach=group["foreach"],
                maximize=group["maximize"],
                differentiable=group["differentiable"],
                has_complex=has_complex,
                fused=group["fused"],
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
            )
            self._after_update(params, recorded)
        return loss
