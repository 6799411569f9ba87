"""The native CPU kernels: centralize, and whole steps of SGD, Adam and Adagrad, one C call per list.

The C code (csrc/) knows plain pointers and the four integers of a layout. It finds the mean of a
weight vector, applies decay, moments and update while the vector is in cache, and uses the OpenMP
pool that torch has already; the result does not depend on the number of threads or on the
instruction set. Parameters that the plan leaves alone (layout None) are part of the same call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradcent.layout import Layout
from gradcent.operator import has_shared_elements

from . import _torch_functions
from .fused_steps import FusedRule, StepArgs

try:
    from gradcent.kernels import _native
except ImportError as error:  # built without a compiler, or not built at all
    _native = None  # type: ignore[assignment]
    _why_not = f"the C extension is not there ({error}); reinstall gradcent where a C compiler is to be found"

Layouts = Sequence[Layout | None]

_DTYPES = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.float16: 3}


class Unsupported(TypeError):
    """These tensors are not for the native kernels; nothing has been changed."""


if _native is not None:
    Unsupported = _native.Unsupported  # type: ignore[misc,assignment]


def available() -> bool:
    """Return whether the native kernels can be used on this machine."""
    return _native is not None


def reason() -> str:
    """Return the instruction set in use and the threads' origin, or why there are no native kernels."""
    if _native is None:
        return _why_not
    slower = "" if _way == "torch" else f", tensors seen through {_way}"  # than torch's own functions
    return f"native CPU kernels ({_native.instruction_set()}, threads of {_openmp}{slower})"


def centralize_(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor | None] | None = None,
    decay: float = 0.0,
) -> dict[int, Tensor]:
    """In place t −= mean(t + decay·w) for each weight vector; tensors without a layout are left alone.

    A tensor whose weight is None has no decay.

    Returns, by index, the results for tensors that cannot be written to because their elements share
    memory (an expanded gradient); they are as they were. Nearly always there are none.
    """
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    own = [tensors[i] for i in chosen]
    shares = None if weights is None else [weights[i] for i in chosen]
    shared = _centralize(own, own, [layouts[i] for i in chosen], shares, decay)
    _touched(own)
    return {chosen[i]: result for i, result in shared.items()}


def centralized(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor | None] | None = None,
    decay: float = 0.0,
) -> list[Tensor]:
    """Return t − mean(t + decay·w) for each tensor; those without a layout are returned as they are."""
    chosen = [i for i, layout in enumerate(layouts) if layout is not None]
    out = list(tensors)
    for i in chosen:
        out[i] = torch.empty_like(tensors[i])
    _centralize(
        [out[i] for i in chosen],
        [tensors[i] for i in chosen],
        [layouts[i] for i in chosen],
        None if weights is None else [weights[i] for i in chosen],
        decay,
    )
    return out


def step_lists(
    rule: FusedRule,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[list[Any]],
    layouts: Layouts,
    args: StepArgs,
) -> None:
    """One step of a list of parameters; `states` are the lists of `rule.state_keys`.

    Step counters are incremented. Missing momentum buffers (None) are created and put into their list.
    """
    if args.found_inf is not None and float(args.found_inf):
        return  # Without this check torch would store the new, empty momentum buffers.
    keys = rule.keys(args)
    lists: tuple[Any, ...] = (params, grads, *states) if keys else (params, grads, None)
    _step(getattr(_kernels(), rule.kernel), lists, layouts, _numbers(rule, args), args.grad_scale)


class LayoutTable:
    """The layouts of a param group's parameters in the form the C code reads, reused across steps."""

    __slots__ = ("capsule", "params")

    def __init__(self, params: Sequence[Tensor], layouts: Layouts) -> None:
        self.params = list(params)  # the C table borrows these references
        self.capsule = _kernels().table(self.params, _as_list(layouts))


def step_group(
    rule: FusedRule, table: LayoutTable, params: list[Tensor], state: dict[Any, Any], args: StepArgs
) -> bool | None:
    """One step of those parameters of a group that have a gradient; their states must exist.

    False: the kernels cannot take this group, nothing was changed. None: the table belongs to another list.
    """
    if args.grad_scale is not None or args.found_inf is not None:
        return False
    numbers = _numbers(rule, args)
    return _kernels().group(rule.kernel, table.capsule, params, state, rule.keys(args), numbers)  # type: ignore[no-any-return]


def _numbers(rule: FusedRule, args: StepArgs) -> tuple[Any, ...]:
    """Return the hyperparameters in the order that csrc reads them."""
    return (
        *[float(getattr(args, name)) for name in rule.hyperparameters],
        float(args.weight_decay),
        args.decoupled,
        args.projected,
        args.maximize,
        args.at == "update",
        0.0 if args.grad_scale is None else float(args.grad_scale),
        torch.get_num_threads(),
    )


