"""The parts of an explicit step: SGD, SGDW, Adam, AdamW and Adagrad each write their step out with these.

for group in self.param_groups:
    if self._try_fused_step(RULE, group): continue            one C call for the whole group
    … = self._init_group(group, params, grads, …)             torch collects the lists
    if self._try_fused_lists(RULE, group, params, grads, …): continue
    grads, means = self._before_update(group, params, grads)
    functional(params, grads, …)                              torch's own update
    self._after_update(params, means)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _use_grad_for_differentiable

from ..kernels.fused_steps import FusedRule
from . import _traced_step as traced
from ._list_step import ListStep, after_update, before_update, mark_step, signed_decay
from ._native_step import try_fused_lists, try_fused_step


class ExplicitStep(ListStep):
    """The base of the drop-in optimizers whose step is written out."""

    _gradcent_has_fused_step = True

    def _try_fused_step(self, rule: FusedRule, group: dict[str, Any]) -> bool:
        """Step the whole group in one call if its states exist; False, with nothing changed, if it cannot."""
        attachment = self._gradcent
        if attachment is None or torch.compiler.is_compiling():
            return False
        attachment.apply_group_switch(self, group)
        # A subclass that collects its lists in another way has to be asked for them.
        if type(self)._init_group is not ListStep._init_group:
            return False
        return try_fused_step(rule, self, group, attachment)

    def _try_fused_lists(
        self,
        rule: FusedRule,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        states: Sequence[Any],
    ) -> bool:
        """Step the collected lists with a fused kernel; False, with nothing changed, if it cannot."""
        attachment = self._gradcent
        if attachment is None or torch.compiler.is_compiling():
            return False
        return try_fused_lists(rule, self, group, attachment, params, grads, states)

    def _before_update(
        self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]
    ) -> tuple[list[Tensor], Any]:
        """Return the gradients for torch's functional form, and what `_after_update` needs."""
        attachment = self._gradcent
        if attachment is None:
            return grads, None
        decay = signed_decay(group)
        scale = getattr(self, "grad_scale", None)  # a GradScaler's: torch computes g/s + λw, so λ becomes sλ
        if torch.compiler.is_compiling():
            return traced.before_update(attachment.identity, params, grads, decay, scale)
        if not attachment.projects_decay(self, group):
            return before_update(attachment, params, grads, 0.0)
        return before_update(attachment, params, grads, decay if scale is None else decay * scale)

    def _after_update(self, params: list[Tensor], recorded: Any) -> None:
        """Project the update, for `at="update"`."""
        attachment = self._gradcent
        if attachment is None:
            return
        if torch.compiler.is_compiling():
            traced.after_update(attachment.identity, params, recorded)
        else:
            after_update(params, recorded)

    def _check_graph_capture(self) -> None:
        """Run torch's check for CUDA graph capture, whose name depends on the release."""
        check = getattr(self, "_accelerator_graph_capture_health_check", None)
        if check is None:
            self._cuda_graph_capture_health_check()
        else:
            check()


def explicit_step(step: Callable[..., Any]) -> Any:
    """Decorate a written-out step: torch's grad mode for `differentiable`, and the mark for `_init_group`."""
    return _use_grad_for_differentiable(mark_step(step))


def call_closure(closure: Callable[[], Any] | None) -> Any:
    """Return the closure's loss, computed with gradients enabled; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()
