"""The native CPU kernels: centralize, and whole steps of SGD, Adam and Adagrad, one C call per list.

The C code (csrc/) knows plain pointers and the four integers of a layout. It finds the mean of a
weight vector, applies decay, moments and update while the vector is in cache, and uses the OpenMP
pool that torch has already; the result does not depend on the number of threads or on the
instruction set. Parameters that the plan leaves alone (layout None) are part of the same call.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gradcent.layout import Layout

try:
    from gradcent.kernels import _native
except ImportError as error:  # built without a compiler, or not built at all
    _native = None  # type: ignore[assignment]
    _why_not = f"the C extension is not there ({error}); reinstall gradcent where a C compiler is to be found"

At = Literal["gradient", "update"]
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
    return f"native CPU kernels ({_native.instruction_set()}, threads of {_openmp})"


def centralize_(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor] | None = None,
    decay: float = 0.0,
) -> dict[int, Tensor]:
    """In place t −= mean(t + decay·w) for each weight vector; tensors without a layout are left alone.

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
    weights: Sequence[Tensor] | None = None,
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


def sgd(
    params: list[Tensor],
    grads: list[Tensor],
    momentum_buffers: list[Tensor | None],
    layouts: Layouts,
    *,
    lr: float | Tensor,
    momentum: float,
    dampening: float,
    nesterov: bool,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    projected: bool = True,
    at: At = "gradient",
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of SGD, or SGDW if `decoupled`; missing momentum buffers are made and put into the list.

    `projected` says whether coupled decay is centralized too: P(g + λw), or Pg + λw.
    """
    if found_inf is not None and float(found_inf):
        # torch's step stores whatever is in the list; an empty buffer would be taken for momentum.
        return
    if momentum == 0:
        momentum_buffers = []
    _step(
        _kernels().sgd,
        [params, grads, momentum_buffers or None],
        layouts,
        (float(lr), float(momentum), dampening, nesterov, weight_decay, decoupled, projected, maximize),
        at,
        grad_scale,
    )


def adam(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    steps: list[Tensor],
    layouts: Layouts,
    *,
    lr: float | Tensor,
    beta1: float | Tensor,
    beta2: float | Tensor,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    projected: bool = True,
    at: At = "gradient",
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of Adam, or AdamW if `decoupled`; the step counters are incremented."""
    if found_inf is not None and float(found_inf):
        return
    _step(
        _kernels().adam,
        [params, grads, exp_avgs, exp_avg_sqs, steps],
        layouts,
        (float(lr), float(beta1), float(beta2), eps, weight_decay, decoupled, projected, maximize),
        at,
        grad_scale,
    )


def adagrad(
    params: list[Tensor],
    grads: list[Tensor],
    state_sums: list[Tensor],
    steps: list[Tensor],
    layouts: Layouts,
    *,
    lr: float | Tensor,
    lr_decay: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
    projected: bool = True,
    at: At = "gradient",
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """One step of Adagrad; the step counters are incremented."""
    if found_inf is not None and float(found_inf):
        return
    _step(
        _kernels().adagrad,
        [params, grads, state_sums, steps],
        layouts,
        (float(lr), lr_decay, eps, weight_decay, decoupled, projected, maximize),
        at,
        grad_scale,
    )


def collect(
    params: list[Tensor],
    state: Any,
    keys: tuple[str, ...],
    outputs: tuple[list[Any], ...],
    *,
    required: bool,
    thorough: bool,
) -> bool:
    """Gather parameters with gradients, gradients and states, as torch's `_init_group` does; False: not done.

    `required`: every state must be there. `thorough`: every gradient must be a dense tensor on the CPU.
    """
    return _native is not None and bool(_native.collect(params, state, keys, required, thorough, outputs))


def _kernels() -> Any:
    if _native is None:
        raise RuntimeError(f"no native kernels: {_why_not}")
    return _native


def _as_list(items: Sequence[Any]) -> list[Any]:
    return items if type(items) is list else list(items)


def _step(
    kernel: Callable[..., list[int]],
    lists: list[list[Any] | None],
    layouts: Layouts,
    numbers: tuple[Any, ...],
    at: At,
    grad_scale: Tensor | None,
) -> None:
    """Run `kernel`; what it leaves out (dims in an odd order) goes through contiguous copies."""
    tail = (*numbers, at == "update", 0.0 if grad_scale is None else float(grad_scale))
    threads = torch.get_num_threads()
    _refuse_negated(lists[1] or ())
    left_out = kernel(*lists, _as_list(layouts), *tail, threads)
    for i in left_out:
        originals = [None if items is None else items[i] for items in lists]
        copies = [[None if t is None else t.contiguous()] for t in originals]
        kernel(
            *[copy if items is not None else None for copy, items in zip(copies, lists, strict=True)],
            [layouts[i]],
            *tail,
            threads,
        )
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
    out: list[Tensor], tensors: list[Tensor], layouts: Layouts, weights: list[Tensor] | None, decay: float
) -> dict[int, Tensor]:
    kernels = _kernels()
    threads = torch.get_num_threads()
    _refuse_negated(tensors)
    shared = {}
    for i in kernels.centralize(out, tensors, weights, _as_list(layouts), decay, threads):
        copy = tensors[i].clone(memory_format=torch.contiguous_format)
        weight = None if weights is None else [weights[i].contiguous()]
        kernels.centralize([copy], [copy], weight, [layouts[i]], decay, threads)
        if torch._debug_has_internal_overlap(out[i]) == 0:
            out[i].copy_(copy)
        else:
            shared[i] = copy
    return shared


def _refuse_negated(gradients: Sequence[Any]) -> None:
    """DLPack does not say that a gradient is the negated view of its memory, as torch.imag(z.conj()) is."""
    if any(map(Tensor.is_neg, gradients)):
        index = next(i for i, each in enumerate(gradients) if each.is_neg())
        raise Unsupported(f"tensor {index}: its gradient is a negated view; resolve_neg() it")


def _touched(tensors: list[Tensor]) -> None:
    """Tell autograd that these were written to, as an in-place operation of torch's would."""
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
    return (tensor.data_ptr(), dtype, tuple(tensor.shape), tensor.stride()) if dtype >= 0 else (0, -1, (), ())


def _openmp_entry_points() -> tuple[str, list[int]]:
    """Find the OpenMP library that torch computes with, and its addresses for starting a parallel region."""
    names = ["GOMP_parallel", "__kmpc_fork_call", "__kmpc_push_num_threads", "__kmpc_global_thread_num"]
    names += ["omp_get_thread_num"]
    for path in (None, *_openmp_libraries()):
        try:
            library = ctypes.CDLL(path, mode=ctypes.DEFAULT_MODE | getattr(os, "RTLD_NOLOAD", 0))
        except OSError:
            continue
        found = [_address(library, name) for name in names]
        if found[0] or all(found[1:4]):
            return ("torch's OpenMP", found)
    return ("one core: torch's OpenMP was not found", [0, 0, 0, 0, 0])


def _address(library: ctypes.CDLL, name: str) -> int:
    function = getattr(library, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


def _openmp_libraries() -> list[str]:
    """Return libraries already in the process whose name looks like OpenMP, then those shipped with torch."""
    found: list[str] = []
    if sys.platform == "linux":
        with open("/proc/self/maps") as maps:
            found = [line.split(maxsplit=5)[-1].strip() for line in maps if "omp" in line.rpartition("/")[2]]
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    shipped = os.listdir(folder) if os.path.isdir(folder) else []
    return [*dict.fromkeys(found), *(os.path.join(folder, name) for name in sorted(shipped) if "omp" in name)]


if _native is not None:
    _openmp, _entry_points = _openmp_entry_points()
    _native.setup(
        (Tensor, torch.nn.Parameter),
        getattr(Tensor, "__dlpack_c_exchange_api__", None),
        _describe,
        torch.zeros_like,
        *_entry_points,
    )
