"""How the C code looks at tensors: torch's exported functions must say what torch says, or not be used."""

from __future__ import annotations

import collections
import copy
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradcent
from gradcent.kernels import _torch_functions, fused_steps, native
from gradcent.optim import _native_step as _quick

PROVEN = _torch_functions.proven(torch.__version__)
pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.reason()),
    pytest.mark.skipif(
        not PROVEN and native.available() and native._way != "torch",
        reason="nobody tried torch's functions with this release; GRADCENT_LOOK=torch does",
    ),
]

CODES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}
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


@pytest.fixture
def way() -> Iterator[Any]:
    """Look at tensors in another way for the length of a test."""
    before = native._way

    def look(name: str) -> None:
        native._way = native._look_through(name)
        assert native._way == name

    yield look
    native._way = native._look_through(before)


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


def test_they_are_used_with_this_torch() -> None:
    assert native._way == "torch", (
        "DLPack is the slower way; which function is missing or says something else?"
    )


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
    **{str(dtype): torch.ones(2, 3, dtype=dtype) for dtype in CODES},
}


@pytest.mark.parametrize("what", ORDINARY)
def test_they_say_what_torch_says(what: str) -> None:
    tensor = ORDINARY[what]
    expected = (tensor.data_ptr(), CODES[tensor.dtype], tuple(tensor.shape), tensor.stride(), None)
    assert native._native.look_at(tensor) == expected
    if tensor.is_leaf and tensor.is_floating_point():
        holder = tensor.detach().requires_grad_()
        holder.grad = torch.ones_like(holder)
        assert native._native.look_at(holder)[-1] == holder.grad.data_ptr()


