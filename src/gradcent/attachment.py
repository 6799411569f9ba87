"""The attachment: the plan and the options of GC on one optimizer, which its steps read.

An attachment is not part of checkpoints: `state_dict()` is the plain optimizer's, so checkpoints can be exchanged
between both. Copies and pickles of the optimizer contain it (see `optim/_base.py`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from .decay import decay_kind
from .dtensor.update import UpdateProjection
from .kernels.layout_cache import LayoutCache
from .layout import Layout
from .options import Options
from .plan import Entry, ExampleForward, Plan, ReasonCode
from .user_warning import warn_user

SWITCH = "centralize"  # the key of a param group that turns GC on or off for it

_identities = itertools.count()
ATTACHMENTS: weakref.WeakSet[Attachment] = (
    weakref.WeakSet()
)  # in use now; attach_to_gradients warns about them


class Attachment:
    """GC on one optimizer: `plan` says what is centralized, `options` how, `skipped_steps` counts."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Any,
        plan: Plan | None,
        options: Options,
        *,
        example: Any = None,
        example_forward: ExampleForward | None = None,
    ) -> None:
        if plan is None and model is None:
            raise TypeError(
                "gradcent needs the model (or a plan): which elements of a tensor form a weight vector "
                "is a property of the layer, not of the tensor's shape. Pass model=model"
            )
        fixed = plan is not None  # a given plan does not change when layers are added to the model
        plan = Plan.chosen(
            model,
            plan,
            layers=options.layers,
            overrides=options.overrides,
            min_length=options.min_length,
            example=example,
            example_forward=example_forward,
        )
        self.options = options
        self.identity = f"gradcent-{next(_identities)}"  # a compiled step belongs to one attachment
        self.skipped_steps = 0
        self.cache = LayoutCache()
        self._projections: dict[int, tuple[list[Layout | None], UpdateProjection]] = {}
        self.traced_plan: tuple[Any, ...] | None = None  # for optim/_traced_step.py
        self.plan = Plan([])
        self._whole_plan = plan
        self._model = weakref.ref(model) if isinstance(model, nn.Module) and not fixed else None
        for group in optimizer.param_groups:
            self.add_group(optimizer, group, warn=False)
        self._check_unknown_params()
        self.plan.warn_if_unknown()
        self.plan.require_something("optimizer's share of the model")
        ATTACHMENTS.add(self)
        # Only now: a refused attach must leave the param groups unchanged.
        for group in optimizer.param_groups:
            group.pop(SWITCH, None)

    def apply_group_switch(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        """Apply a `centralize` switch that was set in a param group after attaching."""
        if SWITCH in group:
            self.add_group(optimizer, group)
            del group[SWITCH]

    def ignore_checkpoint_switches(self, groups: Sequence[dict[str, Any]]) -> None:
        """Remove the switches from a checkpoint's param groups; warn where they differ from what is attached."""
        for index, group in enumerate(groups):
            off = self._is_off(group)
            switch = group.pop(SWITCH, not off)
            if bool(switch) is off:
                warn_user(
                    f"gradcent: the checkpoint's param group {index} has {SWITCH}={switch}, which does not change "
                    f"what is attached; set optimizer.param_groups[{index}]['{SWITCH}'] after loading if you want it",
                )

    def _is_off(self, group: dict[str, Any]) -> bool:
        entries = [self.plan.entry(param) for param in group["params"]]
        return any(entry is not None and entry.why.code is ReasonCode.SWITCHED_OFF for entry in entries)

    def _check_unknown_params(self) -> None:
        """Warn about tensors that are not in the model, unless they have fewer than two dims and no weight vectors."""
        unknown = [param for param, _ in self.plan.named() if self._whole_plan.entry(param) is None]
        if unknown and len(unknown) == len(self.plan.entries):
            raise ValueError(
                "nothing would be centralized: none of the optimizer's tensors is a parameter of the given model. "
                "Pass the model that the optimizer trains (a copy of it has other parameters)"
            )
        if any(param.ndim > 1 for param in unknown):
            warn_user(
                f"gradcent: {len(unknown)} of {len(self.plan.entries)} tensors of the optimizer are not parameters "
                "of the model passed to attach, and are left alone; pass all models as a list",
            )

    def restore_switches(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the `centralize` switches in the param groups again, as they were before attaching."""
        for group in optimizer.param_groups:
            if self._is_off(group):
                group[SWITCH] = False

    def layouts(self, parameters: Iterable[Tensor]) -> list[Layout | None]:
        """Return the parameters' layouts, None for those left alone."""
        parameters = list(parameters)
        entries = [self.plan.entry(parameter) for parameter in parameters]
        if any(entry is None for entry in entries):
            self._plan_replaced_params(parameters)
        self._plan_reshaped_params(parameters)
        return [self.plan.layout(parameter) for parameter in parameters]

    def has_layouts(self, parameters: Iterable[Tensor]) -> bool:
        """Whether all parameters are planned in their present shapes; one without a gradient may have another."""
        entries = [(parameter, self.plan.entry(parameter)) for parameter in parameters]
        return all(entry is not None and not _is_reshaped(parameter, entry) for parameter, entry in entries)

    def projection(self, params: Sequence[Tensor]) -> UpdateProjection:
        """Return the projection of these parameters' update, reused across steps."""
        layouts, _ = self.cache.lists(self, params)
        key = id(params[0]) if params else 0
        entry = self._projections.get(key)
        if entry is None or entry[0] is not layouts:  # the cache returns the same list as long as it is valid
            entry = self._projections[key] = layouts, UpdateProjection(layouts, self.options.kernel)
        return entry[1]

    def add_group(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], *, warn: bool = True
    ) -> None:
        """Plan a param group's parameters according to its `centralize` switch."""
        switch = group.get(SWITCH, True)
        if not isinstance(switch, bool):
            raise TypeError(f'param group key "{SWITCH}" must be True or False, got {switch!r}')
        kind = decay_kind(optimizer, group, self.options.decay) if switch else "none"
        parameters: list[Tensor] = group["params"]
        if any(self._whole_plan.entry(param) is None for param in parameters):
            self._replan()
        added = self._whole_plan.restricted(parameters, off=() if switch else parameters)
        unknown = sum(self._whole_plan.entry(param) is None for param in parameters)
        if warn and unknown and switch:
            warn_user(
                f"gradcent: {unknown} of {len(parameters)} tensors of the new param group are not parameters "
                "of the model passed to attach, and are left alone",
            )
        if any(entry.layout for entry in added.entries):
            self._refuse_unknown_decay(optimizer, group, kind)
        self.plan = self.plan.merged(added)

    def projects_decay(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
        """Whether the group's λw is part of what is centralized: P(g + λw)."""
        kind = decay_kind(optimizer, group, self.options.decay)
        if kind == "unknown":  # weight_decay was 0 when the group was planned
            self._refuse_unknown_decay(optimizer, group, kind)
        return kind == "coupled"

    def _refuse_unknown_decay(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], kind: str
    ) -> None:
        """Raise if the kind of decay must be known: at the gradient, not at the update, which includes any decay."""
        if kind == "unknown" and self.options.at == "gradient":
            raise ValueError(
                f"gradcent does not know how {type(optimizer).__name__} applies "
                f"weight_decay={group['weight_decay']}: pass decay='coupled' if it adds λw to the gradient "
                "(the paper's P(g + λw) is then used), decay='decoupled' if it shrinks the weight directly"
            )

    def _plan_replaced_params(self, parameters: Sequence[Tensor]) -> None:
        """Plan parameters that replace planned ones, as Accelerate does for FSDP2."""
        self._replan()
        new = [param for param in parameters if self.plan.entry(param) is None]
        unknown = [param for param in new if self._whole_plan.entry(param) is None]
        if unknown:
            shapes = ", ".join(str(tuple(param.shape)) for param in unknown[:3])
            raise RuntimeError(
                f"gradcent: the optimizer's parameters were replaced after attach, and {len(unknown)} of the new "
                f"ones (shapes {shapes}) are not in the given model; detach and attach again "
                "with the model as it is now"
            )
        off = {entry.name for entry in self.plan.entries if entry.why.code is ReasonCode.SWITCHED_OFF}
        added = self._whole_plan.restricted(
            new, off=[param for param in new if self._whole_plan.named_as(param) in off]
        )
        names = {entry.name for entry in added.entries}
        self.plan = Plan(pair for pair in self.plan.named() if pair[1].name not in names).merged(added)

    def _plan_reshaped_params(self, parameters: Sequence[Tensor]) -> None:
        """Plan parameters again whose `data` was replaced by a tensor of another shape."""
        reshaped = [
            parameter
            for parameter in parameters
            if (entry := self.plan.entry(parameter)) is not None and _is_reshaped(parameter, entry)
        ]
        if not reshaped:
            return
        self._replan()
        for parameter in reshaped:
            before, now = self.plan.entry(parameter), self._whole_plan.entry(parameter)
            if now is None or now.layout is None or now.shape != _planned_shape(parameter):
                why = f" ({now.reason})" if now is not None and now.layout is None else ""
                raise RuntimeError(
                    f"gradcent: {before.name} had shape {before.shape} when gradcent was attached and has shape "  # type: ignore[union-attr]
                    f"{_planned_shape(parameter)} now, for which there is no layout{why}; no parameter was changed. "
                    "Update the layer's attributes (in_features, …), or detach and attach again"
                )
        self.plan = self.plan.merged(self._whole_plan.restricted(reshaped))

    def check_shapes(self, optimizer: torch.optim.Optimizer, *, without_grad: bool = False) -> None:
        """Plan all groups again in which a parameter has another shape, before any of them is stepped.

        Parameters without a gradient are not stepped, so their shape matters only if ``without_grad``.
        """
        for group in optimizer.param_groups:
            params = group["params"]
            if self.cache.reshaped(self, params):
                self._plan_reshaped_params(
                    [param for param in params if without_grad or param.grad is not None]
                )

    def _replan(self) -> None:
        """Plan the model again: layers may have been added to it."""
        model = self._model() if self._model is not None else None
        if model is not None:
            self._whole_plan = Plan.of(
                model,
                layers=self.options.layers,
                overrides=self.options.overrides,
                min_length=self.options.min_length,
                traced=self._whole_plan.traced,
            )

    def __getstate__(self) -> dict[str, Any]:
        # Overrides may be functions that cannot be pickled; the plan contains their result.
        options = replace(self.options, overrides=None)
        known = [(param, self._whole_plan.entry(param)) for param, _ in self.plan.named()]
        pairs = ((param, entry) for param, entry in known if entry is not None)
        whole = Plan(pairs, self._whole_plan.traced)
        return {
            **self.__dict__,
            "_model": None,
            "_whole_plan": whole,
            "options": options,
            "cache": LayoutCache(),
            "_projections": {},
            "traced_plan": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.identity = f"gradcent-{next(_identities)}"

    def status_line(self) -> str:
        """Return one line about GC, which printing the optimizer shows."""
        return self.plan.status_line(self.options.at)

    def __repr__(self) -> str:
        return f"<gradcent at the {self.options.at}: {self.plan.summary()}>"


def _is_reshaped(parameter: Tensor, entry: Entry) -> bool:
    return entry.layout is not None and entry.shape != _planned_shape(parameter)


def _planned_shape(parameter: Tensor) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))
