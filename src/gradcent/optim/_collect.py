"""Gathering an optimizer's lists in C once its states exist, in place of torch's `_init_group`.

torch walks over the parameters in Python, 1 to 3 ms for 2,000 of them; that would be most of the
step. Whatever is out of the ordinary (a missing state, options that need torch's own checks, sparse,
complex or sharded gradients) is left to torch.
"""

from __future__ import annotations

from typing import Any

import torch

from ..kernels import native

_SPECIAL = ("amsgrad", "capturable", "differentiable", "foreach")


def collect(
    optimizer: torch.optim.Optimizer,
    group: dict[str, Any],
    lists: tuple[list[Any], ...],
) -> Any:
    """Fill `lists` (parameters, gradients, states) and return what `_init_group` would; None if not done."""
    if any(group.get(name) for name in _SPECIAL) or type(group["params"]) is not list:
        return None
    if not isinstance(optimizer.state, dict):
        return None
    if isinstance(optimizer, torch.optim.SGD):
        with_momentum = group["momentum"] != 0
        keys: tuple[str, ...] = ("momentum_buffer",) if with_momentum else ()
        # torch makes the buffers that are missing
        outputs, required, result = lists if with_momentum else lists[:2], False, False
    elif isinstance(optimizer, torch.optim.Adam):
        # the fifth list is amsgrad's
        keys, required, result = ("exp_avg", "exp_avg_sq", "step"), True, False
        outputs = (*lists[:4], lists[5])
    elif isinstance(optimizer, torch.optim.Adagrad):
        keys, required, outputs = ("sum", "step"), True, lists
        result = (False, False)  # type: ignore[assignment]
    else:
        return None
    done = native.collect(group["params"], optimizer.state, keys, outputs, required=required)
    return result if done else None
