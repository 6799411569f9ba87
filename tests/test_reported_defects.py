"""Defects that were reported, each as the user's code that showed it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent
from gradcent.plan import ReasonCode
from optimizer_cases import Homemade


def linear(inputs: int = 6, outputs: int = 4) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(inputs, outputs, bias=False).double()


def batch(rows: int = 8, inputs: int = 6) -> Tensor:
    return torch.randn(rows, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def backward(model: nn.Module, x: Tensor) -> None:
    model.zero_grad()
    (model(x) - 1).square().sum().backward()


def without_row_mean(tensor: Tensor) -> Tensor:
    return tensor - tensor.mean(1, keepdim=True)


# --- a subclass with its own step ------------------------------------------------------------------------------------


class DecoupledSGDW(torch.optim.SGD):
    """As composer.optim.DecoupledSGDW: a subclass of SGD that decays as AdamW does."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] / group["initial_lr"] * group["weight_decay"])
                param.sub_(group["lr"] * param.grad)


class AdamWFromAdam(torch.optim.Adam):
    """AdamW written as a subclass of Adam; the param groups still say decoupled_weight_decay=False."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        decays = [group["weight_decay"] for group in self.param_groups]
        for group in self.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] * group["weight_decay"])
            group["weight_decay"] = 0.0
        loss = super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return loss


class ClipInStep(torch.optim.SGD):
    """As in Mask2Former and OneFormer: clips, then calls torch's step."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([param for group in self.param_groups for param in group["params"]], 0.01)
        return super().step(closure)


def subclass(cls: type, model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    optimizer = cls(model.parameters(), lr=0.1, weight_decay=0.05)
    optimizer.param_groups[0]["initial_lr"] = 0.1
    return gradcent.attach(optimizer, model, **options)


@pytest.mark.parametrize("cls", [DecoupledSGDW, AdamWFromAdam, ClipInStep])
def test_the_decay_of_a_subclass_with_its_own_step_is_asked_for(cls: type) -> None:
    model = linear()
    with pytest.raises(ValueError, match=f"does not know how {cls.__name__} applies weight_decay"):
        subclass(cls, model)
    gradcent.attach(cls(model.parameters(), lr=0.1), model)  # without decay there is nothing to ask


def test_a_decoupled_subclass_of_sgd_gets_the_centralized_gradient() -> None:
    x, model, reference = batch(), linear(), linear()
    optimizer = subclass(DecoupledSGDW, model, decay="decoupled")
    for _ in range(5):
        backward(model, x)
        backward(reference, x)
        optimizer.step()
        with torch.no_grad():
            reference.weight.mul_(1 - 0.05).sub_(0.1 * without_row_mean(reference.weight.grad))
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-12)


def test_adamw_as_a_subclass_of_adam_equals_torchs_adamw() -> None:
    x, model, reference = batch(), linear(), linear()
    optimizer = subclass(AdamWFromAdam, model, decay="decoupled")
    truth = torch.optim.AdamW(reference.parameters(), lr=0.1, weight_decay=0.05)
    for _ in range(5):
        backward(model, x)
        backward(reference, x)
        optimizer.step()
        reference.weight.grad = without_row_mean(reference.weight.grad)
        truth.step()
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-9)


def test_a_step_that_clips_and_calls_its_parent_keeps_the_weight_sums() -> None:
    """What torch's step receives must be centered after the clipping: P(cg + λw), not cP(g + λw) + (1 − c)λw."""
    x, model = batch(), linear()
    optimizer = subclass(ClipInStep, model, decay="coupled")
    before, start = model.weight.detach().sum(1), model.weight.detach().clone()
    for _ in range(50):
        backward(model, x)
        optimizer.step()
    torch.testing.assert_close(model.weight.detach().sum(1), before, rtol=0, atol=1e-12)
    assert float((model.weight.detach() - start).abs().max()) > 1e-3


def test_a_subclass_that_keeps_torchs_step_decays_as_its_parent() -> None:
    class Renamed(torch.optim.SGD):
        """Only other defaults."""

    model = linear()
    optimizer = subclass(Renamed, model)
    before = model.weight.detach().sum(1)
    for _ in range(5):
        backward(model, batch())
        optimizer.step()
    torch.testing.assert_close(model.weight.detach().sum(1), before, rtol=0, atol=1e-12)


