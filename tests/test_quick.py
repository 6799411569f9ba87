"""Steps gathered and taken in C: the same as torch's optimizer given P(g + λw) by hand, whatever moved meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import equations
import gradcent
from gradcent.kernels import native

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())

CLASSES: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.01, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.1},
}
every_class = pytest.mark.parametrize("name", CLASSES)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ConvTranspose1d(7, 3, 2), nn.Linear(70, 4, bias=False)).double()


def give_gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


def hand_over(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What torch's plain optimizer must be given to arrive at P(g + λw)."""
    decay = {
        parameter: 0.0 if isinstance(optimizer, torch.optim.AdamW) else group["weight_decay"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for parameter, find in equations.finders(model):
        if parameter.grad is not None:
            parameter.grad = equations.handed(parameter.grad, parameter.detach(), decay[parameter], find)


def compare(
    name: str,
    groups: Callable[[nn.Module], list[dict[str, Any]]],
    between: Callable[[nn.Module, torch.optim.Optimizer, int], None] = lambda *_: None,
    steps: int = 6,
) -> None:
    ours, theirs = network(), network()
    mine = getattr(gradcent.optim, name)(groups(ours), model=ours, **CLASSES[name])
    plain = getattr(torch.optim, name)(groups(theirs), **CLASSES[name])
    for number in range(steps):
        for model, optimizer in ((ours, mine), (theirs, plain)):
            give_gradients(model, number)
            between(model, optimizer, number)
        hand_over(theirs, plain)
        mine.step()
        plain.step()
        for got, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@every_class
def test_only_the_first_step_is_left_to_torch(name: str, left_to_torch: list[int]) -> None:
    compare(name, lambda model: [{"params": list(model.parameters())}])
    first = 1 if name != "Adagrad" else 0  # Adagrad makes its states when it is made
    assert left_to_torch == [first, 0, 0, 0, 0, 0]


@every_class
def test_groups_not_for_this_way_step_once_all_the_same(name: str, left_to_torch: list[int]) -> None:
    def groups(model: nn.Module) -> list[dict[str, Any]]:
        parts = [list(layer.parameters()) for layer in model]  # type: ignore[attr-defined]
        return [{"params": parts[0]}, {"params": parts[1], "foreach": True, "lr": 0.03}, {"params": parts[2]}]

    compare(name, groups)
    assert left_to_torch[1:] == [1] * 5  # the second group alone


@every_class
def test_nothing_is_remembered_that_may_move(name: str) -> None:
    def between(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
        parameters = list(model.parameters())
        if number == 1:  # as model.to() does
            parameters[0].data = parameters[0].data.clone()
        if number == 2:  # another order in memory
            parameters[0].data = parameters[0].data.t().contiguous().t()
        if number == 3:
            for state in optimizer.state.values():
                for value in state.values():
                    if torch.is_tensor(value):
                        value.data = value.data.clone()
        if number == 4:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        if number == 5:
            parameters[0].grad = None
            parameters[2].grad = parameters[2].grad.clone().expand_as(parameters[2])

    compare(name, lambda model: [{"params": list(model.parameters())}], between)


def test_a_sparse_gradient_in_the_second_group_leaves_the_first_stepped_once() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"rows": nn.Linear(3, 2, bias=False), "table": nn.Embedding(4, 2, sparse=True)})
    groups = [{"params": list(model[key].parameters())} for key in ("rows", "table")]
    optimizer = gradcent.optim.SGD(groups, lr=1.0, model=model)
    for _ in range(2):
        before, table = model["rows"].weight.detach().clone(), model["table"].weight.detach().clone()
        optimizer.zero_grad()
        (
            model["rows"](torch.tensor([1.0, 2.0, 6.0])).sum() + model["table"](torch.tensor([1])).sum()
        ).backward()
        optimizer.step()
        expected = before - torch.tensor([[-2.0, -1.0, 3.0]] * 2)
        torch.testing.assert_close(model["rows"].weight.detach(), expected)
        table[1] -= 1.0
        torch.testing.assert_close(model["table"].weight.detach(), table)


def test_the_closure_is_called_once_and_its_loss_returned() -> None:
    model = network()
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, model=model)
    calls = []

    def closure() -> float:
        assert torch.is_grad_enabled()
        calls.append(1)
        give_gradients(model, len(calls))
        return float(len(calls))

    assert [optimizer.step(closure) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert len(calls) == 3


def test_param_groups_are_given_back_when_torchs_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    groups = [{"params": [each]} for each in model.parameters()]
    optimizer = gradcent.optim.SGD(groups, lr=0.1, momentum=0.9, model=model)
    give_gradients(model, 0)
    optimizer.step()
    all_groups = optimizer.param_groups
    optimizer.param_groups[2]["foreach"] = True
    optimizer.param_groups[2]["momentum"] = "much"
    with pytest.raises(TypeError):
        optimizer.step()
    assert optimizer.param_groups is all_groups


def test_weights_count_as_changed() -> None:
    model = nn.Linear(3, 3, bias=False)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, model=model)
    for _ in range(2):  # the second is the quick one
        loss = model(model(torch.ones(3))).sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
        optimizer.zero_grad()


def test_a_switch_set_between_steps_is_obeyed(left_to_torch: list[int]) -> None:
    model = nn.Linear(3, 2, bias=False)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, model=model)
    gradient = torch.tensor([[1.0, 2.0, 6.0], [0.0, 3.0, 3.0]])
    for switch, wanted in ((None, [[-2.0, -1.0, 3.0], [-2.0, 1.0, 1.0]]), (False, gradient.tolist())):
        if switch is not None:
            optimizer.param_groups[0]["centralize"] = switch
        before = model.weight.detach().clone()
        model.weight.grad = gradient.clone()
        optimizer.step()
        torch.testing.assert_close(before - model.weight.detach(), torch.tensor(wanted))
    assert left_to_torch == [0, 0]
