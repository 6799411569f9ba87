"""The native CPU kernels: centralize, and fused steps of SGD, Adam and Adagrad, one C call per list or param group.

The C code (csrc/) computes the mean of a weight vector and applies decay, moments and update while the vector is in
cache. Parameters that the plan leaves alone (layout None) are part of the same call. The result does not depend on
the number of threads or on the instruction set.

Only documented interfaces of torch are used: tensors are read through DLPack's C exchange table, the threads are
torch's through two C functions of its stable ABI. Where torch lacks the former (before 2.10) the kernels are
unavailable; where it lacks the latter they run on one thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradcent.layout import Layout
from gradcent.operator import has_shared_elements

from .fused_steps import FusedRule, StepArgs

try:
    from gradcent.kernels import _cpu
except ImportError as error:  # built without a compiler, or not built at all
    _cpu = None  # type: ignore[assignment]
    _why_not = f"the C extension is missing ({error}); reinstall gradcent where a C compiler is available"

Layouts = Sequence[Layout | None]


class Unsupported(TypeError):
    """The native kernels cannot take these tensors; nothing has been changed."""


def available() -> bool:
    """Return whether the native kernels can be used on this machine."""
    return _cpu is not None


def reason() -> str:
    """Return the instruction set and the threads in use, or why there are no native kernels."""
    if _cpu is None:
        return _why_not
    return f"native CPU kernels ({_cpu.instruction_set()}, {_threads})"


def allocated_bytes(call: Callable[[], Any]) -> int:
    """Return how many bytes the C code had allocated at most during `call`, beyond what it held before."""
    if _cpu is None:
        return 0
    _cpu.peak_bytes()
    before = _cpu.peak_bytes()  # the first one reset the peak to what is in use
    call()
    return _cpu.peak_bytes() - before


def centralize_(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor | None] | None = None,
    decay: float = 0.0,
) -> dict[int, Tensor]:
    """In place t −= mean(t + decay·w) for each weight vector; tensors without a layout are left alone.

    A tensor whose weight is None has no decay.

    Returns, by index, the results for tensors that cannot be written to because their elements share
    memory (an expanded gradient); those tensors are unchanged. Nearly always there are none.
    """
    selected = [i for i, layout in enumerate(layouts) if layout is not None]
    chosen = [tensors[i] for i in selected]
    shares = None if weights is None else [weights[i] for i in selected]
    replaced = _centralize(chosen, chosen, [layouts[i] for i in selected], shares, decay)
    _bump_versions(chosen)
    return {selected[i]: result for i, result in replaced.items()}


def centralized(
    tensors: Sequence[Tensor],
    layouts: Layouts,
    weights: Sequence[Tensor | None] | None = None,
    decay: float = 0.0,
) -> list[Tensor]:
    """Return t − mean(t + decay·w) for each tensor; those without a layout are returned as they are."""
    selected = [i for i, layout in enumerate(layouts) if layout is not None]
    out = list(tensors)
    for i in selected:
        out[i] = torch.empty_like(tensors[i])
    _centralize(
        [out[i] for i in selected],
        [tensors[i] for i in selected],
        [layouts[i] for i in selected],
        None if weights is None else [weights[i] for i in selected],
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

    Step counters are incremented. Missing momentum buffers (None) are created and put into their list. Tensors
    whose strides the kernels cannot follow are stepped through contiguous copies.
    """
    if args.found_inf is not None and float(args.found_inf):
        return  # no momentum buffers either: torch would store them as they are
    lists: tuple[list[Any], ...] = (params, grads, *(states if rule.keys(args) else ()))
    created = []
    if rule.kernel == "sgd" and len(lists) == 3:
        created = [i for i, buffer in enumerate(lists[2]) if buffer is None]
        for i in created:
            lists[2][i] = torch.zeros_like(params[i])
    numbers = _numbers(rule, args)
    try:
        left_out = _kernels().step_lists(rule.kernel, lists, _as_list(layouts), numbers, created)
    except BaseException:
        for i in created:
            lists[2][i] = None
        raise
    for i in left_out:
        originals = [items[i] for items in lists]
        copies = [original.contiguous() for original in originals]
        new_buffer = [0] if i in created else []
        _kernels().step_lists(
            rule.kernel, tuple([copy] for copy in copies), [layouts[i]], numbers, new_buffer
        )
        for operand, (original, copy) in enumerate(zip(originals, copies, strict=True)):
            is_grad = operand == 1
            if copy is not original and (not is_grad or args.grad_scale is not None):
                original.copy_(copy)
    _bump_versions(params)  # not the states: nobody differentiates through them