# --- attach is all or nothing ----------------------------------------------------------------------------------------


def with_gradient_clipping(optimizer: type) -> type:
    """As detectron2's solver does: `super(type(self), self)` names the wrong class once the class is exchanged."""

    def step(self: Any, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                nn.utils.clip_grad_norm_(param, 1.0)
        super(type(self), self).step(closure)

    return type(optimizer.__name__ + "WithGradientClip", (optimizer,), {"step": step})


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_detectron2s_clipping_optimizer_steps(at: Any) -> None:
    x, model, reference = batch(), linear(), linear()
    cls = with_gradient_clipping(torch.optim.SGD)
    optimizer = gradcent.attach(cls(model.parameters(), lr=0.1, momentum=0.9), model, at=at)
    truth = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        backward(model, x)
        backward(reference, x)
        optimizer.step()
        if at == "gradient":
            reference.weight.grad = without_row_mean(reference.weight.grad)
        nn.utils.clip_grad_norm_(reference.weight, 1.0)
        before = reference.weight.detach().mean(1, keepdim=True)
        truth.step()
        if at == "update":
            with torch.no_grad():
                reference.weight += before - reference.weight.mean(1, keepdim=True)
    torch.testing.assert_close(model.weight, reference.weight, rtol=0, atol=1e-12)
    gradcent.detach(optimizer)
    assert type(optimizer) is cls
    optimizer.step()


class DPOptimizer(torch.optim.Optimizer):
    """As opacus.optimizers.DPOptimizer: wraps an optimizer and does not call Optimizer.__init__."""

    def __init__(self, optimizer: torch.optim.Optimizer, name: str = "original_optimizer") -> None:
        setattr(self, name, optimizer)
        self.wrapped = name

    @property
    def inner(self) -> torch.optim.Optimizer:
        return getattr(self, self.wrapped)

    param_groups = property(lambda self: self.inner.param_groups)
    state = property(lambda self: self.inner.state)
    defaults = property(lambda self: self.inner.defaults)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@pytest.mark.parametrize(
    ("name", "message"), [("original_optimizer", "attach to that one: "), ("_hidden", "no step hooks")]
)
def test_a_wrapper_without_hooks_is_refused_and_left_as_it_was(name: str, message: str) -> None:
    model = linear()
    one, other = (DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), name) for _ in range(2))
    step = DPOptimizer.step
    with pytest.raises(TypeError, match=message):
        gradcent.attach(one, model)
    assert gradcent.attached(one) is None
    assert type(one) is DPOptimizer
    assert DPOptimizer.step is step
    backward(model, batch())
    other.step()
    one.step()
    gradcent.attach(one.inner, model)
    before = model.weight.detach().sum(1)
    one.step()
    torch.testing.assert_close(model.weight.detach().sum(1), before)


def test_an_attach_that_fails_late_is_undone() -> None:
    """Under `-W error` the remark about momentum is an exception."""

    class Plain(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    model, calls = nn.Sequential(linear(), linear(4, 3)), []
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "centralize": False}]
    optimizer = Plain(groups, lr=0.1, momentum=0.9)
    optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    backward(model, batch())
    optimizer.step()
    attributes, step, once = dict(optimizer.__dict__), Plain.__dict__["step"], len(calls)
    with pytest.raises(UserWarning, match=r"momentum of 0\.weight was accumulated without GC") as failed:
        gradcent.attach(optimizer, model)
    assert type(optimizer) is Plain
    assert Plain.__dict__["step"] is step
    assert optimizer.__dict__ == attributes
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert [group.get("centralize") for group in optimizer.param_groups] == [None, False]
    assert gradcent.attached(optimizer) is None
    before = model[0].weight.detach().sum(1)
    optimizer.step()
    scheduler.step()
    assert float((model[0].weight.detach().sum(1) - before).abs().max()) > 1e-3
    assert len(calls) == 2 * once  # torch calls the hook in the step and in its parent's
    assert failed.tb is not None  # it refers to the attachment, which must not count as one
    gradcent.attach_to_gradients(model).remove()