def collect(
    params: list[Tensor],
    state: Any,
    keys: tuple[str, ...],
    outputs: tuple[list[Any], ...],
    *,
    required: bool,
) -> bool:
    """Gather parameters with gradients, gradients and states, as torch's `_init_group` does; False: not done.

    Every gradient must be a dense tensor on the CPU and, if `required`, every state must be there.
    """
    return _native is not None and bool(_native.collect(params, state, keys, required, outputs))


def _kernels() -> Any:
    if _native is None:
        raise RuntimeError(f"no native kernels: {_why_not}")
    return _native


def _as_list(items: Sequence[Any]) -> list[Any]:
    return items if type(items) is list else list(items)


def _step(
    kernel: Callable[..., list[int]],
    lists: tuple[list[Any] | None, ...],
    layouts: Layouts,
    numbers: tuple[Any, ...],
    grad_scale: Tensor | None,
) -> None:
    """Run `kernel`; what it leaves out (dims in an odd order) goes through contiguous copies."""
    _refuse_negated(lists[1] or ())
    left_out = kernel(lists, _as_list(layouts), numbers)
    for i in left_out:
        originals = [None if items is None else items[i] for items in lists]
        copies = [[None if t is None else t.contiguous()] for t in originals]
        theirs = tuple(None if items is None else copy for copy, items in zip(copies, lists, strict=True))
        kernel(theirs, [layouts[i]], numbers)
        for items, original, (copy,) in zip(lists, originals, copies, strict=True):
            if items is not None and original is None:
                items[i] = copy  # a momentum buffer that was not there
            elif (
                original is not None
                and copy is not original
                and (items is not lists[1] or grad_scale is not None)
            ):
                original.copy_(copy)
    # The weights only: nobody differentiates through an optimizer's states.
    _touched(lists[0])  # type: ignore[arg-type]


def _centralize(
    out: list[Tensor],
    tensors: list[Tensor],
    layouts: Layouts,
    weights: list[Tensor | None] | None,
    decay: float,
) -> dict[int, Tensor]:
    kernels = _kernels()
    threads = torch.get_num_threads()
    _refuse_negated(tensors)
    shared = {}
    for i in kernels.centralize((out, tensors, weights), _as_list(layouts), (decay, threads)):
        copy = tensors[i].clone(memory_format=torch.contiguous_format)
        weight = None if weights is None else weights[i]
        own = None if weight is None else [weight.contiguous()]
        kernels.centralize(([copy], [copy], own), [layouts[i]], (decay, threads))
        if has_shared_elements(out[i]):
            shared[i] = copy
        else:
            out[i].copy_(copy)
    return shared


def _refuse_negated(gradients: Sequence[Any]) -> None:
    """DLPack does not say that a gradient is the negated view of its memory, as torch.imag(z.conj()) is."""
    if _way == "dlpack" and any(map(Tensor.is_neg, gradients)):
        index = next(i for i, each in enumerate(gradients) if each.is_neg())
        raise Unsupported(f"tensor {index}: its gradient is a negated view; resolve_neg() it")


def _touched(tensors: list[Tensor]) -> None:
    """Tell autograd that these were written to, as an in-place operation of torch's would."""
    if _kernels().count_changes(tensors):
        return
    try:
        torch.autograd.graph.increment_version(tensors)
    except RuntimeError:  # made under inference mode: such tensors keep no count
        torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


def _describe(tensor: Tensor) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Show a tensor to the C code where DLPack's C functions cannot: old torch, subclasses."""
    # A subclass with its own dispatch (DTensor, quantized and fake tensors) is more than its memory.
    plain = type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    dense = plain and tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_neg()
    dtype = _DTYPES.get(tensor.dtype, -1) if dense else -1
    if dtype < 0 or (
        tensor.data_ptr() == 0 and tensor.numel()
    ):  # such as the zeros that autograd does not write out
        return (0, -1, (), ())
    return (tensor.data_ptr(), dtype, tuple(tensor.shape), tensor.stride())


def _look_through(way: str) -> str:
    """Let the C code look at tensors through "torch", "dlpack" or "python"; "auto" takes the quickest that is safe."""
    if way not in ("auto", "torch", "dlpack", "python"):
        raise ValueError(f"GRADCENT_LOOK is {way!r}, but there are only 'torch', 'dlpack' and 'python'")
    exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None) if way != "python" else None
    _kernels().setup((Tensor, torch.nn.Parameter), exchange, _describe, torch.zeros_like, *_entry_points)
    found = "python" if exchange is None else "dlpack"
    if way == "torch" or (way == "auto" and _torch_functions.proven(torch.__version__)):
        if _torch_functions.use_for_tensors(_native, _DTYPES):
            found = "torch"
    else:
        _kernels().torch_functions(None)
    if way not in ("auto", found):
        raise RuntimeError(
            f"GRADCENT_LOOK={way}: torch {torch.__version__} does not offer that; unset it, or take {found!r}"
        )
    return found


if _native is not None:
    _openmp, _entry_points = _torch_functions.openmp()
    _way = _look_through(os.environ.get("GRADCENT_LOOK", "auto"))
