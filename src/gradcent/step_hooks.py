"""Step hooks: GC for optimizers whose inside is not known, and the check for non-finite gradients.

A step-pre-hook alone is silently off under `step(closure)`, because the closure's backward fills the
gradients after it ran. So a closure is wrapped, and the work is done when it returns.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from .attachment import Attachment, all_finite, local
from .dtensor import centralize as sharded
from .layout import Layout


class StepHooks:
    """The hooks of one attached optimizer."""

    def __init__(self, attachment: Attachment, *, gradients: bool, updates: bool) -> None:
        self.attachment = attachment
        self.gradients = gradients  # centralize p.grad in place
        self.updates = updates  # project the change of the weight
        self.planned: list[tuple[Tensor, Layout]] = []
        self.means: list[Tensor] = []
        self.hidden: list[tuple[Tensor, Tensor]] = []
        self.depth = 0
        self.evaluations = 0  # calls of the closure in this step
        self.handles: list[Any] = []

    def install(self, optimizer: torch.optim.Optimizer) -> None:
        """Register on the optimizer."""
        self.handles = [
            optimizer.register_step_pre_hook(self.before),
            optimizer.register_step_post_hook(self.after),
        ]

    def remove(self) -> None:
        """Take the hooks off again."""
        for handle in self.handles:
            handle.remove()

    def begin(self) -> None:
        """Start of an outermost step: forget what an interrupted one left."""
        self.depth = 0
        self.planned.clear()
        self.means.clear()
        self.hidden.clear()

    def before(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Run before the optimizer's step."""
        if self.gradients or self.updates:
            self.depth += 1
            if self.depth > 1:  # a subclass whose step calls its parent's: the hooks of both run
                # The subclass may have clipped the gradients since. Without a change this is the identity.
                if self.gradients:
                    self.centralize(optimizer)
                return None
        self.evaluations = 0
        if self.updates:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            layouts = self.attachment.layouts(parameters)
            self.planned = [
                (each, layout) for each, layout in zip(parameters, layouts, strict=True) if layout is not None
            ]
            with torch.no_grad():  # hooks run outside the optimizer's own
                self.means = sharded.vector_means(*self.lists())
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if not callable(closure):
            self.gradients_ready(optimizer)
            return None

        def wrapped(*inputs: Any, **options: Any) -> Any:
            self.show()
            self.evaluations += 1
            result = closure(*inputs, **options)
            with torch.no_grad():
                self.gradients_ready(optimizer)
            return result

        if len(args) > 1:
            return (args[0], wrapped, *args[2:]), kwargs
        return args, {**kwargs, "closure": wrapped}

    def gradients_ready(self, optimizer: torch.optim.Optimizer) -> None:
        """Check and centralize what backward left in the parameters' `grad`."""
        if self.attachment.options.nonfinite != "propagate":
            self.check(optimizer)
        if self.gradients:
            self.centralize(optimizer)

    def centralize(self, optimizer: torch.optim.Optimizer) -> None:
        """Centralize `p.grad` in place."""
        for group in optimizer.param_groups:
            decay = group["weight_decay"] if self.attachment.projects_decay(optimizer, group) else 0.0
            parameters = [
                each for each in group["params"] if each.grad is not None and not each.grad.is_sparse
            ]
            if group.get("maximize"):
                decay = -decay
            # a GradScaler's, before a step that unscales by itself
            scale = getattr(optimizer, "grad_scale", None)
            sharded.centralize_gradients_(
                parameters,
                self.attachment.layouts(parameters),
                decay=decay if scale is None else decay * scale,
                kernel=self.attachment.options.kernel,
            )

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Look for nan and inf; raise, or hide all gradients so that the step passes over them."""
        found = getattr(optimizer, "found_inf", None)
        overflowed = found is not None and bool(local(found))
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        trained = [each for each in parameters if each.grad is not None]
        # A worker without gradients, or whose scaler knows already, takes part as well: the others wait for it.
        if all_finite([each.grad for each in trained], parameters[0].device, overflowed):
            return
        if overflowed:
            return  # the GradScaler has this step change nothing
        if self.attachment.options.nonfinite == "raise":
            names = [
                entry.name
                for parameter, entry in self.attachment.plan.named()
                if parameter.grad is not None and not bool(torch.isfinite(local(parameter.grad)).all())
            ]
            where = ", ".join(names[:3]) or "another worker"
            changed = (
                f"found when the step called its closure for the {self.evaluations}. time, after it had changed "
                "parameters: load a checkpoint before you go on"
                if self.evaluations > 1
                else "no parameter was changed"
            )
            raise FloatingPointError(f"gradcent: gradient with nan or inf in {where}; {changed}")
        self.attachment.skipped_steps += 1
        if self.attachment.skipped_steps == 1:
            warnings.warn(
                "gradcent: gradient with nan or inf, step skipped; gradcent.attached(optimizer).skipped_steps counts",
                stacklevel=2,
            )
        self.hidden = [(each, each.grad) for each in trained]
        for each in trained:
            each.grad = None

    def show(self) -> None:
        """Give hidden gradients back."""
        for parameter, gradient in self.hidden:
            parameter.grad = gradient
        self.hidden = []

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Run after the optimizer's step."""
        self.depth = max(self.depth - 1, 0)
        if self.depth:
            return
        self.show()
        with torch.no_grad():
            sharded.restore_means_(*self.lists(), self.means)
        self.planned, self.means = [], []

    def lists(self) -> tuple[list[Tensor], list[Layout]]:
        """The parameters whose update is being projected, and their layouts."""
        return [each for each, _ in self.planned], [layout for _, layout in self.planned]
