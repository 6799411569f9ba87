"""With `centralize=False` every drop-in class is torch's, bit for bit; state dicts interchange."""

from __future__ import annotations

import inspect

import pytest
import torch

import equations
import gradcent
from optimizer_cases import TORCH, Case, cases, flags, forms, model_for, run, weights


@forms(of=TORCH)
def test_bit_identical_to_torch_over_a_hundred_steps(case: Case, form: str) -> None:
    decay = {} if case.decay == "none" else {"weight_decay": 0.01}
    options = {**case.options, **decay, **flags(case, form)}
    models = [model_for(case, torch.float32), model_for(case, torch.float32)]
    plain = case.type(models[0].parameters(), **options)
    ours = case.ours(models[1].parameters(), **options, centralize=False)
    for model, optimizer in zip(models, (plain, ours), strict=True):
        run(model, optimizer, 50 if case.closure else 100, closure=case.closure)
    assert torch.equal(weights(models[0]), weights(models[1]))
    one, two = plain.state_dict(), ours.state_dict()
    assert one["param_groups"] == two["param_groups"]
    assert one["state"].keys() == two["state"].keys()
    for key, state in one["state"].items():
        for name, value in state.items():
            other = two["state"][key][name]
            assert (
                torch.equal(value, other) if isinstance(value, torch.Tensor) else repr(value) == repr(other)
            )
    plain.load_state_dict(two)
    ours.load_state_dict(one)
    for model, optimizer in zip(models, (plain, ours), strict=True):
        run(model, optimizer, 3, closure=case.closure, start=100)
    assert torch.equal(weights(models[0]), weights(models[1]))


@cases(of=TORCH)
def test_drop_ins_are_subclasses_with_torchs_signature_and_ours_behind(case: Case) -> None:
    assert issubclass(case.ours, case.type)
    theirs = list(inspect.signature(case.type).parameters)
    ours = list(inspect.signature(case.ours).parameters)
    assert ours[: len(theirs)] == theirs
    assert set(ours[len(theirs) :]) >= {
        "model",
        "plan",
        "layers",
        "at",
        "decay",
        "overrides",
        "nonfinite",
        "centralize",
    }


@cases(of=TORCH)
@pytest.mark.parametrize("kind", ["plain", "named", "groups", "named groups"])
def test_params_are_taken_as_torch_takes_them(case: Case, kind: str) -> None:
    """A drop-in trains as attach does, however its parameters were given."""
    if "groups" in kind and case.closure:
        pytest.skip("LBFGS has one group")
    pair = []
    for make in ("attach", "drop-in"):
        model = model_for(case)
        named = list(model.named_parameters())
        params = {
            "plain": model.parameters(),
            "named": model.named_parameters(),
            "groups": [
                {"params": [each for _, each in named[:2]]},
                {"params": [each for _, each in named[2:]]},
            ],
            "named groups": [{"params": named[:1]}, {"params": named[1:]}],
        }[kind]
        if kind == "groups" and len(named) < 3:
            params = [{"params": [each]} for _, each in named]
        if make == "attach":
            optimizer = gradcent.attach(case.type(params, **case.options), model)
        else:
            optimizer = case.ours(params, **case.options, model=model)
        run(model, optimizer, 3, closure=case.closure)
        pair.append(weights(model))
    assert torch.equal(*pair)


@cases(of=TORCH)
def test_a_drop_in_switched_off_can_be_attached_later(case: Case) -> None:
    model = model_for(case)
    optimizer = case.ours(model.parameters(), **case.options, centralize=False)
    gradcent.attach(optimizer, model, at="update")
    before = equations.sums(model)
    run(model, optimizer, 3, closure=case.closure)
    assert float((equations.sums(model) - before).abs().max()) < 1e-12
