"""The names and flags of the authors' code do what docs/migration.md says, or refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradcent
from gradcent import authors

# name → drop-in class, layers, at
TABLE = {
    "SGD_GC": ("SGD", "all", "gradient"),
    "SGD_GCC": ("SGD", "conv", "gradient"),
    "SGDW_GCC": ("SGDW", "conv", "gradient"),
    "Adam_GC": ("Adam", "all", "gradient"),
    "Adam_GCC": ("Adam", "conv", "gradient"),
    "Adam_GCC2": ("Adam", "conv", "update"),
    "AdamW_GCC": ("AdamW", "conv", "gradient"),
    "AdamW_GCC2": ("AdamW", "conv", "update"),
    "Adagrad_GCC": ("Adagrad", "conv", "gradient"),
    "SGD": ("SGD", "all", "gradient"),
    "Adam": ("Adam", "all", "gradient"),
    "AdamW": ("AdamW", "all", "gradient"),
    "RAdam": ("RAdam", "all", "gradient"),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).double()


def drift(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> tuple[bool, bool]:
    """Train for five steps; whether the sums of the convolution's and of the linear layer's vectors moved."""
    weights = [model[0].weight, model[2].weight]
    before = [each.detach().flatten(1).sum(1) for each in weights]
    maker = torch.Generator().manual_seed(1)
    for _ in range(5):
        optimizer.zero_grad()
        x = torch.rand(4, 2, 4, 4, generator=maker, dtype=torch.float64)
        (model(x) - 1).square().mean().backward()
        optimizer.step()
    conv, linear = (
        bool((each.detach().flatten(1).sum(1) - sums).abs().max() > 1e-9)
        for each, sums in zip(weights, before, strict=True)
    )
    return conv, linear


@pytest.mark.parametrize("name", TABLE)
def test_each_name_is_what_the_table_says(name: str) -> None:
    made, layers, at = TABLE[name]
    model, twin = net(), net()
    optimizer = getattr(authors, name)(model.parameters(), 0.01, model=model)
    same = getattr(gradcent.optim, made)(twin.parameters(), 0.01, model=twin, layers=layers, at=at)
    assert type(optimizer) is type(same)
    assert drift(model, optimizer) == drift(twin, same)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_no_name_is_left_out() -> None:
    assert set(authors.__all__) == set(TABLE)


def test_sgd_and_the_update_form_keep_the_sums() -> None:
    for name, kept in [("SGD_GC", (False, False)), ("SGD_GCC", (False, True)), ("Adam_GCC2", (False, True))]:
        model = net()
        assert drift(model, getattr(authors, name)(model.parameters(), lr=0.01, model=model)) == kept, name
    model = net()
    assert drift(model, authors.Adam_GCC(model.parameters(), lr=0.01, model=model)) == (True, True)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RAdam"])
def test_flags_are_obeyed(name: str) -> None:
    make = getattr(authors, name)

    def with_flags(**flags) -> tuple[bool, bool]:
        model = net()
        options = {"weight_decay": 0.0} if name == "AdamW" else {}
        return drift(model, make(model.parameters(), lr=0.01, model=model, **options, **flags))

    assert with_flags(use_gc=False) == (True, True)
    assert with_flags(gc_loc=False) == (False, False)
    assert with_flags(gc_loc=False, gc_conv_only=True) == (False, True)
    assert with_flags(use_gc=True, gc_loc=False, gc_conv_only=False) == (False, False)
    model = net()
    assert gradcent.attached(make(model.parameters(), lr=0.01, use_gc=False)) is None  # no model needed


@pytest.mark.parametrize(
    "flags", [{"gc_conv_only": True}, {"gc_loc": False}, {"layers": "conv"}, {"at": "update"}], ids=str
)
def test_a_name_that_fixes_a_choice_refuses_another(flags: dict) -> None:
    model = net()
    with pytest.raises(
        TypeError, match=f"SGD_GC fixes {'at' if {'gc_loc', 'at'} & flags.keys() else 'layers'}"
    ):
        authors.SGD_GC(model.parameters(), lr=0.1, model=model, **flags)


@pytest.mark.parametrize(
    "both",
    [
        {"use_gc": True, "centralize": True},
        {"gc_conv_only": True, "layers": "conv"},
        {"gc_loc": True, "at": "update"},
    ],
    ids=str,
)
def test_a_flag_and_its_new_name_together_are_refused(both: dict) -> None:
    model = net()
    with pytest.raises(TypeError, match="the same option"):
        authors.SGD(model.parameters(), lr=0.1, model=model, **both)


def test_the_model_is_asked_for() -> None:
    with pytest.raises(TypeError, match="Pass model=model"):
        authors.SGD_GC(net().parameters(), lr=0.1)
