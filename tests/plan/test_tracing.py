"""Tracing finds the weight vectors that the forward pass contracts over."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from trace_models import MODELS, Model

import gradcent
from gradcent.plan.provenance import same_vectors
from gradcent.plan.traced import Finding
from gradcent.plan.tracing import trace


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", MODELS)
def test_weight_vectors_are_those_that_the_author_contracts(name: str, device: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().to(device)
    plan = gradcent.explain(model, example=model.example())
    for parameter, entry in plan.named():
        pick = model.expected.get(entry.name)
        assert (entry.layout is None) == (pick is None), (entry.name, entry.reason, entry.layout)
        if pick is not None:
            values = torch.randn(parameter.shape, dtype=torch.float64)
            expected = values.clone()
            for vector in pick(expected):
                vector -= vector.mean()
            torch.testing.assert_close(gradcent.centralize(values, entry.layout), expected)


@pytest.mark.parametrize("name", MODELS)
def test_training_traced_models_against_the_equation(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    batch = model.example()
    reference = copy.deepcopy(model)
    options = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}
    optimizer = torch.optim.SGD(model.parameters(), **options)
    gradcent.attach(optimizer, model, example=batch)
    plain = torch.optim.SGD(reference.parameters(), **options)
    for _ in range(4):
        for trained, stepper in ((model, optimizer), (reference, plain)):
            stepper.zero_grad()
            trained(batch).square().mean().backward()
        with torch.no_grad():
            for parameter_name, parameter in reference.named_parameters():
                pick = reference.expected.get(parameter_name)
                if pick is None or parameter.grad is None:
                    continue
                # the optimizer adds λw itself: hand it g - mean(g + λw)
                total = parameter.grad + options["weight_decay"] * parameter
                for part, vector in zip(pick(parameter.grad), pick(total), strict=True):
                    part -= vector.mean()
        optimizer.step()
        plain.step()
    for (_, ours), (_, truth) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-10, atol=1e-12)


class Unfit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.uneven, self.spread = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(2, 3, 2, 3, 2))
        self.both_ways, self.product = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(4, 6))
        self.factor, self.never = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(3, 4))
        self.inverse = nn.Parameter(torch.eye(6))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.inverse.inverse()
        total = F.linear(x[:, :4], self.uneven[:, :4]).sum() + F.linear(x[:, 4:], self.uneven[:, 4:]).sum()
        total = total + torch.einsum("bi,aicjd->bacd", x[:, :3], self.spread).sum()
        total = total + torch.einsum("bac,aicjd->bijd", x[:, :4].view(-1, 2, 2), self.spread).sum()
        total = total + (x @ self.both_ways @ self.both_ways.t()).sum()
        return total + F.linear(x, self.factor @ self.product).sum()


def test_what_has_no_layout_gets_a_reason() -> None:
    with pytest.warns(UserWarning, match="does not reach never, and no class rule applies"):
        plan = gradcent.explain(Unfit(), example=torch.randn(3, 6))
    reasons = {entry.name: entry.reason for entry in plan.entries}
    assert all(entry.layout is None for entry in plan.entries)
    assert "different dims in different places" in reasons["uneven"]
    assert "different dims in different places" in reasons["both_ways"]
    assert "do not fit" in reasons["spread"] or "different dims" in reasons["spread"]
    assert "multiplied with another parameter" in reasons["product"]
    assert "multiplied with another parameter" in reasons["factor"]
    assert "linalg_inv" in reasons["inverse"]
    assert "does not know" in reasons["never"]


def test_rules_decide_where_they_apply_and_a_disagreement_is_reported() -> None:
    class Backwards(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight  # over dim 0, against the rule of nn.Linear

    model = Backwards(6, 6)
    with pytest.warns(UserWarning, match=r"class rule for weight .* but the forward pass contracts it as"):
        plan = gradcent.explain(model, example=torch.randn(2, 6))
    assert plan.entries[0].layout == gradcent.Layout.rows((6, 6))
    assert plan.entries[0].source == "rule"


class Unreached(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, 4)
        self.own = nn.ParameterList([nn.Parameter(torch.zeros(4, 4)) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x)


@pytest.mark.parametrize(("count", "more"), [(4, ""), (5, " and 1 more")])
def test_at_most_four_unreached_parameters_are_named_in_one_warning(count: int, more: str) -> None:
    model = Unreached(count)
    with pytest.warns(
        UserWarning, match=rf"reach own\.0, own\.1, own\.2, own\.3{more}, and no class"
    ) as said:
        gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, example=torch.randn(2, 6))
    assert len(said) == 1
    model.own.requires_grad_(False)
    gradcent.explain(model, example=torch.randn(2, 6))


def test_a_parameter_that_the_example_reaches_in_one_of_its_places_is_not_reported() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.conv = nn.Linear(6, 6), nn.Conv1d(1, 4, 3)
            self.weight = self.linear.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.linear(x)[:, None])

    plan = gradcent.explain(Shared(), layers="conv", example=torch.randn(2, 6))
    assert [entry.name for entry in plan.entries if entry.layout] == ["conv.weight"]


def test_a_linear_weight_that_is_used_as_a_table_is_reported() -> None:
    class Table(nn.Linear):
        def forward(self, index: Tensor) -> Tensor:
            return F.embedding(index, self.weight)

    with pytest.warns(UserWarning, match="reads it by indexing.*overrides={'weight': None}"):
        gradcent.explain(Table(6, 5), example=torch.tensor([1, 2]))


def test_the_plan_names_who_decided() -> None:
    model = nn.ModuleDict({"known": nn.Linear(6, 4), "own": MODELS["packed weights"]().float()})
    plan = gradcent.explain(
        model,
        example=torch.randn(3, 6),
        example_forward=lambda m, x: (m["known"](x), m["own"](x)),
        overrides={"own.two": None},
    )
    sources = {row["parameter"]: row["source"] for row in plan.rows()}
    assert sources["known.weight"] == "rule"
    assert sources["own.qkv"] == "trace"
    assert sources["own.two"] == "override"


def test_a_parameter_that_a_subclass_adds_to_a_known_layer_is_traced() -> None:
    class Adapted(nn.Linear):
        def __init__(self) -> None:
            super().__init__(6, 4)
            self.down, self.up = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(3, 4))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + x @ self.down @ self.up

    plan = gradcent.explain(Adapted(), example=torch.randn(2, 6))
    layouts = {entry.name: entry.layout for entry in plan.entries}
    assert layouts["down"] == gradcent.Layout.columns((6, 3))
    assert layouts["up"] == gradcent.Layout.columns((3, 4))
    assert layouts["weight"] == gradcent.Layout.rows((4, 6))


@pytest.mark.parametrize("style", ["old", "new"])
def test_spectral_and_weight_norm_agree_with_the_rule(style: str) -> None:
    if style == "new":
        norms = (nn.utils.parametrizations.spectral_norm, nn.utils.parametrizations.weight_norm)
        model = nn.Sequential(norms[0](nn.Linear(6, 5)), norms[1](nn.Conv1d(1, 4, 3)))
    else:
        with pytest.warns(FutureWarning, match="deprecated"):
            normed = nn.utils.weight_norm(nn.Conv1d(1, 4, 3))
        model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 5)), normed)
    found = trace(model, torch.randn(3, 1, 6))
    plan = gradcent.explain(model)
    compared = [
        same_vectors(entry.shape, entry.layout, found[parameter].layout)
        for parameter, entry in plan.named()
        if entry.layout is not None and found[parameter].layout is not None
    ]
    assert compared == [True, True]


class Disturbing(nn.Module):
    """Writes to buffers, parameters and attributes, draws random numbers, and may fail in the middle."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.norm, self.weight = nn.BatchNorm1d(6), nn.Parameter(torch.randn(4, 6))
        self.register_buffer("count", torch.zeros(()))
        self.fails, self.calls, self.cache = fails, 0, None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.cache = x
        self.new_attribute = 1
        self.count += 1
        self.count = self.count + 1
        self.eval()
        with torch.no_grad():
            self.weight.clamp_(-0.1, 0.1)
        self.train()
        x = F.dropout(self.norm(x)) + random.random()
        self.norm.eval()
        if self.fails:
            raise KeyError("in the middle")
        return F.linear(x, self.weight)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    torch.manual_seed(0)
    random.seed(0)
    model = Disturbing(fails)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = {name: id(buffer) for name, buffer in model.named_buffers()}
    attributes = {name for name in model.__dict__}
    batch = torch.randn(5, 6)
    state, python_state = torch.get_rng_state(), random.getstate()
    gradients = torch.is_grad_enabled()
    fastpath = torch.backends.mha.get_fastpath_enabled()
    if fails:
        with pytest.raises(ValueError, match=r"KeyError: 'in the middle'.*The model is as it was"):
            gradcent.explain(model, example=batch)
    else:
        plan = gradcent.explain(model, example=batch)
        assert plan.entries[0].layout == gradcent.Layout.rows((4, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == python_state
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == buffers
    assert set(model.__dict__) == attributes
    assert model.calls == 0
    assert model.cache is None
    assert model.training
    assert model.norm.training
    assert torch.is_grad_enabled() == gradients
    assert torch.backends.mha.get_fastpath_enabled() == fastpath
    assert all(parameter.grad is None for parameter in model.parameters())


def test_random_numbers_are_not_consumed() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout())
    batch = torch.randn(3, 6)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    gradcent.explain(model, example=batch)
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.randn(3, 5), r"Linear on example= failed \(RuntimeError: .*shape"),
        ([torch.randn(3, 6), torch.zeros(3)], r"pass the inputs only, for example example=batch\[0\]"),
        ({"inputs": torch.randn(3, 6)}, "TypeError: .*inputs.*a dict of keywords"),
        ("text", "TypeError"),
    ],
)
def test_a_wrong_batch_gets_one_clear_line(batch: Any, message: str) -> None:
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=message) as caught:
        gradcent.attach(optimizer, model, example=batch)
    assert "\n" not in str(caught.value)
    assert gradcent.attached(optimizer) is None


