"""Launching the Triton kernels: hyperparameters, learning rates and step counters of one list of tensors.

Nothing here waits for the device. Step counters, a learning rate, a gradient scale and `found_inf` that live
on the device are read there, so a step can be captured in a CUDA graph. Counters on the CPU are read and
incremented on the CPU.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .fused_steps import FusedRule, StepArgs
from .native import Unsupported
from .triton_tables import COUNTER, Check, Layouts, Table, c_function, group_table, table_for

Scalars = dict[str, float]


def centralize(
    out: Sequence[Tensor],
    tensors: Sequence[Tensor],
    weights: Sequence[Tensor] | None,
    layouts: Layouts,
    decay: float | Tensor,
) -> None:
    """Write t - mean(t + decay * w) to `out`; all tensors have layouts."""
    table = table_for([tensors if weights is None else weights, tensors, out], layouts)
    constants = _constants("CENTRALIZE", decay="NO_DECAY" if weights is None else "PROJECTED")
    with _on(table.device):
        if isinstance(decay, Tensor) and decay.device == table.device:
            _launch_all(table, constants, {}, decay.to(torch.float64), None, None)
        else:
            _launch_all(table, constants, {"decay": float(decay)}, None, None, None)


def step(
    rule: FusedRule,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[list[Any]],
    layouts: Layouts,
    args: StepArgs,
) -> None:
    """One step of a list of parameters; counters are incremented, missing momentum buffers (None) are created."""
    if rule.kernel == "sgd" and args.momentum:
        fresh = [i for i, buffer in enumerate(states[0]) if buffer is None]
        if fresh:
            table_for([params, grads], layouts)  # raises Unsupported before anything is changed
        if 0 < len(fresh) < len(params):
            # A new buffer ignores dampening: two kinds of tensors, two steps.
            old = sorted(set(range(len(params))) - set(fresh))
            _step_subset(rule, params, grads, states, layouts, args, old)
            return _step_subset(rule, params, grads, states, layouts, args, fresh)
        for i in fresh:  # found_inf is not known here: a buffer of zeros is the same as none
            states[0][i] = torch.zeros_like(params[i])
        return _step_lists(rule, [params, grads, states[0]], layouts, args, fresh=bool(fresh))
    lists: list[Any] = [params, grads]
    if rule.kernel == "adam":
        lists = [params, grads, states[0], states[1], states[2]]
    elif rule.kernel == "adagrad":
        lists = [params, grads, states[0], None, states[1]]
    return _step_lists(rule, lists, layouts, args)


def _step_subset(
    rule: FusedRule,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[list[Any]],
    layouts: Layouts,
    args: StepArgs,
    chosen: list[int],
) -> None:
    subset = [[items[i] for i in chosen] for items in states]
    step(
        rule,
        [params[i] for i in chosen],
        [grads[i] for i in chosen],
        subset,
        [layouts[i] for i in chosen],
        args,
    )
    for items, new in zip(states, subset, strict=True):
        for i, state in zip(chosen, new, strict=True):
            items[i] = state


def _step_lists(
    rule: FusedRule, lists: list[Any], layouts: Layouts, args: StepArgs, fresh: bool = False
) -> None:
    counters = lists[COUNTER] if len(lists) > COUNTER else None
    _step_table(rule, table_for(lists, layouts), lists[0], counters, args, fresh)


def step_group(
    rule: FusedRule,
    params: list[Tensor],
    state: dict[Any, Any],
    layouts: Layouts,
    args: StepArgs,
    check: Check,
) -> bool:
    """One step of those parameters of a group that have a gradient; False, and nothing changed, if it cannot.

    `check(device, dtypes)` is called before the first step of a list, and raises Unsupported to prevent it.
    """
    keys = rule.keys(args)
    columns = {"sgd": (2,), "adam": (2, 3, COUNTER), "adagrad": (2, COUNTER)}[rule.kernel][: len(keys)]
    result = group_table(params, state, keys, columns, layouts, check)
    if result is None:
        return False
    table, used, counters = result
    _step_table(rule, table, used, counters or None, args, fresh=False)
    return True


def _step_table(
    rule: FusedRule,
    table: Table,
    params: list[Tensor],
    counters: list[Tensor] | None,
    args: StepArgs,
    fresh: bool,
) -> None:
    for beta in (args.beta1, args.beta2):
        if isinstance(beta, Tensor) and beta.is_cuda:
            raise Unsupported(f"a beta is a tensor on {beta.device}: the Triton kernels would wait for it")
    if counters is not None and not table.counters_checked:
        _check_counters(counters)
        table.counters_checked = True  # from now on the signatures of the rows cover the counters
    with _on(table.device):
        name, scalars = _rule(rule, args, fresh)
        rates = _rates(rule, table, counters, args, scalars)
        constants = _constants(name, _decay(args), args.at == "update", args.maximize)
        _launch_all(table, constants, scalars, rates, args.grad_scale, args.found_inf)
    bump_versions(params)


def _rule(rule: FusedRule, args: StepArgs, fresh: bool) -> tuple[str, Scalars]:
    """Return the name of the kernels' update rule and the hyperparameters it reads."""
    weight_decay = float(args.weight_decay)
    scalars = {"decay": 0.0 if args.decoupled else weight_decay, "eps": float(args.eps)}
    if rule.kernel == "adam":
        beta1, beta2 = float(args.beta1), float(args.beta2)
        return "ADAM", {**scalars, "grad_weight": 1 - beta1, "beta2": beta2, "one_minus_beta2": 1 - beta2}
    if rule.kernel == "adagrad":
        return "ADAGRAD", scalars
    if not args.momentum:
        return "PLAIN", scalars
    # A new buffer becomes the gradient, whatever the dampening is.
    grad_weight = 1.0 if fresh else 1 - args.dampening
    return "NESTEROV" if args.nesterov else "MOMENTUM", {
        **scalars,
        "momentum": float(args.momentum),
        "grad_weight": grad_weight,
    }


