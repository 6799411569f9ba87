"""The paper's theorems as properties, in float64, over random models of every kind of module (hypothesis)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import equations
import gradcent
from optimizer_cases import CASES, Case, cases, eager, flags

settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("quick")

SMALL = st.integers(2, 5)


@st.composite
def modules(draw) -> nn.Module:
    """Any module with weight vectors, of any size, in float64, with random weights."""
    kind = draw(
        st.sampled_from(["linear", "bilinear", "conv", "transposed", "attention", "recurrent", "cell"])
    )
    a, b, c = draw(SMALL), draw(SMALL), draw(SMALL)
    if kind == "linear":
        made: nn.Module = nn.Linear(a, b)
    elif kind == "bilinear":
        made = nn.Bilinear(a, b, c)
    elif kind in ("conv", "transposed"):
        rank, groups = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        size = tuple(draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
        family = {
            "conv": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
            "transposed": (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        }[kind]
        made = family[rank - 1](groups * a, groups * b, size, groups=groups)
    elif kind == "attention":
        made = nn.MultiheadAttention(
            2 * a, 2, kdim=draw(st.sampled_from([None, b])), add_bias_kv=draw(st.booleans())
        )
    elif kind == "recurrent":
        made = draw(st.sampled_from([nn.RNN, nn.LSTM, nn.GRU]))(a, b, num_layers=draw(st.integers(1, 2)))
    else:
        made = draw(st.sampled_from([nn.RNNCell, nn.LSTMCell, nn.GRUCell]))(a, b)
    maker = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    scale = 10.0 ** draw(st.integers(-3, 3))
    for parameter in made.parameters():
        parameter.data = scale * torch.randn(parameter.shape, generator=maker, dtype=torch.float64)
        parameter.grad = scale * torch.randn(parameter.shape, generator=maker, dtype=torch.float64) + scale
    return made


@given(modules())
def test_the_operator_is_the_projection_the_paper_says(model: nn.Module) -> None:
    """Eq. 1 and 2: Φ(g) = Pg with P² = P, 1ᵀPg = 0, ‖Pg‖ ≤ ‖g‖, and what is no weight vector is untouched."""
    plan = gradcent.explain(model, min_length=2)
    for parameter, find in equations.finders(model):
        gradient, layout = parameter.grad, plan.layout(parameter)
        if layout is None:
            assert not find(gradient)
            continue
        scale = float(gradient.abs().max())
        once = gradcent.centralize(gradient, layout)
        assert torch.allclose(once, equations.centralize(gradient, find), rtol=0, atol=1e-14 * scale)
        assert torch.allclose(gradcent.centralize(once, layout), once, rtol=0, atol=1e-15 * scale)
        for vector in find(once):
            assert abs(float(vector.sum())) <= 1e-13 * scale
        assert float(once.norm()) <= float(gradient.norm()) * (1 + 1e-15)


@given(modules(), st.floats(0.0, 2.0))
def test_the_form_with_decay_is_the_projection_of_g_plus_lambda_w(model: nn.Module, decay: float) -> None:
    """Section 3.4: what an optimizer adds λw to ends up as P(g + λw)."""
    plan = gradcent.explain(model, min_length=2)
    for parameter, find in equations.finders(model):
        layout = plan.layout(parameter)
        if layout is None:
            continue
        weight, gradient = parameter.detach(), parameter.grad
        given_over = gradcent.centralize(gradient, layout, weight=weight, decay=decay)
        want = equations.centralize(gradient + decay * weight, find)
        scale = float(gradient.abs().max() + decay * weight.abs().max())
        assert torch.allclose(given_over + decay * weight, want, rtol=0, atol=1e-13 * scale)


@given(modules())
def test_the_whole_gradient_at_once_is_each_tensor_by_itself(model: nn.Module) -> None:
    wanted = [equations.centralize(each.grad, find) for each, find in equations.finders(model)]
    gradcent.centralize_gradients_(model, min_length=2)
    for (each, _), want in zip(equations.finders(model), wanted, strict=True):
        assert torch.allclose(each.grad, want, rtol=1e-12, atol=1e-13 * float(want.abs().max() + 1))


@given(st.integers(0, 10_000), st.floats(-5, 5), st.floats(0, 0.3))
def test_theorem_4_1(seed: int, gamma: float, decay: float) -> None:
    """wᵗx − wᵗ(x + γ1) = −γ·1ᵀw⁰ at every step t: a shift of the input moves the output as at the start."""
    maker = torch.Generator().manual_seed(seed)
    layer = nn.Linear(6, 3, dtype=torch.float64)
    layer.weight.data = torch.randn(3, 6, generator=maker, dtype=torch.float64)
    at_start = layer.weight.detach().sum(1)
    optimizer = gradcent.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9, weight_decay=decay, model=layer)
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(4, 6, generator=maker, dtype=torch.float64)
        layer(x).sub(1.0).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            change = layer(x) - layer(x + gamma)
        assert torch.allclose(change, (-gamma * at_start).expand_as(change), rtol=0, atol=1e-11)


@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(1, 6))
def test_theorem_4_2(seed: int, length: int, rows: int) -> None:
    """The constrained loss is no less smooth: gradient and Hessian shrink under P, in the norms the paper uses."""
    maker = torch.Generator().manual_seed(seed)
    layout = gradcent.Layout.rows((rows, length))
    x = torch.randn(5, length, generator=maker, dtype=torch.float64)
    y = torch.randn(5, rows, generator=maker, dtype=torch.float64)
    w = torch.randn(rows, length, generator=maker, dtype=torch.float64, requires_grad=True)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(x @ weight.T) - y).square().sum()

    gradient = torch.autograd.grad(loss(w), w)[0]
    assert gradcent.centralize(gradient, layout).norm() <= gradient.norm() * (1 + 1e-14)
    hessian = torch.autograd.functional.hessian(loss, w.detach()).reshape(rows * length, rows * length)
    project = torch.stack(
        [
            gradcent.centralize(e.reshape(rows, length), layout).flatten()
            for e in torch.eye(rows * length).double()
        ]
    )
    inside = project @ hessian @ project
    for order in ("fro", 2):
        assert torch.linalg.matrix_norm(inside, order) <= torch.linalg.matrix_norm(hessian, order) * (
            1 + 1e-12
        )


def test_the_largest_value_may_grow_but_only_by_the_bound() -> None:
    """That the largest value shrinks is usual, not guaranteed: at most by the factor 2 − 2/M (design, section 6)."""
    for length in (2, 5, 50):
        row = -torch.ones(1, length, dtype=torch.float64)
        row[0, 0] = 1.0
        after = gradcent.centralize(row, gradcent.Layout.rows((1, length)))
        assert float(after.abs().max()) == pytest.approx(2 - 2 / length)


def drift(case: Case, at: str, steps: int, **options) -> float:
    """Train a tiny layer for long on fresh batches; return by how much the worst weight sum moved."""
    layer = nn.Linear(3, 2, bias=False, dtype=torch.float64 if case.float64 else torch.float32)
    optimizer = case.make(layer.parameters(), **options)
    case.attach(optimizer, layer, at=at)
    before = equations.sums(layer)
    batches = [torch.randn(2, 3, dtype=layer.weight.dtype) for _ in range(8)]
    target = torch.tensor([[1.0, -2.0]], dtype=layer.weight.dtype)
    weight = layer.weight
    start = weight.detach().clone()
    with eager():
        for step in range(steps):
            x = batches[step % 8]
            weight.grad = 2 * (x @ weight.detach().T - target).T @ x  # of the squared error, written out
            if case.closure:
                optimizer.step(lambda x=x: (x @ weight.detach().T - target).square().sum())
            else:
                optimizer.step()
    assert float((weight.detach() - start).abs().max()) > 1e-3
    return float((equations.sums(layer) - before).abs().max())


@pytest.mark.parametrize("form", ["loop", "foreach", "fused"])
def test_weight_sums_stay_for_ten_thousand_steps_of_sgdm(form: str) -> None:
    sgd = next(case for case in CASES if case.name == "SGD")
    assert drift(sgd, "gradient", 10_000, weight_decay=5e-4, lr=0.01, **flags(sgd, form)) < 1e-11


# Other people's optimizers run in float32, slower, and for fewer steps.
LONG = [case for case in CASES if case.float64 and case.name != "LBFGS"]


@cases(of=LONG)
def test_weight_sums_stay_for_ten_thousand_steps_at_the_update(case: Case) -> None:
    options = {} if case.decay == "none" else {"weight_decay": 0.01}
    assert drift(case, "update", 10_000, **options) < 1e-10


@cases(of=[case for case in CASES if case not in LONG])
def test_weight_sums_stay_at_the_update_of_the_others(case: Case) -> None:
    steps = 1_000 if case.name not in ("torchao.AdamW8bit", "LBFGS") else 100
    options = {} if case.decay == "none" else {"weight_decay": 0.01}
    assert drift(case, "update", steps, **options) < (1e-10 if case.float64 else 1e-4)


def test_without_gc_or_under_adam_at_the_gradient_the_sums_do_drift() -> None:
    """The control: the test above can fail."""
    adam = next(case for case in CASES if case.name == "Adam")
    assert drift(adam, "gradient", 500) > 1e-3


@pytest.mark.parametrize("kind", ["coupled, outside", "decoupled"])
def test_the_sums_shrink_as_the_design_says_where_decay_is_outside(kind: str) -> None:
    """SGDW: (1 − lr·λ)ᵗ; Pg + λw under momentum: the momentum recursion of the sum itself, near (1 − lr·λ/(1−β))ᵗ."""
    lr, decay, beta, steps = 0.01, 0.1, 0.9, 200
    layer = nn.Linear(3, 2, bias=False, dtype=torch.float64)
    nn.init.uniform_(layer.weight, 1.0, 2.0)
    if kind == "decoupled":
        optimizer = gradcent.optim.SGDW(
            layer.parameters(), lr, momentum=beta, weight_decay=decay, model=layer
        )
    else:
        optimizer = gradcent.optim.SGD(
            layer.parameters(), lr, momentum=beta, weight_decay=decay, model=layer, decay="decoupled"
        )
    before = equations.sums(layer)
    total, momentum = 1.0, 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.randn(4, 3, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        momentum = beta * momentum + decay * total
        total -= lr * (decay * total if kind == "decoupled" else momentum)
    assert torch.allclose(equations.sums(layer) / before, torch.full_like(before, total), rtol=1e-10)
