"""The Triton kernels for CUDA tensors: centralize, and whole steps of SGD, SGDW, Adam, AdamW and Adagrad.

This module is the entry; triton_launch.py launches, triton_tables.py keeps the pointer tables, triton_tasks.py chooses
specialisations, triton_kernels.py is the device code and triton_check.py compares it with the reference on first use.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import triton_check, triton_launch
from .fused_steps import FusedRule, StepArgs
from .native import Unsupported
from .triton_tables import Layouts, interpreted

__all__ = ["available", "centralize_", "centralized", "interpreted", "reason", "step_group", "step_lists"]


@functools.cache
def available() -> bool:
    """Return whether Triton is installed."""
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        return False
    return True


def reason() -> str:
    """Return why there are no Triton kernels, or that there are."""
    return "Triton kernels" if available() else "Triton is not installed: pip install triton"


def centralized(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None = None,
    decay: float | Tensor = 0.0,
) -> list[Tensor]:
    """Return t - mean(t + decay * w) for each tensor; those without a layout are returned as they are."""
    out = list(tensors)
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    for i in chosen:
        out[i] = torch.empty_like(tensors[i])
    _centralize([out[i] for i in chosen], tensors, layouts, weights, decay, chosen)
    return out


def centralize_(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None = None,
    decay: float | Tensor = 0.0,
) -> None:
    """In place t -= mean(t + decay * w) for each weight vector; tensors without a layout are left alone."""
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    out = [tensors[i] for i in chosen]
    _centralize(out, tensors, layouts, weights, decay, chosen)
    triton_launch.bump_versions(out)


def _centralize(
    out: list[Tensor],
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None,
    decay: float | Tensor,
    chosen: list[int],
) -> None:
    if not chosen:
        return
    _require(out, triton_check.CENTRALIZE)
    triton_launch.centralize(
        out,
        [tensors[i] for i in chosen],
        None if weights is None else [weights[i] for i in chosen],
        [layouts[i] for i in chosen],
        decay,
    )


def step_lists(
    rule: FusedRule,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[list[Any]],
    layouts: Layouts,
    args: StepArgs,
) -> None:
    """One step of a list of parameters; `states` are the lists of `rule.state_keys`.

    Step counters are incremented. Missing momentum buffers (None) are created and put into their list.
    """
    if params:
        _require(params, triton_check.operation_of(rule, args))
        triton_launch.step(rule, params, grads, states, layouts, args)


def step_group(
    rule: FusedRule, params: list[Tensor], state: dict[Any, Any], layouts: Layouts, args: StepArgs
) -> bool:
    """One step of those parameters of a group that have a gradient; their states must exist.

    False: the kernels cannot take this group, nothing was changed.
    """
    if not params or not available() or not _has_memory(params[0]):
        return False
    check = functools.partial(triton_check.require, operation=triton_check.operation_of(rule, args))
    return triton_launch.step_group(rule, params, state, layouts, args, check)


def _require(tensors: list[Tensor], operation: str) -> None:
    if not available():
        raise RuntimeError(reason())
    if not _has_memory(tensors[0]):
        raise Unsupported("a fake tensor has no memory that a kernel could read")
    triton_check.require(tensors[0].device, {t.dtype for t in tensors}, operation)


def _has_memory(tensor: Tensor) -> bool:
    """Whether a tensor's values are its memory; those of a fake tensor, or of one with its own dispatch, are not."""
    return type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
