"""Hooked steps: GC for optimizers whose step is not known; step hooks centralize `p.grad` in place."""

from __future__ import annotations

from typing import Any

import torch

from ..options import Options
from ._base import Centralized


class HookedStep(Centralized):
    """Runs the step of the class below between a hook before it and a hook after it."""

    def _required_hooks(self, options: Options) -> dict[str, bool]:
        return {"gradients": options.at == "gradient", "updates": options.at == "update"}

    def _patch_step_function(self) -> None:
        """Run the step hooks in the plain class's step and in every parent's step that it may call."""
        super()._patch_step_function()
        for base in type(self).__mro__:
            step = base.__dict__.get("step")
            if step is None or issubclass(base, Centralized) or getattr(step, "hooked", False):
                continue
            if base is not torch.optim.Optimizer:  # its step only raises NotImplementedError
                base.step = self.profile_hook_step(step)  # type: ignore[attr-defined]
                base.step.hooked = True  # type: ignore[attr-defined]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Perform the step of the class below, after clearing what an interrupted step may have left."""
        hooks, attachment = self._gradcent_hooks, self._gradcent
        if attachment is not None:
            for group in self.param_groups:
                attachment.apply_group_switch(self, group)
        if hooks is None:
            return super().step(*args, **kwargs)
        hooks.begin()
        try:
            return super().step(*args, **kwargs)
        finally:
            hooks.show()  # a skipped step hides the gradients; the user gets them back also when the step fails

    step.hooked = True  # type: ignore[attr-defined]  # the parent's step runs the hooks; once is enough
