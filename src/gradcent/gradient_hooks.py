"""GC by hooks on the parameters' gradients, for engines whose optimizer step is out of reach.

Φ is linear, so it commutes with averaging over ranks and with accumulation: centralizing each gradient as backward
computes it gives the same sum. The hooks do not see the optimizer's weight decay: a coupled λw stays outside the
projection (Pg + λw instead of P(g + λw)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attachment import ATTACHMENTS
from .dtensor import centralize as sharded
from .functional import centralize
from .layout import Layout
from .plan import ExampleForward, Layers, Overrides, Plan, models_of
from .plan.planner import MIN_LENGTH
from .user_warning import warn_user


class GradientHandles:
    """The hooks of one :func:`attach_to_gradients`; `remove()` removes them, `plan` shows what they centralize."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._handles: list[Any] = []
        self._removed = False

    def remove(self) -> None:
        """Stop centralizing."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._removed = [], True

    def __repr__(self) -> str:
        state = "removed" if self._removed else self.plan.summary()
        return f"<gradcent on gradients: {state}>"


def attach_to_gradients(
    model: nn.Module | Sequence[nn.Module],
    *,
    plan: Plan | None = None,
    layers: Layers = "all",
    overrides: Overrides | None = None,
    min_length: int = MIN_LENGTH,
    example: Any = None,
    example_forward: ExampleForward | None = None,
) -> GradientHandles:
    """Centralize each gradient as backward computes it, before anything accumulates, reduces or flattens it.

    For engines that flatten or shard parameters before the optimizer sees them (FSDP1, DeepSpeed
    ZeRO: call it before they wrap the model) and for optimizer-in-backward. With coupled weight decay the
    optimizer adds λw after the projection: use :func:`gradcent.attach` where you can. Do not use both.

    >>> model = nn.Linear(3, 2)
    >>> handles = gradcent.attach_to_gradients(model)
    >>> model(torch.rand(4, 3)).square().mean().backward()
    >>> bool(model.weight.grad.sum(1).abs().max() < 1e-6)
    True
    >>> handles.remove()
    """
    models = models_of(model)
    _refuse(models)
    plan = Plan.chosen(
        model,
        plan,
        layers=layers,
        overrides=overrides,
        min_length=min_length,
        example=example,
        example_forward=example_forward,
    )
    plan.warn_if_unknown()
    plan.require_something()
    _warn_if_attached(plan)
    handles = GradientHandles(plan)
    hooked: dict[int, list[_HookedParameter]] = {}
    modules = [module for root in models for module in root.modules()]
    for module in modules:
        for name, parameter in module._parameters.items():
            layout = None if parameter is None else plan.layout(parameter)
            if parameter is not None and layout is not None:
                entry = _HookedParameter(module, name, layout, handles)
                entry.hook(parameter)
                hooked.setdefault(id(module), []).append(entry)
    for module in modules:
        inside = [entry for child in module.modules() for entry in hooked.get(id(child), [])]
        if inside:
            handles._handles.append(module.register_forward_pre_hook(_HookReplaced(inside)))
    return handles


class _HookedParameter:
    """A planned parameter of a module. FSDP replaces its tensor for each forward pass."""

    def __init__(self, module: nn.Module, name: str, layout: Layout, handles: GradientHandles) -> None:
        self.module, self.name, self.layout, self.handles = module, name, layout, handles

    def hook_current(self) -> None:
        """Hook the module's present tensor, unless it is hooked already."""
        tensor = getattr(self.module, self.name, None)
        if isinstance(tensor, Tensor):
            self.hook(tensor)

    def hook(self, tensor: Tensor) -> None:
        whole = tensor.numel() == self.layout.numel or hasattr(tensor, "ds_shape")
        if not tensor.requires_grad or not whole:
            return  # frozen, or a shard, which backward does not reach
        before = hooked_handles(tensor)
        if before is self.handles:
            return
        if before is not None:
            raise ValueError(
                f"gradcent.attach_to_gradients was called already for {self.name} of "
                f"{type(self.module).__name__}; call remove() on what it returned first"
            )
        try:
            handle = tensor.register_hook(_Centralize(self.layout))  # type: ignore[no-untyped-call]
        except RuntimeError:
            # A view from the last pass, whose FSDP1 unit has not gathered its parameters yet. torch does not allow
            # its use, so it cannot be part of this pass; the unit will replace it.
            return
        setattr(tensor, _MARK, _Mark(self.handles))
        if tensor.is_leaf:
            self.handles._handles.append(handle)  # a view and its hook are freed after backward


class _HookReplaced:
    """A forward-pre-hook that hooks tensors which the engine has just replaced; an object, so that copies keep it."""

    def __init__(self, parameters: list[_HookedParameter]) -> None:
        self.parameters = parameters

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            for parameter in self.parameters:
                parameter.hook_current()


_MARK = "_gradcent_hooked"


def hooked_handles(tensor: Tensor) -> GradientHandles | None:
    """Return the handles of the `attach_to_gradients` that hooked this tensor, None if there is none now."""
    mark = getattr(tensor, _MARK, None)
    return None if mark is None or mark.handles._removed else mark.handles


def _warn_if_attached(plan: Plan) -> None:
    for attachment in ATTACHMENTS:
        for parameter, entry in plan.named():
            if entry.layout is not None and attachment.plan.layout(parameter) is not None:
                warn_user(
                    f"gradcent: attach centralizes {entry.name} already, in the steps of its optimizer; use one of the "
                    "two: do not call attach_to_gradients, or gradcent.detach(optimizer) first",
                )
                return


class _Mark:
    """Marks a tensor that is hooked. An unpickled copy has no hook, so it must not have the mark."""

    def __init__(self, handles: GradientHandles) -> None:
        self.handles = handles

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _Centralize:
    """The hook itself; an object, so that hooked models can be pickled."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient if gradient.is_sparse else centralize(gradient, self.layout)


def _refuse(models: list[nn.Module]) -> None:
    """Raise if a model is wrapped by FSDP1, which has flat parameters instead of the model's."""
    for module in (module for root in models for module in root.modules()):
        flat = any(type(param).__name__ == "FlatParameter" for param in module._parameters.values())
        if flat or type(module).__name__ == "FullyShardedDataParallel":
            raise TypeError(
                "this model is wrapped by FSDP1, which replaces its parameters by flattened pieces: "
                "call gradcent.attach_to_gradients(model) before wrapping it"
            )


def centralize_gradients_(
    model: nn.Module | Sequence[nn.Module] | Plan,
    *,
    layers: Layers = "all",
    overrides: Overrides | None = None,
    min_length: int = MIN_LENGTH,
    kernel: str = "auto",
) -> None:
    """Centralize the present gradients in place, for hand-written training loops.

    Pass a :class:`Plan` instead of the model to plan once and call often.

    >>> model = nn.Linear(3, 2)
    >>> plan = gradcent.explain(model)
    >>> model(torch.rand(4, 3)).square().mean().backward()
    >>> gradcent.centralize_gradients_(plan)
    >>> bool(model.weight.grad.sum(1).abs().max() < 1e-6)
    True
    """
    module, ready = (None, model) if isinstance(model, Plan) else (model, None)
    plan = Plan.chosen(module, ready, layers=layers, overrides=overrides, min_length=min_length)  # type: ignore[arg-type]
    plan.require_something()
    trained = [
        (param, entry.layout)
        for param, entry in plan.named()
        if param.grad is not None and not param.grad.is_sparse
    ]
    with torch.no_grad():
        sharded.centralize_gradients_(
            [param for param, _ in trained], [layout for _, layout in trained], decay=0.0, kernel=kernel
        )
