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


def attach_and_say(optimizer: torch.optim.Optimizer, model: Any, **options: Any) -> None:
    """Attach, unless the user has done it already, and log the plan's totals once."""
    if attached(optimizer) is None:
        attach(optimizer, model, **options)
    elif options:
        raise ValueError(
            "gradcent is attached to this optimizer already, so the options given here "
            f"({', '.join(options)}) would be ignored: give them in one place"
        )
    say(optimizer)


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
