"""An attached optimizer in the hands of a training script: schedulers, groups, copies, checkpoints, taking it off."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import equations
import gradcent
from optimizer_cases import (
    CASES,
    COUPLED,
    SGDW,
    TORCH,
    Case,
    cases,
    close,
    model_for,
    run,
    skip_if_torch_lacks_new_groups,
    weights,
)

SCHEDULED = [case for case in CASES if not case.name.startswith("schedulefree")]  # those have no schedule


def by_hand(case: Case, steps: int = 6, at: str = "gradient", **more):
    """Train the plain optimizer with Φ put into `p.grad` by hand."""
    model = model_for(case)
    optimizer = case.make(model.parameters(), **more)
    strength = more.get("weight_decay", 0.0) if case.decay == COUPLED else 0.0
    run(
        model,
        optimizer,
        steps,
        closure=case.closure,
        after_backward=lambda: equations.centralize_gradients(model, strength),
    )
    return model, optimizer


@cases(of=SCHEDULED)
@pytest.mark.parametrize("first", ["scheduler", "attach"])
def test_schedulers_made_before_and_after_attach(case: Case, first: str) -> None:
    """A scheduler made first holds the old `step` on the object."""

    def train(attach: bool):
        model = model_for(case)
        optimizer = case.make(model.parameters())
        if attach and first == "attach":
            case.attach(optimizer, model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        if attach and first == "scheduler":
            case.attach(optimizer, model)
        hand = (lambda: None) if attach else (lambda: equations.centralize_gradients(model))
        for step in range(4):
            run(model, optimizer, 1, closure=case.closure, after_backward=hand, start=step)
            scheduler.step()  # warns, and so fails, if it did not see the step
        assert optimizer.param_groups[0]["lr"] == pytest.approx(case.options.get("lr", 0.05) / 16)
        return model

    close(train(True), train(False))


@cases(of=SCHEDULED)
@pytest.mark.parametrize("first", ["scheduler", "attach"])
def test_detach_with_a_scheduler_that_holds_the_step(case: Case, first: str) -> None:
    model, plain = model_for(case), model_for(case)
    optimizer = case.make(model.parameters())
    if first == "attach":
        case.attach(optimizer, model)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    if first == "scheduler":
        case.attach(optimizer, model)
    gradcent.detach(optimizer)
    run(model, optimizer, 3, closure=case.closure)
    scheduler.step()
    run(plain, case.make(plain.parameters()), 3, closure=case.closure)
    close(model, plain)


@cases()
def test_detach_gives_the_plain_optimizer_back(case: Case) -> None:
    model = model_for(case)
    optimizer = case.make(model.parameters())
    plain_class = type(optimizer)
    case.attach(optimizer, model)
    run(model, optimizer, 2, closure=case.closure)
    assert gradcent.attached(optimizer) is not None
    assert gradcent.detach(optimizer) is optimizer
    assert gradcent.attached(optimizer) is None
    assert type(optimizer) is plain_class
    reference, twin = by_hand(case, 2)
    run(model, optimizer, 3, closure=case.closure, start=2)
    run(reference, twin, 3, closure=case.closure, start=2)
    close(model, reference)
    with pytest.raises(ValueError, match="not attached"):
        gradcent.detach(optimizer)


def test_step_hooks_run_after_detaching_from_a_class_that_was_not_used_before(monkeypatch) -> None:
    """torch makes `step` call the hooks when a class is first instantiated."""
    step = torch.optim.Adagrad.step
    monkeypatch.setattr(torch.optim.Adagrad, "step", step.__wrapped__ if hasattr(step, "hooked") else step)
    model, calls = nn.Linear(4, 3), []
    optimizer = gradcent.detach(gradcent.optim.Adagrad(model.parameters(), model=model))
    assert type(optimizer) is torch.optim.Adagrad
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    optimizer.step()
    assert calls == [1]


@cases()
def test_attaching_twice_is_an_error_and_after_detaching_is_not(case: Case) -> None:
    model = model_for(case)
    optimizer = case.attach(case.make(model.parameters()), model)
    with pytest.raises(ValueError, match="attached to this optimizer already"):
        case.attach(optimizer, model)
    gradcent.detach(optimizer)
    case.attach(optimizer, model, at="update")
    run(model, optimizer, 2, closure=case.closure)
    assert float((equations.sums(model) - equations.sums(model_for(case))).abs().max()) < 1e-5


@cases()
def test_isinstance_and_the_class_name_stay(case: Case) -> None:
    model = model_for(case)
    optimizer = case.make(model.parameters())
    plain = type(optimizer)
    case.attach(optimizer, model)
    assert isinstance(optimizer, plain)
    assert type(optimizer).__name__ == plain.__name__


@cases()
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_step_hooks_fire_once(case: Case, at: str) -> None:
    model, calls = model_for(case), []
    optimizer = case.make(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    case.attach(optimizer, model, at=at)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    run(model, optimizer, 2, closure=case.closure)
    assert calls == ["before", "after"] * 2


@cases()
@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_keep_gc(case: Case, at: str, how: str) -> None:
    """Model and optimizer copied together go on training exactly as the originals."""
    model = model_for(case)
    optimizer = case.make(model.parameters())
    case.attach(optimizer, model, at=at)
    run(model, optimizer, 2, closure=case.closure)
    try:
        plain_model = model_for(case)
        plain_model, plain = copy.deepcopy((plain_model, case.make(plain_model.parameters())))
        run(plain_model, plain, 1, closure=case.closure)
    except AttributeError as lost:
        pytest.skip(f"the plain optimizer cannot be copied: {lost}")
    if how == "deepcopy":
        model2, optimizer2 = copy.deepcopy((model, optimizer))
    else:
        model2, optimizer2 = pickle.loads(pickle.dumps((model, optimizer)))
    assert type(optimizer2) is type(optimizer)
    assert gradcent.attached(optimizer2) is not gradcent.attached(optimizer)
    run(model, optimizer, 3, closure=case.closure, start=2)
    run(model2, optimizer2, 3, closure=case.closure, start=2)
    assert torch.equal(weights(model), weights(model2))
    gradcent.detach(optimizer2)
    assert gradcent.attached(optimizer) is not None


@cases()
def test_checkpoints_move_both_ways(case: Case) -> None:
    """State dicts have the plain keys, load in either direction, also through torch.load(weights_only=True)."""
    hand_model, hand = by_hand(case, 3)
    model = model_for(case)
    optimizer = case.attach(case.make(model.parameters()), model)
    run(model, optimizer, 3, closure=case.closure)
    ours, theirs = optimizer.state_dict(), hand.state_dict()
    assert ours.keys() == theirs.keys()
    assert [group.keys() for group in ours["param_groups"]] == [
        group.keys() for group in theirs["param_groups"]
    ]
    for saved, start in ((ours, model), (theirs, hand_model)):
        buffer = io.BytesIO()
        torch.save(saved, buffer)
        buffer.seek(0)
        try:
            loaded = torch.load(buffer, weights_only=True)
        except pickle.UnpicklingError:  # torchao and bitsandbytes keep classes of their own in the state
            assert not case.float64
            loaded = copy.deepcopy(saved)
        plain_model, our_model = copy.deepcopy(start), copy.deepcopy(start)
        plain, ours_again = case.make(plain_model.parameters()), case.make(our_model.parameters())
        case.attach(ours_again, our_model)
        plain.load_state_dict(copy.deepcopy(loaded))
        ours_again.load_state_dict(loaded)
        assert gradcent.attached(ours_again) is not None
        hand_on = lambda m=plain_model: equations.centralize_gradients(m)  # noqa: E731
        run(plain_model, plain, 2, closure=case.closure, after_backward=hand_on, start=3)
        run(our_model, ours_again, 2, closure=case.closure, start=3)
        close(our_model, plain_model)


@cases(where=lambda case: not case.matrices_only and not case.closure)
def test_groups_have_their_own_options_and_switch(case: Case) -> None:
    """Two groups with their own lr and decay; the second is switched off and trains as without GC."""

    def groups(model, switch: bool):
        first = {"params": [*model.conv.parameters(), *model.up.parameters(), *model.norm.parameters()]}
        second = {"params": model.head.parameters(), "lr": 0.02}
        if case.decay != "none":
            first["weight_decay"] = 0.3
        return [first, {**second, "centralize": False} if switch else second]

    model, hand = model_for(case), model_for(case)
    optimizer = case.attach(case.make(groups(model, True)), model)
    assert all("centralize" not in group for group in optimizer.state_dict()["param_groups"])
    plain = case.make(groups(hand, False))

    def centralize() -> None:
        kept = hand.head.weight.grad.clone()
        equations.centralize_gradients(hand, 0.3 if case.decay == COUPLED else 0.0)
        hand.head.weight.grad = kept

    run(model, optimizer)
    run(hand, plain, after_backward=centralize)
    close(model, hand)
    assert all("centralize" not in group for group in optimizer.param_groups)
    assert "switched off" in gradcent.attached(optimizer).plan.entry(model.head.weight).reason


def test_the_switch_survives_a_refused_attach() -> None:
    """A first attach that is refused must not forget what the group asked for."""
    case = next(case for case in CASES if case.name == "Homemade")
    model = model_for(case)
    optimizer = case.make(
        [{"params": model.head.parameters(), "centralize": False}, {"params": model.conv.parameters()}],
        weight_decay=0.1,
    )
    with pytest.raises(ValueError, match="decay="):
        gradcent.attach(optimizer, model)
    gradcent.attach(optimizer, model, decay="coupled")
    assert gradcent.attached(optimizer).plan.layout(model.head.weight) is None


def test_the_switch_survives_detaching() -> None:
    model = model_for(SGDW)
    groups = [{"params": model.head.parameters(), "centralize": False}, {"params": model.conv.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    for _ in range(2):
        gradcent.attach(optimizer, model)
        plan = gradcent.attached(optimizer).plan
        assert plan.layout(model.head.weight) is None
        assert plan.layout(model.conv.weight) is not None
        gradcent.detach(optimizer)
    assert [group.get("centralize") for group in optimizer.param_groups] == [False, None]


def test_a_switch_that_is_no_switch_is_refused() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(TypeError, match="must be True or False"):
        gradcent.attach(torch.optim.SGD([{"params": model.parameters(), "centralize": "no"}], lr=1), model)


@cases(where=lambda case: not case.closure)
def test_groups_added_later_are_planned_when_they_come(case: Case) -> None:
    skip_if_torch_lacks_new_groups(case.name)

    def train(attach: bool):
        model = model_for(case)
        head = list(model.head.parameters())
        rest = [each for each in model.parameters() if all(each is not other for other in head)]
        optimizer = case.make(rest)
        if attach:
            case.attach(optimizer, model)
        hand = (lambda: None) if attach else (lambda: equations.centralize_gradients(model))
        run(model, optimizer, 2, after_backward=hand)
        optimizer.add_param_group({"params": head})
        run(model, optimizer, 2, after_backward=hand, start=2)
        return model

    close(train(True), train(False))


def test_a_group_added_later_has_its_switch() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    optimizer = gradcent.attach(torch.optim.SGD(model[0].parameters(), lr=0.1), model)
    optimizer.add_param_group({"params": model[1].parameters(), "centralize": False})
    assert gradcent.attached(optimizer).plan.layout(model[1].weight) is None
    assert all("centralize" not in group for group in optimizer.state_dict()["param_groups"])


def test_a_layer_grown_after_attach_is_planned() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    model.append(nn.Linear(4, 2))
    optimizer.add_param_group({"params": model[1].parameters()})
    assert gradcent.attached(optimizer).plan.layout(model[1].weight) == gradcent.Layout(1, 1, 2, 4)


def test_a_group_of_strangers_is_said() -> None:
    model, other = nn.Linear(4, 4), nn.Linear(4, 2)
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    with pytest.warns(UserWarning, match="not parameters of the model"):
        optimizer.add_param_group({"params": other.parameters()})
    optimizer.add_param_group({"params": nn.Linear(4, 2).parameters(), "centralize": False})  # by choice


def replace_weights(model: nn.Module, optimizer: torch.optim.Optimizer, layers: list[int]) -> None:
    """Put other objects into the places of weights, as FSDP2 and `nn.Module.to_empty` do."""
    for index in layers:
        weight = nn.Parameter(model[index].weight.detach().clone())
        for group in optimizer.param_groups:
            group["params"] = [weight if each is model[index].weight else each for each in group["params"]]
        model[index].weight = weight


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("replaced", [[0], [2], [0, 1, 2]], ids=str)
def test_replaced_weights_keep_their_layout_and_their_switch(replaced: list[int], at: str) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)))
    groups = [{"params": model[:2].parameters()}, {"params": model[2].parameters(), "centralize": False}]
    optimizer = gradcent.attach(torch.optim.SGD(groups, lr=0.1), model, at=at)
    for _ in range(2):
        replace_weights(model, optimizer, replaced)
        before = [layer.weight.detach().sum(1) for layer in model]
        model(torch.rand(3, 4)).sum().backward()
        optimizer.step()
        after = [layer.weight.detach().sum(1) for layer in model]
        moved = [float((now - then).abs().max()) > 1e-4 for now, then in zip(after, before, strict=True)]
        assert moved == [False, False, True]
    plan = gradcent.attached(optimizer).plan
    assert sorted(each.name for each in plan.entries) == ["0.weight", "1.weight", "2.weight"]


def test_replaced_weights_that_are_not_in_the_model_are_refused() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)
    others = [nn.Parameter(torch.zeros(size, 5)) for size in (2, 3, 4, 6)]
    for other in others:
        other.grad = torch.ones_like(other)
    optimizer.param_groups[0]["params"] = others
    with pytest.raises(
        RuntimeError, match=r"4 of the new ones \(shapes \(2, 5\), \(3, 5\), \(4, 5\)\) are not in"
    ):
        optimizer.step()


@cases(where=lambda case: not case.matrices_only)
def test_parameters_without_gradients_are_passed_over(case: Case) -> None:
    """A frozen layer stays; once unfrozen it is centralized as if it always had been planned."""

    def train(attach: bool):
        model = model_for(case)
        model.conv.requires_grad_(False)
        optimizer = case.make(model.parameters())
        if attach:
            case.attach(optimizer, model)
            assert gradcent.attached(optimizer).plan.entry(model.conv.weight).frozen
        hand = (lambda: None) if attach else (lambda: equations.centralize_gradients(model))
        before = model.conv.weight.detach().clone()
        run(model, optimizer, 2, closure=case.closure, after_backward=hand)
        assert torch.equal(model.conv.weight, before)
        model.conv.requires_grad_(True)
        run(model, optimizer, 2, closure=case.closure, after_backward=hand, start=2)
        warming_up = case.name == "schedulefree.RAdamScheduleFree"
        assert warming_up or not torch.equal(model.conv.weight, before)
        return model

    close(train(True), train(False))


def test_step_hooks_fire_in_a_process_that_only_knows_our_classes() -> None:
    """torch wraps `step` when it first makes an object of a class; nobody may have made one of torch's."""
    code = """
import torch, gradcent
for name in gradcent.optim.__all__:
    model = torch.nn.Linear(3, 2, bias=False)
    for detach in (False, True):
        optimizer = getattr(gradcent.optim, name)(model.parameters(), lr=0.1, model=model, at="update")
        if detach:
            gradcent.detach(optimizer)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append(1))
        optimizer.register_step_post_hook(lambda *_: calls.append(2))
        before = model.weight.detach().sum(1)
        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(3)) + torch.tensor([1.0, -2.0])).square().sum()
            loss.backward()
            return loss
        optimizer.step(closure)
        assert calls == [1, 2], (name, detach, calls)
        if not detach:
            assert torch.allclose(model.weight.detach().sum(1), before, atol=1e-5), name
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@cases(of=[*TORCH, SGDW])
def test_a_users_subclass_works_and_comes_back(case: Case) -> None:
    """Subclasses that keep torch's step, and ones that wrap it."""

    class Kept(case.type):
        mine = 1

    class Wrapped(case.type):
        calls = 0

        def step(self, closure=None):
            Wrapped.calls += 1
            return super().step(closure)

    expected, _ = by_hand(case, 4)
    for plain in (Kept, Wrapped):
        model = model_for(case)
        optimizer = plain(model.parameters(), **case.options)
        told = plain is Wrapped and case.decay != "none"  # what its own step does with λw cannot be known
        gradcent.attach(optimizer, model, decay=case.decay if told else "auto")
        assert isinstance(optimizer, plain)
        run(model, optimizer, 4, closure=case.closure)
        close(model, expected)
        gradcent.detach(optimizer)
        assert type(optimizer) is plain
    assert Wrapped.calls == 4


def test_a_users_subclass_of_a_drop_in_keeps_its_class_when_detached() -> None:
    class Mine(gradcent.optim.SGDW):
        pass

    model = nn.Linear(3, 2)
    optimizer = Mine(model.parameters(), lr=0.1, weight_decay=0.1, model=model)
    gradcent.detach(optimizer)
    assert isinstance(optimizer, Mine)  # torch's SGD would decay in another way


def test_pickle_with_overrides_that_cannot_be_pickled() -> None:
    model = nn.Sequential(nn.Linear(4, 6))
    overrides = {"0.weight": lambda shape: gradcent.Layout.columns(shape)}
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, overrides=overrides)
    model2, optimizer2 = pickle.loads(pickle.dumps((model, optimizer)))
    assert gradcent.attached(optimizer2).plan.layout(model2[0].weight) == gradcent.Layout(
        1, 4, 6, 1
    ).__class__(1, 6, 4, 1)
