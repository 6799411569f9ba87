"""GC inside a compiled step: operators that Dynamo captures, and a plan that it reads as a constant.

Dynamo runs an optimizer's `_init_group` as real Python while it traces `step`. That is where the layouts of the
collected parameters are recorded. The traced code then reads them through :func:`traced_plan`, which Dynamo
evaluates once, while tracing. Gradients cannot be replaced inside `_init_group`: Dynamo would treat the tensors that
it finds there as constants, and the compiled step would reuse the gradients of its first call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..dtensor.shard import refuse_compiling
from ..kernels.layout_cache import Shapes

if TYPE_CHECKING:
    from ..attachment import Attachment

TracedPlan = tuple[Shapes, str, bool]  # layouts, at=, and whether λw is part of what is centralized

_attachments: weakref.WeakValueDictionary[str, Attachment] = weakref.WeakValueDictionary()


def record_traced_plan(attachment: Attachment, params: Sequence[Tensor], projects_decay: bool) -> None:
    """Record, in `_init_group`, the plan of the lists that Dynamo is about to trace."""
    from .. import compile_ops  # noqa: F401  # defines torch.ops.gradcent, which only a compiled step needs

    refuse_compiling(params)
    _, shapes = attachment.cache.lists(attachment, params)
    attachment.traced_plan = (shapes, attachment.options.at, projects_decay)
    _attachments[attachment.identity] = attachment


def traced_plan(identity: str) -> TracedPlan:
    """Return what `_init_group` recorded last for the attachment; a constant of the compiled step."""
    return _attachments[identity].traced_plan  # type: ignore[return-value]


# This is what torch.compiler.assume_constant_result sets; calling it imports all of Dynamo (2 s).
traced_plan._dynamo_marked_constant = True  # type: ignore[attr-defined]


def before_update(
    identity: str, params: list[Tensor], grads: list[Tensor], decay: float, scale: Tensor | None
) -> tuple[list[Tensor], list[Any]]:
    """Return the gradients for torch's functional form, and the means that `after_update` restores."""
    shapes, at, projects_decay = traced_plan(identity)
    operators = torch.ops.gradcent
    if at == "update":
        means = [
            None if shape is None else operators.vector_means(param, shape)
            for param, shape in zip(params, shapes, strict=True)
        ]
        return grads, means
    if not projects_decay:
        decay = 0.0
    centralized = [
        grad
        if shape is None
        else operators.centralize(grad, param if projects_decay else None, decay, scale, shape)
        for param, grad, shape in zip(params, grads, shapes, strict=True)
    ]
    return centralized, []


def after_update(identity: str, params: list[Tensor], means: list[Any]) -> None:
    """Restore the means of the weight vectors, for `at="update"`."""
    shapes, at, _ = traced_plan(identity)
    if at == "update":
        for param, mean, shape in zip(params, means, shapes, strict=True):
            if shape is not None:
                torch.ops.gradcent.restore_means_(param, mean, shape)
