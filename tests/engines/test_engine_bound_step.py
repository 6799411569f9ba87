"""Whoever took hold of `optimizer.step` before GC was attached steps torch's class: never silently without GC."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference

import gradcent
import gradcent.integrations


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_step_bound_before_attach_is_an_error(at: Any, scheduled: bool) -> None:
    net = model()
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    held = optimizer.step
    gradcent.attach(optimizer, net, at=at, overrides=OVERRIDES)
    x, y = next(iter(batches()))
    loss_of(net, x, y).backward()
    before = {name: each.detach().clone() for name, each in net.named_parameters()}
    with pytest.raises(RuntimeError, match="before gradcent was attached"):
        held()
    assert difference(dict(net.named_parameters()), before) == 0
    optimizer.step()
    gradcent.detach(optimizer)
    held()  # torch's own again


def test_an_optimizer_of_an_unknown_class_is_served_by_its_hooks() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    start = model()
    net = copy.deepcopy(start)
    optimizer = Own(net.parameters(), lr=0.05, momentum=0.9, weight_decay=0.05)
    held = optimizer.step
    gradcent.attach(optimizer, net, decay="coupled", overrides=OVERRIDES)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        held()
    assert difference(dict(net.named_parameters()), reference(start, "sgd", "gradient")) < 1e-12


@pytest.mark.parametrize("order", ["attach, prepare", "prepare, attach", "prepare, integration"])
def test_accelerate_with_a_scaler(order: str, verified: Any) -> None:
    """Under fp16 Accelerate binds `step` when it wraps the optimizer: its GPU path, with a scaler for the CPU."""
    accelerate = pytest.importorskip("accelerate.optimizer")
    pytest.importorskip("accelerate").Accelerator(cpu=True)
    start = model(dtype=torch.float32)
    net = copy.deepcopy(start)
    plain = OPTIMIZERS["sgd"](net.parameters())
    if order == "attach, prepare":
        gradcent.attach(plain, net, overrides=OVERRIDES)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    wrapped = accelerate.AcceleratedOptimizer(plain, device_placement=False, scaler=scaler)
    if order == "prepare, attach":
        gradcent.attach(plain, net, overrides=OVERRIDES)
    if order == "prepare, integration":
        gradcent.integrations.attach_and_log(wrapped, net, overrides=OVERRIDES)
    for x, y in batches(dtype=torch.float32):
        wrapped.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        if order == "prepare, attach":
            with pytest.raises(RuntimeError, match=r"before accelerator\.prepare"):
                wrapped.step()
            return
        wrapped.step()
    found = difference(dict(net.named_parameters()), reference(start, "sgd", "gradient", dtype=torch.float32))
    verified("Accelerate", "accelerate", f"{order}, with a GradScaler (its fp16 path), float32", found, 1e-5)
