"""Optimizers by name: the paper's five (section 5.3), Lion and Muon, with PyTorch's and timm's defaults.

PyTorch has no SGDW, so the one without GC is defined here; `gradcent.optim.SGDW` is the centralized one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from gradcent_lab.errors import UserError

FROM_TIMM = ("Lion", "Muon")


class SGDW(Optimizer):
    """SGD with momentum and decoupled decay (Loshchilov & Hutter 2017): w ← (1 − lr·λ)w − lr·m."""

    def __init__(
        self, params: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0, dampening: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "dampening": dampening}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.mul_(1 - lr * group["weight_decay"])
                update = p.grad
                if momentum:
                    state = self.state[p]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = p.grad.clone()
                    else:
                        state["momentum_buffer"].mul_(momentum).add_(p.grad, alpha=1 - group["dampening"])
                    update = state["momentum_buffer"]
                p.add_(update, alpha=-lr)
        return loss


def optimizer(spec: Mapping[str, Any]) -> Callable[[Any], Optimizer]:
    """Return the factory for a specification such as {"name": "SGDM", "lr": 0.1, "weight_decay": 5e-4}.

    SGDM and SGDW have momentum 0.9; `dampening` 0.9 gives the paper's printed m = βm + (1 − β)ĝ.
    """
    options = dict(spec)
    name = options.pop("name")
    options.pop("head_lr", None)
    if name in ("SGDM", "SGDW"):
        options.setdefault("momentum", 0.9)
    classes: dict[str, Callable[..., Optimizer]] = {
        "SGDM": torch.optim.SGD,
        "SGDW": SGDW,
        "Adam": torch.optim.Adam,
        "AdamW": torch.optim.AdamW,
        "Adagrad": torch.optim.Adagrad,
    }
    if name in FROM_TIMM:
        return lambda params: _from_timm(name)(params, **options)
    if name not in classes:
        raise UserError(f"unknown optimizer {name!r}: choose one of {', '.join((*classes, *FROM_TIMM))}")
    return lambda params: classes[name](params, **options)


def _from_timm(name: str) -> Callable[..., Optimizer]:
    """Return Lion (Chen et al. 2023) or Muon (Jordan 2024, with AdamW for groups that have `use_fallback`) of timm."""
    try:
        import timm.optim
    except ImportError as error:
        raise UserError(f"{name} needs timm: pip install timm") from error
    chosen: Callable[..., Optimizer] = getattr(timm.optim, name)
    return chosen


def groups(spec: Mapping[str, Any]) -> Callable[[nn.Module], Any] | None:
    """Return the function that splits the parameters into groups, or None if all are in one.

    `head_lr` is the learning rate of the last FC layer. Muon updates the weights of the hidden layers; AdamW
    updates the first convolution, the last FC layer, scales and biases.
    """
    if spec["name"] == "Muon":
        return _muon_groups
    head_lr = spec.get("head_lr")
    if head_lr is None:
        return None

    def split(model: nn.Module) -> list[dict[str, Any]]:
        head = {id(p) for p in model.get_submodule("fc").parameters()}
        return [
            {"params": [p for p in model.parameters() if id(p) not in head]},
            {"params": [p for p in model.parameters() if id(p) in head], "lr": head_lr},
        ]

    return split


def _muon_groups(model: nn.Module) -> list[dict[str, Any]]:
    ends = {"conv1.weight", "fc.weight"}
    hidden = {id(p) for name, p in model.named_parameters() if p.ndim > 1 and name not in ends}
    return [
        {"params": [p for p in model.parameters() if id(p) in hidden]},
        {"params": [p for p in model.parameters() if id(p) not in hidden], "use_fallback": True},
    ]


def warmup_cosine(epochs: int, warmup: float) -> Callable[[Optimizer, int], LRScheduler]:
    """Return a schedule that rises linearly over the share `warmup` of the run and falls to 0 along a cosine."""

    def make(chosen: Optimizer, steps: int) -> LRScheduler:
        total = epochs * steps
        rise = max(1, round(warmup * total))

        def factor(step: int) -> float:
            if step < rise:
                return (step + 1) / rise
            return 0.5 + 0.5 * math.cos(math.pi * (step - rise) / max(1, total - rise))

        return LambdaLR(chosen, factor)

    return make


def schedule(milestones: list[int], factor: float = 0.1) -> Callable[[Optimizer, int], LRScheduler]:
    """Return the step schedule of the paper: the learning rate times `factor` after each of these epochs."""
    return lambda chosen, steps: MultiStepLR(chosen, [epoch * steps for epoch in milestones], factor)
