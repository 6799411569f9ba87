"""GC in other people's trainers: one short module per framework, imported only when asked for.

Each is a few lines that call :func:`gradcent.attach` at the moment the framework has both model and
optimizer. What every one of them shares is here: logging the plan once, and a clear word where a package
is missing.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch

from ..attach import attach, attached
from ..plan import Plan

logger = logging.getLogger("gradcent")


def require(module: str, pip: str | None = None) -> Any:
    """Import a framework, or say how to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        name = pip or module.split(".")[0]
        raise ModuleNotFoundError(
            f"this integration needs {name}, which is not installed: pip install {name}", name=error.name
        ) from None


def attach_and_say(optimizer: Any, model: Any, **options: Any) -> None:
    """Attach to the optimizer inside whatever wraps it, unless that is done already, and log the plan's totals.

    Trainers come here once per fit, also with an optimizer they kept from the last one.
    """
    inner = innermost(optimizer)
    attachment = attached(inner)
    if attachment is None:
        attach(inner, model, **options)
        _bind_again(optimizer)
    else:
        other = [
            name
            for name, value in options.items()
            if name != "plan" and getattr(attachment.options, name) != value
        ]
        if other:
            raise ValueError(
                "gradcent is attached to this optimizer already, with other options, so those given here "
                f"({', '.join(other)}) would be ignored: give them in one place"
            )
    say(inner)


def attach_each(optimizers: Any, model: Any, **options: Any) -> None:
    """Attach to each of several optimizers of one model (or of its parts), in Lightning's or torchtitan's manner.

    One that trains nothing to centralize, embeddings and norms for instance, is left as it is and named
    in the log; if that is so for all of them, it is an error.
    """
    everyone = list(optimizers)
    chosen = {name: options[name] for name in ("layers", "overrides", "min_length") if name in options}
    plan = options.get("plan") or Plan.of(model, **chosen)
    left = []
    for number, optimizer in enumerate(everyone):
        held = [each for group in innermost(optimizer).param_groups for each in group["params"]]
        if any(plan.layout(each) is not None for each in held) or len(everyone) == 1:
            attach_and_say(optimizer, model, **options)
        else:
            left.append(f"{number} ({type(innermost(optimizer)).__name__})")
    if left and len(left) == len(everyone):
        raise ValueError(
            "nothing would be centralized in any of these optimizers; see gradcent.explain(model)"
        )
    if left:
        logger.info("gradcent: nothing to centralize in optimizer %s", ", ".join(left))


def _bind_again(wrapper: Any) -> None:
    """With a GradScaler, Accelerate's wrapper has taken hold of the plain optimizer's `step`: let it do so anew."""
    inner = getattr(wrapper, "optimizer", None)
    if inner is not None and hasattr(wrapper, "_optimizer_original_step_method"):
        patch: Any = require("accelerate.optimizer", "accelerate").patch_optimizer_step
        wrapper._optimizer_original_step_method = inner.step
        wrapper._optimizer_patched_step_method = patch(wrapper, inner.step)


def say(optimizer: torch.optim.Optimizer) -> None:
    """Log what is attached to an optimizer, on the first worker only."""
    attachment = attached(optimizer)
    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if attachment is not None and first:
        logger.info("gradcent at the %s: %s", attachment.options.at, attachment.plan.summary())


def innermost(optimizer: Any) -> Any:
    """Unwrap the optimizer that does the stepping: Accelerate's, fastai's and Lookahead's wrappers hold it."""
    for name in ("optimizer", "optim", "base_optimizer", "opt"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
            return innermost(inner)
    return optimizer


def unwrapped(model: Any) -> Any:
    """Return the model inside DDP, so that names are the user's; any other model may have a part called `module`."""
    around = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, around) else model
