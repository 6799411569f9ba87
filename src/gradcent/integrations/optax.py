"""Optax: GC as a gradient transformation that knows Flax's and Equinox's layouts.

    from gradcent.integrations.optax import centralize
    optimizer = optax.chain(optax.add_decayed_weights(5e-4), centralize(model, x), optax.sgd(0.1, momentum=0.9))

Its place in the chain decides what it does: after `add_decayed_weights` it gives the paper's P(g + λw); before it, λw
stays outside the projection; at the end of the chain it is GC at the update, which keeps the sum of every weight
vector under any optimizer. `optax.centralize` averages the wrong side of Flax's (in, out) kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ..layout import Layout
from ..plan import Entry, Layers, Override, Plan
from ..plan.parameter import Parameter, Use
from ..plan.planner import MIN_LENGTH, ROLES, check_layers, plan_parameters
from ..plan.traced import Traced
from . import _jax_layouts as layouts
from . import _jax_trace, announce, require

if TYPE_CHECKING:
    jax: Any
    jnp: Any
    optax: Any
else:
    jax = require("jax")
    jnp = require("jax.numpy", "jax")
    optax = require("optax")


def explain(
    model: Any,
    *inputs: Any,
    layers: str = "all",
    overrides: Mapping[str, Override] | None = None,
    min_length: int = MIN_LENGTH,
) -> Plan:
    """Plan a flax.linen module (with the inputs of its call), a flax.nnx module, an Equinox module, or any function.

    For a function ``apply(params, *inputs)`` the inputs are the parameters and an example: ``explain(apply, params,
    x)``. One pass over its jaxpr shows which dims of each parameter are contracted. The plan's keys are the parameters'
    paths: ``plan.entry(("dense", "kernel"))``. A function's layers have roles, so that ``layers="hidden"`` and
    ``layers="input"`` work; there are no levels, because nothing is computed.
    """
    is_function = _is_function(model)
    if layers in ROLES and not is_function:
        raise ValueError(
            f'layers="{layers}" selects by a layer\'s role, which the jaxpr of a function shows, not a '
            f"{type(model).__name__}: pass the model's function, centralize(apply, params, x, layers=…)"
        )
    check_layers(layers, traced=is_function)
    traced: dict[Any, Traced] | None = None
    if is_function:
        parameters, rules, traced = _trace(model, inputs)
    else:
        parameters, rules = _walk(model, inputs)
    plan = Plan(
        plan_parameters(
            parameters,
            rules,
            layers=cast(Layers, layers),
            overrides=overrides,
            min_length=min_length,
            trace=None if traced is None else lambda parameter: traced.get(parameter.key),
        )
    )
    plan.require_something()
    return plan


def centralize(
    model: Any,
    *inputs: Any,
    layers: str = "all",
    overrides: Mapping[str, Override] | None = None,
    min_length: int = MIN_LENGTH,
) -> Any:
    """Return the transformation for a model (or for a ready :class:`Plan`); arguments as for `explain`."""
    options: dict[str, Any] = {"layers": layers, "overrides": overrides, "min_length": min_length}
    plan = model if isinstance(model, Plan) else explain(model, *inputs, **options)
    announce(plan)

    def init(params: Any) -> Any:
        for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
            _entry(plan, path, leaf)
        return optax.EmptyState()

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        def one(path: Any, gradient: Any) -> Any:
            layout = _entry(plan, path, gradient).layout
            return gradient if layout is None else centralized(gradient, layout)

        return jax.tree_util.tree_map_with_path(one, updates), state

    return optax.GradientTransformation(init, update)


def centralized(gradient: Any, layout: Layout) -> Any:
    """Φ on one array: Eq. 1 of the paper, in two passes and in float32 for half types, as in operator.py."""
    shape, dims = layout.split(gradient.shape)
    half = gradient.dtype in (jnp.float16, jnp.bfloat16)
    vectors = gradient.reshape(shape).astype(jnp.float32 if half else gradient.dtype)
    rest = vectors - vectors.mean(dims, keepdims=True)
    rest = rest - rest.mean(dims, keepdims=True)  # what rounding the first mean left
    return rest.reshape(gradient.shape).astype(gradient.dtype)


def _is_function(model: Any) -> bool:
    modules = ("flax.", "equinox.")
    return callable(model) and not any(cls.__module__.startswith(modules) for cls in type(model).__mro__)


def _trace(
    function: Any, inputs: tuple[Any, ...]
) -> tuple[list[Parameter], layouts.JaxRules, dict[Any, Traced]]:
    if not inputs:
        raise TypeError(
            "a function shows its weight vectors when it is traced: pass its parameters and an example as well, "
            "centralize(apply, params, x)"
        )
    params, *example = inputs
    paths = [layouts.normal(path) for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]]
    shapes = [tuple(leaf.shape) for leaf in jax.tree_util.tree_leaves(params)]
    parameters = [
        Parameter(path, shape, (Use(".".join(path), function, path[-1] if path else ""),))
        for path, shape in zip(paths, shapes, strict=True)
    ]
    traced = dict(zip(paths, _jax_trace.trace(function, params, example), strict=True))
    return parameters, layouts.FunctionRules(), traced


def _walk(model: Any, inputs: tuple[Any, ...]) -> tuple[list[Parameter], layouts.JaxRules]:
    names = {f"{cls.__module__}.{cls.__name__}" for cls in type(model).__mro__}
    is_equinox = False
    if any(name.startswith("flax.linen.") for name in names):
        if not inputs:
            raise TypeError(
                "a flax.linen module shows its layers only when it is called: pass its inputs as well, "
                "centralize(model, x); shapes are enough (jax.ShapeDtypeStruct)"
            )
        parameters = list(layouts.linen(model, inputs))
    elif any(name.startswith("flax.nnx.") for name in names):
        parameters = list(layouts.nnx(model))
    elif any(name.startswith("equinox.") for name in names):
        is_equinox, parameters = True, list(layouts.equinox(model))
    else:
        raise TypeError(
            f"expected a flax.linen, flax.nnx or Equinox module or a function, got {type(model).__name__}"
        )
    layer_shapes = {parameter.name: shape for parameter, shape in parameters}
    return [parameter for parameter, _ in parameters], layouts.JaxRules(is_equinox, layer_shapes)


def _entry(plan: Plan, path: Any, leaf: Any) -> Entry:
    names = layouts.normal(path)
    entry = plan.entry(names)
    if entry is None or entry.shape != tuple(leaf.shape):
        planned = "of another shape there" if entry else "not in the model that was given"
        raise ValueError(
            f"gradcent: parameter {'.'.join(names)} of shape {tuple(leaf.shape)} is {planned}; "
            "plan the model whose parameters are trained"
        )
    return entry
