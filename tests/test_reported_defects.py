"""Defects that were reported, each as the user's code that showed it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent


def linear(inputs: int = 6, outputs: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=False).double()


def batch(rows: int = 8, inputs: int = 6) -> Tensor:
    return torch.randn(rows, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def backward(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    (model(x) - 1).square().sum().backward()


def without_row_mean(tensor: Tensor) -> Tensor:
    return tensor - tensor.mean(1, keepdim=True)


# --- a subclass with its own step ------------------------------------------------------------------------------------


class DecoupledSGDW(torch.optim.SGD):
    """As composer.optim.DecoupledSGDW: a subclass of SGD that decays as AdamW does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] / group["initial_lr"] * group["weight_decay"])
                param.sub_(group["lr"] * param.grad)


class AdamWFromAdam(torch.optim.Adam):
    """AdamW written as a subclass of Adam; the param groups still say decoupled_weight_decay=False."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0
        loss = super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return loss


class ClipInStep(torch.optim.SGD):
    """As in Mask2Former and OneFormer: clips, then calls torch's step."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([param for group in self.param_groups for param in group["params"]], 0.01)
        return super().step(closure)


def subclass(cls: type, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    optimizer = cls(model.parameters(), lr=0.1, weight_decay=0.05)
    optimizer.param_groups[0]["initial_lr"] = 0.1
    return gradcent.attach(optimizer, model, **options)


@pytest.mark.parametrize("cls", [DecoupledSGDW, AdamWFromAdam, ClipInStep])
def test_the_decay_of_a_subclass_with_its_own_step_is_asked_for(cls: type) -> None:
    model = linear()
    with pytest.raises(ValueError, match=f"does not know how {cls.__name__} applies weight_decay"):
        subclass(cls, model)
    gradcent.attach(cls(model.parameters(), lr=0.1), model)  # without decay there is nothing to ask


def test_a_decoupled_subclass_of_sgd_gets_the_centralized_gradient() -> None:
    x, model, reference = batch(), linear(), linear()
    optimizer = subclass(DecoupledSGDW, model, decay="decoupled")
    for _ in range(5):
        backward(model, x)
        backward(reference, x)
        optimizer.step()
        with torch.no_grad():
            reference.weight.mul_(1 - 0.05).sub_(0.1 * without_row_mean(reference.weight.grad))
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-12)


def test_adamw_as_a_subclass_of_adam_equals_torchs_adamw() -> None:
    x, model, reference = batch(), linear(), linear()
    optimizer = subclass(AdamWFromAdam, model, decay="decoupled")
    truth = torch.optim.AdamW(reference.parameters(), lr=0.1, weight_decay=0.05)
    for _ in range(5):
        backward(model, x)
        backward(reference, x)
        optimizer.step()
        reference.weight.grad = without_row_mean(reference.weight.grad)
        truth.step()
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-9)


def test_a_step_that_clips_and_calls_its_parent_keeps_the_weight_sums() -> None:
    """What torch's step receives must be centered after the clipping: P(cg + λw), not cP(g + λw) + (1 − c)λw."""
    x, model = batch(), linear()
    optimizer = subclass(ClipInStep, model, decay="coupled")
    before, start = model.weight.detach().sum(1), model.weight.detach().clone()
    for _ in range(50):
        backward(model, x)
        optimizer.step()
    torch.testing.assert_close(model.weight.detach().sum(1), before, rtol=0, atol=1e-12)
    assert float((model.weight.detach() - start).abs().max()) > 1e-3


def test_a_subclass_that_keeps_torchs_step_decays_as_its_parent() -> None:
    class Renamed(torch.optim.SGD):
        """Only other defaults."""

    model = linear()
    optimizer = subclass(Renamed, model)
    before = model.weight.detach().sum(1)
    for _ in range(5):
        backward(model, batch())
        optimizer.step()
    torch.testing.assert_close(model.weight.detach().sum(1), before, rtol=0, atol=1e-12)