def _decay(args: StepArgs) -> str:
    if not args.weight_decay:
        return "NO_DECAY"
    if args.decoupled:
        return "DECOUPLED"
    return "PROJECTED" if args.projected else "COUPLED"


def _rates(
    rule: FusedRule, table: Table, counters: list[Tensor] | None, args: StepArgs, scalars: Scalars
) -> Tensor | None:
    """Advance the counters and set the learning rates: in `scalars`, or per tensor in a tensor on the device."""
    on_device = counters is not None and counters[0].device == table.device and counters[0].is_cuda
    device_lr = isinstance(args.lr, Tensor) and args.lr.is_cuda
    if on_device or (device_lr and counters is None):
        return _device_rates(rule, table, counters, args)
    steps = [] if counters is None else _advance(counters)
    if counters is not None and args.found_inf is not None and bool(args.found_inf):
        torch._foreach_sub_(counters, 1)  # the kernels change nothing then, and the step does not count
    factors = {t: _factors(rule, t, args) for t in set(steps) or {1.0}}
    if len(factors) == 1 and not device_lr:
        (rate, bias_scale), lr = next(iter(factors.values())), float(args.lr)
        scalars |= {"rate": lr * rate, "bias_scale": bias_scale, "shrink": lr * float(args.weight_decay)}
        return None
    if len(factors) == 1:
        steps = [next(iter(factors))] * len(table.rows)
    columns = torch.tensor([[*factors[t], float(args.weight_decay)] for t in steps], dtype=torch.float64)
    columns = columns.to(table.device, non_blocking=True)
    columns[:, 0] *= args.lr
    columns[:, 2] *= args.lr
    return columns


def _advance(counters: list[Tensor]) -> list[float]:
    """Increment counters on the CPU; return their values, or one value if all are the same."""
    advance = c_function("advance_counters")
    if advance is not None:
        value = advance(counters, 1)
        return [counter.item() for counter in counters] if value is None else [value]
    torch._foreach_add_(counters, 1)
    return [counter.item() for counter in counters]


def _check_counters(counters: list[Tensor]) -> None:
    dtype, device = counters[0].dtype, counters[0].device
    if dtype not in (torch.float32, torch.float64) or any(
        t.dtype != dtype or t.device != device for t in counters
    ):
        raise Unsupported("the step counters differ in dtype or device, or are not floating point")


def _factors(rule: FusedRule, step: float, args: StepArgs) -> tuple[float, float]:
    """Return what step number `step` makes of the learning rate, and 1 / sqrt(1 - beta2^step)."""
    if rule.kernel == "adam":
        return 1 / (1 - float(args.beta1) ** step), 1 / math.sqrt(1 - float(args.beta2) ** step)
    return (1 / (1 + (step - 1) * args.lr_decay) if rule.kernel == "adagrad" else 1.0), 1.0


