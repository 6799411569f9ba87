"""The memory promise: what the C code really allocates, and that a failed allocation changes nothing."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import native_steps
import pytest
import torch

import gradcent
from gradcent import Layout
from gradcent.kernels import native

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason())

PER_CALL = 640 << 10  # the sums of columns (512 KiB) and the list of tasks
PER_TENSOR = 384
CASES: dict[str, tuple[tuple[int, ...], Any]] = {
    "few long columns": ((16, 750_000), Layout.columns),
    "many columns": ((1024, 9000), Layout.columns),
    "GPT-2's largest": ((768, 3072), Layout.columns),
    "stacked experts": ((40, 64, 512), Layout.stacked_columns),
    "long rows": ((3, 3_000_000), Layout.rows),
    "rows": ((4096, 1000), Layout.rows),
}


def step(params: list[torch.Tensor], layout: Layout, at: str = "gradient") -> None:
    count = len(params)
    m, v = [torch.zeros_like(p) for p in params], [torch.zeros_like(p) for p in params]
    grads, steps = [torch.randn_like(p) for p in params], [torch.zeros(()) for _ in params]
    native._cpu.peak_bytes()
    args = dict(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1, at=at)
    native_steps.adam(params, grads, m, v, steps, [layout] * count, **args)


@pytest.mark.parametrize("at", ["gradient", "update"])
@pytest.mark.parametrize("case", CASES)
def test_temporaries_are_bounded_whatever_the_shape(case: str, at: str) -> None:
    shape, make = CASES[case]
    step([torch.randn(shape)], make(shape), at)
    used = native._cpu.peak_bytes()
    assert 0 < used <= PER_CALL + PER_TENSOR
    # 12 M parameters move 48 MB of gradient; the bound does not grow with them
    assert used < 4 * torch.Size(shape).numel() / 8


def test_many_tensors_take_a_few_hundred_bytes_each() -> None:
    step([torch.randn(32, 32) for _ in range(2000)], Layout.rows((32, 32)))
    assert native._cpu.peak_bytes() <= PER_CALL + 2000 * PER_TENSOR


@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("name", ["SGD", "Adam", "Adagrad"])
def test_a_step_without_memory_changes_nothing(name: str, after: int) -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(600, 200))
    plan = gradcent.Plan.of_tensors({"weight": (weight, Layout.columns((600, 200)))})
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(gradcent.optim, name)([weight], lr=0.1, plan=plan, **options)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    state = optimizer.state[weight]
    before = [each.clone() for each in (weight.detach(), *state.values())]
    native._cpu.fail_allocation(after)
    try:
        optimizer.step()
        assert after > 3  # a call allocates four or five times
    except MemoryError:
        assert all(map(torch.equal, before, (weight.detach(), *state.values())))
    finally:
        native._cpu.fail_allocation(-1)
    optimizer.step()
    assert not torch.equal(before[0], weight)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's RLIMIT_AS")
def test_a_step_on_48_megabytes_needs_no_4_megabytes() -> None:
    """Independent of the counting allocator: the operating system refuses more."""
    code = """
import resource, torch, gradcent
torch.set_num_threads(1)
weight = torch.nn.Parameter(torch.randn(16, 750_000))
weight.grad = torch.randn_like(weight)
plan = gradcent.Plan.of_tensors({"weight": (weight, gradcent.Layout.columns((16, 750_000)))})
optimizer = gradcent.optim.Adam([weight], plan=plan)
optimizer.step()
optimizer.step()
before = weight.detach().sum().item()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20),) * 2)
optimizer.step()
print(weight.detach().sum().item() != before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True"], done.stderr
