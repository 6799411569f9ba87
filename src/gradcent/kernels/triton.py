"""The host side of the Triton kernels: tables of pointers, and one launch per list and dtype.

Nothing here waits for the GPU: step counters, learning rate, gradient scale and found_inf may live
there and are read there, so a step can be captured in a CUDA graph. The tables are kept on the device
and made anew only when a tensor has moved.
"""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..layout import Layout
from .fused_steps import At, FusedRule, StepArgs
from .native import Unsupported

Layouts = Sequence[Layout | None]
STRETCH = 4096  # elements of a tensor without a layout that one program takes

_tables: OrderedDict[Any, tuple[Tensor, Tensor, int]] = OrderedDict()
_KEPT = 64


@functools.cache
def available() -> bool:
    """Return whether Triton is installed."""
    try:
        import triton  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        return False
    return True


def reason() -> str:
    """Return why there are no Triton kernels, or that there are."""
    return "Triton kernels" if available() else "Triton is not installed: pip install triton"


def centralized(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None = None,
    decay: float | Tensor = 0.0,
) -> list[Tensor]:
    """Return t − mean(t + decay·w) for each tensor; those without a layout are returned as they are."""
    out = list(tensors)
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    for i in chosen:
        out[i] = torch.empty_like(tensors[i])
    own = [tensors[i] for i in chosen]
    shares = own if weights is None else [weights[i] for i in chosen]
    lists = [shares, own, [out[i] for i in chosen]]
    _launch(
        "CENTRALIZE",
        lists,
        [layouts[i] for i in chosen],
        {"decay": float(decay)},
        None,
        "gradient",
        True,
        None,
        None,
    )
    return out


def centralize_(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None = None,
    decay: float | Tensor = 0.0,
) -> None:
    """In place t −= mean(t + decay·w) for each weight vector; tensors without a layout are left alone."""
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    own = [tensors[i] for i in chosen]
    shares = own if weights is None else [weights[i] for i in chosen]
    _launch(
        "CENTRALIZE", [shares, own, own], [layouts[i] for i in chosen], {"decay": float(decay)}, None, "gradient", True,
        None, None,
    )  # fmt: skip


