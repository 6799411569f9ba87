"""A whole step in one call of C per param group, without torch's Python around it.

torch's own `step` looks each parameter up several times in Python. On 2,000 small tensors that takes
longer than the arithmetic. Once all states exist, and where nothing asks for more (gradient scalers,
torch's own forms, other devices, sharded or sparse gradients), everything is found and stepped in C. What
cannot be done here is left to the rebuilt torch step, untouched.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from ..attachment import Attachment
from ..kernels import fused_steps as steps
from ..kernels import native
from ._planned import table


def step(optimizer: torch.optim.Optimizer, name: str, attachment: Attachment) -> list[dict[str, Any]]:
    """Step the param groups in turn, up to the first that is not for this way; return those not done."""
    groups = optimizer.param_groups
    if (
        not native.available()
        or attachment.options.kernel not in ("auto", "native")
        or getattr(optimizer, "grad_scale", None) is not None
        or getattr(optimizer, "found_inf", None) is not None
    ):
        return groups
    for index, group in enumerate(groups):
        attachment.heed_switch(optimizer, group)
        params = group["params"]
        if not _usual(params, optimizer.state) or not steps.take_group(
            name,
            params,
            optimizer.state,
            group,
            functools.partial(table, attachment, index, params),
            at=attachment.options.at,
            projected=attachment.projects_decay(optimizer, group),
        ):
            return groups[index:]
    return []


def _usual(params: Any, state: Any) -> bool:
    """Whether these are the containers torch makes, and on the CPU: numbers elsewhere are not to be waited for."""
    return type(params) is list and isinstance(state, dict) and (not params or params[0].device.type == "cpu")