def test_swapped_arguments_get_a_hint() -> None:
    model = linear()
    with pytest.raises(TypeError, match=r"swapped: call gradcent\.attach\(optimizer, model\)"):
        gradcent.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_attach_beside_attach_to_gradients_warns() -> None:
    model = linear()
    handles = gradcent.attach_to_gradients(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=r"attach_to_gradients centralizes .* already \(weight\)"):
        gradcent.attach(optimizer, model)
    handles.remove()
    with pytest.warns(UserWarning, match="attach centralizes weight already"):
        handles = gradcent.attach_to_gradients(model)
    handles.remove()
    _kept = gradcent.attached(optimizer)
    gradcent.detach(optimizer)
    gradcent.attach_to_gradients(model).remove()
    gradcent.attach(optimizer, model)


def test_deepspeeds_optimizers_used_on_their_own_are_accepted() -> None:
    """Classes of deepspeed.ops hold the model's parameters unless ZeRO flattened them."""

    class DeepSpeedCPUAdam(torch.optim.Optimizer):
        def __init__(self, params: Any, weight_decay: float, adamw_mode: bool) -> None:
            super().__init__(params, {"weight_decay": weight_decay})
            self.adam_w_mode = adamw_mode

    DeepSpeedCPUAdam.__module__ = "deepspeed.ops.adam.cpu_adam"
    for adamw_mode, kind in ((True, "decoupled"), (False, "coupled")):
        model = linear()
        optimizer = DeepSpeedCPUAdam(model.parameters(), 0.1, adamw_mode)
        gradcent.attach(optimizer, model)
        assert gradcent.decay.decay_kind(optimizer, optimizer.param_groups[0]) == kind
    flat = nn.Parameter(torch.zeros(24))
    with pytest.raises(TypeError, match="flattened pieces"):
        gradcent.attach(DeepSpeedCPUAdam([flat], 0.1, True), model)


# --- gradients and weights that are views, or other tensors than before ----------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "reference", "foreach", "native"])
@pytest.mark.parametrize("way", ["centralize_gradients_", "hooks"])
def test_a_gradient_that_is_a_strided_slice_is_centralized_in_its_buffer(kernel: str, way: str) -> None:
    """Rows padded to 8 elements, as flat gradient buffers have them."""
    if kernel == "native" and not gradcent.kernels.native.available():
        pytest.skip(gradcent.kernels.native.reason())
    model = linear(6, 5)
    buffer = torch.randn(5, 8, dtype=torch.float64)
    before = buffer.clone()
    model.weight.grad = buffer[:, :6]
    if way == "hooks":
        optimizer = DecoupledSGDW(model.parameters(), lr=0.0)
        optimizer.param_groups[0]["initial_lr"] = 1.0
        gradcent.attach(optimizer, model, kernel=kernel).step()
    else:
        gradcent.centralize_gradients_(model, kernel=kernel)
    assert model.weight.grad.data_ptr() == buffer.data_ptr()
    torch.testing.assert_close(buffer[:, :6], without_row_mean(before[:, :6]))
    assert torch.equal(buffer[:, 6:], before[:, 6:])


@pytest.mark.parametrize(
    ("size", "stride", "shared"),
    [
        ((5, 6), (8, 1), False),
        ((5, 6), (0, 1), True),
        ((1, 6), (0, 1), False),
        ((5, 6), (3, 1), True),
        ((3, 2), (1, 3), False),
        ((4, 3), (2, 3), True),
        ((2, 3), (2, 1), True),
        ((2, 3, 4), (30, 1, 5), False),
        ((0, 3), (0, 0), False),
    ],
)
def test_shared_elements_are_found(size: tuple[int, ...], stride: tuple[int, ...], shared: bool) -> None:
    from gradcent.operator import has_shared_elements

    view = torch.arange(200.0).as_strided(size, stride)
    assert has_shared_elements(view) is shared
    assert shared is (len(set(view.flatten().tolist())) < view.numel())


