"""The parameters of a torch model, each with the layers that own it and the name that their rules know.

A tied weight has several uses. A reparametrized weight (weight norm, spectral norm, …) has another name or another
module; it counts as the weight of the layer that owns it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .parameter import Parameter, Use


def parameters_of(models: Sequence[nn.Module]) -> list[Parameter]:
    """Return every parameter of the models once, in their order; several models are told apart by their index."""
    uses: dict[Tensor, list[Use]] = {}
    for index, model in enumerate(models):
        prefix = f"{index}." if len(models) > 1 else ""
        for parameter, use in uses_of(model, prefix):
            uses.setdefault(parameter, []).append(use)
    return [describe(parameter, tuple(places)) for parameter, places in uses.items()]


def describe(parameter: Tensor, uses: tuple[Use, ...]) -> Parameter:
    """Return a tensor as the planner sees it."""
    if torch.nn.parameter.is_lazy(parameter):
        raise ValueError(
            f"parameter {uses[0].name} of lazy {type(uses[0].owner).__name__} has no shape yet: "
            "run one forward pass before making a plan"
        )
    # Under deepspeed.zero.Init a parameter is empty from the start and its shape is in another attribute.
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    differentiable = parameter.is_floating_point() or parameter.is_complex()
    return Parameter(
        parameter, shape, uses, parameter.requires_grad, "" if differentiable else str(parameter.dtype)
    )


def uses_of(model: nn.Module, prefix: str) -> Iterator[tuple[Tensor, Use]]:
    """Yield every use of every parameter, reparametrized weights under the layer that owns them."""
    owners: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        if nn.utils.parametrize.is_parametrized(module):
            lists: Any = module.parametrizations
            owners.update({id(originals): (module, name) for name, originals in lists.items()})
    wrappers = {
        f"{path}.module" if path else "module"
        for path, module in model.named_modules(prefix=prefix.rstrip("."))
        if type(module).__name__ in ("DataParallel", "DistributedDataParallel")
    }
    for path, module in model.named_modules(prefix=prefix.rstrip("."), remove_duplicate=False):
        for local_name, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _plain_name(f"{path}.{local_name}" if path else local_name, wrappers)
            if id(module) in owners:
                owner, weight = owners[id(module)]
                originals = [p for p in module._parameters.values() if p is not None]
                yield parameter, Use(name, owner, weight, _part(parameter, originals))
            else:
                yield parameter, Use(name, module, *_old_style(module, local_name))


def _part(parameter: Tensor, originals: list[nn.Parameter]) -> str:
    """Of several originals of one weight only the largest can be the weight: weight norm's direction."""
    if len(originals) > 1 and parameter is not max(originals, key=lambda original: original.numel()):
        return "magnitude or other part of a parametrized weight"
    return ""


def _old_style(module: nn.Module, local_name: str) -> tuple[str, str]:
    """torch.nn.utils.weight_norm (…_g, …_v) and spectral_norm (…_orig) rename the parameter itself."""
    if local_name.endswith("_orig") and not hasattr(nn.Module, local_name):
        return local_name.removesuffix("_orig"), ""
    pair = {local_name[:-2] + "_g", local_name[:-2] + "_v"}
    if local_name.endswith(("_g", "_v")) and pair <= module._parameters.keys():
        return local_name[:-2], "magnitude of weight norm" if local_name.endswith("_g") else ""
    return local_name, ""


def type_name(module: nn.Module) -> str:
    """Return the name of the module's type; torch generates the class of a parametrized module."""
    if nn.utils.parametrize.is_parametrized(module):
        return f"{type(module).__mro__[1].__name__} (parametrized)"
    return type(module).__name__


def _plain_name(name: str, wrappers: set[str]) -> str:
    """Remove what torch.compile and DDP add to names, so that patterns keep matching."""
    for path in sorted(wrappers, key=len, reverse=True):
        if name.startswith(f"{path}."):
            name = f"{path.removesuffix('module')}{name.removeprefix(f'{path}.')}"
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
