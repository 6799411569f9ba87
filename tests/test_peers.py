"""What other implementations get wrong, each as a test that gradcent passes. No test depends on their defects."""

from __future__ import annotations

import copy
import inspect
import math
import pickle

import pytest
import torch
from torch import nn

import equations
import gradcent
from gradcent import authors, explain


def one_step(model: nn.Module, optimizer, x: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()


def sums_move(model: nn.Module, optimizer, steps: int = 200) -> float:
    before = equations.sums(model)
    for step in range(steps):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()))
        optimizer.zero_grad()
        (model(x) - 1.0).square().mean().backward()
        optimizer.step()
    return float((equations.sums(model) - before).abs().max())


# --- the authors' code -------------------------------------------------------------------------------------------


def test_conv_only_means_convolutions_conv1d_included() -> None:
    """There "conv only" is ndim > 3."""
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Linear(4, 4))
    kinds = [
        entry.layout is not None for entry in explain(model, layers="conv").entries if "weight" in entry.name
    ]
    assert kinds == [True, True, False]
    optimizer = authors.SGD_GCC(model.parameters(), lr=0.1, model=model)
    assert gradcent.attached(optimizer).plan.layout(model[0].weight) is not None


@pytest.mark.parametrize(
    "make", [gradcent.optim.AdamW, gradcent.optim.SGDW, authors.AdamW_GCC, authors.SGDW_GCC]
)
def test_decoupled_decay_is_lr_times_lambda_in_every_tensor(make) -> None:
    """The authors' AdamW decays by the wrong amount; Ranger21's decay reaches one tensor per group."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Linear(4, 3), nn.Linear(3, 2)).double()
    optimizer = make(model.parameters(), lr=0.1, weight_decay=0.5, model=model)
    before = [each.detach().clone() for each in model.parameters()]
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    for each, old in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(each.detach(), old * (1 - 0.1 * 0.5))


def test_radam_in_its_warm_up_does_not_alias_the_momentum() -> None:
    model = nn.Linear(6, 3, bias=False).double()
    optimizer = gradcent.optim.RAdam(model.parameters(), lr=0.1, model=model)
    hand = copy.deepcopy(model)
    plain = torch.optim.RAdam(hand.parameters(), lr=0.1)
    for step in range(4):  # rectification begins at step 6
        x = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        one_step(model, optimizer, x)
        plain.zero_grad()
        hand(x).square().sum().backward()
        equations.centralize_gradients(hand)
        plain.step()
        places = {
            model.weight.data_ptr(),
            model.weight.grad.data_ptr(),
            optimizer.state[model.weight]["exp_avg"].data_ptr(),
        }
        assert len(places) == 3
    torch.testing.assert_close(model.weight, hand.weight)


def test_options_survive_pickle_and_deepcopy() -> None:
    model = nn.Linear(6, 3)
    optimizer = gradcent.optim.Adam(model.parameters(), lr=0.1, model=model, at="update", layers="linear")
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert gradcent.attached(twin).options.at == "update"
        assert gradcent.attached(twin).plan.totals() == gradcent.attached(optimizer).plan.totals()


# --- pytorch-optimizer -------------------------------------------------------------------------------------------


def theirs(name: str):
    package = pytest.importorskip("pytorch_optimizer")
    return getattr(package, name)


@pytest.mark.parametrize("name", ["AdaBelief", "Lamb", "MADGRAD", "Yogi"])
def test_gc_is_never_a_flag_that_is_ignored(name: str) -> None:
    """There use_gc=True changes nothing in most optimizers. Here the optimizer steps on Φ(g), as if done by hand."""
    trained = {}
    for kind in ("plain", "by hand", "attached"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Linear(6, 3, bias=False)
        optimizer = theirs(name)(model.parameters(), lr=0.01)
        if kind == "attached":
            gradcent.attach(optimizer, model)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            if kind == "by hand":
                equations.centralize_gradients(model)
            optimizer.step()
        trained[kind] = model.weight.detach().clone()
    torch.testing.assert_close(trained["attached"], trained["by hand"], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(trained["attached"], trained["plain"], atol=1e-4)


def test_ranger_with_coupled_decay_becomes_the_papers_form() -> None:
    """Ranger's own GC gives P(g) + λw; with it off, attach gives P(g + λw)."""
    ranger = theirs("Ranger")
    seen = {}
    for name in ("hand", "ours"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Linear(6, 3, bias=False)
        optimizer = ranger(model.parameters(), lr=0.1, weight_decay=0.5, weight_decouple=False, use_gc=False)
        if name == "ours":
            gradcent.attach(optimizer, model)
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
        model(x).square().sum().backward()
        if name == "hand":
            equations.centralize_gradients(model, 0.5)
        optimizer.step()
        seen[name] = optimizer.state[model.weight]["exp_avg"].sum(1)
    torch.testing.assert_close(seen["ours"], seen["hand"])
    assert float(seen["ours"].abs().max()) < 1e-5  # P(g + λw) has no mean


def coupled_classes() -> list[str]:
    try:
        import pytorch_optimizer
    except ImportError:
        return []
    made = []
    for name in sorted(dir(pytorch_optimizer)):
        kind = getattr(pytorch_optimizer, name)
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer):
            parameters = inspect.signature(kind.__init__).parameters
            if "weight_decouple" in parameters and "weight_decay" in parameters:
                made.append(name)
    return made