# --- LBFGS, vmap -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad_call", [1, 3])
@pytest.mark.parametrize("cls", [torch.optim.LBFGS, torch.optim.SGD])
def test_a_nonfinite_gradient_in_a_later_closure_call_does_not_claim_unchanged_weights(
    cls: type, bad_call: int
) -> None:
    model, x, calls = linear(), batch(), []
    options = {"max_iter": 5} if cls is torch.optim.LBFGS else {}
    optimizer = gradcent.attach(cls(model.parameters(), lr=0.1, **options), model, nonfinite="raise")

    def closure() -> Tensor:
        calls.append(1)
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        if len(calls) == bad_call:
            model.weight.grad[0, 0] = float("nan")
        return loss.detach()

    later = cls is torch.optim.LBFGS and bad_call == 3
    while True:
        before = model.weight.detach().clone()
        try:
            optimizer.step(closure)
        except FloatingPointError as error:
            message = str(error)
            break
    assert ("no parameter was changed" in message) is torch.equal(before, model.weight)
    assert ("call 3 of the closure" in message) is later


@pytest.mark.parametrize(
    "options", [{}, {"lr": 0.01}, {"tolerance_grad": 1e-6}, {"line_search_fn": "strong_wolfe"}], ids=str
)
def test_lbfgs_that_maximizes_reaches_inf_as_torchs_does(options: dict[str, Any]) -> None:
    """PyTorch's test_optim: the loss of the last step is larger than the first, and nan is not."""
    if "maximize" not in torch.optim.LBFGS.__init__.__annotations__:
        pytest.skip(f"torch {torch.__version__} has no LBFGS(maximize=True)")
    losses = []
    for attached in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(5, 10)
        optimizer = torch.optim.LBFGS(model.parameters(), maximize=True, **options)
        if attached:
            gradcent.attach(optimizer, model)
        x = torch.randn(5)

        def closure(model: Any = model, optimizer: Any = optimizer, x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            return loss

        for _ in range(20):
            optimizer.step(closure)
        losses.append(float(closure().detach()))
    assert losses == [float("inf")] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_centralize_under_vmap(dtype: torch.dtype) -> None:
    """Per-sample gradients, as torch.func's users compute them."""
    layouts = [gradcent.Layout.rows((4, 5)), gradcent.Layout.columns((4, 5))]
    batched, weight = torch.randn(3, 4, 5).to(dtype), torch.randn(4, 5).to(dtype)
    for layout in layouts:
        per_sample = torch.func.vmap(lambda g, layout=layout: gradcent.centralize(g, layout))(batched)
        expected = torch.stack([gradcent.centralize(g, layout) for g in batched])
        torch.testing.assert_close(per_sample, expected)
        with_decay = torch.func.vmap(
            lambda g, layout=layout: gradcent.centralize(g, layout, weight=weight, decay=0.1)
        )(batched)
        expected = torch.stack([gradcent.centralize(g, layout, weight=weight, decay=0.1) for g in batched])
        torch.testing.assert_close(with_decay, expected)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, DecoupledSGDW])
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_a_weight_replaced_by_another_shape_gets_another_layout(kind: Any, at: Any) -> None:
    """Pruning and growing replace `p.data`; the new shape may have as many elements as the old one."""
    model = linear(6, 4)
    optimizer = kind(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["initial_lr"] = 1.0
    gradcent.attach(optimizer, model, at=at)
    backward(model, batch())
    optimizer.step()
    for inputs, outputs in ((4, 6), (6, 3)):
        optimizer.zero_grad()
        optimizer.state.clear()
        model.weight.data = torch.randn(outputs, inputs, dtype=torch.float64)
        model.in_features, model.out_features = inputs, outputs
        for _ in range(2):
            before = model.weight.detach().sum(1)
            backward(model, batch(3, inputs))
            optimizer.step()
            if kind is torch.optim.RMSprop and at == "gradient":
                continue  # its update of a centered gradient is not centered
            torch.testing.assert_close(model.weight.detach().sum(1), before, rtol=0, atol=1e-12)
        assert gradcent.attached(optimizer).plan.layout(model.weight) == gradcent.Layout.rows(
            (outputs, inputs)
        )


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, DecoupledSGDW])
def test_a_weight_whose_new_shape_has_no_layout_is_named_before_any_group_steps(kind: Any) -> None:
    model = nn.Sequential(linear(6, 6), linear(6, 4))
    groups = [{"params": [layer.weight]} for layer in model]
    optimizer = kind(groups, lr=0.1)
    for group in optimizer.param_groups:
        group["initial_lr"] = 1.0
    gradcent.attach(optimizer, model)
    model[1].weight.data = model[1].weight.data[:3].clone()  # out_features still says 4
    backward(model, batch())
    before = model[0].weight.detach().clone()
    message = r"1\.weight had shape \(4, 6\) .* \(3, 6\) now, for which there is no layout \(.*packed or factored\);"
    with pytest.raises(RuntimeError, match=message):
        optimizer.step()
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop, Homemade])
def test_the_shape_of_a_weight_without_gradient_does_not_matter(kind: Any) -> None:
    model = nn.Sequential(linear(6, 6), linear(6, 4))
    optimizer = gradcent.attach(kind(model.parameters(), lr=0.1), model)
    model[1].weight.data = model[1].weight.data[:3].clone()
    backward(model, batch())
    model[1].weight.grad = None
    before, sums = model[0].weight.detach().clone(), model[0].weight.detach().sum(1)
    for _ in range(2):
        optimizer.step()
    assert not torch.equal(model[0].weight, before)
    if kind is not torch.optim.RMSprop:
        torch.testing.assert_close(model[0].weight.detach().sum(1), sums, rtol=0, atol=1e-12)


