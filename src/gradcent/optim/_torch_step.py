"""The seam at which GC enters torch's optimizers: between collecting the gradients and using them.

Every dense optimizer of torch.optim collects its lists (`_init_group`) and hands them to a function
of its module (`sgd`, `adam`, …). We rebuild its `step` from torch's own code with that one name bound
to a function that centralizes first. Nothing is copied, and torch's loop, foreach and fused forms,
closures, hooks, GradScaler and `differentiable` all work as they do there; `p.grad` is not touched.

Replacing gradients inside `_init_group` would be shorter, but Dynamo runs `_init_group` as real Python
while it traces and takes the tensors found there for constants: a compiled step would go on using the
gradients of the first call for ever (seen: weights off by 0.02 after 6 steps, no error).
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import _use_grad_for_differentiable

from ..attachment import Attachment
from ..dtensor import centralize as sharded
from ..kernels import fused_steps as steps
from . import _native_step as _quick
from ._planned import Shapes, planned

Functional = Callable[..., None]
Announced = tuple[Shapes, str, bool, str]

_stepping = threading.local()


def announce(attachment: Attachment | None, coupled: bool, parameters: Sequence[Tensor]) -> None:
    """Leave for the functional, which is not told who calls it, what the plan says of its lists."""
    if "torch._dynamo" in sys.modules:  # only a compiled step needs the operators
        from .. import compile_ops as ops  # noqa: F401
    if attachment is None:
        _stepping.value = None
        return
    sharded.refuse_compiling(parameters)
    _stepping.layouts, shapes = planned(attachment, parameters)
    _stepping.value = (shapes, attachment.options.at, coupled, attachment.options.kernel)


def announced() -> Announced | None:
    """Take what `_init_group` left; under torch.compile this is read once, while tracing."""
    return _stepping.value  # type: ignore[no-any-return]


# What torch.compiler.assume_constant_result does, without its import of all of Dynamo (2 s).
announced._dynamo_marked_constant = True  # type: ignore[attr-defined]


def centralizing(functional: Functional) -> Functional:
    """Return torch's functional form with GC in front of it (or behind it, for `at="update"`)."""

    @functools.wraps(functional)
    def centralized(params: list[Tensor], grads: list[Tensor], *states: Any, **options: Any) -> None:
        said = announced()
        if said is None:
            return functional(params, grads, *states, **options)
        if torch.compiler.is_compiling():
            return traced(functional, said, params, grads, states, options)
        _, at, coupled, kernel = said
        layouts = _stepping.layouts
        if steps.take(
            functional.__name__,
            params,
            grads,
            states,
            options,
            layouts,
            at=at,  # type: ignore[arg-type]
            projected=coupled,
            kernel=kernel,
        ):
            return None
        if at == "update" and kernel in ("native", "triton"):
            raise TypeError(
                f"kernel={kernel!r} cannot project the update of this step: its tensors or options (foreach, "
                "fused=False, amsgrad, capturable, …) need torch's own form. Use kernel='auto'"
            )
        if at == "gradient":
            strength = handed_decay(options) if coupled else 0.0
            with_gc = sharded.centralized(grads, layouts, params, decay=strength, kernel=kernel)
            return functional(params, with_gc, *states, **options)
        planned = [each for each, layout in zip(params, layouts, strict=True) if layout is not None]
        theirs = [layout for layout in layouts if layout is not None]
        means = sharded.vector_means(planned, theirs)
        functional(params, grads, *states, **options)
        sharded.restore_means_(planned, theirs, means)

    return centralized


def traced(
    functional: Functional,
    said: Announced,
    params: list[Tensor],
    grads: list[Tensor],
    states: Any,
    options: Any,
) -> None:
    """The same in a form that Dynamo captures whole: operators of our own, and no Python it must look into."""
    shapes, at, coupled, _ = said
    calls = torch.ops.gradcent
    if at == "gradient":
        decay = options.get("weight_decay", 0.0) if coupled else 0.0
        if options.get("maximize"):
            decay = -decay
        scale = options.get("grad_scale")
        grads = [
            gradient
            if shape is None
            else calls.centralize(gradient, parameter if coupled else None, decay, scale, shape)
            for gradient, parameter, shape in zip(grads, params, shapes, strict=True)
        ]
        return functional(params, grads, *states, **options)
    means = [
        None if shape is None else calls.vector_means(each, shape)
        for each, shape in zip(params, shapes, strict=True)
    ]
    functional(params, grads, *states, **options)
    for parameter, mean, shape in zip(params, means, shapes, strict=True):
        if shape is not None:
            calls.restore_means_(parameter, mean, shape)


def handed_decay(options: dict[str, Any]) -> Any:
    """λ as it stands beside the gradient handed over: negated by maximize, scaled by a GradScaler.

    torch computes g/s + λw, or −g/s + λw: handing over g − mean(g ± sλw) makes either a projection.
    """
    strength = options.get("weight_decay", 0.0)
    if options.get("maximize"):
        strength = -strength
    scale = options.get("grad_scale")
    return strength if scale is None else strength * scale


def centralized_step(torch_class: type, functional_name: str, functional: Functional | None = None) -> Any:
    """Rebuild `torch_class.step` with its functional form centralizing."""
    raw = inspect.unwrap(torch_class.step)  # type: ignore[attr-defined]
    inside = functional or raw.__globals__[functional_name]
    names = {**raw.__globals__, functional_name: centralizing(inside)}

    def rebuild(identity: str) -> Any:
        # Dynamo keeps compiled graphs by code object, and what the plan says is a constant in them. So torch's
        # step, ours, and ours with another plan each need a code object of their own.
        code = raw.__code__.replace(co_name=f"step_{identity}")
        made = types.FunctionType(code, names, raw.__name__, raw.__defaults__, raw.__closure__)
        made.__kwdefaults__ = raw.__kwdefaults__
        made.__doc__ = raw.__doc__
        return made

    switched_off = rebuild("off")
    quick = steps.known(inside.__name__)

    @functools.wraps(switched_off)
    def step(self: Any, closure: Any = None) -> Any:
        body = self._gradcent_body or switched_off
        mine = self._gradcent
        if torch.compiler.is_compiling():
            return body(self, closure)
        # A subclass that collects its lists in its own way is stepped in torch's.
        own = getattr(type(self), "_init_group", None) is not getattr(
            type(self), "_gradcent_init_group", None
        )
        if mine is None or not quick or own or torch.is_grad_enabled():
            return _marked(self, body, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        left = _quick.step(self, inside.__name__, mine)
        if left:
            self.param_groups = left
            try:
                _marked(self, body, None)
            finally:
                self.param_groups = groups
        return loss

    step.rebuild = rebuild  # type: ignore[attr-defined]
    step.whole = steps.known(inside.__name__)  # type: ignore[attr-defined]
    return _use_grad_for_differentiable(step) if _may_differentiate(torch_class) else torch.no_grad()(step)


def _marked(optimizer: Any, body: Any, closure: Any) -> Any:
    """Step, and say so to `_init_group`: a step of torch, bound before attaching, does not come by here."""
    optimizer._gradcent_inside = True
    try:
        return body(optimizer, closure)
    finally:
        optimizer._gradcent_inside = False


def _may_differentiate(torch_class: type) -> bool:
    """Whether torch wraps this class's step for `differentiable=True` (Adafactor and Muon cannot)."""
    wrapper = torch_class.step  # type: ignore[attr-defined]
    while hasattr(wrapper, "__wrapped__"):
        if wrapper.__code__.co_name == "_use_grad":
            return True
        wrapper = wrapper.__wrapped__
    return False
