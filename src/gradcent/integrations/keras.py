"""Keras 3 on the torch backend: GC in the optimizer that a model is compiled with.

    model.compile(optimizer=keras.optimizers.AdamW(1e-3), loss=…)
    gradcent.integrations.keras.attach(model.optimizer, model)

Keras optimizers are not torch's. GC acts where they use the gradients: after accumulation and clipping. Their weight
decay is always decoupled; an L2 regularizer of a layer is part of the loss, so its λw is inside the projection. Other
backends are refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import torch

from .. import kernels
from ..layout import Layout
from ..operator import restore_means_, vector_means
from ..options import Options
from ..plan import Layers, Plan, Reason, ReasonCode
from ..plan.entry import Answer
from ..plan.overrides import Override
from ..plan.parameter import Parameter, Resolved, Use
from ..plan.planner import MIN_LENGTH, plan_parameters
from . import announce, require

if TYPE_CHECKING:
    keras: Any
else:
    keras = require("keras")

Overrides = Mapping[str | type, Override]
_STEP, _APPLY = "_backend_update_step", "_backend_apply_gradients"


def explain(
    model: Any, *, layers: str = "all", overrides: Overrides | None = None, min_length: int = MIN_LENGTH
) -> Plan:
    """Plan a Keras model; names are the variables' paths, as in `overrides={"*/dense_2/kernel": None}`.

    An override may also name a layer type: `overrides={keras.layers.Dense: None}`.
    """
    return _plan(model, layers, overrides, min_length)[0]


def attach(
    optimizer: Any,
    model: Any,
    *,
    layers: Literal["all", "conv", "linear"] = "all",
    at: Literal["gradient", "update"] = "gradient",
    overrides: Overrides | None = None,
    min_length: int = MIN_LENGTH,
    kernel: str = "auto",
) -> Any:
    """Centralize in every step of a Keras optimizer, and return it. Attach again after loading a model from disk."""
    if keras.backend.backend() != "torch":
        raise RuntimeError(
            f"Keras runs on {keras.backend.backend()} here; this integration needs KERAS_BACKEND=torch "
            "(see docs/integrations/keras.md for the other backends)"
        )
    Options(layers=layers, at=at, kernel=kernel, min_length=min_length)  # raises if an option is wrong
    while hasattr(optimizer, "inner_optimizer"):  # LossScaleOptimizer
        optimizer = optimizer.inner_optimizer
    if not all(hasattr(optimizer, name) for name in (_STEP, _APPLY)):
        raise TypeError(
            f"expected an optimizer of Keras 3, got {type(optimizer).__name__}; compile the model first"
        )
    if _STEP in vars(optimizer):
        raise ValueError("gradcent is attached to this optimizer already; gradcent.integrations.keras.detach")
    plan, layouts = _plan(model, layers, overrides, min_length)
    plan.require_something()
    step = _Step(optimizer, layouts, at, kernel)
    setattr(optimizer, _STEP, step)
    setattr(optimizer, _APPLY, step.apply)
    announce(plan, at)
    return optimizer


def detach(optimizer: Any) -> Any:
    """Turn GC off."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    if _STEP not in vars(optimizer):
        raise ValueError("gradcent is not attached to this optimizer")
    delattr(optimizer, _STEP)
    delattr(optimizer, _APPLY)
    return optimizer


class _Step:
    """Replaces an optimizer's method that updates the variables."""

    def __init__(self, optimizer: Any, layouts: dict[int, Layout | None], at: str, kernel: str) -> None:
        self.plain, self.plain_apply = getattr(optimizer, _STEP), getattr(optimizer, _APPLY)
        self.layouts, self.at, self.kernel = layouts, at, kernel
        self.before: dict[int, torch.Tensor] = {}

    def layout(self, variable: Any) -> Layout | None:
        if id(variable) not in self.layouts:
            raise ValueError(
                f"gradcent: {variable.path} is not a variable of the model passed to attach; "
                "detach and attach again with the model as it is now"
            )
        return self.layouts[id(variable)]

    def apply(self, gradients: Any, variables: Any) -> Any:
        """Record the means that `at="update"` keeps, before anything is decayed or updated."""
        if self.at == "update":
            planned = [(variable, self.layout(variable)) for variable in variables]
            with torch.no_grad():
                self.before = {
                    id(variable): vector_means(variable.value, layout)
                    for variable, layout in planned
                    if layout is not None
                }
        return self.plain_apply(gradients, variables)

    def __call__(self, gradients: Any, variables: Any, learning_rate: Any) -> Any:
        layouts = [self.layout(variable) for variable in variables]
        with torch.no_grad():
            if self.at == "gradient":
                values = [variable.value for variable in variables]
                gradients = kernels.centralized(
                    list(gradients), layouts, values, decay=0.0, kernel=self.kernel
                )
                return self.plain(gradients, variables, learning_rate)
            result = self.plain(gradients, variables, learning_rate)
            for variable, layout in zip(variables, layouts, strict=True):
                if layout is not None:
                    restore_means_(variable.value, layout, self.before[id(variable)])
        return result


