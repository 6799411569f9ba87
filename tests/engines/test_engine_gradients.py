"""attach_to_gradients in one process: hooks on parameters, copies, tied weights, attention's inner layer."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import gradcent
import gradcent.integrations


def centred(model: nn.Module, *names: str) -> dict[str, float]:
    return {name: model.get_parameter(name).grad.mean(1).abs().max().item() for name in names}


def test_inner_projection_of_attention_is_reached() -> None:
    """MultiheadAttention uses out_proj.weight without calling out_proj."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    gradcent.attach_to_gradients(attention)
    x = torch.randn(2, 3, 8)
    attention(x, x, x)[0].pow(2).sum().backward()
    assert max(centred(attention, "in_proj_weight", "out_proj.weight").values()) < 1e-5


def test_copies_keep_it() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    gradcent.attach_to_gradients(model)
    twin = copy.deepcopy(model)
    twin(torch.randn(3, 5)).pow(2).sum().backward()
    assert max(centred(twin, "0.weight", "1.weight").values()) < 1e-5
    assert model[0].weight.grad is None


def test_remove_stops_it_and_it_can_be_set_again() -> None:
    model = nn.Sequential(nn.Linear(5, 4))
    handles = gradcent.attach_to_gradients(model)
    with pytest.raises(ValueError, match="already"):
        gradcent.attach_to_gradients(model)
    handles.remove()
    model(torch.ones(3, 5)).sum().backward()
    assert model[0].weight.grad.mean(1).abs().min() > 0.1
    model.zero_grad()
    gradcent.attach_to_gradients(model)
    model(torch.randn(3, 5)).sum().backward()
    assert max(centred(model, "0.weight").values()) < 1e-5


def test_tied_weights_are_hooked_once() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    calls = []
    model = nn.Sequential(first, second)
    handles = gradcent.attach_to_gradients(model)
    first.weight.register_hook(lambda g: calls.append(g))
    model(torch.randn(2, 4)).sum().backward()
    assert len(first.weight._backward_hooks) == 2  # ours and this test's
    assert handles.plan.totals()["centralized_tensors"] == 1


def test_a_layer_unfrozen_later_is_reached() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    gradcent.attach_to_gradients(model)
    model[0].weight.requires_grad_(True)
    model(torch.randn(3, 5)).pow(2).sum().backward()
    assert max(centred(model, "0.weight", "1.weight").values()) < 1e-5


def test_optimizer_in_backward(verified: Any) -> None:
    """Each parameter steps as soon as its gradient is there; GC comes before, without decay to project."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    truth = copy.deepcopy(model)
    gradcent.attach_to_gradients(model)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}
    for parameter in model.parameters():

        def step(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()

        parameter.register_post_accumulate_grad_hook(step)
    plain = torch.optim.SGD(truth.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        x = torch.randn(3, 5).double()
        model(x).pow(2).sum().backward()
        plain.zero_grad()
        truth(x).pow(2).sum().backward()
        for layer in (truth[0], truth[2]):
            layer.weight.grad -= layer.weight.grad.mean(1, keepdim=True)
        plain.step()
    pairs = zip(model.parameters(), truth.parameters(), strict=True)
    found = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    verified(
        "optimizer in backward", "torch", "attach_to_gradients, SGD with momentum, 20 steps", found, 1e-12
    )


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_optimizers_in_backward_may_also_be_attached_to(at: str, verified: Any) -> None:
    """One optimizer per parameter, stepped by a hook: attach to each, and coupled decay is projected too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    truth = copy.deepcopy(model)
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = {each: torch.optim.SGD([each], **settings) for each in model.parameters()}
    gradcent.integrations.attach_each(optimizers.values(), model, at=at)

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(step)
    plain = torch.optim.SGD(truth.parameters(), **settings)
    for _ in range(20):
        x = torch.randn(3, 5).double()
        model(x).pow(2).sum().backward()
        plain.zero_grad()
        truth(x).pow(2).sum().backward()
        weights = [truth[0].weight, truth[2].weight]
        means = [each.detach().mean(1, keepdim=True) for each in weights]
        if at == "gradient":
            for each in weights:
                each.grad -= (each.grad + 0.1 * each.detach()).mean(1, keepdim=True)
        plain.step()
        if at == "update":
            with torch.no_grad():
                for each, mean in zip(weights, means, strict=True):
                    each -= each.mean(1, keepdim=True) - mean
    pairs = zip(model.parameters(), truth.parameters(), strict=True)
    found = max((ours - theirs).abs().max().item() for ours, theirs in pairs)
    what = f"attach_each to one SGD per parameter, coupled decay, at the {at}"
    verified("optimizer in backward", "torch", what, found, 1e-12)


def test_compiled_model() -> None:
    """Hooks on leaves run outside the compiled graph; the watch adds no break to it."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    gradcent.attach_to_gradients(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(torch.randn(3, 5)).pow(2).sum().backward()
    assert max(centred(model, "0.weight", "2.weight").values()) < 1e-5


def test_a_model_with_hooks_can_be_pickled_and_keeps_them() -> None:
    """torch drops hooks of parameters from pickles, so that the copy has to set them again."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    handles = gradcent.attach_to_gradients(model)
    assert "2 of 4 tensors" in repr(handles)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        for _ in range(2):
            twin(torch.randn(3, 5)).pow(2).sum().backward()
        assert max(centred(twin, "0.weight", "1.weight").values()) < 1e-5
    handles.remove()
    assert "removed" in repr(handles)
    plain = pickle.loads(pickle.dumps(model))
    plain(torch.ones(3, 5)).sum().backward()
    assert plain[0].weight.grad.mean(1).abs().min() > 0.1 or plain[1].weight.grad.mean(1).abs().min() > 0.1
