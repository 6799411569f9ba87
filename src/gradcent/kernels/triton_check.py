"""The first use of the Triton kernels on a device: run them once on small tensors and compare with the reference.

Nobody has run these kernels on every GPU. A wrong result or a compile error on a device means that foreach serves it
from then on, with one warning that says what to report.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import centralize
from . import triton_launch
from .fused_steps import ADAM, SGD, StepArgs
from .native import Unsupported

CASES: tuple[tuple[str, tuple[int, ...], Layout | None, bool], ...] = (
    ("rows", (4, 64), Layout.rows((4, 64)), True),
    ("unaligned rows", (3, 37), Layout.rows((3, 37)), False),
    ("long rows", (1, 4100), Layout.rows((1, 4100)), True),
    ("columns", (40, 32), Layout.columns((40, 32)), True),
    ("unaligned columns", (9, 5), Layout.columns((9, 5)), False),
    ("no layout", (100,), None, True),
)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome for one device and dtype; `problem` is empty if the kernels agree with the reference."""

    device: str
    dtype: torch.dtype
    problem: str = ""


_results: dict[tuple[torch.device, torch.dtype], Result] = {}


def require(device: torch.device, dtypes: set[torch.dtype]) -> None:
    """Raise Unsupported if the kernels failed their check on this device; check those not yet checked."""
    for dtype in dtypes:
        result = _results.get((device, dtype))
        if result is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                continue  # comparing waits for the device, which a capture forbids
            result = _results[device, dtype] = check(device, dtype)
            if result.problem:
                warnings.warn(message(result), RuntimeWarning, stacklevel=2)
        if result.problem:
            raise Unsupported(
                f"the Triton kernels failed their self-check on {result.device}: {result.problem}"
            )


def message(result: Result) -> str:
    """Return the warning for a failed check."""
    return (
        f"gradcent's Triton kernels are switched off on {result.device} for {result.dtype}: {result.problem}. "
        "Steps use kernel='foreach' instead, which is correct but slower. Please report this message to "
        f"gradcent's maintainers, with your version of Triton (torch is {torch.__version__})"
    )


def check(device: torch.device, dtype: torch.dtype) -> Result:
    """Step SGD with momentum and AdamW on small tensors of all kinds and compare with the reference."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    if dtype not in TOLERANCE:
        return Result(name, dtype)  # refused for its dtype elsewhere
    try:
        with torch.no_grad():
            problem = _difference(device, dtype)
    except Unsupported:
        raise
    except (
        Exception
    ) as error:  # a compile error, a missing driver, an illegal access: whatever the device says
        first_line = (str(error).splitlines() or [""])[0]
        problem = f"{type(error).__name__}: {first_line}"
    return Result(name, dtype, problem)


def _difference(device: torch.device, dtype: torch.dtype) -> str:
    layouts = [layout for _, _, layout, _ in CASES]
    params, grads = _tensors(device, dtype, 0), _tensors(device, dtype, 1)
    buffers = _tensors(device, dtype, 2)
    states = [[b.abs() * 0.1 for b in buffers], [b * b for b in buffers]]
    counters = [torch.ones((), device=device) for _ in params]
    expected_sgd = [
        _sgd(p, g, m, layout) for p, g, m, layout in zip(params, grads, buffers, layouts, strict=True)
    ]
    stepped = [p.clone() for p in params]
    args = StepArgs(lr=0.1, momentum=0.9, weight_decay=0.1)
    triton_launch.step(SGD, stepped, grads, [buffers], layouts, args)
    problem = _compare("SGD", stepped, expected_sgd, dtype)
    expected_adam = [
        _adam(p, g, m, v, layout) for p, g, m, v, layout in zip(params, grads, *states, layouts, strict=True)
    ]
    args = StepArgs(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=True)
    triton_launch.step(ADAM, params, grads, [*states, counters], layouts, args)
    return problem or _compare("AdamW", params, expected_adam, dtype)


def _tensors(device: torch.device, dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for _, shape, _, aligned in CASES:
        values = torch.randn(shape, generator=generator)
        memory = torch.empty(values.numel() + 1, dtype=dtype, device=device)
        view = memory[:-1] if aligned else memory[1:]
        tensors.append(view.view(shape).copy_(values))
    return tensors


def _sgd(p: Tensor, g: Tensor, m: Tensor, layout: Layout | None) -> Tensor:
    p, g, m = p.double(), g.double(), m.double()
    x = g + 0.1 * p
    x = x if layout is None else centralize(x, layout)
    return p - 0.1 * (0.9 * m + x)


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, layout: Layout | None) -> Tensor:
    p, g, m, v = p.double(), g.double(), m.double(), v.double()
    x = g if layout is None else centralize(g, layout)
    m, v = 0.9 * m + 0.1 * x, 0.99 * v + 0.01 * x * x
    return p * (1 - 0.1 * 0.1) - 0.1 * m / (1 - 0.9**2) / ((v / (1 - 0.99**2)).sqrt() + 1e-2)


def _compare(what: str, results: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> str:
    for (name, _, _, _), result, truth in zip(CASES, results, expected, strict=True):
        error = ((result.double() - truth).abs() / (1 + truth.abs())).max().item()
        if not error <= TOLERANCE[dtype]:
            return f"{what} of {name} differs from the reference by {error:.2g}"
    return ""
