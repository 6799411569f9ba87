"""Around the optimizer: GradScaler and autocast, averaged weights (SWA, EMA), exchanged parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine_truth import OPTIMIZERS, OVERRIDES, batches, by_hand, difference, loss_of, model, reference
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn

import gradcent


def weights(net: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: each.detach().clone() for name, each in net.named_parameters()}


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw_fused"])
@pytest.mark.parametrize("power", [1, 16])
def test_grad_scaler_is_invisible(power: int, name: str, at: Any, verified: Any) -> None:
    """Scaled by 2 or 2^16, unscaled inside or outside a fused step: the weights are those without a scaler."""
    start = model(dtype=torch.float32)
    net = copy.deepcopy(start)
    optimizer = gradcent.attach(OPTIMIZERS[name](net.parameters()), net, at=at, overrides=OVERRIDES)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**power)
    for x, y in batches(dtype=torch.float32):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
    found = difference(weights(net), reference(start, name, at, dtype=torch.float32))
    verified(
        "AMP", "torch", f"GradScaler at 2^{power}, {name}, at the {at}: as unscaled, float32", found, 1e-4
    )


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("name", ["sgd", "adamw_fused"])
def test_skipped_steps_leave_everything_untouched(name: str, at: Any, verified: Any) -> None:
    net = model(dtype=torch.float32)
    optimizer = gradcent.attach(OPTIMIZERS[name](net.parameters()), net, at=at, overrides=OVERRIDES)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    steps = list(batches(dtype=torch.float32, steps=3))
    for number, (x, y) in enumerate(steps):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        if number == 1:
            before, state = weights(net), copy.deepcopy(optimizer.state_dict()["state"])
            net.fc.weight.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            kept = weights(net)
            assert all(torch.equal(before[n], p) for n, p in net.named_parameters())
            after = optimizer.state_dict()["state"]
            assert all(torch.equal(state[k][n], after[k][n]) for k in state for n in state[k] if n != "step")
        else:
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0
    found = difference(before, kept)
    verified(
        "AMP", "torch", f"GradScaler saw inf, {name}, at the {at}: weights and state untouched", found, 0.0
    )


def test_autocast(verified: Any) -> None:
    """Under bf16 autocast the gradients are float32; GC sees them as they are."""
    start = model(dtype=torch.float32)
    net, truth = copy.deepcopy(start), copy.deepcopy(start)
    optimizer = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    by = OPTIMIZERS["sgd"](truth.parameters())
    for x, y in batches(dtype=torch.float32):
        for each, one in ((net, optimizer), (truth, by)):
            one.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(each, x, y)
            loss.backward()
        for ours, theirs in zip(net.parameters(), truth.parameters(), strict=True):
            theirs.grad.copy_(ours.grad)
        optimizer.step()
        by_hand(truth, by, "gradient", 0.05)
    found = difference(weights(net), weights(truth))
    verified(
        "AMP", "torch", "autocast to bfloat16: the step's arithmetic on the gradients it made", found, 1e-5
    )


@pytest.mark.parametrize(
    "averaged",
    [lambda net: AveragedModel(net), lambda net: AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))],
    ids=["swa", "ema"],
)
def test_averaged_models(
    averaged: Callable[[torch.nn.Module], AveragedModel], request: pytest.FixtureRequest, verified: Any
) -> None:
    """An average of weights whose vectors keep their sums keeps them too; SWALR drives the attached optimizer."""
    net = model()
    optimizer = gradcent.attach(OPTIMIZERS["adamw"](net.parameters()), net, at="update", overrides=OVERRIDES)
    mean, schedule = averaged(net), SWALR(optimizer, swa_lr=0.02, anneal_epochs=3)
    before = net.fc.weight.detach().mean(1).clone()
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
        mean.update_parameters(net)
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.02)
    assert not torch.equal(mean.module.fc.weight, net.fc.weight)
    found = (mean.module.fc.weight.detach().mean(1) - before).abs().max().item()
    kind = "EMA" if "ema" in request.node.name else "SWA"
    verified(
        "torch.optim.swa_utils", "torch", f"{kind} and SWALR, at the update: weight sums stay", found, 1e-12
    )


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_exchanged_parameters_are_followed(at: Any) -> None:
    """Engines put new parameters in the model's and the optimizer's places; GC must not go off silently."""
    start = model()
    net = copy.deepcopy(start)
    optimizer = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, at=at, overrides=OVERRIDES)
    fresh = {}
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                fresh[parameter] = torch.nn.Parameter(parameter.detach().clone())
                setattr(module, name, fresh[parameter])
    for group in optimizer.param_groups:
        group["params"] = [fresh[each] for each in group["params"]]
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()
    assert difference(weights(net), reference(start, "sgd", at)) < 1e-12


def test_parameters_exchanged_for_strangers_are_an_error() -> None:
    net = model()
    optimizer = gradcent.attach(OPTIMIZERS["sgd"](net.parameters()), net, overrides=OVERRIDES)
    optimizer.param_groups[0]["params"] = [torch.nn.Parameter(torch.randn(3, 3).double())]
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3, 3).double()
    with pytest.raises(RuntimeError, match="replaced after attach"):
        optimizer.step()


def test_a_switched_off_group_stays_off_when_its_parameters_are_exchanged() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    groups = [{"params": [net[0].weight], "centralize": False}, {"params": [net[1].weight]}]
    optimizer = gradcent.attach(torch.optim.SGD(groups, lr=1.0), net)
    for layer, group in zip(net, optimizer.param_groups, strict=True):
        layer.weight = torch.nn.Parameter(torch.zeros(3, 3))
        group["params"] = [layer.weight]
        layer.weight.grad = torch.ones(3, 3)
    optimizer.step()
    assert net[0].weight.eq(-1).all()
    assert net[1].weight.eq(0).all()
