"""Table 2 in small: what its cells build, and why SGDM is not among them."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import gradcent
from gradcent_lab import models, recipes
from gradcent_lab.errors import UserError
from gradcent_lab.experiment import optimizers


def test_every_optimizer_has_three_arms_and_its_own_grid():
    study = recipes.get("optimizers-tuned").study("mini")
    assert [cell.name for cell in study.cells] == ["Adam", "Adagrad", "SGDW", "AdamW", "Lion", "Muon"]
    for cell in study.cells:
        arms = cell.arms or study.arms
        assert [arm.name for arm in arms] == ["off", "all", "update"]
        assert [(arm.attach or {}).get("at") for arm in arms] == [None, None, "update"]
        assert len(cell.grid["lr"]) == 3
        assert cell.settings["optimizer"]["lr"] in cell.grid["lr"]


def test_muon_updates_the_hidden_convolutions_and_adamw_the_rest():
    pytest.importorskip("timm", reason="needs timm: pip install timm")
    model = models.make({"name": "R8", "width": 4}, 10)
    spec = {"name": "Muon", "lr": 1e-3, "weight_decay": 0.0}
    optimizer = optimizers.optimizer(spec)(optimizers.groups(spec)(model))
    names = {id(p): name for name, p in model.named_parameters()}
    muon, adamw = ({names[id(p)] for p in group["params"]} for group in optimizer.param_groups)
    assert muon | adamw == set(names.values())
    assert not muon & adamw
    assert muon
    assert all(name.startswith("layer") and model.get_parameter(name).ndim == 4 for name in muon)
    assert {"conv1.weight", "fc.weight", "fc.bias", "bn1.weight"} <= adamw
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    optimizer.step()
    assert {names[id(p)] for p, state in optimizer.state.items() if state["use_muon"]} == muon


@pytest.mark.parametrize("name", optimizers.FROM_TIMM)
def test_a_missing_timm_is_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "timm.optim", None)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=f"{name} needs timm: pip install timm"):
        optimizers.optimizer({"name": name, "lr": 1e-3})([nn.Parameter(torch.zeros(2, 2))])


def test_sgdm_takes_the_same_steps_at_the_gradient_and_at_the_update():
    """The reason why the recipe leaves SGDM out."""
    ends = {}
    for at in ("gradient", "update"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-2)
        gradcent.attach(optimizer, model, at=at)
        inputs, targets = torch.randn(16, 6, dtype=torch.double), torch.randint(3, (16,))
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        ends[at] = [p.detach().clone() for p in model.parameters()]
    for a, b in zip(ends["gradient"], ends["update"], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
