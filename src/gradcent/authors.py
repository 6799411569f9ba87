"""The optimizers of the authors' released code under their names; see docs/migration.md.

Each takes the arguments of the authors' class and the model. The model is needed because the layer decides which
elements form a weight vector: the authors' rule "any tensor of more than one dim" averages transposed convolutions
over the wrong dims and freezes `Linear(1, n)`. The optimizers compute the paper's P(g + λw) where decay is coupled.

>>> model = torch.nn.Linear(3, 2)
>>> optimizer = SGD_GC(model.parameters(), lr=0.1, model=model)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import optim


def _named(name: str, make: Callable[..., torch.optim.Optimizer], **fixed: Any) -> Any:
    def build(params: Any, *args: Any, model: Any = None, **kwargs: Any) -> torch.optim.Optimizer:
        kwargs = _flags(kwargs)
        clash = sorted(fixed.keys() & kwargs.keys())
        if clash:
            raise TypeError(
                f"{name} fixes {', '.join(clash)}; use gradcent.optim directly to choose otherwise"
            )
        return make(params, *args, model=model, **kwargs, **fixed)

    build.__name__ = build.__qualname__ = name
    settings = ", ".join(f"{key}={value!r}" for key, value in fixed.items())
    build.__doc__ = f"""`gradcent.optim.{make.__name__}` with {settings or "the defaults"}.

    >>> model = nn.Conv2d(3, 8, 3)
    >>> optimizer = gradcent.authors.{name}(model.parameters(), lr=1e-3, model=model)
    >>> gradcent.attached(optimizer).options.layers
    {fixed.get("layers", "all")!r}
    """
    return build


def _flags(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Translate the options `use_gc`, `gc_conv_only` and `gc_loc` of the authors' later code."""
    given = dict(kwargs)
    for flag, name in (("use_gc", "centralize"), ("gc_conv_only", "layers"), ("gc_loc", "at")):
        if flag in given and name in given:
            raise TypeError(f"{flag} and {name} are the same option: pass one of them")
    if "use_gc" in given:
        given["centralize"] = bool(given.pop("use_gc"))
    if "gc_conv_only" in given:
        given["layers"] = "conv" if given.pop("gc_conv_only") else "all"
    if "gc_loc" in given:
        given["at"] = "gradient" if given.pop("gc_loc") else "update"
    return given


SGD = _named("SGD", optim.SGD)
Adam = _named("Adam", optim.Adam)
AdamW = _named("AdamW", optim.AdamW)
RAdam = _named("RAdam", optim.RAdam)
SGD_GC = _named("SGD_GC", optim.SGD, layers="all", at="gradient")
SGD_GCC = _named("SGD_GCC", optim.SGD, layers="conv", at="gradient")
SGDW_GCC = _named("SGDW_GCC", optim.SGDW, layers="conv", at="gradient")
Adam_GC = _named("Adam_GC", optim.Adam, layers="all", at="gradient")
Adam_GCC = _named("Adam_GCC", optim.Adam, layers="conv", at="gradient")
Adam_GCC2 = _named("Adam_GCC2", optim.Adam, layers="conv", at="update")
AdamW_GCC = _named("AdamW_GCC", optim.AdamW, layers="conv", at="gradient")
AdamW_GCC2 = _named("AdamW_GCC2", optim.AdamW, layers="conv", at="update")
Adagrad_GCC = _named("Adagrad_GCC", optim.Adagrad, layers="conv", at="gradient")

__all__ = [
    "SGD",
    "SGDW_GCC",
    "SGD_GC",
    "SGD_GCC",
    "Adagrad_GCC",
    "Adam",
    "AdamW",
    "AdamW_GCC",
    "AdamW_GCC2",
    "Adam_GC",
    "Adam_GCC",
    "Adam_GCC2",
    "RAdam",
]
