"""PyTorch's own optimizer database over every drop-in class: its inputs, its error inputs, its parity cases.

The test bodies (test/test_optim.py) are not part of torch's wheels, the database is
(torch.testing._internal.common_optimizers). So its inputs are driven here through the checks upstream makes. GC is on
wherever a check compares a drop-in with itself; where it compares with torch's numbers, torch is given the centralized
gradient by hand. What does not apply:

- SparseAdam: has no weight vectors to centralize (its gradients are sparse); `attach` refuses it, tested elsewhere.
- complex parameters as pairs of real ones (test_complex, test_complex_2d): upstream asks that a complex tensor train
  as its two real parts viewed as one tensor with a last dim of two. No centralization can meet that: it sees other
  weight vectors there. Complex parameters are checked against torch fed by hand instead.
- capturable, CUDA graphs, several devices, MPS, peak memory of foreach: no such device here.
- forward-mode and deprecated argument checks of upstream's base class: nothing of ours takes part.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import equations
import gradcent

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    common = pytest.importorskip("torch.testing._internal.common_optimizers")

pytestmark = [pytest.mark.filterwarnings("ignore")]  # upstream's inputs use options that torch warns about
INFOS = {info.optim_cls.__name__: info for info in common.optim_db}
DROP_INS = [name for name in gradcent.optim.__all__ if name in INFOS]


def test_every_dense_optimizer_of_the_database_has_a_drop_in() -> None:
    assert set(INFOS) - set(DROP_INS) == {"SparseAdam"}


def inputs(name: str) -> list[Any]:
    """All of the database's inputs of a class that can run on a CPU."""
    found = INFOS[name].optim_inputs_func(device="cpu", dtype=torch.float32)
    return [each for each in found if not each.kwargs.get("capturable")]


ALL_INPUTS = [
    pytest.param(name, each, id=f"{name}-{number}-{each.desc}".replace(" ", "_"))
    for name in DROP_INS
    for number, each in enumerate(inputs(name))
]
every_input = pytest.mark.parametrize(("name", "given"), ALL_INPUTS)
every_class = pytest.mark.parametrize("name", DROP_INS)


def layer(dtype: torch.dtype = torch.float64) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(10, 6, bias=False, dtype=dtype)


# torch's documentation: these shrink the weight, the others add λw to the gradient unless a flag says otherwise
DECOUPLED = tuple(
    getattr(torch.optim, name) for name in ("AdamW", "Adafactor", "Muon") if hasattr(torch.optim, name)
)


