"""The implementations that are measured: torch's without GC, torch's after the usual centralization loop, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import gradcent
from gradcent_lab.bench.parameter_lists import Listed

Step = Callable[[], Any]
OURS = "gradcent"
FORMS: dict[str, dict[str, Any]] = {
    "torch loop": {"foreach": False},
    "torch foreach": {"foreach": True},
    "torch fused": {"fused": True},
}

# torch's class, its hyper-parameters (the paper's decay), bytes a step moves per float32 parameter
OPTIMIZERS: dict[str, tuple[str, dict[str, Any], int]] = {
    "SGDM": ("SGD", {"lr": 1e-3, "momentum": 0.9, "weight_decay": 5e-4}, 20),
    "SGDW": ("SGD", {"lr": 1e-3, "momentum": 0.9, "weight_decay": 1e-3}, 20),
    "Adam": ("Adam", {"lr": 1e-4, "weight_decay": 5e-4}, 28),
    "AdamW": ("AdamW", {"lr": 1e-4, "weight_decay": 1e-3}, 28),
    "Adagrad": ("Adagrad", {"lr": 1e-3, "weight_decay": 5e-4}, 20),
}


class Tensors:
    """Parameters with gradients, and the plan for them."""

    def __init__(self, listed: Listed, seed: int = 0, device: torch.device | str = "cpu") -> None:
        torch.manual_seed(seed)
        self.layouts = [layout for _, layout in listed]
        self.parameters = [
            torch.nn.Parameter(torch.randn(shape, device=device) * 0.05) for shape, _ in listed
        ]
        for param in self.parameters:
            param.grad = torch.randn_like(param) * 1e-3
        self.numel = sum(param.numel() for param in self.parameters)
        self.plan = gradcent.Plan.of_tensors(
            {
                f"{i}": (param, layout)
                for i, (param, layout) in enumerate(zip(self.parameters, self.layouts, strict=True))
            }
        )


def contenders(tensors: Tensors, optimizer: str, *, everything: bool = True) -> dict[str, Step]:
    """Return the step of each implementation. They share one optimizer state: torch's and ours have the same fields."""
    name, options, _ = OPTIMIZERS[optimizer]
    decoupled = optimizer == "SGDW"
    ours = getattr(gradcent.optim, "SGDW" if decoupled else name)(
        tensors.parameters, plan=tensors.plan, **options
    )
    steps: dict[str, Step] = {OURS: ours.step}
    ours.step()  # creates the states
    plain = {**options, "weight_decay": 0.0} if decoupled else options
    for form, flags in FORMS.items():
        if not everything and form != "torch fused":
            continue
        torch_optimizer = getattr(torch.optim, name)(tensors.parameters, **plain, **flags)
        torch_optimizer.state = ours.state
        step = (
            _with_decoupled(torch_optimizer.step, tensors.parameters, options, form)
            if decoupled
            else torch_optimizer.step
        )
        steps[form] = step
        steps[f"naive GC + {form}"] = _after(_naive(tensors.parameters), step)
        if form == "torch fused":
            peer = _pytorch_optimizer(tensors.parameters)
            if peer is not None:
                steps["pytorch-optimizer's centralize_gradient + torch fused"] = _after(peer, step)
    return steps


def _after(first: Step, then: Step) -> Step:
    def step() -> None:
        first()
        then()

    return step


def _naive(parameters: list[torch.nn.Parameter]) -> Step:
    """Centralize each gradient in a Python loop, as most tutorials do."""

    def centralize() -> None:
        for param in parameters:
            if param.grad is not None and param.grad.dim() > 1:
                param.grad.add_(-param.grad.mean(dim=tuple(range(1, param.grad.dim())), keepdim=True))

    return centralize


def _with_decoupled(
    step: Step, parameters: list[torch.nn.Parameter], options: dict[str, Any], form: str
) -> Step:
    """Apply decoupled decay before torch's step, in the style of `form`: torch has no SGDW."""
    kept = 1 - options["lr"] * options["weight_decay"]

    @torch.no_grad()
    def shrink() -> None:
        if form == "torch loop":
            for param in parameters:
                param.mul_(kept)
        else:
            torch._foreach_mul_(list[Tensor](parameters), kept)

    return _after(shrink, step)


def _pytorch_optimizer(parameters: list[torch.nn.Parameter]) -> Step | None:
    try:
        from pytorch_optimizer import centralize_gradient
    except ImportError:
        return None

    def centralize() -> None:
        for param in parameters:
            if param.grad is not None:
                centralize_gradient(param.grad, gc_conv_only=False)

    return centralize


def gradients(tensors: Tensors) -> list[Tensor]:
    """Return the gradients, for the passes that touch nothing else."""
    return [param.grad for param in tensors.parameters if param.grad is not None]
