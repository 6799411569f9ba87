"""torchtitan's container: an optimizer per part and kind, with coupled and decoupled decay, stepped together."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_examples import drift_in_example
from torch import nn

import gradcent
import gradcent.integrations

pytestmark = pytest.mark.filterwarnings("ignore")
titan = pytest.importorskip("torchtitan.components.optimizer")


def parts() -> list[nn.Module]:
    torch.manual_seed(0)
    made = [nn.Sequential(nn.Linear(7, 9), nn.LayerNorm(9)), nn.Sequential(nn.Linear(9, 3), nn.LayerNorm(3))]
    return [each.double() for each in made]


def container(model_parts: list[nn.Module]) -> Any:
    group = titan.ParamGroupConfig
    groups = [
        group(pattern="^1", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.01, "weight_decay": 0.0}),
        group(pattern=".*", optimizer_name="Adam", optimizer_kwargs={"lr": 0.01, "weight_decay": 0.1}),
    ]
    return titan.OptimizersContainer.Config(param_groups=groups, implementation="for-loop").build(
        model_parts=model_parts
    )


def train(model_parts: list[nn.Module], optimizers: Any, before_step: Any = None) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    schedulers = titan.LRSchedulersContainer.Config(warmup_steps=3).build(
        optimizers=optimizers, training_steps=20
    )
    for _ in range(20):
        x = torch.randn(8, 7, generator=generator, dtype=torch.float64)
        optimizers.zero_grad()
        for part in model_parts:
            x = part(x)
        (x[:, 0] - 1).pow(2).mean().backward()
        if before_step is not None:
            before_step()
        optimizers.step()
        schedulers.step()
    return [each.detach() for part in model_parts for each in part.parameters()]


def test_the_container_is_refused_and_its_optimizers_are_right(verified: Any) -> None:
    ours, theirs = parts(), parts()
    optimizers, plain = container(ours), container(theirs)
    with pytest.raises(TypeError, match="attach_each"):
        gradcent.attach(optimizers, ours)
    gradcent.integrations.attach_each(optimizers, ours)
    assert [gradcent.attached(each) is not None for each in optimizers] == [False, True, False, True]

    def by_hand() -> None:
        for part in theirs:
            weight = part[0].weight  # type: ignore[index]
            weight.grad -= (weight.grad + 0.1 * weight.detach()).mean(1, keepdim=True)

    got, truth = train(ours, optimizers), train(theirs, plain, by_hand)
    found = max((a - b).abs().max().item() for a, b in zip(got, truth, strict=True))
    what = "OptimizersContainer, two parts, Adam with coupled decay: attach refuses, attach_each"
    verified("torchtitan", "torchtitan", what, found, 1e-9)


def test_its_checkpoints_are_the_plain_ones() -> None:
    ours, theirs = parts(), parts()
    optimizers = container(ours)
    gradcent.integrations.attach_each(optimizers, ours)
    train(ours, optimizers)
    saved = copy.deepcopy(optimizers.state_dict())
    plain = container(theirs)
    train(theirs, plain)
    assert plain.state_dict().keys() == saved.keys()
    plain.load_state_dict(saved)


@pytest.mark.slow
def test_example(verified: Any) -> None:
    what = "examples/integrations/with_torchtitan.py: weight sums stay, float32"
    verified("torchtitan", "torchtitan", what, drift_in_example("with_torchtitan"), 1e-6)
