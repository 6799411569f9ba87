"""torch.compile of the model and of the step, and what a CUDA graph needs, as far as it can be seen without a GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from engine_truth import OPTIMIZERS, OVERRIDES, batches, difference, loss_of, model, reference
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import gradcent

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo's own


@pytest.fixture(autouse=True)
def _fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def trained(
    start: nn.Module, name: str, at: Any, *, whole: bool, attach: bool = True
) -> tuple[nn.Module, int]:
    """Train with the model (``whole``) or the step compiled; return the model and how often was compiled."""
    torch._dynamo.reset()
    net = copy.deepcopy(start)
    optimizer = OPTIMIZERS[name](net.parameters())
    if attach:
        gradcent.attach(optimizer, net, at=at, overrides=OVERRIDES)
    counter = CompileCounterWithBackend("aot_eager")
    forward = torch.compile(net, backend=counter, fullgraph=True) if whole else net
    step = optimizer.step if whole else torch.compile(optimizer.step, backend=counter)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(forward, x, y).backward()
        step()
    return net, counter.frame_count


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("whole", [True, False], ids=["model", "step"])
def test_compiled(whole: bool, name: str, at: Any, verified: Any) -> None:
    start = model()
    net, frames = trained(start, name, at, whole=whole)
    _, plain = trained(start, name, at, whole=whole, attach=False)
    assert frames <= plain  # a graph break or a recompilation more would be a frame more
    found = difference(dict(net.named_parameters()), reference(start, name, at))
    which = "the model" if whole else "the optimizer's step"
    what = f"{which}, {name}, at the {at}: no graph break or recompilation more than torch's in 20 steps"
    # compiled, torch counts Adam's steps and keeps its rates in float32 tensors
    verified("torch.compile", "torch", what, found, 1e-12 if whole else 1e-5)


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_a_compiled_model_given_to_attach(at: Any) -> None:
    """The optimizer may be made before or after, and the compiled model stand for the model; names stay."""
    start = model()
    net = copy.deepcopy(start)
    compiled = torch.compile(net, backend="eager")
    optimizer = OPTIMIZERS["sgd"](compiled.parameters())
    gradcent.attach(optimizer, compiled, at=at, overrides=OVERRIDES)
    for x, y in batches():
        optimizer.zero_grad()
        loss_of(compiled, x, y).backward()
        optimizer.step()
    assert difference(dict(net.named_parameters()), reference(start, "sgd", at)) < 1e-12


def step_on_fake_gpu(kind: Any, at: Any, rate: bool, **options: Any) -> None:
    """Three steps on tensors that have a CUDA device and no values: whoever asks for a value gets an error."""
    with FakeTensorMode():
        with torch.device("cuda"):
            layers = [nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 3, groups=2), nn.Linear(6, 2)]
            net = nn.ModuleList(layers)
        optimizer = gradcent.attach(kind(net.parameters(), lr=0.1, **options), net, at=at)
        if rate:
            optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="cuda")
        for _ in range(3):
            for each in net.parameters():
                each.grad = torch.randn_like(each)
            optimizer.step()


@pytest.mark.parametrize("at", ["gradient", "update"])
def test_a_capturable_step_reads_nothing_back(at: Any, verified: Any) -> None:
    """A CUDA graph records launches: a step that waits for a value of the device cannot be captured.

    torch's own kernels stand in for the Triton ones here, which take every number as a tensor (triton.py).
    """
    for form in ({"foreach": True}, {"foreach": False}):
        step_on_fake_gpu(torch.optim.SGD, at, rate=False, momentum=0.9, weight_decay=0.1, **form)
        for kind in (torch.optim.Adam, torch.optim.AdamW):
            step_on_fake_gpu(kind, at, rate=True, capturable=True, weight_decay=0.1, **form)
        for kind in (
            torch.optim.NAdam,
            torch.optim.RMSprop,
        ):  # these read a rate that is a tensor, by themselves
            step_on_fake_gpu(kind, at, rate=False, capturable=True, weight_decay=0.1, **form)
    what = f"capturable, at the {at}: values read back from the device (counted on fake CUDA tensors)"
    verified("CUDA graphs", "torch", what, 0.0, 0.0)


def test_the_fake_gpu_notices_who_reads() -> None:
    """What the test above can see: torch's SGD takes a rate that is a tensor out of the device."""
    with pytest.raises(DataDependentOutputException):
        step_on_fake_gpu(torch.optim.SGD, "gradient", rate=True, foreach=True)
