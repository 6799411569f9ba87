"""GradScaler: scaled gradients reach a fused step still scaled, and a step with inf must change nothing."""

from __future__ import annotations

import pytest
import torch

import equations
import gradcent
from optimizer_cases import (
    CASES,
    COUPLED,
    NONE,
    SGDW,
    TORCH,
    Case,
    cases,
    close,
    flags,
    forms,
    loss_of,
    model_for,
    weights,
)

SCALE = 2.0**12


def train(
    case: Case,
    form: str,
    *,
    attach: bool,
    scaled: bool,
    at: str = "gradient",
    maximize: bool = False,
    steps=4,
):
    model = model_for(case)
    decay = {} if case.decay == NONE else {"weight_decay": 0.1}
    more = {"maximize": True} if maximize else {}
    optimizer = case.make(model.parameters(), **decay, **more, **flags(case, form))
    if attach:
        case.attach(optimizer, model, at=at)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=scaled, growth_interval=2)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if not attach:
            strength = 0.1 if case.decay == COUPLED else 0.0
            equations.centralize_gradients(model, strength, maximize=maximize)
        scaler.step(optimizer)
        scaler.update()
    return model


def can_step_without_closure(case: Case) -> bool:
    return not case.closure


@forms(of=CASES, where=lambda case: can_step_without_closure(case) and case.name != "torchao.AdamW8bit")
@pytest.mark.parametrize("maximize", [False, True])
def test_scaled_training_equals_unscaled_training_by_hand(case: Case, form: str, maximize: bool) -> None:
    """The λw term stands beside a gradient that is 4096 times too large: it must be scaled too."""
    if maximize and not case.maximize:
        pytest.skip("has no maximize")
    ours = train(case, form, attach=True, scaled=True, maximize=maximize)
    close(
        ours, train(case, form, attach=False, scaled=False, maximize=maximize), factor=100
    )  # the scaler's float32


@forms(where=can_step_without_closure)
def test_scaled_training_at_the_update_keeps_the_sums(case: Case, form: str) -> None:
    model = train(case, form, attach=True, scaled=True, at="update")
    assert float((equations.sums(model) - equations.sums(model_for(case))).abs().max()) < 1e-11


@forms(of=CASES, where=lambda case: can_step_without_closure(case) and case.name != "torchao.AdamW8bit")
@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("policy", ["propagate", "skip_step", "raise"])
def test_a_step_that_overflowed_changes_nothing(case: Case, form: str, at: str, policy: str) -> None:
    """The scaler skips, lowers its scale and goes on, whatever GC's own policy is."""
    model = model_for(case)
    decay = {} if case.decay == NONE else {"weight_decay": 0.1}
    optimizer = case.make(model.parameters(), **decay, **flags(case, form))
    case.attach(optimizer, model, at=at, nonfinite=policy)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    before = weights(model)
    scaler.scale(loss_of(model)).backward()
    next(model.parameters()).grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(weights(model), before)
    assert scaler.get_scale() == SCALE / 2
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    assert not torch.equal(weights(model), before) or "RAdamScheduleFree" in case.name


@cases(of=[case for case in [*TORCH, SGDW] if "fused" in case.forms])
@pytest.mark.parametrize("maximize", [False, True])
def test_a_subclass_with_a_fused_step_of_its_own(case: Case, maximize: bool) -> None:
    """Hooks, not the seam, serve it: they too must see that the gradients are still scaled, and what is sought."""

    class Wrapped(case.type):
        def step(self, closure=None):
            return super().step(closure)

    wrapped = model_for(case)
    options = {**case.options, "weight_decay": 0.1, "fused": True, "maximize": maximize}
    optimizer = gradcent.attach(Wrapped(wrapped.parameters(), **options), wrapped, decay=case.decay)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(wrapped, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    close(wrapped, train(case, "fused", attach=False, scaled=False, maximize=maximize), factor=100)


@cases(of=[case for case in [*TORCH, SGDW] if "fused" in case.forms])
@pytest.mark.parametrize("maximize", [False, True])
def test_torchs_own_fused_step_behind_our_gradients(case: Case, maximize: bool) -> None:
    """Where our kernels do not take the whole step, what is handed over is scaled, and so is the λw in it."""
    model = model_for(case)
    options = {**case.options, "weight_decay": 0.1, "fused": True, "maximize": maximize}
    optimizer = gradcent.attach(case.type(model.parameters(), **options), model, kernel="reference")
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    for step in range(4):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        scaler.step(optimizer)
        scaler.update()
    close(model, train(case, "fused", attach=False, scaled=False, maximize=maximize), factor=100)


def test_bfloat16_autocast_trains() -> None:
    case = TORCH[0]
    model = model_for(case, torch.float32)
    optimizer = gradcent.attach(case.make(model.parameters(), weight_decay=0.1), model)
    before = equations.sums(model)
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
    assert float((equations.sums(model) - before).abs().max()) < 1e-5