def sgd(
    params: list[Tensor], grads: list[Tensor], momentum_buffers: list[Tensor | None], layouts: Layouts, *,
    lr: float | Tensor, momentum: float, dampening: float, nesterov: bool, weight_decay: float, decoupled: bool,
    maximize: bool, projected: bool = True, at: At = "gradient", grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of SGD, or SGDW if `decoupled`; missing momentum buffers are made and put into the list."""
    lists: list[Any] = [params, grads]
    first = [False] * len(params)
    if momentum:
        _check(params, grads)
        first = [each is None for each in momentum_buffers]
        for i, fresh in enumerate(first):
            if fresh:  # found_inf is not known here: zeros are as good as no buffer, if not torch's own
                momentum_buffers[i] = torch.zeros_like(params[i])
        lists.append(momentum_buffers)
    numbers = {
        "momentum": momentum,
        "keep": 1 - dampening,
        "of_x": float(nesterov),
        "of_m": momentum if nesterov else 1.0,
    }
    _launch(
        "MOMENTUM" if momentum else "PLAIN", lists, layouts, {**numbers, **_decay(weight_decay, decoupled, maximize)},
        _rates(params[0], lr, None, None, _shrink(weight_decay, decoupled), len(params)), at, projected, grad_scale,
        found_inf, first,
    )  # fmt: skip


def adam(
    params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor], steps: list[Tensor],
    layouts: Layouts, *, lr: float | Tensor, beta1: float | Tensor, beta2: float | Tensor, eps: float,
    weight_decay: float, decoupled: bool, maximize: bool, projected: bool = True, at: At = "gradient",
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of Adam, or AdamW if `decoupled`; the step counters are incremented."""
    _check(params, grads, exp_avgs, exp_avg_sqs)
    beta1, beta2 = float(beta1), float(beta2)
    counted = _count(params[0], steps, found_inf)
    numbers = {"blend": 1 - beta1, "beta2": beta2, "rest": 1 - beta2, "eps": eps}
    rates = _rates(
        params[0],
        lr,
        1 - beta1**counted,
        (1 - beta2**counted).sqrt(),
        _shrink(weight_decay, decoupled),
        len(params),
    )
    _launch(
        "ADAM", [params, grads, exp_avgs, exp_avg_sqs], layouts,
        {**numbers, **_decay(weight_decay, decoupled, maximize)}, rates, at, projected, grad_scale, found_inf,
    )  # fmt: skip


def adagrad(
    params: list[Tensor], grads: list[Tensor], state_sums: list[Tensor], steps: list[Tensor], layouts: Layouts, *,
    lr: float | Tensor, lr_decay: float, eps: float, weight_decay: float, decoupled: bool, maximize: bool,
    projected: bool = True, at: At = "gradient", grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    """One step of Adagrad; the step counters are incremented."""
    _check(params, grads, state_sums)
    slowed = 1 + (_count(params[0], steps, found_inf) - 1) * lr_decay
    _launch(
        "ADAGRAD", [params, grads, state_sums], layouts, {"eps": eps, **_decay(weight_decay, decoupled, maximize)},
        _rates(params[0], lr, slowed, None, _shrink(weight_decay, decoupled), len(params)), at, projected, grad_scale,
        found_inf,
    )  # fmt: skip


def step_lists(
    rule: FusedRule,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[list[Any]],
    layouts: Layouts,
    args: StepArgs,
) -> None:
    """One step of a list of parameters; `states` are the lists of `rule.state_keys`."""
    step = {"sgd": sgd, "adam": adam, "adagrad": adagrad}[rule.kernel]
    step(
        params, grads, *states, layouts, weight_decay=args.weight_decay, decoupled=args.decoupled,
        projected=args.projected, maximize=args.maximize, at=args.at, grad_scale=args.grad_scale,
        found_inf=args.found_inf, **{name: getattr(args, name) for name in rule.hyperparameters},
    )  # type: ignore[operator]  # fmt: skip


def _decay(weight_decay: float, decoupled: bool, maximize: bool) -> dict[str, float]:
    return {"decay": 0.0 if decoupled else float(weight_decay), "sign": -1.0 if maximize else 1.0}


def _shrink(weight_decay: float, decoupled: bool) -> float:
    return float(weight_decay) if decoupled else 0.0


def _count(like: Tensor, steps: list[Tensor], found_inf: Tensor | None) -> Tensor:
    """Increment the counters and return them as one float64 tensor beside the parameters."""
    torch._foreach_add_(steps, 1)
    counted = torch.stack([each.reshape(()) for each in steps]).to(
        like.device, torch.float64, non_blocking=True
    )
    if found_inf is not None:  # the kernel leaves everything alone then, and the step does not count
        torch._foreach_sub_(steps, [found_inf.to(steps[0].device).reshape(())] * len(steps))
    return counted


def _rates(
    like: Tensor,
    lr: float | Tensor,
    divisor: Tensor | None,
    correction: Tensor | None,
    shrink: float,
    count: int,
) -> Tensor:
    """Per tensor: the rate, 1/sqrt(1 − β₂ᵗ), and lr·λ of decoupled decay."""
    one = torch.ones(count, dtype=torch.float64, device=like.device)
    rate = one * lr
    columns = [
        rate if divisor is None else rate / divisor,
        one if correction is None else 1 / correction,
        rate * shrink,
    ]
    return (
        torch.stack(columns, dim=1)
        .to(torch.float64 if like.dtype == torch.float64 else torch.float32)
        .contiguous()
    )


def _check(*lists: Sequence[Tensor | None]) -> None:
    for i, operands in enumerate(zip(*lists, strict=True)):
        each = [t for t in operands if t is not None]
        guide = each[0]
        plain = all(
            type(t).__torch_dispatch__ is Tensor.__torch_dispatch__ and t.layout is torch.strided
            for t in each
        )
        on_device = all(t.is_cuda for t in each) or os.environ.get("TRITON_INTERPRET") == "1"
        floats = guide.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        same = all(
            t.dtype == guide.dtype and t.shape == guide.shape and t.device == guide.device for t in each
        )
        if not (plain and on_device and floats and same):
            raise Unsupported(f"tensor {i}: not dense CUDA tensors of one floating type and shape")


def _dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps or overlaps, in whatever order."""
    expected = 1
    for stride, size in sorted(
        (tensor.stride(d), tensor.shape[d]) for d in range(tensor.dim()) if tensor.shape[d] > 1
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def _arranged(operands: Sequence[Tensor], layout: Layout | None, index: int) -> Layout:
    """The layout in the order of memory: contiguous tensors, or rows in any dense order (channels-last)."""
    guide = operands[0]
    if all(t.is_contiguous() for t in operands):
        return layout or Layout(1, 1, -(-guide.numel() // STRETCH), STRETCH)
    dense = guide.numel() == 0 or _dense(guide)
    rows = layout is None or (
        layout.batch == layout.outer == 1
        and layout.vectors == guide.shape[0]
        and guide.stride(0) == layout.inner
    )
    if not dense or not rows or any(t.stride() != guide.stride() for t in operands):
        raise Unsupported(f"tensor {index}: dims in an order that the Triton kernels do not follow")
    return layout or Layout(1, 1, -(-guide.numel() // STRETCH), STRETCH)


def _tables_for(
    lists: list[list[Tensor]], layouts: Layouts, first: Sequence[bool]
) -> tuple[Tensor, Tensor, int]:
    from . import triton_kernels as code

    every = [t for items in lists for t in items]
    key = (
        tuple(t.data_ptr() for t in every),
        tuple(t.stride() for t in every),
        tuple(layouts),
        tuple(first),
        every[0].device,
    )
    if key in _tables:
        _tables.move_to_end(key)
        return _tables[key]
    rows, tasks = [], []
    for i, operands in enumerate(zip(*lists, strict=True)):
        own, centred = _arranged(operands, layouts[i], i), layouts[i] is not None
        pointers = [t.data_ptr() for t in operands] + [0] * (4 - len(operands))
        wide = centred and own.inner < 32 and own.vectors > 1
        numel = operands[0].numel()
        rows.append([*pointers, *own.shape, numel, int(centred), int(wide), int(first[i])])
        if numel:
            each = (code.COLUMN_TILE if wide else code.ROW_TILE)[0]
            tasks += [[i, vector] for vector in range(0, own.count, each)]
    device = lists[0][0].device
    made = (
        torch.tensor(rows, dtype=torch.int64).to(device, non_blocking=True),
        torch.tensor(tasks, dtype=torch.int64).reshape(-1, 2).to(device, non_blocking=True),
        len(tasks),
    )
    _tables[key] = made
    if len(_tables) > _KEPT:
        _tables.popitem(last=False)
    return made


def _launch(
    op: str, lists: list[list[Tensor]], layouts: Layouts, numbers: dict[str, float], rates: Tensor | None, at: At,
    projected: bool, grad_scale: Tensor | None, found_inf: Tensor | None, first: Sequence[bool] | None = None,
) -> None:  # fmt: skip
    _check(*lists)
    if not lists[0]:
        return
    if not available():
        raise RuntimeError(reason())
    from . import triton_kernels as code

    device = lists[0][0].device
    first = first or [False] * len(layouts)
    if rates is None:
        rates = torch.zeros(len(layouts), 3, device=device)
    for dtype in dict.fromkeys(t.dtype for t in lists[0]):
        own = [i for i, t in enumerate(lists[0]) if t.dtype == dtype]
        table, tasks, programs = _tables_for(
            [[items[i] for i in own] for items in lists], [layouts[i] for i in own], [first[i] for i in own]
        )
        if programs:
            own_rates = rates if len(own) == len(layouts) else rates[torch.tensor(own, device=device)]
            _call(
                code,
                op,
                dtype,
                table,
                own_rates,
                tasks,
                programs,
                numbers,
                at,
                projected,
                grad_scale,
                found_inf,
            )


def _call(
    code: Any, op: str, dtype: torch.dtype, table: Tensor, rates: Tensor, tasks: Tensor, programs: int,
    numbers: dict[str, float], at: At, projected: bool, grad_scale: Tensor | None, found_inf: Tensor | None,
) -> None:  # fmt: skip
    import triton.language as tl  # type: ignore[import-untyped]

    types = {
        torch.float32: tl.float32,
        torch.float64: tl.float64,
        torch.bfloat16: tl.bfloat16,
        torch.float16: tl.float16,
    }
    scaled = grad_scale is not None or found_inf is not None
    one = torch.ones((), device=table.device)
    names = ("sign", "decay", "momentum", "keep", "of_x", "of_m", "blend", "beta2", "rest", "eps")
    code.step_kernel[(programs,)](
        table,
        rates,
        tasks,
        one if grad_scale is None else grad_scale.to(table.device),
        one * 0 if found_inf is None else found_inf.to(table.device),
        *({"sign": 1.0, **numbers}.get(name, 0.0) for name in names),
        T=types[dtype],
        ACC=tl.float64 if dtype == torch.float64 else tl.float32,
        OP=getattr(code, op),
        COUPLED=numbers.get("decay", 0.0) != 0 and op != "CENTRALIZE",
        PROJECTED=numbers.get("decay", 0.0) != 0 and projected,
        UPDATE=at == "update",
        SCALED=scaled,
        ROW_V=code.ROW_TILE[0],
        ROW_L=code.ROW_TILE[1],
        COLUMN_V=code.COLUMN_TILE[0],
        COLUMN_L=code.COLUMN_TILE[1],
        enable_fp_fusion=False,  # a constant vector has to leave exactly 0
    )