@pytest.mark.parametrize("why", ["ready plan", "not in the model"])
def test_a_new_shape_that_cannot_be_planned_is_named(why: str) -> None:
    model = nn.Sequential(linear(6, 6), linear(6, 4))
    given = {"plan": gradcent.explain(model)} if why == "ready plan" else {"model": model}
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), **given)
    weight = model[1].weight
    if why == "not in the model":
        model[1] = linear(6, 3)
    weight.data = torch.randn(3, 6, dtype=torch.float64)
    weight.grad = torch.randn(3, 6, dtype=torch.float64)
    with pytest.raises(
        RuntimeError, match=r"1\.weight had .* \(3, 6\) now, for which there is no layout; no param"
    ):
        optimizer.step()


# --- which parameters are planned ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("at", ["gradient", "update"])
def test_an_adapter_of_rank_r_reaches_rank_r(at: Any) -> None:
    """GC on LoRA's B, which starts at 0, keeps B·1 = 0: the adapter then has rank r − 1."""
    peft = pytest.importorskip("peft")
    smallest = {}
    for overrides in (None, {"*lora_B*": "rows"}):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=3, target_modules=["0"], lora_alpha=3)
        model = peft.get_peft_model(nn.Sequential(nn.Linear(16, 16, bias=False)), config)
        target, x = torch.randn(16, 3) @ torch.randn(3, 16) * 0.3, torch.randn(64, 16)
        named = dict(model.named_parameters())
        base = next(param for name, param in named.items() if "base_layer" in name).detach()
        y = x @ (base + target).t()
        trained = [param for param in named.values() if param.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.02, momentum=0.9)
        gradcent.attach(optimizer, model, at=at, overrides=overrides)
        for _ in range(150):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
        a, b = (
            next(param.detach() for name, param in named.items() if key in name)
            for key in ("lora_A", "lora_B")
        )
        singular = torch.linalg.svdvals(b.double() @ a.double())
        smallest[overrides is None] = float(singular[2] / singular[0])
    assert smallest[True] > 1e-2
    assert smallest[False] < 1e-5


def test_lora_b_is_left_alone_with_its_reason_as_data() -> None:
    class Adapter(nn.Module):
        """As torchtune's: two Linear layers."""

        def __init__(self) -> None:
            super().__init__()
            self.lora_a, self.lora_b = nn.Linear(8, 4, bias=False), nn.Linear(4, 8, bias=False)

    model = nn.Sequential(Adapter(), nn.Linear(8, 4, bias=False))
    entries = {entry.name: entry for entry in gradcent.explain(model).entries}
    assert entries["0.lora_a.weight"].centralized
    assert entries["1.weight"].centralized
    assert entries["0.lora_b.weight"].why.code is ReasonCode.LORA_B
    assert "one rank" in entries["0.lora_b.weight"].reason
    assert "1 LoRA's B" in gradcent.explain(model).summary()