def batch(dtype: torch.dtype, step: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    maker = torch.Generator().manual_seed(step)
    x = torch.randn(8, 10, generator=maker, dtype=torch.float64)
    return x.to(dtype), (x[:, :6] - 0.5).to(dtype)


def train(
    model: nn.Linear, optimizer: Any, steps: int = 4, *, hand: bool = False, fixed: bool = False
) -> list[float]:
    """Train with a closure, as upstream does; return the losses."""
    losses = []
    group = optimizer.param_groups[0]
    uncoupled = isinstance(optimizer, DECOUPLED) or group.get("decoupled_weight_decay", False)
    coupled = bool(group.get("weight_decay")) and not uncoupled
    for step in range(steps):
        x, y = batch(model.weight.dtype, 0 if fixed else step)

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = (model(x) - y).abs().square().mean()
            loss.backward()
            if hand:
                decay = float(group["weight_decay"]) if coupled else 0.0
                equations.centralize_gradients(model, decay, maximize=bool(group.get("maximize")))
            return loss.detach()

        losses.append(float(optimizer.step(closure)))
    return losses


def ours(name: str, model: nn.Module, **options: Any) -> Any:
    return getattr(gradcent.optim, name)(model.parameters(), model=model, **options)


def impls(name: str, options: dict[str, Any]) -> list[dict[str, bool]]:
    """The execution forms the database lists for a class, where these options allow them."""
    found: list[dict[str, bool]] = [{}]
    lr = options.get("lr")
    for flag in INFOS[name].supported_impls:
        if flag == "fused" and ("cpu" not in INFOS[name].supports_fused_on or options.get("differentiable")):
            continue
        if flag == "foreach" and isinstance(lr, torch.Tensor):
            continue
        if flag != "differentiable":
            found.append({flag: True})
    return found


# Where torch's own forms differ from each other by more than rounding in float64, and why:
ROOM = {
    "Adafactor": 1e-4,  # upstream gives its forms room as well
    "ASGD": 1e-7,  # keeps its step sizes in float32 tensors
    "LBFGS": 1e-3,  # stops where the gradient is below 1e-7: where that is depends on rounding
}


@every_input
def test_every_input_trains_as_torch_fed_by_hand_in_every_form(name: str, given: Any) -> None:
    """Parity of loop, foreach and fused, and of each with torch's own class."""
    if name == "LBFGS" and given.kwargs.get("maximize") and given.kwargs.get("line_search_fn"):
        pytest.skip("a line search that maximizes a quadratic runs to 1e60: nothing to compare")
    options = copy.deepcopy(given.kwargs)
    expected = layer()
    plain = INFOS[name].optim_cls(
        expected.parameters(), **{"foreach": False, **options} if impls(name, options)[1:] else options
    )
    train(expected, plain, hand=True)
    for form in impls(name, options):
        model = layer()
        optimizer = ours(name, model, **{**copy.deepcopy(options), **form})
        train(model, optimizer)
        tolerance = ROOM.get(name, 1e-9) if form or name == "LBFGS" else 1e-9
        torch.testing.assert_close(model.weight, expected.weight, rtol=tolerance, atol=tolerance)


@every_input
def test_every_input_goes_the_right_direction(name: str, given: Any) -> None:
    """Upstream's test_*_goes_right_direction: the loss falls (rises under maximize), with a scheduler too."""
    for with_schedule in (False, True):
        model = layer()
        options = copy.deepcopy(given.kwargs)
        if name == "Adadelta" and "lr" not in options:
            options["lr"] = 1.0
        optimizer = ours(name, model, **options)
        make = INFOS[name].scheduler_inputs[0][0] if with_schedule else None
        schedulers = [make] if callable(make) else list(make or [])
        made = [each(optimizer) for each in schedulers]
        losses = []
        for _ in range(20):
            losses += train(model, optimizer, 1, fixed=True)
            for each in made:
                each.step(losses[-1]) if type(each).__name__ == "ReduceLROnPlateau" else each.step()
        if float(torch.as_tensor(options.get("lr", 1.0))) == 0.0:
            continue
        if options.get("maximize"):
            assert losses[-1] > losses[0]
        else:
            assert losses[-1] < losses[0]


@every_input
def test_every_input_keeps_its_state_through_a_state_dict(name: str, given: Any) -> None:
    """Upstream's test_load_nontensor_step and test_can_load_from_to_named_state_dict, into a fresh optimizer."""
    model = layer()
    optimizer = ours(name, model, **copy.deepcopy(given.kwargs))
    train(model, optimizer)
    again = copy.deepcopy(model)
    other = ours(name, again, **copy.deepcopy(given.kwargs))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 2)
    train(again, other, 2)
    if name == "NAdam":  # torch keeps mu_product in float32, and loading casts it to the parameter's float64
        torch.testing.assert_close(model.weight, again.weight, rtol=1e-9, atol=1e-9)
    else:
        assert torch.equal(model.weight, again.weight)
    older = copy.deepcopy(optimizer.state_dict())
    for group in older["param_groups"]:  # a checkpoint from before these flags were there
        for flag in INFOS[name].not_og_supported_flags:
            group.pop(flag, None)
    other.load_state_dict(older)
    train(again, other, 1)
    train(model, optimizer, 1)
    if not any(given.kwargs.get(flag) for flag in INFOS[name].not_og_supported_flags):
        room = 1e-9 if name == "NAdam" else 1e-12
        torch.testing.assert_close(model.weight, again.weight, rtol=1e-9, atol=room)


@every_input
def test_every_input_can_be_deepcopied_and_pickled(name: str, given: Any) -> None:
    model = layer()
    optimizer = ours(name, model, **copy.deepcopy(given.kwargs))
    train(model, optimizer, 2)
    model2, optimizer2 = copy.deepcopy((model, optimizer))
    assert gradcent.attached(optimizer2) is not None
    train(model, optimizer, 2)
    train(model2, optimizer2, 2)
    assert torch.equal(model.weight, model2.weight)
    assert repr(optimizer).split("(")[0] == repr(optimizer2).split("(")[0]


def error_inputs() -> list[Any]:
    found = []
    for name in DROP_INS:
        for number, each in enumerate(INFOS[name].optim_error_inputs_func(device="cpu", dtype=torch.float32)):
            found.append(pytest.param(name, each, id=f"{name}-{number}"))
    return found


@pytest.mark.parametrize(("name", "error"), error_inputs())
def test_error_inputs_raise_what_torch_raises(name: str, error: Any) -> None:
    """Upstream's test_errors, when the optimizer is made and when it steps."""
    given, drop_in = error.optimizer_error_input, getattr(gradcent.optim, name)
    params = given.params
    model = layer(torch.float32)

    def make(kind: type, **more: Any) -> Any:
        return kind(params, **given.kwargs, **more)

    if error.error_on is common.OptimizerErrorEnum.CONSTRUCTION_ERROR:
        if issubclass(error.error_type, Warning):
            with pytest.warns(error.error_type, match=error.error_regex):
                make(drop_in, model=model, centralize=False)
        else:
            with pytest.raises(error.error_type, match=error.error_regex):
                make(drop_in, model=model)
    else:
        optimizer = make(drop_in, centralize=False)
        with pytest.raises(error.error_type, match=error.error_regex):
            optimizer.step()


