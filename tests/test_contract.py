"""What every attached optimizer computes, against the equations in float64 and torch's optimizer fed by hand."""

from __future__ import annotations

import re

import pytest
import torch

import equations
import gradcent
from optimizer_cases import (
    CASES,
    COUPLED,
    NONE,
    PAPER,
    SGDW,
    TORCH,
    Case,
    cases,
    close,
    eager,
    flags,
    forms,
    loss_of,
    model_for,
    moved,
    run,
    weights,
)

LAMBDA = 0.1


def decayed(case: Case) -> dict[str, float]:
    return {} if case.decay == NONE else {"weight_decay": LAMBDA}


def together(ours, optimizer, theirs, training) -> None:
    """Six steps of both on the same batches: gradcent's optimizer, and the equations written out."""
    for step in range(6):
        for model in (ours, theirs):
            model.zero_grad()
            loss_of(model, step).backward()
        optimizer.step()
        next(training)


@forms(of=PAPER)
@pytest.mark.parametrize("decay", [0.0, LAMBDA])
@pytest.mark.parametrize("maximize", [False, True])
def test_the_papers_five_follow_the_equations(case: Case, form: str, decay: float, maximize: bool) -> None:
    options = {**case.options, "weight_decay": decay, "maximize": maximize}
    ours, theirs = model_for(case), model_for(case)
    optimizer = gradcent.attach(case.make(ours.parameters(), **options, **flags(case, form)), ours)
    training = equations.steps(case.name, theirs, **options)
    together(ours, optimizer, theirs, training)
    moved(ours, case)
    close(ours, theirs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": LAMBDA}),
        (
            "SGD",
            {"lr": 0.05, "momentum": 0.9, "dampening": 0.9, "weight_decay": LAMBDA},
        ),  # Algorithm 1 as printed
        ("SGD", {"lr": 0.05, "weight_decay": LAMBDA}),
        ("SGDW", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": LAMBDA}),
        ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": LAMBDA}),
        ("AdamW", {"lr": 0.01, "amsgrad": True, "betas": (0.5, 0.9), "weight_decay": LAMBDA}),
        ("Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": LAMBDA}),
    ],
)
def test_drop_ins_follow_the_equations_with_other_options(name: str, options: dict) -> None:
    ours, theirs = model_for(SGDW), model_for(SGDW)
    optimizer = getattr(gradcent.optim, name)(ours.parameters(), **options, model=ours)
    training = equations.steps(name, theirs, **options)
    together(ours, optimizer, theirs, training)
    close(ours, theirs)


def train_by_hand(
    case: Case, form: str, *, maximize: bool = False, decay: float | None = None, at: str = "gradient"
):
    """Train the plain optimizer, putting Φ into `p.grad` (or projecting the change) by hand."""
    model = model_for(case)
    more = decayed(case) if decay is None else {"weight_decay": decay}
    if maximize:
        more["maximize"] = True
    optimizer = case.make(model.parameters(), **more, **flags(case, form))
    strength = more.get("weight_decay", 0.0) if case.decay == COUPLED else 0.0

    def centralize() -> None:
        if at == "gradient":
            equations.centralize_gradients(model, strength, maximize=maximize)

    def around(step) -> None:
        before = {each: each.detach().clone() for each in model.parameters()}
        step()
        if at == "update":
            equations.project_change(model, before)

    run(model, optimizer, closure=case.closure, after_backward=centralize, around=around)
    return model


def train_attached(
    case: Case, form: str, *, at: str = "gradient", maximize: bool = False, closure: bool | None = None
):
    model = model_for(case)
    more = {**decayed(case), **({"maximize": True} if maximize else {})}
    optimizer = case.make(model.parameters(), **more, **flags(case, form))
    assert case.attach(optimizer, model, at=at) is optimizer
    run(model, optimizer, closure=case.closure if closure is None else closure)
    return model


@forms(of=CASES)
def test_the_optimizer_is_given_the_centralized_gradient(case: Case, form: str) -> None:
    """With decay: exactly P(g + λw) where decay is coupled, Φ(g) and the optimizer's own decay where it is not."""
    model = train_attached(case, form)
    moved(model, case)
    close(model, train_by_hand(case, form))


@forms(of=CASES)
def test_the_whole_change_is_projected_at_the_update(case: Case, form: str) -> None:
    model = train_attached(case, form, at="update")
    moved(model, case)
    close(model, train_by_hand(case, form, at="update"), factor=3)


@forms(of=CASES)
def test_weight_sums_keep_their_value_at_the_update(case: Case, form: str) -> None:
    model = train_attached(case, form, at="update")
    drift = float((equations.sums(model) - equations.sums(model_for(case))).abs().max())
    assert drift < (1e-12 if case.float64 else 1e-5)


@forms(where=lambda case: case.maximize)
def test_maximize_changes_the_sign_of_the_decay_beside_the_gradient(case: Case, form: str) -> None:
    close(train_attached(case, form, maximize=True), train_by_hand(case, form, maximize=True))


@cases(where=lambda case: case.maximize and case not in [*TORCH, SGDW])
def test_maximize_of_other_peoples_optimizers(case: Case) -> None:
    close(train_attached(case, "loop", maximize=True), train_by_hand(case, "loop", maximize=True))


