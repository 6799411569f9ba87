"""Adam with GC: Algorithm 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from ..kernels import fused_steps
from ._explicit_step import ExplicitStep, call_closure, explicit_step


class Adam(ExplicitStep, torch.optim.Adam):
    """torch.optim.Adam whose moments both see Φ(g), or P(g + λw) where there is (coupled) weight decay.

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.Adam(model.parameters(), lr=1e-3, model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    @explicit_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform a single optimization step."""
        return adam_step(self, closure, fused_steps.ADAM)


def adam_step(optimizer: Any, closure: Any, rule: fused_steps.FusedRule) -> Any:
    """Step Adam or AdamW, which differ in how they decay."""
    optimizer._check_graph_capture()
    loss = call_closure(closure)
    for group in optimizer.param_groups:
        if optimizer._try_fused_step(rule, group):
            continue
        params: list[Tensor] = []
        grads: list[Tensor] = []
        exp_avgs: list[Tensor] = []
        exp_avg_sqs: list[Tensor] = []
        max_exp_avg_sqs: list[Tensor] = []
        steps: list[Tensor] = []
        has_complex = optimizer._init_group(
            group, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps
        )
        states = [exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps]
        if optimizer._try_fused_lists(rule, group, params, grads, states):
            continue
        grads, recorded = optimizer._before_update(group, params, grads)
        beta1, beta2 = group["betas"]
        adam(
            params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            max_exp_avg_sqs,
            steps,
            amsgrad=group["amsgrad"],
            has_complex=has_complex,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=group["maximize"],
            foreach=group["foreach"],
            capturable=group["capturable"],
            differentiable=group["differentiable"],
            fused=group["fused"],
            grad_scale=getattr(optimizer, "grad_scale", None),
            found_inf=getattr(optimizer, "found_inf", None),
            decoupled_weight_decay=group["decoupled_weight_decay"],
        )
        optimizer._after_update(params, recorded)
    return loss