def given_back(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


ODD: dict[str, Callable[[], Tensor]] = {
    "negated": lambda: torch._neg_view(torch.randn(3)),
    "imaginary part of a conjugate": lambda: torch.imag(torch.randn(2, dtype=torch.complex64).conj()),
    "complex": lambda: torch.randn(2, dtype=torch.complex64),
    "integers": lambda: torch.ones(2, dtype=torch.int64),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "sparse rows": lambda: torch.eye(3).to_sparse_csr(),
    "without memory": lambda: torch.ones(2, 3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "zeros that are not written out": lambda: torch._efficientzerotensor((2, 3)),
    "memory given back": lambda: given_back(torch.ones(3)),
    "more than its memory": lambda: torch.ones(3).as_subclass(Dispatching),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("what", ODD)
def test_what_is_out_of_the_ordinary_is_not_taken_for_a_tensor_of_numbers(what: str) -> None:
    assert native._native.look_at(ODD[what]()) is None


def test_a_fake_tensor_and_one_inside_vmap_are_not_taken() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert native._native.look_at(FakeTensorMode().from_tensor(torch.ones(3))) is None
    seen = []
    torch.vmap(lambda x: (seen.append(native._native.look_at(x)), x)[1])(torch.ones(3, 2))
    assert seen == [None]


@pytest.mark.parametrize(
    ("function", "answer"), [("look_at", lambda real, tensor: None), ("count_changes", lambda real, x: True)]
)
def test_functions_that_do_not_tell_the_truth_are_not_used(function: str, answer: Any) -> None:
    told: list[Any] = []

    class Lying:
        def __getattr__(self, name: str) -> Any:
            real = getattr(native._native, name)
            if name == "torch_functions":
                return lambda found: (told.append(found), real(found))[1]
            return (lambda *args: answer(real, *args)) if name == function else real

    try:
        assert not _torch_functions.use_for_tensors(Lying(), native._DTYPES)
        assert told[-1] is None
    finally:
        native._way = native._look_through("torch")


def test_a_torch_without_the_functions_is_served_by_dlpack(monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_torch_functions, "_TENSORS", (*_torch_functions._TENSORS[:-1], "no_such_function"))
        assert native._look_through("auto") in ("dlpack", "python")
        with pytest.raises(RuntimeError, match=r"GRADCENT_LOOK=torch: torch .* does not offer that"):
            native._look_through("torch")


def test_a_torch_nobody_tried_them_with_is_served_by_dlpack(
    monkeypatch: pytest.MonkeyPatch, way: Any
) -> None:
    called: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(_torch_functions, "use_for_tensors", lambda *args: called.append(args))
        for version in ("2.99.0", "2.16.0a0+gitabc", "3.0.1", "2.12.1"):
            patch.setattr(torch, "__version__", version)
            assert native._look_through("auto") in ("dlpack", "python")
    assert not called
    assert all(map(_torch_functions.proven, ("2.13.0+cpu", "2.14.1", "2.15.0+cu132")))


@every_optimizer
@pytest.mark.parametrize("slower", ["dlpack", "python"])
def test_every_way_gives_the_same_bits(name: str, slower: str, way: Any) -> None:
    if slower == "dlpack" and not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no DLPack functions for C (torch 2.10)")
    results = []
    for each in ("torch", slower):
        way(each)
        assert (slower in native.reason()) == (each == slower)
        model = network()
        optimizer = getattr(gradcent.optim, name)(model.parameters(), model=model, **OPTIONS[name])
        results.append(trained(model, optimizer, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_environment_can_choose_the_way() -> None:
    code = "from gradcent.kernels import native; print(native._way)"
    for asked in ("python", "torch"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "GRADCENT_LOOK": asked},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == asked
    wrong = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "GRADCENT_LOOK": "closely"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "GRADCENT_LOOK is 'closely'" in wrong.stderr


def test_they_are_found_whatever_mode_gradcent_is_imported_in() -> None:
    code = (
        "from torch._subclasses.fake_tensor import FakeTensorMode\n"
        "with FakeTensorMode():\n"
        "    from gradcent.kernels import native\n"
        "print(native._way)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "torch"


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
def test_what_is_out_of_the_ordinary_is_left_to_torch(what: str, left_to_torch: list[int]) -> None:
    results = []
    for odd in (False, True):
        model = network()
        optimizer = gradcent.optim.Adam(model.parameters(), lr=0.1, model=model)
        trained(model, optimizer, range(2))
        give_gradients(model, 5)
        weight = model[0].weight
        state = optimizer.state[weight]
        if odd and what == "class":
            weight.__class__ = type("Special", (nn.Parameter,), {})
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
    assert not _quick.try_fused_step(fused_steps.ADAM, optimizer, group, attachment)
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
    with pytest.raises(RuntimeError, match="exchanged after attach"):
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


@pytest.mark.skipif(sys.platform != "linux", reason="memory is made short by Linux's RLIMIT_AS")
def test_a_step_that_finds_no_memory_changes_nothing() -> None:
    code = """
import resource, torch, gradcent
weight = torch.nn.Parameter(torch.randn(16, 750_000))
weight.grad = torch.randn_like(weight)
plan = gradcent.Plan.of_tensors({"weight": (weight, gradcent.Layout.columns((16, 750_000)))})
optimizer = gradcent.optim.Adam([weight], plan=plan)
optimizer.step()
state = optimizer.state[weight]
before = [each.clone() for each in (weight.detach(), *state.values())]
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (24 << 20),) * 2)  # sums take 36 MB
try:
    optimizer.step()
except MemoryError:
    print("short", all(map(torch.equal, before, (weight.detach(), *state.values()))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["short", "True"], done.stderr


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
    model = nn.Linear(250, 40_000, bias=False)
    weight = model.weight
    optimizer = gradcent.optim.SGD(model.parameters(), lr=1.0, momentum=0.5, model=model)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    row = torch.arange(250.0)
    for _ in range(5):
        weight.grad = row.expand(40_000, 250).contiguous()
        begun = threading.Event()
        stepping = threading.Thread(target=optimizer.step, args=(begun.set,))  # a closure is called first
        stepping.start()
        begun.wait()
        time.sleep(0.003)  # the step takes several times as long, nearly all of it without the GIL
        weight.grad = None
        torch.full((40_000, 250), float("nan"))  # takes the freed memory, if it was freed
        stepping.join()
        assert weight.isfinite().all()
