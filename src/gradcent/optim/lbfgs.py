"""L-BFGS with GC: the gradient of every evaluation of the closure is centralized before L-BFGS reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..functional import centralize
from ..options import Options
from ._hooked_step import HookedStep


class LBFGS(HookedStep, torch.optim.LBFGS):
    """torch.optim.LBFGS whose directions and line search see Φ(g).

    >>> model = nn.Linear(3, 2)
    >>> optimizer = gradcent.optim.LBFGS(model.parameters(), model=model)
    >>> gradcent.attached(optimizer).plan.layout(model.weight)
    Layout(batch=1, outer=1, vectors=2, inner=3)
    """

    def _required_hooks(self, options: Options) -> dict[str, bool]:
        return {"gradients": False, "updates": options.at == "update"}

    @classmethod
    def _check_options(cls, options: Options) -> None:
        if options.kernel not in ("auto", "reference"):
            raise ValueError(
                f"kernel={options.kernel!r} is not available for LBFGS, which reads the gradients one by one. "
                "Use kernel='auto'"
            )

    def _gather_flat_grad(self) -> Tensor:
        attachment = self._gradcent
        if attachment is None or attachment.options.at == "update":
            return super()._gather_flat_grad()  # type: ignore[no-any-return,no-untyped-call]
        original_grads = [(param, param.grad) for param in self.param_groups[0]["params"]]
        try:
            for param, grad in original_grads:
                layout = attachment.plan.layout(param)
                if grad is None or layout is None or grad.is_sparse:
                    continue
                # A gradient with inf is left as it is: centralizing would turn the inf that torch sees into nan.
                if bool(grad.isfinite().all()):
                    param.grad = centralize(grad, layout)
            return super()._gather_flat_grad()  # type: ignore[no-any-return,no-untyped-call]
        finally:
            for param, grad in original_grads:
                param.grad = grad

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch.optim.LBFGS does not restore these two, and a copy without them cannot step.
        self._params = self.param_groups[0]["params"]
        self._numel_cache = None