def _plan(
    model: Any, layers: str, overrides: Overrides | None, min_length: int
) -> tuple[Plan, dict[int, Layout | None]]:
    if not model.built:
        raise ValueError("the model has no variables yet: build it, or call it once, before attaching")
    variables = list(_variables(model))
    parameters = [
        Parameter(
            variable.value,
            tuple(variable.shape),
            (Use(variable.path, layer, variable.name),),
            trainable=bool(variable.trainable),
        )
        for layer, variable in variables
    ]
    entries = plan_parameters(
        parameters,
        LayerRules(model),
        layers=cast(Layers, layers),
        overrides=overrides,
        min_length=min_length,
    )
    plan = Plan(entries)
    return plan, {id(variable): plan.layout(variable.value) for _, variable in variables}


class LayerRules:
    """The rules for Keras layers (:class:`gradcent.plan.parameter.Resolver`)."""

    noun = "variable"
    module_base: type | None = keras.Layer

    def __init__(self, model: Any) -> None:
        self.model = model

    def resolve(self, use: Use, shape: tuple[int, ...]) -> Resolved | None:
        """Return the layout or the reason for one variable; None if no rule applies."""
        kind = _kind(use.owner)
        answer = _answer(use.owner, kind, use.local_name, shape)
        return None if answer is None else Resolved(answer, "conv" if "Conv" in kind else "linear")

    def module_name(self, use: Use) -> str:
        """Return the name of the layer's Keras class."""
        return _kind(use.owner)

    def contains(self, module_type: type) -> bool:
        """Whether the model contains a layer of this type."""
        return any(isinstance(layer, module_type) for layer in self.model._flatten_layers())


def _variables(model: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every weight once, with the layer that owns it; counters and statistics have no gradient."""
    owners: dict[int, Any] = {}
    for layer in model._flatten_layers():
        for variable in layer._trainable_variables:
            owners.setdefault(id(variable), layer)
    for variable in model.weights:
        if id(variable) in owners:
            yield owners[id(variable)], variable


def _kind(layer: Any) -> str:
    """Return the name of the nearest Keras class in the MRO; BaseConv stands for Conv1D, Conv2D and Conv3D."""
    names = [cls.__name__ for cls in type(layer).__mro__ if cls.__module__.split(".")[0] == "keras"]
    return next((name for name in names if name.startswith("Base")), names[0])


def _answer(layer: Any, kind: str, name: str, shape: tuple[int, ...]) -> Answer | None:
    if "bias" in name:
        return Reason(ReasonCode.BIAS, "bias")
    last_is_out = Layout(1, math.prod(shape[:-1]), shape[-1], 1) if shape else None
    if (kind, name) in _LAST_IS_OUT and last_is_out is not None:
        return last_is_out
    if kind == "BaseConvTranspose" and name == "kernel":  # (k…, out, in)
        return Layout(1, math.prod(shape[:-2]), shape[-2], shape[-1])
    depthwise = (kind, name) in (("BaseDepthwiseConv", "kernel"), ("BaseSeparableConv", "depthwise_kernel"))
    if depthwise:  # (k…, in, multiplier): each a filter of its own
        return Layout(1, math.prod(shape[:-2]), shape[-2] * shape[-1], 1)
    if kind == "EinsumDense" and name == "kernel":
        return _einsum(layer.equation, shape)
    if kind == "Embedding":
        return Reason(ReasonCode.EMBEDDING, "embedding")
    return None


_LAST_IS_OUT = {
    ("Dense", "kernel"),
    ("BaseConv", "kernel"),
    ("BaseSeparableConv", "pointwise_kernel"),
    *(
        (cell, name)
        for cell in ("LSTMCell", "GRUCell", "SimpleRNNCell")
        for name in ("kernel", "recurrent_kernel")
    ),
}


def _einsum(equation: str, shape: tuple[int, ...]) -> Answer:
    """Dims of the kernel that the product sums over are averaged, those that it brings to the output are kept."""
    inputs, rest = equation.replace(" ", "").split(",")
    kernel, output = rest.split("->")
    roles = []
    for letter in kernel:
        summed, kept = letter in inputs and letter not in output, letter in output and letter not in inputs
        roles.append("averaged" if summed else "vectors" if kept else "batch")
    sizes, place = [1, 1, 1, 1], 0
    order = ("batch", "averaged", "vectors", "averaged")
    for role, size in zip(roles, shape, strict=True):
        while place < 4 and order[place] != role:
            place += 1
        if place == 4:
            text = f"EinsumDense {equation}: no layout has its dims in this order; choose by override"
            return Reason(ReasonCode.UNCLEAR_DIMS, text)
        sizes[place] *= size
    return Layout(*sizes)