@pytest.mark.parametrize("name", coupled_classes())
@pytest.mark.filterwarnings("ignore")
def test_what_is_called_coupled_really_adds_decay_to_the_gradient(name: str) -> None:
    """If it does, a step with λ equals a step without on the gradient g + λw. Else P(g + λw) would be wrong."""
    gradient = torch.linspace(-1, 2, 18).reshape(3, 6).sin()
    ends = []
    for inside in (False, True):
        weight = nn.Parameter(torch.linspace(1, 3, 18).reshape(3, 6))
        try:
            more = {"use_gc": False} if name == "Ranger" else {}  # its own GC is on unless told otherwise
            decay = 0.0 if inside else 0.3
            optimizer = theirs(name)([weight], lr=0.01, weight_decay=decay, weight_decouple=False, **more)
        except (TypeError, ValueError, RuntimeError) as why:
            pytest.skip(f"needs other arguments: {why}")
        model_kind = gradcent.decay.decay_kind(optimizer, optimizer.param_groups[0])
        if not inside and model_kind != "coupled":
            return  # then λw stays out of the projection, and nothing wrong is handed over
        try:
            for _ in range(2):
                weight.grad = gradient + 0.3 * weight.detach() if inside else gradient.clone()
                optimizer.step()
        except Exception as why:
            pytest.skip(f"does not step by itself: {why}")
        ends.append(weight.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-4, atol=1e-5)


def test_complex_biases_are_left_alone() -> None:
    model = nn.Linear(4, 3, dtype=torch.complex128)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, model=model)
    before = model.bias.detach().clone()
    model.bias.grad = torch.full_like(model.bias, 1 + 2j)
    model.weight.grad = torch.randn_like(model.weight)
    optimizer.step()
    torch.testing.assert_close(before - model.bias.detach(), torch.full_like(before, 1 + 2j))


# --- optax, TensorFlow, torchzero, MindSpore, snippets ---------------------------------------------------------------


def test_weights_stored_as_in_out_are_centralized_over_the_inputs() -> None:
    """optax averages a Flax kernel (in, out) over its outputs, and its unit test fixes the wrong side."""
    kernel = torch.arange(12.0).reshape(4, 3)
    result = gradcent.centralize(kernel, gradcent.Layout.columns(kernel.shape))
    torch.testing.assert_close(result.sum(0), torch.zeros(3))
    assert float(result.sum(1).abs().max()) > 1.0


