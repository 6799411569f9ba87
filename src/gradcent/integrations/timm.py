"""timm: every optimizer of its registry under a second name with GC: `sgdgc`, `adamwgc`, `lookahead_radamgc`, …

    import gradcent.integrations.timm
    optimizer = timm.optim.create_optimizer_v2(model, opt="sgdgc", lr=0.1, weight_decay=1e-4)

timm's training script takes the names after `python -m gradcent.integrations.timm train.py … --opt sgdgc`.
The options of :func:`gradcent.attach` are given as keywords (`--opt-kwargs at=update`).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from torch import nn

from ..attach import attach
from . import attach_and_log, require

SUFFIX = "gc"
_OPTIONS = tuple(name for name in inspect.signature(attach).parameters if name not in ("optimizer", "model"))


def register() -> list[str]:
    """Add the names to timm's registry and return them; done when this module is imported.

    >>> {"sgdgc", "adamwgc"} <= set(register())
    True
    """
    registry: Any = require("timm.optim._optim_factory", "timm").default_registry
    plain = {name: info for name, info in registry._optimizers.items() if not _ours(info)}
    for name, info in plain.items():
        if not info.second_order:  # adahessian steps on Hessian traces, not on gradients
            note = f"{info.description} With gradient centralization (gradcent)."
            registry._optimizers[name + SUFFIX] = dataclasses.replace(
                info, name=name + SUFFIX, description=note
            )
    if not hasattr(registry.create_optimizer, "_gradcent"):
        registry.create_optimizer = _creating(registry.create_optimizer)
    return sorted(name for name, info in registry._optimizers.items() if _ours(info))


def _ours(info: Any) -> bool:
    return "(gradcent)" in info.description


def _creating(create: Any) -> Any:
    """Wrap the registry's function: it receives the model, an optimizer class does not."""

    @functools.wraps(create)
    def create_optimizer(model_or_params: Any, opt: str, *args: Any, **kwargs: Any) -> Any:
        base = opt.lower().removesuffix(SUFFIX)
        if not _centralized(opt, create.__self__):
            return create(model_or_params, opt, *args, **kwargs)
        if not isinstance(model_or_params, nn.Module):
            raise TypeError(
                f"opt={opt!r} needs the model, not a list of parameters: which elements form a weight vector is a "
                f"property of the layers. Or make opt={base!r} and call gradcent.attach(optimizer, model)"
            )
        options = {name: kwargs.pop(name) for name in _OPTIONS if name in kwargs}
        optimizer = create(model_or_params, base, *args, **kwargs)
        attach_and_log(optimizer, model_or_params, **options)
        return optimizer

    create_optimizer._gradcent = True  # type: ignore[attr-defined]
    return create_optimizer


def _centralized(opt: str, registry: Any) -> bool:
    info = registry._optimizers.get(opt.lower().split("_")[-1])
    return info is not None and _ours(info)


NAMES = register()


def main() -> None:
    """Run a script with the names registered: python -m gradcent.integrations.timm train.py …"""
    import os
    import runpy
    import sys

    if len(sys.argv) < 2:
        raise SystemExit("usage: python -m gradcent.integrations.timm SCRIPT [ARGUMENTS …]")
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
