"""SGD with momentum and GC: Algorithm 1, with PyTorch's momentum (m = βm + ĝ) unless `dampening` is set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from ..kernels import fused_steps
from ._explicit_step import ExplicitStep, call_closure, explicit_step


class SGD(ExplicitStep, torch.optim.SGD):
    """torch.optim.SGD that is given Φ(g), and P(g + λw) where there is weight decay.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    @explicit_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step."""
        return sgd_step(self, closure, fused_steps.SGD, sgd)


def sgd_step(optimizer: Any, closure: Any, rule: fused_steps.FusedRule, functional: Any) -> Any:
    """Step SGD or SGDW, which differ in their fused rule and their functional form."""
    loss = call_closure(closure)
    for group in optimizer.param_groups:
        if optimizer._try_fused_step(rule, group):
            continue
        params: list[Tensor] = []
        grads: list[Tensor] = []
        momentum_buffers: list[Tensor | None] = []
        has_sparse_grad = optimizer._init_group(group, params, grads, momentum_buffers)
        if not optimizer._try_fused_lists(rule, group, params, grads, [momentum_buffers]):
            grads, recorded = optimizer._before_update(group, params, grads)
            functional(
                params,
                grads,
                momentum_buffers,
                weight_decay=group["weight_decay"],
                momentum=group["momentum"],
                lr=group["lr"],
                dampening=group["dampening"],
                nesterov=group["nesterov"],
                maximize=group["maximize"],
                has_sparse_grad=has_sparse_grad,
                foreach=group["foreach"],
                fused=group["fused"],
                grad_scale=getattr(optimizer, "grad_scale", None),
                found_inf=getattr(optimizer, "found_inf", None),
            )
            optimizer._after_update(params, recorded)
        if group["momentum"] != 0:
            for param, momentum_buffer in zip(params, momentum_buffers, strict=True):
                optimizer.state[param]["momentum_buffer"] = momentum_buffer
    return loss
