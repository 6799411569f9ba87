"""The first use of a Triton operation on a device: run it once on small tensors and compare with the reference.

Nobody has run these kernels on every GPU. A wrong result or a compile error on a device means that foreach serves this
operation from then on, with one warning that says what to report. Only the operation in use is checked (centralizing,
or the steps of one optimizer, which compile their own kernels); `gradcent doctor` checks all of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..layout import Layout
from ..operator import centralize
from . import triton_launch
from .fused_steps import ADAGRAD, ADAM, SGD, FusedRule, StepArgs
from .native import Unsupported

CASES: tuple[tuple[str, tuple[int, ...], Layout | None, bool], ...] = (
    ("rows", (4, 64), Layout.rows((4, 64)), True),
    ("unaligned rows", (3, 37), Layout.rows((3, 37)), False),
    ("long rows", (1, 4100), Layout.rows((1, 4100)), True),
    ("columns", (40, 32), Layout.columns((40, 32)), True),
    ("unaligned columns", (9, 5), Layout.columns((9, 5)), False),
    ("no layout", (100,), None, True),
)
RULES = {"sgd": SGD, "adam": ADAM, "adagrad": ADAGRAD}
ARGS = {
    "sgd": StepArgs(lr=0.1, momentum=0.9, weight_decay=0.1),
    "adam": StepArgs(lr=0.1, beta1=0.9, beta2=0.99, eps=1e-2, weight_decay=0.1, decoupled=True),
    "adagrad": StepArgs(lr=0.1, eps=1e-2, weight_decay=0.1),
}
CENTRALIZE = "centralize"
OPERATIONS = (CENTRALIZE, *(f"{kernel} at {at}" for kernel in RULES for at in ("gradient", "update")))
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome on one device for one dtype; `problem` is empty if the kernels agree with the reference."""

    device: str
    dtype: torch.dtype
    problem: str = ""


_results: dict[tuple[torch.device, torch.dtype, str], Result] = {}


def operation_of(rule: FusedRule, args: StepArgs) -> str:
    """Return the operation that a step belongs to; its kernels are compiled and checked apart from the others."""
    return f"{rule.kernel} at {args.at}"


def require(device: torch.device, dtypes: set[torch.dtype], operation: str) -> None:
    """Raise Unsupported if an operation failed its check on this device; check it if it was not yet checked."""
    for dtype in dtypes:
        result = _results.get((device, dtype, operation))
        if result is None:
            if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                continue  # comparing waits for the device, which a capture forbids
            result = _results[device, dtype, operation] = check(device, dtype, (operation,))
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


def check(device: torch.device, dtype: torch.dtype, operations: Sequence[str] = OPERATIONS) -> Result:
    """Run operations on small tensors of all kinds and compare with the reference in float64."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    if dtype not in TOLERANCE:
        return Result(name, dtype)  # refused for its dtype elsewhere
    try:
        with torch.no_grad():
            problems = [_difference(operation, device, dtype) for operation in operations]
    except Unsupported:
        raise
    except Exception as error:  # a compile error, a missing driver, an illegal access
        first_line = (str(error).splitlines() or [""])[0]
        problems = [f"{type(error).__name__}: {first_line}"]
    return Result(name, dtype, next(filter(None, problems), ""))


def _difference(operation: str, device: torch.device, dtype: torch.dtype) -> str:
    layouts = [layout for _, _, layout, _ in CASES]
    params, grads, first = (_tensors(device, dtype, seed) for seed in range(3))
    second = [m * m for m in first]
    wide = [[tensor.double() for tensor in tensors] for tensors in (params, grads, first, second)]
    expected = [
        _reference(operation, p, g, m, v, layout) for p, g, m, v, layout in zip(*wide, layouts, strict=True)
    ]
    if operation == CENTRALIZE:
        chosen = [i for i, layout in enumerate(layouts) if layout is not None]
        centralized = [grads[i] for i in chosen]
        triton_launch.centralize(centralized, centralized, None, [layouts[i] for i in chosen], 0.0)
        return _compare(operation, grads, expected, dtype)
    kernel, _, at = operation.partition(" at ")
    counters = [torch.ones((), device=device) for _ in params]
    states = {"sgd": [first], "adam": [first, second, counters], "adagrad": [second, counters]}[kernel]
    args = ARGS[kernel] if at == "gradient" else replace(ARGS[kernel], at="update", weight_decay=0.0)
    triton_launch.step(RULES[kernel], params, grads, states, layouts, args)
    return _compare(operation, params, expected, dtype)


def _tensors(device: torch.device, dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for _, shape, _, aligned in CASES:
        values = torch.randn(shape, generator=generator)
        memory = torch.empty(values.numel() + 1, dtype=dtype, device=device)
        view = memory[:-1] if aligned else memory[1:]
        tensors.append(view.view(shape).copy_(values))
    return tensors


def _reference(operation: str, p: Tensor, g: Tensor, m: Tensor, v: Tensor, layout: Layout | None) -> Tensor:
    """Return the centralized gradient, or the parameter after a step, in float64."""

    def project(x: Tensor) -> Tensor:
        return x if layout is None else centralize(x, layout)

    if operation == CENTRALIZE:
        return project(g)
    kernel, _, at = operation.partition(" at ")
    decay = 0.1 if at == "gradient" else 0.0  # at the update the check leaves decay out
    x = g if kernel == "adam" else g + decay * p
    x = project(x) if at == "gradient" else x
    if kernel == "sgd":
        step = 0.9 * m + x
    elif kernel == "adagrad":
        step = x / ((v + x * x).sqrt() + 1e-2)
    else:
        m, v = 0.9 * m + 0.1 * x, 0.99 * v + 0.01 * x * x
        step = m / (1 - 0.9**2) / ((v / (1 - 0.99**2)).sqrt() + 1e-2)
    step = project(step) if at == "update" else step
    return (p * (1 - 0.1 * decay) if kernel == "adam" else p) - 0.1 * step


def _compare(what: str, results: list[Tensor], expected: list[Tensor], dtype: torch.dtype) -> str:
    for (name, _, _, _), result, truth in zip(CASES, results, expected, strict=True):
        error = ((result.double() - truth).abs() / (1 + truth.abs())).max().item()
        if not error <= TOLERANCE[dtype]:
            return f"{what} of {name} differs from the reference by {error:.2g}"
    return ""
