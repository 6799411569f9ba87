"""Where each parameter of a model stands: the layer that owns it, and the name its rule knows it by.

Tied weights stand in several places; a reparametrized weight (weight norm, spectral norm, …) stands under
another name or another module, and is looked at as the weight of the layer that owns it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Use:
    """One place where a parameter stands: tied weights have several."""

    name: str
    owner: nn.Module
    local: str  # the name the owner's rule knows, e.g. "weight" for parametrizations.weight.original
    part: str  # "", or what part of a reparametrized weight this is


def uses_of(model: nn.Module, prefix: str) -> Iterator[tuple[Tensor, Use]]:
    """Yield every place of every parameter, reparametrized weights under the layer that owns them."""
    owners: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        if nn.utils.parametrize.is_parametrized(module):
            lists: Any = module.parametrizations
            owners.update({id(each): (module, name) for name, each in lists.items()})
    wrappers = {
        f"{path}.module" if path else "module"
        for path, module in model.named_modules(prefix=prefix.rstrip("."))
        if type(module).__name__ in ("DataParallel", "DistributedDataParallel")
    }
    for path, module in model.named_modules(prefix=prefix.rstrip("."), remove_duplicate=False):
        for local, parameter in module._parameters.items():
            if parameter is None:
                continue
            name = _plain_name(f"{path}.{local}" if path else local, wrappers)
            if id(module) in owners:
                owner, weight = owners[id(module)]
                siblings = [p for p in module._parameters.values() if p is not None]
                yield parameter, Use(name, owner, weight, _part(parameter, siblings))
            else:
                yield parameter, Use(name, module, *_old_style(module, local))


def _part(parameter: Tensor, siblings: list[nn.Parameter]) -> str:
    """Of several originals of one weight only the largest can be the weight: weight norm's direction."""
    if len(siblings) > 1 and parameter is not max(siblings, key=lambda each: each.numel()):
        return "magnitude or other part of a parametrized weight"
    return ""


def _old_style(module: nn.Module, local: str) -> tuple[str, str]:
    """torch.nn.utils.weight_norm (…_g, …_v) and spectral_norm (…_orig) rename the parameter itself."""
    if local.endswith("_orig") and not hasattr(nn.Module, local):
        return local.removesuffix("_orig"), ""
    if local.endswith(("_g", "_v")) and {local[:-2] + "_g", local[:-2] + "_v"} <= module._parameters.keys():
        return local[:-2], "magnitude of weight norm" if local.endswith("_g") else ""
    return local, ""


def kind_of(module: nn.Module) -> str:
    """Name of the module's type; a parametrized module's own class is made up by torch."""
    if nn.utils.parametrize.is_parametrized(module):
        return f"{type(module).__mro__[1].__name__} (parametrized)"
    return type(module).__name__


def _plain_name(name: str, wrappers: set[str]) -> str:
    """Drop what torch.compile and DDP put into names, so that patterns keep matching."""
    for path in sorted(wrappers, key=len, reverse=True):
        if name.startswith(f"{path}."):
            name = f"{path.removesuffix('module')}{name.removeprefix(f'{path}.')}"
    return ".".join(part for part in name.split(".") if part != "_orig_mod")