@pytest.mark.parametrize("how", ["step", "closure", "scheduler first", "scaler"])
def test_gc_is_applied_by_whatever_calls_the_step(how: str) -> None:
    """gradient-centralization-tf overrides a method that `fit` never calls."""
    model = nn.Linear(6, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if how == "scheduler first":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    gradcent.attach(optimizer, model)
    scaler = torch.amp.GradScaler("cpu", enabled=how == "scaler")

    def closure():
        optimizer.zero_grad()
        loss = (model(torch.ones(2, 6).double()) - 3).square().sum()
        scaler.scale(loss).backward()
        return loss.detach()

    if how == "closure":
        optimizer.step(closure)
    else:
        closure()
        scaler.step(optimizer)
    momentum = optimizer.state[model.weight]["momentum_buffer"]
    assert float(momentum.sum(1).abs().max()) < 1e-12
    assert float(optimizer.state[model.bias]["momentum_buffer"].abs().min()) > 0.1


def test_off_means_off() -> None:
    """Ranger with use_gc=False still centralizes."""
    model = nn.Linear(6, 3, bias=False)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, centralize=False)
    gradient = torch.randn(3, 6)
    before = model.weight.detach().clone()
    model.weight.grad = gradient.clone()
    optimizer.step()
    assert torch.equal(model.weight, before - gradient)


def test_no_tensor_decides_for_another_and_vectors_of_one_element_are_not_frozen() -> None:
    """torchzero's default lets the first tensor's rank decide for all, its documented use hits biases."""
    model = nn.ModuleList([nn.LayerNorm(4), nn.Conv2d(2, 3, 3), nn.Linear(4, 3), nn.Linear(1, 3)])
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    gradcent.centralize_gradients_(model)
    zeroed = {name for name, each in model.named_parameters() if float(each.grad.abs().max()) == 0}
    assert zeroed == {"1.weight", "2.weight"}


@pytest.mark.parametrize("width", [15, 16, 17, 32, 33])
def test_no_width_is_skipped(width: int) -> None:
    """MindSpore skips silently where shape[1] % 16 is not 0."""
    model = nn.Linear(width, 3)
    model.weight.grad = torch.ones(3, width)
    gradcent.centralize_gradients_(model)
    assert float(model.weight.grad.abs().max()) == 0


def test_biases_of_one_element_train() -> None:
    """Hook snippets without a rank test: one-element biases never train."""
    model = nn.Linear(6, 1)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, model=model)
    before = model.bias.detach().clone()
    one_step(model, optimizer, torch.ones(2, 6))
    assert not torch.equal(model.bias, before)