@every_class
def test_complex_parameters_train_as_torch_fed_by_hand(name: str) -> None:
    if not INFOS[name].supports_complex or name == "Muon":
        pytest.skip("torch's class takes no complex parameters")
    models = [layer(torch.complex128), layer(torch.complex128)]
    optimizers = [ours(name, models[0], lr=0.01), INFOS[name].optim_cls(models[1].parameters(), lr=0.01)]
    weight = models[1].weight
    for step in range(3):
        maker = torch.Generator().manual_seed(step)
        gradient = torch.randn(6, 10, generator=maker, dtype=torch.complex128)
        models[0].weight.grad = gradient.clone()
        weight.grad = gradient - gradient.mean(1, keepdim=True)
        for optimizer in optimizers:
            optimizer.step(lambda: torch.tensor(0.0))
    torch.testing.assert_close(models[0].weight, weight, rtol=1e-12, atol=1e-14)


@every_class
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lower_precision_parameters_train(name: str, dtype: torch.dtype) -> None:
    if name == "LBFGS" and dtype is not torch.float32:
        pytest.skip("L-BFGS in half precision is torch's own trouble")
    plain = layer(dtype)
    theirs = train(plain, INFOS[name].optim_cls(plain.parameters(), lr=0.01), 10, fixed=True)
    eps = INFOS[name].optim_cls(plain.parameters()).defaults.get("eps")
    if dtype is torch.float16 and isinstance(eps, float) and eps < 6e-8:
        pytest.skip("eps is 0 in float16: a gradient that is 0 gives 0/0 in torch too")
    if not theirs[-1] < theirs[0]:
        pytest.skip("torch's own class does not train in this dtype (its eps is 0 there, or its steps are)")
    model = layer(dtype)
    optimizer = ours(name, model, lr=0.01)
    losses = train(model, optimizer, 10, fixed=True)
    assert losses[-1] < losses[0]
    assert model.weight.dtype is dtype


@every_class
def test_sparse_gradients_pass_by(name: str) -> None:
    if not INFOS[name].supports_sparse:
        pytest.skip("torch's class takes no sparse gradients")
    kwargs = dict(INFOS[name].metadata_for_sparse[0])
    pair = []
    for kind in ("ours", "torch"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 3))
        options = {"lr": 0.05, **kwargs}
        if kind == "ours":
            optimizer = ours(name, model, **options)
        else:
            optimizer = INFOS[name].optim_cls(model.parameters(), **options)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.tensor([1, 2, step])).square().sum().backward()
            if kind == "torch":
                gradient = model[1].weight.grad
                model[1].weight.grad = gradient - gradient.mean(1, keepdim=True)
            optimizer.step()
        pair.append(model)
    for one, two in zip(*(each.parameters() for each in pair), strict=True):
        torch.testing.assert_close(one, two)


@every_class
def test_steps_without_gradients_and_zero_gradients(name: str) -> None:
    """Upstream's test_param_groups_weight_decay neighbours: no gradient, nothing happens; zero gradients, no nan."""
    model = layer()
    optimizer = ours(name, model, lr=0.1)
    before = model.weight.detach().clone()
    optimizer.step(lambda: torch.tensor(0.0))
    assert torch.equal(model.weight, before)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step(lambda: torch.tensor(0.0))
    assert bool(model.weight.isfinite().all())


@every_class
def test_empty_parameters_and_hooks(name: str) -> None:
    """Upstream's test_step_pre_hook, test_step_all_hooks, test_state_dict hooks: order and number."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    model, said = layer(), []
    optimizer = ours(name, model, lr=0.1)
    handles = [
        register_optimizer_step_pre_hook(lambda *_: said.append("global before")),
        register_optimizer_step_post_hook(lambda *_: said.append("global after")),
        optimizer.register_step_pre_hook(lambda *_: said.append("before")),
        optimizer.register_step_post_hook(lambda *_: said.append("after")),
        optimizer.register_state_dict_post_hook(lambda *_: said.append("saved")),
        optimizer.register_load_state_dict_post_hook(lambda *_: said.append("loaded")),
    ]
    try:
        train(model, optimizer, 1)
        optimizer.load_state_dict(optimizer.state_dict())
    finally:
        for each in handles:
            each.remove()
    assert said == ["global before", "before", "after", "global after", "saved", "loaded"]
    train(model, optimizer, 1)
    assert len(said) == 6
