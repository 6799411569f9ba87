"""L-BFGS with GC: every gradient the closure makes is centralized as it is gathered."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..attachment import Options
from ..functional import centralize
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
                f"kernel={options.kernel!r} is not used by LBFGS, which gathers gradients one by one. Use kernel='auto'"
            )

    def _gather_flat_grad(self) -> Tensor:
        attachment = self._gradcent
        if attachment is None or attachment.options.at == "update":
            return super()._gather_flat_grad()  # type: ignore[no-any-return,no-untyped-call]
        kept = [(each, each.grad) for each in self.param_groups[0]["params"]]
        try:
            for parameter, gradient in kept:
                layout = attachment.plan.layout(parameter)
                if gradient is None or layout is None or gradient.is_sparse:
                    continue
                # A gradient with inf stays what it is: its centralized form would be nan, where torch's class sees inf.
                if bool(gradient.isfinite().all()):
                    parameter.grad = centralize(gradient, layout)
            return super()._gather_flat_grad()  # type: ignore[no-any-return,no-untyped-call]
        finally:
            for parameter, gradient in kept:
                parameter.grad = gradient

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # torch's own copies lose these two, and with them the ability to step
        self._params = self.param_groups[0]["params"]
        self._numel_cache = None
