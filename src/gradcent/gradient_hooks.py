"""GC on the gradients themselves, for engines and loops whose optimizer step cannot be reached.

Φ is linear, so it commutes with averaging over workers and with accumulation: centralizing each
gradient as backward makes it gives the same sum. What it cannot see is the optimizer's weight decay:
a coupled λw stays outside the projection (Pg + λw instead of P(g + λw)).
"""

from __future__ import annotations

import warnings
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


class GradientHandles:
    """The hooks that :func:`attach_to_gradients` set; `remove()` takes them off, `plan` says what they do."""

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
    """Centralize each gradient as backward makes it, before anything accumulates, reduces or flattens it.

    For engines that flatten or shard parameters before the optimizer sees them (FSDP1, DeepSpeed
    ZeRO: call it before they wrap the model) and for optimizer-in-backward. With coupled weight decay the
    optimizer adds λw after the projection: use :func:`gradcent.attach` where you can. Do not use both.
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
    plan.warn_if_unknown(stacklevel=2)
    plan.require_something()
    _warn_if_attached(plan)
    handles = GradientHandles(plan)
    places: dict[int, list[_Place]] = {}
    for module in (each for root in models for each in root.modules()):
        for name, parameter in module._parameters.items():
            layout = None if parameter is None else plan.layout(parameter)
            if parameter is not None and layout is not None:
                place = _Place(module, name, layout, handles)
                place.hook(parameter)
                places.setdefault(id(module), []).append(place)
    for module in (each for root in models for each in root.modules()):
        below = [place for each in module.modules() for place in places.get(id(each), [])]
        if below:
            handles._handles.append(module.register_forward_pre_hook(_Watch(below)))
    return handles


class _Place:
    """Where a planned parameter stands. FSDP puts another tensor there for each forward pass."""

    def __init__(self, module: nn.Module, name: str, layout: Layout, handles: GradientHandles) -> None:
        self.module, self.name, self.layout, self.handles = module, name, layout, handles

    def look(self) -> None:
        """Hook the tensor that stands there now, unless it has its hook."""
        tensor = getattr(self.module, self.name, None)
        if isinstance(tensor, Tensor):
            self.hook(tensor)

    def hook(self, tensor: Tensor) -> None:
        whole = tensor.numel() == self.layout.numel or hasattr(tensor, "ds_shape")
        if not tensor.requires_grad or not whole:
            return  # frozen, or the piece of a sharded one, which backward does not reach
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
            # A view left from the last pass, whose FSDP1 unit has not gathered its parameters yet. torch
            # refuses it to everybody, so it cannot enter this pass; its unit will put a new one there.
            return
        setattr(tensor, _MARK, _Mark(self.handles))
        if tensor.is_leaf:
            self.handles._handles.append(handle)  # a view is gone after its backward, and its hook with it


class _Watch:
    """A forward-pre-hook: engines exchange parameters just before; an object, so that copies take it along."""

    def __init__(self, places: list[_Place]) -> None:
        self.places = places

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            for place in self.places:
                place.look()


_MARK = "_gradcent_hooked"


def hooked_handles(tensor: Tensor) -> GradientHandles | None:
    """Return the handles of the `attach_to_gradients` that hooked this tensor, None if there is none now."""
    mark = getattr(tensor, _MARK, None)
    return None if mark is None or mark.handles._removed else mark.handles


def _warn_if_attached(plan: Plan) -> None:
    for attachment in ATTACHMENTS:
        for parameter, entry in plan.named():
            if entry.layout is not None and attachment.plan.layout(parameter) is not None:
                warnings.warn(
                    f"gradcent: attach centralizes {entry.name} already, in the steps of its optimizer; use one of the "
                    "two: do not call attach_to_gradients, or gradcent.detach(optimizer) first",
                    stacklevel=3,
                )
                return


class _Mark:
    """Left on a tensor that has its hook. A copy from a pickle has none, so it must not have the mark."""

    def __init__(self, handles: GradientHandles) -> None:
        self.handles = handles

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _Centralize:
    """The hook itself; an object, so that models that carry it can be pickled."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient if gradient.is_sparse else centralize(gradient, self.layout)


def _refuse(models: list[nn.Module]) -> None:
    """Wrapped models show flat pieces instead of their parameters."""
    for module in (each for root in models for each in root.modules()):
        flat = any(type(each).__name__ == "FlatParameter" for each in module._parameters.values())
        if flat or type(module).__name__ == "FullyShardedDataParallel":
            raise TypeError(
                "this model is wrapped by FSDP1, which shows flattened pieces in place of its parameters: "
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
    """Centralize the gradients that are there now, in place; for loops that do everything by hand.

    Pass a :class:`Plan` instead of the model to plan once and call often.
    """
    ready = model if isinstance(model, Plan) else None
    plan = Plan.chosen(model, ready, layers=layers, overrides=overrides, min_length=min_length)  # type: ignore[arg-type]
    plan.require_something()
    trained = [
        (each, entry.layout)
        for each, entry in plan.named()
        if each.grad is not None and not each.grad.is_sparse
    ]
    with torch.no_grad():
        sharded.centralize_gradients_(
            [each for each, _ in trained], [layout for _, layout in trained], decay=0.0, kernel=kernel
        )