def _device_rates(rule: FusedRule, table: Table, counters: list[Tensor] | None, args: StepArgs) -> Tensor:
    import triton.language as tl  # type: ignore[import-untyped]

    from . import triton_kernels

    count, block = len(table.rows), 128
    if table.rates is None:
        table.rates = torch.empty(count, 3, dtype=torch.float64, device=table.device)
    dtypes = {torch.float32: tl.float32, torch.float64: tl.float64}
    step_dtype = torch.float32 if counters is None else counters[0].dtype
    device_lr = isinstance(args.lr, Tensor) and args.lr.device == table.device
    name = {"adam": "ADAM", "adagrad": "ADAGRAD"}.get(rule.kernel, "PLAIN")
    launch(
        triton_kernels.rates_kernel,
        -(-count // block),
        table.pointers,
        table.rates,
        args.lr if device_lr else None,
        args.found_inf,
        count,
        0.0 if device_lr else float(args.lr),
        math.log2(float(args.beta1)) if args.beta1 else -math.inf,
        math.log2(float(args.beta2)) if args.beta2 else -math.inf,
        float(args.lr_decay),
        float(args.weight_decay),
        STEP_T=dtypes[step_dtype],
        RULE=getattr(triton_kernels, name).value,
        DEVICE_LR=device_lr,
        SCALED=args.found_inf is not None,
        BLOCK=block,
    )
    return table.rates


def _constants(rule: str, decay: str, update: bool = False, maximize: bool = False) -> dict[str, Any]:
    from . import triton_kernels

    return {
        "RULE": getattr(triton_kernels, rule).value,
        "DECAY": getattr(triton_kernels, decay).value,
        "UPDATE": update,
        "MAXIMIZE": maximize,
    }


def _launch_all(
    table: Table, constants: dict[str, Any], scalars: Scalars, rates: Tensor | None, grad_scale: Tensor | None,
    found_inf: Tensor | None,
) -> None:  # fmt: skip
    from . import triton_kernels

    scaled = grad_scale is not None or found_inf is not None
    if scaled:
        grad_scale = _on_device(grad_scale, 1.0, table.device)
        found_inf = _on_device(found_inf, 0.0, table.device)
    numbers = [scalars.get(name, 0.0) for name in SCALARS]
    for specialisation, tasks, num_warps in table.launches:
        kernel = getattr(triton_kernels, f"{specialisation.kernel}_kernel")
        launch(
            kernel, len(tasks), table.pointers, table.sizes, tasks, rates, grad_scale, found_inf, *numbers,
            **constants, SCALED=scaled, DEVICE_RATES=rates is not None, **compile_constants(specialisation),
            num_warps=num_warps,
        )  # fmt: skip


SCALARS = (
    "rate",
    "bias_scale",
    "shrink",
    "decay",
    "momentum",
    "grad_weight",
    "beta2",
    "one_minus_beta2",
    "eps",
)


def compile_constants(specialisation: Any) -> dict[str, Any]:
    """Return the constants of a specialisation as the kernels take them: dtypes are Triton's."""
    import triton.language as tl

    names = {
        torch.float32: tl.float32,
        torch.float64: tl.float64,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
    }
    constants = {"T": names[specialisation.dtype], "ACC": tl.float32}
    if specialisation.dtype == torch.float64:
        constants["ACC"] = tl.float64
    constants |= dict(specialisation.constants)
    if "INDEX" in constants:
        constants["INDEX"] = getattr(tl, constants["INDEX"])
    return constants


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launch `kernel`: the only place that does, so that tests and the host benchmark can replace it."""
    kernel[(programs,)](*arguments, **constants, enable_fp_fusion=True)


def _on_device(value: Tensor | None, default: float, device: torch.device) -> Tensor:
    return torch.full((), default, device=device) if value is None else value.to(device, non_blocking=True)


def _on(device: torch.device) -> Any:
    """Triton launches on the current device, which need not be the one of these tensors."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def bump_versions(params: list[Tensor]) -> None:
    """Tell autograd that the parameters were written to, as an in-place operation does."""
    try:
        torch.autograd.graph.increment_version(params)
    except RuntimeError:  # inference tensors have no version counter
        torch.autograd.graph.increment_version([t for t in params if not t.is_inference()])