@forms(of=CASES)
def test_a_closure_gives_the_same_training(case: Case, form: str) -> None:
    """The trap of step-pre-hooks: the closure's backward refills the gradients after the hook."""
    close(train_attached(case, form, closure=True), train_by_hand(case, form))


@cases()
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_a_closure_is_evaluated_as_often_as_without_and_its_loss_returned(case: Case, at: str) -> None:
    counts, losses = [], []
    for attach in (False, True):
        model, calls = model_for(case), []
        optimizer = case.make(model.parameters())
        if attach:
            case.attach(optimizer, model, at=at)

        def closure(model=model, optimizer=optimizer, calls=calls):
            optimizer.zero_grad()
            loss = loss_of(model)
            loss.backward()
            calls.append(1)
            return loss.detach()

        losses.append(float(optimizer.step(closure)))
        counts.append(len(calls) if not case.closure else min(len(calls), 1))
    assert counts[0] == counts[1]
    assert losses[0] == pytest.approx(losses[1])


@cases(where=lambda case: not case.closure)
def test_accumulated_gradients_are_centralized_once_as_a_whole(case: Case) -> None:
    """Two half batches and one step equal the sum of both, decay counted once."""
    models = [model_for(case), model_for(case)]
    for by_hand, model in zip((False, True), models, strict=True):
        optimizer = case.make(model.parameters(), **decayed(case))
        if not by_hand:
            case.attach(optimizer, model)
        for step in range(3):
            optimizer.zero_grad()
            (loss_of(model, 2 * step) / 2).backward()
            (loss_of(model, 2 * step + 1) / 2).backward()
            if by_hand:
                equations.centralize_gradients(model, LAMBDA if case.decay == COUPLED else 0.0)
            run_step(optimizer)
    close(*models)


def run_step(optimizer) -> None:
    with eager():
        optimizer.step()


TENSOR_LR = (
    "SGD",
    "Adam",
    "AdamW",
    "Adagrad",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Adamax",
    "ASGD",
    "Adadelta",
    "SGDW",
)


@forms(where=lambda case: case.name in TENSOR_LR)
def test_the_learning_rate_may_be_a_tensor(case: Case, form: str) -> None:
    pair = []
    for value in (case.options["lr"], torch.tensor(case.options["lr"], dtype=torch.float64)):
        model = model_for(case)
        chosen = flags(case, form)
        if form == "foreach" and isinstance(value, torch.Tensor):
            chosen = {"foreach": True}
        try:
            optimizer = case.make(model.parameters(), **{**decayed(case), **chosen, "lr": value})
            gradcent.attach(optimizer, model)
            run(model, optimizer)
        except (ValueError, RuntimeError) as refused:
            plain = model_for(case)
            with pytest.raises(type(refused), match=re.escape(str(refused)[:20])):  # torch refuses it too
                run(plain, case.make(plain.parameters(), **{**decayed(case), **chosen, "lr": value}))
            pytest.skip(f"torch itself refuses: {refused}")
        pair.append(model)
    close(*pair, factor=100 if case.name == "ASGD" else 1)  # torch's own ASGD computes eta in float32 then


@forms()
def test_the_gradients_in_the_parameters_are_not_touched(case: Case, form: str) -> None:
    """PyTorch's rule: a step never changes `p.grad`."""
    model = model_for(case)
    optimizer = gradcent.attach(case.make(model.parameters(), **decayed(case), **flags(case, form)), model)
    loss_of(model).backward()
    before = [(each.grad, each.grad.clone()) for each in model.parameters()]
    optimizer.step((lambda: loss_of(model)) if case.closure else None)
    for parameter, (gradient, value) in zip(model.parameters(), before, strict=True):
        assert parameter.grad is gradient
        assert torch.equal(gradient, value)


@cases()
def test_attaching_alone_changes_nothing_in_the_model(case: Case) -> None:
    model = model_for(case)
    before = weights(model)
    case.attach(case.make(model.parameters()), model)
    assert torch.equal(weights(model), before)


@cases(where=lambda case: case.decay == COUPLED)
def test_decay_can_be_left_outside_by_choice(case: Case) -> None:
    """decay="decoupled" gives Pg + λw: the by-hand gradient has no λ in it."""
    model = model_for(case)
    optimizer = case.make(model.parameters(), weight_decay=LAMBDA)
    gradcent.attach(optimizer, model, decay="decoupled")
    run(model, optimizer)
    hand = model_for(case)
    plain = case.make(hand.parameters(), weight_decay=LAMBDA)
    run(hand, plain, after_backward=lambda: equations.centralize_gradients(hand))
    close(model, hand)


@cases(where=lambda case: case.decay == "decoupled" and case.decay_known)
def test_coupled_is_refused_where_decay_is_decoupled(case: Case) -> None:
    model = model_for(case)
    with pytest.raises(ValueError, match="decoupled"):
        gradcent.attach(case.make(model.parameters(), weight_decay=LAMBDA), model, decay="coupled")


@cases(where=lambda case: not case.decay_known)
def test_unknown_decay_must_be_chosen(case: Case) -> None:
    model = model_for(case)
    with pytest.raises(ValueError, match=r"does not know how .* applies"):
        gradcent.attach(case.make(model.parameters(), weight_decay=LAMBDA), model)
