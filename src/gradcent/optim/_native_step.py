"""Fused steps of one param group: one C call on the CPU, one Triton launch on CUDA.

On 2,000 small tensors torch's Python code around a step takes longer than the arithmetic. `try_fused_step` steps a
CPU group whose states exist without any Python code per tensor. `try_fused_lists` steps the lists that torch's
`_init_group` collected: the first step of a CPU group, and every step on CUDA. Both return False, with nothing
changed, for what the fused kernels do not support; torch's own step then does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..kernels import native
from ..kernels.fused_steps import FusedRule, StepArgs, torch_impl_requested

if TYPE_CHECKING:
    from ..attachment import Attachment


def try_fused_step(
    rule: FusedRule, optimizer: torch.optim.Optimizer, group: dict[str, Any], attachment: Attachment
) -> bool:
    """Step one param group whose states exist in one call; False, and nothing changed, if it cannot."""
    params, state = group["params"], optimizer.state
    kernel = attachment.options.kernel
    if (
        kernel in ("foreach", "reference")
        or torch.is_grad_enabled()
        or type(params) is not list
        or not isinstance(state, dict)
        or not params
        or torch_impl_requested(group, cuda=params[0].is_cuda)
    ):
        return False
    kernels = _kernels_for(params[0], kernel)
    if kernels is None:
        return False
    if kernels is not native:
        return _try_triton_step(kernels, rule, optimizer, group, attachment)
    args = _step_args(rule, optimizer, group, attachment)
    for rebuild in (False, True):
        table = attachment.cache.table(attachment, params, rebuild=rebuild)
        stepped = False if table is None else native.step_group(rule, table, params, state, args)
        if stepped is not None:
            return stepped
    return False


def _try_triton_step(
    triton: Any,
    rule: FusedRule,
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    attachment: Attachment,
) -> bool:
    params = group["params"]
    layouts, _ = attachment.cache.lists(attachment, params)
    args = _step_args(rule, optimizer, group, attachment)
    try:
        return bool(triton.step_group(rule, params, optimizer.state, layouts, args))
    except native.Unsupported:
        return False


def try_fused_lists(
    rule: FusedRule,
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    attachment: Attachment,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[Any],
) -> bool:
    """Step the lists that torch's `_init_group` filled; False, and nothing changed, if it cannot.

    `states` are torch's lists behind the gradients, in torch's order. Missing momentum buffers (None) are created.
    """
    kernel = attachment.options.kernel
    if (
        not params
        or kernel in ("foreach", "reference")
        or torch.is_grad_enabled()
        or torch_impl_requested(group, cuda=params[0].is_cuda)
    ):
        return False
    kernels = _kernels_for(params[0], kernel)
    if kernels is None:
        return False
    layouts, _ = attachment.cache.lists(attachment, params)
    args = _step_args(rule, optimizer, group, attachment)
    try:
        kernels.step_lists(rule, params, grads, [states[i] for i in rule.state_lists], layouts, args)
    except native.Unsupported:
        return False
    return True


def _step_args(
    rule: FusedRule, optimizer: torch.optim.Optimizer, group: dict[str, Any], attachment: Attachment
) -> StepArgs:
    return StepArgs.of_group(
        rule,
        group,
        at=attachment.options.at,
        projected=attachment.projects_decay(optimizer, group),
        grad_scale=getattr(optimizer, "grad_scale", None),
        found_inf=getattr(optimizer, "found_inf", None),
    )


def _kernels_for(param: Tensor, kernel: str) -> Any:
    if kernel == "native" and not native.available():
        raise RuntimeError(f"kernel='native' is unavailable: {native.reason()}. Use kernel='auto'")
    if param.device.type == "cpu" and kernel != "triton":
        return native if kernel in ("auto", "native") and native.available() else None
    if kernel not in ("auto", "triton") or not (param.is_cuda or kernel == "triton"):
        return None
    from ..kernels import triton  # imported on demand: most processes have no GPU

    if not param.is_cuda and not triton.interpreted():
        raise RuntimeError(
            f"kernel='triton' needs CUDA tensors, got one on {param.device}. Use kernel='auto'"
        )
    return triton if triton.available() else None
