"""Patched steps: GC for the torch optimizers whose step is not written out here (RMSprop, NAdam, Muon, …).

Every dense optimizer of torch.optim collects its lists (`_init_group`) and passes them to a function of its module
(`rmsprop`, `nadam`, …). A patched step is torch's own `step` with that one global name bound to a function that
centralizes as well. No code of torch is copied: its loop and foreach forms, closures, hooks and `differentiable`
work as they do in torch.
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _use_grad_for_differentiable

from ..attachment import Attachment
from . import _traced_step as traced
from ._list_step import ListStep, after_update, before_update, mark_step, signed_decay

Functional = Callable[..., None]


class PatchedStep(ListStep):
    """The base of the drop-in optimizers whose step is torch's own with another functional form."""

    _gradcent_body: Any = None  # torch's step with this optimizer's attachment bound in

    def _set_attachment(self, attachment: Attachment) -> None:
        super()._set_attachment(attachment)
        # A subclass may override `step` and call ours.
        steps: list[Any] = [cls.__dict__.get("step") for cls in type(self).__mro__]
        bind = next(step.bind for step in steps if hasattr(step, "bind"))
        self._gradcent_body = bind(self, attachment)


def patched_step(torch_class: type, functional_name: str) -> Any:
    """Return `torch_class.step` with its functional form centralizing once an attachment is bound in."""
    torch_step = inspect.unwrap(torch_class.step)  # type: ignore[attr-defined]
    functional = torch_step.__globals__[functional_name]

    def bind(optimizer: torch.optim.Optimizer, attachment: Attachment) -> Any:
        names = {**torch_step.__globals__, functional_name: _centralizing(functional, optimizer, attachment)}
        # Dynamo caches compiled graphs by code object, and the plan is a constant in them. So torch's step and the
        # step of each attachment need code objects of their own.
        code = torch_step.__code__.replace(co_name=f"step_{attachment.identity}")
        body = types.FunctionType(
            code, names, torch_step.__name__, torch_step.__defaults__, torch_step.__closure__
        )
        body.__kwdefaults__ = torch_step.__kwdefaults__
        return body

    @functools.wraps(torch_step)
    def step(self: Any, closure: Any = None) -> Any:
        return (self._gradcent_body or torch_step)(self, closure)

    marked: Any = mark_step(step)
    marked.bind = bind
    return (
        _use_grad_for_differentiable(marked) if _has_differentiable(torch_class) else torch.no_grad()(marked)
    )


def _centralizing(
    functional: Functional, optimizer: torch.optim.Optimizer, attachment: Attachment
) -> Functional:
    """Return torch's functional form with GC before it, or around it for `at="update"`."""
    owner = weakref.ref(optimizer)  # the optimizer holds this function
    identity = attachment.identity

    @functools.wraps(functional)
    def centralizing(params: list[Tensor], grads: list[Tensor], *states: Any, **options: Any) -> None:
        decay = signed_decay(options)
        if torch.compiler.is_compiling():
            grads, means = traced.before_update(identity, params, grads, decay, None)
            functional(params, grads, *states, **options)
            traced.after_update(identity, params, means)
            return
        # The functional form receives the group's weight_decay and its flags as keyword arguments.
        if not attachment.projects_decay(owner(), options):  # type: ignore[arg-type]
            decay = 0.0
        grads, projection = before_update(attachment, params, grads, decay)
        functional(params, grads, *states, **options)
        after_update(params, projection)

    return centralizing


def _has_differentiable(torch_class: type) -> bool:
    """Whether torch wraps this class's step for `differentiable=True` (Adafactor and Muon do not have it)."""
    wrapper = torch_class.step  # type: ignore[attr-defined]
    while hasattr(wrapper, "__wrapped__"):
        if wrapper.__code__.co_name == "_use_grad":
            return True
        wrapper = wrapper.__wrapped__
    return False
