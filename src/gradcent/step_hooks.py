"""Step hooks: GC for optimizers whose step is not known, and the check for non-finite gradients.

A step-pre-hook runs before the closure of `step(closure)`, whose backward computes the gradients. So a closure is
wrapped, and its gradients are centralized when it returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .attachment import Attachment
from .dtensor import centralize as sharded
from .dtensor.update import UpdateProjection
from .user_warning import warn_user


class StepHooks:
    """The hooks of one attached optimizer."""

    def __init__(self, attachment: Attachment, *, gradients: bool, updates: bool) -> None:
        self.attachment = attachment
        self.gradients = gradients  # centralize p.grad in place
        self.updates = updates  # project the change of the weight
        self.params: list[Tensor] = []  # of all groups, in this step
        self.projection: UpdateProjection | None = None  # of their update in this step
        self.hidden: list[tuple[Tensor, Tensor]] = []  # gradients taken away so that the step skips them
        self.depth = 0  # of steps that call each other
        self.evaluations = 0  # calls of the closure in this step
        self.handles: list[Any] = []

    def install(self, optimizer: torch.optim.Optimizer) -> None:
        """Register on the optimizer."""
        self.handles = [
            optimizer.register_step_pre_hook(self.before),
            optimizer.register_step_post_hook(self.after),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def begin(self) -> None:
        """Start an outermost step: clear what an interrupted one left."""
        self.depth = 0
        self.hidden = []
        self._clear_update()

    def _clear_update(self) -> None:
        self.params, self.projection = [], None

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Run before the optimizer's step. Hooks run outside the step's own no_grad."""
        with torch.no_grad():
            return self._before(optimizer, args, kwargs)

    def _before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self.gradients or self.updates:
            self.depth += 1
            if self.depth > 1:  # a subclass whose step calls its parent's: the hooks of both run
                # The subclass may have clipped the gradients since. Without a change this is the identity.
                if self.gradients:
                    self.centralize(optimizer)
                return None
        self.evaluations = 0
        if self.updates:
            self.attachment.check_shapes(optimizer, without_grad=True)
            self.params = [param for group in optimizer.param_groups for param in group["params"]]
            self.projection = self.attachment.projection(self.params)
            self.projection.record(self.params)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self.gradients_ready(optimizer)
            return None

        def wrapped(*inputs: Any, **options: Any) -> Any:
            self.show()
            self.evaluations += 1
            result = closure(*inputs, **options)  # in the grad mode of the step that calls it
            with torch.no_grad():
                self.gradients_ready(optimizer)
            return result

        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        """Check and centralize the gradients that backward computed."""
        if self.attachment.options.nonfinite != "propagate":
            self.check(optimizer)
        if self.gradients:
            self.centralize(optimizer)

    def centralize(self, optimizer: torch.optim.Optimizer) -> None:
        """Centralize `p.grad` in place."""
        self.attachment.check_shapes(optimizer)
        for group in optimizer.param_groups:
            decay = group["weight_decay"] if self.attachment.projects_decay(optimizer, group) else 0.0
            params = [
                param for param in group["params"] if param.grad is not None and not param.grad.is_sparse
            ]
            if group.get("maximize"):
                decay = -decay
            # a GradScaler's, before a step that unscales the gradients itself
            scale = getattr(optimizer, "grad_scale", None)
            layouts, _ = self.attachment.cache.lists(self.attachment, params)
            sharded.centralize_gradients_(
                params,
                layouts,
                decay=decay if scale is None else decay * scale,
                kernel=self.attachment.options.kernel,
            )

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise on nan and inf, or hide all gradients so that the step skips them."""
        found_inf = getattr(optimizer, "found_inf", None)
        overflowed = found_inf is not None and bool(_local_values(found_inf))
        params = [param for group in optimizer.param_groups for param in group["params"]]
        trained = [param for param in params if param.grad is not None]
        # _all_finite is a collective call: a rank without gradients, or with a GradScaler's verdict, takes part too.
        finite = _all_finite([param.grad for param in trained], params[0].device, overflowed)
        if finite or overflowed:  # after an overflow the GradScaler skips the step
            return
        if self.attachment.options.nonfinite == "raise":
            names = [
                entry.name
                for parameter, entry in self.attachment.plan.named()
                if parameter.grad is not None
                and not bool(torch.isfinite(_local_values(parameter.grad)).all())
            ]
            where = ", ".join(names[:3]) or "another rank"
            changed = (
                f"found in call {self.evaluations} of the closure, when the step had already changed parameters: load "
                "a checkpoint before you continue"
                if self.evaluations > 1
                else "no parameter was changed"
            )
            raise FloatingPointError(f"gradcent: gradient with nan or inf in {where}; {changed}")
        self.attachment.skipped_steps += 1
        if self.attachment.skipped_steps == 1:
            warn_user(
                "gradcent: gradient with nan or inf, step skipped; gradcent.attached(optimizer).skipped_steps counts",
            )
        self.hidden = [(param, param.grad) for param in trained]
        for param in trained:
            param.grad = None

    def show(self) -> None:
        """Restore hidden gradients."""
        for parameter, gradient in self.hidden:
            parameter.grad = gradient
        self.hidden = []

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Run after the optimizer's step."""
        self.depth = max(self.depth - 1, 0)
        if self.depth:
            return
        self.show()
        if self.projection is not None:
            with torch.no_grad():
                self.projection.restore_(self.params)
        self._clear_update()


def _all_finite(tensors: Sequence[Tensor], device: torch.device, known_bad: bool = False) -> bool:
    """Whether the gradients of all ranks are finite. A collective call: every rank has to make it."""
    bad = known_bad or any(not bool(torch.isfinite(_local_values(tensor)).all()) for tensor in tensors)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        flag = torch.tensor(float(bad), device=device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        bad = bool(flag)
    return not bad


def _local_values(tensor: Tensor) -> Tensor:
    """Return the values of a sparse tensor, the local shard of a DTensor, any other tensor itself."""
    if tensor.is_sparse:
        return tensor._values() if not tensor.is_coalesced() else tensor.values()
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
