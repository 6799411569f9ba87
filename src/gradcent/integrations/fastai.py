"""fastai: a callback that centralizes just before each step, after clipping.

    learn = vision_learner(…, cbs=gradcent.integrations.fastai.CentralizeCallback())

fastai's optimizers are lists of small functions, not torch optimizers. If one of the functions is `l2_reg`, which
adds λw to the gradient, the paper's P(g + λw) is used; `weight_decay`, the default, is decoupled. For an
`OptimWrapper` around a torch optimizer the callback calls :func:`gradcent.attach`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..dtensor import centralize as sharded
from ..options import Options
from ..plan import Plan
from . import announce, attach_and_log, innermost, require
from ._first_batch import EXAMPLE, batch_of, with_example

if TYPE_CHECKING:
    Callback: Any
else:
    Callback = require("fastai.callback.core", "fastai").Callback


class CentralizeCallback(Callback):  # type: ignore[misc]
    """GC for a Learner. Options as for :func:`gradcent.attach`; `at="update"` needs an OptimWrapper."""

    order = 90  # after GradientClip and MixedPrecision

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.checked = Options(
            **{name: value for name, value in options.items() if name not in ("plan", *EXAMPLE)}
        )
        self.plan: Plan | None = None

    def before_fit(self) -> None:
        """Attach, or plan the model; the optimizer exists by now."""
        inner = innermost(self.learn.opt)
        if isinstance(inner, torch.optim.Optimizer):
            options = with_example(self.learn.model, self.options, lambda: batch_of(self.learn.dls.train))
            attach_and_log(inner, self.learn.model, **options)
            self.plan = None
            return
        if self.checked.at == "update" or self.checked.nonfinite != "propagate":
            raise ValueError(
                'at="update" and nonfinite= need a torch optimizer: '
                "Learner(…, opt_func=partial(OptimWrapper, opt=torch.optim.AdamW))"
            )
        self.plan = self.options.get("plan") or Plan.of(
            self.learn.model,
            layers=self.checked.layers,
            overrides=self.checked.overrides,
            min_length=self.checked.min_length,
            **{name: self.options[name] for name in EXAMPLE if name in self.options},
        )
        self.plan.require_something()
        announce(self.plan)

    def before_step(self) -> None:
        """Centralize the gradients, which are unscaled and clipped by now."""
        if self.plan is None:
            return
        optimizer = self.learn.opt
        coupled = any(getattr(callback, "__name__", "") == "l2_reg" for callback in optimizer.cbs)
        with torch.no_grad():
            for params, hypers in zip(optimizer.param_lists, optimizer.hypers, strict=True):
                trained = [param for param in params if param.grad is not None and not param.grad.is_sparse]
                sharded.centralize_gradients_(
                    trained,
                    [self.plan.layout(param) for param in trained],
                    decay=hypers.get("wd", 0.0) if coupled else 0.0,
                    kernel=self.checked.kernel,
                )
