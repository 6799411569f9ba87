"""GC in the trainers of other frameworks: one short module per framework, imported on request.

Each module calls :func:`gradcent.attach` when the framework has both model and optimizer. This file has what they
share: logging the plan once, and a clear error where a package is missing.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import torch

from ..attach import attach, attached
from ..plan import Plan
from ._first_batch import EXAMPLE, PLANNING

logger = logging.getLogger("gradcent")


def require(module: str, pip: str | None = None) -> Any:
    """Import a framework; raise with the pip command if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        name = pip or module.split(".")[0]
        raise ModuleNotFoundError(
            f"this integration needs {name}, which is not installed: pip install {name}", name=error.name
        ) from None


def attach_and_log(optimizer: Any, model: Any, **options: Any) -> None:
    """Attach to the optimizer inside its wrappers, unless it is attached already, and log the plan's totals.

    A trainer calls this once per fit, also with an optimizer that it kept from the last fit.
    """
    inner = innermost(optimizer)
    attachment = attached(inner)
    if attachment is None:
        attach(inner, model, **options)
        _rebind_accelerate_step(optimizer)
    else:
        different = [
            name
            for name, value in options.items()
            if name not in ("plan", *EXAMPLE) and getattr(attachment.options, name) != value
        ]
        if different:
            raise ValueError(
                "gradcent is attached to this optimizer already, with other options, so those given here "
                f"({', '.join(different)}) would be ignored: pass them in one place"
            )
    log_plan(inner)


def attach_each(optimizers: Any, model: Any, **options: Any) -> None:
    """Attach to each of several optimizers of one model (or of its parts), as in Lightning or torchtitan.

    An optimizer without anything to centralize (only embeddings and norms, say) is left as it is and named in the
    log; it is an error if that holds for all of them.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5))
    >>> optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    >>> gradcent.integrations.attach_each(optimizers, model)
    >>> [gradcent.attached(optimizer) is not None for optimizer in optimizers]
    [True, False]
    """
    all_optimizers = list(optimizers)
    chosen = {name: options[name] for name in (*PLANNING, *EXAMPLE) if name in options}
    plan = options.get("plan") or Plan.of(model, **chosen)
    skipped = []
    for number, optimizer in enumerate(all_optimizers):
        params = [param for group in innermost(optimizer).param_groups for param in group["params"]]
        if any(plan.layout(param) is not None for param in params) or len(all_optimizers) == 1:
            attach_and_log(optimizer, model, **options)
        else:
            skipped.append(f"{number} ({type(innermost(optimizer)).__name__})")
    if skipped and len(skipped) == len(all_optimizers):
        raise ValueError(
            "nothing would be centralized in any of these optimizers; see gradcent.explain(model)"
        )
    if skipped:
        logger.info("gradcent: nothing to centralize in optimizer %s", ", ".join(skipped))


def _rebind_accelerate_step(wrapper: Any) -> None:
    """With a GradScaler, Accelerate's wrapper holds the plain optimizer's `step`: give it the new one."""
    inner = getattr(wrapper, "optimizer", None)
    if inner is not None and hasattr(wrapper, "_optimizer_original_step_method"):
        patch: Any = require("accelerate.optimizer", "accelerate").patch_optimizer_step
        wrapper._optimizer_original_step_method = inner.step
        wrapper._optimizer_patched_step_method = patch(wrapper, inner.step)


def log_plan(optimizer: torch.optim.Optimizer) -> None:
    """Log what is attached to an optimizer, on rank 0 only."""
    attachment = attached(optimizer)
    rank_0 = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    if attachment is not None and rank_0:
        announce(attachment.plan, attachment.options.at)


def announce(plan: Plan, at: str = "gradient") -> None:
    """Show one line about what is centralized: in the log where INFO is logged, else on stderr.

    Trainers leave logging at WARNING, and GC that is on or off without a trace is hard to tell apart. A program that
    sets the level of the logger "gradcent" decides itself.
    """
    line = plan.status_line(at)
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s\n%s", line, plan.summary())
    elif logger.level == logging.NOTSET:
        print(line, file=sys.stderr)


def innermost(optimizer: Any) -> Any:
    """Return the optimizer that steps, inside the wrappers of Accelerate, fastai, ZeRO, SAM and timm's Lookahead."""
    for name in ("optimizer", "optim", "base_optimizer", "_base_optimizer", "opt"):
        inner = getattr(optimizer, name, None)
        if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
            return innermost(inner)
    return optimizer


def unwrapped(model: Any) -> Any:
    """Return the model inside DDP, so that names are the user's; any other model may have a part called `module`."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    return model.module if isinstance(model, wrappers) else model