@pytest.mark.parametrize(
    "way", ["attach", "drop-in", "attach_to_gradients", "centralize_gradients_", "explain"]
)
def test_short_vectors_are_left_alone_unless_min_length_says_otherwise(way: str) -> None:
    """Length 2 keeps one direction of two, as in Swin-v2's position MLP and in PINNs."""

    def planned(**options: Any) -> tuple[bool, bool]:
        model = nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 3)).double()
        if way == "explain":
            plan = gradcent.explain(model, **options)
            return tuple(plan.layout(layer.weight) is not None for layer in model)  # type: ignore[return-value]
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        if way == "attach":
            gradcent.attach(optimizer, model, **options)
        elif way == "drop-in":
            optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, model=model, **options)
        elif way == "attach_to_gradients":
            gradcent.attach_to_gradients(model, **options)
        before = [layer.weight.detach().sum(1) for layer in model]
        model(torch.ones(5, 2, dtype=torch.float64)).square().sum().backward()
        if way == "centralize_gradients_":
            gradcent.centralize_gradients_(model, **options)
        optimizer.step()
        pairs = zip(model, before, strict=True)
        return tuple(torch.allclose(layer.weight.detach().sum(1), sums) for layer, sums in pairs)  # type: ignore[return-value]

    assert planned() == (False, True)
    assert planned(min_length=2) == (True, True)
    assert planned(min_length=3) == (False, True)
    if way != "centralize_gradients_":
        assert planned(overrides={"0.weight": "rows"}, min_length=5) == (True, False)
    with pytest.raises(ValueError, match="min_length must be an integer of 2 or more, got 1"):
        planned(min_length=1)


def test_conv1d_outside_transformers_is_conv1d() -> None:
    """Copies of GPT-2's Conv1D (weight (in, out), attribute nf) in nanoGPT-era code."""

    class Conv1D(nn.Module):
        def __init__(self, nf: int, nx: int) -> None:
            super().__init__()
            self.nf = nf
            self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))

    class Unrelated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4))

    Unrelated.__name__ = "Conv1D"
    plan = gradcent.explain([Conv1D(4, 6), Unrelated()])
    assert [entry.layout for entry in plan.entries] == [gradcent.Layout.columns((6, 4)), None, None]
    assert plan.entries[2].why.code is ReasonCode.UNKNOWN_MODULE


def test_adagrads_forms_agree_in_float16_where_torchs_agree() -> None:
    """PyTorch's test_optim: on vectors of length 2 the centralized gradients were too small to square."""
    ends = []
    for fused in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 1), nn.Sigmoid()).half()
        x = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], dtype=torch.half).reshape(3, 2)
        optimizer = gradcent.attach(torch.optim.Adagrad(model.parameters(), lr=0.1, fused=fused), model)
        for step in range(7):
            optimizer.zero_grad()
            if step != 3:
                model(x).sum().backward()
            optimizer.step()
        ends.append([param.detach() for param in model.parameters()])
    torch.testing.assert_close(ends[0], ends[1], rtol=5e-3, atol=5e-4)


def test_a_weight_that_the_closure_reshapes_is_planned_after_it() -> None:
    """Shapes are checked before the step, and the closure may still change them."""
    model = linear(6, 4)
    optimizer = gradcent.attach(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def closure() -> Tensor:
        model.in_features = 5
        model.weight.data = model.weight.data[:, :5].clone()
        loss: Tensor = model(batch()[:, :5]).square().mean()
        loss.backward()
        return loss

    sums = model.weight.detach()[:, :5].sum(1)
    optimizer.step(closure)
    assert model.weight.grad is not None
    assert float(model.weight.grad.sum(1).abs().max()) > 1e-3
    torch.testing.assert_close(model.weight.detach().sum(1), sums)
