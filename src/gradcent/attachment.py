"""What an optimizer carries once GC is attached to it: the plan, the options, and what they mean in a step.

Nothing here enters a checkpoint: `state_dict()` is the plain optimizer's, so checkpoints move both
ways. Copies and pickles of the optimizer do carry it (see `optim/_base.py`).
"""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .decay import decay_kind
from .dtensor.centralize import UpdateProjection
from .kernels.layout_cache import LayoutCache
from .layout import Layout
from .plan import ExampleForward, Layers, Overrides, Plan, ReasonCode
from .plan.planner import LAYERS, MIN_LENGTH, check_min_length

At = Literal["gradient", "update"]
Decay = Literal["auto", "coupled", "decoupled"]
NonFinite = Literal["propagate", "raise", "skip_step"]
KERNELS = ("auto", "native", "triton", "foreach", "reference")
SWITCH = "centralize"  # the key of a param group that turns GC on or off for it

_identities = itertools.count()
ATTACHMENTS: weakref.WeakSet[Attachment] = weakref.WeakSet()  # those in use, for a warning


@dataclass(frozen=True, slots=True)
class Options:
    """The user's choices, checked."""

    layers: Layers = "all"
    at: At = "gradient"
    decay: Decay = "auto"
    overrides: Overrides | None = None
    kernel: str = "auto"
    nonfinite: NonFinite = "propagate"
    min_length: int = MIN_LENGTH

    def __post_init__(self) -> None:
        check_min_length(self.min_length)
        _one_of("layers", self.layers, LAYERS)
        _one_of("at", self.at, ("gradient", "update"))
        _one_of("decay", self.decay, ("auto", "coupled", "decoupled"))
        _one_of("kernel", self.kernel, KERNELS)
        _one_of("nonfinite", self.nonfinite, ("propagate", "raise", "skip_step"))


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
        ready = plan is not None  # and then stays what it is, also when layers are added to the model
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
        self._model = weakref.ref(model) if isinstance(model, nn.Module) and not ready else None
        for group in optimizer.param_groups:
            self.add_group(optimizer, group, said=False)
        self._check_unknown_params()
        self.plan.warn_if_unknown(stacklevel=4)
        self.plan.require_something("optimizer's share of the model")
        ATTACHMENTS.add(self)
        # Only now: a refused attach must not forget what a group asked for.
        for group in optimizer.param_groups:
            group.pop(SWITCH, None)

    def apply_group_switch(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
        """Obey a switch that was put into a param group after attaching."""
        if SWITCH in group:
            self.add_group(optimizer, group)
            del group[SWITCH]

    def ignore_checkpoint_switches(self, groups: Sequence[dict[str, Any]]) -> None:
        """Take the switches out of a checkpoint's param groups: what was attached stays, and that is said."""
        for index, group in enumerate(groups):
            off = self._is_off(group)
            said = group.pop(SWITCH, not off)
            if bool(said) is off:
                warnings.warn(
                    f"gradcent: the checkpoint's param group {index} says {SWITCH}={said}, which does not change "
                    f"what was attached; set optimizer.param_groups[{index}]['{SWITCH}'] after loading if you want it",
                    stacklevel=4,
                )

    def _is_off(self, group: dict[str, Any]) -> bool:
        entries = [self.plan.entry(each) for each in group["params"]]
        return any(entry is not None and entry.why.code is ReasonCode.SWITCHED_OFF for entry in entries)

    def _check_unknown_params(self) -> None:
        """Nothing is left alone without a word; single numbers and vectors would be left alone in any case."""
        strangers = [each for each, _ in self.plan.named() if self._whole_plan.entry(each) is None]
        if strangers and len(strangers) == len(self.plan.entries):
            raise ValueError(
                "nothing would be centralized: none of the optimizer's tensors is a parameter of the model that was "
                "given. Give the model they were taken from (a copy of it has parameters of its own)"
            )
        if any(each.ndim > 1 for each in strangers):
            warnings.warn(
                f"gradcent: {len(strangers)} of {len(self.plan.entries)} tensors of the optimizer are not parameters "
                "of the model that was given, and are left alone; give all models as a list",
                stacklevel=4,
            )

    def restore_switches(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the `centralize` switches into the param groups again, as they were before attaching."""
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

    def projection(self, params: Sequence[Tensor]) -> UpdateProjection:
        """Return the projection of these parameters' update, reused across steps."""
        layouts, _ = self.cache.lists(self, params)
        key = id(params[0]) if params else 0
        entry = self._projections.get(key)
        if entry is None or entry[0] is not layouts:  # the cache returns the same list as long as it is valid
            entry = self._projections[key] = layouts, UpdateProjection(layouts, self.options.kernel)
        return entry[1]

    def add_group(
        self, optimizer: torch.optim.Optimizer, group: dict[str, Any], *, said: bool = True
    ) -> None:
        """Plan a param group's parameters, obeying its `centralize` switch."""
        switch = group.get(SWITCH, True)
        if not isinstance(switch, bool):
            raise TypeError(f'param group key "{SWITCH}" must be True or False, got {switch!r}')
        kind = decay_kind(optimizer, group, self.options.decay) if switch else "none"
        parameters: list[Tensor] = group["params"]
        if any(self._whole_plan.entry(each) is None for each in parameters):
            self._replan()
        added = self._whole_plan.restricted(parameters, off=() if switch else parameters)
        strangers = sum(self._whole_plan.entry(each) is None for each in parameters)
        if said and strangers and switch:
            warnings.warn(
                f"gradcent: {strangers} of {len(parameters)} tensors of the new param group are not parameters "
                "of the model that was given to attach, and are left alone",
                stacklevel=4,
            )
        if any(entry.layout for entry in added.entries):
            self._refuse_unknown(optimizer, group, kind)
        self.plan = self.plan.merged(added)

    def projects_decay(self, optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
        """Whether the group's λw is part of what is centralized: P(g + λw)."""
        kind = decay_kind(optimizer, group, self.options.decay)
        if kind == "unknown":  # there was none when the group was planned
            self._refuse_unknown(optimizer, group, kind)
        return kind == "coupled"

    def _refuse_unknown(self, optimizer: torch.optim.Optimizer, group: dict[str, Any], kind: str) -> None:
        """At the update decay is projected whatever its kind; at the gradient the kind must be known."""
        if kind == "unknown" and self.options.at == "gradient":
            raise ValueError(
                f"gradcent does not know how {type(optimizer).__name__} applies "
                f"weight_decay={group['weight_decay']}: pass decay='coupled' if it adds λw to the gradient "
                "(the paper's P(g + λw) is then used), decay='decoupled' if it shrinks the weight by itself"
            )

    def _plan_replaced_params(self, parameters: Sequence[Tensor]) -> None:
        """Find parameters that were put in the place of planned ones, as Accelerate does for FSDP2."""
        self._replan()
        new = [each for each in parameters if self.plan.entry(each) is None]
        lost = [each for each in new if self._whole_plan.entry(each) is None]
        if lost:
            shapes = ", ".join(str(tuple(each.shape)) for each in lost[:3])
            raise RuntimeError(
                f"gradcent: the optimizer's parameters were exchanged after attach, and {len(lost)} of the new "
                f"ones (shapes {shapes}) are not in the model that was given; detach and attach again "
                "with the model as it is now"
            )
        off = {entry.name for entry in self.plan.entries if entry.why.code is ReasonCode.SWITCHED_OFF}
        added = self._whole_plan.restricted(
            new, off=[each for each in new if self._whole_plan.named_as(each) in off]
        )
        names = {entry.name for entry in added.entries}
        self.plan = Plan(pair for pair in self.plan.named() if pair[1].name not in names).merged(added)

    def _plan_reshaped_params(self, parameters: Sequence[Tensor]) -> None:
        """Plan parameters again whose `data` was replaced by a tensor of another shape."""
        reshaped = [
            parameter
            for parameter in parameters
            if (entry := self.plan.entry(parameter)) is not None
            and entry.layout is not None
            and entry.shape != _planned_shape(parameter)
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
        """Layers may have been added to the model since; look once more."""
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
        # The plan is made; overrides may be functions that cannot be pickled, and are not needed again.
        options = replace(self.options, overrides=None)
        known = [(each, self._whole_plan.entry(each)) for each, _ in self.plan.named()]
        pairs = ((each, entry) for each, entry in known if entry is not None)
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
        totals = self.plan.totals()
        share = totals["centralized_parameters"] / max(totals["parameters"], 1)
        where = "" if self.options.at == "gradient" else ", at the update"
        return (
            f"gradcent: {totals['centralized_tensors']:,} of {totals['tensors']:,} tensors centralized, "
            f"{100 * share:.0f} % of weights{where}"
        )

    def __repr__(self) -> str:
        return f"<gradcent at the {self.options.at}: {self.plan.summary()}>"


def all_finite(tensors: Sequence[Tensor], device: torch.device, known_bad: bool = False) -> bool:
    """Whether all gradients are finite, decided over all workers: every one of them has to come here."""
    bad = known_bad or any(not bool(torch.isfinite(local(tensor)).all()) for tensor in tensors)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        flag = torch.tensor(float(bad), device=device)
        torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
        bad = bool(flag)
    return not bad


def _planned_shape(parameter: Tensor) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def local(tensor: Tensor) -> Tensor:
    """Return the dense values that are here: of a sparse tensor its values, of a sharded one its shard."""
    if tensor.is_sparse:
        return tensor._values() if not tensor.is_coalesced() else tensor.values()
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
