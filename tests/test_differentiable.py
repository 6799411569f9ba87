"""`differentiable=True`: the derivative of a step with GC, against autograd through the equations."""

from __future__ import annotations

import pytest
import torch

import gradcent
from optimizer_cases import SGDW, TORCH, Case, cases

SHAPE = (3, 5)
DIFFERENTIABLE = [case for case in [*TORCH, SGDW] if case.name not in ("Adafactor", "Muon", "LBFGS", "Rprop")]


def after_steps(case: Case, start, gradients, at: str, *, gc: bool, decay: float):
    """Train one weight with given gradients; return it, still part of the graph."""
    weight = start.clone()
    more = {"weight_decay": decay} if case.decay != "none" else {}
    optimizer = case.make([weight], differentiable=True, **more)
    if gc:
        plan = gradcent.Plan.of_tensors({"weight": (weight, gradcent.Layout.rows(SHAPE))})
        gradcent.attach(optimizer, plan=plan, at=at)
    for gradient in gradients:
        before = weight.clone()
        if not gc and at == "gradient":
            inside = decay * weight if case.decay == "coupled" else torch.zeros_like(weight)
            gradient = gradient - (gradient + inside).mean(1, keepdim=True)
        weight.grad = gradient
        optimizer.step()
        if not gc and at == "update":
            change = weight - before
            weight.copy_(before + change - change.mean(1, keepdim=True))
    return weight


@cases(of=DIFFERENTIABLE)
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_the_derivative_of_training_is_that_of_the_equations(case: Case, at: str) -> None:
    start = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    gradients = [
        torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
        for _ in range(1 if case.name == "Adamax" else 2)
    ]  # torch's Adamax overwrites what two need
    target = torch.randn(SHAPE, dtype=torch.float64)
    answers = []
    for gc in (True, False):
        end = after_steps(case, start, gradients, at, gc=gc, decay=0.3)
        answers.append(torch.autograd.grad((end * target).sum(), [start, *gradients], allow_unused=True))
    for ours, theirs in zip(*answers, strict=True):
        if theirs is None:  # torch's SGD starts its momentum with a detached gradient
            assert ours is None
            continue
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_the_operator_is_linear_in_autograd() -> None:
    gradient = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    layout = gradcent.Layout.rows(SHAPE)
    assert torch.autograd.gradcheck(lambda g: gradcent.centralize(g, layout), (gradient,))
    weight = torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda g, w: gradcent.centralize(g, layout, weight=w, decay=0.3), (gradient, weight)
    )
