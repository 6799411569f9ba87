"""The fused steps inside the drop-in optimizers, and the dispatch: obeyed, refused, interchangeable."""

import copy

import pytest
import torch
from kernel_equations import CASES, assert_close, project, tensors, wide
from torch import nn

import gradcent
from gradcent import Layout, kernels
from gradcent.kernels import foreach, native
from gradcent.optim import _native_step as steps
from optimizer_cases import skip_if_torch_lacks_new_groups

OPTIMIZERS = {
    "SGD": dict(lr=0.05, momentum=0.9, weight_decay=0.1, nesterov=True),
    "SGDW": dict(lr=0.05, momentum=0.9, weight_decay=0.1),
    "Adam": dict(lr=0.01, weight_decay=0.1),
    "AdamW": dict(lr=0.01, weight_decay=0.1),
    "Adagrad": dict(lr=0.05, weight_decay=0.1, lr_decay=0.1),
}
needs_native = pytest.mark.skipif(not native.available(), reason=native.reason())


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2), nn.Flatten(), nn.Linear(4 * 49, 5)
    ).double()


def train(model, optimizer, count, start=0):
    for step in range(start, start + count):
        torch.manual_seed(100 + step)
        optimizer.zero_grad()
        model(torch.randn(4, 3, 8, 8, dtype=torch.float64)).square().mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@needs_native
@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_all_kernels_train_alike(name, at):
    ends = []
    for kernel in ("reference", "native", "foreach", "auto"):
        model = network()
        optimizer = getattr(gradcent.optim, name)(
            model.parameters(), model=model, at=at, kernel=kernel, **OPTIMIZERS[name]
        )
        train(model, optimizer, 5)
        ends.append(weights(model))
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-9, atol=1e-11)
    assert torch.equal(ends[1], ends[3])


@needs_native
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad"])
def test_training_changes_path_at_any_step(name):
    """Native, torch's fused form, native again: the same as never having changed."""
    model, plain = network(), network()
    options = OPTIMIZERS[name]
    optimizer = getattr(gradcent.optim, name)(model.parameters(), model=model, **options)
    other = getattr(gradcent.optim, name)(
        plain.parameters(), model=plain, kernel="reference", fused=True, **options
    )
    train(plain, other, 9)
    train(model, optimizer, 3)
    between = getattr(gradcent.optim, name)(
        model.parameters(), model=model, kernel="reference", fused=True, **options
    )
    between.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, between, 3, start=3)
    last = getattr(gradcent.optim, name)(model.parameters(), model=model, **options)
    last.load_state_dict(between.state_dict())
    train(model, last, 3, start=6)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-9, atol=1e-11)


@needs_native
def test_the_fused_step_is_used_and_makes_no_temporaries(monkeypatch):
    calls = []
    monkeypatch.setattr(steps.native, "step_group", lambda *args, **kwargs: calls.append("native") or True)
    model = network()
    for flags, expected in (
        ({}, ["native"]),
        ({"fused": True}, ["native"]),
        ({"foreach": True}, []),
        ({"foreach": False}, []),
    ):
        calls.clear()
        optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.0, model=model, **flags)
        train(model, optimizer, 1)
        assert calls == expected, flags  # torch's own form, if it was asked for


@needs_native
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_parameters_without_gradient_and_new_groups(name):
    skip_if_torch_lacks_new_groups(name)
    model = network()
    optimizer = getattr(gradcent.optim, name)(model[0].parameters(), model=model, **OPTIMIZERS[name])
    train(model, optimizer, 2)
    optimizer.add_param_group({"params": list(model[4].parameters()), "weight_decay": 0.0})
    train(model, optimizer, 2)
    before = weights(model)
    for each in model[0].parameters():
        each.requires_grad_(False)
        each.grad = None
    train(model, optimizer, 1)
    after = weights(model)
    frozen = sum(each.numel() for each in model[0].parameters())
    assert torch.equal(before[:frozen], after[:frozen])
    assert not torch.equal(before[frozen:], after[frozen:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_foreach(dtype, decay):
    layouts = [layout for _, layout in CASES]
    gradients, shares = tensors(dtype), tensors(dtype, seed=1)
    results = foreach.centralized(gradients, layouts, shares if decay else None, decay)
    for g, w, out, layout in zip(gradients, shares, results, layouts, strict=True):
        x, plain = wide(g) + decay * wide(w), wide(g)
        assert_close(out, plain if layout is None else plain - (x - project(x, layout)), dtype)
        assert out.dtype == dtype


def test_explicit_choice_is_obeyed_or_refused(monkeypatch):
    layout, z = Layout.rows((2, 3)), torch.randn(2, 3, dtype=torch.complex64)
    with torch.no_grad():
        assert kernels.centralized([z], [layout], [z], decay=0.0)[0].sum(1).abs().max() < 1e-5
        for kernel in ("native", "foreach") if native.available() else ("foreach",):
            with pytest.raises(TypeError, match=f"kernel='{kernel}' cannot take this list"):
                kernels.centralized([z], [layout], [z], decay=0.0, kernel=kernel)
    real = torch.randn(2, 3)
    model = nn.Linear(3, 2)
    model.weight.grad = real
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, model=model, kernel="triton")
    with pytest.raises(RuntimeError, match="needs CUDA tensors"):
        optimizer.step()
    monkeypatch.setattr(native, "_cpu", None)
    monkeypatch.setattr(native, "_why_not", "no compiler", raising=False)
    assert not native.available()
    assert "no compiler" in native.reason()
    with pytest.raises(RuntimeError, match="no compiler"):
        kernels.centralized([real], [layout], [real], decay=0.0, kernel="native")
    out = kernels.centralized([real, real], [layout] * 2, [real, real], decay=0.0)[0]  # auto goes on without
    torch.testing.assert_close(out, real - real.mean(1, keepdim=True))


def test_gradients_in_place_and_expanded():
    parameters = [nn.Parameter(torch.randn(3, 4)) for _ in range(2)]
    parameters[0].grad = torch.randn(3, 4)
    parameters[1].grad = torch.ones(1, 4).expand(3, 4)
    place = parameters[0].grad.data_ptr()
    with torch.no_grad():
        kernels.centralize_gradients_(parameters, [Layout.rows((3, 4))] * 2, decay=0.0)
    assert parameters[0].grad.data_ptr() == place
    for each in parameters:
        assert each.grad.sum(1).abs().max() < 1e-6
