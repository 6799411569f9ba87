"""The plan of an arm, traced on the first training batch: roles, levels, and modules that no class rule knows.

A run traces only where that changes its plan: layers chosen by role, or unknown modules. It traces before accelerate
prepares the model, because FSDP2 replaces the parameters; `gradcent.attach` binds the plan to the new ones by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from gradcent_lab.data.batches import Batch, Feed
from gradcent_lab.data.random_streams import seeded
from gradcent_lab.errors import UserError

if TYPE_CHECKING:
    import gradcent
    from gradcent_lab.experiment.spec import Experiment

BY_ROLE = ("hidden", "input")
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
    if not by_role and gradcent.explain(model, **planning).unknown_share()[0] == 0:
        return dict(attach)
    plan = _traced_plan(model, attach, first_batch(), forward)
    if plan is None:
        return dict(attach)  # `attach` warns about the modules that it does not know
    return with_plan(attach, plan)


def with_plan(attach: Mapping[str, Any], plan: gradcent.Plan) -> dict[str, Any]:
    """Return the keyword arguments of `gradcent.attach` with a ready plan in place of those that make one."""
    return {**{name: value for name, value in attach.items() if name not in _PLANNING}, "plan": plan}


def plan_experiment(model: nn.Module, experiment: Experiment, attach: Mapping[str, Any]) -> gradcent.Plan:
    """Return the plan of an arm of a user's experiment, with roles and levels where its first batch can be traced."""
    import gradcent

    with seeded(0, "example"):
        drop = experiment.drop_last
        feed = Feed(experiment.train_data, experiment.batch_size, seed=0, train=True, drop_last=drop)
        batch = next(feed.epoch(0), None)
    if batch is None:
        raise UserError("Experiment.train_data has no batches")
    plan = _traced_plan(model, attach, batch, experiment.forward)
    planning = {name: attach[name] for name in _PLANNING if name in attach}
    return gradcent.explain(model, **planning) if plan is None else plan


def _traced_plan(
    model: nn.Module,
    attach: Mapping[str, Any],
    batch: Batch,
    forward: Callable[[nn.Module, Any, Any], Any] | None,
) -> gradcent.Plan | None:
    """Trace a forward pass; None where that fails, an error where the layers are chosen by role."""
    import gradcent

    def run(traced: nn.Module, inputs: Any) -> Any:
        return traced(inputs) if forward is None else forward(traced, inputs, batch.targets)

    planning = {name: attach[name] for name in _PLANNING if name in attach}
    try:
        return gradcent.explain(model, **planning, example=batch.inputs, example_forward=run)
    except ValueError as error:
        if attach.get("layers") in BY_ROLE:
            raise UserError(
                f"layers={attach['layers']!r} needs the model traced on a batch: {error}"
            ) from error
        return None
