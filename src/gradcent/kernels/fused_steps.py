"""Whole centralized steps in place of torch's functional forms `sgd`, `adam` and `adagrad`.

Mean, decay, moments and update happen in one pass, while the weight vector is in cache. They are used
when the user has not asked for one of torch's own forms (`foreach=`, `fused=False`), and only where
they compute the same thing: dense real parameters, no `amsgrad`, `capturable` or `differentiable`.
State tensors are torch's, so that training can change from one path to another at any step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..layout import Layout
from . import native
from .native import At, Unsupported

Taken = dict[str, Any]  # the keyword arguments of our kernel


def take(
    name: str,
    params: list[Tensor],
    grads: list[Tensor],
    states: Sequence[Any],
    options: dict[str, Any],
    layouts: Sequence[Layout | None],
    *,
    at: At,
    projected: bool,
    kernel: str = "auto",
) -> bool:
    """Do the step of torch's functional `name`; False, and nothing done, if it is not for these kernels."""
    adapt = _ADAPT.get(name)
    if adapt is None or not params or kernel in ("foreach", "reference") or _asked_for_torchs(options):
        return False
    if torch.is_grad_enabled():  # differentiable=True, of which torch does not tell `sgd`
        return False
    path = _path(params[0], kernel)
    taken = path and adapt(options)
    if not path or taken is None:
        return False
    step: Callable[..., None] = getattr(path, _NAMES[name])
    lists = [states[i] for i in _STATES[name]]
    try:
        step(
            params,
            grads,
            *lists,
            layouts,
            at=at,
            projected=projected,
            grad_scale=options.get("grad_scale"),
            found_inf=options.get("found_inf"),
            **taken,
        )
    except Unsupported:
        return False
    return True


def take_group(
    name: str,
    params: list[Tensor],
    state: Any,
    options: dict[str, Any],
    table: Callable[..., Any],
    *,
    at: At,
    projected: bool,
) -> bool:
    """Do the same for a param group on the CPU whose states exist.

    `table(anew=True)` makes native.table again; it returns None for parameters it does not know.
    """
    if _asked_for_torchs(options):
        return False
    if "betas" in options:
        options = {**options, "beta1": options["betas"][0], "beta2": options["betas"][1]}
    taken = _ADAPT[name](options)
    if taken is None:
        return False
    kernel = _NAMES[name]
    keys = _KEYS[kernel] if kernel != "sgd" or taken["momentum"] != 0 else ()
    numbers = (
        *[taken[each] for each in _NUMBERS[kernel]],
        taken["weight_decay"],
        taken["decoupled"],
        projected,
        taken["maximize"],
    )
    for anew in (False, True):
        known = table(anew=anew)
        stepped = False if known is None else native.group(kernel, known, params, state, keys, numbers, at=at)
        if stepped is not None:
            return stepped
    return False


def known(name: str) -> bool:
    """Whether there is a whole step for torch's functional `name`."""
    return name in _ADAPT


def _path(parameter: Tensor, kernel: str) -> Any:
    if kernel == "native" and not native.available():
        raise RuntimeError(f"kernel='native' is not to be had: {native.reason()}. Use kernel='auto'")
    if kernel == "triton" and not parameter.is_cuda:
        raise RuntimeError(
            f"kernel='triton' needs CUDA tensors, got one on {parameter.device}. Use kernel='auto'"
        )
    if parameter.device.type == "cpu":
        return native if kernel in ("auto", "native") and native.available() else None
    if parameter.is_cuda and kernel in ("auto", "triton"):
        from . import triton

        return triton if triton.available() else None
    return None


def _asked_for_torchs(options: dict[str, Any]) -> bool:
    return (
        options.get("foreach") is not None
        or options.get("fused") is False
        or bool(options.get("differentiable"))
        or bool(options.get("capturable"))
        or bool(options.get("amsgrad"))
        or bool(options.get("has_sparse_grad"))
        or bool(options.get("has_complex"))
    )


def _sgd(options: dict[str, Any]) -> Taken | None:
    return {
        **{
            name: options[name]
            for name in ("lr", "momentum", "dampening", "nesterov", "weight_decay", "maximize")
        },
        "decoupled": False,
    }


def _sgdw(options: dict[str, Any]) -> Taken | None:
    taken = _sgd(options)
    return None if taken is None else {**taken, "decoupled": True}


def _adam(options: dict[str, Any]) -> Taken | None:
    return {
        **{name: options[name] for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "maximize")},
        "decoupled": bool(options.get("decoupled_weight_decay", False)),
    }


def _adamw(options: dict[str, Any]) -> Taken | None:
    taken = _adam(options)
    return None if taken is None else {**taken, "decoupled": True}


def _adagrad(options: dict[str, Any]) -> Taken | None:
    return {
        **{name: options[name] for name in ("lr", "lr_decay", "eps", "weight_decay", "maximize")},
        "decoupled": False,
    }


_ADAPT: dict[str, Callable[[dict[str, Any]], Taken | None]] = {
    "sgd": _sgd,
    "sgdw": _sgdw,
    "adam": _adam,
    "adamw": _adamw,
    "adagrad": _adagrad,
}
_NAMES = {"sgd": "sgd", "sgdw": "sgd", "adam": "adam", "adamw": "adam", "adagrad": "adagrad"}
_NUMBERS = {
    "sgd": ("lr", "momentum", "dampening", "nesterov"),
    "adam": ("lr", "beta1", "beta2", "eps"),
    "adagrad": ("lr", "lr_decay", "eps"),
}
# torch's names of the states, in the order of our operands
_KEYS = {
    "sgd": ("momentum_buffer",),
    "adam": ("exp_avg", "exp_avg_sq", "step"),
    "adagrad": ("sum", "step"),
}
# which of the lists behind params and grads are ours: Adam's third is amsgrad's
_STATES = {"sgd": (0,), "sgdw": (0,), "adam": (0, 1, 3), "adamw": (0, 1, 3), "adagrad": (0, 1)}
