"""The `centralize` switch of a param group, wherever it comes from: set later, or found in a checkpoint."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import gradcent
from gradcent.decay import decay_kind
from optimizer_cases import Homemade


def layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))


def two_groups(model: nn.Sequential, make, **first) -> torch.optim.Optimizer:
    return make([{"params": model[0].parameters(), **first}, {"params": model[1].parameters()}], lr=0.1)


def moved(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> list[bool]:
    """Whether a step moves the sum of a layer's weight vectors: it does unless GC is on."""
    before = [layer.weight.detach().sum(1) for layer in model]
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    return [
        bool((layer.weight.detach().sum(1) - sums).abs().max() > 1e-3)
        for layer, sums in zip(model, before, strict=True)
    ]


@pytest.mark.parametrize("make", [torch.optim.SGD, Homemade])
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_a_switch_set_after_attaching_is_obeyed(make, at: str) -> None:
    model = layers()
    optimizer = gradcent.attach(two_groups(model, make), model, at=at)
    assert moved(model, optimizer) == [False, False]
    optimizer.param_groups[0]["centralize"] = False
    assert moved(model, optimizer) == [True, False]
    assert moved(model, optimizer) == [True, False]
    assert "centralize" not in optimizer.state_dict()["param_groups"][0]
    optimizer.param_groups[0]["centralize"] = True
    if make is torch.optim.SGD:  # the other has gathered momentum, which leans for a while
        assert moved(model, optimizer) == [False, False]
    else:
        optimizer.step()
    assert gradcent.attached(optimizer).plan.layout(model[0].weight) is not None


def test_a_switch_set_later_that_is_no_switch_is_refused() -> None:
    model = layers()
    optimizer = gradcent.attach(two_groups(model, torch.optim.SGD), model)
    optimizer.param_groups[0]["centralize"] = "off"
    with pytest.raises(TypeError, match="True or False"):
        moved(model, optimizer)


@pytest.mark.parametrize("make", [torch.optim.SGD, Homemade])
def test_a_checkpoint_does_not_turn_gc_on_or_off_and_says_so(make) -> None:
    """A plain optimizer's groups may carry the switch; what was attached stays, and a difference is said."""
    plain = two_groups(layers(), make, centralize=False).state_dict()
    assert plain["param_groups"][0]["centralize"] is False
    model = layers()
    optimizer = gradcent.attach(two_groups(model, make), model)
    with pytest.warns(UserWarning, match="param group 0.*centralize=False"):
        optimizer.load_state_dict(plain)
    assert moved(model, optimizer) == [False, False]
    model = layers()
    optimizer = gradcent.attach(two_groups(model, make, centralize=False), model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.load_state_dict(plain)
    assert moved(model, optimizer) == [True, False]
    assert "centralize" not in optimizer.state_dict()["param_groups"][0]


@pytest.mark.parametrize("make", [torch.optim.SGD, Homemade])
def test_a_copy_can_be_switched_on_again(make) -> None:
    model, optimizer = copy.deepcopy(
        (model := layers(), gradcent.attach(two_groups(model, make, centralize=False), model))
    )
    assert moved(model, optimizer) == [True, False]
    optimizer.param_groups[0]["centralize"] = True
    optimizer.step()
    assert gradcent.attached(optimizer).plan.layout(model[0].weight) is not None


def test_decay_set_later_must_be_known_too() -> None:
    """An optimizer that gradcent does not know, attached without decay; then somebody schedules one."""
    model = layers()
    optimizer = gradcent.attach(two_groups(model, Homemade), model)
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(ValueError, match="does not know how Homemade applies"):
        moved(model, optimizer)
    model = layers()
    gradcent.attach(
        Homemade(model.parameters(), weight_decay=0.1), model, at="update"
    )  # there it does not matter


def test_decay_of_torchs_own_classes_without_their_flag() -> None:
    """Releases before 2.7 have no `decoupled_weight_decay` in AdamW's groups, nor have their checkpoints."""
    model = layers()
    for make, kind in ((torch.optim.AdamW, "decoupled"), (torch.optim.Adam, "coupled")):
        optimizer = make(model.parameters(), weight_decay=0.1)
        group = {key: value for key, value in optimizer.param_groups[0].items() if "decoupled" not in key}
        assert decay_kind(optimizer, group) == kind