def test_a_pre_hook_snippet_is_lost_under_a_closure_and_attach_is_not() -> None:
    def train(kind: str) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Linear(6, 3, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        if kind == "snippet":

            def centralize(optimizer, args, kwargs):
                if model.weight.grad is not None:
                    model.weight.grad -= model.weight.grad.mean(1, keepdim=True)

            optimizer.register_step_pre_hook(centralize)
        elif kind == "ours":
            gradcent.attach(optimizer, model)

        def closure():
            optimizer.zero_grad()
            loss = (model(torch.ones(2, 6)) - 3).square().sum()
            loss.backward()
            return loss.detach()

        optimizer.step(closure)
        return optimizer.state[model.weight]["momentum_buffer"].sum(1).abs().max()

    assert float(train("snippet")) > 1.0
    assert float(train("ours")) < 1e-4


# --- layer by layer --------------------------------------------------------------------------------------------------


def rule_of_the_others(gradient: torch.Tensor) -> torch.Tensor:
    return (
        gradient - gradient.mean(tuple(range(1, gradient.ndim)), keepdim=True)
        if gradient.ndim > 1
        else gradient
    )


SAME = {
    "linear": lambda: nn.Linear(6, 4),
    "conv1d": lambda: nn.Conv1d(4, 6, 3),
    "conv2d grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "depthwise 3x3": lambda: nn.Conv2d(4, 4, 3, groups=4),
    "lstm": lambda: nn.LSTM(3, 4),
    "fused qkv": lambda: nn.MultiheadAttention(6, 2),
}


@pytest.mark.parametrize("kind", SAME)
def test_where_the_shared_rule_is_right_we_agree(kind: str) -> None:
    model = SAME[kind]()
    for each in model.parameters():
        each.grad = torch.randn_like(each)
    wanted = [rule_of_the_others(each.grad) for each in model.parameters()]
    gradcent.centralize_gradients_(model)
    for each, want in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(each.grad, want, rtol=1e-5, atol=1e-6)


def test_where_the_shared_rule_has_the_wrong_vectors_we_have_the_right_ones() -> None:
    model = nn.ConvTranspose2d(4, 6, 3, groups=2)
    model.weight.grad = torch.randn_like(model.weight)
    want = equations.centralize(model.weight.grad, lambda t: equations.vectors(model, "weight", t))
    wrong = rule_of_the_others(model.weight.grad)
    gradcent.centralize_gradients_(model)
    torch.testing.assert_close(model.weight.grad.double(), want, rtol=0, atol=1e-6)
    assert not torch.allclose(model.weight.grad, wrong, atol=1e-2)


def test_what_the_shared_rule_freezes_or_alters_is_left_alone() -> None:
    class Rest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scalar_in = nn.Linear(1, 4, bias=False)
            self.depthwise = nn.Conv2d(4, 4, 1, groups=4, bias=False)
            self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4, bias=False))
            self.lora_b = nn.Linear(1, 4, bias=False)
            self.norm = nn.LayerNorm([4, 5])
            self.pos_embed = nn.Parameter(torch.zeros(1, 5, 4))
            self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, bias=False)

    model = Rest()
    left = {entry.name for entry in explain(model).entries if entry.layout is None}
    assert left == {
        "scalar_in.weight",
        "depthwise.weight",
        "normed.parametrizations.weight.original0",
        "lora_b.weight",
        "norm.weight",
        "norm.bias",
        "pos_embed",
        "cls_token",
        "attention.bias_k",
        "attention.bias_v",
    }


def test_flat_parameters_are_refused_not_skipped() -> None:
    model = nn.Linear(4, 3)

    class FlatParameter(nn.Parameter):
        pass

    flat = FlatParameter(torch.zeros(15))
    with pytest.raises(TypeError, match="attach_to_gradients"):
        gradcent.attach(torch.optim.SGD([flat], lr=0.1), model)


# --- the figures -----------------------------------------------------------------------------------------------------


def test_sums_of_weight_vectors_over_two_hundred_steps() -> None:
    """peers.md: SGDM with P(g + λw) 6e-7; Adam at the gradient 2.13; Adam at the update 2e-7; SGDM without GC 0.66."""

    def net() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def drift(name: str, at: str | None, **options) -> float:
        model = net()
        optimizer = getattr(torch.optim, name)(model.parameters(), **options)
        if at:
            gradcent.attach(optimizer, model, at=at)
        return sums_move(model, optimizer)

    sgd = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    assert drift("SGD", "gradient", **sgd) < 1e-5
    assert drift("SGD", None, **sgd) > 0.1
    assert drift("Adam", "update", lr=0.01) < 1e-5
    assert drift("Adam", "gradient", lr=0.01) > 0.1


def test_clipping_comes_before_centralizing() -> None:
    """The author: clip, then GC. Frameworks clip before `step`, so that is what happens."""
    pair = []
    for by_hand in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if not by_hand:
            gradcent.attach(optimizer, model)
        (10 * model(torch.ones(4, 6))).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert float(norm) > 1.0
        if by_hand:
            equations.centralize_gradients(model)
            total = math.sqrt(sum(float(each.grad.square().sum()) for each in model.parameters()))
            assert total < 1.0  # clipped before: what GC takes away is not given back
        optimizer.step()
        pair.append(model.weight.detach())
    torch.testing.assert_close(*pair)
