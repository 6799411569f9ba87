"""Param groups stepped in one C call: whatever moved, was replaced or is unusual, the result is torch's."""

from __future__ import annotations

import collections
import copy
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import native_steps
import pytest
import torch
from torch import Tensor, nn

import gradcent
from gradcent import Layout
from gradcent.kernels import fused_steps, native
from gradcent.optim._native_step import try_fused_step

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1},
    "Adam": {"lr": 0.01, "weight_decay": 0.1},
    "AdamW": {"lr": 0.01, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.1},
}
every_optimizer = pytest.mark.parametrize("name", OPTIONS)


class Dispatching(Tensor):
    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C._DisableTorchDispatch():
            return function(*args, **(kwargs or {}))


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(1)
    parts = [nn.Linear(5, 7), nn.Conv2d(7, 3, 3), nn.Linear(9, 4, bias=False), nn.Linear(4, 6)]
    return nn.Sequential(*parts).to(dtype)


def give_gradients(model: nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> list[Tensor]:
    for seed in seeds:
        give_gradients(model, seed)
        optimizer.step()
    return [each.detach().clone() for each in model.parameters()]


ORDINARY = {
    "a number": torch.tensor(1.0),
    "a matrix": torch.randn(3, 4),
    "transposed": torch.randn(3, 4).t(),
    "a part": torch.randn(6, 8)[1::2, 2:5],
    "expanded": torch.randn(1, 4).expand(3, 4),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "seven dims": torch.randn(1, 2, 1, 2, 1, 2, 1),
    "empty": torch.empty(0, 3),
    "empty, no memory at all": torch.empty(0),
    "a parameter": nn.Parameter(torch.randn(2, 2)),
    "requires grad": torch.randn(2, requires_grad=True),
    "not a leaf": torch.randn(2, requires_grad=True) * 2,
    "negated twice": torch._neg_view(torch._neg_view(torch.randn(2))),
    **{str(dtype): torch.ones(2, 3, dtype=dtype) for dtype in DTYPES},
}


TABLE_SHAPE = (3, 3)


def given_back(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


UNUSUAL: dict[str, Callable[[], Tensor]] = {
    "negated": lambda: torch._neg_view(torch.randn(3, 3)),
    "imaginary part of a conjugate": lambda: torch.imag(torch.randn(3, 3, dtype=torch.complex64).conj()),
    "complex": lambda: torch.randn(3, 3, dtype=torch.complex64),
    "integers": lambda: torch.ones(3, 3, dtype=torch.int64),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "without memory": lambda: torch.ones(3, 3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "zeros that are not written out": lambda: torch._efficientzerotensor((3, 3)),
    "memory given back": lambda: given_back(torch.ones(3, 3)),
    "more than its memory": lambda: torch.ones(3, 3).as_subclass(Dispatching),
}


LAYOUT = Layout.rows((3, 4))


@pytest.mark.parametrize("what", ORDINARY)
def test_ordinary_tensors_are_read_as_torch_reads_them(what: str) -> None:
    """Without a layout SGD is w − g: the kernel has to find every element of both."""
    tensor = ORDINARY[what].detach()
    param, expected = torch.zeros_like(tensor).contiguous(), -tensor
    native_steps.sgd([param], [tensor], [], [None], lr=1.0)
    assert torch.equal(param, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("what", UNUSUAL)
def test_tensors_that_are_not_their_memory_are_refused(what: str) -> None:
    tensor, fine = UNUSUAL[what](), torch.ones(3, 4)
    with pytest.raises(native.Unsupported, match="tensor 1"):
        native.centralize_([fine, tensor], [LAYOUT, Layout.rows(TABLE_SHAPE)])
    assert torch.equal(fine, torch.ones(3, 4))


def test_a_fake_tensor_and_one_inside_vmap_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    fake = FakeTensorMode().from_tensor(torch.ones(3, 4))
    with pytest.raises(native.Unsupported, match="tensor 0"):
        native.centralize_([fake], [LAYOUT])

    def inside(x: Tensor) -> Tensor:
        with pytest.raises(native.Unsupported, match="tensor 0"):
            native.centralize_([x], [LAYOUT])
        return x

    torch.vmap(inside)(torch.ones(2, 3, 4))


def test_a_subclass_without_its_own_dispatch_is_its_memory() -> None:
    class Named(Tensor):
        pass

    tensor = torch.tensor([[1.0, 2.0, 6.0]]).as_subclass(Named)
    native.centralize_([tensor], [Layout.rows((1, 3))])
    assert tensor.tolist() == [[-2.0, -1.0, 3.0]]


def test_import_works_in_any_mode() -> None:
    code = (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    from gradcent.kernels import native\n"
        "print(native.reason())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == native.reason()


def test_a_torch_without_parallel_for_is_served_on_one_thread() -> None:
    """In another process, because the setup of the C module is global."""
    code = """
import ctypes, torch
real = ctypes.CDLL.__getattr__
def lacking(self, name):
    if name == "torch_parallel_for":
        raise AttributeError(name)
    return real(self, name)
ctypes.CDLL.__getattr__ = lacking
import gradcent
from gradcent.kernels import native
torch.manual_seed(0)
g = torch.randn(300, 500)
print(native.reason())
result = native.centralized([g], [gradcent.Layout.rows(g.shape)])[0]
print(torch.allclose(result, g - g.mean(1, keepdim=True), atol=1e-5))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reason, right = done.stdout.splitlines()
    assert "one thread: this torch has no torch_parallel_for" in reason
    assert right == "True"


def test_a_torch_without_the_exchange_table_has_no_native_kernels() -> None:
    code = """
import torch
torch.Tensor.__dlpack_c_exchange_api__ = None
import gradcent
from gradcent.kernels import native
print(native.available(), native.reason())
model = torch.nn.Linear(3, 2, bias=False)
optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, model=model)
model.weight.grad = torch.tensor([[1.0, 2.0, 6.0]] * 2)
before = model.weight.detach().clone()
optimizer.step()
print((before - model.weight).tolist()[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.startswith("False torch ")
    assert "no DLPack exchange table" in first
    torch.testing.assert_close(torch.tensor(eval(second)), torch.tensor([-2.0, -1.0, 3.0]))


# ---- whole param groups


@every_optimizer
def test_states_in_any_order_and_groups_in_the_middle(name: str, left_to_torch: list[int]) -> None:
    """The dict of states is walked in step with the parameters; where it has another order nothing else may change."""

    def made(groups: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = network()
        parameters = list(model.parameters())
        parts = [parameters] if groups == 1 else [[each] for each in parameters]
        return model, getattr(gradcent.optim, name)(
            [{"params": part} for part in parts], model=model, **OPTIONS[name]
        )

    plain = trained(*made(1), range(4))
    model, optimizer = made(7)
    assert all(torch.equal(a, b) for a, b in zip(plain, trained(model, optimizer, range(4)), strict=True))
    model, optimizer = made(1)
    trained(model, optimizer, range(2))
    for parameter in list(optimizer.state)[::-2]:
        optimizer.state[parameter] = optimizer.state.pop(parameter)
    left_to_torch.clear()
    for got, wanted in zip(trained(model, optimizer, range(2, 4)), plain, strict=True):
        assert torch.equal(got, wanted)
    assert left_to_torch == [0, 0]


@every_optimizer
def test_a_parameter_that_never_had_a_gradient_needs_no_state(name: str, left_to_torch: list[int]) -> None:
    model = network()
    model[1].requires_grad_(False)
    optimizer = getattr(gradcent.optim, name)(model.parameters(), model=model, **OPTIONS[name])
    before = copy.deepcopy(model)
    for seed in range(3):
        give_gradients(model, seed)
        for each in model[1].parameters():
            each.grad = None
        optimizer.step()
    assert left_to_torch[1:] == [0, 0]
    same = [torch.equal(a, b) for a, b in zip(before.parameters(), model.parameters(), strict=True)]
    assert same == [False, False, True, True, False, False, False]


def test_other_parameters_in_the_group_are_noticed(left_to_torch: list[int]) -> None:
    model = network()
    parameters = list(model.parameters())[:6]
    optimizer = gradcent.optim.SGD(parameters[:3], lr=1.0, model=model)
    optimizer.add_param_group({"params": parameters[3:], "lr": 0.25})
    trained(model, optimizer, range(2))
    optimizer.param_groups[0]["params"], optimizer.param_groups[1]["params"] = parameters[3:], parameters[:3]
    before = [each.detach().clone() for each in parameters]
    give_gradients(model, 7)
    optimizer.step()
    for old, parameter, lr in zip(before, parameters, [0.25] * 3 + [1.0] * 3, strict=True):
        g = parameter.grad
        assert g is not None
        centred = g - g.mean(tuple(range(1, g.ndim)), keepdim=True) if g.ndim > 1 else g
        torch.testing.assert_close(parameter.detach(), old - lr * centred)
    assert left_to_torch == [0, 0, 0]


def test_a_state_exchanged_while_others_are_looked_up_is_not_written_to_after_it_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Looking a tensor up runs Python code (its hash), in which other threads may do anything."""
    model = nn.Sequential(*[nn.Linear(8, 8, bias=False) for _ in range(6)])
    parameters = list(model.parameters())
    optimizer = gradcent.optim.SGD(parameters, lr=0.0, momentum=0.9, model=model)
    trained(model, optimizer, range(2))
    states = list(optimizer.state.items())
    optimizer.state.clear()
    for parameter, state in [states[0], *states[:0:-1]]:  # another order, so that they are looked up
        optimizer.state[parameter] = state
    made: list[Tensor] = []
    real = Tensor.__hash__

    def busy(self: Tensor) -> int:
        if self is parameters[3] and not made:
            states[0][1]["momentum_buffer"] = None
            made.append(torch.zeros(8, 8))  # where the buffer was, if that is gone
        return real(self)

    give_gradients(model, 3)
    monkeypatch.setattr(Tensor, "__hash__", busy)
    optimizer.step()
    assert made
    assert not made[0].any()


@pytest.mark.parametrize("what", ["class", "gradient", "negated", "state", "counter", "dtype"])
def test_unusual_tensors_are_left_to_torch(what: str, left_to_torch: list[int]) -> None:
    results = []
    for odd in (False, True):
        model = network()
        optimizer = gradcent.optim.Adam(model.parameters(), lr=0.1, model=model)
        trained(model, optimizer, range(2))
        give_gradients(model, 5)
        weight = model[0].weight
        state = optimizer.state[weight]
        if odd and what == "class":
            weight.__class__ = type(
                "Special", (nn.Parameter,), {"__torch_dispatch__": Dispatching.__torch_dispatch__}
            )
        if odd and what == "gradient":
            weight.grad = weight.grad.as_subclass(Dispatching)
        if odd and what == "negated":
            weight.grad = torch._neg_view(-weight.grad)
        if odd and what == "state":
            state["exp_avg"] = state["exp_avg"].as_subclass(Dispatching)
        if odd and what == "counter":
            state["step"] = state["step"].to(torch.int64)
        if odd and what == "dtype":
            state["exp_avg"] = state["exp_avg"].double()
        left_to_torch.clear()
        try:
            optimizer.step()
        except RuntimeError:
            assert what == "dtype"  # torch's own step cannot do that either
            assert left_to_torch == [1]
            return
        assert left_to_torch == [int(odd)]
        results.append([each.detach().as_subclass(Tensor) for each in model.parameters()])
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted)


def test_a_weight_made_under_inference_mode_is_stepped() -> None:
    with torch.inference_mode():
        weight = torch.ones(2, 3)
        model = nn.Linear(3, 2, bias=False)
        model.weight = nn.Parameter(weight)
        weight = model.weight
        weight.grad = torch.tensor([[1.0, 2.0, 6.0]] * 2)
        assert weight.is_inference()
        optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, model=model)
        optimizer.step()
        assert torch.equal(weight, torch.tensor([[3.0, 2.0, -2.0]] * 2))


def test_gradients_without_memory_step_as_torchs_do() -> None:
    results = []
    for kernel in ("auto", "reference"):
        torch.manual_seed(0)
        model = nn.Linear(5, 7, bias=False)
        optimizer = gradcent.optim.SGD(
            model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1, model=model, kernel=kernel
        )
        for zero in (False, True, True):
            shape = (7, 5)
            model.weight.grad = torch._efficientzerotensor(shape) if zero else torch.ones(shape)
            optimizer.step()
        results.append(model.weight.detach())
    torch.testing.assert_close(*results)


def test_numbers_of_other_devices_are_not_read() -> None:
    read: list[int] = []

    class Rate(Tensor):
        def __float__(self) -> float:
            read.append(1)
            return 0.1

    model = nn.Linear(4, 4, device="meta")
    rate = torch.tensor(0.1).as_subclass(Rate)
    optimizer = gradcent.optim.Adam(model.parameters(), lr=rate, model=model)
    give_gradients(model, 0)
    group, attachment = optimizer.param_groups[0], gradcent.attached(optimizer)
    assert not try_fused_step(fused_steps.ADAM, optimizer, group, attachment)
    assert not read


def test_a_parameter_nobody_planned_matters_only_once_it_has_a_gradient() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, model=model)
    trained(model, optimizer, range(2))
    stranger = nn.Parameter(torch.ones(4, 4))
    optimizer.param_groups[0]["params"].append(stranger)
    before = model.weight.detach().clone()
    trained(model, optimizer, range(2))
    assert not torch.equal(before, model.weight)
    stranger.grad = torch.ones(4, 4)
    with pytest.raises(RuntimeError, match="replaced after attach"):
        optimizer.step()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_optimizer_that_its_parameters_know_is_freed(momentum: float) -> None:
    def made() -> weakref.ref[Any]:
        model = nn.Linear(30, 30)
        optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, model=model)
        model.weight.owner = optimizer
        trained(model, optimizer, range(3))
        return weakref.ref(optimizer)

    reference = made()
    gc.collect()
    assert reference() is None


def test_a_subclass_that_collects_in_its_own_way_is_obeyed() -> None:
    class Mine(gradcent.optim.SGD):
        def _init_group(self, group: Any, params: Any, grads: Any, buffers: Any) -> Any:
            result = super()._init_group(group, params, grads, buffers)
            grads[:] = [torch.zeros_like(each) for each in grads]
            return result

    model = nn.Linear(5, 7, bias=False)
    optimizer = Mine(model.parameters(), lr=0.1, model=model)
    before = model.weight.detach().clone()
    trained(model, optimizer, range(2))
    assert torch.equal(before, model.weight)


def test_containers_of_another_kind_are_left_to_torch() -> None:
    results = []
    for odd in (False, True):
        model = network()
        optimizer = gradcent.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, model=model)
        trained(model, optimizer, range(1))
        if odd:
            optimizer.param_groups[0]["params"] = tuple(optimizer.param_groups[0]["params"])
            optimizer.state = collections.UserDict(optimizer.state)
        results.append(trained(model, optimizer, range(1, 4)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_nothing_is_kept_of_a_gradient_after_the_step() -> None:
    for elements in (
        100,
        5_000_000,
    ):  # the second is long: the GIL is released, and everything held meanwhile
        model = nn.Linear(100, elements // 100, bias=False)
        weight = model.weight
        optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, model=model)
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        gradient, buffer = weight.grad, optimizer.state[weight]["momentum_buffer"]
        references = (sys.getrefcount(gradient), sys.getrefcount(buffer))
        optimizer.step()
        assert (sys.getrefcount(gradient), sys.getrefcount(buffer)) == references
        storage = weakref.ref(gradient.untyped_storage())
        assert storage() is not None
        del gradient
        weight.grad = None
        gc.collect()
        assert storage() is None


def test_a_gradient_cleared_by_another_thread_during_the_step_stays_until_its_end() -> None:
    """The other thread runs only while the step has released the GIL, and sees from the weights that it has begun."""
    model = nn.Linear(250, 40_000, bias=False)
    weight = model.weight
    optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, momentum=0.5, model=model)
    gradient = torch.arange(250.0).expand(40_000, 250)
    weight.grad = gradient.contiguous()
    optimizer.step()
    during = []
    for _ in range(20):
        weight.grad = gradient.contiguous()
        before = weight[0, 0].item(), weight[-1, -1].item()

        def clear(before: tuple[float, float] = before) -> None:
            while weight[0, 0].item() == before[0]:
                pass
            weight.grad = None
            during.append(weight[-1, -1].item() == before[1])
            torch.full((40_000, 250), float("nan"))  # takes the memory, if it was freed

        thread = threading.Thread(target=clear)
        optimizer.step(thread.start)  # a closure is called first
        thread.join()
        assert weight.isfinite().all()
        if any(during):
            return
    pytest.fail("the gradient was never cleared while a step ran")
