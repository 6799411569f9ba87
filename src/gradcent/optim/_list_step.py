"""Steps over lists of tensors, which all dense torch optimizers take: what explicit and patched steps share.

Such a step collects the parameters and gradients of a group (`_init_group`) and passes the lists to torch's
functional form (`sgd`, `adam`, …). GC acts between the two (`at="gradient"`), or around the functional form
(`at="update"`). `p.grad` is not changed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..attachment import Attachment
from ..dtensor import centralize as sharded
from ..dtensor.update import UpdateProjection
from . import _traced_step as traced
from ._base import Centralized


class ListStep(Centralized):
    """The base of the drop-in optimizers whose steps work on lists."""

    _gradcent_stepping = False  # True while a step with GC runs

    def _collect_group(self, group: dict[str, Any], params: list[Tensor], *lists: Any, **kwargs: Any) -> Any:
        attachment = self._gradcent
        compiling = _is_tracing()
        if attachment is not None:
            if not compiling and not self._gradcent_stepping:
                raise RuntimeError(
                    f"this is {type(self).__name__}.step from before gradcent was attached: optimizer.step was bound "
                    "earlier, and calling it would step without GC. Attach first (with Accelerate and a GradScaler: "
                    "before accelerator.prepare)"
                )
            attachment.apply_group_switch(self, group)
        result = super()._init_group(group, params, *lists, **kwargs)  # type: ignore[misc]
        if attachment is not None and compiling:
            traced.record_traced_plan(attachment, params, attachment.projects_decay(self, group))
        return result

    # Each torch class has another signature for it.
    _init_group: Any = _collect_group


def _is_tracing() -> bool:
    """Whether Dynamo is tracing.

    Dynamo runs `_init_group` as Python code, in which torch.compiler.is_compiling() is False in releases before 2.15.
    torch has no public function for this, so its private context is read where it exists. Without it a compiled step
    raises the error for a step that was bound before `attach`; nothing is computed wrongly.
    """
    if torch.compiler.is_compiling():
        return True
    context = getattr(sys.modules.get("torch._guards"), "TracingContext", None)
    return context is not None and context.try_get() is not None


def mark_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the optimizer while its step runs, so that `_init_group` recognizes a step bound before `attach`."""

    @functools.wraps(step)
    def marked(self: Any, closure: Any = None) -> Any:
        if torch.compiler.is_compiling():
            return step(self, closure)
        if self._gradcent is not None:
            self._gradcent.check_shapes(self)
        self._gradcent_stepping = True
        try:
            return step(self, closure)
        finally:
            self._gradcent_stepping = False

    return marked


def before_update(
    attachment: Attachment, params: list[Tensor], grads: list[Tensor], decay: float | Tensor
) -> tuple[list[Tensor], UpdateProjection | None]:
    """Return the gradients for torch's functional form, and the projection that `after_update` needs."""
    options = attachment.options
    if options.at == "gradient":
        layouts, _ = attachment.cache.lists(attachment, params)
        return sharded.centralized(grads, layouts, params, decay=decay, kernel=options.kernel), None
    if options.kernel in ("native", "triton"):
        raise TypeError(
            f"kernel={options.kernel!r} cannot project the update of this step: its tensors or options (foreach, "
            "fused=False, amsgrad, capturable, …) need torch's own form. Use kernel='auto'"
        )
    projection = attachment.projection(params)
    projection.record(params)
    return grads, projection


def after_update(params: list[Tensor], projection: UpdateProjection | None) -> None:
    """Project the update, for `at="update"`."""
    if projection is not None:
        projection.restore_(params)


def signed_decay(options: Mapping[str, Any]) -> Any:
    """Return λ, negated under `maximize`.

    torch computes g + λw, or −g + λw: given g − mean(g ± λw), either becomes a projection.
    """
    decay = options.get("weight_decay", 0.0)
    return -decay if options.get("maximize") else decay