def test_examples_reach_the_model_as_its_forward_takes_them() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return (x @ self.weight) * scale

    model = TwoInputs()
    x, scale = torch.randn(3, 6), torch.ones(())
    expected = gradcent.Layout.columns((6, 4))
    for example in ((x, scale), {"x": x, "scale": scale}):
        assert gradcent.explain(model, example=example).entries[0].layout == expected
    plan = gradcent.explain(
        model, example={"a": x, "b": scale}, example_forward=lambda m, e: m(e["a"], e["b"])
    )
    assert plan.entries[0].layout == expected
    models = [model, nn.Linear(4, 2)]
    with pytest.raises(ValueError, match="2 models needs example_forward="):
        gradcent.explain(models, example=x)
    both = gradcent.explain(models, example=x, example_forward=lambda ms, e: ms[1](ms[0](e, scale)))
    assert [entry.source for entry in both.entries] == ["trace", "rule", "rule"]


def test_fake_tensors_and_inference_mode() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = MODELS["packed weights"]()
    plan = gradcent.explain(fake, example=torch.randn(7, 6, dtype=torch.float64))
    assert plan.totals()["centralized_tensors"] == 6
    assert all(entry.level is None for entry in plan.entries)
    real = MODELS["packed weights"]()

    @torch.inference_mode()
    def forward(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    plan = gradcent.explain(real, example=real.example(), example_forward=forward)
    assert plan.totals()["centralized_tensors"] == 6


def test_a_backward_pass_inside_the_forward_pass_is_not_counted() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                energy = (x @ self.weight).square().sum()
                return torch.autograd.grad(energy, x)[0]

    plan = gradcent.explain(Forces(), example=torch.randn(3, 6))
    assert plan.entries[0].layout == gradcent.Layout.columns((6, 4))


def test_data_dependent_control_flow_and_compiled_models() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(6, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.left if x.sum() > 0 else self.right)

    for model in (Branches(), torch.compile(Branches())):
        with pytest.warns(UserWarning, match="does not reach right"):
            plan = gradcent.explain(model, example=torch.ones(2, 6))
        assert [entry.layout is not None for entry in plan.entries] == [True, False]
    with pytest.raises(ValueError, match="on meta tensors a forward pass must not read values"):
        gradcent.explain(Branches().to("meta"), example=torch.ones(2, 6))


def test_findings_of_plain_parameters() -> None:
    found = trace(nn.Sequential(nn.Embedding(5, 6), nn.LayerNorm(6), nn.Linear(6, 2)), torch.tensor([[1, 2]]))
    assert [traced.finding for traced in found.values()] == [
        Finding.INDEXED,
        Finding.ELEMENTWISE,
        Finding.ELEMENTWISE,
        Finding.CONTRACTED,
        Finding.ELEMENTWISE,
    ]


def test_a_traced_plan_survives_replaced_parameters() -> None:
    model: Model = MODELS["packed weights"]()
    plan = gradcent.explain(model, example=model.example())
    for name, parameter in list(model.named_parameters()):
        setattr(model, name, nn.Parameter(parameter.detach().clone()))  # as FSDP2 does
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradcent.attach(optimizer, model, plan=plan)
    attachment = gradcent.attached(optimizer)
    assert attachment is not None
    assert attachment.plan.totals() == plan.totals()


def test_attach_follows_parameters_that_are_replaced_later() -> None:
    model: Model = MODELS["packed weights"]()
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, example=model.example())
    for index, (name, parameter) in enumerate(list(model.named_parameters())):
        replacement = nn.Parameter(parameter.detach().clone())
        setattr(model, name, replacement)
        optimizer.param_groups[0]["params"][index] = replacement
    sums = model.qkv.detach().sum(1)
    model(model.example()).backward()
    optimizer.step()
    torch.testing.assert_close(model.qkv.detach().sum(1), sums)


def test_attach_warns_about_unknown_modules_once_and_names_the_fix() -> None:
    model = nn.ModuleList([MODELS["packed weights"](), nn.Linear(6, 2, dtype=torch.float64)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(
        UserWarning, match=r"9\d\.\d% of .* \(6 tensors, of Packed\).*example=batch.*register\(Packed"
    ) as got:
        gradcent.attach(optimizer, model)
    assert len(got) == 1
    with pytest.warns(UserWarning, match="Pass example=batch"):
        gradcent.optim.SGD(model.parameters(), lr=0.1, model=model)
    with pytest.warns(UserWarning, match="Pass example=batch"):
        gradcent.attach_to_gradients(copy.deepcopy(model))
    run = {"example": model[0].example(), "example_forward": lambda m, x: m[1](x) + m[0](x)}
    gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, **run)
    dropped_in = gradcent.optim.SGD(model.parameters(), lr=0.1, model=model, **run)
    assert gradcent.attached(dropped_in).plan.totals()["centralized_tensors"] == 7
    with pytest.raises(ValueError, match="would change nothing"):
        gradcent.attach(
            torch.optim.SGD(model.parameters(), lr=0.1), model, plan=gradcent.explain(model, **run), **run
        )