class LayoutTable:
    """The layouts of a param group's parameters in the form the C code reads, reused across steps."""

    __slots__ = ("capsule", "params")

    def __init__(self, params: Sequence[Tensor], layouts: Layouts) -> None:
        self.params = list(params)  # the C table borrows these references
        self.capsule = _kernels().layout_table(self.params, _as_list(layouts))


class Shapes:
    """The shapes of a list of parameters, to be compared in every step: in C where the tensors can be read there."""

    __slots__ = ("_capsule", "_sizes")

    def __init__(self, params: list[Tensor]) -> None:
        self._capsule = _cpu.shapes(params) if _cpu is not None and type(params) is list else None
        self._sizes = None if self._capsule is not None else [param.shape for param in params]

    def unchanged(self, params: list[Tensor]) -> bool:
        """Whether the parameters have these shapes."""
        if self._capsule is not None:
            return _kernels().same_shapes(self._capsule, params)  # type: ignore[no-any-return]
        return self._sizes == [param.shape for param in params]


def step_group(
    rule: FusedRule, table: LayoutTable, params: list[Tensor], state: dict[Any, Any], args: StepArgs
) -> bool | None:
    """One step of those parameters of a group that have a gradient; their states must exist.

    False: the kernels cannot take this group, nothing was changed. None: the table belongs to another list.
    """
    if args.found_inf is not None and float(args.found_inf):
        return True
    return _kernels().step_group(  # type: ignore[no-any-return]
        rule.kernel, table.capsule, params, state, rule.keys(args), _numbers(rule, args), _bump_versions
    )


def _kernels() -> Any:
    if _cpu is None:
        raise RuntimeError(f"no native kernels: {_why_not}")
    return _cpu


def _as_list(items: Sequence[Any]) -> list[Any]:
    return items if type(items) is list else list(items)


def _numbers(rule: FusedRule, args: StepArgs) -> tuple[Any, ...]:
    """Return the hyperparameters in the order that csrc/py_call.h documents."""
    return (
        *[float(getattr(args, name)) for name in rule.hyperparameters],
        float(args.weight_decay),
        args.decoupled,
        args.projected,
        args.maximize,
        args.at == "update",
        0.0 if args.grad_scale is None else float(args.grad_scale),
    )


def _centralize(
    out: list[Tensor],
    tensors: list[Tensor],
    layouts: Layouts,
    weights: list[Tensor | None] | None,
    decay: float,
) -> dict[int, Tensor]:
    step_lists = _kernels().step_lists
    replaced = {}
    lists = (weights if decay else None, tensors, out)
    for i in step_lists("centralize", lists, _as_list(layouts), (decay,), []):
        copy = tensors[i].clone(memory_format=torch.contiguous_format)
        weight = None if weights is None else weights[i]
        weight_list = None if weight is None or not decay else [weight.contiguous()]
        step_lists("centralize", (weight_list, [copy], [copy]), [layouts[i]], (decay,), [])
        if has_shared_elements(out[i]):
            replaced[i] = copy
        else:
            out[i].copy_(copy)
    return replaced


def _bump_versions(tensors: list[Tensor]) -> None:
    """Tell autograd that these were written to, as an in-place operation of torch would."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except RuntimeError:  # tensors created under inference mode have no version
        torch.autograd.graph.increment_version([t for t in tensors if not t.is_inference()])


_LIBRARY = {"darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}.get(sys.platform, "libtorch_cpu.so")


def _stable_abi_functions(*names: str) -> list[int]:
    """Return the addresses of C functions of torch's stable ABI, [] unless all of them exist."""
    path = os.path.join(os.path.dirname(torch.__file__), "lib", _LIBRARY)
    try:
        library = ctypes.CDLL(path)  # torch has loaded it already
        return [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names]
    except (OSError, AttributeError):
        return []


if _cpu is not None:
    Unsupported = _cpu.Unsupported  # type: ignore[misc,assignment]
    _exchange = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    _functions = _stable_abi_functions("torch_parallel_for", "torch_get_num_threads")
    _threads = "torch's threads" if _functions else "one thread: this torch has no torch_parallel_for"
    if _exchange is None:
        _cpu = None  # type: ignore[assignment]
        _why_not = (
            f"torch {torch.__version__} has no DLPack exchange table for C; torch 2.10 and later have it"
        )
    else:
        _cpu.setup(Tensor, torch.nn.Parameter, _exchange, *(_functions or [0, 0]))
