"""A whole step in two calls of C per param group, without torch's Python around it.

torch's own `step` looks each parameter up several times in Python. On 2,000 small tensors that takes
longer than the arithmetic. Once all states exist, and where nothing asks for more (gradient scalers,
torch's own forms, other devices, sharded or sparse gradients), the lists are gathered in C and handed to
the kernels directly. What cannot be done here is left to the rebuilt torch step, untouched.
"""

from __future__ import annotations

from typing import Any

import torch

from ..attachment import Attachment
from ..kernels import native, steps
from ._collect import collect
from ._planned import planned

# how many lists torch's functional form takes, parameters and gradients included
LISTS = {"sgd": 3, "sgdw": 3, "adam": 6, "adamw": 6, "adagrad": 4}


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
        if not _take(optimizer, group, name, attachment):
            return groups[index:]
    return []


def _take(optimizer: torch.optim.Optimizer, group: dict[str, Any], name: str, attachment: Attachment) -> bool:
    lists: tuple[list[Any], ...] = tuple([] for _ in range(LISTS[name]))
    if not group["params"] or group["params"][0].device.type != "cpu":
        return False
    attachment.heed_switch(optimizer, group)
    if collect(optimizer, group, lists, complete=True, thorough=False) is None:
        return False
    params, gradients, *states = lists
    if not params:
        return True  # nothing has a gradient: nothing to do
    options = group
    if "betas" in group:
        beta1, beta2 = group["betas"]
        options = {**group, "beta1": beta1, "beta2": beta2}
    layouts, _ = planned(attachment, params)
    return steps.take(
        name,
        params,
        gradients,
        states,
        options,
        layouts,
        at=attachment.options.at,
        projected=attachment.projects_decay(optimizer, group),
        kernel=attachment.options.kernel,
    )
