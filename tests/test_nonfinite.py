"""nan and inf in gradients: passed on unmasked, refused, or the step skipped, as the user chose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import equations
import gradcent
from optimizer_cases import CASES, SGDW, TORCH, Case, cases, eager, flags, forms, loss_of, model_for, weights

# timm's Lamb cannot step when no parameter has a gradient, with or without GC
STEPS_WITHOUT_GRADIENTS = [case for case in CASES if case.name != "timm.Lamb"]


def one_bad_step(
    case, policy: str, bad: float, *, form: str = "loop", closure: bool = False, at: str = "gradient"
):
    model = model_for(case)
    optimizer = case.make(model.parameters(), **flags(case, form))
    case.attach(optimizer, model, nonfinite=policy, at=at)

    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        model.head.weight.grad[1, 2] = bad
        return loss.detach()

    if not closure:
        evaluate()
    return model, optimizer, evaluate


@forms(of=CASES)
@pytest.mark.parametrize(("bad", "closure"), [(float("nan"), False), (-float("inf"), True)])
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_raise_names_the_parameter_and_changes_nothing(case, form, bad, closure, at) -> None:
    model, optimizer, evaluate = one_bad_step(case, "raise", bad, form=form, closure=closure, at=at)
    before = weights(model)
    with eager(), pytest.raises(FloatingPointError, match=r"head\.weight"):
        optimizer.step(evaluate) if closure else optimizer.step()
    assert torch.equal(weights(model), before)
    loss_of(model).backward()
    model.zero_grad()
    if case not in STEPS_WITHOUT_GRADIENTS:
        return
    good = (lambda: loss_of(model).detach()) if case.closure else None
    with eager():
        optimizer.step(good)  # without gradients: nothing of the failed step is left behind
    assert torch.equal(weights(model), before)


@forms(of=STEPS_WITHOUT_GRADIENTS)
@pytest.mark.parametrize(("bad", "closure"), [(float("inf"), False), (float("nan"), True)])
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_skip_step_leaves_everything_and_counts(case, form, bad, closure, at) -> None:
    model, optimizer, evaluate = one_bad_step(case, "skip_step", bad, form=form, closure=closure, at=at)
    before = weights(model)
    with eager(), pytest.warns(UserWarning, match="step skipped"):
        optimizer.step(evaluate) if closure or case.closure else optimizer.step()
    assert torch.equal(weights(model), before)
    assert gradcent.attached(optimizer).skipped_steps == 1
    assert all(each.grad is not None for each in model.parameters())  # they are the user's, and still there
    assert not bool(model.head.weight.grad.isfinite().all())


@cases(of=[*TORCH, SGDW], where=lambda case: not case.matrices_only and case.name not in ("LBFGS", "Rprop"))
def test_propagate_gives_what_the_plain_optimizer_would_see(case: Case) -> None:
    """The row with the bad number is lost, as it would be without GC; the other rows are right."""
    model, optimizer, _ = one_bad_step(case, "propagate", float("nan"))
    optimizer.step()
    hand = model_for(case)
    plain = case.make(hand.parameters())
    loss_of(hand).backward()
    equations.centralize_gradients(hand)
    hand.head.weight.grad[1] = float("nan")
    plain.step()
    assert torch.equal(model.head.weight.isnan(), hand.head.weight.isnan())
    assert torch.allclose(weights(model), weights(hand), equal_nan=True, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_no_bad_number_is_masked_by_the_operator(bad: float) -> None:
    gradient = torch.randn(4, 6)
    gradient[2, 3] = bad
    result = gradcent.centralize(gradient, gradcent.Layout.rows((4, 6)))
    assert not bool(result[2].isfinite().any())
    good = [0, 1, 3]
    assert torch.allclose(result[good], gradient[good] - gradient[good].mean(1, keepdim=True), atol=1e-6)


@pytest.mark.parametrize("policy", ["raise", "skip_step"])
def test_the_check_looks_at_every_gradient_also_sparse_and_uncentralized(policy: str) -> None:
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3))
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model, nonfinite=policy)
    model(torch.tensor([1, 2])).sum().backward()
    assert model[0].weight.grad.is_sparse
    before = weights(model)
    model[0].weight.grad._values()[0, 0] = float("nan")
    if policy == "raise":
        with pytest.raises(FloatingPointError, match=r"0\.weight"):
            optimizer.step()
    else:
        with pytest.warns(UserWarning, match="step skipped"):
            optimizer.step()
        assert gradcent.attached(optimizer).skipped_steps == 1
    assert torch.equal(weights(model), before)


def test_skipping_forgets_nothing_when_the_step_itself_fails() -> None:
    """Gradients that were hidden for a skipped step come back even if the optimizer raises."""
    model = nn.Linear(3, 2)

    class Fails(torch.optim.SGD):
        def step(self, closure=None):
            raise KeyError("own fault")

    optimizer = Fails(model.parameters(), lr=0.1)
    gradcent.attach(optimizer, model, nonfinite="skip_step")
    model(torch.ones(3)).sum().backward()
    model.weight.grad[0, 0] = float("nan")
    with pytest.raises(KeyError), pytest.warns(UserWarning, match="step skipped"):
        optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert model.weight.grad is not None
