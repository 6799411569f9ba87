"""The plan of a model that needs an example: layers chosen by role, or modules that the class rules do not know.

The example is the run's first training batch. It is traced before accelerate prepares the model, because FSDP2
replaces the parameters; `gradcent.attach` binds the plan to the new ones by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from gradcent_lab.data.batches import Batch
from gradcent_lab.errors import UserError

BY_ROLE = ("hidden", "input")
UNKNOWN_SHARE = 0.01  # of the matrices' elements; above it `gradcent.attach` asks for an example
_PLANNING = ("layers", "overrides", "min_length")


def attach_options(
    model: nn.Module,
    attach: Mapping[str, Any],
    first_batch: Callable[[], Batch],
    forward: Callable[[nn.Module, Any, Any], Any] | None,
) -> dict[str, Any]:
    """Return the keyword arguments of `gradcent.attach`, with a traced plan where the arm or the model needs one."""
    import gradcent

    planning = {name: attach[name] for name in _PLANNING if name in attach}
    by_role = attach.get("layers") in BY_ROLE
    if not by_role and gradcent.explain(model, **planning).unknown_share()[0] <= UNKNOWN_SHARE:
        return dict(attach)
    batch = first_batch()

    def run(traced: nn.Module, inputs: Any) -> Any:
        return traced(inputs) if forward is None else forward(traced, inputs, batch.targets)

    try:
        plan = gradcent.explain(model, **planning, example=batch.inputs, example_forward=run)
    except ValueError as error:
        if by_role:
            raise UserError(
                f"layers={attach['layers']!r} needs the model traced on a batch: {error}"
            ) from error
        return dict(attach)  # `attach` warns about the modules that it does not know
    return {**{name: value for name, value in attach.items() if name not in _PLANNING}, "plan": plan}
